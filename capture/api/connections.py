"""HTTP connections: limits their number, and closes those that send no request.

uvicorn closes a connection that is idle after an answer; this also closes one that never completes its first line and
headers. If there are too many, the oldest idle one is closed, or else the oldest that does not read its answer. The
kernel closes one that has read nothing of its answer for ``READ_TIMEOUT_S`` (``limit_waiting``).

A body in chunks is refused (``capture.api.guard``), and not read: thousands of chunks of one byte would hold up the
event loop, and the capture with it, before anybody was asked for a token.
"""

import asyncio
import logging
import socket
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_TIMEOUT_S = 10.0
#: one with TLS takes 256 KiB
CONNECTIONS_MAX = 128
#: for a caller that reads nothing of its answer
READ_TIMEOUT_S = 30.0
#: how much is parsed before it is known what it is
_PIECE_BYTES = 2 * 1024

#: what uvicorn warns of, any caller can repeat without end
_quiet = logging.getLogger("weir.http")
_quiet.setLevel(logging.ERROR)


def limit_waiting(listener: socket.socket, timeout_s: float = READ_TIMEOUT_S) -> None:
    """Limit how long the kernel waits for a caller that takes nothing; its connections inherit that from the
    listener."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1000))


class LimitedConnection(H11Protocol):
    """One connection."""

    header_timeout_s: ClassVar[float] = HEADER_TIMEOUT_S
    connections_max: ClassVar[int] = CONNECTIONS_MAX

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.logger = _quiet
        self._deadline: asyncio.TimerHandle | None = None
        self._made_at = self.loop.time()

    @property
    def is_asking(self) -> bool:
        """Whether it has a request that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _has_chunks(self) -> bool:
        return self.is_asking and any(name == b"transfer-encoding" for name, _ in self.headers)

    @property
    def is_stuck(self) -> bool:
        """Whether its caller does not read its answer as fast as it is written."""
        is_leaving = self.transport.is_closing() and self.transport.get_write_buffer_size() > 0
        return self.flow.write_paused or is_leaving

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()
        if len(self.connections) > self.connections_max:
            self._least_wanted().transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        for begin in range(0, len(data), _PIECE_BYTES):
            if not (self._has_chunks or self.transport.is_closing()):  # it is refused: what follows is nothing
                super().data_received(data[begin : begin + _PIECE_BYTES])
        if self.is_asking:
            self._disarm()
        elif self._deadline is None:
            self._arm()

    def send_400_response(self, msg: str) -> None:
        if self.is_asking:
            self.cycle.disconnected = True  # its request was good so far; its own answer would follow this one
        super().send_400_response(msg)

    def _arm(self) -> None:
        self._deadline = self.loop.call_later(self.header_timeout_s, self.transport.abort)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _least_wanted(self) -> "LimitedConnection":
        others = [one for one in self.connections if isinstance(one, LimitedConnection) and one is not self]
        idle = (one for one in others if not one.is_asking and not one.transport.is_closing())
        stuck = (one for one in others if one.is_stuck)
        return min(idle, key=_age, default=None) or min(stuck, key=_age, default=self)


def _age(connection: LimitedConnection) -> float:
    return connection._made_at
