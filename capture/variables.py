"""Variables: which ``WEIR_…`` environment variables have a meaning, and what a misspelt one was meant to be.

A server refuses each variable that has none. A client refuses one that resembles its own, because it would send its
request to another server, or without the token; others may be meant for a program beside it, so it reports them.
"""

import difflib
import os
import re
from collections.abc import Iterable
from typing import Final

PREFIX: Final = "WEIR_"
#: read by every client of the HTTP API
CLIENT: Final = frozenset({"WEIR_SERVER", "WEIR_TOKEN", "WEIR_TOKEN_FILE", "WEIR_CA_FILE"})
#: are not settings of a server
_OTHERS: Final = CLIENT | {"WEIR_DEBUG", "WEIR_FAILPOINTS", "WEIR_HOST_CACHE", "WEIR_HOST_CACHE_GIB"}
#: secrets of changefeeds, those of tests, and variables that Kubernetes sets for a service called weir
_FOREIGN: Final = re.compile(r"WEIR_(SECRET_|TEST_|SAMPLE$|MYSQL$|PORT(_|$)|([A-Z0-9_]+_)?SERVICE_(HOST|PORT))")
#: least similarity of a misspelt name
_SIMILAR: Final = 0.8


def variable(setting: str) -> str:
    return f"{PREFIX}{setting.upper()}"


def unknown(settings: Iterable[str] = ()) -> list[str]:
    """Return the variables of this process without a meaning, in order; ``settings``: names of a server's settings."""
    known = {*map(variable, settings), *_OTHERS}
    names = (name for name in sorted(os.environ) if name.startswith(PREFIX))
    return [name for name in names if name not in known and not _FOREIGN.match(name)]


def meant(name: str, settings: Iterable[str] = ()) -> str:
    """Return the most similar variable that has a meaning; empty: none is similar."""
    near = difflib.get_close_matches(name, sorted({*map(variable, settings), *_OTHERS}), n=1, cutoff=_SIMILAR)
    return near[0] if near else ""
