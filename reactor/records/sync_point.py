"""Sync points: the records of Ts at which source and sink are equal, table by table."""

from pydantic import Field

from reactor.records.base import Record, StoredTs, later


class SyncPoint(Record):
    """All spans of a changefeed were at ``ts`` at once, and every table of the sink is there as it was at ``ts``.

    ``versions``: schema.name → the sink's own name for what its readers then saw (Delta: the table's version; empty
    where a sink has none). ``left_out``: tables that were held, of which the point says nothing. ``time``: Unix seconds
    when it was recorded.
    """

    ts: StoredTs
    time: float
    versions: dict[str, str] = Field(default_factory=dict)
    left_out: tuple[str, ...] = later(())
