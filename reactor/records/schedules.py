"""Schedules: records of what an owner does from time to time, one key per changefeed each."""

from typing import Annotated

from pydantic import Field

from reactor.ids import Ts
from reactor.records.base import Count, Record, StoredTs, TableId, later


class LastDiff(Record):
    """Written by the capture that was owner. ``time``: Unix seconds when it ended, after ``seconds``. ``ts``: where the
    tables were compared, 0 if none was. How many were ``compared``, ``differ``, and ``wait``, as they did not reach the
    Ts; ``differing`` and ``waiting``: the first of their names. ``sample``: the share of each table that was looked
    at. ``error``: why there was no comparison; empty if there was one.
    """

    time: float
    seconds: float = 0.0
    ts: StoredTs = Ts(0)
    compared: Count = 0
    differ: Count = 0
    wait: Count = 0
    differing: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    error: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether there was a comparison, and all that was compared is equal."""
        return not (self.error or self.differ)


class ComparedTable(Record):
    """The progress of a comparison in one table. ``done``: all of it.

    It is compared in ``count`` ranges of ``column``, each of ``step`` values from ``low`` on; without a column there is
    one range. ``chosen``: how many of them are compared. ``left``: the numbers of those that are still to be. Rows are
    of those that have been. ``positions``: Ts, and the number of ranges compared there. ``differences``: the first
    differing keys, described. ``by_rows``: why rows were compared instead of checksums.
    """

    table_id: TableId
    name: str
    column: str = ""
    low: int = 0
    step: int = 1
    count: Count = 1
    chosen: Count = 1
    left: tuple[Count, ...] = ()
    rows_source: Count = 0
    rows_sink: Count = 0
    positions: tuple[tuple[StoredTs, Count], ...] = ()
    differences: tuple[str, ...] = ()
    by_rows: str = ""
    done: bool = False

    @property
    def ts(self) -> Ts:
        """Where the last of it was compared."""
        return Ts(self.positions[-1][0] if self.positions else 0)

    @property
    def share(self) -> float:
        """Of its ranges that have been compared."""
        return (self.chosen - len(self.left)) / self.count


class DiffProgress(Record):
    """A comparison that has not ended. Written by the capture that compares. ``began``: Unix seconds."""

    ELEMENTS = "tables"
    began: float
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    tables: tuple[ComparedTable, ...] = ()


class HandledSignals(Record):
    """Rows of the signal table that have been handled. Written by whoever creates the changefeed, then by the capture
    that was owner. ``ids``: of the rows that were there when it last looked, as texts. ``table``: ``schema.table``;
    empty in records of earlier versions."""

    ids: tuple[str, ...] = ()
    table: str = later("")
