"""The dump unit on a real PostgreSQL: what it stages and what the slot streams are the source, whatever interrupts."""

import os
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from anyio import to_thread

from agent.errors import (
    JobError,
    SourceAuthError,
    SourceUnreachableError,
    StatementRefusedError,
    TableGoneError,
    TableLockedError,
)
from agent.ports.executor import Executor
from agent.ports.sink import Sink, StagedFile
from agent.ports.snapshot import DumpOrder
from agent.rows.changes import DELETE, TRUNCATE
from agent.rows.schema import TableSchema
from agent.rows.spans import key_changes
from agent.sources.postgres.decode.decode import decode
from agent.sources.postgres.server import slot_creation, table_locks
from agent.sources.postgres.snapshot import dump
from agent.sources.postgres.snapshot.dump import PostgresDumper
from agent.sources.postgres.snapshot.dump_plan import plan_tables
from agent.sources.postgres.snapshot.export import create_slot
from agent.sources.postgres.snapshot.rows import session
from agent.units.chunk_run import NO_KEY
from agent.units.dump import DumpProgress, DumpUnit
from agent.units.manifest import Manifest, read_manifest
from capture.embedded import EmbeddedPostgres
from reactor.errors import WeirError
from reactor.ids import Ts
from reactor.records.changefeed import RunningError, SinkMode
from reactor.records.tables.table import TableRecord
from tests import pgoutput
from tests.integration.agent.forks import PROCESSES
from tests.patience import HANG_S, patient
from tests.shared_postgres import give_back

pytestmark = pytest.mark.sample(0.2)  # a snapshot each

T = TypeVar("T")
U = TypeVar("U")
Rows = dict[tuple[Any, ...], dict[str, Any]]


class ParquetStage:
    """Stages as a lake sink does: one Parquet file per chunk, named by the chunk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def unfit(self, tables: Sequence[TableRecord]) -> dict[int, str]:
        return {}

    def writer(self) -> "ParquetStage":
        return self

    def stage(self, table: TableRecord, chunk_id: str, batches: Iterator[pa.RecordBatch], ts: Ts) -> list[StagedFile]:
        rows = list(batches)
        if not rows:
            return []
        path = self._directory / f"{table.name}-{chunk_id}.parquet"
        pq.write_table(pa.Table.from_batches(rows), path)
        return [StagedFile(str(path), sum(batch.num_rows for batch in rows), path.stat().st_size)]


def _no_sink() -> Sink:
    raise AssertionError("nothing is staged")


@dataclass
class InlineExecutor:
    """Runs tasks here, over pickled values as Spark would; ``before`` may fail one, by its description."""

    before: Callable[[str], None] = lambda _: None
    descriptions: list[str] = field(default_factory=list)

    @property
    def has_read_all(self) -> bool:
        """Whether every chunk of its (only) table was read once."""
        _, _, count = self.descriptions[0].rpartition("/")
        return len(set(self.descriptions)) == len(self.descriptions) == int(count)

    def cores(self) -> int:
        return 1

    def map(self, function: Callable[[T], U], descriptors: Sequence[T], *, description: str, **_: object) -> list[U]:
        self.descriptions.append(description)
        self.before(description)
        return [function(pickle.loads(pickle.dumps(descriptor))) for descriptor in descriptors]


@dataclass
class Source:
    """A database of its own with published tables."""

    postgres: EmbeddedPostgres
    name: str
    stage: Path

    @property
    def dsn(self) -> str:
        return self.postgres.dsn(self.name)

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, table: str, key: Sequence[str]) -> Rows:
        with psycopg.connect(self.dsn, row_factory=psycopg.rows.dict_row) as connection:
            return {tuple(row[name] for name in key): row for row in connection.execute(f"SELECT * FROM {table}")}

    def record(self, name: str, key: Sequence[str]) -> TableRecord:
        return TableRecord(table_id=pgoutput.table_id(self.dsn, name), schema_name="public", name=name, key=tuple(key))

    def unit(
        self,
        manifest: Manifest,
        tables: Sequence[TableRecord],
        *,
        executor: Executor | None = None,
        epoch: int = 1,
        sink_mode: SinkMode = SinkMode.UPSERT,
        on_progress: Callable[[DumpProgress], None] = lambda _: None,
    ) -> DumpUnit:
        order = DumpOrder(
            tables=tuple(tables),
            sink_mode=sink_mode,
            open_sink=cast("Callable[[], Sink]", partial(ParquetStage, self.stage)),
            epoch=epoch,
            chunk_rows=1_000,
            parallel=2,
        )
        dumper = PostgresDumper(self.postgres.uri(self.name), f"slot_{self.name}")
        return DumpUnit(dumper, order, manifest, executor or InlineExecutor(), on_progress=on_progress)

    def replayed(self, manifest: Manifest, name: str, key: Sequence[str]) -> Rows:
        """The staged rows, then every change above the table's ``start_ts``: what an upsert sink comes to hold."""
        [(record, schema, files)] = [entry for entry in read_manifest(manifest.uri) if entry[0].name == name]
        rows: Rows = {}
        for file in files:
            for row in pq.read_table(file.path).to_pylist():
                place = tuple(row[part] for part in key)
                assert place not in rows, "a chunk overlaps another"
                rows[place] = row
        events = pgoutput.read_events(self.dsn, f"slot_{self.name}", "p", is_binary=True).get(record.table_id, [])
        if events := [event for event in events if event.commit_ts > record.start_ts]:
            _apply(rows, schema, events, key)
        return rows


