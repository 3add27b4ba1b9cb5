"""Repeated work: blocking work that an owner asks for until it succeeds, once at a time for each key.

A source or a sink that never answers then holds one thread, and not one more each time it is asked; and never one of
those that write segments and read the log.
"""

from collections.abc import Callable, Hashable
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from capture.errors import StillRunningError

T = TypeVar("T")


class Once:
    """What is under way, for one membership. ``what``: who has not answered yet, for people."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._running: set[Hashable] = set()

    async def run(self, key: Hashable, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises. Cancelled, it is left behind, and counts as under way until it ends.

        :raises StillRunningError: it is under way already.
        """
        if key in self._running:
            raise StillRunningError(f"{self._what} has not answered the last time yet; it is asked again")
        self._running.add(key)

        def whole() -> T:
            try:
                return work()
            finally:
                self._running.discard(key)

        return await to_thread.run_sync(whole, abandon_on_cancel=True, limiter=CapacityLimiter(1))
