"""Consistent points: finds the moment at which rows are read, and its place in the binlog.

The requirement depends on how the rows are used (``dump``):

- *A lower bound*, ``settled_place``: every change before it is visible to every snapshot that is opened later. Replay
  may start there.
- *An upper bound*, ``current_place``: everything readable so far was committed before it.
- *The exact moment*, ``open_readers``: several sessions that see the same state, namely that of their place: all
  changes before it, and none after. ``diff`` needs this too, with one session.

The end of the binlog is only an upper bound: a transaction is first written to the binlog, then made visible by its
engine, and in between the server may wait for a replica. Using the end of the binlog as a lower bound would lose such a
transaction: it is before the place, so it is not replayed, and a snapshot opened now does not show it.

MariaDB knows the exact place: a transaction begun WITH CONSISTENT SNAPSHOT has status variables with the place that it
sees, without locks or privileges. Two sessions opened one after another see different states if a commit happens
between them; so they are reopened until they agree, and on a busy server under ``BACKUP STAGE BLOCK_COMMIT``, which
only delays commits, for as long as opening takes. Without the privilege for it (RELOAD) there is one reader.

MySQL only has locks: ``FLUSH TABLES WITH READ LOCK`` (RELOAD), or ``LOCK TABLES … READ`` over the tables concerned if
that is not granted (LOCK TABLES). Both wait for all transactions that have changed the tables, also between binlog and
engine; so under a lock, everything that the binlog has about the tables is visible. The wait for a lock is limited to
``LOCK_WAIT_S``, because other sessions queue behind it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import structlog

from agent.errors import (
    SourceAuthError,
    SourceConfigError,
    SourceUnreachableError,
    StatementRefusedError,
    TableLockedError,
)
from agent.sources.mysql.position.event_list import list_events
from agent.sources.mysql.position.gtid import MysqlGtidSet
from agent.sources.mysql.position.positions import BinlogPosition, pack, split_file_name
from agent.sources.mysql.server.computed import is_there
from agent.sources.mysql.server.connection import Connection, connect
from agent.sources.mysql.server.grants import no_lock
from agent.sources.mysql.server.sql import literal, qualified
from agent.sources.mysql.server.uri import Target
from reactor.ids import Ts

LOCK_WAIT_S: Final = 10
#: number of attempts to open the sessions without a commit in between
_OPENINGS: Final = 10
_BACKUP_STAGES_SINCE: Final = (10, 4)
_RENAMED_STATUS_SINCE: Final = (8, 2)
#: as shown in events: SET @@SESSION.GTID_NEXT= 'uuid:7'
_GTID_NEXT: Final = re.compile(r"^SET\b.*'(.*)'.*$", re.DOTALL)

#: A snapshot is read to its end, and its reader may wait for the sink; each server has its own of these settings.
#: A statement that waits to alter a table makes all later readers of it wait, while an earlier one keeps it waiting.
_YIELD_S: Final = 3
_PATIENCE_SQL: Final = (
    "SET SESSION net_write_timeout = 3600, wait_timeout = 86400, innodb_lock_wait_timeout = 50, "
    f"lock_wait_timeout = {_YIELD_S}"
)
_PATIENCE_MARIADB_SQL: Final = "SET SESSION max_statement_time = 0, idle_transaction_timeout = 0"
_PATIENCE_MARIADB_READ_SQL: Final = "SET SESSION idle_readonly_transaction_timeout = 0"
_PATIENCE_MYSQL_SQL: Final = "SET SESSION max_execution_time = 0"
#: current sizes of tables, not cached ones
_FRESH_STATISTICS_SQL: Final = "SET SESSION information_schema_stats_expiry = 0"
_FRESH_STATISTICS_SINCE: Final = (8, 0)

_log = structlog.get_logger()

#: schema and name
Table = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the server's binlog between two transactions, and the GTIDs before it if the server reported them."""

    binlog: BinlogPosition
    gtid: str = ""

    def ts(self, epoch: int) -> Ts:
        """The Ts of the last commit before this place: exactly those at or below it are before the place."""
        return Ts(pack(epoch, split_file_name(self.binlog.file)[1], self.binlog.position) - 1)


