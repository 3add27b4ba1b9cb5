"""Equal iff source and sink hold the same rows: on batches, on changelogs, and on a real PostgreSQL."""

import datetime
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.errors import SinkUriError, TableHeldError
from agent.feeds.diff import TableDiff, compare_tables
from agent.feeds.diff import compare as compare_as
from agent.ports.sink import FeedContext, FlushTask
from agent.ports.source import BEGIN, Scope, Source
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, Changes
from agent.rows.columnless import columnless
from agent.sinks import open_sink
from agent.sinks.delta.read import read_rows
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.table.schema import delta_table
from agent.sources import open_source
from agent.sources.postgres.decode.types import arrow_schema
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from agent.sources.postgres.snapshot.chunks import WHOLE_TABLE
from agent.sources.postgres.snapshot.rows import read_chunk
from capture.embedded import EmbeddedPostgres
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from reactor.records.tables.table import TableRecord
from tests.unit.agent.changes_build import (
    ARROW,
    UNCHANGED,
    changes,
    delete,
    insert,
    table_schema,
    truncate,
    update,
)

KEY = ["id"]
compare = partial(compare_as, as_stored=delta_table)


def rows(*values: tuple[Any, ...]) -> list[pa.RecordBatch]:
    return [changes([insert(*value)]).after for value in values]


def test_equal_in_any_order_and_any_batches() -> None:
    ours = rows((1, "a", None), (2, "b", "y"), (3, None, "z"))
    theirs = [pa.Table.from_batches([ours[2], ours[0], ours[1]]).combine_chunks().to_batches()[0]]
    diff = compare("public.t", lambda: ours, lambda: theirs, key=KEY)
    assert (diff.equal, diff.rows_source, diff.rows_sink, diff.differences) == (True, 3, 3, ())
    assert compare("public.t", lambda: ours, lambda: theirs, key=[]).equal
    assert compare("public.t", list, list, key=KEY).equal


def test_differences_are_reported_by_key() -> None:
    ours = rows((1, "a", "x"), (2, "b", "y"), (3, "c", "z"), (4, "d", "w"))
    theirs = rows((1, "a", "x"), (3, "cc", None), (4, "d", "w"), (4, "d", "w"), (5, "e", "v"))
    diff = compare("public.t", lambda: ours, lambda: theirs, key=KEY)
    assert not diff.equal
    assert diff.differences == (
        "id=2: missing in the sink",
        "id=3: differs in big, name",
        "id=4: 1 times in the source, 2 times in the sink",
        "id=5: only in the sink",
    )


def test_without_a_key_rows_count() -> None:
    ours, theirs = rows((1, "a", "x"), (1, "a", "x")), rows((1, "a", "x"))
    diff = compare("public.t", lambda: ours, lambda: theirs, key=[])
    assert diff.differences == ("big=x, id=1, name=a: 2 times in the source, 1 times in the sink",)
    assert compare("public.t", list, lambda: theirs, key=[]).differences == ("big=x, id=1, name=a: only in the sink",)


def test_at_most_ten_differences_are_reported() -> None:
    ours = rows(*((at, "a", "x") for at in range(50)))
    diff = compare("public.t", lambda: ours, list, key=KEY)
    assert len(diff.differences) == 10
    assert diff.rows_source == 50


@pytest.mark.parametrize(("ours", "theirs"), [(5, 5), (5, 3), (0, 2), (0, 0)])
def test_rows_without_columns_count(ours: int, theirs: int) -> None:
    diff = compare("public.t", lambda: [columnless(ours)], lambda: [columnless(theirs)], key=[])
    assert (diff.equal, diff.rows_source, diff.rows_sink) == (ours == theirs, ours, theirs)
    assert diff.differences == (() if ours == theirs else ("the number of rows, which have no columns",))


def test_columns_that_fit_no_common_type_are_a_difference_of_one_table() -> None:
    def unreadable() -> Iterator[pa.RecordBatch]:
        yield from ()
        raise pa.ArrowInvalid("Precision is not great enough for the result\nmore")

    found = compare("public.t", list, unreadable, key=["id"])
    assert not found.equal
    assert "Precision is not great enough for the result)" in found.differences[0]


def test_times_are_compared_as_the_sink_writes_them() -> None:
    moment = datetime.time(1, 2, 3)
    ours = [pa.record_batch({"id": pa.array([1], pa.int64()), "at": pa.array([moment], pa.time64("us"))})]
    theirs = [pa.record_batch({"at": ["01:02:03"], "id": pa.array([1], pa.int64())})]
    assert compare("public.t", lambda: ours, lambda: theirs, key=KEY).equal


