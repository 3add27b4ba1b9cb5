"""Connection: one connection to PostgreSQL, from a URI to a raw socket after the handshake.

pg8000 performs the handshake (md5, SCRAM), over TLS that is set up here; from then on this module speaks the simple
query protocol itself and never reads beyond the current message. So code that starts a COPY (the block reader of the
replication stream, the snapshot reader) finds the socket exactly at the first message of the copy, with no data
buffered in between.

Every failure is raised as one line of ``agent.errors``: cause, then cure, and never with a password.
``agent.sources.postgres.server.uri`` parses the URI; ``agent.sources.postgres.server.refusals`` translates the server's
errors.
"""

import contextlib
import socket
import ssl
import struct
from types import TracebackType
from typing import Self

import scramp
from pg8000.core import CoreConnection
from pg8000.exceptions import DatabaseError, InterfaceError

from agent.errors import SourceAuthError, SourceConfigError, SourceError, SourceUnreachableError
from agent.sources.common.answers import ANSWER_BYTES_MAX
from agent.sources.common.keepalive import keep_alive
from agent.sources.common.tls import handshake_refusal, make_context, unverified
from agent.sources.postgres.server.refusals import ErrorFields, parse_error, refusal
from agent.sources.postgres.server.session_settings import QUALIFIED_NAMES_SQL, SESSION, STREAM_SESSION
from agent.sources.postgres.server.sql import bytes_of, text_of
from agent.sources.postgres.server.uri import TLS_NAMES, Target, parse_uri

Row = tuple[str | None, ...]

_QUERY_TIMEOUT_S = 60.0
_TRANSACTION_TIMEOUT_VERSION = 17
_CLEAR_PASSWORD = 3
#: steps of the authentication (https://www.postgresql.org/docs/current/protocol-message-formats.html)
_OK, _SASL, _SASL_CONTINUE, _SASL_FINAL = 0, 10, 11, 12
_BOUND = b"SCRAM-SHA-256-PLUS"
_HEADER = struct.Struct("!ci")
#: as much as a value may have, and a little more
_MESSAGE_BYTES_MAX = (1 << 30) + (1 << 20)
_PIECE_BYTES = 1 << 20
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)


class Connection:
    """A session. Only ``abort`` may be called from another thread."""

    def __init__(self, core: CoreConnection, target: Target) -> None:
        self._core = core
        self.target = target
        #: the socket itself (an ``ssl.SSLSocket`` with TLS), for COPY readers
        self.socket: socket.socket = core._usock
        self.server_encoding = str(core.parameter_statuses.get("server_encoding", "UTF8"))
        self.server_version = _major_version(core.parameter_statuses.get("server_version", "0"))

    def query(self, sql: str, *, timeout_s: float = _QUERY_TIMEOUT_S) -> list[Row]:
        """Run SQL (or a replication command) and return the rows of its last result, with all values in text form.

        :raises SourceError: the server refused it, or the connection is gone.
        """
        self._send(sql, timeout_s=timeout_s)
        rows: list[Row] = []
        failure: ErrorFields | None = None
        size = 0
        while True:
            kind, body = self.read_message()
            size += len(body)
            if size > ANSWER_BYTES_MAX:
                self.abort()
                raise SourceUnreachableError(f"{self.target} answers a question without an end; see what listens there")
            if kind == b"D":
                rows.append(self._row(body))
            elif kind == b"T":
                rows = []
            elif kind == b"E":
                failure = parse_error(body)
            elif kind == b"Z":
                break
        if failure is not None:
            raise refusal(failure, self.target)
        return rows

    def unlimit(self) -> None:
        """Let transactions take any time, whatever the server says: a snapshot is read to its end.

        :raises SourceError: the server refuses.
        """
        if self.server_version >= _TRANSACTION_TIMEOUT_VERSION:
            self.query("SET transaction_timeout = 0")

    def take_bytes(self) -> None:
        """Get texts, and send them, in the database's own encoding.

        :raises SourceError: the server refuses.
        """
        self.query(f"SET client_encoding = '{self.server_encoding}'")

    def start_copy(self, sql: str, *, timeout_s: float = _QUERY_TIMEOUT_S) -> None:
        """Send a command that returns COPY data; afterwards the socket is at its first message.

        :raises SourceError: the server refused it; the session remains usable.
        """
        self._send(sql, timeout_s=timeout_s)
        failure: ErrorFields | None = None
        while True:
            kind, body = self.read_message()
            if kind in (b"W", b"H"):
                return
            if kind == b"E":
                failure = parse_error(body)
            elif kind == b"Z":
                raise refusal(failure, self.target) if failure else SourceError(f"no data was copied by: {sql[:80]}")

    def read_message(self) -> tuple[bytes, bytes]:
        """Read the server's next message: its type letter and body."""
        kind, length = _HEADER.unpack(self._read_exactly(5))
        if not _HEADER.size - 1 <= length <= _MESSAGE_BYTES_MAX:
            raise self._foreign()
        return kind, self._read_exactly(length - 4)

    def _row(self, body: bytes) -> Row:
        try:
            return _parse_row(body)
        except (struct.error, IndexError, ValueError):
            raise self._foreign() from None

    def _foreign(self) -> SourceUnreachableError:
        self.abort()
        return _foreign(self.target)

    def send(self, data: bytes) -> None:
        """:raises SourceUnreachableError: the connection is gone."""
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def abort(self) -> None:
        """Make all calls that wait on this connection fail; may be called from another thread."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Terminate the session if the server still reads, and close. Idempotent."""
        if self.socket.fileno() < 0:
            return
        with contextlib.suppress(OSError, ValueError):
            self.socket.settimeout(1.0)
            self.socket.sendall(b"X\x00\x00\x00\x04")
        _release(self._core)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, sql: str, *, timeout_s: float) -> None:
        payload = bytes_of(sql) + b"\x00"
        try:
            self.socket.settimeout(timeout_s)
        except OSError as error:
            raise self._lost(error) from error
        self.send(_HEADER.pack(b"Q", len(payload) + 4) + payload)

    def _read_exactly(self, size: int) -> bytes:
        data = bytearray(min(size, _PIECE_BYTES))
        filled = 0
        while filled < size:
            if filled == len(data):  # the claimed size may be a lie
                data += bytes(min(filled, size - filled))
            try:
                with memoryview(data)[filled:] as view:
                    count = self.socket.recv_into(view)
            except OSError as error:
                raise self._lost(error) from error
            if count == 0:
                raise self._lost(None)
            filled += count
        return bytes(data)

    def _lost(self, error: OSError | None) -> SourceUnreachableError:
        reason = "no answer in time" if isinstance(error, TimeoutError) else "the server closed the connection"
        return SourceUnreachableError(f"connection to {self.target} was lost: {reason}; it is retried automatically")