def _apply(rows: Rows, schema: TableSchema, events: list[pgoutput.Event], key: Sequence[str]) -> None:
    changes = decode(schema, pgoutput.as_batch(events))
    after = changes.after.to_pylist()
    before = changes.before.to_pylist() if changes.before is not None else after
    moved = key_changes(changes, key)
    for i, op in enumerate(changes.op):
        if op == TRUNCATE:
            rows.clear()
        if op == DELETE or moved[i]:
            rows.pop(tuple(before[i][part] for part in key), None)
        if op not in (DELETE, TRUNCATE):
            rows[tuple(after[i][part] for part in key)] = after[i]


@pytest.fixture
def source(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Source]:
    name = f"dump_{uuid.uuid4().hex[:8]}"
    postgres.create_database(name)
    found = Source(postgres, name, tmp_path)
    found.run(
        "CREATE TABLE keyed (id int PRIMARY KEY, v text, n numeric(10,2))",
        "CREATE TABLE pair (a int, b text, v int, PRIMARY KEY (a, b))",
        "CREATE TABLE loose (v int, tags int[], span interval)",
        "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (2000)",
        "CREATE TABLE parts_high (v text, id int NOT NULL)",
        "ALTER TABLE parts ATTACH PARTITION parts_high FOR VALUES FROM (2000) TO (9999999)",
        "INSERT INTO parts SELECT n, 'p' || n FROM generate_series(1, 3000) n",
        "CREATE TABLE empty (id int PRIMARY KEY)",
        "INSERT INTO keyed SELECT n, 'row ' || n, n / 4.0 FROM generate_series(1, 4500) n",
        "INSERT INTO pair SELECT n, 'b' || n % 7, n FROM generate_series(1, 3500) n",
        "INSERT INTO loose SELECT n % 10, ARRAY[n], make_interval(hours => n) FROM generate_series(1, 100) n",
        "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root)",
        "ANALYZE",
    )
    yield found
    with psycopg.connect(found.dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [name]
        )
    give_back(postgres, name)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return Manifest.for_source(str(tmp_path / "log"), changefeed="feed", source="source")


_CHANGES = (
    "UPDATE keyed SET v = v || '!' WHERE id % 3 = 0",
    "DELETE FROM keyed WHERE id % 10 = 1",
    "UPDATE keyed SET id = id + 100000 WHERE id % 500 = 0",
    "INSERT INTO keyed SELECT n, 'new', NULL FROM generate_series(5000, 5100) n",
    "UPDATE pair SET v = -v WHERE a % 2 = 0",
    "DELETE FROM pair WHERE a > 3400",
)


