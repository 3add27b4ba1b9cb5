"""Credentials: where a client of the HTTP API finds its token and trusted certificates by default.

A server of this user on this machine is found by its address, with its own token; otherwise ``WEIR_TOKEN`` and
``WEIR_CA_FILE`` are used.
"""

import os
from dataclasses import dataclass

from capture.security import own_token


@dataclass(frozen=True, slots=True)
class Credentials:
    url: str
    token: str
    ca_file: str


def credentials(server: str, *, token: str | None = None, ca_file: str = "") -> Credentials:
    """``token`` None and ``ca_file`` empty: not given."""
    given = token if token is not None else os.environ.get("WEIR_TOKEN", "").strip()
    trusted = ca_file or os.environ.get("WEIR_CA_FILE", "")
    local = own_token.find(server) if token is None and not given else None
    if local is None:
        return Credentials(server, given, trusted)
    return Credentials(local.url, local.token, trusted or local.ca_file)