class _ClearPasswordRefused(Exception):
    """The server requests a clear-text password over an unencrypted connection."""


class _Core(CoreConnection):  # type: ignore[misc]
    """pg8000's connection, which never sends the password in clear without TLS. A Unix socket counts as secure."""

    def handle_AUTHENTICATION_REQUEST(self, data: bytes, context: object) -> None:
        (asked,) = struct.unpack_from("!i", data)
        is_private = isinstance(self._usock, ssl.SSLSocket) or self._usock.family == socket.AF_UNIX
        if asked == _CLEAR_PASSWORD and not is_private:
            raise _ClearPasswordRefused
        super().handle_AUTHENTICATION_REQUEST(data, context)


class _ChannelNotBound(Exception):
    """The server requests, or accepts, what does not prove that it is at the other end of this TLS session."""


class _BoundCore(_Core):
    """The connection of ``channel_binding=require``: the server proves that it knows the password, and both that
    nobody is between them. Nothing is answered to a server that does not offer this."""

    _is_proven = False

    def handle_AUTHENTICATION_REQUEST(self, data: bytes, context: object) -> None:
        (asked,) = struct.unpack_from("!i", data)
        is_offered = asked == _SASL and isinstance(self._usock, ssl.SSLSocket) and _BOUND in data[4:].split(b"\0")
        is_next = asked in (_SASL_CONTINUE, _SASL_FINAL) or (asked == _OK and self._is_proven)
        if not (is_offered or is_next):
            raise _ChannelNotBound
        super().handle_AUTHENTICATION_REQUEST(data, context)
        self._is_proven = asked == _SASL_FINAL


def connect(source: str | Target, *, replication: bool = False) -> Connection:
    """Open a session; with ``replication`` one that also accepts replication commands.

    :raises SourceUnreachableError: there is no answer in time.
    :raises SourceAuthError: user, password or privilege refused.
    :raises SourceConfigError: malformed URI, unknown database, TLS negotiation failed, no free connection.
    """
    target = parse_uri(source) if isinstance(source, str) else source
    context = _tls_context(target)
    raw = _open_socket(target)
    try:
        if context is not None:
            raw = _encrypted(raw, target, context)
        core = _shake_hands(raw, target, replication=replication)
    except BaseException:
        raw.close()
        raise
    core._usock.settimeout(_QUERY_TIMEOUT_S)
    connection = Connection(core, target)
    if connection.server_encoding == "SQL_ASCII":
        # it may have any bytes, which the server else refuses to send: a stream would end at the first row with one
        try:
            connection.take_bytes()
        except BaseException:
            connection.close()
            raise
    return connection


def catalog_session(source: str | Target) -> Connection:
    """Open a session in which functions and operators are PostgreSQL's own: anybody who may create some in a schema of
    the search path could have better fitting ones called in their place, with our rights.

    :raises SourceError: see ``connect``.
    """
    connection = connect(source)
    try:
        connection.unlimit()
        connection.query(QUALIFIED_NAMES_SQL)
    except BaseException:
        connection.close()
        raise
    return connection


