"""The binlog stream on real servers, held against what python-mysql-replication reads of the same binlog."""

import contextlib
import threading
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import GtidEvent, MariadbGtidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from agent.errors import (
    PositionLostError,
    SnapshotLostByGCError,
    SourceUnreachableError,
)
from agent.ports.source import BEGIN, Identity, Position, Scope, StreamOrder
from agent.rows.arena import Arena, LogChunk
from agent.rows.schema import TableSchema
from agent.sources import open_source
from agent.sources.mysql.binlog import split
from agent.sources.mysql.binlog.stream import BinlogStream
from agent.sources.mysql.decode import wire
from agent.sources.mysql.position.end_check import EndCheck
from agent.sources.mysql.position.positions import BinlogPosition, SourcePosition, first_epoch, pack
from agent.sources.mysql.position.resume import current_position, position_at, resume
from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.server.uri import parse_uri
from agent.sources.mysql.streams import MysqlStreams
from capture.embedded import EmbeddedMariaDB
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedConfig, FilterConfig, SinkMode
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.tables.table import TableRecord
from tests.integration.agent.sources.mysql.binlog_rig import describe, follow, lines, read_until, run, streaming, where
from tests.mysql_server import is_mariadb

pytestmark = pytest.mark.sample(0.3)  # make matrix runs the others

_SCOPE = Scope("weir", "feed", SinkMode.UPSERT, ChangefeedConfig(filter=FilterConfig(rules=("c.*",))))
Oracle = tuple[list[tuple[int, int]], list[str]]


@pytest.fixture
def database(server: EmbeddedMariaDB) -> str:
    name = f"s_{uuid4().hex[:8]}"
    server.create_database(name)
    run(server, name, "CREATE TABLE t (i int PRIMARY KEY, s varchar(200))", "CREATE TABLE u (i int) ENGINE=MyISAM")
    return name


def oracle(server: EmbeddedMariaDB, database: str, begin: SourcePosition, end: SourcePosition) -> Oracle:
    """What the other library finds: (Ts of the transaction, bytes of the event), and all GTIDs."""
    reader = BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": server.port, "user": "weir", "password": server.password},
        server_id=990,
        log_file=begin.binlog.file,
        log_pos=begin.binlog.position,
        resume_stream=True,
        is_mariadb=False,
        only_events=[MariadbGtidEvent, GtidEvent, WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        freeze_schema=True,
    )
    found, gtids = [], []
    ts = 0
    with contextlib.closing(reader):
        for event in reader:
            if isinstance(event, (MariadbGtidEvent, GtidEvent)):
                number = int(reader.log_file.rsplit(".", 1)[1])
                ts = pack(0, number, event.packet.log_pos - event.packet.event_size)
                gtids.append(event.gtid)
            elif event.schema == database:
                found.append((ts, event.packet.event_size))
            if reader.log_pos >= end.position and reader.log_file == end.binlog.file:
                break
    return found, gtids


def busy(server: EmbeddedMariaDB, database: str) -> None:
    """Transactions of many kinds, over several files."""
    insert = "INSERT INTO t SELECT seq, repeat('x', seq % 150) FROM seq_1_to_3000"
    run(server, database, insert, "UPDATE t SET s = 'changed' WHERE i % 7 = 0", "DELETE FROM t WHERE i % 5 = 0")
    for i in range(4000, 4050):
        run(server, database, f"INSERT INTO t VALUES ({i}, 'one')")
    run(server, database, "FLUSH BINARY LOGS", "INSERT INTO u SELECT seq FROM seq_1_to_100")
    if is_mariadb(server):  # MySQL allows no such thing with GTIDs
        run(server, database, "BEGIN", "INSERT INTO t VALUES (9001, 'a')", "INSERT INTO u VALUES (9)", "ROLLBACK")
    run(server, database, "BEGIN", "UPDATE t SET s = NULL WHERE i < 100", "DELETE FROM t WHERE i = 4000", "COMMIT")


