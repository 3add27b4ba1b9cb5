"""Work that does not end: it is asked to, waited for a little, and abandoned."""

import threading
from collections.abc import Callable

import anyio
import pytest
from anyio import CapacityLimiter

from agent.deadline import AbandonedError, Deadline, run_with_deadline
from tests.patience import HANG_S


class Stubborn:
    """Blocks until it is cancelled; ``after``: that many cancellations are not enough."""

    def __init__(self, *, after: int = 1) -> None:
        self.after = after
        self.cancelled = 0
        self.began = threading.Event()
        self.ended = threading.Event()

    def __call__(self, deadline: Deadline) -> str:
        with deadline.covers(self.cancel):
            self.began.set()
            self.ended.wait(20)
        return "ended"

    def cancel(self) -> None:
        self.cancelled += 1
        if self.cancelled >= self.after:
            self.ended.set()


async def run(work: Callable[[Deadline], str], *, timeout_s: float = 0.05, grace_s: float = 10.0) -> str:
    return await run_with_deadline(work, timeout_s=timeout_s, limiter=CapacityLimiter(1), grace_s=grace_s)


async def test_work_that_ends_is_not_told_to() -> None:
    assert await run(lambda deadline: str(deadline.is_over), timeout_s=60) == "False"


async def test_what_it_raises_comes_out_as_it_is() -> None:
    def work(_: Deadline) -> str:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await run(work, timeout_s=60)


async def test_work_that_takes_too_long_is_asked_to_end() -> None:
    work = Stubborn()
    assert await run(work) == "ended"
    assert work.cancelled == 1


async def test_it_is_reported_again() -> None:
    """A job that had not begun when it was cancelled runs nevertheless."""
    work = Stubborn(after=2)
    assert await run(work) == "ended"


async def test_work_that_does_not_listen_is_left_behind() -> None:
    work = Stubborn(after=1_000)
    limiter = CapacityLimiter(1)
    with pytest.raises(AbandonedError):
        await run_with_deadline(work, timeout_s=0.01, limiter=limiter, grace_s=0.01)
    with anyio.fail_after(HANG_S):
        assert await run_with_deadline(lambda _: "next", timeout_s=60, limiter=limiter) == "next"
    work.ended.set()


async def test_work_that_nobody_wants_any_more_is_asked_to_end() -> None:
    work = Stubborn()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, work)
        await anyio.to_thread.run_sync(work.began.wait)
        tasks.cancel_scope.cancel()
    assert await anyio.to_thread.run_sync(work.ended.wait, HANG_S)


async def test_what_begins_too_late_is_cancelled_at_once() -> None:
    deadline, cancelled = Deadline(), threading.Event()
    deadline.end()
    with deadline.covers(cancelled.set):
        assert await anyio.to_thread.run_sync(cancelled.wait, HANG_S)
