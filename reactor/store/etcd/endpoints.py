"""Endpoints: several servers as one, the one in use, and what happens when it fails.

A call goes only to a server whose connection is up, so one that is down costs nothing but the look. When a call
fails for want of an answer the next server is in use; the call itself is repeated only if that changes nothing
(``repeatable``), because the lost one may have been carried out.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from reactor.errors import EtcdUnreachableError
from reactor.store.etcd import faults
from reactor.store.etcd.door import EtcdConnection

T = TypeVar("T")

_PAUSE_S = 0.05
#: The least time that one server gets when others could answer instead.
_ATTEMPT_S_MIN = 1.0


class Endpoints:
    """The servers of one cluster, one of them in use."""

    def __init__(self, doors: Sequence[EtcdConnection], *, timeout_s: float) -> None:
        self._doors = tuple(doors)
        self._current = 0
        self.timeout_s = timeout_s

    async def once(self, ask: Callable[[EtcdConnection, float], Awaitable[T]]) -> T:
        """What ``ask`` brings from one server in the seconds it is given: what is left of ``timeout_s``.

        It keeps to them by itself: grpc's own limit costs a fraction of a cancel scope, and here a tick waits.

        :raises EtcdUnreachableError: no answer; it may yet have been done.
        """
        left_s = self.timeout_s
        if not (door := self._doors[self._current]).is_connected:
            deadline = anyio.current_time() + left_s
            door = await self._ready_door(deadline)
            left_s = deadline - anyio.current_time()
        try:
            return await ask(door, left_s)
        except EtcdUnreachableError:
            self.leave(door)
            raise

    async def repeatable(self, ask: Callable[[EtcdConnection], Awaitable[T]]) -> T:
        """What ``ask`` brings from any server, within ``timeout_s`` all in all.

        :raises EtcdUnreachableError: nothing within the time.
        """
        deadline = anyio.current_time() + self.timeout_s
        while True:
            door = await self._ready_door(deadline)
            try:
                return await self._ask(ask, door, self._attempt_deadline(deadline))
            except EtcdUnreachableError:
                self.leave(door)
                if anyio.current_time() + _PAUSE_S >= deadline:
                    raise
            await anyio.sleep(_PAUSE_S)

    async def ready_door(self) -> EtcdConnection:
        """:raises EtcdUnreachableError: no server can be connected to within ``timeout_s``."""
        return await self._ready_door(anyio.current_time() + self.timeout_s)

    def leave(self, door: EtcdConnection) -> None:
        """Use the next server, unless somebody has left this one already."""
        if self._doors[self._current] is door:
            self._current = (self._current + 1) % len(self._doors)

    async def close(self) -> None:
        for door in self._doors:
            await door.close()

    async def _ready_door(self, deadline: float) -> EtcdConnection:
        if (door := self._doors[self._current]).is_connected:
            return door
        while anyio.current_time() < deadline:
            for _ in self._doors:
                door = self._doors[self._current]
                with anyio.CancelScope(deadline=self._attempt_deadline(deadline)):
                    if await door.is_ready():
                        return door
                self.leave(door)
            await anyio.sleep(_PAUSE_S)
        raise EtcdUnreachableError(
            f"no etcd answers within {self.timeout_s:g} s at {', '.join(door.endpoint for door in self._doors)}; "
            "start it, or correct the endpoints (and the TLS files, if there are any)"
        )

    def _attempt_deadline(self, deadline: float) -> float:
        share_s = max(_ATTEMPT_S_MIN, self.timeout_s / len(self._doors))
        return min(deadline, anyio.current_time() + share_s)

    async def _ask(self, ask: Callable[[EtcdConnection], Awaitable[T]], door: EtcdConnection, deadline: float) -> T:
        with anyio.CancelScope(deadline=deadline):
            return await ask(door)
        raise faults.unreachable(door.endpoint, "no answer in time")
