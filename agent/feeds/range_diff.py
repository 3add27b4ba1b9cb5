"""Range diff: compares one table by sums of row hashes over ranges of its key, and reads rows only where sums differ.

    ranges of the key ─► sums at the source, in SQL, range by range ─┐
                     └─► sums at the sink, in one Spark task ────────┴─► ranges that differ ─► their rows

Source and sink are summed side by side; of a sample, only some ranges of the source. A small table, which the source
has summed in a moment, is summed here: a Spark job for each would take longer than reading it. Where sums differ, rows
decide: they may be equal all the same, as a value may have two texts. Both sides are where the caller holds them.
"""

import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.ports.checksums import ALL_KEYS, KeyRange, RangeSum, SourceChecksums
from agent.ports.executor import Executor
from agent.ports.sink import ReadsRanges, Sink
from agent.rows.row_forms import RowForm
from agent.rows.row_hashes import row_hashes
from agent.rows.schema import TableSchema
from reactor.records.tables.table import TableRecord

_RANGE_ROWS: Final = 100_000
#: a table of no more rows is small: it is not divided, and is summed without Spark
_SMALL_ROWS: Final = 100_000
_RANGES_MAX: Final = 1_024
#: seconds for the sums of the source; a table that takes longer counts as large
_SMALL_S: Final = 0.1

Sums = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]


@dataclass(frozen=True, slots=True)
class Ranges:
    """``count`` ranges of ``column``, each of ``step`` values from ``low`` on; the first and the last have no end.
    Without a ``column`` there is one, of all rows."""

    column: str = ""
    low: int = 0
    step: int = 1
    count: int = 1

    @classmethod
    def over(cls, column: str, low: int, high: int) -> "Ranges":
        width = high - low + 1
        count = max(min(width // _RANGE_ROWS, _RANGES_MAX), 1)
        return cls(column, low, -(-width // count), count)

    def at(self, number: int) -> KeyRange:
        assert 0 <= number < self.count
        if not self.column or self.count == 1:
            return ALL_KEYS
        low = self.low + number * self.step
        return KeyRange(self.column, low if number else None, low + self.step if number < self.count - 1 else None)

    def around(self, numbers: Sequence[int]) -> KeyRange:
        """The smallest range that contains these."""
        low, high = self.at(min(numbers)).low, self.at(max(numbers)).high
        return ALL_KEYS if low is high is None else KeyRange(self.column, low, high)

    def numbers(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """In which of them each row is."""
        if not self.column or self.count == 1:
            return np.zeros(batch.num_rows, np.int64)
        ends = np.array([self.low + number * self.step for number in range(1, self.count)], np.int64)
        values = batch.column(self.column).cast(pa.int64()).to_numpy(zero_copy_only=False)
        numbers: npt.NDArray[np.int64] = np.searchsorted(ends, values, side="right")
        return numbers


@dataclass(frozen=True, slots=True)
class SinkTask:
    """The input of one Spark task."""

    open_sink: Callable[[], Sink]
    table: TableRecord
    schema: TableSchema
    arrow: pa.Schema
    form: RowForm
    ranges: Ranges
    #: contains all rows that are to be summed
    keys: KeyRange


def _sum_sink(task: SinkTask) -> Sums:
    """Runs on an executor. One reading of the keys, whatever the table's order."""
    rows, sums = np.zeros(task.ranges.count, np.int64), np.zeros(task.ranges.count, np.uint64)
    sink = task.open_sink()
    assert isinstance(sink, ReadsRanges), "asked for before"
    for batch in sink.read_range(task.table, task.schema, task.arrow, task.keys):
        numbers, hashes = task.ranges.numbers(batch), row_hashes(task.form, batch)
        rows += np.bincount(numbers, minlength=len(rows))
        np.add.at(sums, numbers, hashes)
        del batch, numbers, hashes
    return rows, sums


@dataclass(frozen=True, slots=True)
class RangeSums:
    """Both sides, by range. ``chosen``: the ranges that are compared; the sums of others are zero."""

    ranges: Ranges
    chosen: tuple[int, ...]
    source: Sums
    sink: Sums

    @property
    def rows(self) -> tuple[int, int]:
        """Of the source, and of the sink."""
        return int(self.source[0].sum()), int(self.sink[0].sum())

    def differing(self) -> Iterator[KeyRange]:
        """Neighbours as one."""
        wrong = (self.source[0] != self.sink[0]) | (self.source[1] != self.sink[1])
        for number in np.flatnonzero(wrong):
            yield self.ranges.at(int(number))


def choose(ranges: Ranges, sample: float) -> tuple[int, ...]:
    """Return such a share of the ranges, at random, and one at least."""
    count = max(min(math.ceil(sample * ranges.count), ranges.count), 1)
    return tuple(sorted(random.sample(range(ranges.count), count)))


def sum_ranges(
    checksums: SourceChecksums,
    order: Callable[[RowForm, Ranges, KeyRange], SinkTask],
    executor: Executor,
    ranges: Ranges,
    chosen: tuple[int, ...],
) -> RangeSums:
    """Both sides of some ranges of one table.

    :raises WeirError: one of them cannot be read.
    """
    task = order(checksums.form, ranges, ranges.around(chosen))
    with ThreadPoolExecutor(1, thread_name_prefix="diff-table") as pool:
        asked = pool.submit(_sum_source, checksums, ranges, chosen)
        if _is_small(asked):
            sink = _sum_sink(task)
        else:
            [sink] = executor.map(_sum_sink, [task], description="diff: checksums of a table")
        source = asked.result()
    is_chosen = np.isin(np.arange(ranges.count), chosen)
    return RangeSums(ranges, chosen, source, (sink[0] * is_chosen, sink[1] * is_chosen))


def _is_small(source: Future[Sums]) -> bool:
    with suppress(TimeoutError):
        rows, _ = source.result(timeout=_SMALL_S)
        return int(rows.sum()) <= _SMALL_ROWS
    return False


def plan(checksums: SourceChecksums, column: str) -> Ranges:
    """Return the ranges of a table: one if it is small, however far apart its keys are.

    :raises WeirError: the source cannot be read.
    """
    if not column:
        return Ranges()
    with checksums.open() as session:
        bounds = session.bounds(column) if session.has_more_rows(_SMALL_ROWS) else None
    return Ranges() if bounds is None else Ranges.over(column, *bounds)


def _sum_source(checksums: SourceChecksums, ranges: Ranges, chosen: Sequence[int]) -> Sums:
    waiting: SimpleQueue[int] = SimpleQueue()
    for number in chosen:
        waiting.put(number)
    found: dict[int, RangeSum] = {}
    failed = threading.Event()

    def work() -> None:
        try:
            with checksums.open() as session:
                while not failed.is_set():
                    number = waiting.get_nowait()
                    found[number] = session.sum(ranges.at(number))
        except Empty:
            pass
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(checksums.sessions, thread_name_prefix="diff-source") as pool:
        for done in [pool.submit(work) for _ in range(min(checksums.sessions, len(chosen)))]:
            done.result()
    rows, sums = np.zeros(ranges.count, np.int64), np.zeros(ranges.count, np.uint64)
    for number, one in found.items():
        rows[number], sums[number] = one.rows, one.sum
    return rows, sums
