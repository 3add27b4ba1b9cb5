"""Resume: decides whether a server can continue exactly where the log is, asks it to, and finds its binlog's end.

At the server that the position is from it is a matter of file and offset: the file must still be there. Another server
(fail-over, a restored copy) has other files, so the GTID set decides, and a new epoch of positions begins there. MySQL
tells servers apart by UUID; a MariaDB is the same if, at that offset of that file, it had seen the same GTIDs.
"""

from dataclasses import dataclass

from agent.errors import (
    NEW_SNAPSHOT,
    PositionLostError,
    SnapshotLostByGCError,
    SourceConfigError,
    SourceUnreachableError,
)
from agent.sources.mysql.position.consistency import current_place, gtid_at, with_gtid
from agent.sources.mysql.position.gtid import parse_gtid_set
from agent.sources.mysql.position.positions import (
    FIRST_POSITION,
    BinlogPosition,
    SourcePosition,
    first_epoch,
    next_epoch,
    split_file_name,
    unpack,
)
from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.identity import read_identity
from agent.sources.mysql.server.sql import literal
from reactor.ids import Ts


@dataclass(frozen=True, slots=True)
class Resumption:
    """How to continue: where, and whether the server has to find the place by GTID."""

    position: SourcePosition
    by_gtid: bool


def current_position(connection: Connection) -> SourcePosition:
    """The end of the binlog: every transaction that commits from now on lies behind it.

    :raises SourceConfigError: the server writes none.
    """
    place = with_gtid(connection, current_place(connection))
    return first_epoch(read_identity(connection).system_id, place.binlog, _normal(connection, place.gtid))


def position_at(connection: Connection, ts: Ts) -> SourcePosition:
    """A place in this server's own binlog that somebody names by Ts, with the GTID set before it: without that nothing
    could tell another server later which transactions are old."""
    now = current_position(connection)
    _, number, offset = unpack(ts)
    file = BinlogPosition(f"{now.epoch.base}.{number:0{now.digits}d}", max(offset, FIRST_POSITION))
    if file == now.binlog:
        return now
    return first_epoch(now.epoch.server, file, gtid_at(connection, file) or "")


def epoch_of(connection: Connection, log: str) -> int:
    """The epoch of positions in this server's binlog, for a changefeed that is at ``log``; the first one without a log.

    :raises SourceUnreachableError: the log has not continued at this server yet.
    """
    if not log:
        return 0
    position, server = SourcePosition.from_json(log), read_identity(connection).system_id
    if not _is_same_server(connection, server, position, _files(connection)):
        raise SourceUnreachableError(
            f"{connection.target} is not the server whose binlog the changefeed reads; try again when it reads this one"
        )
    return position.epoch.number


def resume(connection: Connection, position: SourcePosition) -> Resumption:
    """How to continue at ``position``.

    :raises PositionLostError: this server cannot; ``SnapshotLostByGCError`` where it could have.
    :raises SourceUnreachableError: not yet.
    """
    server = read_identity(connection).system_id
    files = _files(connection)
    if _is_same_server(connection, server, position, files):
        _check_file(connection, position.binlog, files)
        return Resumption(position, by_gtid=False)
    if not position.gtid:
        raise PositionLostError(
            f"{connection.target} is not the server the changefeed began on, and no GTIDs say where to continue there "
            f"(turn gtid_mode on before the next fail-over); {NEW_SNAPSHOT}"
        )
    if not connection.is_mariadb:  # a MariaDB says so itself when it is asked
        _check_gtids(connection, position.gtid)
    oldest = BinlogPosition(min(files, key=_number))
    return Resumption(next_epoch(position, server, oldest), by_gtid=True)


def _is_same_server(connection: Connection, server: str, position: SourcePosition, files: dict[str, int]) -> bool:
    binlog = position.binlog
    if server != position.epoch.server or position.epoch.base not in {split_file_name(file)[0] for file in files}:
        return False
    if not connection.is_mariadb or files.get(binlog.file, 0) < binlog.position:
        return True
    found = gtid_at(connection, binlog)
    return found is not None and _normal(connection, found) == _normal(connection, position.gtid)


def _check_file(connection: Connection, binlog: BinlogPosition, files: dict[str, int]) -> None:
    oldest, newest = min(files, key=_number), max(files, key=_number)
    number = _number(binlog.file)
    if number < _number(oldest):
        raise SnapshotLostByGCError(
            f"{connection.target} has purged {binlog.file}, which comes next ({oldest} is its oldest); have it keep "
            f"binlogs longer (binlog_expire_logs_seconds); {NEW_SNAPSHOT}"
        )
    if number == _number(newest) + 1 and binlog.position == FIRST_POSITION:
        raise SourceUnreachableError(f"{connection.target} has not begun {binlog.file} yet; it is tried again")
    if files.get(binlog.file, 0) < binlog.position:
        raise PositionLostError(
            f"the binlog of {connection.target} ends at {newest}:{files[newest]}, before {binlog}, where the log "
            f"is: it was reset, or lost its end in a crash; {NEW_SNAPSHOT}"
        )


def _check_gtids(connection: Connection, gtid: str) -> None:
    ours = literal(gtid)
    ((mode, executed, purged),) = connection.query(
        f"SELECT @@global.gtid_mode, GTID_SUBSET({ours}, @@global.gtid_executed), "
        f"GTID_SUBSET(@@global.gtid_purged, {ours})"
    )
    if mode != "ON":
        raise PositionLostError(f"{connection.target} is another server and has gtid_mode={mode}; {NEW_SNAPSHOT}")
    if executed != "1":
        raise PositionLostError(
            f"{connection.target} is another server and lacks transactions that have been read; {NEW_SNAPSHOT}"
        )
    if purged != "1":
        raise SnapshotLostByGCError(
            f"{connection.target} is another server and has purged transactions that come next; {NEW_SNAPSHOT}"
        )


def _files(connection: Connection) -> dict[str, int]:
    """Binlog files and their sizes."""
    files = {name or "": int(size or 0) for name, size, *_ in connection.query("SHOW BINARY LOGS")}
    if not files:
        raise SourceConfigError(f"{connection.target} writes no binlog; set log_bin and restart it")
    return files


def _number(file: str) -> int:
    return split_file_name(file)[1]


def _normal(connection: Connection, gtid: str) -> str:
    return str(parse_gtid_set(gtid, is_mariadb=connection.is_mariadb))
