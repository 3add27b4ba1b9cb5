"""HTTP transport of the API's client: whom it trusts, and how it notices that a server's machine is gone."""

import socket
import ssl
from collections.abc import Iterator

import httpx

from capture.errors import ConfigError

#: seconds until an idle connection is tested, between two tests, and how many may be lost
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}


def transport(url: str, *, ca_file: str = "") -> httpx.HTTPTransport:
    """Return a transport for ``url``. A comparison or a copy may be answered after hours, so there is no time limit;
    but a machine that has lost power, or a network that drops packets, never says that the answer will not come.

    :raises ConfigError: the file holds no certificates.
    """
    return httpx.HTTPTransport(verify=_verification(url, ca_file), trust_env=False, socket_options=[*_options()])


def _options() -> Iterator[tuple[int, int, int]]:
    yield socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # not on every system
            yield socket.IPPROTO_TCP, getattr(socket, name), value


def _verification(url: str, ca_file: str) -> ssl.SSLContext | bool:
    """Without TLS there is nothing to verify, and building a context costs more than a request."""
    if not url.startswith("https://"):
        return False
    context = ssl.create_default_context()
    try:
        if ca_file:
            context.load_verify_locations(ca_file)
    except OSError as error:
        raise ConfigError(f"cannot use the authority's file {ca_file} ({error}); give another --ca-file") from None
    return context
