"""Waiting: what the beginning of a unit waits for, reported as its trouble."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anyio import from_thread

from agent.control.runtime import Progress, UnitState
from agent.errors import OpenTransactionsError
from agent.ports.snapshot import Wait
from agent.running_error import running_error
from reactor.records.changefeed import RunningError


class Waiting:
    """A ``wait`` that is ended by ``stopped``. ``on_trouble`` is called on the waiting thread, once for each cause; the
    trouble's time is that of the first one."""

    def __init__(self, on_trouble: Callable[[RunningError], None], stopped: threading.Event) -> None:
        self.wait = Wait(self._report, stopped)
        self._on_trouble = on_trouble
        self.trouble: RunningError | None = None

    def _report(self, cause: str) -> None:
        before, trouble = self.trouble, running_error(OpenTransactionsError(cause))
        if self.wait.stopped.is_set() or (before is not None and before.message == trouble.message):
            return
        self.trouble = trouble.with_(time=before.time if before else trouble.time)
        self._on_trouble(self.trouble)


@contextmanager
def waiting(on_progress: Progress) -> Iterator[Wait]:
    """Yield what a worker thread waits by. The wait ends with the block, so that a thread that a cancellation abandons
    leaves nothing at the source. ``on_progress`` is called on the event loop; without a trouble when the wait is
    over."""
    waiting = Waiting(lambda trouble: from_thread.run_sync(on_progress, UnitState(trouble=trouble)), threading.Event())
    try:
        yield waiting.wait
    finally:
        waiting.wait.stopped.set()
    if waiting.trouble is not None:
        on_progress(UnitState())
