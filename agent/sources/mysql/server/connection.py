"""Connection: one connection to MySQL or MariaDB, from a URI to a raw socket after the handshake.

PyMySQL performs the handshake (native, caching_sha2 and ed25519 passwords, TLS) and carries commands and small result
sets. It never reads beyond the answer it waits for, so code that requests a binlog or a large result with
``send_command`` finds the socket exactly at the first packet of the answer.

Every failure is raised as one line of ``agent.errors``: cause, then cure, and never with a password.
``agent.sources.mysql.server.uri`` parses the URI; ``agent.sources.mysql.server.refusals`` translates the server's
errors.
"""

import contextlib
import re
import socket
import ssl
import struct
from types import TracebackType
from typing import Any, Final, Self

import pymysql
from pymysql.constants import COMMAND, SERVER_STATUS

from agent.errors import (
    SourceAuthError,
    SourceConfigError,
    SourceError,
    SourceUnreachableError,
    StatementRefusedError,
)
from agent.sources.common.answers import ANSWER_BYTES_MAX
from agent.sources.common.keepalive import keep_alive
from agent.sources.common.tls import handshake_refusal, make_context, unverified
from agent.sources.mysql.server.refusals import refusal
from agent.sources.mysql.server.uri import TLS_NAMES, SslMode, Target, parse_uri
from reactor.tls import tls_failure

Row = tuple[str | None, ...]

#: What every session is set to, so that values in text form have one spelling only.
#: no statement waits longer for a table's lock, unless it says so
_SESSION: Final = "SET SESSION time_zone = '+00:00', sql_mode = '', autocommit = 1, lock_wait_timeout = 10"
#: MySQL can hide the key that it makes for tables without one, and the binlog has it all the same.
_SHOW_MADE_KEYS: Final = ", show_gipk_in_create_table_and_information_schema = 1"
_MADE_KEYS_SINCE: Final = (8, 0, 30)
_QUERY_TIMEOUT_S = 60.0
_TLS_FAILED = 2026
_LOST = (2006, 2013)
_ACCESS_DENIED, _LACKS_RIGHT = 1045, 1227
#: what PyMySQL raises of answers that are none, among them a question for a file of ours
_NONSENSE = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(AssertionError, RuntimeError, NameError, struct.error),
)


class Connection:
    """A session. Not for use by two threads at once, except ``abort``."""

    def __init__(self, core: pymysql.connections.Connection, target: Target) -> None:
        self._core = core
        self.target = target
        #: the socket itself (an ``ssl.SSLSocket`` where TLS was agreed): for who reads large answers
        self.socket: socket.socket = core._sock
        self.is_mariadb = "mariadb" in core.server_version.lower()
        self.server_version = _version(core.server_version)
        self.is_aborted = False

    @property
    def is_tls(self) -> bool:
        return isinstance(self.socket, ssl.SSLSocket)

    @property
    def thread_id(self) -> int:
        """The server's number of this session."""
        return int(self._core.thread_id())

    def query(self, sql: str, *, timeout_s: float = _QUERY_TIMEOUT_S) -> list[Row]:
        """Run one statement and return its rows, every value in text form.

        :raises SourceError: the server refused it, or the connection is gone.
        """
        self._core._read_timeout = timeout_s
        self._core.answered = 0
        with self._translated():
            self._core._execute_command(COMMAND.COM_QUERY, sql)
            self._core._read_query_result()
            return [_text_row(row) for row in self._core._result.rows or ()]

    def execute(self, sql: str, *, timeout_s: float = _QUERY_TIMEOUT_S) -> None:
        """Run one statement and discard its rows."""
        self.query(sql, timeout_s=timeout_s)

    def is_in_transaction(self) -> bool:
        """Return whether the session is alive, and in the transaction that it began."""
        try:
            with contextlib.suppress(StatementRefusedError):  # a KILL QUERY that came late
                self.execute("DO 0")
            self.execute("DO 0")
        except SourceError:
            return False
        return bool(self._core.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)

    def command(self, code: int, payload: bytes) -> None:
        """Send a command that answers with OK."""
        with self._translated():
            self._core._execute_command(code, payload)
            self._core._read_packet()

    def send_command(self, code: int, payload: bytes) -> None:
        """Send a command; on return the socket is at the first packet of its answer."""
        with self._translated():
            self._core._execute_command(code, payload)

    def abort(self) -> None:
        """Make every call that waits on this connection fail now; may be called from another thread."""
        self.is_aborted = True
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Say goodbye if the server still listens, and close. May be called twice."""
        if self._core.open:
            self._core._write_timeout = 1.0
            self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _translated(self) -> "_Translation":
        return _Translation(self.target)


class _Translation:
    """Whatever PyMySQL raises inside leaves as one of ours."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (pymysql.err.InterfaceError, pymysql.err.InternalError)) and not _code(error):
            raise _lost(self._target) from error
        if isinstance(error, pymysql.err.Error):
            code, message = _code(error), str(error.args[-1])
            if code in _LOST:
                raise _lost(self._target) from error
            # a connected user lacks a privilege, not the password
            raise refusal(_LACKS_RIGHT if code == _ACCESS_DENIED else code, message, self._target) from error
        if isinstance(error, OSError):
            raise _lost(self._target) from error
        if isinstance(error, _NONSENSE):
            raise _foreign(self._target) from error


