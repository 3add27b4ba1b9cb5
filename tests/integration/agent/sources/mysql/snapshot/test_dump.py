"""Dumps of real servers: what is staged and what the binlog says after it are the source, whatever interrupts."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pymysql
import pytest

from agent.errors import SourceAuthError, SourceUnreachableError, TableHeldError, TableLockedError
from agent.ports.executor import Executor
from agent.ports.sink import Sink, StagedFile
from agent.ports.snapshot import DumpOrder
from agent.rows.changes import DELETE
from agent.sources.mysql.decode.decode import decode
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.position import consistency
from agent.sources.mysql.position.positions import SourcePosition
from agent.sources.mysql.server.cascades import logs_cascades
from agent.sources.mysql.server.catalog import read_schemas
from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.server.uri import parse_uri
from agent.sources.mysql.snapshot.dump import MysqlDumper
from agent.sources.mysql.snapshot.rows import MysqlSnapshot
from agent.units.chunk_run import NO_KEY
from agent.units.dump import DumpUnit
from agent.units.manifest import Manifest, read_manifest
from capture.embedded import EmbeddedMariaDB
from reactor.errors import WeirError
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord
from tests.integration.agent.sources.mysql.row_events import new_binlog, table_events
from tests.integration.agent.units.test_dump import InlineExecutor, ParquetStage
from tests.mysql_server import is_mariadb
from tests.patience import HANG_S

pytestmark = pytest.mark.sample(0.3)  # make matrix runs the others

T = TypeVar("T")
U = TypeVar("U")
Rows = dict[tuple[Any, ...], dict[str, Any]]
Hook = Callable[[str], None]

_END = Ts(2**63 - 1)
#: the number of latin1_swedish_ci
_LATIN1 = 8


class HookedStage(ParquetStage):
    """``before`` is called for every chunk, ``table/number``."""

    def __init__(self, directory: Path, before: Hook) -> None:
        super().__init__(directory)
        self._before = before

    def stage(self, table: TableRecord, chunk_id: str, batches: Iterator[pa.RecordBatch], ts: Ts) -> list[StagedFile]:
        self._before(f"{table.name}/{chunk_id.partition('-')[2]}")
        return super().stage(table, chunk_id, batches, ts)


class RefusingStage(ParquetStage):
    """Of tables named ``bad…`` it takes the first rows, and no more. ``meanwhile`` is called then."""

    def __init__(self, directory: Path, meanwhile: Callable[[], None]) -> None:
        super().__init__(directory)
        self._meanwhile = meanwhile

    def stage(self, table: TableRecord, chunk_id: str, batches: Iterator[pa.RecordBatch], ts: Ts) -> list[StagedFile]:
        if table.name.startswith("bad"):
            next(batches)
            self._meanwhile()
            raise TableHeldError(f"no sink has room for {table.name}")
        return super().stage(table, chunk_id, batches, ts)


class HookedExecutor(InlineExecutor):
    """Reads in this process, so that hooks are seen; a descriptor goes as it is."""

    def cores(self) -> int:
        return 1

    def map(self, function: Callable[[T], U], descriptors: Sequence[T], *, description: str, **_: object) -> list[U]:
        self.descriptions.append(description)
        return [function(descriptor) for descriptor in descriptors]


@dataclass
class Source:
    """A database of its own."""

    server: EmbeddedMariaDB
    name: str
    stage: Path
    #: the file with its first statements
    binlog: str

    def run(self, *statements: str) -> None:
        with closing(self.server.connect(self.name)) as session, session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows(self, table: str, key: Sequence[str]) -> Rows:
        cursors = pymysql.cursors.DictCursor
        with closing(self.server.connect(self.name)) as session, session.cursor(cursors) as cursor:
            cursor.execute(f"SELECT * FROM {table}")
            return {tuple(row[name] for name in key): dict(row) for row in cursor.fetchall()}

    def record(self, name: str, *key: str) -> TableRecord:
        return TableRecord(table_id=table_id(self.name, name), schema_name=self.name, name=name, key=key)

    def unit(
        self,
        manifest: Manifest,
        *tables: TableRecord,
        before: Hook = lambda _: None,
        executor: Executor | None = None,
        epoch: int = 1,
        sink_mode: SinkMode = SinkMode.UPSERT,
    ) -> DumpUnit:
        order = DumpOrder(
            tables=tables,
            sink_mode=sink_mode,
            open_sink=cast("Callable[[], Sink]", partial(HookedStage, self.stage, before)),
            epoch=epoch,
            chunk_rows=1_000,
            parallel=3,
        )
        return DumpUnit(MysqlDumper(self.server.uri()), order, manifest, executor or HookedExecutor())

    def staged(self, manifest: Manifest, name: str, key: Sequence[str]) -> Rows:
        [files] = [files for record, _, files in read_manifest(manifest.uri) if record.name == name]
        rows: Rows = {}
        for row in (row for file in files for row in pq.read_table(file.path).to_pylist()):
            place = tuple(row[part] for part in key)
            assert place not in rows, "a chunk overlaps another"
            rows[place] = row
        return rows

    def replayed(self, rows: Rows, name: str, key: Sequence[str], *, behind: Ts, until: Ts = _END) -> Rows:
        """``rows`` with every change in ``(behind, until]``: what an upsert sink comes to hold."""
        for schema, events in table_events(self.server, self.name, name, since=self.binlog):
            changes = decode(schema, events)
            after = changes.after.to_pylist()
            before = changes.before.to_pylist() if changes.before is not None else after
            for i in range(len(changes)):
                if behind < changes.commit_ts[i] <= until:
                    rows.pop(tuple(before[i][part] for part in key), None)
                    if changes.op[i] != DELETE:
                        rows[tuple(after[i][part] for part in key)] = after[i]
        return rows


@pytest.fixture
def source(server: EmbeddedMariaDB, tmp_path: Path) -> Source:
    return _source(server, tmp_path)


def _source(server: EmbeddedMariaDB, tmp_path: Path) -> Source:
    name = f"dump_{uuid.uuid4().hex[:8]}"
    binlog = new_binlog(server)
    server.create_database(name)
    found = Source(server, name, tmp_path, binlog)
    found.run(
        "CREATE TABLE keyed (id int PRIMARY KEY, v text, n decimal(10,2))",
        "CREATE TABLE pair (a int, b varchar(20), v int, PRIMARY KEY (a, b))",
        "CREATE TABLE loose (v int)",
        "CREATE TABLE `empty` (id int PRIMARY KEY)",
        "INSERT INTO keyed SELECT seq, concat('row ', seq), seq / 4 FROM seq_1_to_4500",
        "INSERT INTO pair SELECT seq, concat('b', seq % 7), seq FROM seq_1_to_3500",
        "INSERT INTO loose SELECT seq % 10 FROM seq_1_to_100",
    )
    return found


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return Manifest.for_source(str(tmp_path / "log"), changefeed="feed", source="source")


_CHANGES = (
    "UPDATE keyed SET v = concat(v, '!') WHERE id % 3 = 0",
    "DELETE FROM keyed WHERE id % 10 = 1",
    "UPDATE keyed SET id = id + 100000 WHERE id % 500 = 0",
    "UPDATE keyed SET id = 11 WHERE id = 4444",
    "INSERT INTO keyed SELECT seq, 'new', NULL FROM seq_5000_to_5100",
    "UPDATE pair SET v = -v WHERE a % 2 = 0",
    "DELETE FROM pair WHERE a > 3400",
)


def _at(number: str, act: Callable[[], object]) -> Hook:
    def hook(chunk: str) -> None:
        if chunk == number:
            act()

    return hook


def test_rows_of_many_moments_and_the_log_from_the_first_on_are_the_source(source: Source, manifest: Manifest) -> None:
    tables = [source.record("keyed", "id"), source.record("pair", "a", "b"), source.record("empty", "id")]
    change = _at("keyed/2", lambda: source.run(*_CHANGES))
    result = source.unit(manifest, *tables, before=change).run_blocking()
    keyed, pair, _ = result.tables
    assert result.start.ts == keyed.start_ts == pair.start_ts < keyed.consistent_ts
    for record, key in ((keyed, ["id"]), (pair, ["a", "b"])):
        rows = source.staged(manifest, record.name, key)
        mended = source.replayed(rows, record.name, key, behind=record.start_ts, until=record.consistent_ts)
        assert mended == source.rows(record.name, key)
    assert source.staged(manifest, "empty", ["id"]) == {}


def test_a_key_and_a_character_set_that_changed_since_the_table_was_found_are_those_of_the_dump(
    source: Source, manifest: Manifest
) -> None:
    tables = [source.record("keyed", "id"), source.record("pair", "a", "b"), source.record("empty", "id")]
    source.run(
        "ALTER TABLE keyed ADD code int NOT NULL UNIQUE AUTO_INCREMENT, DROP PRIMARY KEY, ADD PRIMARY KEY (code)",
        "UPDATE keyed SET id = id DIV 2",
        "ALTER TABLE pair DROP PRIMARY KEY",
        "ALTER TABLE `empty` DROP PRIMARY KEY, ADD COLUMN other int NOT NULL UNIQUE, CHARACTER SET latin1",
    )
    keyed, pair, empty = source.unit(manifest, *tables).run_blocking().tables
    assert (keyed.collation == empty.collation, empty.collation) == (False, _LATIN1)
    assert (keyed.key, pair.key, empty.key) == (("code",), (), ("other",))
    assert manifest.read_refused() == {pair.table_id: NO_KEY}
    assert source.staged(manifest, "keyed", ["code"]) == source.rows("keyed", ["code"])


@pytest.mark.parametrize("why", ["changelog", "no key", "images"])
def test_exact_rows_are_all_of_one_moment(source: Source, manifest: Manifest, why: str) -> None:
    tables = [source.record("keyed", "id"), source.record("pair", "a", "b")]
    tables += [source.record("loose")] if why == "no key" else []
    original = source.rows("keyed", ["id"])
    mode = SinkMode.CHANGELOG if why == "changelog" else SinkMode.UPSERT
    change = _at("keyed/0", lambda: source.run(*_CHANGES))
    executor = HookedExecutor()
    unit = source.unit(manifest, *tables, before=change, executor=executor, sink_mode=mode)
    with _row_image(source.server, "MINIMAL" if why == "images" else "FULL"):
        result = unit.run_blocking()
    assert executor.descriptions == []
    keyed = result.tables[0]
    assert (keyed.start_ts, keyed.consistent_ts) == (result.start.ts, 0)
    rows = source.staged(manifest, "keyed", ["id"])
    assert rows == original
    if why != "images":
        assert source.replayed(rows, "keyed", ["id"], behind=keyed.start_ts) == source.rows("keyed", ["id"])


@contextmanager
def _row_image(server: EmbeddedMariaDB, image: str) -> Iterator[None]:
    server.execute(f"SET GLOBAL binlog_row_image = '{image}'")
    try:
        yield
    finally:
        server.execute("SET GLOBAL binlog_row_image = 'FULL'")


def _interrupted(source: Source, manifest: Manifest, *tables: TableRecord, at: str, mode: SinkMode) -> None:
    def fail() -> None:
        raise WeirError("killed")

    with pytest.raises(WeirError, match="killed"):
        source.unit(manifest, *tables, before=_at(at, fail), sink_mode=mode).run_blocking()


def test_a_resumed_dump_keeps_chunks_by_key_and_replay_mends_them(source: Source, manifest: Manifest) -> None:
    tables = [source.record("keyed", "id"), source.record("pair", "a", "b")]
    _interrupted(source, manifest, *tables, at="pair/2", mode=SinkMode.UPSERT)
    source.run(*_CHANGES)
    executor = HookedExecutor()
    result = source.unit(manifest, *tables, executor=executor, epoch=2).run_blocking()
    source.run("UPDATE keyed SET n = 0 WHERE id % 7 = 0", "UPDATE pair SET v = 1 WHERE a < 50")
    assert not [description for description in executor.descriptions if "keyed" in description]
    assert len(executor.descriptions) < 4
    for record, key in zip(result.tables, (["id"], ["a", "b"]), strict=True):
        assert record.start_ts == result.start.ts < record.consistent_ts
        rows = source.staged(manifest, record.name, key)
        assert source.replayed(rows, record.name, key, behind=record.start_ts) == source.rows(record.name, key)


def test_a_changelog_table_that_is_not_complete_is_read_again_at_the_new_moment(
    source: Source, manifest: Manifest
) -> None:
    tables = [source.record("keyed", "id"), source.record("pair", "a", "b")]
    _interrupted(source, manifest, *tables, at="pair/3", mode=SinkMode.CHANGELOG)
    at_first = source.rows("keyed", ["id"])
    source.run(*_CHANGES)
    seen: list[str] = []
    unit = source.unit(manifest, *tables, before=seen.append, epoch=2, sink_mode=SinkMode.CHANGELOG)
    keyed, pair = unit.run_blocking().tables
    assert sorted(seen) == [f"pair/{number}" for number in range(4)]
    assert keyed.start_ts < pair.start_ts
    assert source.staged(manifest, "keyed", ["id"]) == at_first
    assert source.staged(manifest, "pair", ["a", "b"]) == source.rows("pair", ["a", "b"])


@pytest.mark.matrix
def test_a_dump_whose_binlog_was_purged_starts_over(
    flavour: type[EmbeddedMariaDB], tmp_path: Path, manifest: Manifest
) -> None:
    # A server of its own: others want their binlogs.
    with flavour(tmp_path / "mariadb", unsafe_no_fsync=True) as server:
        _purge_and_go_on(_source(server, tmp_path), manifest)


def _purge_and_go_on(source: Source, manifest: Manifest) -> None:
    tables = [source.record("keyed", "id")]
    _interrupted(source, manifest, *tables, at="keyed/4", mode=SinkMode.UPSERT)
    before = manifest.read_plan()
    assert before is not None
    source.run(*_CHANGES, "FLUSH BINARY LOGS")
    [*_, (newest, *_)] = source.server.execute("SHOW BINARY LOGS")
    # The server keeps a file until its engine has flushed what is in it.
    source.server.restart()
    source.run(f"PURGE BINARY LOGS TO '{newest}'")
    assert source.server.execute("SHOW BINARY LOGS")[0][0] == newest
    executor = HookedExecutor()
    result = source.unit(manifest, *tables, executor=executor, epoch=2).run_blocking()
    assert executor.has_read_all
    assert result.start.ts > before.start_ts
    assert source.staged(manifest, "keyed", ["id"]) == source.rows("keyed", ["id"])


def test_tables_cannot_be_altered_while_they_are_read(source: Source, manifest: Manifest) -> None:
    def alter() -> None:
        for statement in ("TRUNCATE pair", "ALTER TABLE keyed ADD COLUMN late int"):
            with pytest.raises(pymysql.err.OperationalError, match="Lock wait timeout"):
                source.run("SET lock_wait_timeout = 0", statement)

    tables = [source.record("keyed", "id"), source.record("pair", "a", "b")]
    assert source.unit(manifest, *tables, before=_at("keyed/3", alter)).run_blocking().rows_done == 8000
    source.run("ALTER TABLE keyed ADD COLUMN late int")


def test_a_statement_that_changes_a_table_does_not_wait_for_all_of_it(source: Source, manifest: Manifest) -> None:
    """Readers that come later wait behind the statement, chunks too, and it waits for the dump: the run ends for it."""
    waiting = "SELECT 1 FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock%'"
    alter = f"SET lock_wait_timeout = {HANG_S:.0f}", "ALTER TABLE keyed ADD COLUMN late int DEFAULT 7"
    changed = threading.Thread(target=source.run, args=alter)

    def change() -> None:
        changed.start()
        while not source.server.execute(waiting):
            time.sleep(0.01)

    tables = [source.record("keyed", "id")]
    with pytest.raises(WeirError) as caught:
        source.unit(manifest, *tables, before=_at("keyed/3", change)).run_blocking()
    assert (caught.value.code, caught.value.retryable) == (TableLockedError.code, True)
    changed.join(HANG_S)
    assert not changed.is_alive()
    source.unit(manifest, *tables, epoch=2).run_blocking()
    rows = source.staged(manifest, "keyed", ["id"])
    assert rows == source.rows("keyed", ["id"])
    assert {row["late"] for row in rows.values()} == {7}


@pytest.mark.parametrize("mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])
def test_chunks_read_after_the_sessions_were_lost_do_not_count(
    source: Source, manifest: Manifest, mode: SinkMode
) -> None:
    def kill() -> None:
        [*mine] = source.server.execute(
            "SELECT id FROM information_schema.processlist WHERE user = 'weir' AND command = 'Sleep' "
            "OR info LIKE '%`keyed`%'"
        )
        for (number,) in mine:
            _kill(source.server, number)
        source.run("SET lock_wait_timeout = 20", "ALTER TABLE keyed ADD COLUMN late int DEFAULT 7")

    tables = [source.record("keyed", "id")]
    with pytest.raises(SourceUnreachableError) as caught:
        source.unit(manifest, *tables, before=_at("keyed/1", kill), sink_mode=mode).run_blocking()
    assert caught.value.retryable
    source.unit(manifest, *tables, epoch=2, sink_mode=mode).run_blocking()
    rows = source.staged(manifest, "keyed", ["id"])
    assert rows == source.rows("keyed", ["id"])
    assert {row["late"] for row in rows.values()} == {7}


def _kill(server: EmbeddedMariaDB, number: int) -> None:
    with suppress(pymysql.err.OperationalError):  # our own, or gone meanwhile
        server.execute(f"KILL {number}")


@pytest.mark.parametrize("sink_mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])
def test_a_table_that_was_dropped_since_it_was_found_is_left_out(
    source: Source, manifest: Manifest, sink_mode: SinkMode
) -> None:
    tables = [source.record("keyed", "id"), source.record("empty", "id")]
    source.run("DROP TABLE keyed")
    [table] = source.unit(manifest, *tables, sink_mode=sink_mode).run_blocking().tables
    assert table.name == "empty"


def test_a_finished_dump_is_not_done_again(source: Source, manifest: Manifest) -> None:
    tables = [source.record("keyed", "id")]
    first = source.unit(manifest, *tables).run_blocking()
    executor = HookedExecutor()
    again = source.unit(manifest, *tables, executor=executor, epoch=2).run_blocking()
    assert executor.descriptions == []
    assert (again.rows_done, again.start) == (first.rows_done, first.start)


def test_a_finished_dump_of_another_server_begins_again(source: Source, manifest: Manifest) -> None:
    """The end of this server's binlog says nothing of rows that were read from one whose place it has taken."""
    tables = [source.record("keyed", "id")]
    source.unit(manifest, *tables).run_blocking()
    plan = manifest.read_plan()
    assert plan is not None
    at = SourcePosition.from_json(plan.position)
    elsewhere = replace(at, epochs=(replace(at.epoch, server="another"),))
    manifest.write_plan(replace(plan, position=elsewhere.to_json()))
    executor = HookedExecutor()
    again = source.unit(manifest, *tables, executor=executor, epoch=2).run_blocking()
    assert len(executor.descriptions) > 0
    assert SourcePosition.from_json(again.start.text).epoch == at.epoch


