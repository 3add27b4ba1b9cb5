"""TLS handshakes of the API: limits how many connections have none yet, and for how long.

The event loop's TLS server keeps a connection that sends nothing for a minute, with a buffer of 256 KiB, and uvicorn
does not know of it before its handshake. So connections are accepted here, and come to uvicorn behind it.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

import anyio
import structlog

HANDSHAKE_TIMEOUT_S: Final = 10.0
#: connections without TLS; of more, the oldest are closed
HANDSHAKES_MAX: Final = 32
#: how long no connection is accepted after the process has run out of descriptors
_PAUSE_S: Final = 1.0

_log = structlog.get_logger()


class Handshakes:
    """Connections that have no TLS yet."""

    def __init__(
        self, context: ssl.SSLContext, *, timeout_s: float = HANDSHAKE_TIMEOUT_S, limit: int = HANDSHAKES_MAX
    ) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._limit = limit
        self._scope = anyio.CancelScope()
        #: in the order in which they came
        self._open: dict[anyio.CancelScope, None] = {}

    async def run(self, listener: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        """Accept connections until ``stop``. ``make`` returns the protocol of one that has TLS."""
        loop = asyncio.get_running_loop()
        with self._scope:
            async with anyio.create_task_group() as tasks:
                while True:
                    try:
                        wire, _ = await loop.sock_accept(listener)
                    except ConnectionAbortedError:
                        continue  # it has gone before it was accepted
                    except OSError as error:
                        _log.warning("the API accepts no connection for a moment", cause=str(error))
                        await anyio.sleep(_PAUSE_S)
                    else:
                        tasks.start_soon(self._shake, wire, make)

    def stop(self) -> None:
        """Accept no more, and close those that have no TLS yet."""
        self._scope.cancel()

    async def _shake(self, wire: socket.socket, make: Callable[[], asyncio.Protocol]) -> None:
        loop = asyncio.get_running_loop()
        with anyio.CancelScope() as scope:
            self._open[scope] = None
            if len(self._open) > self._limit:
                oldest = next(iter(self._open))
                del self._open[oldest]
                oldest.cancel()
            try:
                await loop.connect_accepted_socket(make, wire, ssl=self._context, ssl_handshake_timeout=self._timeout_s)
            except OSError:
                pass  # it has gone, speaks no TLS, or needs too long
            finally:
                self._open.pop(scope, None)
