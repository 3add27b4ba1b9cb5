"""Progress of a comparison: the ranges that are done, by table. The next comparison continues from it.

A comparison works in *parts*, each under a hold of its own at another Ts (``capture.member.comparisons.diff``). What is
equal counts at once; what differs only if the sink has stood still until the end (``accept``), or else it is compared
again.
"""

import threading
import time
from collections.abc import Collection, Iterable
from typing import Final

from agent.feeds.range_diff import Ranges, choose
from reactor.ids import Ts
from reactor.records.schedules import ComparedTable
from reactor.records.tables.table import TableRecord

#: rows that are summed in one go: the sink is read once for them
ROWS_AT_ONCE: Final = 16_000_000
_ROWS_MIN: Final = 100_000
#: a block has at most this many times the ranges of all blocks before it, since later ranges may have more rows
_GROWTH: Final = 3


class Progress:
    """``known``: of an earlier comparison. ``rows_per_second``: the source's limit. Shared between threads."""

    def __init__(
        self, known: Iterable[ComparedTable] = (), *, sample: float = 1.0, rows_per_second: int | None = None
    ) -> None:
        self.sample = sample
        self._tables = {one.table_id: one for one in known}
        self._unsure: dict[int, ComparedTable] = {}
        self._until = float("inf")
        self._rate = rows_per_second
        self._budget_s = float("inf")
        self._lock = threading.Lock()
        #: grows with each change
        self.version = 0

    @property
    def tables(self) -> tuple[ComparedTable, ...]:
        """What counts."""
        with self._lock:
            return tuple(self._tables.values())

    def done(self) -> frozenset[int]:
        return frozenset(one.table_id for one in self.tables if one.done)

    def begin(self, budget_s: float) -> None:
        """A part begins; it is to end after about ``budget_s``."""
        with self._lock:
            self._unsure.clear()
        self._budget_s, self._until = budget_s, time.monotonic() + budget_s

    def accept(self) -> None:
        """The sink has stood still: what differs counts, too."""
        with self._lock:
            self._tables |= self._unsure
            self.version += bool(self._unsure)
            self._unsure.clear()

    def has_time(self) -> bool:
        return time.monotonic() < self._until

    def known(self, table_id: int) -> ComparedTable | None:
        with self._lock:
            return self._unsure.get(table_id) or self._tables.get(table_id)

    def start(self, table: TableRecord, ranges: Ranges) -> ComparedTable:
        """Continue the table's comparison, or begin it."""
        before = self.known(table.table_id)
        if before is not None and not before.done and before.column == ranges.column:
            return before
        chosen = choose(ranges, self.sample)
        place = {"column": ranges.column, "low": ranges.low, "step": ranges.step, "count": ranges.count}
        name = f"{table.schema_name}.{table.name}"
        return ComparedTable(table_id=table.table_id, name=name, **place, chosen=len(chosen), left=chosen)

    def block(self, table: ComparedTable) -> tuple[int, ...]:
        """Return the next ranges to compare, with about as many rows as are summed in one go. A range has at most as
        many rows as values, which gives a number that is safe. Keys with gaps make it too small, and the sink is read
        once per block: so the rows of the ranges that are done may give a larger one."""
        rows = ROWS_AT_ONCE
        if self._rate is not None and self._budget_s != float("inf"):
            rows = max(min(rows, int(self._rate * self._budget_s)), _ROWS_MIN)
        safe, done = max(rows // max(table.step, 1), 1), table.chosen - len(table.left)
        likely = rows * done // max(table.rows_source, table.rows_sink, 1)
        return table.left[: max(safe, min(likely, _GROWTH * done))] if table.column else table.left

    def note(self, table: ComparedTable) -> None:
        """Record what has been compared."""
        with self._lock:
            before = self._tables.get(table.table_id)
            self._unsure[table.table_id] = table
            if len(table.differences) <= len(before.differences if before else ()):
                self._tables[table.table_id] = self._unsure.pop(table.table_id)
                self.version += 1


def compared(
    table: ComparedTable, block: Collection[int], rows: tuple[int, int], differences: Iterable[str], ts: Ts
) -> ComparedTable:
    """Return the table after some of its ranges were compared at ``ts``."""
    before = table.positions
    count = len(block)
    if before and before[-1][0] == ts:
        before, count = before[:-1], count + before[-1][1]
    finished = frozenset(block)
    left = tuple(number for number in table.left if number not in finished)
    return table.with_(
        left=left,
        done=not left,
        rows_source=table.rows_source + rows[0],
        rows_sink=table.rows_sink + rows[1],
        positions=(*before, (ts, count)),
        differences=(*table.differences, *differences),
    )
