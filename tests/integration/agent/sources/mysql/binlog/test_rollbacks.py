"""Rolled back changes in the binlog, also where half of them are in the change log; ALTERs in two steps."""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from uuid import uuid4

import anyio
import numpy as np
import pytest

from agent.log import segment
from agent.log.head import LogWriter
from agent.log.head_store import MetaHeadStore
from agent.log.reader import LogReader
from agent.log.retention import Needs
from agent.log.storage import LogDirectory
from agent.ports.source import Position, Scope, StreamOrder, StreamRestart
from agent.rows.arena import LogChunk
from agent.rows.changes import Changes
from agent.settings import SyncSettings
from agent.sources.mysql.binlog.rolled_back import RolledBack
from agent.sources.mysql.decode.decode import decode
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.position.positions import SourcePosition
from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.server.uri import parse_uri
from agent.sources.mysql.starts import start_position
from agent.sources.mysql.streams import MysqlStreams
from agent.units.sync import SyncUnit
from capture.embedded import EmbeddedMariaDB
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.keys import LogKey
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from reactor.records.log_head import LogHead
from reactor.records.tables.table import TableRecord
from reactor.store.memory import MemoryClient
from tests.integration.agent.sources.mysql.binlog_rig import lines, read_until, run, streaming, where
from tests.newest import newest_etcd

SMALL = 1 << 17
#: a temporary table makes the server write the transaction although it is rolled back
GIVEN_UP = (
    "BEGIN",
    "INSERT INTO t SELECT seq, repeat('-', 150) FROM seq_100001_to_120000",
    "CREATE TEMPORARY TABLE x (i int)",
    "INSERT INTO t VALUES (-1, '-')",
    "ROLLBACK",
)
#: the binlog knows savepoints where a table without transactions is written behind them
GONE_BACK = (
    "BEGIN",
    "INSERT INTO t SELECT seq, repeat('+', 150) FROM seq_1_to_2000",
    "SAVEPOINT a",
    "INSERT INTO t SELECT seq, repeat('-', 150) FROM seq_2001_to_5000",
    "SAVEPOINT b",
    "INSERT INTO t SELECT seq, repeat('-', 150) FROM seq_5001_to_8000",
    "INSERT INTO u VALUES (1)",
    "ROLLBACK TO b",
    "INSERT INTO t SELECT seq, repeat('-', 150) FROM seq_5001_to_7000",
    "ROLLBACK TO a",
    "INSERT INTO t SELECT seq, repeat('+', 150) FROM seq_3001_to_6000",
    "SAVEPOINT c",
    "INSERT INTO t SELECT seq, repeat('-', 150) FROM seq_7001_to_9000",
    "ROLLBACK TO c",
    "COMMIT",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedMariaDB]:
    settings = {"binlog_alter_two_phase": "ON", "binlog_row_event_max_size": str(1 << 23), "log_bin_compress": "OFF"}
    with EmbeddedMariaDB(tmp_path_factory.mktemp("my"), unsafe_no_fsync=True, settings=settings) as part:
        yield part


@pytest.fixture
def database(mariadb: EmbeddedMariaDB) -> str:
    return made_in(mariadb)


def made_in(server: EmbeddedMariaDB) -> str:
    name = f"r_{uuid4().hex[:8]}"
    server.create_database(name)
    run(server, name, "CREATE TABLE t (i int PRIMARY KEY, s varchar(200))", "CREATE TABLE u (i int) ENGINE=MyISAM")
    return name


def read_again_and_again(server: EmbeddedMariaDB, database: str, begin: SourcePosition) -> tuple[list[LogChunk], int]:
    """As a sync unit does, which starts again where the last transaction has ended; also how often."""
    end, known = where(server), RolledBack()
    for restarts in range(10):
        try:
            with streaming(server, begin, database, arena_bytes=SMALL, rolled_back=known) as stream:
                return read_until(stream, end, arena_bytes=SMALL), restarts
        except StreamRestart:
            continue
    raise AssertionError("it does not come to an end")


def changes_of(cuts: list[LogChunk], name: str) -> list[Changes]:
    return [decode(batch.schema, batch.batch) for cut in cuts for batch in cut.batches() if batch.schema.name == name]


