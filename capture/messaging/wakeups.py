"""Wakeups: two ways to wait that anyio's primitives lack: for a hint, and for room in the order of arrival."""

from collections.abc import Callable

import anyio


class Signal:
    """A hint for one waiter that there is something to do. Given while nobody waits, it is remembered."""

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
    """Lets tasks through one by one, in the order they came, while ``has_room`` says so.

    Who comes through must take the room before the next await, or the next one is let through for the same room.
    """

    __slots__ = ("_has_room", "_lock", "_made_room")

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._lock = anyio.Lock(fast_acquire=True)
        self._made_room = Signal()

    @property
    def is_free(self) -> bool:
        """There is room, and nobody who came earlier waits for it."""
        return not self._lock.locked() and self._has_room()

    async def pass_through(self) -> None:
        async with self._lock:
            while not self._has_room():
                await self._made_room.wait()

    def look_again(self) -> None:
        """``has_room`` may answer differently now."""
        self._made_room.set()
