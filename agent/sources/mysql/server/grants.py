"""Grants: find out by trying what our user may do at the server, since roles make grants hard to read.

MariaDB and MySQL call some privileges by different names; both take the statements that are named here.
"""

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from agent.errors import SourceAuthError
from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.sql import literal, qualified

_COM_REGISTER_SLAVE: Final = 0x15
#: nobody's: it is forgotten with the session
_PROBE_ID: Final = 0xFFFFFFFE


def account_of(connection: Connection) -> str:
    """The account that the server took us for, as GRANT wants it."""
    [(account,)] = connection.query("SELECT CURRENT_USER()")
    user, _, host = str(account).rpartition("@")
    return f"'{user}'@'{host}'"


def check_may_monitor(connection: Connection) -> None:
    """:raises SourceAuthError: it may not ask where the binlog is."""
    _try(
        connection,
        partial(connection.query, "SHOW BINARY LOGS"),
        "may not see the binlog's position",
        "REPLICATION CLIENT ON *.*",
    )


def check_may_replicate(connection: Connection) -> None:
    """:raises SourceAuthError: it gets no binlog."""
    _try(
        connection,
        partial(connection.command, _COM_REGISTER_SLAVE, struct.pack("<IBBBHII", _PROBE_ID, 0, 0, 0, 0, 0, 0)),
        "may not read the binlog",
        "REPLICATION SLAVE ON *.*",
    )


def check_may_read(connection: Connection, tables: Sequence[tuple[str, str]]) -> None:
    """:raises SourceAuthError: it may not read a table, or not all of its columns."""
    for table in tables:
        name = qualified(*table)
        read = partial(connection.query, f"SELECT * FROM {name} LIMIT 0")
        _try(connection, read, f"may not read all of {name}", f"SELECT ON {name}")


def check_may_lock(connection: Connection, tables: Sequence[tuple[str, str]]) -> None:
    """MySQL: without a lock nobody knows where in the binlog a snapshot is (see ``consistency``).

    :raises SourceAuthError: it may lock neither the server nor the tables.
    """
    [(roles,)] = connection.query("SELECT CURRENT_ROLE()") if connection.server_version >= (8, 0) else [("NONE",)]
    if roles not in ("NONE", None, ""):
        return  # what roles grant is not listed below
    # who may read the schema mysql sees the privileges of others too
    ours = f"WHERE grantee = {literal(account_of(connection))}"
    rows = connection.query(f"SELECT privilege_type FROM information_schema.user_privileges {ours}")
    if {row[0] for row in rows} & {"RELOAD", "FLUSH_TABLES", "LOCK TABLES"}:
        return
    granted = f"SELECT 1 FROM information_schema.schema_privileges {ours} AND privilege_type = 'LOCK TABLES'"
    # of a grant the schema's name is a pattern
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