def test_staged_rows_and_the_stream_after_them_are_the_source(source: Source, manifest: Manifest) -> None:
    progress: list[DumpProgress] = []
    tables = [source.record("keyed", ["id"]), source.record("pair", ["a", "b"]), source.record("empty", ["id"])]

    class Writing(InlineExecutor):
        def cores(self) -> int:
            return 1

        def map(
            self, function: Callable[[T], U], descriptors: Sequence[T], *, description: str, **_: object
        ) -> list[U]:
            if description == "dump public.keyed 3/5":
                source.run(*_CHANGES)
            return super().map(function, descriptors, description=description)

    result = source.unit(manifest, tables, executor=Writing(), on_progress=progress.append).run_blocking()

    assert source.replayed(manifest, "keyed", ["id"]) == source.rows("keyed", ["id"])
    assert source.replayed(manifest, "pair", ["a", "b"]) == source.rows("pair", ["a", "b"])
    assert source.replayed(manifest, "empty", ["id"]) == {}
    assert (result.rows_done, result.rows_total) == (8000, 8000)
    assert {table.start_ts for table in result.tables} == {result.start.ts}
    assert [step.rows_done for step in progress] == sorted(step.rows_done for step in progress)
    assert len(progress) > 8


def test_a_key_that_changed_since_the_table_was_found_is_the_one_of_the_snapshot(
    source: Source, manifest: Manifest
) -> None:
    tables = [source.record("keyed", ["id"]), source.record("pair", ["a", "b"]), source.record("parts", ["id"])]
    source.run(
        "ALTER TABLE keyed ADD COLUMN code int GENERATED BY DEFAULT AS IDENTITY, DROP CONSTRAINT keyed_pkey",
        "ALTER TABLE keyed ADD PRIMARY KEY (code)",
        "UPDATE keyed SET id = id / 2",
        "ALTER TABLE pair DROP CONSTRAINT pair_pkey",
    )
    keyed, pair, parts = source.unit(manifest, tables).run_blocking().tables
    source.run("UPDATE keyed SET v = 'changed' WHERE id = 7", "DELETE FROM keyed WHERE id = 8")
    assert (keyed.key, pair.key, parts.key) == (("code",), (), ("id",))
    assert manifest.read_refused() == {pair.table_id: NO_KEY}
    assert source.replayed(manifest, "keyed", ["code"]) == source.rows("keyed", ["code"])


def test_a_table_that_is_fully_logged_is_read_again_as_a_whole_if_its_key_changes(
    source: Source, manifest: Manifest
) -> None:
    source.run(
        "ALTER TABLE keyed REPLICA IDENTITY FULL, ADD COLUMN code int NOT NULL GENERATED BY DEFAULT AS IDENTITY UNIQUE"
    )
    tables = [source.record("keyed", ["id"])]
    _interrupted(source, manifest, tables, at="dump public.keyed 4/5", mode=SinkMode.UPSERT)
    source.run("ALTER TABLE keyed DROP CONSTRAINT keyed_pkey, ALTER COLUMN id SET NOT NULL", "UPDATE keyed SET id = 5")
    executor = InlineExecutor()
    [keyed] = source.unit(manifest, tables, executor=executor, epoch=2).run_blocking().tables
    assert keyed.key == ("code",)
    assert executor.has_read_all
    assert source.replayed(manifest, "keyed", ["code"]) == source.rows("keyed", ["code"])


def test_types_without_a_binary_form_are_staged_as_their_text(source: Source, manifest: Manifest) -> None:
    source.unit(manifest, [source.record("loose", [])]).run_blocking()
    [(_, _, files)] = read_manifest(manifest.uri)
    rows = [row for file in files for row in pq.read_table(file.path).to_pylist()]
    assert len(rows) == 100
    assert {"v": 1, "tags": "{51}", "span": "51:00:00"} in rows


def test_a_partitioned_table_is_read_with_all_its_partitions(source: Source, manifest: Manifest) -> None:
    tables = [source.record("parts", ["id"])]
    _interrupted(source, manifest, tables, at="dump public.parts 3/3", mode=SinkMode.UPSERT)
    source.run("UPDATE parts SET id = id + 1999 WHERE id BETWEEN 1500 AND 1510", "DELETE FROM parts WHERE id = 2600")
    assert source.unit(manifest, tables, epoch=2).run_blocking().rows_done >= 2999
    assert source.replayed(manifest, "parts", ["id"]) == source.rows("parts", ["id"])


