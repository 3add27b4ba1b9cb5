"""Held tables: the records of tables that cannot continue while all others do."""

from collections.abc import Iterable
from enum import StrEnum

from reactor.ids import MAX_TS, Ts
from reactor.records.base import Count, Record, StoredTs, TableId
from reactor.records.changefeed import RunningError


class HoldOrigin(StrEnum):
    """What held a table: writing it, a schema change that the sink refuses, or the source, which cannot follow it."""

    WRITE = "write"
    SCHEMA = "schema"
    SOURCE = "source"


class HoldStage(StrEnum):
    """``HELD``: nobody writes it. ``TRIED``: written again, and catching up. ``LOST``: the log it needs is gone."""

    HELD = "held"
    TRIED = "tried"
    LOST = "lost"


class HeldTable(Record):
    """A table that cannot continue, while all others do. Written by the owner only; gone when the table has caught up.

    ``name``: schema.table. ``ts``: everything at or below it is in the sink, nothing above it is sure to be. ``since``
    and ``retry_at``: Unix seconds; ``retry_at`` 0: it is tried again only when an operator resumes the changefeed.
    """

    table_id: TableId
    name: str = ""
    ts: StoredTs = Ts(0)
    since: float = 0.0
    error: RunningError
    origin: HoldOrigin = HoldOrigin.WRITE
    stage: HoldStage = HoldStage.HELD
    #: how often it was tried again in vain
    tries: Count = 0
    retry_at: float = 0.0


def needed_ts(held: Iterable[HeldTable]) -> Ts:
    """What every held table has passed that may come back; the largest Ts when there is none."""
    return min((table.ts for table in held if table.stage is not HoldStage.LOST), default=MAX_TS)