class _Core(pymysql.connections.Connection):  # type: ignore[misc]
    """PyMySQL's connection, which never sends the password in clear without TLS. A Unix socket counts as TLS."""

    #: ``ssl-mode=disabled``: the user trusts the network
    trusts_line = False
    #: bytes, of the answer that is being read
    answered = 0
    _key: object = None

    @property
    def server_public_key(self) -> Any:
        """The key with which ``sha2`` encrypts the password without TLS: an impostor could send its own, and read the
        password."""
        if not self.trusts_line:
            raise _ClearPasswordRefused
        return self._key

    @server_public_key.setter
    def server_public_key(self, key: object) -> None:
        self._key = key

    def _read_bytes(self, count: int) -> bytes:
        self.answered += count
        if self.answered > ANSWER_BYTES_MAX:
            self._force_close()
            raise ValueError("an answer without an end")
        return bytes(super()._read_bytes(count))

    def _create_ssl_ctx(self, options: ssl.SSLContext | dict[str, Any]) -> ssl.SSLContext:
        """PyMySQL's hook. Without a context of ours the certificate is not verified: ``ssl-mode=preferred``."""
        return options if isinstance(options, ssl.SSLContext) else unverified()


class _OnlyEncrypted:
    """PyMySQL's hook for passwords in clear: refused where the line is not encrypted."""

    def __init__(self, core: pymysql.connections.Connection) -> None:
        self._core = core

    def authenticate(self, packet: Any) -> Any:
        if not self._core._secure:
            raise _ClearPasswordRefused
        return self._answer(packet)

    def _answer(self, packet: Any) -> Any:
        self._core.write_packet(self._core.password + b"\0")
        return self._core._read_packet()


class _DialogOnlyEncrypted(_OnlyEncrypted):
    """The same for MariaDB's PAM, which asks."""

    def _answer(self, packet: Any) -> Any:
        return self._core._process_auth(b"dialog", packet)


class _ClearPasswordRefused(pymysql.err.OperationalError):  # type: ignore[misc]
    """The server requests a clear-text password over an unencrypted connection."""


def connect(source: str | Target) -> Connection:
    """Open a session.

    :raises SourceUnreachableError: there is no answer in time.
    :raises SourceAuthError: user, password or certificate refused.
    :raises SourceConfigError: malformed URI, unknown database, TLS negotiation failed.
    """
    target = parse_uri(source) if isinstance(source, str) else source
    tls = _tls_options(target)
    raw = _open_socket(target)
    try:
        core = _shake_hands(raw, target, tls)
    except BaseException:
        raw.close()
        raise
    connection = Connection(core, target)
    has_made_keys = not connection.is_mariadb and connection.server_version >= _MADE_KEYS_SINCE
    try:
        connection.execute(_SESSION + _SHOW_MADE_KEYS if has_made_keys else _SESSION)
    except BaseException:
        connection.close()
        raise
    return connection


