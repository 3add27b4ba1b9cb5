"""TLS between captures: certificates of the cluster's authority on both sides, reloaded when their files change.

TLS identifies the node at the other end (``certificate_of``); ``capture.messaging.admission`` decides whether that node
may speak for the capture it names. Host names are not compared: a node is pinned by the metadata store.
"""

import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSAttribute, TLSStream

from capture.errors import ConfigError
from capture.security import certificates
from capture.security.certificates import NodeCertificate
from reactor.files import read_bounded
from reactor.tls import load_pair

#: the first byte of a TLS connection; no frame begins with it
_HANDSHAKE = b"\x16"
#: OpenSSL's numbers: whoever signed it is not known
_NO_ISSUER = (20, 21)
#: of a handshake, and one to spare
_FLIGHTS = 4


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM form."""

    ca: Path
    certificate: Path
    key: Path

    @property
    def files(self) -> tuple[Path, Path, Path]:
        return self.ca, self.certificate, self.key


class NodeTls:
    """This node's certificate and trusted authority. ``renew`` loads changed files for future connections."""

    def __init__(self, files: Tls) -> None:
        """:raises ConfigError: the files cannot be used."""
        self.files = files
        self._seen = stamps_of(self.files.files)
        self.certificate, self._client, self._server = self._load()

    def renew(self) -> bool:
        """Reload changed files; return whether they had changed.

        :raises ConfigError: they have changed, and cannot be used (yet): the previous ones stay in use.
        """
        stamps = stamps_of(self.files.files)
        if stamps == self._seen:
            return False
        loaded = self._load()
        self._seen = stamps
        self.certificate, self._client, self._server = loaded
        return True

    async def serve(self, stream: ByteStream) -> ByteStream:
        """:raises ssl.SSLError: the other side has no certificate of the authority."""
        return await TLSStream.wrap(stream, server_side=True, ssl_context=self._server, standard_compatible=False)

    async def connect(self, stream: ByteStream) -> ByteStream:
        """:raises ssl.SSLError: the other side has no certificate of the authority."""
        return await TLSStream.wrap(stream, server_side=False, ssl_context=self._client, standard_compatible=False)

    def _load(self) -> tuple[NodeCertificate, ssl.SSLContext, ssl.SSLContext]:
        try:
            client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.files.ca)
            server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.files.ca)
            for context in (client, server):
                context.minimum_version = ssl.TLSVersion.TLSv1_3
                context.check_hostname = False
                context.verify_mode = ssl.CERT_REQUIRED
                load_pair(context, self.files.certificate, self.files.key)
            found = certificates.read(read_bounded(self.files.certificate))
            _greet(client, server)
            return found, client, server
        except ssl.SSLCertVerificationError as error:
            chain = ", or append the certificates of the authorities between" if error.verify_code in _NO_ISSUER else ""
            raise ConfigError(
                f"no capture would accept {self.files.certificate} ({error.verify_message}); make another with "
                f"`weir certs renew`, or correct tls-ca-file {self.files.ca}{chain}"
            ) from error
        except OSError as error:  # ssl.SSLError is one
            raise ConfigError(
                f"TLS files cannot be used ({error}); check tls-ca-file, tls-cert-file and tls-key-file"
            ) from error


def _greet(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Shake hands with ourselves, as others will: they alone would notice a certificate that has ended, is not good yet
    or is another authority's.

    :raises ssl.SSLCertVerificationError: it is refused.
    """
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    for _ in range(_FLIGHTS):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()


def stamps_of(files: Iterable[Path]) -> tuple[tuple[int, int], ...]:
    """Return values that change when a file is written or replaced. A missing file is noticed when it is read."""
    found = []
    for file in files:
        try:
            stat = file.stat()
            found.append((stat.st_mtime_ns, stat.st_ino))
        except OSError:
            found.append((0, 0))
    return tuple(found)


class PushedBack(ByteStream):
    """A stream whose first bytes have been peeked at."""

    def __init__(self, stream: ByteStream, first: bytes) -> None:
        self._stream = stream
        self._first = first

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return self._stream.extra_attributes

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._first:
            data, self._first = self._first[:max_bytes], self._first[max_bytes:]
            return data
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def looked_at(stream: ByteStream) -> tuple[ByteStream, bool]:
    """Return the stream with all of its bytes, and whether it begins with a TLS handshake."""
    first = await stream.receive()
    return PushedBack(stream, first), first.startswith(_HANDSHAKE)


def certificate_of(stream: ByteStream) -> NodeCertificate | None:
    """Return the other side's certificate; None without TLS.

    :raises ConfigError: it is the authority's, but names no node.
    """
    data = stream.extra(TLSAttribute.peer_certificate_binary, None)
    return certificates.read(data) if data else None


def reason_of(error: BaseException) -> str:
    """Return what is wrong with the other side's TLS, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not of this cluster's authority ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({(error.reason or 'no reason').lower().replace('_', ' ')})"
    return str(error) or type(error).__name__


#: how a handshake fails, besides the errors that end any connection
FAILED = (ssl.SSLError, ssl.CertificateError, anyio.EndOfStream, anyio.BrokenResourceError)
