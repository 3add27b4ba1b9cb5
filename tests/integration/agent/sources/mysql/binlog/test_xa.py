"""Distributed transactions on real servers: what is only prepared is not there, what is committed comes once.

Through the stream, and through a sync unit into the log, with whatever may happen between XA PREPARE and the decision.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast
from uuid import uuid4

import anyio
import pymysql
import pytest

from agent.errors import SnapshotLostByGCError
from agent.log import segment
from agent.log.head import LogWriter
from agent.log.head_store import MetaHeadStore
from agent.log.reader import LogReader
from agent.log.retention import Needs
from agent.log.storage import LogDirectory
from agent.ports.executor import Executor
from agent.ports.snapshot import DumpOrder
from agent.ports.source import Position, Scope, StreamOrder
from agent.rows.arena import Arena, LogChunk
from agent.settings import SyncSettings
from agent.sinks import open_sink
from agent.sources import open_source, place_name
from agent.sources.mysql.binlog import prepared_before
from agent.sources.mysql.binlog.prepared import digest
from agent.sources.mysql.binlog.reread import Reread
from agent.sources.mysql.decode.decode import decode
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.position.positions import BinlogPosition, SourcePosition
from agent.sources.mysql.position.resume import resume
from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.server.uri import parse_uri
from agent.sources.mysql.streams import MysqlStreams
from agent.units.sync import SyncUnit
from capture.embedded import EmbeddedMariaDB
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.keys import LogKey
from reactor.records.changefeed import ChangefeedConfig, FilterConfig, SinkMode
from reactor.records.log_head import LogHead
from reactor.records.tables.table import TableRecord
from reactor.store.memory import MemoryClient
from tests.integration.agent.sources.mysql.binlog_rig import follow, read_until, run, streaming, where
from tests.mysql_server import is_mariadb
from tests.newest import newest_etcd

pytestmark = pytest.mark.sample(0.25)  # make matrix runs the others

SMALL = 1 << 17
#: Ts of the commit and the first column, of each row
Rows = list[tuple[int, int]]


@pytest.fixture
def database(server: EmbeddedMariaDB) -> str:
    return made_in(server)


def made_in(server: EmbeddedMariaDB) -> str:
    name = f"x_{uuid4().hex[:8]}"
    server.create_database(name)
    run(server, name, "CREATE TABLE t (i int PRIMARY KEY, s varchar(200))")
    return name


def prepare(server: EmbeddedMariaDB, database: str, name: str, *changes: str) -> None:
    """In a session that goes away: with it a transaction that was only prepared stays."""
    run(server, database, f"XA START '{name}'", *changes, f"XA END '{name}'", f"XA PREPARE '{name}'")


def roll_back_all(server: EmbeddedMariaDB, database: str) -> None:
    """What other tests have left prepared on the same server."""
    for format_id, length, _, name in server.execute("XA RECOVER"):
        data = name if isinstance(name, bytes) else str(name).encode()
        with contextlib.suppress(pymysql.err.OperationalError):  # MariaDB says so of one that it has rolled back itself
            run(server, database, f"XA ROLLBACK X'{data[:length].hex()}', X'{data[length:].hex()}', {format_id}")


def insert(*numbers: int) -> str:
    return "INSERT INTO t VALUES " + ", ".join(f"({number}, 'x')" for number in numbers)


@contextlib.contextmanager
def rereading(server: EmbeddedMariaDB) -> Iterator[Reread]:
    reread = Reread(lambda: connect(server.uri()))
    yield reread
    reread.close()


def read(
    server: EmbeddedMariaDB, database: str, begin: SourcePosition, *, arena_bytes: int = 1 << 20
) -> list[LogChunk]:
    """From ``begin`` to the end of the binlog."""
    with (
        rereading(server) as reread,
        streaming(server, begin, database, arena_bytes=arena_bytes, reread=reread.rows_of) as stream,
    ):
        return read_until(stream, where(server), arena_bytes=arena_bytes)


def rows(cuts: list[LogChunk]) -> Rows:
    found = []
    for cut in cuts:
        for batch in cut.batches():
            changes = decode(batch.schema, batch.batch)
            found += list(zip(changes.commit_ts.tolist(), changes.after.column("i").to_pylist(), strict=True))
    return found


def numbers(cuts: list[LogChunk]) -> list[int]:
    return [number for _, number in rows(cuts)]


def reached(cuts: list[LogChunk]) -> SourcePosition:
    return SourcePosition.from_json(cuts[-1].position)


def test_rows_come_where_their_transaction_is_committed(server: EmbeddedMariaDB, database: str) -> None:
    begin = where(server)
    prepare(server, database, "a", insert(1), insert(2, 3))
    run(server, database, insert(10))
    prepare(server, database, "b", insert(4), "UPDATE t SET s = 'y' WHERE i = 10")
    middle = where(server)
    run(server, database, insert(11), "XA ROLLBACK 'a'", insert(1), "XA COMMIT 'b'", insert(12))
    found = rows(read(server, database, begin))
    assert [number for _, number in found] == [10, 11, 1, 4, 10, 12]
    stamps = [ts for ts, _ in found]
    assert stamps == sorted(stamps)
    assert stamps[3] == stamps[4] > middle.ts


@pytest.mark.parametrize("arena_bytes", [SMALL, 1 << 22])
def test_one_phase_is_an_ordinary_commit(server: EmbeddedMariaDB, database: str, arena_bytes: int) -> None:
    begin = where(server)
    run(server, database, "XA START 'a'", insert(1), "XA END 'a'", "XA COMMIT 'a' ONE PHASE")
    run(server, database, "XA START 'a'", insert(2), "XA END 'a'", "XA ROLLBACK 'a'")
    run(server, database, "XA START 'a'", "SELECT 1", "XA END 'a'", "XA PREPARE 'a'", "XA COMMIT 'a'")
    many = "INSERT INTO t SELECT seq, repeat('x', 190) FROM seq_101_to_2000"
    run(server, database, "XA START 'a'", many, "XA END 'a'", "XA COMMIT 'a' ONE PHASE")
    cuts = read(server, database, begin, arena_bytes=arena_bytes)
    assert numbers(cuts) == [1, *range(101, 2001)]
    assert reached(cuts).prepared == ()


def test_a_name_may_come_again_and_have_parts(server: EmbeddedMariaDB, database: str) -> None:
    begin = where(server)
    for number, ending in enumerate(("ROLLBACK", "COMMIT", "COMMIT")):
        run(
            server, database, "XA START 'it''s', X'00FF', 77", insert(number), "XA END 'it''s', X'00FF', 77",
            "XA PREPARE 'it''s', X'00FF', 77", f"XA {ending} 'it''s', X'00FF', 77",
        )  # fmt: skip
    assert numbers(read(server, database, begin)) == [1, 2]


def test_another_reader_knows_what_is_only_prepared(server: EmbeddedMariaDB, database: str) -> None:
    """What a worker that falls leaves, read by the next one: also in a later file."""
    begin = where(server)
    run(server, database, insert(10))
    prepare(server, database, "a", insert(1), insert(2))
    prepare(server, database, "b", insert(3))
    prepare(server, database, "none of ours", "CREATE TEMPORARY TABLE x (i int)" if is_mariadb(server) else "DO 1")
    run(server, database, "FLUSH BINARY LOGS", insert(11))
    first = read(server, database, begin)
    at = reached(first)
    assert len(at.prepared) == 2
    text = place_name("mysql://", Position(at.resolved, at.to_json()))
    assert text == str(at.needed) == str(at.place(Ts(at.prepared[0][1])))
    assert at.needed.file < at.binlog.file
    run(server, database, "XA COMMIT 'b'", "XA ROLLBACK 'a'", insert(1))
    second = read(server, database, at)
    assert (numbers(first), numbers(second)) == ([10, 11], [3, 1])
    assert reached(second).needed == reached(second).binlog


def test_what_was_prepared_before_a_changefeed_began_is_found(server: EmbeddedMariaDB, database: str) -> None:
    prepare(server, database, "old", insert(1), insert(2))
    run(server, database, "XA ROLLBACK 'old'")
    prepare(server, database, "old", insert(3), insert(4))
    run(server, database, insert(5), "FLUSH BINARY LOGS", insert(6), "FLUSH BINARY LOGS", insert(7))
    begin = where(server)
    run(server, database, insert(8), "XA COMMIT 'old'", insert(9))
    assert numbers(read(server, database, begin)) == [8, 3, 4, 9]


@pytest.mark.parametrize("searched", [1 << 30, 0])
def test_what_was_prepared_before_holds_the_position_from_the_begin(
    server: EmbeddedMariaDB, database: str, searched: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Found in the binlog, or, where that is not searched so far, all of the binlog."""
    monkeypatch.setattr(prepared_before, "_SEARCHED_BYTES", searched)
    roll_back_all(server, database)
    run(server, database, insert(1), "FLUSH BINARY LOGS", insert(2))
    place = where(server)
    prepare(server, database, "early", insert(3))
    behind = where(server)
    run(server, database, "FLUSH BINARY LOGS", insert(4))
    config = ChangefeedConfig(filter=FilterConfig(rules=(f"{database}.*",)))
    scope = Scope("c", "feed", SinkMode.CHANGELOG, config)
    source = open_source(server.uri(), scope)
    oldest = BinlogPosition(str(server.execute("SHOW BINARY LOGS")[0][0]))
    begun = SourcePosition.from_json(source.begin([]).text)
    if searched:  # MariaDB writes a checkpoint into a new file when it comes to it, maybe before the XA PREPARE
        assert begun.needed.file == place.binlog.file == behind.binlog.file
        assert place.binlog.position <= begun.needed.position < behind.binlog.position
    else:
        assert begun.needed == oldest
    sink = partial(open_sink, "blackhole://", changefeed="c/feed", mode=SinkMode.CHANGELOG)
    order = DumpOrder(source.discover().tables, SinkMode.CHANGELOG, sink, epoch=1)
    with source.dumper.open(order, None, {}, cast("Executor", None)) as dump:
        planned = SourcePosition.from_json(dump.plan.position)
    assert planned.needed == begun.needed
    early = digest("X'6561726C79',X'',1")
    assert early in dict(planned.prepared)
    run(server, database, insert(5), "XA COMMIT 'early'")
    cuts = read(server, database, planned)
    assert numbers(cuts) == [5, 3]
    assert early not in dict(reached(cuts).prepared)