@pytest.mark.filterwarnings("ignore:'db' is deprecated:DeprecationWarning")  # the oracle's own
@pytest.mark.parametrize("by_gtid", [False, True])
def test_it_reads_what_the_oracle_reads(server: EmbeddedMariaDB, database: str, by_gtid: bool) -> None:
    begin = where(server)
    busy(server, database)
    end = where(server)
    with streaming(server, begin, database, by_gtid=by_gtid) as stream:
        cuts = read_until(stream, end)
        reached = stream.position()
    found, gtids = oracle(server, database, begin, end)
    read = sorted((ts, seq >> split.SEQ_SHIFT, len(event)) for _, ts, seq, event in lines(cuts))
    # less the header's other 18 bytes and the checksum
    assert [(ts, size) for ts, _, size in read] == [(ts, size - 18 - 4) for ts, size in found]
    assert len(gtids) == stream.transactions
    assert reached.gtid == end.gtid
    # others on the shared server may have tagged theirs, which the oracle does not know
    assert [one for one in end.gtid.replace(":1-", ":").split(",") if one.count(":") < 2] == [gtids[-1]]
    assert reached.ts == end.ts


def test_it_continues_where_any_cut_has_ended(server: EmbeddedMariaDB, database: str) -> None:
    begin = where(server)
    busy(server, database)
    end = where(server)
    with streaming(server, begin, database) as stream:
        whole = lines(read_until(stream, end))
    pieces, position = [], begin
    while position.resolved < end.resolved:
        with connect(server.uri()) as connection:
            resumption = resume(connection, position)
        assert not resumption.by_gtid
        small = 1 << 14
        with streaming(server, resumption.position, database, arena_bytes=small) as stream:
            while not stream.is_full and stream.resolved_ts < end.resolved:
                stream.read(timeout_s=10.0)
            cuts: list[LogChunk] = []
            # a session that fell in the middle of a transaction: what it gave of that is not resolved
            while not cuts or not cuts[-1].is_complete:
                cuts += read_until(stream, end, arena_bytes=small)
            position = SourcePosition.from_json(cuts[-1].position)
            assert position.resolved == cuts[-1].resolved_ts
        pieces += cuts
    assert sorted(lines(pieces)) == sorted(whole)


def test_one_large_transaction_passes_through_a_small_arena(server: EmbeddedMariaDB, database: str) -> None:
    begin = where(server)
    run(server, database, "INSERT INTO t SELECT seq, repeat('x', 150) FROM seq_1_to_20000")
    end = where(server)
    with streaming(server, begin, database, arena_bytes=1 << 18) as stream:
        cuts = read_until(stream, end, arena_bytes=1 << 18)
    assert len(cuts) > 8
    assert [cut.is_complete for cut in cuts] == [False] * (len(cuts) - 1) + [True]
    assert all(cut.resolved_ts == begin.resolved for cut in cuts[:-1])
    assert cuts[-1].resolved_ts == end.resolved
    assert len({ts for _, ts, _, _ in lines(cuts)}) == 1
    ordinals = [seq for _, _, seq, _ in lines(cuts)]
    assert ordinals == sorted(set(ordinals))


def test_savepoints_and_rollbacks_leave_nothing(server: EmbeddedMariaDB, database: str) -> None:
    begin = where(server)
    # what stays in the log with its rollback is what changed a table that knows none; MySQL allows no mixture
    stays = [["INSERT INTO u VALUES (1)"], ["INSERT INTO u VALUES (2)"]] if is_mariadb(server) else [[], []]
    run(
        server, database, "BEGIN", "INSERT INTO t VALUES (1, 'kept')", "SAVEPOINT `A b`",
        "INSERT INTO t VALUES (2, 'gone')", *stays[0], "ROLLBACK TO `A b`",
        "INSERT INTO t VALUES (3, 'kept')", "COMMIT",
    )  # fmt: skip
    run(server, database, "BEGIN", "INSERT INTO t VALUES (4, 'gone')", *stays[1], "ROLLBACK")
    with streaming(server, begin, database) as stream:
        found = lines(read_until(stream, where(server)))
    events = [event for name, _, _, event in found if name == "t"]
    assert [b"kept" in event for event in events] == [True, True]
    assert len([name for name, *_ in found if name == "u"]) == len([*stays[0], *stays[1]])