def _shake_hands(raw: socket.socket, target: Target, tls: dict[str, Any]) -> pymysql.connections.Connection:
    core = _Core(
        host=target.host,
        port=target.port,
        user=target.user,
        password=target.password.encode(),
        database=target.database or None,
        charset="utf8mb4",
        autocommit=None,
        conv={},
        use_unicode=False,
        program_name="weir",
        read_timeout=target.connect_timeout_s,
        write_timeout=target.connect_timeout_s,
        auth_plugin_map={"mysql_clear_password": _OnlyEncrypted, "dialog": _DialogOnlyEncrypted},
        defer_connect=True,
        **tls,
    )
    core._secure = bool(target.socket)
    core.trusts_line = target.ssl_mode is SslMode.DISABLED
    try:
        core.connect(raw)
    except pymysql.err.Error as error:
        raise _handshake_failure(error, target) from error
    except _NONSENSE as error:
        raise _foreign(target) from error
    return core


def _handshake_failure(error: pymysql.err.Error, target: Target) -> SourceError:
    if isinstance(error, _ClearPasswordRefused):
        return SourceAuthError(
            f"{target} asks for the password in clear, without TLS; use ssl-mode=required, or an account with "
            "mysql_native_password or ed25519"
        )
    failure = tls_failure(getattr(error, "original_exception", None) or error)
    if failure is not None:
        return handshake_refusal(failure, target, TLS_NAMES, "ssl-mode")
    code = _code(error)
    if code == _TLS_FAILED:
        return SourceConfigError(f"{target} does not speak TLS; give it a certificate or use ssl-mode=disabled")
    if code in (0, 2003, *_LOST):
        return SourceUnreachableError(f"{target} broke off while connecting; check that MySQL or MariaDB listens there")
    return refusal(code, str(error.args[-1]), target)


def _open_socket(target: Target) -> socket.socket:
    try:
        if target.socket:
            return _open_unix_socket(target)
        raw = socket.create_connection((target.host, target.port), target.connect_timeout_s)
    except socket.gaierror as error:
        raise SourceUnreachableError(f"host {target.host!r} is not known; check the source URI") from error
    except OSError as error:
        late = isinstance(error, TimeoutError)
        reason = "does not answer in time" if late else (error.strerror or str(error)).lower()
        raise SourceUnreachableError(
            f"{target} cannot be reached ({reason}); check host and port, and that it runs"
        ) from error
    keep_alive(raw)
    return raw


def _open_unix_socket(target: Target) -> socket.socket:
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    raw.settimeout(target.connect_timeout_s)
    try:
        raw.connect(target.socket)
    except BaseException:
        raw.close()
        raise
    return raw


def _tls_options(target: Target) -> dict[str, Any]:
    """Return PyMySQL's settings: by default it encrypts if the server can."""
    if target.ssl_mode is SslMode.DISABLED or target.socket:
        return {"ssl_disabled": True}
    if target.ssl_mode is SslMode.PREFERRED:
        return {}
    if target.ssl_mode is SslMode.REQUIRED and not target.tls.certificate:
        return {"ssl": unverified()}
    is_verified = target.ssl_mode is not SslMode.REQUIRED
    checks_host = target.ssl_mode is SslMode.VERIFY_IDENTITY
    return {"ssl": make_context(target.tls, TLS_NAMES, is_verified=is_verified, checks_host=checks_host)}


def _text_row(row: tuple[bytes | None, ...]) -> Row:
    return tuple(None if value is None else value.decode(errors="replace") for value in row)


def _code(error: BaseException) -> int:
    return error.args[0] if len(error.args) > 1 and isinstance(error.args[0], int) else 0


def _foreign(target: Target) -> SourceUnreachableError:
    return SourceUnreachableError(
        f"{target} answers what MySQL and MariaDB do not, or without an end; check what listens there"
    )


def _lost(target: Target) -> SourceUnreachableError:
    return SourceUnreachableError(f"connection to {target} was lost or gave no answer in time; it is tried again")


def _version(text: str) -> tuple[int, ...]:
    # MariaDB hides behind 5.5.5- so that old clients accept its two-digit versions
    found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else (0,)
