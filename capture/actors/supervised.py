"""Supervised child: restarts an actor after a crash, within a budget.

The child's mailbox and reference survive. The message it crashed on is dropped (it would crash again); all others are
kept. When the budget is exhausted, a watched child (``on_crash``) is closed, the watcher decides what follows, and its
siblings continue. An unwatched child raises, and takes its parent down.
"""

from collections.abc import Callable

import anyio
import structlog

from capture.actors.children import Child
from reactor.restarts import RestartBudget, RestartPolicy

#: called with the crash, and whether it has exhausted the budget, before waiting for the restart
OnCrash = Callable[[Exception, bool], None]

_log = structlog.get_logger()


class Supervised:
    """One child with its restart budget; itself a child."""

    def __init__(self, child: Child, policy: RestartPolicy, on_crash: OnCrash | None = None) -> None:
        self._child = child
        self._policy = policy
        self._on_crash = on_crash
        #: created at the first crash: there are a hundred thousand spans that never crash
        self._budget: RestartBudget | None = None
        self._stopping = anyio.Event()
        #: stopped without handling unread messages
        self.is_cancelled = False
        self.restarts = 0

    @property
    def name(self) -> str:
        return self._child.name

    async def run(self) -> None:
        """Run until the child ends; unwatched, raise the crash that exhausted the budget."""
        while True:
            try:
                await self._child.run()
            except Exception as error:
                delay_s = self._spend(error)
                if delay_s is None:
                    if self._on_crash is None:
                        self._budget = None  # after its parent has restarted, it has a full budget again
                        raise
                    return
                with anyio.move_on_after(delay_s):
                    await self._stopping.wait()
                if self.is_cancelled:
                    return
            else:
                return

    def stop(self, *, drain: bool = True) -> None:
        """Stop the child. If it is waiting for a restart: restart at once to handle unread messages, or never if not
        ``drain``."""
        self.is_cancelled = self.is_cancelled or not drain
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