def rows_of(cuts: list[LogChunk], name: str) -> int:
    return sum(len(changes.op) for changes in changes_of(cuts, name))


def letters(found: list[Changes]) -> set[str]:
    """What the text of rows of ``t`` is made of."""
    return {text[0] for changes in found for text in changes.after.column("s").to_pylist()}


def test_a_large_transaction_that_is_rolled_back_leaves_nothing(mariadb: EmbeddedMariaDB, database: str) -> None:
    begin = where(mariadb)
    run(mariadb, database, *GIVEN_UP)
    run(mariadb, database, "INSERT INTO t VALUES (1, '+')")
    cuts, restarts = read_again_and_again(mariadb, database, begin)
    assert (letters(changes_of(cuts, "t")), rows_of(cuts, "t"), restarts) == ({"+"}, 1, 1)


def test_savepoints_of_a_large_transaction(mariadb: EmbeddedMariaDB, database: str) -> None:
    begin = where(mariadb)
    run(mariadb, database, *GONE_BACK)
    run(mariadb, database, *GIVEN_UP)
    cuts, restarts = read_again_and_again(mariadb, database, begin)
    assert mariadb.execute(f"SELECT count(*), min(left(s, 1)) FROM {database}.t") == [[5000, "+"]]
    assert (letters(changes_of(cuts, "t")), rows_of(cuts, "t"), rows_of(cuts, "u")) == ({"+"}, 5000, 1)
    assert restarts == 4
    ordinals = [seq for name, ts, seq, _ in lines(cuts) if name == "t"]
    assert ordinals == sorted(set(ordinals))


@pytest.mark.matrix
async def test_the_log_has_nothing_of_what_was_rolled_back(
    mariadb: EmbeddedMariaDB, database: str, tmp_path: Path
) -> None:
    begin, etcd = where(mariadb), newest_etcd()
    key = LogKey("c", "default", ChangefeedId("feed"), "mysql")
    table = TableRecord(table_id=table_id(database, "t"), schema_name=database, name="t", key=("i",))
    directory = LogDirectory(str(tmp_path), changefeed="feed", source="mysql")
    unit = SyncUnit(
        MysqlStreams(
            parse_uri(mariadb.uri()),
            StreamOrder((table,), reader=4713),
            Scope("c", "feed", SinkMode.UPSERT, ChangefeedConfig()),
        ),
        Position(begin.resolved, begin.to_json()),
        writer=LogWriter(MetaHeadStore(MemoryClient(etcd), key), capture=CaptureId("a")),
        directory=directory,
        needs=lambda: Needs(Ts(0), 3600.0),
        settings=SyncSettings(segment_bytes=SMALL),
    )
    run(mariadb, database, *GONE_BACK)
    run(mariadb, database, *GIVEN_UP)
    end = where(mariadb)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(unit.run)
        async with MemoryClient(etcd).watch_prefix(str(key), start_revision=1) as batches:
            async for batch in batches:
                if any(
                    LogHead.decode(event.value or b"", key="").resolved_ts >= end.resolved for event in batch.events
                ):
                    break
        tasks.cancel_scope.cancel()
    item = etcd.get(str(key))
    assert item is not None
    head = LogHead.decode(item.value, key="")
    found = [
        decode(schema, batch)
        for ref in LogReader(directory).segments(head, begin.resolved, head.resolved_ts)
        for schema, batch, _ in segment.read_batches(ref.path)
    ]
    assert sum(len(changes.op) for changes in found) == 5000
    assert letters(found) == {"+"}
    assert unit.statistics().sessions == 5


@pytest.mark.matrix
def test_an_alter_in_two_steps_is_one_where_it_is_done(server: EmbeddedMariaDB) -> None:
    database = made_in(server)
    begin = where(server)
    run(server, database, "INSERT INTO t VALUES (1, 'a')", "ALTER TABLE t ADD c int", "INSERT INTO u VALUES (1), (1)")
    with pytest.raises(Exception, match="Duplicate entry"):
        run(server, database, "ALTER TABLE u ADD PRIMARY KEY (i)")
    run(server, database, "INSERT INTO t VALUES (2, 'b', 3)")
    steps = [row[5] for row in server.execute(f"SHOW BINLOG EVENTS IN '{begin.binlog.file}'") if "ALTER" in str(row[5])]
    assert [sum(word in step for step in steps) for word in ("START", "COMMIT", "ROLLBACK")] == [2, 1, 1]
    with streaming(server, begin, database) as stream:
        cuts = read_until(stream, where(server))
    assert [record.statement for cut in cuts for record in cut.ddl] == ["ALTER TABLE t ADD c int"]
    assert [len(batch.schema.columns) for cut in cuts for batch in cut.batches() if batch.schema.name == "t"] == [2, 3]


