"""The Spark source's offsets, without Spark: a query that is killed anywhere has each change once, of every table."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from agent.feeds.changes import LogSlice
from agent.log import segment
from capture.api.subscriptions import LogPart, SegmentView
from capture.errors import ConfigError, PositionGoneError
from capture.python import spark_options, spark_source
from capture.python.snapshot_start import Pinned, SnapshotPart
from capture.python.spark_options import Options
from capture.python.spark_source import SparkSource, _Part, _StreamReader
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import FilterConfig
from reactor.records.tables.table import TableRecord

SCHEMA = StructType([StructField("id", IntegerType())])
GIVEN = {"server": "http://h:1", "changefeed": "shop"}
Change = tuple[str, int]


@dataclass
class Log:
    """Segments of some changes, each with the tables' Ts; every table begins at a Ts of its own."""

    chance: Random
    tables: tuple[str, ...]
    first_ts: dict[str, int] = field(default_factory=dict)
    segments: list[tuple[SegmentView, dict[str, list[int]]]] = field(default_factory=list)
    end_ts: int = 10
    #: positions by name, and the sinks' newest versions
    positions: dict[str, int] = field(default_factory=dict)
    #: added to the tables' numbers
    swapped: int = 0
    pinned: dict[str, int] = field(default_factory=dict)

    def grow(self) -> None:
        begin = self.end_ts
        found: dict[str, list[int]] = {table: [] for table in self.tables}
        for _ in range(self.chance.randrange(1, 5)):
            self.end_ts += self.chance.randrange(1, 4)
            for table in self.chance.sample(self.tables, self.chance.randrange(1, len(self.tables) + 1)):
                if self.end_ts > self.first_ts[table]:
                    found[table] += [self.end_ts] * self.chance.randrange(1, 3)
        number = len(self.segments) + 1
        view = SegmentView(
            path=f"s{number}",
            seq=number,
            epoch=1,
            first_ts=begin + 1,
            last_ts=self.end_ts,
            resolved_ts=self.end_ts,
            bytes=10,
        )
        self.segments.append((view, found))

    def changes(self, table: str, after: int, to_ts: int | None = None) -> list[int]:
        end = self.end_ts if to_ts is None else to_ts
        return [ts for _, found in self.segments for ts in found[table] if after < ts <= end]


class Subscription:
    """What a server answers, for one log."""

    def __init__(self, log: Log, table: str, name: str, begin: int | str, at_ts: int | None) -> None:
        self._log, self.table, self._name = log, table, name
        if at_ts is not None:
            self.ts = at_ts
        elif name in log.positions:
            self.ts = log.positions[name]
        elif begin == "earliest":
            self.ts = log.first_ts[table]
        else:
            self.ts = max(log.end_ts, log.first_ts[table]) if begin == "latest" else int(begin)
        log.positions[name] = self.ts

    def part(self, after_ts: int, to_ts: int | None = None, *, max_bytes: int | None = None) -> LogPart:
        log, table = self._log, self.table
        assert after_ts >= log.first_ts[table], "changes are missing there"
        assert after_ts >= log.positions[self._name], "its files may be removed"
        end = max(after_ts, log.end_ts if to_ts is None else min(log.end_ts, to_ts))
        wanted = [view for view, found in log.segments if any(after_ts < ts <= end for ts in found[table])]
        if max_bytes is not None:
            for number, view in enumerate(wanted):
                if (number + 1) * 10 >= max_bytes and after_ts < view.resolved_ts < end:
                    wanted, end = wanted[: number + 1], view.resolved_ts
                    break
        record = TableRecord.new(log.tables.index(table) + 1 + log.swapped, *table.split("."), key=("id",))
        return LogPart(
            table=record,
            filter=FilterConfig(),
            from_ts=after_ts,
            to_ts=end,
            newest_ts=log.end_ts,
            segments=tuple(wanted),
        )

    def advance(self, ts: int) -> None:
        assert ts <= self._log.end_ts or ts <= self._log.first_ts[self.table], "the log has not reached it"
        self._log.positions[self._name] = max(ts, self._log.positions[self._name])
        self.ts = ts


