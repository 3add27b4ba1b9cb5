"""Source URI of MySQL and MariaDB: ``mysql://user:pw@host:port/db?ssl-mode=...`` (or ``mariadb://``).

Parameters have the names of the ``mysql`` client's options. The database is the default for unqualified names;
replication covers the whole server, so it may be omitted. A password can be referenced instead of written:
``?password=env:NAME`` or ``?password=file:/path``; references are resolved here, as late as possible, and never stored
resolved. ``str(target)`` is for errors: host, port and database, no user, no secret.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qsl, unquote, urlsplit

from agent.errors import SourceConfigError
from agent.sources.common import uri_options
from agent.sources.common.tls import NO_MATERIAL, TlsMaterial, TlsNames

_SCHEMES = ("mysql", "mariadb")
_PARAMETERS = frozenset(
    {"ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "password", "user", "host", "port", "socket", "connect-timeout"}
)
TLS_NAMES = TlsNames(authority="ssl-ca", certificate="ssl-cert", key="ssl-key")
_PORT = 3306


class SslMode(StrEnum):
    """TLS requirement; the values are those of ``mysql --ssl-mode``, in lower case."""

    DISABLED = "disabled"
    #: encrypted if the server supports it
    PREFERRED = "preferred"
    REQUIRED = "required"
    #: encrypted, with a certificate signed by a trusted authority
    VERIFY_CA = "verify_ca"
    #: ... that is issued for the host
    VERIFY_IDENTITY = "verify_identity"


@dataclass(frozen=True, slots=True)
class Target:
    """Address and credentials of a server."""

    host: str
    port: int
    user: str
    #: the default database; empty = none
    database: str = ""
    password: str = field(default="", repr=False)
    ssl_mode: SslMode = SslMode.PREFERRED
    tls: TlsMaterial = NO_MATERIAL
    #: path of the server's Unix socket; empty = TCP
    socket: str = ""
    connect_timeout_s: int = 10

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        place = self.socket or f"{host}:{self.port}"
        return f"mysql://{place}/{self.database}" if self.database else f"mysql://{place}"


def parse_uri(uri: str) -> Target:
    """Parse a source URI.

    :raises SourceConfigError: malformed; the text never repeats the URI, since it may contain a password.
    """
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise SourceConfigError("the source URI is malformed; write mysql://user:password@host:port/db") from None
    if parts.scheme not in _SCHEMES:
        raise SourceConfigError(
            f"{parts.scheme or 'no'} scheme in the source URI; MySQL's and MariaDB's are mysql:// and mariadb://"
        )
    uri_options.refuse_unescaped(parts)
    options = _options(parts.query)
    user = options.get("user") or unquote(parts.username or "")
    if not user:
        raise SourceConfigError("the source URI names no user; write mysql://user:password@host:port/db")
    ssl_mode, tls = _tls(options)
    return Target(
        host=options.get("host") or unquote(parts.hostname or "") or "localhost",
        port=uri_options.number(options, "port", port or _PORT, most=uri_options.PORT_MAX),
        user=user,
        database=unquote(parts.path.lstrip("/")),
        password=uri_options.password(options.get("password"), unquote(parts.password or "")),
        ssl_mode=ssl_mode,
        tls=tls,
        socket=options.get("socket", ""),
        connect_timeout_s=uri_options.number(options, "connect-timeout", 10, most=uri_options.TIMEOUT_MAX_S),
    )


def _options(query: str) -> dict[str, str]:
    """Parse the parameters; ``ssl_mode`` and ``ssl-mode`` are the same option, as in the server's own programs."""
    options = {name.replace("_", "-"): value for name, value in parse_qsl(query, keep_blank_values=True)}
    uri_options.refuse_unknown(options, _PARAMETERS)
    return options


def _tls(options: dict[str, str]) -> tuple[SslMode, TlsMaterial]:
    """Return the effective mode and what it uses. An authority that is named is one to verify against, which
    ``preferred`` and ``required`` alone do not, and a certificate needs TLS."""
    mode = _ssl_mode(options)
    tls = TlsMaterial(*(uri_options.looked_up(options, name) for name in ("ssl-ca", "ssl-cert", "ssl-key")))
    is_encrypted = mode is not SslMode.DISABLED
    tls.refuse_unusable(TLS_NAMES, is_encrypted=is_encrypted, cure="use ssl-mode=required, or verify_identity")
    if tls.authority and mode in (SslMode.PREFERRED, SslMode.REQUIRED):
        return SslMode.VERIFY_CA, tls
    if tls.certificate and mode is SslMode.PREFERRED:
        return SslMode.REQUIRED, tls
    return mode, tls


def _ssl_mode(options: dict[str, str]) -> SslMode:
    mode = options.get("ssl-mode", SslMode.PREFERRED).lower().replace("-", "_")
    try:
        return SslMode(mode)
    except ValueError:
        raise SourceConfigError(f"ssl-mode {mode!r} is not known; use one of {', '.join(SslMode)}") from None