def _interrupted(source: Source, manifest: Manifest, tables: Sequence[TableRecord], *, at: str, mode: SinkMode) -> None:
    def fail(description: str) -> None:
        if description == at:
            raise WeirError("killed")

    with pytest.raises(WeirError, match="killed"):
        source.unit(manifest, tables, executor=InlineExecutor(fail), sink_mode=mode).run_blocking()


@pytest.mark.parametrize("epoch", [2, 1])
def test_a_resumed_dump_keeps_chunks_by_key_and_replay_mends_their_two_moments(
    source: Source, manifest: Manifest, epoch: int
) -> None:
    tables = [source.record("keyed", ["id"]), source.record("pair", ["a", "b"])]
    _interrupted(source, manifest, tables, at="dump public.keyed 4/5", mode=SinkMode.UPSERT)
    source.run(*_CHANGES)
    executor = InlineExecutor()
    result = source.unit(manifest, tables, executor=executor, epoch=epoch).run_blocking()
    source.run("UPDATE keyed SET n = 0 WHERE id % 7 = 0", "UPDATE pair SET v = 1 WHERE a < 50")

    read_again = [description for description in executor.descriptions if "keyed" in description]
    assert 1 <= len(read_again) < 5
    keyed, pair = result.tables
    assert keyed.start_ts == result.start.ts < keyed.consistent_ts
    assert source.replayed(manifest, "keyed", ["id"]) == source.rows("keyed", ["id"])
    assert pair.start_ts == keyed.consistent_ts
    assert source.replayed(manifest, "pair", ["a", "b"]) == source.rows("pair", ["a", "b"])


def test_a_table_that_is_cut_by_blocks_is_read_again_as_a_whole(source: Source, manifest: Manifest) -> None:
    tables = [source.record("pair", ["a", "b"])]
    _interrupted(source, manifest, tables, at="dump public.pair 4/4", mode=SinkMode.UPSERT)
    source.run(*_CHANGES)
    executor = InlineExecutor()
    result = source.unit(manifest, tables, executor=executor, epoch=2).run_blocking()
    assert executor.has_read_all
    assert result.tables[0].start_ts > result.start.ts
    assert source.replayed(manifest, "pair", ["a", "b"]) == source.rows("pair", ["a", "b"])


@pytest.mark.parametrize(("identity", "is_kept"), [("DEFAULT", False), ("FULL", True)])
def test_a_row_with_a_large_value_that_moves_between_chunks_loses_nothing(
    source: Source, manifest: Manifest, identity: str, is_kept: bool
) -> None:
    source.run(
        "ALTER TABLE keyed ALTER v SET STORAGE EXTERNAL",
        f"ALTER TABLE keyed REPLICA IDENTITY {identity}",
        "UPDATE keyed SET v = repeat('x', 5000) WHERE id = 4400",
        "DELETE FROM keyed WHERE id = 100",
    )
    tables = [source.record("keyed", ["id"])]
    _interrupted(source, manifest, tables, at="dump public.keyed 5/5", mode=SinkMode.UPSERT)
    source.run("UPDATE keyed SET id = 100 WHERE id = 4400")
    executor = InlineExecutor()
    source.unit(manifest, tables, executor=executor, epoch=2).run_blocking()
    assert executor.has_read_all is not is_kept
    assert source.replayed(manifest, "keyed", ["id"]) == source.rows("keyed", ["id"])


def test_a_changelog_table_is_read_again_as_a_whole(source: Source, manifest: Manifest) -> None:
    tables = [source.record("keyed", ["id"])]
    _interrupted(source, manifest, tables, at="dump public.keyed 5/5", mode=SinkMode.CHANGELOG)
    executor = InlineExecutor()
    source.unit(manifest, tables, executor=executor, epoch=2, sink_mode=SinkMode.CHANGELOG).run_blocking()
    assert executor.has_read_all


