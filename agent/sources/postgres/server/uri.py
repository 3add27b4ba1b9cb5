"""Source URI of PostgreSQL: ``postgresql://user:pw@host:port/db?sslmode=...``.

Parameters have libpq's names, and several servers are listed as for libpq: ``host:port,host:port``. A password can be
referenced instead of written: ``?password=env:NAME`` or ``?password=file:/path``; references are resolved here, as late
as possible, and never stored resolved. ``str(target)`` is for errors: host, port and database, no user, no secret.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

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
    | {"application_name", "connect_timeout", "target_session_attrs"}
)
_PORT = "5432"
#: each may take a connection's time-out
_HOSTS_MAX = 16
#: a host, in brackets if it has colons, and perhaps a port
_ADDRESS = re.compile(r"(?:\[([^\]]*)\]|([^:\[\]]*))(?::(\d*))?")
_ANY, _PRIMARY = ("any",), ("primary", "read-write")
TLS_NAMES = TlsNames(authority="sslrootcert", certificate="sslcert", key="sslkey")


@dataclass(frozen=True, slots=True)
class Target:
    """Address and user of a connection. ``others``: hosts and ports of other servers that are tried.
    ``wants_primary``: a standby is passed over."""

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
    others: tuple[tuple[str, int], ...] = ()
    wants_primary: bool = False

    def __str__(self) -> str:
        hosts = (place.socket_directory or _shown(place.host) for place in self.places)
        places = (f"{host}:{place.port}" for host, place in zip(hosts, self.places, strict=True))
        return f"postgresql://{','.join(places)}/{self.database}"

    @property
    def places(self) -> tuple[Self, ...]:
        """Each server by itself, in the order in which they are tried."""
        if not self.others:
            return (self,)
        return (replace(self, others=()), *(self._at(host, port) for host, port in self.others))

    def _at(self, host: str, port: int) -> Self:
        address, directory = _address(host)
        return replace(self, host=address, socket_directory=directory, port=port, others=())


def parse_uri(uri: str) -> Target:
    """:raises SourceConfigError: malformed; the text never repeats the URI, since it may hold a password."""
    try:
        parts = urlsplit(uri)
        places = _places(parts)
    except ValueError:
        raise SourceConfigError("the source URI is malformed; write postgresql://user:password@host:port/db") from None
    if parts.scheme not in _SCHEMES:
        raise SourceConfigError(f"{parts.scheme or 'no'} scheme in the source URI; PostgreSQL's is postgresql://")
    uri_options.refuse_unescaped(parts)
    options = _options(parts.query)
    (host, port), *others = _chosen(places, options)
    user = options.get("user") or unquote(parts.username or "")
    database = options.get("dbname") or unquote(parts.path.lstrip("/")) or user
    if not user:
        raise SourceConfigError("the source URI names no user; write postgresql://user:password@host:port/db")
    sslmode, tls = _tls(options)
    address, directory = _address(host)
    return Target(
        host=address,
        socket_directory=directory,
        port=port,
        others=tuple(others),
        wants_primary=_wants_primary(options, has_others=bool(others)),
        database=database,
        user=user,
        password=uri_options.password(options.get("password"), unquote(parts.password or "")),
        sslmode=sslmode,
        tls=tls,
        channel_binding=_one_of(options, "channel_binding", _CHANNEL_BINDINGS, default="prefer"),
        application_name=options.get("application_name", "weir"),
        connect_timeout_s=uri_options.number(options, "connect_timeout", 10, most=uri_options.TIMEOUT_MAX_S),
    )


def _places(parts: SplitResult) -> list[tuple[str, str]]:
    """Return the hosts in front of the path, and their ports.

    :raises ValueError: malformed.
    """
    found = []
    for text in parts.netloc.rpartition("@")[2].split(","):
        if (match := _ADDRESS.fullmatch(text)) is None:
            raise ValueError
        found.append((unquote(match[1] or match[2] or ""), match[3] or ""))
    return found


def _chosen(places: list[tuple[str, str]], options: dict[str, str]) -> list[tuple[str, int]]:
    """Return the servers to try; parameters are in place of what is in front of the path. One port counts for all
    hosts.

    :raises SourceConfigError: hosts and ports do not match, or there are too many.
    """
    hosts = options["host"].split(",") if options.get("host") else [host for host, _ in places]
    if len(hosts) > _HOSTS_MAX:
        raise SourceConfigError(f"the source URI has {len(hosts)} hosts; name {_HOSTS_MAX} at most, or a proxy")
    ports = options["port"].split(",") if options.get("port") else [port for _, port in places]
    ports = ports * len(hosts) if len(ports) == 1 else ports
    if len(ports) != len(hosts):
        raise SourceConfigError(
            f"the source URI has {len(hosts)} hosts and {len(ports)} ports; write one port for all, or one for each"
        )
    return [
        (host or "localhost", uri_options.number({"port": port or _PORT}, "port", 0, most=uri_options.PORT_MAX))
        for host, port in zip(hosts, ports, strict=True)
    ]


def _address(host: str) -> tuple[str, str]:
    """Return host name and socket directory. As in libpq, a host that is a path is the directory of a Unix socket."""
    return ("localhost", host) if host.startswith("/") else (host, "")


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _wants_primary(options: dict[str, str], *, has_others: bool) -> bool:
    """Return whether standbys are skipped. That is the default with several hosts: only a primary can be read."""
    default = _PRIMARY[0] if has_others else _ANY[0]
    return _one_of(options, "target_session_attrs", (*_ANY, *_PRIMARY), default=default) in _PRIMARY


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
