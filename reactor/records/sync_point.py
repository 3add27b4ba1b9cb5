"""Sync points: the records of Ts at which source and sink are equal, table by table."""

from pydantic import Field

from reactor.records.base import Record, StoredTs, TableId, later


class SyncPoint(Record):
    """All spans of a changefeed were at ``ts`` at once, and every table of the sink can be read as of ``ts``.

    ``versions``: schema.name → the sink's own name for the version at that time (Delta: the table's version; empty if a
    sink has none). ``table_ids``: which table had that name then; empty in a point of v0.1.0. ``left_out``: held
    tables, which the point does not cover. ``time``: Unix seconds when it was recorded.
    """

    ts: StoredTs
    time: float
    versions: dict[str, str] = Field(default_factory=dict)
    left_out: tuple[str, ...] = later(())
    table_ids: dict[str, TableId] = later({})

    def version_of(self, table_id: int) -> str:
        """Return the version of a table, whatever its name is by now; empty if the point does not have it, or does not
        tell tables of one name apart."""
        names = (name for name, known in self.table_ids.items() if known == table_id)
        return self.versions.get(next(names, ""), "")