def test_definitions_end_cuts_and_truncation_is_a_line(server: EmbeddedMariaDB, database: str) -> None:
    begin = where(server)
    run(
        server, database, "INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD c int",
        "INSERT INTO t VALUES (2, 'b', 3)",
        "TRUNCATE TABLE t",
        "CREATE VIEW v AS SELECT 1", "CREATE TEMPORARY TABLE x (i int)", "DROP TEMPORARY TABLE x",
        "CREATE TABLE w AS SELECT * FROM (SELECT 1 AS i) AS s", "ANALYZE TABLE t",
    )  # fmt: skip
    with streaming(server, begin, database) as stream:
        first, second = read_until(stream, where(server))
    assert [record.statement.split("(")[0].split("\n")[0].strip() for cut in (first, second) for record in cut.ddl] == [
        "ALTER TABLE t ADD c int",
        "CREATE TABLE `w`",
    ]
    assert len(lines([first])) == 1
    write = wire.WRITE_V1 if is_mariadb(server) else wire.WRITE_V2
    assert [(name, event[0]) for name, _, _, event in lines([second])] == [
        ("t", write),
        ("t", wire.TRUNCATED),
        ("w", write),
    ]
    assert [len(batch.schema.columns) for cut in (first, second) for batch in cut.batches()] == [2, 3, 1]
    assert second.ddl[0].ts == second.last_ts


def test_compressed_events_are_read(tmp_path: Path) -> None:
    settings = {"log_bin_compress": "ON", "log_bin_compress_min_len": "10"}
    with EmbeddedMariaDB(tmp_path / "my", unsafe_no_fsync=True, settings=settings) as server:
        server.create_database("c")
        begin = where(server)
        run(
            server,
            "c",
            "CREATE TABLE t (i int PRIMARY KEY, s varchar(200))",
            "INSERT INTO t VALUES (1, repeat('x', 190))",
        )
        run(server, "c", "UPDATE t SET s = repeat('y', 190)", "DELETE FROM t")
        with streaming(server, begin, "c") as stream:
            first, second = read_until(stream, where(server))
    assert first.ddl[0].statement.startswith("CREATE TABLE t (i int")
    kinds = [wire.WRITE_COMPRESSED_V1, wire.UPDATE_COMPRESSED_V1, wire.DELETE_COMPRESSED_V1]
    assert [event[0] for _, _, _, event in lines([second])] == kinds


def test_a_binlog_without_checksums_or_with_a_change_of_mind(flavour: type[EmbeddedMariaDB], tmp_path: Path) -> None:
    with flavour(tmp_path / "my", unsafe_no_fsync=True, settings={"binlog_checksum": "NONE"}) as server:
        server.create_database("c")
        run(server, "c", "CREATE TABLE t (i int)")
        begin = where(server)
        run(server, "c", "INSERT INTO t VALUES (1)")
        with streaming(server, begin, "c") as stream:
            assert len(lines(read_until(stream, where(server)))) == 1
        run(server, "c", "SET GLOBAL binlog_checksum = CRC32", "INSERT INTO t VALUES (2)")
        with streaming(server, begin, "c") as stream:
            assert len(lines(read_until(stream, where(server)))) == 2


def test_a_row_larger_than_arena_and_packet(flavour: type[EmbeddedMariaDB], tmp_path: Path) -> None:
    with flavour(tmp_path / "my", unsafe_no_fsync=True, settings={"max_allowed_packet": "256M"}) as server:
        server.create_database("c")
        run(server, "c", "CREATE TABLE t (i int PRIMARY KEY, b longblob)")
        begin = where(server)
        run(server, "c", "INSERT INTO t VALUES (1, repeat('a', 40000000))", "INSERT INTO t VALUES (2, 'b')")
        with streaming(server, begin, "c") as stream:
            large, small = lines(read_until(stream, where(server)))
    assert large[3].endswith(b"a" * 40_000_000)
    assert small[3].endswith(b"b")


