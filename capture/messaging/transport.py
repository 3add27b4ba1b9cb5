"""Transport: byte streams between captures, TCP, or TLS with certificates of the cluster's authority on both sides.

A transport only connects and listens; frames and everything above are the same over any. Driver errors end here:
whoever connects gets ``PeerUnreachableError``, whoever listens ``PortInUseError``, whoever uses a stream ``BROKEN``.
"""

import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import anyio
import structlog
from anyio.abc import AnyByteStream, ByteStream, Listener, SocketAttribute
from anyio.streams.tls import TLSListener

from capture.address import join_address, split_address
from capture.errors import ConfigError, PeerUnreachableError, PortInUseError

#: what a stream raises when the other side, the network or a close ended it
BROKEN = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)

_log = structlog.get_logger()

Handler = Callable[[ByteStream], Coroutine[Any, Any, None]]


class Endpoint(Protocol):
    """A place that listens."""

    @property
    def address(self) -> str: ...

    async def serve(self, handler: Handler) -> None:
        """Run ``handler`` for every stream that comes in, until cancelled."""
        ...

    async def aclose(self) -> None: ...


class Transport(Protocol):
    """How captures reach each other. Addresses are ``host:port``."""

    async def connect(self, address: str) -> ByteStream:
        """:raises PeerUnreachableError: nobody answers there, or not as this transport wants it."""
        ...

    async def listen(self, address: str) -> Endpoint:
        """:raises PortInUseError: the address is taken or not this machine's."""
        ...


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM form. Both sides check the other's certificate against ``ca``; names are checked by who connects."""

    ca: Path
    certificate: Path
    key: Path
    check_hostname: bool = True

    def client_context(self) -> ssl.SSLContext:
        context = self._context(ssl.Purpose.SERVER_AUTH)
        context.check_hostname = self.check_hostname
        return context

    def server_context(self) -> ssl.SSLContext:
        context = self._context(ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(purpose, cafile=self.ca)
            context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(f"TLS files cannot be used ({error}); check ca, certificate and key") from error
        return context


class TcpTransport:
    """TCP over anyio; TLS on top if given."""

    def __init__(self, tls: Tls | None = None) -> None:
        self._client = tls.client_context() if tls else None
        self._server = tls.server_context() if tls else None

    async def connect(self, address: str) -> ByteStream:
        host, port = _host_and_port(address)
        try:
            if self._client is None:
                return await anyio.connect_tcp(host, port)
            return await anyio.connect_tcp(host, port, ssl_context=self._client, tls_standard_compatible=False)
        except (*BROKEN, ValueError) as error:  # a host name in etcd may be none
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
        if self._server is not None:
            listener = _TlsListener(listener, self._server, standard_compatible=False, handshake_timeout=10)
        return _TcpEndpoint(listener, join_address(host, bound))


class _TlsListener(TLSListener):
    @staticmethod
    async def handle_handshake_error(exc: BaseException, stream: AnyByteStream) -> None:
        """One line for whoever knocks without a certificate of ours; anyio would log a traceback."""
        await anyio.aclose_forcefully(stream)
        if not isinstance(exc, Exception):
            raise exc
        _log.warning("connection refused", reason="tls", cause=_reason(exc))


class _TcpEndpoint:
    def __init__(self, listener: Listener[ByteStream], address: str) -> None:
        self._listener = listener
        self.address = address

    async def serve(self, handler: Handler) -> None:
        await self._listener.serve(handler)

    async def aclose(self) -> None:
        await self._listener.aclose()


def _host_and_port(address: str) -> tuple[str, int]:
    """:raises ConfigError: what a peer or a setting says is no address."""
    try:
        return split_address(address)
    except ValueError as error:
        raise ConfigError(f"{error}; correct the address that is advertised") from None


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
