"""Transport: byte streams between captures, over TCP.

A transport only connects and listens; TLS, frames and everything above are independent of it. Driver errors are
translated: connecting raises ``PeerUnreachableError``, listening ``PortInUseError``, using a stream ``BROKEN``.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import anyio
from anyio.abc import ByteStream, Listener, SocketAttribute

from capture.address import join_address, split_address
from capture.errors import ConfigError, PeerUnreachableError, PortInUseError

#: raised by a stream that the other side, the network or a close has ended
BROKEN = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)

Handler = Callable[[ByteStream], Coroutine[Any, Any, None]]


class Endpoint(Protocol):
    """A listening socket."""

    @property
    def address(self) -> str: ...

    async def serve(self, handler: Handler) -> None:
        """Run ``handler`` for every incoming stream, until cancelled."""
        ...

    async def aclose(self) -> None: ...


class Transport(Protocol):
    """Connects captures. Addresses are ``host:port``."""

    async def connect(self, address: str) -> ByteStream:
        """:raises PeerUnreachableError: there is no answer, or not one of this transport."""
        ...

    async def listen(self, address: str) -> Endpoint:
        """:raises PortInUseError: the address is taken or not this machine's."""
        ...


class TcpTransport:
    """TCP over anyio."""

    async def connect(self, address: str) -> ByteStream:
        host, port = _host_and_port(address)
        try:
            return await anyio.connect_tcp(host, port)
        except (*BROKEN, ValueError) as error:  # a host name in etcd may be invalid
            raise PeerUnreachableError(f"no capture answers at {address}: {_reason(error)}") from error

    async def listen(self, address: str) -> Endpoint:
        host, port = _host_and_port(address)
        try:
            listener: Listener[ByteStream] = await anyio.create_tcp_listener(local_host=host, local_port=port)
        except OSError as error:
            raise PortInUseError(
                f"cannot listen on {address}: {_reason(error)}; stop what does or take another"
            ) from error
        bound: int = listener.extra(SocketAttribute.local_port)
        return _TcpEndpoint(listener, join_address(host, bound))


class _TcpEndpoint:
    def __init__(self, listener: Listener[ByteStream], address: str) -> None:
        self._listener = listener
        self.address = address

    async def serve(self, handler: Handler) -> None:
        await self._listener.serve(handler)

    async def aclose(self) -> None:
        await self._listener.aclose()


def _host_and_port(address: str) -> tuple[str, int]:
    """:raises ConfigError: a peer's or a setting's address is invalid."""
    try:
        return split_address(address)
    except ValueError as error:
        raise ConfigError(f"{error}; correct the address that is advertised") from None


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
