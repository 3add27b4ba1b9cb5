"""Endpoints: several servers as one, with failover.

A call goes only to a server whose connection is up, so a server that is down costs almost nothing. If a call gets no
answer, the next server is used from then on; the call itself is repeated only if it changes nothing (``repeatable``),
because the lost one may have been applied.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from reactor.errors import StoreFullError, StoreUnreachableError
from reactor.store.etcd import faults
from reactor.store.etcd.connection import EtcdConnection
from reactor.store.etcd.tls_refusal import tls_refusal

T = TypeVar("T")

_PAUSE_S = 0.05
#: minimum time given to one server if others could answer instead
_ATTEMPT_S_MIN = 1.0
#: kept from a call's time for the question why TLS does not come about
_REFUSAL_S = 0.5


class Endpoints:
    """The servers of one cluster, one of them in use."""

    def __init__(self, connections: Sequence[EtcdConnection], *, timeout_s: float) -> None:
        self._connections = tuple(connections)
        self._current = 0
        self.timeout_s = timeout_s

    async def once(self, ask: Callable[[EtcdConnection, float], Awaitable[T]]) -> T:
        """Return the result of ``ask`` from one server, called with the seconds left of ``timeout_s``.

        ``ask`` must keep to that limit: grpc's own limit costs a fraction of a cancel scope, and a tick waits here.

        :raises StoreUnreachableError: no answer; the call may have been applied.
        """
        left_s = self.timeout_s
        if not (connection := self._connections[self._current]).is_connected:
            deadline = anyio.current_time() + left_s
            connection = await self._ready_connection(deadline)
            left_s = deadline - anyio.current_time()
        try:
            return await ask(connection, left_s)
        except StoreFullError:
            raise  # so are the others
        except StoreUnreachableError:
            self.leave(connection)
            raise

    async def repeatable(self, ask: Callable[[EtcdConnection], Awaitable[T]]) -> T:
        """Return the result of ``ask`` from any server, within ``timeout_s`` in total.

        :raises StoreUnreachableError: no answer within the time.
        """
        deadline = anyio.current_time() + self.timeout_s
        while True:
            connection = await self._ready_connection(deadline)
            try:
                return await self._ask(ask, connection, self._attempt_deadline(deadline))
            except StoreFullError:
                raise
            except StoreUnreachableError:
                self.leave(connection)
                if anyio.current_time() + _PAUSE_S >= deadline:
                    raise
            await anyio.sleep(_PAUSE_S)

    async def ready_door(self) -> EtcdConnection:
        """:raises StoreUnreachableError: no server can be connected to within ``timeout_s``."""
        return await self._ready_connection(anyio.current_time() + self.timeout_s)

    def leave(self, connection: EtcdConnection) -> None:
        """Switch to the next server, unless another task has already left this one."""
        if self._connections[self._current] is connection:
            self._current = (self._current + 1) % len(self._connections)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def _ready_connection(self, deadline: float) -> EtcdConnection:
        if (connection := self._connections[self._current]).is_connected:
            return connection
        asked_by = deadline - (_REFUSAL_S if any(map(_is_https, self._connections)) else 0)
        while anyio.current_time() < asked_by:
            for _ in self._connections:
                connection = self._connections[self._current]
                with anyio.CancelScope(deadline=self._attempt_deadline(asked_by)):
                    if await connection.is_ready():
                        return connection
                self.leave(connection)
            await anyio.sleep(_PAUSE_S)
        if reason := await self._tls_refusal():
            raise StoreUnreachableError(reason)
        tried = ", ".join(connection.endpoint for connection in self._connections)
        raise StoreUnreachableError(
            f"no etcd answers within {self.timeout_s:g} s at {tried}; "
            "start it, or correct the endpoints (and the TLS files, if there are any)"
        )

    async def _tls_refusal(self) -> str:
        """The first server's that has one; empty where nothing answers."""
        with anyio.move_on_after(_REFUSAL_S):
            for connection in filter(_is_https, self._connections):
                ask = partial(tls_refusal, connection.endpoint, connection.tls, _REFUSAL_S)
                if reason := await to_thread.run_sync(ask, abandon_on_cancel=True, limiter=CapacityLimiter(1)):
                    return reason
        return ""

    def _attempt_deadline(self, deadline: float) -> float:
        share_s = max(_ATTEMPT_S_MIN, self.timeout_s / len(self._connections))
        return min(deadline, anyio.current_time() + share_s)

    async def _ask(
        self, ask: Callable[[EtcdConnection], Awaitable[T]], connection: EtcdConnection, deadline: float
    ) -> T:
        with anyio.CancelScope(deadline=deadline):
            return await ask(connection)
        raise faults.unreachable(connection.endpoint, "no answer in time")


def _is_https(connection: EtcdConnection) -> bool:
    return connection.endpoint.startswith("https://")
