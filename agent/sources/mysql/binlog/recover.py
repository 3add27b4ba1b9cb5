"""XA RECOVER: asks a server which transactions it holds prepared, and returns their names as in its binlog.

A server may lose a prepared transaction in a crash, though it is in the binlog. It would never be decided, and the
binlog would have to be kept forever; so a starting stream asks which of the transactions in its list still exist.
"""

import re
from collections.abc import Iterable
from typing import Final

from agent.errors import SourceAuthError
from agent.sources.mysql.binlog.prepared import Entry, digest
from agent.sources.mysql.server.connection import Connection

#: MariaDB's FORMAT='SQL': parts in hex, or as text if they are printable
_PART: Final = re.compile(r"X'([0-9a-f]*)'|'([^']*)'", re.IGNORECASE)


def forgotten(connection: Connection, entries: Iterable[Entry]) -> frozenset[str]:
    """Return those of ``entries`` that the server does not hold: they are decided, or never will be. Empty if the
    server does not say."""
    known = frozenset(name for name, _ in entries)
    held = held_names(connection) if known else None
    return frozenset() if held is None else known - {digest(name) for name in held}


def held_names(connection: Connection) -> frozenset[str] | None:
    """Return the names that the server holds prepared; None if it does not say (MySQL without XA_RECOVER_ADMIN)."""
    try:
        rows = connection.query("XA RECOVER FORMAT = 'SQL'" if connection.is_mariadb else "XA RECOVER CONVERT XID")
    except SourceAuthError:
        return None
    return frozenset(xid_name(int(form or 0), int(first or 0), data or "") for form, first, _, data in rows)


def xid_name(form: int, first_bytes: int, data: str) -> str:
    """Return the name. ``data``: both parts as one hex number (MySQL), or each as SQL literal (MariaDB)."""
    if data.startswith("0x"):
        parts = [data[2 : 2 + 2 * first_bytes], data[2 + 2 * first_bytes :]]
    else:
        parts = [found[1] or (found[2] or "").encode().hex() for found in _PART.finditer(data)]
    first, second = (*parts, "")[:2]
    return f"X'{first}',X'{second}',{form}".upper()
