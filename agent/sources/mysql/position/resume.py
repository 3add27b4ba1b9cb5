"""Resume: checks whether a server can continue exactly at the log's position, and finds the end of its binlog.

On the position's own server, file and offset decide: the file must still exist. Another server (fail-over, a restored
copy) has other files, so the GTID set decides, and a new epoch of positions begins. MySQL servers are identified by
UUID; a MariaDB server is the same if, at that offset of that file, it had the same GTIDs.
"""

from dataclasses import dataclass

from agent.errors import (
    NEW_POSITION,
    PositionLostError,
    SnapshotLostByGCError,
    SourceConfigError,
    SourceUnreachableError,
)
from agent.sources.mysql.position.consistency import current_place, gtid_at, with_gtid
from agent.sources.mysql.position.gtid import MariaGtidSet, parse_gtid_set
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
    """A place to continue from, and whether the server has to find the place by GTID."""

    position: SourcePosition
    by_gtid: bool


def current_position(connection: Connection) -> SourcePosition:
    """Return the end of the binlog: every later commit is after it.

    :raises SourceConfigError: the server writes no binlog.
    """
    place = with_gtid(connection, current_place(connection))
    return first_epoch(read_identity(connection).system_id, place.binlog, _normal(connection, place.gtid))


def position_at(connection: Connection, ts: Ts) -> SourcePosition:
    """Return the place of ``ts`` in this server's own binlog, with the GTID set before it, without which another server
    could not tell later which transactions have been read."""
    now = current_position(connection)
    _, number, offset = unpack(ts)
    file = BinlogPosition(f"{now.epoch.base}.{number:0{now.digits}d}", max(offset, FIRST_POSITION))
    if file == now.binlog:
        return now
    return first_epoch(now.epoch.server, file, gtid_at(connection, file) or "")


def epoch_of(connection: Connection, log: str) -> int:
    """Return the epoch of positions in this server's binlog, for a changefeed at ``log``; the first one without a log.

    :raises SourceUnreachableError: the log has not continued on this server yet.
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
    """Return how to continue at ``position``.

    :raises PositionLostError: this server cannot; ``SnapshotLostByGCError`` if it once could.
    :raises SourceUnreachableError: it cannot yet.
    """
    server = read_identity(connection).system_id
    files = _files(connection)
    if _is_same_server(connection, server, position, files):
        _check_file(connection, position.binlog, files)
        return Resumption(position, by_gtid=False)
    if not position.gtid:
        raise PositionLostError(
            f"{connection.target} is not the server the changefeed began on, and no GTIDs say where to continue there "
            f"(turn gtid_mode on before the next fail-over); {NEW_POSITION}"
        )
    if not connection.is_mariadb:  # a MariaDB checks it when the stream starts
        _check_gtids(connection, position.gtid)
    oldest = BinlogPosition(min(files, key=_number))
    return Resumption(next_epoch(position, server, oldest), by_gtid=True)


def check_successor(connection: Connection, position: SourcePosition) -> None:
    """Check that the log, which was read up to ``position`` of another server, can continue here.

    :raises SourceError: see ``resume``.
    """
    if not resume(connection, position).by_gtid or not connection.is_mariadb:
        return
    ((written,),) = connection.query("SELECT @@global.gtid_binlog_pos")
    has, needed = MariaGtidSet.parse(written or "").domains, MariaGtidSet.parse(position.gtid).domains
    if any(has.get(domain, (0, -1))[1] < sequence for domain, (_, sequence) in needed.items()):
        raise PositionLostError(
            f"{connection.target} is another server, at {written or 'no GTID'}, and lacks transactions that have been "
            f"read, up to {position.gtid}; name a replica that has them"
        )


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
            f"binlogs longer (binlog_expire_logs_seconds); {NEW_POSITION}"
        )
    if number == _number(newest) + 1 and binlog.position == FIRST_POSITION:
        raise SourceUnreachableError(f"{connection.target} has not begun {binlog.file} yet; it is tried again")
    if files.get(binlog.file, 0) < binlog.position:
        raise PositionLostError(
            f"the binlog of {connection.target} ends at {newest}:{files[newest]}, before {binlog}, where the log "
            f"is: it was reset, or lost its end in a crash; {NEW_POSITION}"
        )


def _check_gtids(connection: Connection, gtid: str) -> None:
    ours = literal(gtid)
    ((mode, executed, purged),) = connection.query(
        f"SELECT @@global.gtid_mode, GTID_SUBSET({ours}, @@global.gtid_executed), "
        f"GTID_SUBSET(@@global.gtid_purged, {ours})"
    )
    if mode != "ON":
        raise PositionLostError(f"{connection.target} is another server and has gtid_mode={mode}; {NEW_POSITION}")
    if executed != "1":
        raise PositionLostError(
            f"{connection.target} is another server and lacks transactions that have been read; {NEW_POSITION}"
        )
    if purged != "1":
        raise SnapshotLostByGCError(
            f"{connection.target} is another server and has purged transactions that come next; {NEW_POSITION}"
        )


def _files(connection: Connection) -> dict[str, int]:
    """Return binlog files and their sizes."""
    files = {name or "": int(size or 0) for name, size, *_ in connection.query("SHOW BINARY LOGS")}
    if not files:
        raise SourceConfigError(f"{connection.target} writes no binlog; set log_bin and restart it")
    return files


def _number(file: str) -> int:
    return split_file_name(file)[1]


def _normal(connection: Connection, gtid: str) -> str:
    return str(parse_gtid_set(gtid, is_mariadb=connection.is_mariadb))
