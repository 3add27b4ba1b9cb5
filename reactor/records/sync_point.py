"""Sync points: the records of Ts at which source and sink are equal, table by table."""

from pydantic import Field

from reactor.records.base import Record, StoredTs, later


class SyncPoint(Record):
    """All spans of a changefeed were at ``ts`` at once, and every table of the sink can be read as of ``ts``.

    ``versions``: schema.name → the sink's own name for the version at that time (Delta: the table's version; empty if a
    sink has none). ``left_out``: held tables, which the point does not cover. ``time``: Unix seconds when it was
    recorded.
    """

    ts: StoredTs
    time: float
    versions: dict[str, str] = Field(default_factory=dict)
    left_out: tuple[str, ...] = later(())
