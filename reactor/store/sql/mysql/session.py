"""Session: a connection to a server of MariaDB or MySQL, which waits for no answer past a deadline and never sends a
password in clear over a line without TLS."""

import math
import socket
import ssl
import time
from typing import Any

import pymysql
from pymysql import err
from pymysql.constants import CLIENT

from reactor.errors import StoreAuthError, StoreError, StoreFullError, StoreUnreachableError
from reactor.store.sql.mysql.target import Target
from reactor.tls import untrusted, words_of

_AUTH = frozenset({1044, 1045, 1130, 1142, 1227, 1251, 1370, 1524, 1698, 1820, 3118, 3159, 3955, 4151})
#: 1142: a command, 1227: a right, 1370: a routine
_LACKS_RIGHT = frozenset({1044, 1142, 1227, 1370})
_FULL = frozenset({1021, 1114, 3675})
_NO_DATABASE = 1049
_TOO_LONG = 1406
_NO_TLS = 2026
#: of a server that went away, or refuses for now: another attempt may succeed, there or elsewhere
_PASSING = frozenset(
    {0, 1040, 1053, 1129, 1152, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1226, 1290, 1317, 1412, 1792, 1836, 1927}
    | {1928, 1969, 2002, 2003, 2006, 2013, 2014, 2055, 3024, 3169, 4031, 4170}
)


class ClearPasswordError(err.OperationalError):  # type: ignore[misc] # it has no types
    """The server asks for a password in clear over a line that is not encrypted."""


class Session(pymysql.connections.Connection):  # type: ignore[misc] # it has no types
    """``deadline``: of the monotonic clock, for answers; ``trusts_line``: the user allows passwords in clear."""

    deadline = math.inf
    trusts_line = False
    _key: object = None

    @property
    def server_public_key(self) -> Any:
        """The key that encrypts a password without TLS: an impostor could send its own, and read the password."""
        if not self.trusts_line:
            raise ClearPasswordError
        return self._key

    @server_public_key.setter
    def server_public_key(self, key: object) -> None:
        self._key = key

    def _create_ssl_ctx(self, options: ssl.SSLContext | dict[str, Any]) -> ssl.SSLContext:
        """PyMySQL's hook. Without a context of ours no certificate is verified (``ssl-mode=preferred``)."""
        if isinstance(options, ssl.SSLContext):
            return options
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context

    def _read_bytes(self, count: int) -> bytes:
        if self.deadline < math.inf:
            self._read_timeout = max(0.001, self.deadline - time.monotonic())
        return bytes(super()._read_bytes(count))

    def drop(self) -> None:
        """End it without a word: whatever its server still does for it is rolled back."""
        self._force_close()


class _OnlyEncrypted:
    """PyMySQL's hook for passwords in clear."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def authenticate(self, packet: Any) -> Any:
        if not self._session._secure:
            raise ClearPasswordError
        self._session.write_packet(self._session.password + b"\0")
        return self._session._read_packet()


def open_session(target: Target, host: str, port: int, *, timeout_s: float) -> Session:
    """:raises pymysql.err.Error, OSError: see ``translated``."""
    options: dict[str, Any] = {"ssl_disabled": True} if target.mode == "disabled" else {}
    if target.tls is not None:
        options = {"ssl": target.tls}
    session = Session(
        host=host,
        port=port,
        user=target.user,
        password=target.password.encode(),
        database=target.database,
        charset="utf8mb4",
        autocommit=True,
        binary_prefix=True,
        connect_timeout=max(1, math.ceil(timeout_s)),
        read_timeout=timeout_s,
        write_timeout=timeout_s,
        program_name="weir",
        client_flag=CLIENT.MULTI_STATEMENTS,
        auth_plugin_map={"mysql_clear_password": _OnlyEncrypted, "dialog": _OnlyEncrypted},
        defer_connect=True,
        **options,
    )
    session.trusts_line = target.mode == "disabled"
    session.connect()
    session._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return session


def translated(error: Exception, name: str) -> StoreError:
    """Return what it means, in one line without secrets."""
    if isinstance(error, ClearPasswordError):
        return StoreAuthError(f"{name} asks for the password in clear; use ssl-mode=required or verify_identity")
    cause = getattr(error, "original_exception", None) or error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return StoreError(untrusted(cause, name, "ssl-ca"))
    if isinstance(cause, ssl.SSLError):
        return StoreError(f"no TLS session with {name}: {words_of(cause)}; check ssl-mode")
    number, text = _number(error), " ".join(str(error.args[-1] if error.args else error).split())[:300]
    if number == _NO_TLS:
        return StoreError(f"{name} does not speak TLS; give it a certificate, or use ssl-mode=disabled")
    if number in _LACKS_RIGHT:
        return StoreAuthError(f"{name} refuses this user ({text}); let it create and write tables in its database")
    if number in _AUTH:
        return StoreAuthError(f"{name} refuses the user or its password ({text}); correct them")
    if number == _NO_DATABASE:
        return StoreError(f"{name} has no such database; create it")
    if number in _FULL:
        return StoreFullError(f"{name} cannot grow: its disk is full; make room")
    if number == _TOO_LONG:
        return StoreError(f"{name} refuses a key of more than 750 characters; use shorter names")
    if number in _PASSING or isinstance(error, (OSError, err.InterfaceError)):
        return StoreUnreachableError(f"{name} does not answer ({text}); start it, or correct the store's URL")
    return StoreError(f"{name} refused: {text}")


def _number(error: Exception) -> int:
    """Return the server's or client's number of the error; -1 if it has none."""
    found = error.args[0] if error.args else -1
    return found if isinstance(found, int) and isinstance(error, err.Error) else -1