def open_reader(target: Target) -> Connection:
    """Open a session with long timeouts.

    :raises SourceError: the server refuses.
    """
    connection = connect(target)
    try:
        connection.execute(_PATIENCE_SQL)
        if connection.is_mariadb:
            connection.execute(_PATIENCE_MARIADB_SQL)
            connection.execute(_PATIENCE_MARIADB_READ_SQL)
        else:
            connection.execute(_PATIENCE_MYSQL_SQL)
            if connection.server_version >= _FRESH_STATISTICS_SINCE:
                connection.execute(_FRESH_STATISTICS_SQL)
    except BaseException:
        connection.close()
        raise
    return connection


def begin_snapshot(connection: Connection) -> None:
    """Begin a transaction that sees one state of all transactional tables."""
    connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    connection.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")


def hold_definitions(connection: Connection, tables: Sequence[Table]) -> list[Table]:
    """Prevent the tables from being altered, truncated, renamed or dropped for the duration of the transaction. Return
    those that are gone.

    Nothing is read, so the server need not keep old row versions for it. A table that the server cannot open is left
    out: it is refused alone when its rows are read.

    :raises TableLockedError: a table is locked by a statement, or by LOCK TABLES.
    """
    gone = []
    connection.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
    connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    connection.execute("START TRANSACTION READ ONLY")
    for table in tables:
        try:
            connection.query(f"SELECT 1 FROM {qualified(*table)} LIMIT 0")
        except TableLockedError as error:
            raise TableLockedError(
                f"table {'.'.join(table)} of {connection.target} is locked, as a statement changes it or waits to; it "
                "is retried automatically"
            ) from error
        except StatementRefusedError:
            if not is_there(connection, *table):
                gone.append(table)
    return gone


def current_place(connection: Connection) -> Place:
    """Return the end of the binlog: an upper bound of what is visible.

    :raises SourceConfigError: the server writes no binlog.
    """
    is_renamed = not connection.is_mariadb and connection.server_version >= _RENAMED_STATUS_SINCE
    rows = connection.query("SHOW BINARY LOG STATUS" if is_renamed else "SHOW MASTER STATUS")
    if not rows or not rows[0][0]:
        raise _no_binlog(connection)
    file, position, *rest = rows[0]
    gtid = "" if connection.is_mariadb or len(rest) < 3 else (rest[2] or "").replace("\n", "")
    return Place(BinlogPosition(str(file), int(position or 0)), gtid)


def settled_place(target: Target, tables: Sequence[Table]) -> Place:
    """Return a place so that every change of ``tables`` before it is visible to snapshots opened from now on.

    :raises SourceError: the server refuses, or a required privilege is missing.
    """
    with open_reader(target) as connection:
        if connection.is_mariadb:
            begin_snapshot(connection)
            return with_gtid(connection, _snapshot_place(connection))
        with _locked(connection, tables):
            return current_place(connection)


def with_gtid(connection: Connection, place: Place) -> Place:
    """Add the GTIDs before the place: MySQL has reported them, MariaDB is queried."""
    return Place(place.binlog, gtid_at(connection, place.binlog) or "") if connection.is_mariadb else place


def gtid_at(connection: Connection, binlog: BinlogPosition) -> str | None:
    """Query the GTIDs at a place, which may take a second, since the server reads the file. None if it is invalid."""
    if not connection.is_mariadb:
        return _gtid_from_events(connection, binlog)
    [(gtid,)] = connection.query(f"SELECT BINLOG_GTID_POS({literal(binlog.file)}, {binlog.position})")
    return gtid


def _gtid_from_events(connection: Connection, binlog: BinlogPosition) -> str | None:
    """Compute the GTIDs on MySQL, which has no query for it: the file's initial set, and the GTIDs of all transactions
    that begin before the place."""
    if binlog.file not in {row[0] for row in connection.query("SHOW BINARY LOGS")}:
        return None
    found = []
    for event in list_events(connection, binlog.file):
        if event.begin >= binlog.position:
            break
        if event.kind == "Previous_gtids" or event.kind.startswith("Gtid"):
            found.append(_GTID_NEXT.sub(r"\1", event.info))
    return str(MysqlGtidSet.parse(",".join(found)))


