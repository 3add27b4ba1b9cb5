"""Sync points: the records of Ts at which source and sink are equal, table by table."""

from pydantic import Field

from reactor.record import Record, StoredTs


class SyncPoint(Record):
    """All spans of a changefeed stood at ``ts``, and every table of the sink is there as it was at ``ts``.

    ``versions``: schema.name → the sink's own name for what its readers then saw (Delta: the table's version; empty
    where a sink has none). ``time``: Unix seconds when it was recorded.
    """

    ts: StoredTs
    time: float
    versions: dict[str, str] = Field(default_factory=dict)