def test_a_failed_chunk_is_tried_again_under_the_same_snapshot(source: Source, manifest: Manifest) -> None:
    failures = iter([JobError("a task died"), JobError("a task died")])

    def fail(description: str) -> None:
        if description == "dump public.keyed 2/5" and (error := next(failures, None)):
            raise error

    result = source.unit(manifest, [source.record("keyed", ["id"])], executor=InlineExecutor(fail)).run_blocking()
    assert result.rows_done == 4500
    assert result.tables[0].consistent_ts == 0


def test_a_table_that_cannot_be_copied_is_left_out_alone(source: Source, manifest: Manifest) -> None:
    """A key that no sink can carry; and rows that the server refuses to read, as of a damaged table."""
    source.run("CREATE TABLE bent (d date PRIMARY KEY)", "INSERT INTO bent VALUES ('2000-01-01'), ('infinity')")

    def refuse(description: str) -> None:
        if description == "dump public.pair 3/4":
            raise StatementRefusedError("s answered XX001: invalid page in block 7")

    executor = InlineExecutor(refuse)
    tables = [source.record("bent", ["d"]), source.record("pair", ["a", "b"]), source.record("keyed", ["id"])]
    done = source.unit(manifest, tables, executor=executor).run_blocking()
    refused = manifest.read_refused()
    assert refused.keys() == {tables[0].table_id, tables[1].table_id}
    assert "column d" in refused[tables[0].table_id]
    assert "invalid page" in refused[tables[1].table_id]
    assert [(record.name, len(files)) for record, _, files in read_manifest(done.manifest)] == [("keyed", 5)]
    read = list(executor.descriptions)
    source.unit(manifest, tables, executor=executor, epoch=2).run_blocking()
    assert executor.descriptions == read, "what is refused is not read again"


def test_a_table_that_the_server_cannot_open_is_left_out_alone(source: Source, manifest: Manifest) -> None:
    """It can be neither locked nor counted when the dump is planned."""
    source.run("CREATE TABLE damaged (id int PRIMARY KEY, v int)", "INSERT INTO damaged VALUES (1, 1)")
    tables = [source.record("damaged", ["id"]), source.record("keyed", ["id"])]
    source.run(
        "SET allow_system_table_mods = on",
        "DELETE FROM pg_attribute WHERE attrelid = 'damaged'::regclass AND attname = 'v'",
        "UPDATE pg_class SET reltuples = -1 WHERE relname IN ('damaged', 'keyed')",  # so that both are counted
    )
    done = source.unit(manifest, tables).run_blocking()
    refused = manifest.read_refused()
    assert list(refused) == [tables[0].table_id]
    assert "1 attribute(s)" in refused[tables[0].table_id]
    assert [(record.name, record.rows_estimated) for record, *_ in read_manifest(done.manifest)] == [("keyed", 4500)]


def test_a_refused_login_is_no_tables_fault(source: Source, manifest: Manifest) -> None:
    """A password may change while tables are read; they are whole all the same."""

    def refuse(_: str) -> None:
        raise SourceAuthError("s refuses the password of user weir; check the source URI")

    with pytest.raises(SourceAuthError):
        source.unit(manifest, [source.record("keyed", ["id"])], executor=InlineExecutor(refuse)).run_blocking()
    assert manifest.read_refused() == {}


def test_a_lost_snapshot_ends_the_run_and_the_next_one_continues(source: Source, manifest: Manifest) -> None:
    def lose(description: str) -> None:
        if description == "dump public.keyed 3/5":
            source.run("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE backend_type = 'walsender'")

    tables = [source.record("keyed", ["id"])]
    with pytest.raises(SourceUnreachableError, match="snapshot was lost") as caught:
        source.unit(manifest, tables, executor=InlineExecutor(lose)).run_blocking()
    assert caught.value.retryable
    assert source.unit(manifest, tables, epoch=2).run_blocking().rows_done == 4500


@pytest.mark.parametrize("rewrite", ["TRUNCATE keyed, parts_low", "ALTER TABLE keyed ALTER COLUMN id TYPE bigint"])
def test_a_table_that_was_rewritten_since_the_snapshot_is_not_read_as_empty(source: Source, rewrite: str) -> None:
    uri = source.postgres.uri(source.name)
    order = DumpOrder((source.record("keyed", ["id"]),), SinkMode.UPSERT, _no_sink, epoch=1)
    with create_slot(uri, f"slot_{source.name}") as export:
        source.run(rewrite)
        with session(uri, export.snapshot) as guard, pytest.raises(SourceUnreachableError, match="keyed was rewritten"):
            plan_tables(order, guard, start_ts=export.start_ts, previous=None, done={})


