"""Source URI of PostgreSQL: ``postgresql://user:pw@host:port/db?sslmode=...``.

Parameters have libpq's names. A password can be referenced instead of written: ``?password=env:NAME`` or
``?password=file:/path``; references are resolved here, as late as possible, and never stored resolved. ``str(target)``
is for errors: host, port and database, no user, no secret.
"""

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from agent.errors import SourceConfigError
from agent.sources.common import uri_options
from agent.sources.common.tls import NO_MATERIAL, TlsMaterial, TlsNames

_SCHEMES = ("postgresql", "postgres")
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
#: libpq's name for the authorities that this machine trusts
_SYSTEM = "system"
_CHANNEL_BINDINGS = ("prefer", "require")
_PARAMETERS = frozenset(
    {"sslmode", "sslrootcert", "sslcert", "sslkey", "channel_binding", "password", "user", "host", "port", "dbname"}
    | {"application_name", "connect_timeout"}
)
TLS_NAMES = TlsNames(authority="sslrootcert", certificate="sslcert", key="sslkey")


@dataclass(frozen=True, slots=True)
class Target:
    """Address and user of a connection."""

    host: str
    port: int
    database: str
    user: str
    password: str = field(default="", repr=False)
    sslmode: str = "prefer"
    tls: TlsMaterial = NO_MATERIAL
    channel_binding: str = "prefer"
    #: directory of the server's Unix socket; empty = TCP
    socket_directory: str = ""
    application_name: str = "weir"
    connect_timeout_s: int = 10

    def __str__(self) -> str:
        place = f"{self.socket_directory}:{self.port}" if self.socket_directory else f"{self.host}:{self.port}"
        return f"postgresql://{place}/{self.database}"


def parse_uri(uri: str) -> Target:
    """:raises SourceConfigError: malformed; the text never repeats the URI, since it may hold a password."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise SourceConfigError("the source URI is malformed; write postgresql://user:password@host:port/db") from None
    if parts.scheme not in _SCHEMES:
        raise SourceConfigError(f"{parts.scheme or 'no'} scheme in the source URI; PostgreSQL's is postgresql://")
    uri_options.refuse_unescaped(parts)
    options = _options(parts.query)
    host = options.get("host") or unquote(parts.hostname or "") or "localhost"
    user = options.get("user") or unquote(parts.username or "")
    database = options.get("dbname") or unquote(parts.path.lstrip("/")) or user
    if not user:
        raise SourceConfigError("the source URI names no user; write postgresql://user:password@host:port/db")
    sslmode, tls = _tls(options)
    return Target(
        host="localhost" if host.startswith("/") else host,
        port=uri_options.number(options, "port", port or 5432, most=uri_options.PORT_MAX),
        database=database,
        user=user,
        password=uri_options.password(options.get("password"), unquote(parts.password or "")),
        sslmode=sslmode,
        tls=tls,
        channel_binding=_one_of(options, "channel_binding", _CHANNEL_BINDINGS, default="prefer"),
        socket_directory=host if host.startswith("/") else "",
        application_name=options.get("application_name", "weir"),
        connect_timeout_s=uri_options.number(options, "connect_timeout", 10, most=uri_options.TIMEOUT_MAX_S),
    )


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    uri_options.refuse_unknown(options, _PARAMETERS)
    return options


def _tls(options: dict[str, str]) -> tuple[str, TlsMaterial]:
    """Return the effective mode and what it uses.

    An authority that is named is one to verify against, which ``prefer`` and ``require`` alone do not; libpq has this
    rule for ``require`` (https://www.postgresql.org/docs/current/libpq-ssl.html). A certificate needs TLS.
    """
    is_system = options.get("sslrootcert") == _SYSTEM
    mode = _one_of(options, "sslmode", _SSL_MODES, default="verify-full" if is_system else "prefer")
    if is_system and mode != "verify-full":
        raise SourceConfigError(f"sslrootcert=system is safe with sslmode=verify-full only, not with {mode}; use that")
    authority = "" if is_system else uri_options.looked_up(options, "sslrootcert")
    tls = TlsMaterial(authority, uri_options.looked_up(options, "sslcert"), uri_options.looked_up(options, "sslkey"))
    tls.refuse_unusable(TLS_NAMES, is_encrypted=mode != "disable", cure="use sslmode=require, or verify-full")
    if tls.authority and mode in ("allow", "prefer", "require"):
        return "verify-ca", tls
    if mode in ("allow", "prefer"):
        return ("require" if tls.certificate else "prefer"), tls
    return mode, tls


def _one_of(options: dict[str, str], name: str, known: tuple[str, ...], *, default: str) -> str:
    value = options.get(name, default)
    if value not in known:
        raise SourceConfigError(f"{name} {value!r} is not known; use one of {', '.join(known)}")
    return value