@contextmanager
def _load(source: Source) -> Iterator[None]:
    """Three clients that insert one row after the other, while this lasts."""
    stopped = threading.Event()

    def insert(client: int) -> None:
        with closing(source.server.connect(source.name)) as session, session.cursor() as cursor:
            number = client * 1_000_000
            while not stopped.is_set():
                cursor.execute("INSERT INTO keyed VALUES (%s, 'load', 0)", (number,))
                cursor.execute("DELETE FROM keyed WHERE id = %s", (number - 50,))
                number += 1

    clients = [threading.Thread(target=insert, args=(client,)) for client in (1, 2, 3)]
    for thread in clients:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in clients:
            thread.join()


@pytest.mark.parametrize(
    ("grants", "readers"), [("RELOAD ON *.*", 3), ("LOCK TABLES ON {0}.*", 3), ("SELECT ON {0}.*", 1)]
)
def test_readers_agree_on_one_moment_and_know_it_under_load(source: Source, grants: str, readers: int) -> None:
    user = f"u_{uuid.uuid4().hex[:8]}"
    source.run(f"CREATE USER {user} IDENTIFIED BY 'pw'", f"GRANT SELECT ON {source.name}.* TO {user}")
    source.run(f"GRANT {grants.format(source.name)} TO {user}")
    target = parse_uri(f"mysql://{user}:pw@127.0.0.1:{source.server.port}/")
    if not is_mariadb(source.server):
        source.run(f"GRANT REPLICATION CLIENT ON *.* TO {user}")
        if readers == 1:  # there is no exact state without a lock
            with (
                pytest.raises(SourceAuthError, match="run: GRANT RELOAD"),
                consistency.open_readers(target, 3, [(source.name, "keyed")]),
            ):
                pass
            return
    original = source.rows("keyed", ["id"])
    with connect(source.server.uri()) as connection:
        begin = consistency.current_place(connection).ts(0)
        [schema] = read_schemas(connection, [(source.name, "keyed")]).values()
    with _load(source):
        threading.Event().wait(0.3)
        with consistency.open_readers(target, 3, [(source.name, "keyed")]) as opened:
            # Between commits they agree by luck.
            assert len(opened.connections) in (readers, 3)
            counts = {
                connection.query("SELECT count(*), sum(id) FROM " + _quoted(source))[0]
                for connection in opened.connections
            }
            gtid = opened.place.gtid
        with MysqlSnapshot(target, [(source.name, "keyed")]) as snapshot:
            twice = [pa.Table.from_batches(snapshot.read(schema)).to_pylist() for _ in range(2)]

    def moment(ts: Ts) -> Rows:
        return source.replayed(dict(original), "keyed", ["id"], behind=begin, until=ts)

    expected = moment(opened.place.ts(0))
    assert counts == {(str(len(expected)), str(sum(key for (key,) in expected)))}
    assert gtid
    assert {(row["id"],): row for row in twice[0]} == moment(snapshot.ts)
    assert twice[0] == twice[1]