def test_tables_that_were_dropped_or_renamed_since_they_were_found(source: Source, manifest: Manifest) -> None:
    """One was a reason to fail for good, the other was loaded under the name that it had."""
    tables = [source.record(name, ["id"]) for name in ("keyed", "parts", "empty")]
    source.run(
        "DROP TABLE keyed", "DROP TABLE parts", "ALTER TABLE empty RENAME TO full_", "CREATE TABLE empty (v int)"
    )
    source.run("INSERT INTO full_ VALUES (1)")
    [table] = source.unit(manifest, tables).run_blocking().tables
    assert (table.table_id, table.name) == (tables[2].table_id, "full_")
    assert source.replayed(manifest, "full_", ["id"]) == source.rows("full_", ["id"])


def test_a_table_that_is_dropped_since_the_snapshot_is_left_out(source: Source) -> None:
    uri = source.postgres.uri(source.name)
    tables = source.record("keyed", ["id"]), source.record("pair", ["a", "b"])
    order = DumpOrder(tables, SinkMode.UPSERT, _no_sink, epoch=1)
    with create_slot(uri, f"slot_{source.name}") as export:
        source.run("DROP TABLE keyed", "CREATE TABLE keyed (id int)")
        with session(uri, export.snapshot) as guard:
            plan = plan_tables(order, guard, start_ts=export.start_ts, previous=None, done={})
            joining = replace(order, log="")
            with pytest.raises(TableGoneError, match=r"public\.keyed is gone"):
                plan_tables(joining, guard, start_ts=export.start_ts, previous=None, done={})
    assert [table.record for table in plan.tables] == [
        tables[1].with_(start_ts=export.start_ts, rows_estimated=plan.tables[0].record.rows_estimated)
    ]


def test_a_table_that_is_swapped_since_the_snapshot_is_not_read_under_the_name_of_another(source: Source) -> None:
    """Names mean what they mean now, also under a snapshot: the new table seems empty there."""
    uri = source.postgres.uri(source.name)
    order = DumpOrder((source.record("keyed", ["id"]),), SinkMode.UPSERT, _no_sink, epoch=1)
    with create_slot(uri, f"slot_{source.name}") as export:
        source.run("ALTER TABLE keyed RENAME TO before", "CREATE TABLE keyed (id int PRIMARY KEY, v text, n int)")
        with session(uri, export.snapshot) as guard, pytest.raises(SourceUnreachableError, match="keyed was renamed"):
            plan_tables(order, guard, start_ts=export.start_ts, previous=None, done={})


def test_tables_cannot_be_rewritten_while_they_are_read(source: Source, manifest: Manifest) -> None:
    def truncate(description: str) -> None:
        if description == "dump public.keyed 4/5":
            with pytest.raises(psycopg.errors.LockNotAvailable):
                source.run("SET lock_timeout = '50ms'", "TRUNCATE keyed")

    tables = [source.record("keyed", ["id"])]
    assert source.unit(manifest, tables, executor=InlineExecutor(truncate)).run_blocking().rows_done == 4500