@settings(max_examples=30, deadline=None)
@given(
    ours=st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.none()), max_size=8),
    theirs=st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.none()), max_size=8),
)
def test_equal_iff_the_same_multiset(ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> None:
    diff = compare("public.t", lambda: rows(*ours), lambda: rows(*theirs), key=KEY)
    assert diff.equal == (sorted(ours, key=repr) == sorted(theirs, key=repr))
    assert diff.equal == (not diff.differences)


def changelog(directory: Path, record: TableRecord, *parts: Changes) -> DeltaSink:
    sink = open_sink(f"delta+file://{directory}", changefeed="feed", mode=SinkMode.CHANGELOG)
    assert isinstance(sink, DeltaSink)
    staged = sink.writer().stage(record, "0", iter(rows((1, "a", "x"), (2, "b", "y"))), Ts(100))
    sink.load(record, table_schema(), ARROW, staged)
    at = 100
    for part in parts:
        order = FlushTask(
            FeedContext("feed", "", SinkMode.CHANGELOG), TableSpan(16384), record, (), Ts(at), Ts(at + 100)
        )
        [result] = sink.commit([order], [sink.write(order, iter([part]))])
        assert result.committed
        at += 100
    return sink


RECORD = TableRecord(table_id=16384, schema_name="public", name="t", key=("id",), start_ts=Ts(100))


def test_a_changelog_is_folded_to_its_rows(tmp_path: Path) -> None:
    first = changes(
        [
            update(1, "c", UNCHANGED, ts=110),
            update(7, "m", UNCHANGED, before=(2, None, None), before_kind=BEFORE_KEY, ts=120),
            insert(3, "d", "z", ts=130),
        ]
    )
    second = changes(
        [
            update(3, "e", UNCHANGED, before=(3, "d", "z"), before_kind=BEFORE_FULL, ts=210),
            delete(1, None, None, ts=220),
        ]
    )
    sink = changelog(tmp_path, RECORD, first, second)

    def read() -> list[pa.RecordBatch]:
        return list(read_rows(sink.place(RECORD), table_schema(), ARROW, key=KEY))

    expected = rows((3, "e", "z"), (7, "m", "y"))
    assert compare("public.t", lambda: expected, read, key=KEY).differences == ()
    [order] = [FlushTask(FeedContext("feed", "", SinkMode.CHANGELOG), TableSpan(16384), RECORD, (), Ts(300), Ts(400))]
    sink.commit([order], [sink.write(order, iter([changes([truncate(ts=310), insert(9, "n", "n", ts=320)])]))])
    assert compare("public.t", lambda: rows((9, "n", "n")), read, key=KEY).equal
    [order] = [FlushTask(FeedContext("feed", "", SinkMode.CHANGELOG), TableSpan(16384), RECORD, (), Ts(400), Ts(500))]
    sink.commit([order], [sink.write(order, iter([changes([truncate(ts=410)])]))])
    assert compare("public.t", lambda: rows(), read, key=KEY).differences == ()


def test_a_changelog_without_a_key(tmp_path: Path) -> None:
    record = RECORD.with_(key=())
    sink = changelog(tmp_path / "a", record, changes([insert(1, "a", "x", ts=110)]))
    read = list(read_rows(sink.place(RECORD), table_schema(), ARROW, key=()))
    expected = rows((1, "a", "x"), (1, "a", "x"), (2, "b", "y"))
    assert compare("public.t", lambda: expected, lambda: read, key=[]).equal
    bare = list(read_rows(sink.place(RECORD), replace(table_schema(), columns=()), pa.schema([]), key=()))
    assert compare("public.t", lambda: [columnless(3)], lambda: bare, key=[]).equal, "all columns were dropped"
    sink = changelog(tmp_path / "b", record, changes([delete(1, "a", "x", before_kind=BEFORE_FULL, ts=110)]))
    read = list(read_rows(sink.place(RECORD), table_schema(), ARROW, key=()))
    assert compare("public.t", lambda: rows((2, "b", "y")), lambda: read, key=[]).equal
    sink = changelog(tmp_path / "c", record, changes([update(1, "b", "x", ts=110)]))
    with pytest.raises(TableHeldError, match="cannot be compared"):
        list(read_rows(sink.place(RECORD), table_schema(), ARROW, key=()))


def test_postgres_against_delta(tmp_path: Path, postgres: EmbeddedPostgres) -> None:
    postgres.create_database("diffs")
    uri = postgres.uri("diffs")
    with connect(uri) as connection:
        connection.query("CREATE TABLE t (id int PRIMARY KEY, v numeric(10,2), at time, note text)")
        connection.query(
            "INSERT INTO t SELECT g, g / 3.0, time '01:02:03.5' + g * interval '1 s', nullif(repeat('n', g % 7), '') "
            "FROM generate_series(1, 5000) g"
        )
        table_id = int(connection.query("SELECT 't'::regclass::oid")[0][0] or 0)
        schema = read_schemas(connection, [table_id])[table_id]
    record = TableRecord(table_id=table_id, schema_name="public", name="t", key=("id",), start_ts=Ts(100))
    sink = open_sink(f"delta+file://{tmp_path}", changefeed="feed", mode=SinkMode.UPSERT)
    staged = sink.writer().stage(record, "0", iter(read_chunk(uri, None, schema, WHOLE_TABLE)), Ts(100))
    sink.load(record, schema, arrow_schema(schema), staged)
    source = open_source(uri, Scope("c", "feed", SinkMode.UPSERT, ChangefeedConfig()))
    [diff] = compared(source, f"delta+file://{tmp_path}", record)
    assert (diff.table, diff.equal, diff.rows_source, diff.rows_sink) == ("public.t", True, 5000, 5000)
    with connect(uri) as connection:
        connection.query("UPDATE t SET note = 'changed' WHERE id = 17")
        connection.query("DELETE FROM t WHERE id = 4711")
    [diff] = compared(source, f"delta+file://{tmp_path}", record)
    assert diff.differences == ("id=17: differs in note", "id=4711: only in the sink")
    with pytest.raises(SinkUriError, match="cannot be read"):
        compared(source, "blackhole://", record)
    gone = record.with_(table_id=1, name="gone")
    before, after = compared(source, f"delta+file://{tmp_path}", gone, record)
    assert (before.table, before.equal) == ("public.gone", False)
    assert "is gone from the source" in before.differences[0]
    assert len(after.differences) == 2, "the others are compared all the same"
    never = record.with_(name="never")
    before, after = compared(source, f"delta+file://{tmp_path}", never, record)
    assert (before.equal, len(after.differences)) == (False, 2)
    assert before.differences[0].startswith("there is no Delta table at")
    for file in (tmp_path / "public" / "t").rglob("*.parquet"):
        file.unlink()
    [damaged] = compared(source, f"delta+file://{tmp_path}", record)
    assert not damaged.equal
    assert damaged.differences[0].startswith(f"cannot read {tmp_path}/public/t: ")


def test_a_table_that_the_source_cannot_read_differs_alone(tmp_path: Path, postgres: EmbeddedPostgres) -> None:
    postgres.create_database("damaged")
    uri = postgres.uri("damaged")
    with connect(uri) as connection:
        ids = []
        for name in ("bad", "good"):
            connection.query(f"CREATE TABLE {name} (id int PRIMARY KEY, v text STORAGE EXTERNAL)")
            connection.query(f"INSERT INTO {name} VALUES (1, repeat('v', 9000))")
            ids.append(int(connection.query(f"SELECT '{name}'::regclass::oid")[0][0] or 0))
        schemas = read_schemas(connection, ids)
    sink = open_sink(f"delta+file://{tmp_path}", changefeed="feed", mode=SinkMode.UPSERT)
    tables = []
    for table_id, schema in schemas.items():
        record = TableRecord(table_id=table_id, schema_name="public", name=schema.name, key=("id",), start_ts=Ts(100))
        staged = sink.writer().stage(record, "0", iter(read_chunk(uri, None, schema, WHOLE_TABLE)), Ts(100))
        sink.load(record, schema, arrow_schema(schema), staged)
        tables.append(record)
    with connect(uri) as connection:
        [[toast]] = connection.query("SELECT reltoastrelid::int8 FROM pg_class WHERE relname = 'bad'")
        connection.query(f"SET allow_system_table_mods = on; DELETE FROM pg_class WHERE oid = {toast}")
    source = open_source(uri, Scope("c", "feed", SinkMode.UPSERT, ChangefeedConfig()))
    bad, good = compared(source, f"delta+file://{tmp_path}", *tables)
    assert (bad.table, bad.equal) == ("public.bad", False)
    assert "could not open relation with OID" in bad.differences[0]
    assert (good.table, good.equal, good.rows_source) == ("public.good", True, 1)


def compared(source: Source, sink_uri: str, *records: TableRecord) -> list[TableDiff]:
    with closing(source.snapshot(records, BEGIN)) as snapshot:
        return compare_tables(snapshot, open_sink(sink_uri, changefeed="f", mode=SinkMode.UPSERT), records)
