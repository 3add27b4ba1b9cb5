"""Sums of row hashes at a real server are those of the sink's rows, for each type, and see every difference."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from agent.errors import SinkFencedError
from agent.feeds import progress as progress_of_tables
from agent.feeds import range_diff, repair
from agent.feeds.diff import Pushed, TableDiff, compare_tables
from agent.feeds.paced import paced_snapshot
from agent.feeds.progress import Progress
from agent.feeds.range_diff import Ranges
from agent.feeds.repair import RepairedKey, TableRepair, repair_table
from agent.pacing import Pace, ReadingStopped, RowBudget
from agent.ports.source import BEGIN, Scope, SumsRanges
from agent.sinks import open_sink
from agent.sinks.delta.table import place as delta_table
from agent.sources import open_source
from agent.sources.registry import arrow_schema
from capture.embedded import EmbeddedMariaDB, EmbeddedPostgres
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import NO_FILTER, ChangefeedConfig, EventFilter, FilterConfig, SinkMode
from reactor.records.schedules import ComparedTable, DiffProgress
from reactor.records.tables.table import TableRecord
from tests.mysql_server import EmbeddedMysql
from tests.shared_postgres import give_back

pytestmark = pytest.mark.sample(0.15)  # cases of two databases each

POSTGRES = {
    "a": ("smallint", "(i % 7)::smallint"),
    "b": ("int", "-i"),
    "c": ("bigint", "i::bigint * 4294967296 - 5"),
    "d": ("boolean", "i % 2 = 0"),
    "e": ("real", "i / 7.0"),
    "f": ("double precision", "i / 7.0"),
    "g": ("numeric(12, 3)", "i / 7.0 - 3"),
    "h": ("numeric", "i / 7.0"),
    "i": ("text", "repeat('€ä', i % 9)"),
    "j": ("varchar(20)", "'v' || i"),
    "k": ("char(12)", "'c' || i"),
    "l": ("bytea", "decode(md5(i::text), 'hex')"),
    "m": ("date", "date '1969-12-25' + i"),
    "n": ("timestamp", "timestamp '1999-12-31 23:59:59.5' + i * interval '1 hour'"),
    "o": ("timestamptz", "timestamptz '1999-12-31 23:59:59.25+02' - i * interval '1 hour'"),
    "p": ("uuid", "md5(i::text)::uuid"),
    "q": ("json", """'{"b":  1}'::json"""),
    "r": ("jsonb", """jsonb_build_object('b', i)"""),
    "s": ("inet", "'10.0.0.1'::inet + i"),
    "t": ("int[]", "ARRAY[i, i + 1]"),
}
MARIA = {
    "a": ("tinyint", "seq % 7"),
    "b": ("int unsigned", "seq"),
    "c": ("bigint unsigned", "18446744073709551615 - seq"),
    "d": ("bit(1)", "seq % 2"),
    "e": ("bit(9)", "seq"),
    "g": ("decimal(12, 3)", "seq / 7.0 - 3"),
    "h": ("int(11) zerofill", "seq"),
    "hd": ("decimal(50, 3) zerofill", "seq / 7.0"),
    "i": ("text", "repeat('€ä', seq % 9)"),
    "j": ("varchar(20) CHARACTER SET latin1", "concat('vä', seq)"),
    "k": ("char(12)", "concat('c', seq)"),
    "l": ("varbinary(16)", "unhex(md5(seq))"),
    "v": ("blob", "unhex(md5(seq))"),
    "m": ("date", "date '1969-12-25' + INTERVAL seq DAY"),
    "n": ("datetime(3)", "timestamp '1999-12-31 23:59:59.5' + INTERVAL seq HOUR"),
    "o": ("timestamp NULL", "timestamp '1999-12-31 23:59:59' + INTERVAL seq HOUR"),
    "q": ("json", """concat('{"b":  ', seq, '}')"""),
    "s": ("enum('x', 'y')", "1 + seq % 2"),
    "t": ("time(3)", "sec_to_time(seq)"),
    "u": ("year", "2000 + seq % 100"),
}
#: per kind: types that are compared by rows
UNSUMMED = {"postgres": {"x": ("time", "time '01:02:03'")}, "mariadb": {"x": ("double", "seq / 7.0")}}
ROWS = 400


def divide(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Divide every table, even a small one, into ranges of ``rows`` values."""
    monkeypatch.setattr(range_diff, "_RANGE_ROWS", rows)
    monkeypatch.setattr(range_diff, "_SMALL_ROWS", 0)


