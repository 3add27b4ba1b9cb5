"""Resyncs: the records of tables that are copied again while all others flow, one key per table."""

from collections.abc import Iterable
from enum import StrEnum

from reactor.ids import MAX_TS, Ts
from reactor.records.base import Count, Estimate, Record, RowsPerSecond, StoredTs, TableId, later
from reactor.records.changefeed import RunningError
from reactor.records.tables.table import TableRecord


class ResyncStage(StrEnum):
    """``ASKED``: waits for its turn, unchanged. ``STOPPING``: its spans stop. ``COPYING``: its rows are staged.
    ``PLACING``: the sink is asked to replace the table. ``PLACED``: the sink has done so. ``FOLLOWING``: it catches up
    from its copy's position, and the copy's leftovers are removed."""

    ASKED = "asked"
    STOPPING = "stopping"
    COPYING = "copying"
    PLACING = "placing"
    PLACED = "placed"
    FOLLOWING = "following"


#: the sink's table is unchanged, so the resync can be cancelled
_BEFORE_SINK = frozenset({ResyncStage.ASKED, ResyncStage.STOPPING, ResyncStage.COPYING})
#: stages in which the log is needed from the copy's position on
_NEEDS_LOG = frozenset({ResyncStage.COPYING, ResyncStage.PLACING, ResyncStage.PLACED})


class TableResync(Record):
    """A table that is copied again. Written by the owner only; removed when the table flows, or is held for a new
    reason.

    ``number``: Unix milliseconds when this copy began; part of the names of its staged files, so that copies do not
    share chunks. ``floor_ts``: the log is kept from there on; the copy's Ts is not below it. ``table``: the table as
    copied, whose ``start_ts`` is the copy's position; None before. ``error``: of the last attempt.
    """

    table_id: TableId
    name: str = ""
    stage: ResyncStage = ResyncStage.ASKED
    number: Count = 0
    #: Unix seconds
    since: float = 0.0
    floor_ts: StoredTs = Ts(0)
    table: TableRecord | None = None
    rows: Estimate = 0
    #: to read at most; None: no limit
    rows_per_second: RowsPerSecond | None = later(None, format=6)
    error: RunningError | None = None
    tries: Count = 0
    retry_at: float = 0.0

    @property
    def is_before_sink(self) -> bool:
        """Whether the sink's table is unchanged, so that the resync can be cancelled."""
        return self.stage in _BEFORE_SINK

    @property
    def is_wanted(self) -> bool:
        """Whether the copy is not in the table's place yet."""
        return self.stage is not ResyncStage.FOLLOWING

    @property
    def holds_table(self) -> bool:
        """Whether the table is not written meanwhile."""
        return self.stage not in (ResyncStage.ASKED, ResyncStage.FOLLOWING)


def needed_ts(resyncs: Iterable[TableResync]) -> Ts:
    """Return the lowest Ts of a copy from which the log must be followed; the largest Ts if there is none."""
    return min((resync.floor_ts for resync in resyncs if resync.stage in _NEEDS_LOG), default=MAX_TS)