def test_changes_that_come_as_statements_hold_their_table(server: EmbeddedMariaDB, database: str) -> None:
    held: list[tuple[list[tuple[str, str]], str]] = []

    def hold(names: list[tuple[str, str]], reason: str, ts: Ts) -> DdlRecord:
        held.append((names, reason))
        return DdlRecord(ts=ts)

    def written(statement: str, default: str) -> list[tuple[str, str]]:
        return [(default, "t")] if default == database and "INTO t" in statement else []

    begin = where(server)
    run(server, database, "SET SESSION binlog_format = STATEMENT", "INSERT INTO t VALUES (1, 'a')")
    with streaming(server, begin, "another") as stream:
        assert read_until(stream, where(server)) == []
    with streaming(server, begin, database, hold=hold, written=written) as stream:
        read_until(stream, where(server))
    [(names, reason)] = held
    assert names == [(database, "t")]
    assert "logged as a statement" in reason


def test_an_idle_stream_has_a_pulse_and_moves_on(server: EmbeddedMariaDB, database: str) -> None:
    begin = where(server)
    run(server, "mysql", "CREATE OR REPLACE USER idle@localhost")
    end = where(server)
    with streaming(server, begin, database) as stream:
        assert read_until(stream, end) == []
        first = stream.progress().resolved_time
        while stream.progress().resolved_time == first:  # ends when a heartbeat comes, or with the test's timeout
            stream.read(timeout_s=1.0)
        assert stream.progress().resolved_ts == end.resolved
        assert SourcePosition.from_json(stream.progress().position).gtid == end.gtid


def test_a_restart_of_the_server_ends_the_stream_and_it_continues(
    flavour: type[EmbeddedMariaDB], tmp_path: Path
) -> None:
    with flavour(tmp_path / "my", unsafe_no_fsync=True) as server:
        server.create_database("c")
        run(server, "c", "CREATE TABLE t (i int)", "CREATE TABLE z (i int, j int)")
        begin = where(server)
        run(server, "c", "INSERT INTO t VALUES (1)")
        with streaming(server, begin, "c") as stream:
            before = read_until(stream, where(server))
            server.kill()
            with pytest.raises(SourceUnreachableError):
                read_until(stream, first_epoch("", BinlogPosition("binlog.999999")))
        server.start()
        run(server, "c", "INSERT INTO z VALUES (5, 6)", "INSERT INTO t VALUES (2)")
        position = SourcePosition.from_json(before[-1].position)
        with connect(server.uri()) as connection:
            resumption = resume(connection, position)
            assert (resumption.position, resumption.by_gtid) == (position, False)
        with streaming(server, position, "c") as stream:
            after = read_until(stream, where(server))
    assert sorted(name for name, *_ in lines(before + after)) == ["t", "t", "z"]
    assert all(ts > position.ts for _, ts, _, _ in lines(after))


def test_purged_binlogs_and_a_reset_are_distinguished(flavour: type[EmbeddedMariaDB], tmp_path: Path) -> None:
    with flavour(tmp_path / "my", unsafe_no_fsync=True) as server:
        server.create_database("c")
        run(server, "c", "CREATE TABLE t (i int)")
        begin = where(server)
        run(server, "c", "INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO t VALUES (2)")
        later = where(server)
        # refused for as long as InnoDB has not written what the old file tells of
        while [begin.binlog.file] in [row[:1] for row in server.execute("SHOW BINARY LOGS")]:
            run(server, "c", f"PURGE BINARY LOGS TO '{later.binlog.file}'")
        with connect(server.uri()) as connection:
            with pytest.raises(SnapshotLostByGCError, match=r"purged binlog\.000001.*binlog_expire.*resume --resync"):
                resume(connection, begin)
            assert resume(connection, later).position == later
        for by_gtid in (False, True):
            with streaming(server, begin, "c", by_gtid=by_gtid) as stream, pytest.raises(SnapshotLostByGCError):
                read_until(stream, later)
        run(server, "c", "RESET MASTER", "INSERT INTO t VALUES (3)")
        with connect(server.uri()) as connection, pytest.raises(PositionLostError, match="was reset, or lost"):
            resume(connection, later)


