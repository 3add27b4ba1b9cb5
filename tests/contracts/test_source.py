"""The source contract, over every source: each change comes once and in order, and again from any position."""

import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from typing import Any, cast

import pyarrow as pa
import pytest

from agent.errors import (
    PositionLostError,
    SourceAuthError,
    SourceConfigError,
    SourceError,
    SourceUnreachableError,
    TableAlteredError,
    TableIneligibleError,
)
from agent.ports.checksums import KeyRange, NoChecksums
from agent.ports.plugin import sources
from agent.ports.snapshot import ChunkToStage, DumpOrder
from agent.ports.source import (
    BEGIN,
    SIGNAL_MAX,
    ComparisonSnapshot,
    Identity,
    Position,
    ReadsSome,
    Scope,
    Signal,
    Source,
    SourceReport,
    Stream,
    StreamOrder,
    SumsRanges,
)
from agent.rows.arena import Arena, LogChunk
from agent.rows.changes import DELETE, INSERT, UPDATE
from agent.rows.schema import TableSchema
from agent.sinks import open_sink
from agent.sources import open_source, place_name
from agent.sources.registry import arrow_schema, decode, read_chunks
from agent.units.beginning import begin
from capture.embedded import EmbeddedMariaDB, EmbeddedPostgres
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedConfig, FilterConfig, SinkMode
from reactor.records.tables.table import TableRecord
from tests.integration.agent.flush.test_job import Inline
from tests.patience import HANG_S

_NUMBERS = count()
_ARENA_BYTES = 1 << 20
_DATABASE = "contract"

#: commit Ts, operation, id, name
Read = tuple[int, int, int, str | None]


@dataclass
class Bed:
    """One table with a key and a text, ``t`` in statements, and a changefeed over it."""

    server: EmbeddedPostgres | EmbeddedMariaDB
    name: str

    @classmethod
    def of(cls, server: EmbeddedPostgres | EmbeddedMariaDB) -> "Bed":
        if not server.has_database(_DATABASE):
            server.create_database(_DATABASE)
        bed = cls(server, f"contract_{next(_NUMBERS)}")
        bed.run("CREATE TABLE t (id int PRIMARY KEY, name varchar(20))")
        return bed

    @property
    def uri(self) -> str:
        return self.server.uri(_DATABASE) if isinstance(self.server, EmbeddedPostgres) else self.server.uri()

    @cached_property
    def source(self) -> Source:
        config = ChangefeedConfig(filter=FilterConfig(rules=(f"*.{self.name}",)))
        return open_source(self.uri, Scope("c", self.name.replace("_", "-"), SinkMode.UPSERT, config))

    @cached_property
    def report(self) -> SourceReport:
        return self.source.discover()

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.server.execute(re.sub(r"\bt\b", self.name, statement), database=_DATABASE)

    def begin(self) -> Position:
        self.source.prepare(self.report.tables)
        return self.source.begin(self.report.tables)

    def chunks(self, at: Position, rows: int, *, joining: frozenset[tuple[str, str]] = frozenset()) -> list[LogChunk]:
        """The stream from there, until so many rows have come; each chunk as the log would store it."""
        schemas = self.source.read_schemas(self.report.tables)
        reader = 4_100_000 + next(_NUMBERS) if self.source.numbers_readers else 0
        order = StreamOrder(self.report.tables, self.report.identity, schemas, reader, joining)
        found: list[LogChunk] = []
        deadline = time.monotonic() + HANG_S
        with closing(self.source.streams(order).open(at, Arena(_ARENA_BYTES))) as opened:
            while len(list(_changes(found))) < rows:
                assert time.monotonic() < deadline, "the rows have not come"
                opened.stream.read(timeout_s=0.1)
                if opened.stream.complete_rows:
                    found.append(opened.prove(opened.stream.take_chunk(Arena(_ARENA_BYTES))))
        return found

    def read(self, at: Position, rows: int) -> list[Read]:
        return list(_changes(self.chunks(at, rows)))


def _changes(chunks: Sequence[LogChunk]) -> Iterator[Read]:
    for chunk in chunks:
        for part in chunk.batches():
            found = decode(part.schema, part.batch, ("id",))
            images = zip(found.after.to_pylist(), _before(found.before, len(found)), strict=True)
            for ts, operation, (after, before) in zip(found.commit_ts, found.op, images, strict=True):
                row = before if operation == DELETE else after
                yield int(ts), int(operation), row["id"], None if operation == DELETE else row["name"]


