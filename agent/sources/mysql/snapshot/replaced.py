"""Replaced tables: snapshots do not protect from statements that give a table's name to another one (RENAME TABLE), or
drop a partition.

InnoDB itself refuses a table that it has rewritten since (error 1412). ``EXCHANGE PARTITION`` leaves no trace for users
without PROCESS; the table is copied when the binlog reports it.
"""

from collections.abc import Collection
from contextlib import closing

from agent.errors import TableAlteredError
from agent.sources.mysql.position.consistency import Table
from agent.sources.mysql.server.connection import Connection, connect
from agent.sources.mysql.server.sql import literal, qualified
from agent.sources.mysql.server.uri import Target

#: when a table, or each of its partitions, was created or last rebuilt, with their names
State = tuple[tuple[str, ...], ...]


def states_of(target: Target, tables: Collection[Table]) -> dict[Table, State]:
    """Return the present state of these tables. It is read in a session of its own, since MySQL shows a transaction the
    state as of its snapshot."""
    if not tables:
        return {}
    schemas = ", ".join(literal(name) for name in sorted({schema for schema, _ in tables}))
    names = ", ".join(literal(name) for name in sorted({name for _, name in tables}))
    with closing(connect(target)) as connection:
        rows = connection.query(
            "SELECT table_schema, table_name, create_time, partition_name, subpartition_name "
            f"FROM information_schema.partitions WHERE table_schema IN ({schemas}) AND table_name IN ({names}) "
            "ORDER BY table_schema, table_name, partition_ordinal_position, subpartition_ordinal_position"
        )
    found: dict[Table, list[tuple[str, ...]]] = {}
    for schema, name, *part in rows:
        found.setdefault((str(schema), str(name)), []).append(tuple(map(str, part)))
    return {table: tuple(found[table]) for table in tables if table in found}


def hold(connection: Connection, table: Table, before: State | None) -> None:
    """Keep a table as it is until the connection's transaction ends.

    :raises TableAlteredError: it is not the one of ``before``.
    """
    connection.query(f"SELECT 1 FROM {qualified(*table)} LIMIT 0")
    if states_of(connection.target, [table]).get(table) != before:
        raise TableAlteredError(
            f"table {'.'.join(table)} was altered under the snapshot that is to read it, or another one took its name; "
            "try again"
        )