class Here:
    """``agent.ports.executor.Executor`` in this thread."""

    def cores(self) -> int:
        return 1

    def map(self, function: Callable[[Any], Any], descriptors: Sequence[Any], **_: Any) -> list[Any]:
        return [function(each) for each in descriptors]


@dataclass
class Bed:
    kind: str
    uri: str
    database: str
    execute: Callable[[str], Any]
    lake: Path
    mode: SinkMode = SinkMode.UPSERT
    record: TableRecord = field(init=False)

    def __post_init__(self) -> None:
        rule = "public.*" if self.kind == "postgres" else f"{self.database}.*"
        config = ChangefeedConfig(filter=FilterConfig(rules=(rule,)))
        self.source = open_source(self.uri, Scope("c", "feed", SinkMode.UPSERT, config))
        self.open_sink = partial(open_sink, f"delta+file://{self.lake}", changefeed="feed", mode=self.mode)

    def make(self, columns: dict[str, tuple[str, str]], key: str = "id int PRIMARY KEY") -> None:
        quoted = '"{}"' if self.kind == "postgres" else "`{}_`"
        declared = ", ".join(f"{quoted.format(name)} {kind}" for name, (kind, _) in columns.items())
        self.execute(f"CREATE TABLE t ({key}{', ' if declared else ''}{declared})")
        rows = f"generate_series(1, {ROWS}) AS i" if self.kind == "postgres" else f"seq_1_to_{ROWS}"
        number = "i" if self.kind == "postgres" else "seq"
        values = "".join(f", {value}" for _, value in columns.values())
        self.execute(f"INSERT INTO t SELECT {number}{values} FROM {rows}")
        nulls = ", NULL" * len(columns)
        self.execute(f"INSERT INTO t VALUES (100000{nulls})")
        self.copy()

    def copy(self) -> None:
        schema_name = "public" if self.kind == "postgres" else self.database
        tables = self.source.check().tables
        [found] = [table for table in tables if (table.schema_name, table.name) == (schema_name, "t")]
        self.record = found.with_(start_ts=Ts(100))
        with closing(self.source.snapshot([self.record], BEGIN)) as snapshot:
            schema, sink = snapshot.schema(self.record), self.open_sink()
            staged = sink.writer().stage(self.record, "0", iter(snapshot.read(schema)), Ts(100))
            sink.load(self.record, schema, arrow_schema(schema), staged)

    def copy_again(self) -> None:
        shutil.rmtree(self.lake)
        self.copy()

    def compared(self, *, sample: float = 1.0, pace: Pace | None = None) -> TableDiff:
        with closing(self.source.snapshot([self.record], BEGIN)) as snapshot:
            pushed = Pushed(Here(), self.open_sink)
            read = paced_snapshot(snapshot, pace or Pace())
            [found] = compare_tables(read, self.open_sink(), [self.record], pushed=pushed, sample=sample)
        return found

    def compare_on(self, progress: Progress) -> TableDiff:
        with closing(self.source.snapshot([self.record], BEGIN)) as snapshot:
            pushed = Pushed(Here(), self.open_sink)
            [found] = compare_tables(snapshot, self.open_sink(), [self.record], pushed=pushed, progress=progress)
        return found

    def move_record(self, ts: int) -> None:
        """As a flush without rows would."""
        table = DeltaTable(next(self.lake.rglob("_delta_log")).parent)
        record = delta_table.record_id("feed", TableSpan(self.record.table_id))
        properties = delta_table.commit_properties(table, {record: ts})
        table.create_write_transaction([], "append", table.schema(), commit_properties=properties)

    def repaired(self, *, is_trial: bool = False, where: str = "", filter: FilterConfig = NO_FILTER) -> TableRepair:
        with closing(self.source.snapshot([self.record], BEGIN)) as snapshot:
            pushed = Pushed(Here(), self.open_sink)
            read = paced_snapshot(snapshot, Pace())
            place = read, self.open_sink(), self.record, [TableSpan(self.record.table_id)], filter
            return repair_table(*place, pushed, is_trial=is_trial, where=where)

    def wrong_ranges(self) -> int:
        with closing(self.source.snapshot([self.record], BEGIN)) as snapshot:
            assert isinstance(snapshot, SumsRanges)
            schema = snapshot.schema(self.record)
            order = partial(range_diff.SinkTask, self.open_sink, self.record, schema, arrow_schema(schema))
            checksums = snapshot.checksums(schema)
            assert not hasattr(checksums, "why"), checksums
            ranges = range_diff.plan(checksums, "id")
            sums = range_diff.sum_ranges(checksums, order, Here(), ranges, tuple(range(ranges.count)))
        return len(list(sums.differing()))