def test_a_snapshot_and_the_log_fit_together(server: EmbeddedMariaDB, database: str) -> None:
    """What was prepared when the snapshot was opened is not in it, and comes with the log."""
    prepare(server, database, "old", insert(1))
    run(server, database, insert(2))
    scope = Scope("c", "feed", SinkMode.CHANGELOG, ChangefeedConfig(filter=FilterConfig(rules=(f"{database}.*",))))
    source = open_source(server.uri(), scope)
    table = TableRecord(table_id=table_id(database, "t"), schema_name=database, name="t", key=("i",))
    begin = where(server)
    with contextlib.closing(source.snapshot([table], Position(begin.resolved, begin.to_json()))) as snapshot:
        seen = [row["i"] for batch in snapshot.read(snapshot.schema(table)) for row in batch.to_pylist()]
    run(server, database, "XA COMMIT 'old'")
    assert (seen, numbers(read(server, database, begin))) == ([2], [1])


@pytest.mark.parametrize("arena_bytes", [SMALL, 1 << 22])
def test_a_transaction_larger_than_an_arena(server: EmbeddedMariaDB, database: str, arena_bytes: int) -> None:
    begin = where(server)
    many = "INSERT INTO t SELECT seq, repeat('x', 190) FROM seq_1_to_60000"
    prepare(server, database, "a", many)
    run(server, database, "INSERT INTO t VALUES (-1, '')")
    run(server, database, "XA ROLLBACK 'a'")
    prepare(server, database, "a", many, "UPDATE t SET s = 'y' WHERE i = 1")
    run(server, database, "INSERT INTO t VALUES (-2, '')", "XA COMMIT 'a'", "INSERT INTO t VALUES (-3, '')")
    found = numbers(read(server, database, begin, arena_bytes=arena_bytes))
    assert found == [-1, -2, *range(1, 60001), 1, -3]