def _quoted(source: Source) -> str:
    return f"`{source.name}`.`keyed`"


def test_a_settled_place_is_not_past_what_is_visible(source: Source) -> None:
    target = parse_uri(source.server.uri())
    original = source.rows("keyed", ["id"])
    with connect(target) as connection:
        begin = consistency.current_place(connection).ts(0)
        [schema] = read_schemas(connection, [(source.name, "keyed")]).values()
    with _load(source):
        threading.Event().wait(0.2)
        for _ in range(5):
            place = consistency.settled_place(target, [(source.name, "keyed")])
            with MysqlSnapshot(target, [(source.name, "keyed")]) as snapshot:
                found = pa.Table.from_batches(snapshot.read(schema)).to_pylist()
            with connect(target) as connection:
                assert place.ts(0) <= snapshot.ts <= consistency.current_place(connection).ts(0)
    expected = source.replayed(original, "keyed", ["id"], behind=begin, until=snapshot.ts)
    assert {(row["id"],): row for row in found} == expected


@pytest.mark.matrix  # daily Spark stages PostgreSQL's, in tests/integration/agent/units, and acceptance tests MariaDB's
@pytest.mark.spark
def test_spark_tasks_stage_chunks(source: Source, manifest: Manifest, spark_executor: Executor) -> None:
    tables = [source.record("keyed", "id"), source.record("pair", "a", "b")]
    order_unit = source.unit(manifest, *tables, executor=spark_executor)
    assert order_unit.run_blocking().rows_done == 8000
    assert source.staged(manifest, "keyed", ["id"]) == source.rows("keyed", ["id"])


