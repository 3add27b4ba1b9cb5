"""XA RECOVER: asks a server which transactions it holds prepared now, by the names that its binlog gives them.

A server that falls may forget one that is in its binlog. Nobody will ever decide it, and the binlog would have to be
kept for it for good; so a stream that begins asks which of those that it knows are still there.
"""

import re
from collections.abc import Iterable
from typing import Final

from agent.errors import SourceAuthError
from agent.sources.mysql.binlog.prepared import Entry, digest
from agent.sources.mysql.server.connection import Connection

#: MariaDB's FORMAT='SQL': a part in hex, or as text where that is plain
_PART: Final = re.compile(r"X'([0-9a-f]*)'|'([^']*)'", re.IGNORECASE)


def forgotten(connection: Connection, entries: Iterable[Entry]) -> frozenset[str]:
    """Those of ``entries`` that the server does not hold: they are decided by now, or never will be. Empty where it
    does not say."""
    known = frozenset(name for name, _ in entries)
    held = held_names(connection) if known else None
    return frozenset() if held is None else known - {digest(name) for name in held}


def held_names(connection: Connection) -> frozenset[str] | None:
    """The names that the server holds prepared; None where it does not say (MySQL without XA_RECOVER_ADMIN)."""
    try:
        rows = connection.query("XA RECOVER FORMAT = 'SQL'" if connection.is_mariadb else "XA RECOVER CONVERT XID")
    except SourceAuthError:
        return None
    return frozenset(xid_name(int(form or 0), int(first or 0), data or "") for form, first, _, data in rows)


def xid_name(form: int, first_bytes: int, data: str) -> str:
    """``data``: both parts as one number in hex (MySQL), or each as SQL has it (MariaDB)."""
    if data.startswith("0x"):
        parts = [data[2 : 2 + 2 * first_bytes], data[2 + 2 * first_bytes :]]
    else:
        parts = [found[1] or (found[2] or "").encode().hex() for found in _PART.finditer(data)]
    first, second = (*parts, "")[:2]
    return f"X'{first}',X'{second}',{form}".upper()
