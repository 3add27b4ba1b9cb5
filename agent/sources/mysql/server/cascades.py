"""Cascades: find the tables that a server changes through foreign keys without an event in its binlog.

InnoDB carries out ON DELETE CASCADE and its like below the log, on MariaDB and on MySQL before 9.6; a replica has the
same foreign keys and does the same, and a sink has not. Newer MySQLs carry them out above it, unless set otherwise.
"""

import re
from collections.abc import Sequence
from typing import Final

from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.sql import qualified

#: a line of SHOW CREATE TABLE, which a user who may SELECT can see, and the catalog's view on MariaDB not
_ACTION: Final = re.compile(
    r"^\s*CONSTRAINT .*\bFOREIGN KEY\b.* ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)\b", re.MULTILINE
)


def logs_cascades(connection: Connection) -> bool:
    """Whether the server logs what foreign keys do to rows."""
    if connection.is_mariadb:
        return False
    rows = connection.query("SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'")
    return bool(rows) and rows[0][1] == "OFF"


def unlogged_cascades(connection: Connection, tables: Sequence[tuple[str, str]]) -> list[str]:
    """Those of ``tables`` whose rows change with their parents' and not in the binlog."""
    if logs_cascades(connection):
        return []
    found = []
    for table in tables:
        [(_, definition, *_)] = connection.query(f"SHOW CREATE TABLE {qualified(*table)}")
        if _ACTION.search(str(definition)):
            found.append(".".join(table))
    return found
