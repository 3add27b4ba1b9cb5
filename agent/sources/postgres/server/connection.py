"""Connection: one connection to PostgreSQL, from a URI to a raw socket after the handshake.

After the handshake (``handshake``) this module speaks the simple query protocol itself and never reads beyond the
current message. So code that starts a COPY (the block reader of the replication stream, the snapshot reader) finds the
socket exactly at the first message of the copy, with no data buffered in between.

Every failure is raised as one line of ``agent.errors``: cause, then cure, and never with a password.
``agent.sources.postgres.server.uri`` parses the URI; ``agent.sources.postgres.server.refusals`` translates the server's
errors.
"""

import contextlib
import socket
import struct
from functools import lru_cache
from types import TracebackType
from typing import Self

from pg8000.core import CoreConnection

from agent.errors import SourceError, SourceUnreachableError
from agent.sources.common.answers import ANSWER_BYTES_MAX
from agent.sources.postgres.server.handshake import foreign, shake_hands
from agent.sources.postgres.server.refusals import ErrorFields, parse_error, refusal
from agent.sources.postgres.server.session_settings import QUALIFIED_NAMES_SQL
from agent.sources.postgres.server.sql import bytes_of, text_of
from agent.sources.postgres.server.uri import Target, parse_uri

Row = tuple[str | None, ...]

_QUERY_TIMEOUT_S = 60.0
_TRANSACTION_TIMEOUT_VERSION = 17
_HEADER = struct.Struct("!ci")
#: as much as a value may have, and a little more
_MESSAGE_BYTES_MAX = (1 << 30) + (1 << 20)
_PIECE_BYTES = 1 << 20


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

    def is_standby(self) -> bool:
        """:raises SourceError: the server refuses."""
        [[answer]] = self.query("SELECT pg_catalog.pg_is_in_recovery()")
        return answer == "t"

    def refuse_standby(self) -> None:
        """:raises SourceUnreachableError: the server is a standby."""
        if self.is_standby():
            raise SourceUnreachableError(
                f"{self.target} is a standby; it is tried again until it is promoted, or the primary answers there"
            )

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
        return foreign(self.target)

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


def connect(source: str | Target, *, replication: bool = False) -> Connection:
    """Open a session; with ``replication`` one that also accepts replication commands. Of several servers it is with
    the first one that answers, or that is a primary.

    :raises SourceUnreachableError: there is no answer in time.
    :raises SourceAuthError: user, password or privilege refused.
    :raises SourceConfigError: malformed URI, unknown database, TLS negotiation failed, no free connection.
    """
    target = parse_uri(source) if isinstance(source, str) else source
    places = target.places
    if len(places) == 1 and not target.wants_primary:
        return _connect(target, replication=replication)
    last, refused = _last_found(str(target)), list[SourceError]()
    for number in sorted(range(len(places)), key=lambda number: number != last[0]):
        try:
            connection = _connect(places[number], replication=replication)
            if target.wants_primary:
                _refuse_standby(connection)
        except SourceError as error:  # a standby may be behind: it has not the database yet, or the password
            refused.append(error)
        else:
            last[0] = number
            return connection
    for found in refused:
        if not isinstance(found, SourceUnreachableError):
            raise found
    raise SourceUnreachableError(f"no primary of {target} answers: {'; '.join(map(str, refused))}; it is tried again")


@lru_cache(maxsize=1024)
def _last_found(target: str) -> list[int]:
    """Return a cell with the number of the server that answered last: it takes seconds to find out that one is down."""
    return [0]


def _refuse_standby(connection: Connection) -> None:
    """Close the connection, and raise, if the server is a standby or does not say."""
    try:
        connection.refuse_standby()
    except BaseException:
        connection.close()
        raise


def _connect(target: Target, *, replication: bool) -> Connection:
    core = shake_hands(target, replication=replication)
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
