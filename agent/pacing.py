"""Pacing: limits how many rows are read from a source per second, by all work that shares a budget.

Rows are paid for as they are read; whoever reads waits until all earlier ones are paid for. So a reader that alone
could be faster is slowed down, any number of readers together have one rate, and one that has paused may not read more
afterwards. Waiting blocks a thread, and ends at once when the work is stopped.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from threading import Event
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel
import pyarrow as pa
from anyio import CapacityLimiter, to_thread

T = TypeVar("T")

#: a chunk that is read at once has the rows of a second, but at least so many: each is a job, and a file of the sink
_CHUNK_ROWS_MIN: Final = 2_000


class ReadingStopped(Exception):
    """The work was stopped while it waited."""


class RowBudget:
    """``rows_per_second``, for all that share it; thread-safe."""

    def __init__(self, rows_per_second: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        assert rows_per_second > 0
        self.rows_per_second = rows_per_second
        self._clock = clock
        self._lock = threading.Lock()
        #: when all rows so far are paid for
        self._free_at = clock()

    def spend(self, rows: int) -> None:
        """Note rows that were, or are about to be, read."""
        with self._lock:
            self._free_at = max(self._free_at, self._clock()) + rows / self.rows_per_second

    def seconds_left(self) -> float:
        """Return how long to wait before more is read."""
        return max(self._free_at - self._clock(), 0.0)


class Pace:
    """The pace of one piece of work: within all of its ``budgets``, until it is ``stopped``. ``rows``: what it has
    paid for so far."""

    def __init__(self, budgets: tuple[RowBudget, ...] = (), stopped: Event | None = None) -> None:
        self.budgets = budgets
        self.stopped = stopped or Event()
        self.rows = 0
        self._lock = threading.Lock()

    @property
    def is_limited(self) -> bool:
        return bool(self.budgets)

    def chunk_rows(self, unlimited: int) -> int:
        """Return how many rows to read at once, where ``unlimited`` are without a limit."""
        lowest = min((budget.rows_per_second for budget in self.budgets), default=unlimited)
        return min(unlimited, max(lowest, _CHUNK_ROWS_MIN))

    def spend(self, rows: int) -> None:
        """Note rows that were, or are about to be, read."""
        with self._lock:
            self.rows += rows
        for budget in self.budgets:
            budget.spend(rows)

    def seconds_left(self) -> float:
        return max((budget.seconds_left() for budget in self.budgets), default=0.0)

    def wait(self) -> None:
        """Block until more may be read.

        :raises ReadingStopped: the work is stopped.
        """
        while left := self.seconds_left():
            if self.stopped.wait(left):
                raise ReadingStopped
        if self.stopped.is_set():
            raise ReadingStopped


_shared: WeakValueDictionary[tuple[str, int], RowBudget] = WeakValueDictionary()
_sharing = threading.Lock()


def pace_of(name: str, shared: int | None, own: int | None) -> Pace:
    """Return the pace of one piece of work, in rows per second. ``shared``: by all work of that ``name`` in this
    process; ``own``: by this alone; None: no limit."""
    budgets = [] if own is None else [RowBudget(own)]
    if shared is not None:
        with _sharing:
            budget = _shared.get((name, shared))
            if budget is None:
                budget = _shared[name, shared] = RowBudget(shared)
        budgets.append(budget)
    return Pace(tuple(budgets))


def paced(batches: Iterable[pa.RecordBatch], pace: Pace) -> Iterator[pa.RecordBatch]:
    """Yield batches no faster than ``pace``.

    :raises ReadingStopped: the work is stopped; nothing of what was read counts.
    """
    pace.wait()
    for batch in batches:
        pace.spend(batch.num_rows)
        yield batch
        pace.wait()


async def run_stoppable(work: Callable[[], T], stopped: Event, *, limiter: CapacityLimiter | None = None) -> T:
    """Run blocking work in a thread. When cancelled, set ``stopped`` and wait for the work: then nothing runs any
    more."""
    done: list[T] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_cancel, stopped)
        try:
            done.append(await to_thread.run_sync(work, limiter=limiter))
        except Exception as error:
            failure = error  # raised below: the task group would wrap it
        finally:
            tasks.cancel_scope.cancel()
    await anyio.lowlevel.checkpoint_if_cancelled()
    if failure is not None:
        raise failure
    [found] = done
    return found


async def _stop_on_cancel(stopped: Event) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        stopped.set()
