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
from reactor.store.etcd.connection import EtcdConnection

T = TypeVar("T")

_PAUSE_S = 0.05
#: The least time that one server gets when others could answer instead.
_ATTEMPT_S_MIN = 1.0


class Endpoints:
    """The servers of one cluster, one of them in use."""

    def __init__(self, connections: Sequence[EtcdConnection], *, timeout_s: float) -> None:
        self._connections = tuple(connections)
        self._current = 0
        self.timeout_s = timeout_s

    async def once(self, ask: Callable[[EtcdConnection, float], Awaitable[T]]) -> T:
        """What ``ask`` brings from one server in the seconds it is given: what is left of ``timeout_s``.

        It keeps to them by itself: grpc's own limit costs a fraction of a cancel scope, and here a tick waits.

        :raises EtcdUnreachableError: no answer; it may yet have been done.
        """
        left_s = self.timeout_s
        if not (connection := self._connections[self._current]).is_connected:
            deadline = anyio.current_time() + left_s
            connection = await self._ready_connection(deadline)
            left_s = deadline - anyio.current_time()
        try:
            return await ask(connection, left_s)
        except EtcdUnreachableError:
            self.leave(connection)
            raise

    async def repeatable(self, ask: Callable[[EtcdConnection], Awaitable[T]]) -> T:
        """What ``ask`` brings from any server, within ``timeout_s`` all in all.

        :raises EtcdUnreachableError: nothing within the time.
        """
        deadline = anyio.current_time() + self.timeout_s
        while True:
            connection = await self._ready_connection(deadline)
            try:
                return await self._ask(ask, connection, self._attempt_deadline(deadline))
            except EtcdUnreachableError:
                self.leave(connection)
                if anyio.current_time() + _PAUSE_S >= deadline:
                    raise
            await anyio.sleep(_PAUSE_S)

    async def ready_door(self) -> EtcdConnection:
        """:raises EtcdUnreachableError: no server can be connected to within ``timeout_s``."""
        return await self._ready_connection(anyio.current_time() + self.timeout_s)

    def leave(self, connection: EtcdConnection) -> None:
        """Use the next server, unless somebody has left this one already."""
        if self._connections[self._current] is connection:
            self._current = (self._current + 1) % len(self._connections)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def _ready_connection(self, deadline: float) -> EtcdConnection:
        if (connection := self._connections[self._current]).is_connected:
            return connection
        while anyio.current_time() < deadline:
            for _ in self._connections:
                connection = self._connections[self._current]
                with anyio.CancelScope(deadline=self._attempt_deadline(deadline)):
                    if await connection.is_ready():
                        return connection
                self.leave(connection)
            await anyio.sleep(_PAUSE_S)
        tried = ", ".join(connection.endpoint for connection in self._connections)
        raise EtcdUnreachableError(
            f"no etcd answers within {self.timeout_s:g} s at {tried}; "
            "start it, or correct the endpoints (and the TLS files, if there are any)"
        )

    def _attempt_deadline(self, deadline: float) -> float:
        share_s = max(_ATTEMPT_S_MIN, self.timeout_s / len(self._connections))
        return min(deadline, anyio.current_time() + share_s)

    async def _ask(
        self, ask: Callable[[EtcdConnection], Awaitable[T]], connection: EtcdConnection, deadline: float
    ) -> T:
        with anyio.CancelScope(deadline=deadline):
            return await ask(connection)
        raise faults.unreachable(connection.endpoint, "no answer in time")
