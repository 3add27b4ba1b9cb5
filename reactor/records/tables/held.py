"""Held tables: the records of tables that cannot continue while all others do."""

from collections.abc import Iterable
from enum import StrEnum

from reactor.ids import MAX_TS, Ts
from reactor.records.base import Count, Record, StoredTs, TableId
from reactor.records.changefeed import RunningError

#: code of a table that has ended processes: a retry would end another, so only an operator retries
CAPTURE_ENDED = "CaptureEnded"
#: code of one that has ended processes of Spark's on two captures, or on the only one
WORKER_LOST = "WorkerLost"
#: code of one with an update that left out a value, of a row that the sink lacks
LEFT_OUT_VALUE = "LeftOutValue"
#: code of one with a schema change that gave rows values which the log does not have
UNKNOWN_VALUES = "UnknownValues"
#: code of a partitioned table whose partitions came, went or were emptied with rows that the log does not name
PARTITION_ROWS = "PartitionRows"


class HoldOrigin(StrEnum):
    """The cause of the hold: writing it, a schema change that the sink refuses, the source, which cannot follow it, or
    an operator, by a resync or a pause."""

    WRITE = "write"
    SCHEMA = "schema"
    SOURCE = "source"
    RESYNC = "resync"
    PAUSE = "pause"


class HoldStage(StrEnum):
    """``HELD``: not being written. ``TRIED``: written again, and catching up. ``LOST``: the log it needs is gone."""

    HELD = "held"
    TRIED = "tried"
    LOST = "lost"


class HeldTable(Record):
    """A table that cannot continue, while all others do. Written by the owner only; removed when the table has caught
    up.

    ``name``: schema.table. ``ts``: everything at or below it is in the sink; changes above it may be. ``since`` and
    ``retry_at``: Unix seconds; ``retry_at`` 0: only retried when an operator resumes the changefeed, or a paused table.
    """

    table_id: TableId
    name: str = ""
    ts: StoredTs = Ts(0)
    since: float = 0.0
    error: RunningError
    origin: HoldOrigin = HoldOrigin.WRITE
    stage: HoldStage = HoldStage.HELD
    #: number of failed retries
    tries: Count = 0
    retry_at: float = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether an operator holds it, and has to say when it is tried again."""
        return self.origin is HoldOrigin.PAUSE


def is_parked(held: HeldTable | None) -> bool:
    """Return whether a table is held, and not being retried."""
    return held is not None and held.stage is not HoldStage.TRIED


def tried_after_end(held: Iterable[HeldTable]) -> frozenset[int]:
    """Return tables that have ended captures, or processes of Spark's, and are being retried."""
    codes = (CAPTURE_ENDED, WORKER_LOST)
    return frozenset(table.table_id for table in held if table.stage is HoldStage.TRIED and table.error.code in codes)


def needed_ts(held: Iterable[HeldTable]) -> Ts:
    """Return the Ts that every held table that may come back has passed; the largest Ts if there is none."""
    return min((table.ts for table in held if table.stage is not HoldStage.LOST), default=MAX_TS)