def _read_long(stream: Stream) -> None:
    for _ in range(100):
        stream.read(timeout_s=0.1)


def _before(images: Any, rows: int) -> list[Any]:
    return images.to_pylist() if images is not None else [None] * rows


class Interrupted:
    """A source to which a statement comes in front of one of the calls of ``beginning.begin``."""

    def __init__(self, bed: Bed, statement: str, step: int) -> None:
        self._bed, self._statement, self._step = bed, statement, step
        self.calls: list[str] = []

    def _reach(self, call: str) -> None:
        if len(self.calls) == self._step:
            self._bed.run(self._statement)
            self.calls.append("statement")
        self.calls.append(call)

    def discover(self) -> SourceReport:
        self._reach("tables")
        return self._bed.source.discover()

    def read_schemas(self, tables: Collection[TableRecord]) -> dict[int, TableSchema]:
        self._reach("schemas")
        return self._bed.source.read_schemas(tables)

    def begin(self, tables: Sequence[TableRecord]) -> Position:
        self._reach("position")
        return self._bed.source.begin(tables)

    def missed_tables(self, known: Sequence[TableRecord]) -> tuple[tuple[str, str], ...]:
        return self._bed.source.missed_tables(known)


#: of PostgreSQL and of MariaDB
_CHANGES = {
    "another column": ("ALTER TABLE t ADD c int",) * 2,
    "another name of a column": ("ALTER TABLE t RENAME COLUMN name TO c",) * 2,
    "another type": ("ALTER TABLE t ALTER name TYPE text", "ALTER TABLE t MODIFY name text"),
    "another key": (
        "ALTER TABLE t DROP CONSTRAINT t_key, ADD PRIMARY KEY (name)",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (name)",
    ),
}


_REWRITES = {
    "a wider key": ("ALTER TABLE t ALTER id TYPE bigint", "ALTER TABLE t MODIFY id bigint"),
    "emptied": ("TRUNCATE t",) * 2,
}


def _count(snapshot: ComparisonSnapshot, schema: TableSchema, how: str) -> int:
    """Return how many rows there are with the ids 1 and 2."""
    assert isinstance(snapshot, ReadsSome)
    assert isinstance(snapshot, SumsRanges)
    keys = KeyRange("id", 1, 3)
    if how == "sums":
        sums = snapshot.checksums(schema)
        assert not isinstance(sums, NoChecksums)
        with sums.open() as session:
            return session.sum(keys).rows
    read: dict[str, Callable[[], Iterator[pa.RecordBatch]]] = {
        "all": lambda: snapshot.read(schema),
        "a range": lambda: snapshot.read_range(schema, keys),
        "keys": lambda: snapshot.read_keys(schema, pa.table({"id": pa.array([1, 2], pa.int32())})),
        "a condition": lambda: snapshot.read_where(schema, "id < 3"),
    }
    return sum(batch.num_rows for batch in read[how]())