def test_a_binlog_that_was_reset_is_noticed_though_it_has_all_offsets_again(
    flavour: type[EmbeddedMariaDB], tmp_path: Path
) -> None:
    """So it is with a server that was restored from an earlier state, which has its identity and writes on."""
    streams = partial(MysqlStreams, order=StreamOrder((), reader=4714), scope=_SCOPE)
    rows = [f"INSERT INTO t VALUES ({number})" for number in range(10, 20)]
    with flavour(tmp_path / "my", unsafe_no_fsync=True) as server:
        server.create_database("c")
        run(server, "c", "CREATE TABLE t (i int)", "RESET MASTER")
        [[begun_s]] = server.execute("SELECT UNIX_TIMESTAMP()")
        at = where(server)
        log = Position(at.resolved, at.to_json())
        for _ in range(2):  # the second time it continues
            run(server, "c", *rows)
            with contextlib.closing(streams(parse_uri(server.uri())).open(log, Arena(1 << 20))) as opened:
                end = where(server)
                read_until(opened.stream, end)
                chunk = opened.stream.progress()
            log = Position(chunk.resolved_ts, chunk.position, chunk.attachment)
        while server.execute("SELECT UNIX_TIMESTAMP()") == [[begun_s]]:
            continue
        run(server, "c", "RESET MASTER", *rows, *rows)
        assert where(server) == end, "file, offset and GTIDs are the same"
        run(server, "c", *rows)
        with (
            contextlib.closing(streams(parse_uri(server.uri())).open(log, Arena(1 << 20))) as opened,
            pytest.raises(PositionLostError, match=r"has another binlog than the one .* \(RESET MASTER\).*--resync"),
        ):
            read_until(opened.stream, where(server))


def test_a_stream_whose_binlog_was_reset_does_not_wait_until_it_is_as_long_again(
    flavour: type[EmbeddedMariaDB], tmp_path: Path
) -> None:
    with flavour(tmp_path / "my", unsafe_no_fsync=True) as server:
        server.create_database("c")
        run(server, "c", "CREATE TABLE t (i int)")
        check = EndCheck(parse_uri(server.uri()), pause_s=0.0)
        with streaming(server, where(server), "c") as stream:
            run(server, "c", "INSERT INTO t VALUES (1)")
            read_until(stream, where(server))
            for _ in range(2):
                check.check(stream.progress())
            run(server, "c", "RESET MASTER")
            with pytest.raises(SourceUnreachableError, match=r"binlog of .* ends at binlog\.000001:\d+, before binlog"):
                check.check(stream.progress())
            server.stop()
            check.check(stream.progress())


