"""Pulse: notifies the watches of one client that the store has changed, however many they are.

The commits of this client are announced at once. For what others commit, one of the waiting watches looks at the
store's revision: more seldom the longer nothing has happened, or without a pause if the look itself waits for a commit.
"""

from collections.abc import Awaitable, Callable

import anyio

#: between two looks, while things happen, and when nothing has happened for long
POLL_S_MIN = 0.005
POLL_S_MAX = 0.1
#: the growth of the time between two looks: about three seconds from the one to the other
_GROWTH = 1.03


class Pulse:
    """``look`` returns the store's revision; with ``is_waiting`` when there is a new one, or after a while."""

    def __init__(self, look: Callable[[], Awaitable[int]], *, is_waiting: bool = False) -> None:
        self._look = look
        self._is_waiting = is_waiting
        self._revision = 0
        self._pause_s = POLL_S_MIN
        self._is_looking = False
        self._news = anyio.Event()

    def note(self, revision: int) -> None:
        if revision > self._revision:
            self._revision = revision
            self._pause_s = POLL_S_MIN
            self._wake()

    async def wait(self, next_revision: int) -> None:
        """Return when ``next_revision`` exists."""
        while self._revision < next_revision:
            if self._is_looking:
                await self._news.wait()
            else:
                await self._look_once(self._news)

    async def _look_once(self, news: anyio.Event) -> None:
        self._is_looking = True
        try:
            if not self._is_waiting:
                with anyio.move_on_after(self._pause_s):
                    await news.wait()
                    return
                self._pause_s = min(self._pause_s * _GROWTH, POLL_S_MAX)
            self.note(await self._look())
        finally:
            self._is_looking = False
            self._wake()  # one of the others looks next if this one is cancelled

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()