def test_compressed_events_are_read_again(flavour: type[EmbeddedMariaDB], tmp_path: Path) -> None:
    settings = {"binlog_transaction_compression": "ON"}
    if flavour is EmbeddedMariaDB:
        settings = {"log_bin_compress": "ON", "log_bin_compress_min_len": "10"}
    with flavour(tmp_path / "my", unsafe_no_fsync=True, settings=settings) as server:
        database = made_in(server)
        begin = where(server)
        many = "INSERT INTO t SELECT seq, repeat('x', 190) FROM seq_1_to_3000"
        prepare(server, database, "a", many)
        middle = where(server)
        run(server, database, "INSERT INTO t VALUES (-1, '')", "XA COMMIT 'a'", "INSERT INTO t VALUES (-2, '')")
        for start in (begin, middle):
            assert numbers(read(server, database, start)) == [-1, *range(1, 3001), -2]


@pytest.mark.matrix
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_the_server_is_restarted_in_between(flavour: type[EmbeddedMariaDB], tmp_path: Path, end: str) -> None:
    with flavour(tmp_path / "my", settings={"binlog_row_metadata": "MINIMAL"}) as server:
        database = made_in(server)
        begin = where(server)
        prepare(server, database, "a", insert(1))
        prepare(server, database, "b", insert(2))
        getattr(server, end)()
        server.start()
        assert len(server.execute("XA RECOVER")) == 2
        run(server, database, "CREATE TABLE other (a text, b int)", "INSERT INTO other VALUES ('', 7)")
        run(server, database, "XA COMMIT 'b'", "XA ROLLBACK 'a'", insert(1))
        cuts = read(server, database, begin)
        assert [number for cut in cuts for number in table_numbers(cut, "t")] == [2, 1]