@pytest.fixture(params=["postgres", "mariadb"])
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bed]:
    server: EmbeddedPostgres | EmbeddedMariaDB = request.getfixturevalue(request.param)
    name = f"ranges_{abs(hash(request.node.name)) % 10**9}"
    server.create_database(name)
    yield Bed(request.param, server.uri(name), name, partial(server.execute, database=name), tmp_path)
    if not give_back(server, name):
        server.execute(f"DROP DATABASE {name}")


@pytest.mark.sample(1.0)
def test_types_of_mysql_have_the_same_sum_on_both_sides(
    mysql: EmbeddedMysql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It puts no vector together with texts."""
    divide(monkeypatch, 50)
    name = f"ranges_{tmp_path.name}"[:60]
    mysql.create_database(name)
    bed = Bed("mariadb", mysql.uri(name), name, partial(mysql.execute, database=name), tmp_path)
    of_maria = {name: column for name, column in MARIA.items() if name not in ("q", "hd", "v")}
    digests = {"l": ("varbinary(32)", "unhex(sha2(seq, 256))")}
    bed.make({**of_maria, **digests, "w": ("vector(3)", "to_vector(concat('[1.5,', seq, ',-0.25]'))")})
    assert bed.wrong_ranges() == 0
    assert (bed.compared().equal, bed.compared().by_rows) == (True, "")


def columns_of(bed: Bed) -> dict[str, tuple[str, str]]:
    return POSTGRES if bed.kind == "postgres" else MARIA


def test_every_type_has_the_same_sum_on_both_sides(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    divide(monkeypatch, 50)
    bed.make(columns_of(bed))
    assert bed.wrong_ranges() == 0
    found = bed.compared()
    assert (found.equal, found.rows_source, found.rows_sink, found.by_rows) == (True, ROWS + 1, ROWS + 1, "")


def test_a_difference_in_any_type_is_found_and_named(bed: Bed) -> None:
    bed.make(columns_of(bed))
    bed.execute("CREATE TABLE kept AS SELECT * FROM t WHERE id = 5")
    quoted = '"{}"' if bed.kind == "postgres" else "`{}_`"
    for name in columns_of(bed):
        column = quoted.format(name)
        bed.execute(f"UPDATE t SET {column} = NULL WHERE id = 5")
        assert bed.compared().differences == (f"id=5: differs in {column.strip('`').strip(chr(34))}",)
        bed.execute(f"UPDATE t SET {column} = (SELECT {column} FROM kept) WHERE id = 5")
    assert bed.compared().equal


def test_a_comparison_that_ended_continues_with_the_ranges_that_are_left(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each range counts as it was when it was compared. What comes between two parts goes through the store."""
    divide(monkeypatch, 10_000)
    monkeypatch.setattr(progress_of_tables, "ROWS_AT_ONCE", 30_000)
    monkeypatch.setattr(progress_of_tables, "_GROWTH", 0)
    bed.make({})
    bed.execute("INSERT INTO t VALUES (50000)")
    bed.copy_again()
    known: tuple[ComparedTable, ...] = ()
    left = []
    for part in range(4):
        progress = Progress(known)
        progress.begin(0.0)
        found = bed.compare_on(progress)
        assert not progress.has_time()
        left.append(found.left)
        progress.accept()
        known = DiffProgress.decode(DiffProgress(began=1.0, tables=progress.tables).encode(), key="k").tables
        if part == 0:
            bed.execute("INSERT INTO t VALUES (-1)")  # in a range that is done
            bed.execute("DELETE FROM t WHERE id = 50000")  # in one that is not
    assert left == [7, 4, 1, 0]
    [one] = known
    assert one.done
    assert sum(count for _, count in one.positions) == one.chosen == 10
    assert one.differences == ("id=50000: only in the sink",)
    assert (one.rows_source, one.rows_sink) == (ROWS + 1, ROWS + 2)
    assert bed.compared().differences == ("id=-1: missing in the sink", "id=50000: only in the sink")


@pytest.mark.sample(1.0)
def test_a_small_table_is_one_range_however_far_apart_its_keys_are(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_diff, "_SMALL_ROWS", ROWS + 2)
    bed.make({}, key="id bigint PRIMARY KEY")
    bed.execute("INSERT INTO t VALUES (-9223372036854775808)")
    bed.copy_again()
    progress = Progress()
    assert bed.compare_on(progress).equal
    [small] = progress.tables
    bed.execute("INSERT INTO t VALUES (9223372036854775807)")
    progress = Progress()
    assert bed.compare_on(progress).differences == ("id=9223372036854775807: missing in the sink",)
    [large] = progress.tables
    assert (small.count, large.count) == (1, 1_024)


@pytest.mark.sample(1.0)
def test_the_sink_is_read_a_few_times_for_keys_that_are_far_apart(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those that contain a time; each range of them is wider than the rows that are summed in one go."""
    divide(monkeypatch, 100_000)
    bed.make({}, key="id bigint PRIMARY KEY")
    bed.execute("UPDATE t SET id = 7000000000000000000 + id * 1000000000000")
    bed.copy_again()
    read = Mock(side_effect=range_diff._sum_sink)
    monkeypatch.setattr(range_diff, "_sum_sink", read)
    progress = Progress()
    assert bed.compare_on(progress).equal
    [one] = progress.tables
    assert (one.count, one.rows_source, one.done) == (1_024, ROWS + 1, True)
    assert read.call_count < 10


@pytest.mark.sample(1.0)
def test_a_table_that_is_altered_under_the_snapshot_waits_for_the_next(
    mariadb: EmbeddedMariaDB, tmp_path: Path
) -> None:
    """MariaDB does not read it there any more. The others are compared, and nothing is recorded of this one."""
    name = f"ranges_{tmp_path.name}"[:60]
    mariadb.create_database(name)
    bed = Bed("mariadb", mariadb.uri(name), name, partial(mariadb.execute, database=name), tmp_path)
    bed.make({})
    bed.execute("CREATE TABLE u (id int PRIMARY KEY)")
    [other] = [table for table in bed.source.check().tables if table.name == "u"]
    progress = Progress()
    progress.begin(60.0)
    with closing(bed.source.snapshot([bed.record, other], BEGIN)) as snapshot:
        bed.execute("ALTER TABLE t FORCE")
        pushed = Pushed(Here(), bed.open_sink)
        altered, kept = compare_tables(snapshot, bed.open_sink(), [bed.record, other], pushed=pushed, progress=progress)
    assert (altered.equal, altered.differences) == (False, ())
    assert "altered under the snapshot" in altered.waiting
    assert (kept.table, kept.waiting) == (f"{name}.u", "")
    progress.accept()
    assert progress.done() == {other.table_id}
    assert bed.compare_on(progress).equal


def test_rows_that_exchange_a_value_differ(bed: Bed) -> None:
    text = ("text", "concat('n', i % 2)") if bed.kind == "postgres" else ("text", "concat('n', seq % 2)")
    bed.make({"n": text})
    name = "n" if bed.kind == "postgres" else "n_"
    bed.execute(f"UPDATE t SET {name} = CASE id WHEN 7 THEN 'n0' ELSE 'n1' END WHERE id IN (7, 8)")
    assert bed.compared().differences == (f"id=7: differs in {name}", f"id=8: differs in {name}")


def test_keys_outside_of_the_sources_are_found(bed: Bed) -> None:
    bed.make({})
    bed.execute("INSERT INTO t VALUES (-5)")
    assert bed.compared().differences == ("id=-5: missing in the sink",)
    bed.execute("DELETE FROM t WHERE id IN (-5, 1, 100000)")
    assert bed.compared().differences == ("id=1: only in the sink", "id=100000: only in the sink")
    bed.execute("DELETE FROM t")
    assert (bed.compared().rows_source, len(bed.compared().differences)) == (0, 10)


def test_a_table_with_a_text_key_is_one_range(bed: Bed) -> None:
    bed.make({}, key="id varchar(20) PRIMARY KEY")
    found = bed.compared()
    assert (found.equal, found.by_rows) == (True, "")
    bed.execute("DELETE FROM t WHERE id = '17'")
    assert bed.compared().differences == ("id=17: only in the sink",)


@pytest.mark.parametrize("bed", ["mariadb"], indirect=True)
@pytest.mark.parametrize("kind", ["bit(20)", "bigint unsigned", "year"])
def test_every_key_that_is_a_number_at_the_sink_has_ranges(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    divide(monkeypatch, 50)
    bed.execute(f"CREATE TABLE t (id {kind} PRIMARY KEY)")
    first, last = {"bigint unsigned": (1 << 63, (1 << 64) - 1), "year": (1902, 2100)}.get(kind, (0, 200_000))
    rows = ", ".join(f"({key})" for key in (*range(first, first + 190), last))
    bed.execute(f"INSERT INTO t VALUES {rows}")
    bed.copy()
    assert bed.compared().equal
    bed.execute(f"DELETE FROM t WHERE id = {first + 5}")
    assert (bed.compared().equal, bed.compared().rows_source) == (False, 190)


def test_a_type_without_an_equal_sum_is_compared_by_rows_and_reports_it(bed: Bed) -> None:
    bed.make(UNSUMMED[bed.kind])
    found = bed.compared()
    name = "x" if bed.kind == "postgres" else "x_"
    assert found.equal
    assert found.by_rows.startswith(f"column {name} is a ")


def test_a_sample_sees_some_ranges_and_says_how_many(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    divide(monkeypatch, 10_000)
    monkeypatch.setattr("random.sample", lambda numbers, count: list(numbers)[-count:])
    bed.make({})
    bed.execute("DELETE FROM t WHERE id = 17")
    part = bed.compared(sample=0.4)
    assert (part.equal, part.share, part.rows_source, part.rows_sink) == (True, 0.4, 1, 1)
    assert bed.compared(sample=0.01).share == 0.1, "one range at least"
    assert bed.compared().differences == ("id=17: only in the sink",)
    monkeypatch.setattr("random.sample", lambda numbers, count: list(numbers)[:count])
    assert bed.compared(sample=0.1).differences == ("id=17: only in the sink",)


def test_a_comparison_is_as_fast_as_is_allowed(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    divide(monkeypatch, 100)
    bed.make({})
    bed.execute("DELETE FROM t WHERE id = 17")
    pace, began = Pace((RowBudget(1_000),)), time.monotonic()
    found = bed.compared(pace=pace)
    assert found.differences == ("id=17: only in the sink",)
    assert time.monotonic() - began >= 0.2, "two sessions sum at once, and the second ranges wait"
    pace.stopped.set()
    with pytest.raises(ReadingStopped):
        bed.compared(pace=pace)


#: what is wrong at the sink: a value, a row that is missing, one that is alone, and one that matches there only
WRONG = (
    "UPDATE t SET {0} = 'b-other' WHERE id = 10",
    "INSERT INTO t (id, {0}) VALUES (-3, 'b')",
    "DELETE FROM t WHERE id = 13",
    "UPDATE t SET {0} = 'x' WHERE id = 16",
    "UPDATE t SET {0} = 'x2' WHERE id = 11",
)


def letters(bed: Bed) -> tuple[str, dict[str, tuple[str, str]]]:
    if bed.kind == "postgres":
        return '"v"', {"v": ("text", "substr('abc', 1 + i % 3, 1)")}
    return "`v_`", {"v": ("text", "substr('abc', 1 + seq % 3, 1)")}


@pytest.mark.parametrize("mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])
def test_only_rows_that_match_on_either_side_are_made_equal(bed: Bed, mode: SinkMode) -> None:
    """Of 1 to 20: 1, 4, 7 … have b."""
    bed = replace(bed, mode=mode)
    name, columns = letters(bed)
    bed.make(columns)
    plain = name.strip('"`')
    for statement in WRONG:
        bed.execute(statement.format(name))
    wanted = [
        RepairedKey({"id": "-3"}, "inserted"),
        RepairedKey({"id": "10"}, "updated", (plain,)),
        RepairedKey({"id": "13"}, "deleted"),
        RepairedKey({"id": "16"}, "updated", (plain,)),
    ]
    condition = f"{plain.upper()} LIKE 'b%' AND NOT id > 20"
    shown = bed.repaired(is_trial=True, where=condition)
    assert shown.refused == ""
    assert sorted(map(repr, shown.keys)) == sorted(map(repr, wanted))
    assert sorted(map(repr, bed.repaired(where=condition).keys)) == sorted(map(repr, wanted))
    assert bed.compared().differences == (f"id=11: differs in {plain}",), "what does not match is left as it is"
    assert bed.repaired(where=condition).keys == ()
    assert bed.repaired(where=f"{plain} = 'none'").keys == ()


#: by type: of PostgreSQL, of MariaDB, and a value
KEYS = [
    ("varchar(40)", "varchar(40)", "'it''s \\\\ \"x\" ä'"),
    ("char(5)", "char(5)", "'a'"),
    ("bigint", "bigint unsigned", "9007199254740993"),
    ("numeric(20, 2)", "decimal(20, 2)", "123456789012345678.90"),
    ("date", "date", "'1969-02-28'"),
    ("timestamp", "datetime(6)", "'1969-02-28 01:02:03.000004'"),
    ("timestamptz", "timestamp(6)", "'2024-02-29 01:02:03.000004'"),
    ("bytea", "varbinary(16)", "'x''y'"),
    ("boolean", "boolean", "true"),
    ("uuid", "varchar(40)", "'3f2504e0-4f89-11d3-9a0c-0305e82c3301'"),
]


@pytest.mark.parametrize(("postgres_type", "maria_type", "value"), KEYS)
def test_rows_that_match_only_at_the_sink_are_found_by_any_key(
    bed: Bed, postgres_type: str, maria_type: str, value: str
) -> None:
    kind, moment = (postgres_type, "timestamp") if bed.kind == "postgres" else (maria_type, "datetime")
    bed.execute(f"CREATE TABLE t (a {kind} NOT NULL, b int NOT NULL, n {moment} NULL, PRIMARY KEY (b, a))")
    at = "'2024-02-29 12:00:00'"
    bed.execute(f"INSERT INTO t VALUES ({value}, 1, NULL), ({value}, 2, {at}), ({value}, 3, {at}), ({value}, 4, NULL)")
    bed.copy()
    bed.execute("UPDATE t SET n = NULL WHERE b = 2")
    bed.execute("DELETE FROM t WHERE b = 3")
    bed.execute(f"UPDATE t SET n = {at} WHERE b = 4")
    found = bed.repaired(where="n > '2024-01-01' AND b <= 4")
    assert found.refused == ""
    assert {(one.key["b"], one.what) for one in found.keys} == {("2", "updated"), ("3", "deleted"), ("4", "updated")}
    assert bed.compared().equal


def test_a_condition_that_does_not_fit_is_refused_in_one_line(bed: Bed) -> None:
    name, columns = letters(bed)
    bed.make(columns)
    plain = name.strip('"`')
    bed.execute("DELETE FROM t WHERE id = 13")
    refused = {
        "nope = 1": "reads nope, which the sink's",
        f"{plain} > 5": "does not fit its columns",
    }
    for condition, why in refused.items():
        found = bed.repaired(where=condition)
        assert why in found.refused
        assert (found.keys, "\n" in found.refused) == ((), False)
    hostile = f"{plain} = 'b'') OR (1=1' OR {plain} = '\\\\'') OR true -- '"
    assert bed.repaired(where=hostile).keys == (), "a text is a text"


def test_more_rows_than_fit_are_refused(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.make({})
    monkeypatch.setattr(repair, "_ROWS_MAX", 300)
    assert "more than 300 rows match; narrow the condition" in bed.repaired(where="id > 0").refused
    bed.execute("DELETE FROM t WHERE id > 200")
    assert "more than 300 rows match" in bed.repaired(where="id > 0").refused, "at the sink"
    assert len(bed.repaired(where="id BETWEEN 150 AND 250").keys) == 50


def test_rows_that_a_filter_leaves_out_are_not_taken_in(bed: Bed) -> None:
    name, columns = letters(bed)
    bed.make(columns)
    plain = name.strip('"`')
    ignored = FilterConfig(event_filters=(EventFilter(ignore_insert_value_expr=f"{plain} = 'b'"),))
    found = bed.repaired(where="id < 10", filter=ignored)
    assert {(one.key["id"], one.what) for one in found.keys} == {("1", "deleted"), ("4", "deleted"), ("7", "deleted")}


def test_ranges_cover_all_keys_once() -> None:
    ranges = Ranges.over("id", -(2**63), 2**63 - 1)
    keys = [ranges.at(number) for number in range(ranges.count)]
    assert keys[0].low is None
    assert keys[-1].high is None
    assert all(first.high == second.low for first, second in pairwise(keys))


@pytest.mark.parametrize("mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])
def test_differing_rows_are_made_equal_and_no_other_is_touched(bed: Bed, mode: SinkMode) -> None:
    bed = replace(bed, mode=mode)
    bed.make(columns_of(bed))
    quote = '"' if bed.kind == "postgres" else "`"
    column = "i" if bed.kind == "postgres" else "i_"
    assert bed.repaired().keys == ()
    bed.execute(f"UPDATE t SET {quote}{column}{quote} = 'other' WHERE id IN (3, 300)")
    bed.execute("DELETE FROM t WHERE id = 17")
    bed.execute("INSERT INTO t (id) VALUES (-9)")
    wanted = [
        RepairedKey({"id": "-9"}, "inserted"),
        RepairedKey({"id": "3"}, "updated", (column,)),
        RepairedKey({"id": "300"}, "updated", (column,)),
        RepairedKey({"id": "17"}, "deleted"),
    ]
    shown = bed.repaired(is_trial=True)
    assert sorted(map(repr, shown.keys)) == sorted(map(repr, wanted))
    assert not bed.compared().equal, "a trial changes nothing"
    assert sorted(map(repr, bed.repaired().keys)) == sorted(map(repr, wanted))
    assert bed.compared().differences == ()
    assert bed.open_sink().committed_ts(bed.record, TableSpan(bed.record.table_id)) == 100, "no record has moved"


def test_a_sink_that_is_past_the_source_is_not_repaired(bed: Bed) -> None:
    bed.make({})
    bed.execute("DELETE FROM t WHERE id = 17")
    with closing(bed.source.snapshot([bed.record], BEGIN)) as snapshot:
        sink = bed.open_sink()
        place = snapshot, sink, bed.record, [TableSpan(bed.record.table_id)], NO_FILTER
        bed.move_record(int(snapshot.ts) + 1)
        with pytest.raises(SinkFencedError, match="ask for it again"):
            repair_table(*place, Pushed(Here(), bed.open_sink), is_trial=False)
    assert not bed.compared().equal


def test_a_table_with_rows_that_are_there_twice_is_left_as_it_is(bed: Bed) -> None:
    bed.make({})
    lake = next(bed.lake.rglob("_delta_log")).parent
    write_deltalake(lake, pa.table({"id": pa.array([17], pa.int32())}), mode="append")
    found = bed.repaired()
    assert found.keys == ()
    assert "a key of it is there more than once; copy it again: weir table resync --table" in found.refused
