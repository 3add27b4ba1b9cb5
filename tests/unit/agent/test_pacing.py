"""Pacing: all readers together keep to one rate, and none waits longer than it is wanted."""

import gc
from threading import Event, Thread

import anyio
import pyarrow as pa
import pytest

from agent.pacing import Pace, ReadingStopped, RowBudget, pace_of, paced, run_stoppable


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_rows_are_paid_for_before_more_are_read(clock: Clock) -> None:
    budget = RowBudget(1_000, clock=clock)
    assert budget.seconds_left() == 0
    budget.spend(500)
    budget.spend(1_500)
    assert budget.seconds_left() == 2.0
    clock.now += 1.5
    assert budget.seconds_left() == 0.5


def test_who_has_paused_may_not_read_more_afterwards(clock: Clock) -> None:
    budget = RowBudget(1_000, clock=clock)
    clock.now += 3_600
    budget.spend(1_000)
    assert budget.seconds_left() == 1.0


def test_the_lowest_limit_holds(clock: Clock) -> None:
    slow, fast = RowBudget(100, clock=clock), RowBudget(10_000, clock=clock)
    pace = Pace((fast, slow))
    pace.spend(50)
    assert (pace.seconds_left(), pace.rows) == (0.5, 50)
    assert (pace.chunk_rows(250_000), pace.chunk_rows(1_000)) == (2_000, 1_000)
    assert Pace((fast,)).chunk_rows(250_000) == 10_000
    assert Pace().chunk_rows(250_000) == 250_000
    assert not Pace().is_limited


def test_work_of_one_changefeed_shares_its_limit_and_no_other() -> None:
    first, second, other = pace_of("feed", 100, None), pace_of("feed", 100, 200), pace_of("other", 100, None)
    first.spend(100)
    assert second.seconds_left() > 0.5
    assert other.seconds_left() == 0
    assert pace_of("feed", None, None).seconds_left() == 0
    del first, second
    gc.collect()
    assert pace_of("feed", 100, None).seconds_left() == 0, "what nobody uses is not kept"


def test_batches_come_no_faster(clock: Clock) -> None:
    waits: list[float] = []

    class Told(Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            clock.now += timeout
            return False

    batch = pa.RecordBatch.from_pydict({"a": [1, 2, 3, 4]})
    pace = Pace((RowBudget(2, clock=clock),), Told())
    assert len(list(paced([batch] * 3, pace))) == 3
    assert waits == [2.0, 2.0, 2.0]


def test_who_waits_is_stopped_at_once() -> None:
    pace = Pace((RowBudget(1),))
    pace.spend(3_600)
    stopper = Thread(target=pace.stopped.set)
    stopper.start()
    with pytest.raises(ReadingStopped):
        pace.wait()
    stopper.join()
    with pytest.raises(ReadingStopped):
        Pace(stopped=pace.stopped).wait()


async def test_cancelled_work_ends_before_its_caller_does() -> None:
    pace, ended = Pace((RowBudget(1),)), Event()
    pace.spend(3_600)

    def work() -> None:
        try:
            pace.wait()
        finally:
            ended.set()

    with anyio.move_on_after(0.01) as scope:
        await run_stoppable(work, pace.stopped)
    assert scope.cancelled_caught
    assert ended.is_set()


async def test_what_the_work_says_is_passed_on() -> None:
    assert await run_stoppable(lambda: 7, Event()) == 7

    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await run_stoppable(fail, Event())
