"""Wakeups: two waiting primitives that anyio lacks: for a signal, and for room in the order of arrival."""

from collections.abc import Callable

import anyio


class Signal:
    """Signals one waiter that there may be something to do. Remembered if there is no waiter."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._event: anyio.Event | None = None
        self._is_set = False

    def set(self) -> None:
        self._is_set = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        if not self._is_set:
            self._event = anyio.Event()
            try:
                await self._event.wait()
            finally:
                self._event = None
        self._is_set = False


class Turnstile:
    """Lets tasks pass one by one, in the order of arrival, while ``has_room`` returns True.

    A task that passes must use the room before its next await, otherwise the next one passes for the same room.
    """

    __slots__ = ("_has_room", "_lock", "_made_room")

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._lock = anyio.Lock(fast_acquire=True)
        self._made_room = Signal()

    @property
    def is_free(self) -> bool:
        """Whether there is room, and no earlier task waits for it."""
        return not self._lock.locked() and self._has_room()

    async def pass_through(self) -> None:
        async with self._lock:
            while not self._has_room():
                await self._made_room.wait()

    def recheck(self) -> None:
        """Check again: ``has_room`` may have changed."""
        self._made_room.set()
