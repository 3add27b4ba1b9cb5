"""Cascades: finds the tables that a server changes through foreign keys without logging it in the binlog.

InnoDB executes ON DELETE CASCADE and similar actions below the log, on MariaDB and on MySQL before 9.6; a replica has
the same foreign keys and repeats them, a sink does not. Newer MySQLs execute them above it, unless set otherwise.
"""

import re
from collections.abc import Sequence
from typing import Final

from agent.errors import StatementRefusedError
from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.sql import qualified

#: a line of SHOW CREATE TABLE, which a user who may SELECT can see, and the catalog's view on MariaDB not
_ACTION: Final = re.compile(
    r"^\s*CONSTRAINT .*\bFOREIGN KEY\b.* ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)\b", re.MULTILINE
)


def logs_cascades(connection: Connection) -> bool:
    """Return whether the server logs row changes by foreign keys."""
    if connection.is_mariadb:
        return False
    rows = connection.query("SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'")
    return bool(rows) and rows[0][1] == "OFF"


def unlogged_cascades(connection: Connection, tables: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return those of ``tables`` whose rows a change of the parent changes without logging. Tables that the server
    cannot open are left out: their rows are refused."""
    if logs_cascades(connection):
        return []
    found = []
    for table in tables:
        try:
            [(_, definition, *_)] = connection.query(f"SHOW CREATE TABLE {qualified(*table)}")
        except StatementRefusedError:
            continue
        if _ACTION.search(str(definition)):
            found.append(table)
    return found
