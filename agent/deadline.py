"""Deadlines: limit how long blocking work is awaited, and cancel or abandon overdue work.

A sink or a Spark job that never answers must not block others. When the time is over, or the result is no longer
needed, the work is asked to end (cancelling a job releases its slots); if even that fails, its thread is abandoned.
Later writes of such a thread are refused by the sink's record.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio
import structlog
from anyio import CapacityLimiter, to_thread

T = TypeVar("T")

#: how long to wait for cancelled work; Spark needs two seconds to end a Python worker
GRACE_S = 10.0
_AGAIN_S = 1.0

_log = structlog.get_logger()


class AbandonedError(Exception):
    """Work did not end in time; its thread keeps running, abandoned."""


class Deadline:
    """Accompanies one piece of work; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_over = False
        #: how to cancel an operation in progress → set when it has ended
        self._works: dict[Callable[[], object], threading.Event] = {}

    @property
    def is_over(self) -> bool:
        return self._is_over

    @contextmanager
    def covers(self, cancel: Callable[[], object]) -> Iterator[None]:
        """In this context an operation runs that ``cancel`` ends; it is called repeatedly once the deadline is over."""
        ended = threading.Event()
        with self._lock:
            self._works[cancel] = ended
            if self._is_over:
                _cancel_in_background(cancel, ended)
        try:
            yield
        finally:
            with self._lock:
                del self._works[cancel]
            ended.set()

    def end(self) -> None:
        """Declare the deadline over; returns at once."""
        with self._lock:
            is_first, self._is_over = not self._is_over, True
            for cancel, ended in self._works.items() if is_first else ():
                _cancel_in_background(cancel, ended)


async def run_with_deadline(
    call: Callable[[Deadline], T], *, timeout_s: float, limiter: CapacityLimiter, grace_s: float = GRACE_S
) -> T:
    """Run ``call`` in a thread; cancel it after ``timeout_s``, or when this coroutine is cancelled.

    :raises AbandonedError: it did not end even when cancelled.
    """
    deadline = Deadline()
    failure: Exception | None = None
    outcome: list[T] = []
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_end_after, deadline, timeout_s)
            try:
                with anyio.move_on_after(timeout_s + grace_s) as waiting:
                    outcome.append(await to_thread.run_sync(call, deadline, abandon_on_cancel=True, limiter=limiter))
                if waiting.cancelled_caught:
                    failure = AbandonedError(f"not ended in {timeout_s:g} s, nor after it was asked to end")
            except Exception as error:
                failure = error  # kept out of the task group, which would wrap it
            tasks.cancel_scope.cancel()
    finally:
        if not outcome:
            deadline.end()
    if failure is not None:
        raise failure
    return outcome[0]


async def _end_after(deadline: Deadline, timeout_s: float) -> None:
    await anyio.sleep(timeout_s)
    deadline.end()


def _cancel_in_background(cancel: Callable[[], object], ended: threading.Event) -> None:
    """Run in a thread: the cancelling call may hang too, and the operation may not have started yet."""

    def work() -> None:
        while not ended.is_set():
            try:
                cancel()
            except Exception as error:
                _log.warning("a job could not be cancelled", error=str(error))
            ended.wait(_AGAIN_S)

    threading.Thread(target=work, name="weir-cancel", daemon=True).start()