@dataclass
class Snapshot:
    """Of one table: rows that are changes up to a Ts, as its sink has them."""

    log: Log
    table: str

    def pin(self, columns: set[str] | None) -> Pinned:
        ts = max(self.log.first_ts[self.table], self.log.end_ts - self.log.chance.randrange(4))
        return Pinned(ts, ts, (str(TableSpan(self.log.tables.index(self.table) + 1)),), ts)

    def parts(self, pinned: Pinned) -> list[SnapshotPart]:
        return [SnapshotPart("", "", self.table, pinned, ())]


@pytest.fixture
def log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Log:
    seed, count = request.param
    chance = Random(seed)
    tables = tuple(f"public.t{number}" for number in range(count))
    found = Log(chance, tables, {table: chance.choice((10, 10, 25)) for table in tables})

    def subscribe(options: Options, table: str, default: str, *, at_ts: int | None = None) -> Subscription:
        begin = default if options.starting is None else options.starting
        return Subscription(found, table, f"{options.name}.{table}", begin, at_ts)

    monkeypatch.setattr(Options, "subscribe", subscribe)
    monkeypatch.setattr(Options, "pin", lambda options, table, subscription: Snapshot(found, table).pin(None))
    monkeypatch.setattr(Options, "snapshot", lambda options, table: Snapshot(found, table))

    def read_batches(path: str, table_id: int) -> Iterator[tuple[None, pa.RecordBatch, float]]:
        ts = next(kept for view, kept in found.segments if view.path == path)[tables[table_id - 1]]
        yield None, pa.record_batch({"ts": pa.array(ts, pa.int64())}), 0.0

    monkeypatch.setattr(segment, "read_batches", read_batches)
    return found


class Killed(Exception):
    """The query's process has ended."""


@dataclass
class Query:
    """Spark's part: what it stores of offsets, when it calls whom, and each batch's output under its number."""

    log: Log
    options: Options
    offsets: list[dict[str, Any]] = field(default_factory=list)
    output: dict[int, list[Change]] = field(default_factory=dict)
    done: int = 0
    batches: int = 0

    def run(self, kills: float, *, until_now: bool) -> None:
        """One life; ends when there is nothing new, or is killed."""
        reader = _StreamReader(self.options, SCHEMA)
        if until_now:
            reader.prepareForTriggerAvailableNow()
        limit = reader.getDefaultReadLimit()
        # asked for again in each life whose first batch is not done
        first = {} if self.done else _stored(reader.initialOffset())
        while True:
            start = self.offsets[self.done - 1] if self.done else first
            if len(self.offsets) == self.done:
                end = _stored(reader.latestOffset(start, limit))
                self._may_end(kills)
                if end == start and self.offsets:  # the first batch is one in any case
                    return
                self.offsets.append(end)
            end = self.offsets[self.done]
            self._may_end(kills)
            parts = [json.loads(json.dumps(self._rows(part))) for part in reader.partitions(start, end)]
            self.output[self.done] = [(table, ts) for part in parts for table, ts in part]
            self.batches += 1
            self._may_end(kills)
            self.done += 1
            self._may_end(kills)
            reader.commit(end)
            if self.log.chance.random() < 0.5 and len(self.log.segments) < 20:
                self.log.grow()

    def _may_end(self, kills: float) -> None:
        if self.log.chance.random() < kills:
            raise Killed

    def _rows(self, part: Any) -> list[Change]:
        assert isinstance(part, _Part)
        if isinstance(part.part, SnapshotPart):
            return [(part.table, ts) for ts in self.log.changes(part.table, 0, part.part.pinned.ts)]
        assert isinstance(part.part, LogSlice)
        paths = {item.path for item in part.part.segments}
        return [
            (part.table, ts)
            for view, found in self.log.segments
            if view.path in paths
            for ts in found[part.table]
            if part.part.from_ts < ts <= part.part.to_ts
        ]


def _stored(offset: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(offset)))


