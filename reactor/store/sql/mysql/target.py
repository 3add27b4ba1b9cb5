"""Target: where a store in MariaDB or MySQL is, by its URL.

``mysql://user:password@host[:port][,host[:port]…]/database?ssl-mode=…&ssl-ca=…&ssl-cert=…&ssl-key=…&password=…``, or
``mariadb://…``. The names and values of TLS options are those of the servers' own programs. Of several hosts the first
that answers and can be written to is used.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from reactor.errors import StoreError
from reactor.tls import load_pair

SCHEMES = {"mysql": "MySQL", "mariadb": "MariaDB"}
MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")
_PARAMETERS = ("ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "password")
_PORT = 3306
_PORT_MAX = 65535
_FORM = "write mysql://user@host:port/database?password=env:NAME"


@dataclass(frozen=True, slots=True)
class Target:
    """``tls``: the context for each connection; None: as ``mode`` says, without verification."""

    name: str
    hosts: tuple[tuple[str, int], ...]
    database: str
    user: str
    password: str = field(default="", repr=False)
    mode: str = "preferred"
    tls: ssl.SSLContext | None = field(default=None, repr=False)


def parse(url: str) -> Target:
    """:raises StoreError: the URL is malformed, or a file that it names cannot be read; the text has no secrets."""
    try:
        parts = urlsplit(url)
        hosts = tuple(_host(each) for each in parts.netloc.rpartition("@")[2].split(","))
    except ValueError:
        raise StoreError(f"the store's URL is malformed; {_FORM}") from None
    options = _options(parts)
    user, database = unquote(parts.username or ""), unquote(parts.path.strip("/"))
    if not user or not database or "/" in database:
        raise StoreError(f"the store's URL needs a user and one database; {_FORM}")
    mode = options.get("ssl-mode", "preferred").lower().replace("-", "_")
    if mode not in MODES:
        raise StoreError(f"ssl-mode={mode} of the store's URL is not known; use one of {', '.join(MODES)}")
    places = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts)
    return Target(
        f"{SCHEMES[parts.scheme]} at {places}/{database}",
        hosts,
        database,
        user,
        options.get("password", unquote(parts.password or "")),
        mode,
        _context(mode, options),
    )


def _host(text: str) -> tuple[str, int]:
    """:raises ValueError: it is no host with an optional port."""
    host, colon, port = text, "", ""
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        colon, port = rest[:1], rest[1:]
    elif ":" in text:
        host, colon, port = text.partition(":")
    if not host or colon not in ("", ":") or (colon and not 0 < int(port) <= _PORT_MAX):
        raise ValueError
    return unquote(host), int(port) if colon else _PORT


def _options(parts: SplitResult) -> dict[str, str]:
    """``ssl_mode`` and ``ssl-mode`` are the same option, as in the servers' own programs."""
    found = {name.replace("_", "-"): value for name, value in parse_qsl(parts.query, keep_blank_values=True)}
    if unknown := sorted(found.keys() - set(_PARAMETERS)):
        raise StoreError(f"the store's URL has no parameter {unknown[0]}; it takes {', '.join(_PARAMETERS)}")
    return found


def _context(mode: str, options: Mapping[str, str]) -> ssl.SSLContext | None:
    authority, certificate, key = (options.get(f"ssl-{name}", "") for name in ("ca", "cert", "key"))
    if (authority or certificate or key) and mode in ("disabled", "preferred"):
        raise StoreError(f"ssl-mode={mode} of the store's URL uses no certificates; use ssl-mode=verify_identity")
    if key and not certificate:
        raise StoreError("ssl-key of the store's URL needs its certificate; give ssl-cert")
    if mode in ("disabled", "preferred"):
        return None
    is_verified = mode.startswith("verify") or bool(authority)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = mode == "verify_identity"
    context.verify_mode = ssl.CERT_REQUIRED if is_verified else ssl.CERT_NONE
    try:
        if authority:
            context.load_verify_locations(authority)
        elif is_verified:
            context.load_default_certs()
    except OSError as error:
        raise StoreError(f"ssl-ca={authority} of the store's URL cannot be read ({error}); name a PEM file") from None
    try:
        if certificate:
            load_pair(context, certificate, key or None)
    except OSError as error:
        raise StoreError(
            f"ssl-cert={certificate} of the store's URL cannot be used ({error}); name PEM files"
        ) from None
    return context
