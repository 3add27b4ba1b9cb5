"""Slot creation: waits for the transactions that are open, and names them.

A logical slot begins at a position from which on the server can decode every transaction, so each one that has changed
anything has to end first. See "Logical Decoding Concepts" in PostgreSQL's documentation.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Final

from agent.errors import OpenTransactionsError, SourceError, SourceUnreachableError
from agent.pacing import ReadingStopped
from agent.ports.snapshot import Wait
from agent.sources.postgres.server.connection import Connection, Row, catalog_session
from agent.sources.postgres.server.processes import described
from agent.sources.postgres.server.sql import identifier
from agent.sources.postgres.server.uri import Target

#: standbys can copy slots
FAILOVER_VERSION: Final = 17
#: options of slots in parentheses
_OPTIONS_VERSION: Final = 15
_CREATE_TIMEOUT_S: Final = 600.0
#: how soon a creation ends that is not wanted any more
_STOP_S: Final = 0.25
#: how often it is looked up what a creation waits for
_LOOK_S: Final = 2.0
_TERMINATE_MS: Final = 1_000
#: who has the transaction whose end a process waits for
_AWAITED_SQL: Final = (
    "SELECT h.pid::int8, a.usename, a.application_name, a.datname, to_char(a.xact_start AT TIME ZONE 'UTC', "
    "'YYYY-MM-DD HH24:MI:SS'), p.gid FROM pg_catalog.pg_locks w LEFT JOIN pg_catalog.pg_locks h ON h.granted "
    "AND h.locktype = 'transactionid' AND h.transactionid = w.transactionid LEFT JOIN pg_catalog.pg_stat_activity a "
    "ON a.pid = h.pid LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = w.transactionid "
    "WHERE w.pid = {pid} AND w.locktype = 'transactionid' AND NOT w.granted"
)


def command(slot: str, server_version: int, *, exports: bool, is_temporary: bool = False) -> str:
    """Return the command that creates a slot on a server of this major version. ``exports``: with a snapshot. A slot
    that lasts is copied by standbys, where the server knows that."""
    snapshot, temporary = "export" if exports else "nothing", " TEMPORARY" if is_temporary else ""
    if server_version < _OPTIONS_VERSION:
        options = "EXPORT_SNAPSHOT" if exports else "NOEXPORT_SNAPSHOT"
    elif server_version < FAILOVER_VERSION or is_temporary:
        options = f"(SNAPSHOT '{snapshot}')"
    else:
        options = f"(SNAPSHOT '{snapshot}', FAILOVER)"
    return f"CREATE_REPLICATION_SLOT {identifier(slot)}{temporary} LOGICAL pgoutput {options}"


def create(connection: Connection, command: str, wait: Wait) -> list[Row]:
    """Run the command that creates a slot. Where it is given up, its process at the server is ended: that does not
    notice that its client has left, and would create the slot later.

    :raises SourceError: the source refused it.
    :raises OpenTransactionsError: a transaction did not end in time.
    :raises ReadingStopped: the wait was ended.
    """
    [[pid]] = connection.query("SELECT pg_catalog.pg_backend_pid()::int8")
    awaited, look_at = "", time.monotonic() + _LOOK_S
    with ThreadPoolExecutor(1, thread_name_prefix="weir-slot") as pool:
        creating = pool.submit(connection.query, command, timeout_s=_CREATE_TIMEOUT_S)
        try:
            while not wait_for([creating], timeout=_STOP_S).done:
                if wait.stopped.is_set():
                    raise ReadingStopped
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + _LOOK_S
                    if awaited := _awaited(connection.target, int(pid or 0)):
                        wait.report(awaited)
            return creating.result()
        except BaseException as error:
            is_late = isinstance(error, SourceUnreachableError)
            if is_late or not creating.done():
                _terminate(connection, int(pid or 0))
            if is_late and awaited:
                raise OpenTransactionsError(awaited) from error
            raise


def _awaited(target: Target, pid: int) -> str:
    """Return what the process waits for, with the cure; empty if it is no transaction, or the source does not say."""
    try:
        with catalog_session(target) as session:
            rows = session.query(_AWAITED_SQL.format(pid=pid))
    except SourceError:
        return ""
    if not rows:
        return ""
    holder, user, application, database, since, prepared = rows[0]
    wanted = f"reading {target} begins when all transactions have ended that were open before it"
    if prepared is not None:
        cure = "commit it (COMMIT PREPARED) or roll it back (ROLLBACK PREPARED)"
        return f"{wanted}, and {prepared!r} is prepared; {cure}"
    process = described(holder, user=user, application=application, database=database)
    is_open = f"{process} has one open{f' since {since} UTC' if since else ''}"
    return f"{wanted}, and {is_open}; let it end, or end it: SELECT pg_terminate_backend({holder})"


def _terminate(connection: Connection, pid: int) -> None:
    try:
        with catalog_session(connection.target) as session:
            session.query(f"SELECT pg_catalog.pg_terminate_backend({pid}, {_TERMINATE_MS})")
    except SourceError:
        pass
    finally:
        connection.abort()