@dataclass(frozen=True, slots=True)
class Readers:
    """Sessions that all see the state at ``place`` until they are closed."""

    place: Place
    connections: tuple[Connection, ...]


@contextmanager
def open_readers(target: Target, count: int, tables: Sequence[Table]) -> Iterator[Readers]:
    """Open at least one session, and ``count`` if they can be brought to one state.

    :raises SourceError: the server refuses, or a privilege is missing that an exact state requires.
    """
    with ExitStack() as stack:
        connections = [stack.enter_context(open_reader(target)) for _ in range(count)]
        if connections[0].is_mariadb:
            yield _agreeing(target, connections, tables)
        else:
            with connect(target) as locker, _locked(locker, tables):
                place = current_place(locker)
                for connection in connections:
                    begin_snapshot(connection)
            yield Readers(place, tuple(connections))


def _agreeing(target: Target, connections: Sequence[Connection], tables: Sequence[Table]) -> Readers:
    for _ in range(_OPENINGS):
        places = _open_all(connections)
        if len(set(places)) == 1:
            return Readers(with_gtid(connections[0], places[0]), tuple(connections))
    try:
        with connect(target) as locker, _locked(locker, tables):
            # If only the tables are locked, other commits make the places differ: any of them is right for the tables.
            places = _open_all(connections)
        return Readers(with_gtid(connections[0], places[0]), tuple(connections))
    except (SourceAuthError, SourceUnreachableError) as error:
        # One reader is exact as well, only slower.
        _log.warning("one reader only: no moment without commits, and no lock", cause=str(error))
        alone = connections[0]
        [place] = _open_all([alone])
        return Readers(with_gtid(alone, place), (alone,))


def _open_all(connections: Sequence[Connection]) -> list[Place]:
    for connection in connections:
        begin_snapshot(connection)
    return [_snapshot_place(connection) for connection in connections]


def _snapshot_place(connection: Connection) -> Place:
    """MariaDB: return the place up to which the session's snapshot sees commits."""
    rows = {row[0]: row[1] for row in connection.query("SHOW STATUS LIKE 'Binlog\\_snapshot\\_%'")}
    file, position = rows.get("Binlog_snapshot_file"), rows.get("Binlog_snapshot_position")
    if not file or not position:
        raise _no_binlog(connection)
    return Place(BinlogPosition(file, int(position)))


def _no_binlog(connection: Connection) -> SourceConfigError:
    return SourceConfigError(f"{connection.target} writes no binlog; set log_bin and restart it")


@contextmanager
def _locked(connection: Connection, tables: Sequence[Table]) -> Iterator[None]:
    """Lock so that no change of the tables is committed, and every commit before is visible."""
    connection.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}")
    release = _lock_first_of(connection, [_lock_server, lambda at: _lock_tables(at, tables)])
    try:
        yield
    finally:
        connection.execute(release)


def _lock_first_of(connection: Connection, ways: Sequence[Callable[[Connection], str]]) -> str:
    """Acquire the first lock that is granted; return the statement that releases it."""
    for way in ways:
        try:
            return way(connection)
        except SourceAuthError:
            continue
    raise no_lock(connection)


def _lock_server(connection: Connection) -> str:
    if connection.is_mariadb and connection.server_version >= _BACKUP_STAGES_SINCE:
        connection.execute("BACKUP STAGE START")
        connection.execute("BACKUP STAGE BLOCK_COMMIT", timeout_s=2 * LOCK_WAIT_S)
        return "BACKUP STAGE END"
    connection.execute("FLUSH TABLES WITH READ LOCK", timeout_s=2 * LOCK_WAIT_S)
    return "UNLOCK TABLES"


def _lock_tables(connection: Connection, tables: Sequence[Table]) -> str:
    if not tables:
        return "UNLOCK TABLES"
    names = ", ".join(f"{qualified(*table)} READ" for table in tables)
    connection.execute(f"LOCK TABLES {names}", timeout_s=2 * LOCK_WAIT_S)
    return "UNLOCK TABLES"