def test_more_tables_than_sessions_that_cannot_be_copied_cost_no_session(source: Source, manifest: Manifest) -> None:
    """All rows of an exact dump are of one moment, which ends with the last of its sessions."""
    numbers = " UNION ALL ".join(f"SELECT {digit} AS d" for digit in range(10))
    names = [f"bad{number}" for number in range(5)] + ["good"]
    for name in names:
        source.run(
            f"CREATE TABLE {name} (id int, v varchar(1000))",  # ten MB: more than sockets buffer
            f"INSERT INTO {name} SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d, repeat('x', 1000) "
            f"FROM ({numbers}) a, ({numbers}) b, ({numbers}) c, ({numbers}) e",
        )

    def change() -> None:
        source.run("INSERT INTO good VALUES (-1, 'later')")

    stage = cast("Callable[[], Sink]", partial(RefusingStage, source.stage, change))
    order = DumpOrder(
        tables=tuple(source.record(name) for name in names),
        sink_mode=SinkMode.CHANGELOG,
        open_sink=stage,
        epoch=1,
        parallel=3,
    )
    DumpUnit(MysqlDumper(source.server.uri()), order, manifest, HookedExecutor()).run_blocking()
    staged = source.staged(manifest, "good", ["id"])
    assert len(staged) == 10_000
    plan = manifest.read_plan()
    assert plan is not None
    refused = {chunk.table_id for chunk in manifest.read_done(plan).values() if chunk.refused}
    assert refused == {source.record(name).table_id for name in names if name != "good"}