@pytest.mark.parametrize(
    ("statement", "late"), [("ALTER TABLE keyed ADD COLUMN late int DEFAULT 7", {7}), ("TRUNCATE keyed", set())]
)
def test_a_statement_that_changes_a_table_does_not_wait_for_all_of_it(
    source: Source, manifest: Manifest, statement: str, late: set[int]
) -> None:
    """Readers that come later wait behind the statement, chunks too, and it waits for the dump: the run ends for it."""
    waiting = "SELECT FROM pg_locks WHERE relation = 'keyed'::regclass AND NOT granted"
    changed = threading.Thread(target=source.run, args=(f"SET lock_timeout = '{HANG_S:.0f}s'", statement))

    def change(description: str) -> None:
        if description == "dump public.keyed 3/5":
            changed.start()
            with psycopg.connect(source.dsn, autocommit=True) as connection:
                while not connection.execute(waiting).fetchall():
                    time.sleep(0.01)

    tables = [source.record("keyed", ["id"])]
    with pytest.raises(WeirError) as caught:
        source.unit(manifest, tables, executor=InlineExecutor(change)).run_blocking()
    assert (caught.value.code, caught.value.retryable) == (TableLockedError.code, True)
    changed.join(HANG_S)
    assert not changed.is_alive()
    source.unit(manifest, tables, epoch=2).run_blocking()
    rows = source.replayed(manifest, "keyed", ["id"])
    assert rows == source.rows("keyed", ["id"])
    assert {row["late"] for row in rows.values()} == late


def test_chunks_read_after_the_locks_were_lost_do_not_count(source: Source, manifest: Manifest) -> None:
    def unlock(description: str) -> None:
        if description == "dump public.keyed 3/5":
            source.run(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE relation = 'keyed'::regclass",
                "SET lock_timeout = '20s'",
                "TRUNCATE keyed",
            )

    tables = [source.record("keyed", ["id"])]
    with pytest.raises(SourceUnreachableError):
        source.unit(manifest, tables, executor=InlineExecutor(unlock)).run_blocking()
    source.unit(manifest, tables, epoch=2).run_blocking()
    assert source.replayed(manifest, "keyed", ["id"]) == {}


def test_a_slot_that_no_plan_knows_is_made_again(source: Source, manifest: Manifest) -> None:
    pgoutput.create_slot(source.dsn, f"slot_{source.name}")
    source.run("INSERT INTO keyed VALUES (9000, 'before the dump', 0)")
    source.unit(manifest, [source.record("keyed", ["id"])]).run_blocking()
    assert source.replayed(manifest, "keyed", ["id"]) == source.rows("keyed", ["id"])


def test_a_slot_that_moved_on_makes_the_dump_start_over(source: Source, manifest: Manifest) -> None:
    tables = [source.record("keyed", ["id"])]
    _interrupted(source, manifest, tables, at="dump public.keyed 5/5", mode=SinkMode.UPSERT)
    source.run(*_CHANGES)
    pgoutput.read_events(source.dsn, f"slot_{source.name}", "p", is_binary=True, consume=True)
    executor = InlineExecutor()
    source.unit(manifest, tables, executor=executor, epoch=2).run_blocking()
    assert executor.has_read_all
    assert source.replayed(manifest, "keyed", ["id"]) == source.rows("keyed", ["id"])


def test_a_server_that_was_promoted_makes_the_dump_start_over(source: Source, manifest: Manifest) -> None:
    """It may lack what was read on its primary, though it has the slot."""
    tables = [source.record("keyed", ["id"])]
    _interrupted(source, manifest, tables, at="dump public.keyed 4/5", mode=SinkMode.UPSERT)
    plan = manifest.read_plan()
    assert plan is not None
    assert plan.timeline == 1
    manifest.write_plan(replace(plan, timeline=2))
    executor = InlineExecutor()
    result = source.unit(manifest, tables, executor=executor, epoch=2).run_blocking()
    assert executor.has_read_all
    assert result.timeline == 1


def test_a_finished_dump_is_not_done_again(source: Source, manifest: Manifest) -> None:
    tables = [source.record("keyed", ["id"])]
    first = source.unit(manifest, tables).run_blocking()
    executor = InlineExecutor()
    assert source.unit(manifest, tables, executor=executor, epoch=2).run_blocking() == first
    assert executor.descriptions == []