@pytest.mark.matrix
def test_an_alter_in_two_steps_with_rows_between_them_is_read_from_anywhere(server: EmbeddedMariaDB) -> None:
    """Rows between the steps are of the table as it was, whoever begins to read there."""
    database = made_in(server)
    run(server, database, "INSERT INTO t SELECT seq, repeat('x', 150) FROM seq_1_to_100000")
    begin = where(server)
    alter = "ALTER TABLE t ADD c int DEFAULT 7, ADD INDEX (s), ALGORITHM=INPLACE, LOCK=NONE"
    doing = Thread(target=run, args=(server, database, alter))
    doing.start()
    number = -1
    while doing.is_alive():
        run(server, database, f"INSERT INTO t (i, s) VALUES ({number}, 'between')")
        number -= 1
    doing.join()
    run(server, database, "INSERT INTO t VALUES (-1000000, 'behind', 9)")
    file = begin.binlog.file
    events = [row[5] for row in server.execute(f"SHOW BINLOG EVENTS IN '{file}' FROM {begin.position}")]
    kinds = ["START" if "START ALTER" in text else "COMMIT" if "COMMIT ALTER" in text else text for text in events]
    assert any("between" in text for text in kinds[kinds.index("START") : kinds.index("COMMIT")]), "nothing is tested"
    whole = told_from(server, database, begin)
    assert [columns for _, columns in whole][-1:] == [3]
    assert [columns for _, columns in whole].count(0) == 1, "the definition, once"
    at = [columns for _, columns in whole].index(0)
    near = max(at - 2, 0)
    # around the definition, and some of the rows before it: there is one for each few milliseconds of the ALTER
    for ts in {ts for ts, _ in [*whole[: near : near // 6 + 1], *whole[near:]]}:
        with connect(server.uri()) as connection:
            later = start_position(connection, Ts(ts))
        assert told_from(server, database, later) == [item for item in whole if item[0] > ts]


def told_from(server: EmbeddedMariaDB, database: str, begin: SourcePosition) -> list[tuple[int, int]]:
    """Commits in order: their Ts, and how many columns their rows have; none stand for a definition."""
    end = where(server)
    if begin.ts >= end.ts:
        return []
    with streaming(server, begin, database) as stream:
        cuts = read_until(stream, end)
    found = [(int(record.ts), 0) for cut in cuts for record in cut.ddl]
    for cut in cuts:
        for batch in cut.batches():
            found += [(ts, len(batch.schema.columns)) for ts in batch.batch.column("commit_ts").to_pylist()]
    return sorted(found)


@pytest.mark.matrix
@pytest.mark.parametrize("compressed", [pytest.param("OFF", marks=pytest.mark.matrix), "ON"])
def test_rows_of_a_huge_event_come_before_those_of_the_next(server: EmbeddedMariaDB, compressed: str) -> None:
    """An event may have more rows than an ordinal has room for."""
    database, count = made_in(server), 1_500_000
    run(server, database, f"SET GLOBAL log_bin_compress = {compressed}", "CREATE TABLE tiny (i tinyint)")
    begin = where(server)
    run(
        server,
        database,
        "BEGIN",
        f"INSERT INTO tiny SELECT 1 FROM seq_1_to_{count}",
        "DELETE FROM tiny LIMIT 3",
        "INSERT INTO tiny VALUES (2)",
        "COMMIT",
    )
    with streaming(server, begin, database, arena_bytes=1 << 24) as stream:
        [batch] = [batch for cut in read_until(stream, where(server)) for batch in cut.batches()]
    assert batch.batch.num_rows == 3, "one event for each statement"
    seq = decode(batch.schema, batch.batch).seq
    assert len(seq) == count + 4
    assert bool(np.all(np.diff(seq) > 0))