STARTS: tuple[dict[str, str], ...] = (
    {"startingTs": "earliest"},
    {"startingTs": "latest"},
    {"startingVersion": "snapshot"},
)
LIMITS: tuple[dict[str, str], ...] = ({}, {"maxBytesPerTrigger": "25"}, {"maxRowsPerTrigger": "3"})
CASES = [(seed, count) for count in (1, 2, 3) for seed in range(count * 100, count * 100 + 8)]


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize("start", STARTS, ids=str)
@pytest.mark.parametrize("log", CASES, ids=str, indirect=True)
def test_each_change_comes_once_over_kills(log: Log, start: dict[str, str], limit: dict[str, str]) -> None:
    for _ in range(3):
        log.grow()
    query = Query(log, Options.of(GIVEN | {"table": ",".join(log.tables), "name": "q"} | start | limit))
    begin = log.end_ts
    for life in range(8):
        with suppress(Killed):
            query.run(0.15 if life < 7 else 0.0, until_now=log.chance.random() < 0.5)
        if life == 0 and not query.offsets:
            begin = log.end_ts
        log.grow()
    query.run(0.0, until_now=False)
    found = Counter(change for batch in query.output.values() for change in batch)
    for table in log.tables:
        after = 0 if start != STARTS[1] else min([*(ts - 1 for name, ts in found if name == table), log.end_ts])
        expected = Counter((table, ts) for ts in log.changes(table, after))
        assert Counter({change: count for change, count in found.items() if change[0] == table}) == expected
        assert start != STARTS[1] or not log.changes(table, begin, after), "what came after the start is there"


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("start", STARTS, ids=str)
@pytest.mark.parametrize("log", [(7, 1)], ids=str, indirect=True)
def test_a_query_does_not_continue_with_another_table_of_the_name(
    log: Log, start: dict[str, str], is_restarted: bool
) -> None:
    """As after an online schema change, whose new table has changes at the query's offset too."""
    options = Options.of(GIVEN | {"table": log.tables[0]} | start)
    reader, limit = _StreamReader(options, SCHEMA), ReadAllAvailable()
    log.grow()
    first = _stored(reader.initialOffset())
    end = _stored(reader.latestOffset(first, limit))
    reader.partitions(first, end)
    log.grow()
    reader.partitions(end, (then := _stored(reader.latestOffset(end, limit))))
    reader.commit(then)
    log.swapped = 100
    log.grow()
    if is_restarted:
        reader = _StreamReader(options, SCHEMA)
    with pytest.raises(PositionGoneError, match=r"public\.t0 is another table than the query has read"):
        reader.latestOffset(then, limit)
    with pytest.raises(PositionGoneError, match=r"public\.t0 is another table than the query has read"):
        reader.partitions(then, then | {"ts": log.end_ts})