def test_cascades_that_came_before_the_dump_hold_their_table(source: Source, manifest: Manifest) -> None:
    """What was checked when the changefeed was created may be another definition by then."""
    source.run(
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, parent int)",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (1, 1)",
        "ALTER TABLE child ADD FOREIGN KEY (parent) REFERENCES parent (id) ON DELETE CASCADE",
    )
    source.unit(manifest, source.record("parent", "id"), source.record("child", "id")).run_blocking()
    assert len(source.staged(manifest, "parent", ["id"])) == 1
    with connect(source.server.uri()) as connection:
        is_logged = logs_cascades(connection)
    refused = manifest.read_refused()
    assert list(refused) == ([] if is_logged else [source.record("child").table_id])
    assert is_logged or "foreign keys change its rows" in refused[source.record("child").table_id]


@pytest.mark.parametrize("sink_mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])
def test_a_table_that_the_server_cannot_open_is_refused_alone(
    source: Source, manifest: Manifest, sink_mode: SinkMode
) -> None:
    source.run("ALTER TABLE pair DISCARD TABLESPACE")
    tables = source.record("keyed", "id"), source.record("pair", "a", "b")
    source.unit(manifest, *tables, sink_mode=sink_mode).run_blocking()
    assert source.staged(manifest, "keyed", ["id"]) == source.rows("keyed", ["id"])
    refused = manifest.read_refused()
    assert list(refused) == [source.record("pair").table_id]
    assert "answered 1814" in refused[source.record("pair").table_id]