class SourceContract:
    """Over ``bed``, which each source makes."""

    def test_it_finds_its_tables_and_knows_its_server(self, bed: Bed) -> None:
        report = bed.source.check()
        assert [(table.name, table.key) for table in report.tables] == [(bed.name, ("id",))]
        assert bed.source.discover() == report
        bed.source.check_identity(report.identity, BEGIN)
        report.refuse_unfit(report.tables)
        with pytest.raises(PositionLostError):
            bed.source.check_identity(replace(report.identity, system_id="another"), BEGIN)
        bed.source.check_identity(Identity(""), BEGIN)

    @pytest.mark.sample(0.2)
    @pytest.mark.parametrize("step", range(5))
    @pytest.mark.parametrize("change", _CHANGES)
    def test_a_table_begins_as_it_is_at_the_position_whenever_it_changes(
        self, bed: Bed, change: str, step: int
    ) -> None:
        """It began with the key of before the position, or with the columns of behind it."""
        is_postgres = isinstance(bed.server, EmbeddedPostgres)
        if is_postgres:
            bed.run("ALTER TABLE t RENAME CONSTRAINT t_pkey TO t_key".replace("t_", f"{bed.name}_"))
        statement = _CHANGES[change][0 if is_postgres else 1].replace("t_key", f"{bed.name}_key")
        source = Interrupted(bed, statement, step)
        begun = begin(cast("Source", source), source.begin)
        report = bed.source.discover()
        assert begun.tables == report.tables
        assert begun.schemas == bed.source.read_schemas(report.tables)
        later = source.calls[source.calls.index("statement") :]
        assert later.index("position") < later.index("tables", later.index("position")) < len(later) - 1

    @pytest.mark.sample(0.2)
    @pytest.mark.parametrize("step", range(1, 5))
    def test_a_table_that_is_dropped_meanwhile_is_left_out(self, bed: Bed, step: int) -> None:
        source = Interrupted(bed, "DROP TABLE t", step)
        begun = begin(cast("Source", source), source.begin)
        assert (begun.tables, begun.schemas, begun.joining) == ((), {}, ())
        assert source.calls.count("position") == 1 or step == 2

    @pytest.mark.sample(0.2)
    @pytest.mark.parametrize("step", range(2, 6))
    def test_a_table_that_comes_meanwhile_is_not_missed(self, bed: Bed, step: int) -> None:
        """A binlog names no table that was made before its first position, and that gets no more rows."""
        bed.run("DROP TABLE t")
        source = Interrupted(bed, "CREATE TABLE t (id int PRIMARY KEY)", step)
        begun = begin(cast("Source", source), source.begin)
        is_known = [table.name for table in begun.tables] == [bed.name]
        assert is_known or step > 2 or not bed.source.numbers_readers
        if step == 5:
            assert source.missed_tables(begun.tables) == ()

    def test_tables_that_come_all_the_time_join(self, bed: Bed) -> None:
        bed.run("DROP TABLE t")
        found = bed.source.missed_tables
        made = count()

        def missed(known: Sequence[TableRecord]) -> tuple[tuple[str, str], ...]:
            if next(made) == 0:
                bed.run("CREATE TABLE t (id int PRIMARY KEY)")
            return found(known) or (("another", "table"),)

        source = Interrupted(bed, "", 100)
        source.missed_tables = missed  # type: ignore[method-assign]
        begun = begin(cast("Source", source), source.begin)
        assert ([table.name for table in begun.tables], begun.joining) == ([bed.name], (("another", "table"),))

    def test_a_table_that_gets_rows_all_the_time_begins_at_once(self, bed: Bed) -> None:
        """The server's estimate of them grows."""
        analyze = "ANALYZE t" if isinstance(bed.server, EmbeddedPostgres) else "ANALYZE TABLE t"
        ids, taken = count(), list[Position]()

        def take(tables: Sequence[TableRecord]) -> Position:
            rows = ", ".join(f"({next(ids)}, 'a')" for _ in range(200))
            bed.run(f"INSERT INTO t VALUES {rows}", analyze)
            taken.append(bed.source.begin(tables))
            return taken[-1]

        begun = begin(bed.source, take)
        assert [begun.position] == taken
        [known], [found] = begun.tables, bed.source.discover().tables
        assert known.rows_estimated < found.rows_estimated

    def test_a_table_that_changes_all_the_time_does_not_begin(self, bed: Bed) -> None:
        numbers = count()

        def take(tables: Sequence[TableRecord]) -> Position:
            bed.run(f"ALTER TABLE t ADD c{next(numbers)} int")
            return bed.source.begin(tables)

        with pytest.raises(SourceUnreachableError, match=bed.name):
            begin(bed.source, take)

    def test_a_table_that_cannot_be_replicated_refuses_no_other(self, bed: Bed) -> None:
        is_postgres = isinstance(bed.server, EmbeddedPostgres)
        bed.run(f"ALTER TABLE t DROP CONSTRAINT {bed.name}_pkey" if is_postgres else "ALTER TABLE t DROP PRIMARY KEY")
        for refused in (bed.source.check, lambda: begin(bed.source, bed.source.begin)):
            with pytest.raises(TableIneligibleError, match=f"{bed.name} has no primary key"):
                refused()
        report = bed.source.discover()
        [table] = report.tables
        assert list(report.unfit) == [table.table_id]
        report.refuse_unfit([table.with_(table_id=table.table_id + 1)])
        assert begin(bed.source, bed.source.begin, accepts_unfit=True).tables == (table,)

    def test_signals_are_rows_in_the_order_of_their_ids(self, bed: Bed) -> None:
        record = bed.report.tables[0]
        place = (record.schema_name, f'{bed.name}\'s "signals"' if isinstance(bed.server, EmbeddedPostgres) else "s`ig")
        quoted = (
            place[1].replace('"', '""') if isinstance(bed.server, EmbeddedPostgres) else place[1].replace("`", "``")
        )
        quote = '"' if isinstance(bed.server, EmbeddedPostgres) else "`"
        with pytest.raises(SourceError):
            bed.source.signals(place, 10)
        bed.server.execute(
            f"CREATE TABLE {quote}{quoted}{quote} (id int PRIMARY KEY, kind varchar(9), data text)", database=_DATABASE
        )
        rows = "(10, 'resync', 'a.b'), (9, 'pause', NULL), (11, '', 'é'), (12, '', repeat('é', 30000))"
        bed.server.execute(f"INSERT INTO {quote}{quoted}{quote} VALUES {rows}", database=_DATABASE)
        expected = [Signal("9", "pause", ""), Signal("10", "resync", "a.b"), Signal("11", "", "é")]
        expected.append(Signal("12", "", "é" * SIGNAL_MAX))
        assert bed.source.signals(place, 10) == expected
        assert bed.source.signals(place, 2) == expected[:2]

    def test_every_change_comes_once_and_in_order(self, bed: Bed) -> None:
        at = bed.begin()
        bed.run(
            "INSERT INTO t VALUES (1, 'a'), (2, NULL)",
            "UPDATE t SET name = 'b' WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
        )
        found = bed.read(at, 4)
        assert [change[1:] for change in found] == [
            (INSERT, 1, "a"),
            (INSERT, 2, None),
            (UPDATE, 1, "b"),
            (DELETE, 2, None),
        ]
        positions = [ts for ts, *_ in found]
        assert positions == sorted(positions)
        assert len(set(positions)) == 3, "a Ts for each transaction"
        assert at.ts < positions[0]
        assert positions[-1] <= bed.source.current_ts(at)

    def test_what_is_read_again_is_the_same(self, bed: Bed) -> None:
        at = bed.begin()
        bed.run(*(f"INSERT INTO t VALUES ({key}, 'n{key}')" for key in range(4)))
        first = bed.chunks(at, 4)
        assert bed.read(at, 4) == list(_changes(first))
        bed.run("INSERT INTO t VALUES (9, 'last')")
        behind = Position(first[-1].resolved_ts, first[-1].position)
        assert [change[2] for change in bed.read(behind, 1)] == [9]
        assert place_name(bed.uri, behind)

    def test_a_new_position_is_behind_the_lost_one_on_an_idle_server_too(self, bed: Bed) -> None:
        """It is larger, though nothing was written since; and the stream begins there."""
        begun = bed.begin()
        lost = Position(bed.source.current_ts(begun), begun.text, begun.attachment)
        again = bed.source.begin_again(bed.report.tables, lost, bed.report.identity)
        assert again.ts > lost.ts
        bed.run("INSERT INTO t VALUES (1, 'one')")
        assert [row[1:] for row in bed.read(again, 1)] == [(INSERT, 1, "one")]

    def test_tables_are_what_their_rows_say(self, bed: Bed) -> None:
        [table] = bed.report.tables
        schema = bed.source.read_schemas([table])[table.table_id]
        assert (schema.table_id, schema.name, schema.key) == (table.table_id, bed.name, ("id",))
        assert arrow_schema(schema).names == ["id", "name"]
        at = bed.begin()
        bed.run("INSERT INTO t VALUES (1, 'a')")
        [chunk] = bed.chunks(at, 1)
        assert [arrow_schema(part.schema) for part in chunk.batches()] == [arrow_schema(schema)]
        assert bed.source.read_schemas([table.with_(table_id=table.table_id + 1, name="gone")]) == {}

    def test_a_table_has_its_number_under_another_name(self, bed: Bed) -> None:
        """Also where another table has taken its first one, as behind an online schema change."""
        [table] = bed.report.tables
        bed.run("ALTER TABLE t RENAME TO t_old".replace("t_", f"{bed.name}_"), "CREATE TABLE t (other int PRIMARY KEY)")
        renamed = table.named(table.schema_name, f"{bed.name}_old")
        found = bed.source.read_schemas([renamed])
        assert found.keys() == {table.table_id}
        schema = found[table.table_id]
        assert (schema.table_id, schema.name, schema.key) == (table.table_id, renamed.name, ("id",))

    def test_a_table_that_is_gone_before_it_joins_is_told(self, bed: Bed) -> None:
        at = bed.begin()
        bed.run("INSERT INTO t VALUES (1, 'a')")
        [chunk] = bed.chunks(at, 1, joining=frozenset({("public", "gone")}))
        assert [(record.never_joined, record.changes) for record in chunk.ddl] == [((("public", "gone"),), ())]
        [chunk] = bed.chunks(at, 1)
        assert chunk.ddl == ()

    def test_a_comparison_sees_one_moment(self, bed: Bed) -> None:
        at = bed.begin()
        bed.run("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        [chunk] = bed.chunks(at, 2)
        [table] = bed.report.tables
        log = Position(chunk.resolved_ts, chunk.position)
        with closing(bed.source.snapshot([table], log)) as snapshot:
            bed.run("DELETE FROM t")
            for _ in range(2):
                rows = [row for batch in snapshot.read(snapshot.schema(table)) for row in batch.to_pylist()]
                assert sorted(row["id"] for row in rows) == [1, 2]
            assert chunk.last_ts <= snapshot.ts <= bed.source.current_ts(log)

    @pytest.mark.sample(0.4)
    @pytest.mark.parametrize("how", ["all", "a range", "keys", "a condition", "sums"])
    @pytest.mark.parametrize("change", list(_REWRITES))
    def test_a_comparison_refuses_a_table_that_is_rewritten(self, bed: Bed, change: str, how: str) -> None:
        """A snapshot does not protect from that: the table may seem empty."""
        bed.source.prepare(bed.report.tables)
        at = bed.source.begin(bed.report.tables)
        bed.run("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        [table] = bed.report.tables
        with closing(bed.source.snapshot([table], at)) as snapshot:
            schema = snapshot.schema(table)
            assert _count(snapshot, schema, how) == 2
        with closing(bed.source.snapshot([table], at)) as snapshot:
            bed.run(_REWRITES[change][0 if isinstance(bed.server, EmbeddedPostgres) else 1])
            with pytest.raises(TableAlteredError):
                _count(snapshot, schema, how)

    def test_a_dump_has_all_rows_and_can_be_stored(self, bed: Bed) -> None:
        bed.run("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, NULL)")
        bed.source.prepare(bed.report.tables)
        blackhole = partial(open_sink, "blackhole://", changefeed="f", mode=SinkMode.UPSERT)
        order = DumpOrder(bed.report.tables, SinkMode.UPSERT, blackhole, epoch=1)
        with bed.source.dumper.open(order, None, {}, Inline()) as session:
            [table] = session.plan.tables
            assert read_chunks(table.schema, table.chunks.to_fields()) == table.chunks
            [files] = session.stage([ChunkToStage(table, 0, "0")])
            assert table.chunks.count == 1
            assert isinstance(files, tuple)
            session.verify()
            assert session.is_alive()
            start = Position(session.plan.start_ts, session.plan.position)
        assert sum(file.rows for file in files) == 3
        settled = bed.source.dumper.settle(session.plan)
        assert settled is not None
        assert [one.table_id for one in settled] == [table.record.table_id]
        bed.run("INSERT INTO t VALUES (4, 'behind')")
        assert [change[2] for change in bed.read(start, 1)] == [4]

    def test_a_stream_can_be_ended_from_outside(self, bed: Bed) -> None:
        at = bed.begin()
        order = StreamOrder(bed.report.tables, bed.report.identity, reader=4_100_000 + next(_NUMBERS))
        with closing(bed.source.streams(order).open(at, Arena(_ARENA_BYTES))) as opened:
            opened.abort()
            with pytest.raises(SourceError):
                _read_long(opened.stream)

    def test_what_was_made_is_removed_as_often_as_asked(self, bed: Bed) -> None:
        bed.begin()
        for _ in range(2):
            bed.source.drop()

    def test_a_start_in_the_future_is_refused(self, bed: Bed) -> None:
        with pytest.raises(SourceConfigError):
            bed.source.check_start(Ts(bed.source.current_ts() + (1 << 40)))

    def test_no_error_shows_a_password(self, bed: Bed) -> None:
        scheme, _, rest = bed.uri.partition("://")
        wrong = f"{scheme}://nobody:geheim@{rest.rpartition('@')[2]}"
        with pytest.raises(SourceAuthError) as caught:
            open_source(wrong, Scope("c", "f", SinkMode.UPSERT, ChangefeedConfig())).check()
        assert "geheim" not in str(caught.value)
        assert "\n" not in str(caught.value)


class TestPostgres(SourceContract):
    @pytest.fixture
    def bed(self, postgres: EmbeddedPostgres) -> Iterator[Bed]:
        bed = Bed.of(postgres)
        yield bed
        bed.source.drop()


class TestMysql(SourceContract):
    @pytest.fixture
    def bed(self, server: EmbeddedMariaDB) -> Bed:
        return Bed.of(server)


def test_every_source_is_under_test() -> None:
    assert {source.dialect for source in sources().usable()} == {"postgresql", "mysql"}
