"""Supervised child: runs a child of an actor or a supervisor, and starts it again after a crash, within a budget.

The child's mailbox and reference stay. The message it crashed on is gone (it would crash on it again); every other one
is still there. Whoever watches a child (``on_crash``) decides what follows when it has crashed too often: the child is
closed, and its siblings notice nothing. Unwatched, it raises, and takes its parent down.
"""

from collections.abc import Callable

import anyio
import structlog

from capture.actors.children import Child
from reactor.restarts import RestartBudget, RestartPolicy

#: what it crashed with, and whether that was one crash too many; called before the wait for the next start
OnCrash = Callable[[Exception, bool], None]

_log = structlog.get_logger()


class Supervised:
    """One child with its budget. It is a child itself."""

    def __init__(self, child: Child, policy: RestartPolicy, on_crash: OnCrash | None = None) -> None:
        self._child = child
        self._policy = policy
        self._on_crash = on_crash
        #: made at the first crash: there are a hundred thousand spans that never crash
        self._budget: RestartBudget | None = None
        self._stopping = anyio.Event()
        self._is_cancelled = False
        self.restarts = 0

    @property
    def name(self) -> str:
        return self._child.name

    async def run(self) -> None:
        """Until the child ends; raises the crash that was one too many, if nobody watches."""
        while True:
            try:
                await self._child.run()
            except Exception as error:
                delay_s = self._spend(error)
                if delay_s is None:
                    if self._on_crash is None:
                        self._budget = None  # its next life, under a parent that begins again, has all of it
                        raise
                    return
                with anyio.move_on_after(delay_s):
                    await self._stopping.wait()
                if self._is_cancelled:
                    return
            else:
                return

    def stop(self, *, drain: bool = True) -> None:
        """A start that is being waited for is made at once, for what is unread, or never if not ``drain``."""
        self._is_cancelled = self._is_cancelled or not drain
        self._stopping.set()
        self._child.stop(drain=drain)

    def close(self) -> None:
        self._child.close()

    def _spend(self, error: Exception) -> float | None:
        self._budget = self._budget or RestartBudget(self._policy)
        cause = f"{type(error).__name__}: {error}"
        delay_s = self._budget.spend(anyio.current_time())
        if delay_s is None:
            _log.error("crashed too often", actor=self.name, cause=cause)
        else:
            self.restarts += 1
            _log.warning("restarting", actor=self.name, delay_s=delay_s, cause=cause)
        if self._on_crash is not None:
            self._on_crash(error, delay_s is None)
        return delay_s
