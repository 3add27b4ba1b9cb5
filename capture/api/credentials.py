"""Credentials: where a client of the HTTP API finds its token and trusted certificates by default.

A server of this user on this machine is found by its address, with its own token; otherwise ``WEIR_TOKEN`` and
``WEIR_CA_FILE`` are used. A variable that resembles one of a client's is refused.
"""

import os
import re
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from capture import variables
from capture.address import is_loopback
from capture.errors import ConfigError
from capture.security import own_token

#: what a header may have
_SENDABLE = re.compile(r"[!-~]*")


@dataclass(frozen=True, slots=True)
class Credentials:
    url: str
    token: str = field(repr=False)
    ca_file: str


def credentials(server: str, *, token: str | None = None, ca_file: str = "") -> Credentials:
    """``token`` None and ``ca_file`` empty: not given.

    :raises ConfigError: a client's variable is misspelt, or the token cannot be one.
    """
    unknown_variables()
    given = token if token is not None else os.environ.get("WEIR_TOKEN", "").strip()
    if not _SENDABLE.fullmatch(given):  # the client's own error would show it
        raise ConfigError("the token has a character that no token has; take the line that `weir token create` printed")
    trusted = ca_file or os.environ.get("WEIR_CA_FILE", "")
    local = own_token.find(server) if token is None and not given else None
    if local is None:
        return Credentials(server, given, trusted)
    return Credentials(local.url, local.token, trusted or local.ca_file)


def unprotected(server: str, *, token: str | None = None) -> str:
    """Return a warning if requests to ``server`` would carry a token over a network without TLS; else empty.

    :raises ConfigError: a client's variable is misspelt.
    """
    known = credentials(server, token=token)
    url = known.url if "://" in known.url else f"http://{known.url}"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:  # the request says what is wrong with it
        return ""
    is_here = is_loopback(host) or own_token.find(server) is not None
    if not known.token or parts.scheme != "http" or is_here:
        return ""
    return (
        f"the token goes unencrypted to http://{host}, and whoever reads that network can use it; give the servers "
        "certificates (docs/security.md), and use https://"
    )


def unknown_variables() -> list[str]:
    """Return the ``WEIR_…`` variables of this process that neither a client nor a server reads.

    :raises ConfigError: one of them resembles a client's: without it the request would go to another server, or have
        no token.
    """
    if not variables.unknown():
        return []
    from capture.config import ServerSettings  # takes long: only where a server's settings are given in variables

    names = variables.unknown(ServerSettings.model_fields)
    for name in names:
        if (meant := variables.meant(name, ServerSettings.model_fields)) in variables.CLIENT:
            raise ConfigError(f"unknown variable {name}; did you mean {meant}?")
    return names


def verification(url: str, ca_file: str) -> ssl.SSLContext | bool:
    """Return how a server's certificate is verified. Without TLS there is nothing to verify, and building a context
    costs more than a request.

    :raises ConfigError: the file holds no certificates.
    """
    if not url.startswith("https://"):
        return False
    context = ssl.create_default_context()
    try:
        if ca_file:
            context.load_verify_locations(ca_file)
    except OSError as error:
        raise ConfigError(f"cannot use the authority's file {ca_file} ({error}); give another --ca-file") from None
    return context
