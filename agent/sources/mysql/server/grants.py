"""Grants: checks the user's privileges by trying statements, since roles make grants hard to interpret.

MariaDB and MySQL have different names for some privileges; both accept the statements used here.
"""

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog

from agent.errors import SourceAuthError, StatementRefusedError, TableLockedError
from agent.sources.mysql.server.computed import is_there
from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.sql import literal, qualified

_COM_REGISTER_SLAVE: Final = 0x15
#: id of no existing prepared statement: it ends with the session
_PROBE_ID: Final = 0xFFFFFFFE

_log = structlog.get_logger()


def account_of(connection: Connection) -> str:
    """Return the account that the server authenticated, in the form that GRANT takes."""
    [(account,)] = connection.query("SELECT CURRENT_USER()")
    user, _, host = str(account).rpartition("@")
    return f"'{user}'@'{host}'"


def check_may_monitor(connection: Connection) -> None:
    """Check that the user may query the binlog's position.

    :raises SourceAuthError: it may not.
    """
    _try(
        connection,
        partial(connection.query, "SHOW BINARY LOGS"),
        "may not see the binlog's position",
        "REPLICATION CLIENT ON *.*",
    )


def check_may_replicate(connection: Connection) -> None:
    """Check that the user may read the binlog.

    :raises SourceAuthError: it may not.
    """
    _try(
        connection,
        partial(connection.command, _COM_REGISTER_SLAVE, struct.pack("<IBBBHII", _PROBE_ID, 0, 0, 0, 0, 0, 0)),
        "may not read the binlog",
        "REPLICATION SLAVE ON *.*",
    )


def check_may_read(connection: Connection, tables: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Check that the user may read the tables. Return those that the server cannot open, and what it answers. A table
    that is locked is none of them: whoever reads its rows waits for that. Nor is one that is gone.

    :raises SourceAuthError: it may not read a table, or not all of its columns.
    """
    refused = {}
    for table in tables:
        name = qualified(*table)
        read = partial(connection.query, f"SELECT * FROM {name} LIMIT 0")
        try:
            _try(connection, read, f"may not read all of {name}", f"SELECT ON {name}")
        except TableLockedError:
            _log.info("a table is locked, so it was not tried whether it can be read", table=".".join(table))
        except StatementRefusedError as error:
            if is_there(connection, *table):
                refused[table] = str(error)
    return refused


def check_may_lock(connection: Connection, tables: Sequence[tuple[str, str]]) -> None:
    """Check the lock privileges that MySQL needs to find a snapshot's binlog position (see ``consistency``).

    :raises SourceAuthError: the user may lock neither the server nor the tables.
    """
    [(roles,)] = connection.query("SELECT CURRENT_ROLE()") if connection.server_version >= (8, 0) else [("NONE",)]
    if roles not in ("NONE", None, ""):
        return  # privileges granted by roles are not listed below
    # a user who may read the schema mysql sees the privileges of others too
    ours = f"WHERE grantee = {literal(account_of(connection))}"
    rows = connection.query(f"SELECT privilege_type FROM information_schema.user_privileges {ours}")
    if {row[0] for row in rows} & {"RELOAD", "FLUSH_TABLES", "LOCK TABLES"}:
        return
    granted = f"SELECT 1 FROM information_schema.schema_privileges {ours} AND privilege_type = 'LOCK TABLES'"
    # the schema name of a grant is a pattern
    if not all(connection.query(f"{granted} AND {literal(name)} LIKE table_schema") for name in {t[0] for t in tables}):
        raise no_lock(connection)


def no_lock(connection: Connection) -> SourceAuthError:
    account = account_of(connection)
    return SourceAuthError(
        f"{account} may not hold up commits on {connection.target} for the moment in which its tables are opened; "
        f"run: GRANT RELOAD ON *.* TO {account}, or grant LOCK TABLES on the databases that are replicated"
    )


def _try(connection: Connection, attempt: Callable[[], object], trouble: str, privilege: str) -> None:
    try:
        attempt()
    except SourceAuthError as error:
        account = account_of(connection)
        raise SourceAuthError(
            f"{account} {trouble} on {connection.target}; run: GRANT {privilege} TO {account}"
        ) from error