def table_numbers(cut: LogChunk, name: str) -> list[int]:
    """The first column of one table's rows."""
    return [
        number
        for batch in cut.batches()
        if batch.schema.name == name
        for number in decode(batch.schema, batch.batch).after.column(0).to_pylist()
    ]


def test_a_purged_file_is_reported(flavour: type[EmbeddedMariaDB], tmp_path: Path) -> None:
    with flavour(tmp_path / "my", unsafe_no_fsync=True) as server:
        database = made_in(server)
        begin = where(server)
        prepare(server, database, "a", insert(1))
        run(server, database, "FLUSH BINARY LOGS", insert(2))
        known = reached(read(server, database, begin))
        later = where(server)
        while [begin.binlog.file] in [row[:1] for row in server.execute("SHOW BINARY LOGS")]:
            run(server, database, f"PURGE BINARY LOGS TO '{later.binlog.file}'")
        run(server, database, insert(3), "XA COMMIT 'a'")
        for start in (known, later):
            with pytest.raises(SnapshotLostByGCError, match="resume --resync"):
                read(server, database, start)


@pytest.mark.matrix
def test_another_server_has_it_elsewhere(flavour: type[EmbeddedMariaDB], tmp_path: Path) -> None:
    settings = {"log_slave_updates": "ON"} if flavour is EmbeddedMariaDB else {}
    with (
        flavour(tmp_path / "a", unsafe_no_fsync=True) as old,
        flavour(tmp_path / "b", unsafe_no_fsync=True, settings=settings) as new,
    ):
        database = made_in(old)
        begin = where(old)
        prepare(old, database, "a", insert(1))
        prepare(old, database, "b", insert(2))
        run(old, database, insert(3))
        at = reached(read(old, database, begin))
        follow(new, old, where(old).gtid)
        run(new, database, "FLUSH BINARY LOGS", "XA COMMIT 'b'", "XA ROLLBACK 'a'", insert(4))
        with connect(new.uri()) as connection:
            resumption = resume(connection, at)
        assert resumption.by_gtid
        assert resumption.position.needed == resumption.position.binlog
        with (
            rereading(new) as reread,
            streaming(new, resumption.position, database, by_gtid=True, reread=reread.rows_of) as stream,
        ):
            cuts = read_until(stream, in_epoch_of(resumption.position, where(new)))
        assert numbers(cuts) == [2, 4]


