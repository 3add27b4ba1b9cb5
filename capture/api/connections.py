"""HTTP connections: limits their number, and closes those that send no request.

uvicorn closes a connection that is idle after an answer; this also closes one that never completes its first line and
headers. If there are too many, the oldest idle one is closed.
"""

import asyncio
from typing import Any, ClassVar, TypeGuard

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_TIMEOUT_S = 10.0
#: one with TLS takes 256 KiB
CONNECTIONS_MAX = 128


class LimitedConnection(H11Protocol):
    """One connection."""

    header_timeout_s: ClassVar[float] = HEADER_TIMEOUT_S
    connections_max: ClassVar[int] = CONNECTIONS_MAX

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._deadline: asyncio.TimerHandle | None = None
        self._made_at = self.loop.time()

    @property
    def is_asking(self) -> bool:
        """Whether it has a request that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()
        if len(self.connections) > self.connections_max:
            self._oldest_idle().transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.is_asking:
            self._disarm()
        elif self._deadline is None:
            self._arm()

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self.header_timeout_s, self.transport.abort)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _oldest_idle(self) -> "LimitedConnection":
        return min(filter(_is_idle, self.connections), key=lambda one: one._made_at, default=self)


def _is_idle(connection: object) -> TypeGuard[LimitedConnection]:
    """Return whether it is idle, and not already closing."""
    if not isinstance(connection, LimitedConnection) or connection.is_asking:
        return False
    return not connection.transport.is_closing()