async def test_a_cancelled_dump_leaves_nothing_running_and_keeps_what_it_has(
    source: Source, manifest: Manifest
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def pause(description: str) -> None:
        if description == "dump public.keyed 2/5":
            begun.set()
            may_go_on.wait(HANG_S)

    tables = [source.record("keyed", ["id"])]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(source.unit(manifest, tables, executor=InlineExecutor(pause)).run)
        await anyio.to_thread.run_sync(begun.wait)
        tasks.cancel_scope.cancel()
        may_go_on.set()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weir-dump")]
    plan = manifest.read_plan()
    assert plan is not None
    assert 2 <= len(manifest.read_done(plan)) < 5


@pytest.mark.spark
def test_spark_tasks_stage_chunks(source: Source, manifest: Manifest, spark_executor: Executor) -> None:
    tables = [source.record("keyed", ["id"]), source.record("loose", [])]
    assert source.unit(manifest, tables, executor=spark_executor).run_blocking().rows_done == 4600
    assert source.replayed(manifest, "keyed", ["id"]) == source.rows("keyed", ["id"])


class PoisonStage(ParquetStage):
    """Its process ends with the table ``pair``."""

    def stage(self, table: TableRecord, chunk_id: str, batches: Iterator[pa.RecordBatch], ts: Ts) -> list[StagedFile]:
        if table.name == "pair":
            os._exit(9)
        return super().stage(table, chunk_id, batches, ts)


def _dump_in_process(
    uri: str, slot: str, tables: Sequence[TableRecord], open_sink: Callable[[], Sink], epoch: int, manifest: str
) -> None:
    order = DumpOrder(tables=tuple(tables), sink_mode=SinkMode.UPSERT, open_sink=open_sink, epoch=epoch, parallel=3)
    DumpUnit(PostgresDumper(uri, slot), order, Manifest.open(manifest), InlineExecutor()).run_blocking()


def test_a_table_that_ends_the_process_which_copies_it_is_left_out_behind_the_second(
    source: Source, manifest: Manifest
) -> None:
    tables = [source.record("keyed", ["id"]), source.record("pair", ["a", "b"]), source.record("loose", [])]
    codes = []
    for epoch in range(1, 4):
        process = PROCESSES.Process(
            target=_dump_in_process,
            args=(
                source.postgres.uri(source.name),
                f"slot_{source.name}",
                tables,
                partial(PoisonStage, source.stage),
                epoch,
                manifest.uri,
            ),
        )
        process.start()
        process.join()
        codes.append(process.exitcode)
    assert codes == [9, 9, 0], "it ends two processes, and no more"
    assert list(manifest.read_refused()) == [tables[1].table_id]
    assert "two captures have ended" in manifest.read_refused()[tables[1].table_id]
    assert sorted(record.name for record, _, _ in read_manifest(manifest.uri)) == ["keyed", "loose"]
    assert len(manifest.read_attempts()) == 2, "a run that ends by itself leaves no note"


@pytest.mark.sample(1.0)
async def test_open_transactions_are_named_until_the_dump_begins(
    source: Source, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_creation, "_LOOK_S", 0.1)
    source.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    troubles: list[RunningError | None] = []
    is_waiting = threading.Event()

    def note(at: DumpProgress) -> None:
        troubles.append(at.trouble)
        if at.trouble is not None:
            is_waiting.set()

    unit = source.unit(manifest, [source.record("t", ["id"])], on_progress=note)
    with psycopg.connect(source.dsn) as other:
        other.execute("INSERT INTO t VALUES (2)")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(unit.run)
            assert await to_thread.run_sync(is_waiting.wait, patient(20.0))
            other.commit()
    waits, rest = [one for one in troubles if one], [one for one in troubles if one is None]
    assert [(one.code, one.retryable) for one in waits] == [("OpenTransactions", True)], "a cause is reported once"
    assert rest
    assert troubles[-1] is None


@pytest.mark.sample(1.0)
def test_a_table_that_is_locked_from_the_beginning_is_named(
    source: Source, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_locks, "LOCK_WAIT_MS", 200)
    source.run("CREATE TABLE t (id int PRIMARY KEY)")
    with psycopg.connect(source.dsn) as other:
        unit = source.unit(manifest, [source.record("t", ["id"])])

        def locked(*arguments: Any, **options: Any) -> Any:
            """Once the slot exists: whoever has locked a table before has to end first."""
            made = create_slot(*arguments, **options)
            other.execute("LOCK TABLE t")
            return made

        monkeypatch.setattr(dump, "create_slot", locked)
        with pytest.raises(TableLockedError, match=rf"public\.t of .* by process {other.info.backend_pid} \(user"):
            unit.run_blocking()
