"""Handshake: from an address to an authenticated session, by pg8000 (md5, SCRAM) over TLS that is set up here.

Every failure is raised as one line of ``agent.errors``: cause, then cure, and never with a password.
"""

import socket
import ssl
import struct
from typing import Final

import scramp
from pg8000.core import CoreConnection
from pg8000.exceptions import DatabaseError, InterfaceError

from agent.errors import SourceAuthError, SourceConfigError, SourceError, SourceUnreachableError
from agent.sources.common.keepalive import keep_alive
from agent.sources.common.tls import handshake_refusal, make_context, unverified
from agent.sources.postgres.server.refusals import refusal
from agent.sources.postgres.server.session_settings import SESSION, STREAM_SESSION
from agent.sources.postgres.server.uri import TLS_NAMES, Target

_CLEAR_PASSWORD: Final = 3
#: steps of the authentication (https://www.postgresql.org/docs/current/protocol-message-formats.html)
_OK, _SASL, _SASL_CONTINUE, _SASL_FINAL = 0, 10, 11, 12
_BOUND: Final = b"SCRAM-SHA-256-PLUS"
_SSL_REQUEST: Final = struct.pack("!ii", 8, 80877103)


def shake_hands(target: Target, *, replication: bool) -> CoreConnection:
    """Open a session; with ``replication`` one that also accepts replication commands.

    :raises SourceUnreachableError: there is no answer in time.
    :raises SourceAuthError: user, password or privilege refused.
    :raises SourceConfigError: unknown database, TLS negotiation failed, no free connection.
    """
    context = _tls_context(target)
    raw = _open_socket(target)
    try:
        if context is not None:
            raw = _encrypted(raw, target, context)
        return _authenticated(raw, target, replication=replication)
    except BaseException:
        raw.close()
        raise


def foreign(target: Target) -> SourceUnreachableError:
    """Return the error for what is no answer of PostgreSQL."""
    return SourceUnreachableError(f"{target} answers what PostgreSQL does not; check that it listens there")


def _authenticated(raw: socket.socket, target: Target, *, replication: bool) -> CoreConnection:
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
        raise foreign(target) from error


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