@pytest.mark.matrix
def test_another_server_continues_by_gtid_under_a_new_epoch(flavour: type[EmbeddedMariaDB], tmp_path: Path) -> None:
    settings = {"log_slave_updates": "ON"} if flavour is EmbeddedMariaDB else {}
    with (
        flavour(tmp_path / "a", unsafe_no_fsync=True) as old,
        flavour(tmp_path / "b", unsafe_no_fsync=True, settings=settings) as new,
    ):
        old.create_database("c")
        run(old, "c", "CREATE TABLE t (i int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        middle = where(old)
        run(old, "c", "INSERT INTO t VALUES (2)")
        end = where(old)
        follow(new, old, end.gtid)
        run(new, "c", "INSERT INTO t VALUES (3)")
        with connect(new.uri()) as connection:
            resumption = resume(connection, middle)
            assert resumption.by_gtid
            assert resumption.position.epoch.number == 1
            with pytest.raises(PositionLostError, match="no GTIDs"):
                resume(connection, first_epoch("elsewhere", middle.binlog))
        with streaming(new, resumption.position, "c", by_gtid=True) as stream:
            cuts = read_until(stream, _in_epoch(where(new), 1))
            reached = stream.position()
        events = [event for _, _, _, event in lines(cuts)]
        assert [event[-4:] for event in events] == [b"\2\0\0\0", b"\3\0\0\0"]
        assert all(ts > end.ts for _, ts, _, _ in lines(cuts))
        assert reached.gtid == where(new).gtid
        with connect(new.uri()) as connection:
            assert resume(connection, reached).by_gtid is False
        log = Position(reached.resolved, reached.to_json())
        there, left = (open_source(server.uri(), _SCOPE) for server in (new, old))
        with contextlib.closing(
            there.snapshot([], log)
        ) as snapshot:  # what is compared: at a Ts that spans can be held at
            assert snapshot.ts == there.current_ts(log) == reached.resolved
        with pytest.raises(SourceUnreachableError, match="is not the server whose binlog the changefeed reads"):
            left.snapshot([], log)
        # the old one has not what was written to the new one
        with pytest.raises(PositionLostError):
            _go_on(old, reached)
        begun = Position(end.resolved, end.to_json())
        there.check_identity(end.identity, begun)
        there.check_identity(reached.identity, log)
        with pytest.raises(PositionLostError, match="lacks transactions"):
            left.check_identity(reached.identity, log)
        with pytest.raises(PositionLostError, match="began on another; name that server"):
            there.check_identity(Identity("another"), BEGIN)
        # the snapshot's rows may be of transactions that the new one never got
        ahead = TableRecord(table_id=1, schema_name="c", name="t", key=("i",), consistent_ts=Ts(end.ts + 1))
        streams = there.streams(StreamOrder((ahead,), end.identity, reader=4_200_000))
        with pytest.raises(PositionLostError, match="may lack what the snapshot was read with"):
            streams.open(begun, Arena(1 << 16))


def _go_on(server: EmbeddedMariaDB, position: SourcePosition) -> None:
    """MySQL refuses at once, MariaDB when it is asked for more."""
    with connect(server.uri()) as connection:
        back = resume(connection, position)
    with streaming(server, back.position, "c", by_gtid=back.by_gtid) as stream:
        read_until(stream, _in_epoch(where(server), 2))


def _in_epoch(position: SourcePosition, number: int) -> SourcePosition:
    """The same place as it is called when other servers were read before."""
    for epoch in range(number):
        position = SourcePosition(
            (*position.epochs, position.epoch.__class__(epoch + 1, position.epoch.server, position.epoch.base)),
            position.file_number,
            position.digits,
            position.position,
            position.gtid,
        )
    return position


def test_a_place_can_be_named_by_its_ts(server: EmbeddedMariaDB, database: str) -> None:
    begin = where(server)
    run(server, database, "INSERT INTO t VALUES (1, 'a')")
    with connect(server.uri()) as connection:
        assert position_at(connection, begin.ts) == begin
        assert current_position(connection).ts > begin.ts


def test_a_wait_for_the_server_can_be_aborted(server: EmbeddedMariaDB, database: str) -> None:
    with connect(server.uri()) as connection:
        stream = BinlogStream(
            connection,
            Arena(1 << 20),
            position=current_position(connection),
            is_wanted=lambda schema_name, name: True,
            describe=describe(server),
        )
        stream.start(server_id=4712, heartbeat_s=60.0)
        aborting = threading.Timer(0.2, connection.abort)
        aborting.start()
        with pytest.raises(SourceUnreachableError, match="ended the binlog"):
            read_until(stream, _in_epoch(where(server), 1))
        aborting.join()


def test_the_schema_of_a_version_is_taken_in_once(server: EmbeddedMariaDB, database: str) -> None:
    calls: list[bytes] = []

    def counted(body: bytes) -> TableSchema:
        calls.append(body)
        return describe(server)(body)

    begin = where(server)
    for i in range(20):
        run(server, database, f"INSERT INTO t VALUES ({i}, 'a')", "FLUSH TABLES t")
    run(server, database, "FLUSH BINARY LOGS", "INSERT INTO t VALUES (100, 'a')")
    with streaming(server, begin, database, describe=counted) as stream:
        assert len(lines(read_until(stream, where(server)))) == 21
    assert len(calls) == 1
