"""TLS handshakes of the API: limits how many connections have none yet, and for how long.

asyncio's TLS server keeps a connection that sends nothing for a minute, with a buffer of 256 KiB, and uvicorn does not
know of it before its handshake. So connections are accepted without TLS here, and get it under these limits.
"""

import asyncio
import math
import ssl
from collections.abc import Callable
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectSendStream

HANDSHAKE_TIMEOUT_S: Final = 10.0
#: connections without TLS; of more, the oldest are closed
HANDSHAKES_MAX: Final = 32


class Handshakes:
    """Connections that have no TLS yet."""

    def __init__(
        self, context: ssl.SSLContext, *, timeout_s: float = HANDSHAKE_TIMEOUT_S, limit: int = HANDSHAKES_MAX
    ) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._limit = limit
        #: in the order in which they came
        self._open: dict[_Arrival, None] = {}
        #: None unless it runs
        self._come: MemoryObjectSendStream[_Arrival] | None = None

    def before(self, protocol: Callable[..., asyncio.Protocol]) -> Callable[..., asyncio.Protocol]:
        """Return a factory of protocols that become ``protocol`` behind their handshake."""

        def arrival(**named: Any) -> asyncio.Protocol:
            return _Arrival(lambda: protocol(**named), self._add)

        return arrival

    async def run(self) -> None:
        """Run until ``stop``."""
        self._come, arrivals = anyio.create_memory_object_stream[_Arrival](math.inf)
        try:
            with self._come, arrivals:
                async with anyio.create_task_group() as tasks:
                    async for arrival in arrivals:
                        tasks.start_soon(self._shake, arrival)
        finally:
            self.stop()

    def stop(self) -> None:
        """Close those that have no TLS yet, and each that comes."""
        if self._come is not None:
            self._come.close()
            self._come = None
        for arrival in self._open:
            arrival.transport.abort()

    def _add(self, arrival: "_Arrival") -> None:
        if self._come is None:
            arrival.transport.abort()
            return
        self._come.send_nowait(arrival)
        self._open[arrival] = None
        if len(self._open) > self._limit:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()

    async def _shake(self, arrival: "_Arrival") -> None:
        try:
            if not arrival.transport.is_closing():
                await arrival.shake(self._context, self._timeout_s)
        except OSError:
            pass  # it has gone, speaks no TLS, or needs too long: the transport is closed
        finally:
            self._open.pop(arrival, None)


class _Arrival(asyncio.Protocol):
    """A connection without TLS. ``make`` returns the protocol that gets it."""

    transport: asyncio.Transport

    def __init__(self, make: Callable[[], asyncio.Protocol], add: Callable[["_Arrival"], None]) -> None:
        self._make = make
        self._add = add
        self._is_lost = False
        #: what was received behind the handshake, before the protocol had the connection
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()
        self._add(self)

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True

    async def shake(self, context: ssl.SSLContext, timeout_s: float) -> None:
        """Give the connection TLS, and then to its protocol.

        :raises OSError: it cannot have TLS.
        """
        loop = asyncio.get_running_loop()
        secure = await loop.start_tls(self.transport, self, context, server_side=True, ssl_handshake_timeout=timeout_s)
        if secure is None or self._is_lost:  # it was closed meanwhile
            return
        protocol = self._make()
        secure.set_protocol(protocol)
        protocol.connection_made(secure)
        for data in self._early:
            protocol.data_received(data)
