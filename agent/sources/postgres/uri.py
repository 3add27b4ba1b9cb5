"""The source URI of PostgreSQL, read: ``postgresql://user:pw@host:port/db?sslmode=...``.

The spelling is libpq's as far as it goes. A password can also be named instead of written: ``?password=env:NAME``
or ``?password=file:/path``; such a reference is resolved here, at the last moment, and never stored resolved.
``str(target)`` is what errors show: host, port and database, no user, no secret.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from agent.errors import SourceConfigError

_SCHEMES = ("postgresql", "postgres")
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_PARAMETERS = frozenset(
    {"sslmode", "sslrootcert", "password", "user", "host", "port", "dbname", "application_name", "connect_timeout"}
)


@dataclass(frozen=True, slots=True)
class Target:
    """Where to connect and as whom."""

    host: str
    port: int
    database: str
    user: str
    password: str = field(default="", repr=False)
    sslmode: str = "prefer"
    sslrootcert: str = ""
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
    options = _options(parts.query)
    host = options.get("host") or unquote(parts.hostname or "") or "localhost"
    user = options.get("user") or unquote(parts.username or "")
    database = options.get("dbname") or unquote(parts.path.lstrip("/")) or user
    if not user:
        raise SourceConfigError("the source URI names no user; write postgresql://user:password@host:port/db")
    return Target(
        host="localhost" if host.startswith("/") else host,
        port=_number(options, "port", port or 5432),
        database=database,
        user=user,
        password=_password(options.get("password"), unquote(parts.password or "")),
        sslmode=_sslmode(options),
        sslrootcert=options.get("sslrootcert", ""),
        socket_directory=host if host.startswith("/") else "",
        application_name=options.get("application_name", "weir"),
        connect_timeout_s=_number(options, "connect_timeout", 10),
    )


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(options.keys() - _PARAMETERS):
        raise SourceConfigError(
            f"the source URI has the unknown parameter {unknown[0]!r}; known are {', '.join(sorted(_PARAMETERS))}"
        )
    return options


def _number(options: dict[str, str], name: str, default: int) -> int:
    text = options.get(name, "")
    if text and not text.isdigit():
        raise SourceConfigError(f"{name} {text!r} of the source URI is not a number")
    return int(text) if text else default


def _sslmode(options: dict[str, str]) -> str:
    mode = options.get("sslmode", "prefer")
    if mode not in _SSL_MODES:
        raise SourceConfigError(f"sslmode {mode!r} is not known; use one of {', '.join(_SSL_MODES)}")
    return "prefer" if mode == "allow" else mode


def _password(reference: str | None, inline: str) -> str:
    if reference is None:
        return inline
    scheme, separator, rest = reference.partition(":")
    if separator and scheme == "env":
        if rest not in os.environ:
            raise SourceConfigError(f"the source URI takes its password from the variable {rest}, which is not set")
        return os.environ[rest]
    if separator and scheme == "file":
        try:
            return Path(rest).read_text().rstrip("\r\n")
        except OSError as error:
            raise SourceConfigError(f"the password file {rest} cannot be read; check path and permissions") from error
    return reference