def in_epoch_of(begun: SourcePosition, end: SourcePosition) -> SourcePosition:
    return SourcePosition(begun.epochs, end.file_number, end.digits, end.position, end.gtid)


class Log:
    """A changefeed's log, and sync units that write it one after the other."""

    def __init__(self, server: EmbeddedMariaDB, database: str, directory: Path) -> None:
        self._server = server
        self._etcd = newest_etcd()
        self._key = LogKey("c", "default", ChangefeedId("feed"), "mysql")
        self._table = TableRecord(table_id=table_id(database, "t"), schema_name=database, name="t", key=("i",))
        self._directory = LogDirectory(str(directory), changefeed="feed", source="mysql")
        self._begin = where(server)

    async def follow(self) -> None:
        """One unit, until it has read what there is."""
        end = where(self._server)
        unit = SyncUnit(
            MysqlStreams(
                parse_uri(self._server.uri()),
                StreamOrder((self._table,), reader=4714),
                Scope("c", "feed", SinkMode.UPSERT, ChangefeedConfig()),
            ),
            Position(self._begin.resolved, self._begin.to_json()),
            writer=LogWriter(MetaHeadStore(MemoryClient(self._etcd), self._key), capture=CaptureId("a")),
            directory=self._directory,
            needs=lambda: Needs(Ts(0), 3600.0),
            settings=SyncSettings(segment_bytes=SMALL),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(unit.run)
            async with MemoryClient(self._etcd).watch_prefix(str(self._key), start_revision=1) as batches:
                async for batch in batches:
                    if any(
                        LogHead.decode(event.value or b"", key="").resolved_ts >= end.resolved for event in batch.events
                    ):
                        break
            tasks.cancel_scope.cancel()

    def numbers(self) -> list[int]:
        item = self._etcd.get(str(self._key))
        assert item is not None
        head = LogHead.decode(item.value, key="")
        return [
            number
            for ref in LogReader(self._directory).segments(head, self._begin.resolved, head.resolved_ts)
            for schema, batch, _ in segment.read_batches(ref.path)
            for number in decode(schema, batch).after.column("i").to_pylist()
        ]


def test_what_the_server_has_forgotten_is_given_up(server: EmbeddedMariaDB, database: str) -> None:
    """As after a fall that cost it a prepared transaction: the binlog has it, and XA RECOVER has not."""
    prepare(server, database, "held", insert(1))
    prepare(server, database, "it's, held".replace("'", "''"), insert(2))
    at = where(server)
    held = [(digest(name), int(at.ts) - 1) for name in ("X'68656C64',X'',1", "X'697427732C2068656C64',X'',1")]
    at = replace(at, prepared=(("lost", int(at.ts) - 2), *held))
    run(server, database, insert(3))
    end, arena = where(server), Arena(1 << 20)
    streams = MysqlStreams(
        parse_uri(server.uri()),
        StreamOrder((), reader=4715),
        Scope("c", "feed", SinkMode.UPSERT, ChangefeedConfig()),
    )
    with contextlib.closing(streams.open(Position(at.resolved, at.to_json()), arena)) as opened:
        assert opened.stream.position().prepared == at.prepared
        read_until(opened.stream, end)
        assert opened.stream.position().prepared == tuple(held)
    run(server, database, "XA ROLLBACK 'held'", "XA ROLLBACK 'it''s, held'")


async def test_a_worker_that_falls_in_between_leaves_all_to_the_next(
    server: EmbeddedMariaDB, database: str, tmp_path: Path
) -> None:
    log = Log(server, database, tmp_path)
    prepare(server, database, "a", insert(1))
    prepare(server, database, "b", "INSERT INTO t SELECT seq, repeat('x', 190) FROM seq_101_to_5100")
    prepare(server, database, "c", insert(2))
    await log.follow()
    assert log.numbers() == []
    run(server, database, "XA COMMIT 'b'", insert(3), "XA ROLLBACK 'c'")
    await log.follow()
    assert log.numbers() == [*range(101, 5101), 3]
    run(server, database, "XA COMMIT 'a'")
    await log.follow()
    assert log.numbers() == [*range(101, 5101), 3, 1]