def _shake_hands(raw: socket.socket, target: Target, *, replication: bool) -> CoreConnection:
    core = _BoundCore if target.channel_binding == "require" else _Core
    try:
        return core(
            target.user,
            host=target.host,
            database=target.database,
            password=target.password or "",
            ssl_context=False,
            application_name=target.application_name,
            replication="database" if replication else None,
            startup_params=dict(STREAM_SESSION if replication else SESSION),
            sock=raw,
        )
    except _ChannelNotBound as error:
        raise SourceAuthError(
            f"{target} does not bind the password to the TLS session, as channel_binding=require asks; let it use TLS "
            "and scram-sha-256, or leave the parameter out"
        ) from error
    except _ClearPasswordRefused as error:
        raise SourceAuthError(
            f"{target} asks for the password in clear, without TLS; use sslmode=require, or scram-sha-256 in its "
            "pg_hba.conf"
        ) from error
    except (DatabaseError, InterfaceError, OSError, scramp.ScramException) as error:
        raise _handshake_failure(error, target) from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, struct.error) as error:
        raise _foreign(target) from error


def _foreign(target: Target) -> SourceUnreachableError:
    return SourceUnreachableError(f"{target} answers what PostgreSQL does not; check that it listens there")


def _encrypted(raw: socket.socket, target: Target, context: ssl.SSLContext) -> socket.socket:
    """Ask for TLS, which ``prefer`` can do without. Done here, not by pg8000, the socket is ours to close whatever the
    server says next."""
    try:
        raw.sendall(_SSL_REQUEST)
        answer = raw.recv(1)
        if answer == b"S":
            return context.wrap_socket(raw, server_hostname=target.host)
    except OSError as error:
        raise _handshake_failure(error, target) from error
    if target.sslmode == "prefer":
        return raw
    if answer == b"N":
        raise SourceConfigError(f"{target} does not speak TLS; turn ssl on there or use sslmode=disable")
    raise _handshake_failure(ConnectionResetError(), target)


def _handshake_failure(error: BaseException, target: Target) -> SourceError:
    # pg8000 sends Terminate after a refusal or a failure; if that fails too, the first error is the other's context
    failure: ssl.SSLError | None = None
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, DatabaseError) and isinstance(link.args[0], dict):
            return refusal(link.args[0], target)
        if isinstance(link, scramp.ScramException):
            return SourceAuthError(f"SCRAM with {target} failed for user {target.user}; check the password")
        if isinstance(link, ssl.SSLError):
            failure = link
        link = link.__context__
    if failure is not None:
        return handshake_refusal(failure, target, TLS_NAMES, "sslmode")
    if "not supported" in str(error):
        return SourceAuthError(
            f"{target} asks for an authentication method Weir lacks; use scram-sha-256 in pg_hba.conf"
        )
    return SourceUnreachableError(f"{target} broke off while connecting; check that PostgreSQL listens there")


def _open_socket(target: Target) -> socket.socket:
    try:
        if target.socket_directory:
            raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            raw.settimeout(target.connect_timeout_s)
            try:
                raw.connect(f"{target.socket_directory}/.s.PGSQL.{target.port}")
            except BaseException:
                raw.close()
                raise
            return raw
        raw = socket.create_connection((target.host, target.port), target.connect_timeout_s)
    except socket.gaierror as error:
        raise SourceUnreachableError(f"host {target.host!r} is not known; check the source URI") from error
    except OSError as error:
        reason = (
            "does not answer in time" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
        )
        raise SourceUnreachableError(
            f"{target} cannot be reached ({reason}); check host and port, and that it runs"
        ) from error
    keep_alive(raw)
    return raw


def _tls_context(target: Target) -> ssl.SSLContext | None:
    """Return the context for TLS; None where none is asked for."""
    if target.sslmode == "disable" or target.socket_directory:
        return None
    is_verified = target.sslmode.startswith("verify")
    if not is_verified and not target.tls.certificate:
        return unverified()
    return make_context(target.tls, TLS_NAMES, is_verified=is_verified, checks_host=target.sslmode == "verify-full")


def _release(core: CoreConnection) -> None:
    # the buffered file holds the descriptor open until it is closed too
    for part in (core._sock, core._usock):
        with contextlib.suppress(OSError, ValueError):
            part.close()


def _parse_row(body: bytes) -> Row:
    (count,) = struct.unpack_from("!h", body)
    offset = 2
    values: list[str | None] = []
    for _ in range(count):
        (length,) = struct.unpack_from("!i", body, offset)
        offset += 4
        values.append(None if length < 0 else text_of(body[offset : offset + length]))
        offset += max(length, 0)
    return tuple(values)


def _major_version(text: str) -> int:
    digits = text.split(".")[0].split(" ")[0]
    return int(digits) if digits.isdigit() else 0