@pytest.mark.parametrize("log", [(1, 2)], ids=str, indirect=True)
def test_rows_of_a_batch_are_limited_but_no_transaction_is_divided(log: Log) -> None:
    log.first_ts = dict.fromkeys(log.tables, 10)
    for _ in range(20):
        log.grow()
    options = Options.of(GIVEN | {"table": ",".join(log.tables), "startingTs": "earliest", "maxRowsPerTrigger": "4"})
    query = Query(log, options)
    query.run(0.0, until_now=True)
    transactions = [{ts for _, ts in batch} for batch in query.output.values()]
    assert all(
        len(batch) <= 4 or len(seen) == 1 for batch, seen in zip(query.output.values(), transactions, strict=True)
    )
    assert sum(map(len, transactions)) == len(set().union(*transactions))
    assert len(transactions) > 10


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"table": ""}, 'option "table" is missing'),
        ({"table": "public.a,"}, "write each table once"),
        ({"table": "public.a, public.a"}, "write each table once"),
        ({"table": "public.a", "maxRowsPerTrigger": "0"}, "maxRowsPerTrigger is 0; it is 1 at least"),
        ({"table": "public.a", "maxBytesPerTrigger": "many"}, "maxBytesPerTrigger is 'many', which is no number"),
        ({"table": "public.a", "mergeSchema": "yes"}, "mergeSchema is 'yes'; it may be true or false"),
    ],
)
def test_wrong_options(given: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        SparkSource(GIVEN | given)


@pytest.mark.parametrize("start", STARTS[:2], ids=str)
@pytest.mark.parametrize("log", [(1, 1), (1, 2)], ids=str, indirect=True)
def test_a_query_that_found_nothing_at_first_gets_what_came_after_it(log: Log, start: dict[str, str]) -> None:
    """Each life ends before the next changes are there, and has a reader of another name."""
    query = Query(log, Options.of(GIVEN | {"table": ",".join(log.tables)} | start))
    log.end_ts = 30  # the log has no change, and every table has begun
    log.first_ts = dict.fromkeys(log.tables, 30)
    for life in range(4):
        query.options = replace(query.options, name=f"life-{life}")
        query.run(0.0, until_now=True)
        log.grow()
    found = Counter(change for batch in query.output.values() for change in batch)
    reached = query.offsets[-1]["ts"]
    assert reached > 30
    assert found == Counter((table, ts) for table in log.tables for ts in log.changes(table, 0, reached))


def test_columns_are_asked_for_where_the_log_still_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that continues from its checkpoint began where the log no longer has anything."""
    asked = []

    def subscribe(*_: object, **given: object) -> None:
        asked.append(given.get("from_ts", "latest"))
        raise ConfigError("asked")

    monkeypatch.setattr(spark_options, "Subscription", subscribe)
    with pytest.raises(ConfigError, match="asked"):
        SparkSource(GIVEN | {"table": "public.a", "startingTs": "12"}).schema()
    assert asked == ["latest"]


@pytest.mark.parametrize("log", [(1, 1)], ids=str, indirect=True)
def test_the_log_is_kept_while_a_batch_query_reads_it(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks begin when all that was asked for its plan is over."""
    log.grow()
    table, opened = log.tables[0], dict[str, int]()

    class OneTime(Subscription):
        def __init__(
            self, *_: object, name: str = "", from_ts: str = "", at_ts: int | None = None, **__: object
        ) -> None:
            super().__init__(log, table, name, from_ts, at_ts)
            opened[name] = self.ts

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            del opened[""]

    monkeypatch.setattr(spark_options, "Subscription", OneTime)
    for _ in range(2):
        source = SparkSource(GIVEN | {"table": table})
        parts = source.reader(SCHEMA).partitions()
        assert len(parts) == 1
        assert list(opened.values()) == [log.first_ts[table]]
        assert all(name.startswith("read-") for name in opened)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(ConfigError, match=r"endingTs is for spark\.read"):
        SparkSource(GIVEN | {"table": "public.a", "endingTs": "5"}).streamReader(SCHEMA)


def test_struct_columns_are_named_apart() -> None:
    options = Options.of(GIVEN | {"table": "a.orders, b.orders,b.item"})
    assert options.columns == {"a.orders": "a_orders", "b.orders": "b_orders", "b.item": "item"}


def test_rows_become_structs() -> None:
    struct = StructType([StructField("id", IntegerType())])
    schema = StructType([StructField("_table", StringType()), StructField("a", struct), StructField("b", struct)])
    arrow = to_arrow_schema(schema, timezone="UTC")
    part = _Part(nothing(), "public.b", "b", "", leaves_out=False)
    batch = spark_source._as_struct(pa.record_batch({"id": pa.array([1, None], pa.int32())}), arrow, part)
    assert batch.to_pylist() == [
        {"_table": "public.b", "a": None, "b": {"id": 1}},
        {"_table": "public.b", "a": None, "b": {"id": None}},
    ]


def nothing() -> LogSlice:
    return LogSlice(TableRecord.new(1, "public", "b", key=("id",)), FilterConfig(), (), Ts(0), Ts(0))


def test_all_is_read_without_a_limit() -> None:
    reader = _StreamReader(Options.of(GIVEN | {"table": "public.a"}), SCHEMA)
    assert isinstance(reader.getDefaultReadLimit(), ReadAllAvailable)


#: what a Spark driver does for a query in four processes, one after the other
_PLANS = """
import sys
import capture.python.spark_source
from agent.feeds import changes
from agent.rows.schema import Column, TableSchema
for dialect in ("postgresql", "mysql"):
    column = Column("id", 20 if dialect == "postgresql" else 8, -1, "bigint", is_key=True)
    changes.schema_of(TableSchema(1, "public", "t", (column,), dialect=dialect))
print(*sorted({"numba", "pandas", "sqlglot"} & sys.modules.keys()))
"""


def test_planning_a_query_loads_no_kernels() -> None:
    """They, and what filters need, took longer to import than a million changes to read, in each of Spark's processes
    that only plans."""
    done = subprocess.run([sys.executable, "-c", _PLANS], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [], done.stderr
    assert done.returncode == 0, done.stderr
