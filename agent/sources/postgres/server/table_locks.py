"""Table locks: names the table whose lock is not free, and who has it."""

from collections.abc import Collection
from typing import Final

from agent.errors import SourceError, TableLockedError
from agent.sources.postgres.server.connection import catalog_session
from agent.sources.postgres.server.processes import described
from agent.sources.postgres.server.sql import literal
from agent.sources.postgres.server.uri import Target

#: how long a statement of ours waits for a table's lock
LOCK_WAIT_MS: Final = 10_000
#: modes that conflict with reading a table, and with publishing it ("Explicit Locking" in PostgreSQL's documentation)
READING: Final = ("AccessExclusiveLock",)
PUBLISHING: Final = (
    "ShareUpdateExclusiveLock",
    "ShareLock",
    "ShareRowExclusiveLock",
    "ExclusiveLock",
    "AccessExclusiveLock",
)
#: those who have a lock, then those who wait for one, and let others wait behind them
_HOLDERS_SQL: Final = (
    "SELECT n.nspname, c.relname, l.pid::int8, a.usename, a.application_name FROM pg_catalog.pg_locks l "
    "JOIN pg_catalog.pg_class c ON c.oid = l.relation JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid WHERE l.locktype = 'relation' AND l.mode IN ({modes}) "
    "AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) "
    "ORDER BY NOT l.granted, l.pid"
)


def named(
    error: TableLockedError, target: Target, tables: Collection[tuple[str, str]], modes: Collection[str]
) -> TableLockedError:
    """Return the error with the first of ``tables`` (schema and name) that somebody has locked in one of ``modes``; as
    it is, if there is none any more."""
    try:
        with catalog_session(target) as session:
            rows = session.query(_HOLDERS_SQL.format(modes=", ".join(map(literal, modes))))
    except SourceError:
        return error
    for schema, table, pid, user, application in rows:
        if (schema, table) in tables:
            is_prepared = pid is None
            holder = "a prepared transaction" if is_prepared else described(pid, user=user, application=application)
            found = TableLockedError(
                f"table {schema}.{table} of {target} is locked by {holder}, as a statement changes it or waits to; "
                "it is retried automatically"
            )
            found.table = str(schema), str(table)
            return found
    return error
