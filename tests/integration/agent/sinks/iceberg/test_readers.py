"""Other readers of tables with updates, deletes and changed columns: PyIceberg, DuckDB, perhaps Polars."""

from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.snapshots import Operation

from agent.ports.sink import Alters, Maintains
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks import open_table
from agent.sinks.iceberg.table.schema import FORMS
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.contracts.sink_bed import SPAN, TABLE, Bed
from tests.integration.agent.sinks.iceberg.lake import table_of
from tests.integration.agent.sinks.iceberg.readers import COMPARED, duckdb_rows
from tests.unit.agent.changes_build import Change, delete, insert, table_schema, update

_EVERYTHING = pa.schema(
    [
        ("id", pa.int64()),
        ("flag", pa.bool_()),
        ("tiny", pa.int8()),
        ("short", pa.int16()),
        ("byte", pa.uint8()),
        ("word", pa.uint16()),
        ("int", pa.int32()),
        ("uint", pa.uint32()),
        ("ulong", pa.uint64()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("price", pa.decimal128(38, 9)),
        ("day", pa.date32()),
        ("at", pa.time64("us")),
        ("moment", pa.timestamp("us")),
        ("instant", pa.timestamp("us", "UTC")),
        ("text", pa.string()),
        ("bytes", pa.binary()),
    ]
)
_UTC = timezone.utc  # noqa: UP017  # as DuckDB and pyarrow give it
_ROWS: list[tuple[Any, ...]] = [
    (
        *(1, True, -128, -32768, 255, 65535, -(2**31), 2**32 - 1, 2**64 - 1, 1.5, -1e300, Decimal("-9.000000001")),
        *(date(1, 1, 1), time(23, 59, 59, 999999), datetime(9999, 12, 31, 23, 59, 59, 999999)),
        *(datetime(1, 1, 1, tzinfo=_UTC), "☃" * 100, b"\x00\xff"),
    ),
    (2, *[None] * 17),
    (
        *(3, False, 0, 0, 0, 0, 0, 0, 0, -0.0, float("inf"), Decimal("0E-9"), date(1969, 12, 31), time(0)),
        *(datetime(1969, 12, 31, 23, 59), datetime(2038, 1, 19, tzinfo=_UTC), "", b""),
    ),
]


def _ours(bed: Bed) -> list[tuple[Any, ...]]:
    found = open_table(bed.uri, TABLE.path).scan().read_all()
    return [tuple(row.values()) for row in found.to_pylist()]


def agree(bed: Bed, rows: list[tuple[Any, ...]]) -> None:
    table = table_of(bed, TABLE)
    wanted = sorted(rows, key=repr)
    assert sorted(_ours(bed), key=repr) == wanted
    for reader in COMPARED:
        if not reader.why_not():
            assert sorted(_rows(reader.rows(table)), key=repr) == wanted, reader.name


def _rows(found: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in found.to_pylist()]


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(f"iceberg+file://{tmp_path}/lake", SinkMode.UPSERT)


def test_every_type_there_and_back(bed: Bed) -> None:
    """By the snapshot and by a flush; the rows that come back are those that went in, in the stored types."""
    batch = pa.RecordBatch.from_pylist(
        [dict(zip(_EVERYTHING.names, row, strict=True)) for row in _ROWS], schema=_EVERYTHING
    )
    staged = bed.open().writer().stage(TABLE, "1-0", iter([batch.slice(0, 2)]), Ts(100))
    bed.open().load(TABLE, table_schema(_EVERYTHING), _EVERYTHING, staged)
    assert bed.flush(100, 200, [insert(*_ROWS[2], ts=110)], arrow=_EVERYTHING).committed
    bed.assert_holds(*_ROWS, arrow=_EVERYTHING)
    table = table_of(bed, TABLE)
    kinds = [str(field.field_type) for field in table.schema().fields]
    assert kinds == [
        *("long", "boolean", "int", "int", "int", "int", "int", "long", "decimal(20, 0)", "float", "double"),
        *("decimal(38, 9)", "date", "time", "timestamp", "timestamptz", "string", "binary"),
    ]
    stored = [tuple(row.values()) for row in FORMS.table(batch).to_pylist()]
    agree(bed, stored)


def test_dates_before_christ_are_kept(bed: Bed) -> None:
    arrow = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("moment", pa.timestamp("us"))])
    days, micros = pa.array([-800_000, 0], pa.int32()), pa.array([-(10**17), 0], pa.int64())
    columns = [pa.array([1, 2]), days.cast(pa.date32()), micros.cast(pa.timestamp("us"))]
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow)
    staged = bed.open().writer().stage(TABLE, "1-0", iter([batch]), Ts(100))
    bed.open().load(TABLE, table_schema(arrow), arrow, staged)
    found = open_table(bed.uri, TABLE.path).scan().read_all()
    assert found.column("day").cast(pa.int32()).to_pylist() == days.to_pylist()
    assert found.column("moment").cast(pa.int64()).to_pylist() == micros.to_pylist()


@pytest.mark.matrix
def test_rows_that_are_gone_or_new_are_so_for_every_reader(bed: Bed) -> None:
    bed.load(*((at, f"n{at}", "b") for at in range(100)))
    rows = {at: (at, f"n{at}", "b") for at in range(100)}
    for turn in range(30):  # past the joining of files and of deletes
        some: list[Change] = [update(at, f"t{turn}", "u", ts=turn * 10 + 101) for at in range(turn, turn + 5)]
        some += [delete(turn + 40, None, None, ts=turn * 10 + 102), insert(200 + turn, "new", "r", ts=turn * 10 + 103)]
        assert bed.flush(turn * 10 + 100, turn * 10 + 110, some).committed
        rows |= {at: (at, f"t{turn}", "u") for at in range(turn, turn + 5)}
        rows.pop(turn + 40, None)
        rows[200 + turn] = (200 + turn, "new", "r")
        if turn in (0, 11, 23, 29):
            agree(bed, list(rows.values()))


def test_columns_change_without_a_file_being_written(bed: Bed) -> None:
    """Rename, add, drop, widen and a new order; a later column of a dropped one's name does not get its values."""
    arrow = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("f", pa.float32()), ("x", pa.string())])
    rows = pa.RecordBatch.from_pylist([{"id": 1, "n": 7, "f": 1.5, "x": "old"}], schema=arrow)
    staged = bed.open().writer().stage(TABLE, "1-0", iter([rows]), Ts(100))
    bed.open().load(TABLE, table_schema(arrow), arrow, staged)
    before = table_of(bed, TABLE)
    assert bed.flush(100, 110, [insert(2, 8, 2.5, "two", ts=105)], arrow=arrow).committed
    _alter(
        bed,
        110,
        ColumnMove("f", pa.float64(), "f"),
        ColumnMove("id", pa.int64(), "id"),
        ColumnMove("number", pa.int64(), "n"),
    )
    _alter(
        bed,
        120,
        ColumnMove("f", pa.float64(), "f"),
        ColumnMove("id", pa.int64(), "id"),
        ColumnMove("number", pa.int64(), "number"),
        ColumnMove("x", pa.string(), None),
    )
    after = table_of(bed, TABLE)
    ids = {field.name: field.field_id for field in before.schema().fields}
    assert {field.name: field.field_id for field in after.schema().fields} == {
        "f": ids["f"],
        "id": ids["id"],
        "number": ids["n"],
        "x": 5,
    }
    files = [str(row["file_path"]) for row in after.inspect.data_files().to_pylist()]
    assert len(files) == 2
    assert not any("schema-" in path for path in files)
    agree(bed, [(1.5, 1, 7, None), (2.5, 2, 8, None)])
    wide = pa.schema([("f", pa.float64()), ("id", pa.int64()), ("number", pa.int64()), ("x", pa.string())])
    assert bed.flush(110, 200, [update(0.5, 1, 2**40, "new", ts=150)], arrow=wide).committed
    agree(bed, [(0.5, 1, 2**40, "new"), (2.5, 2, 8, None)])


def _alter(bed: Bed, ts: int, *moves: ColumnMove) -> None:
    sink, arrow = bed.open(), pa.schema([(move.name, move.type) for move in moves])
    assert isinstance(sink, Alters)
    for _ in range(2):
        sink.alter([SchemaChange(Ts(ts), SchemaChangeKind.ALTER, TABLE, TABLE, moves, table_schema(arrow), arrow)])


def test_a_changelog_is_read_by_all(tmp_path: Path) -> None:
    bed = Bed(f"iceberg+file://{tmp_path}/lake", SinkMode.CHANGELOG)
    bed.load((1, "a", "x"))
    for turn in range(30):
        assert bed.flush(100 + turn, 101 + turn, [update(1, f"{turn}", "x", ts=101 + turn)]).committed
    table = table_of(bed, TABLE)
    operations = [snapshot.summary.operation for snapshot in table.metadata.snapshots if snapshot.summary]
    assert set(operations) == {Operation.APPEND}, "a reader of changes follows it"
    sink = bed.open()
    assert isinstance(sink, Maintains)
    for files in (31, 1):
        table = table_of(bed, TABLE)
        assert len(table.inspect.data_files()) == files
        assert sorted(_rows(table.scan().to_arrow()), key=repr) == sorted(_ours(bed), key=repr)
        assert duckdb_rows(table).num_rows == 31
        sink.maintain(TABLE)
    versions = [row[4] for row in _ours(bed)]
    assert sorted(versions) == [100, *range(101, 131)]


def test_earlier_versions_and_history(bed: Bed) -> None:
    bed.load((1, "a", "x"))
    reader = open_table(bed.uri, TABLE.path)
    first = reader.version()
    bed.flush(100, 200, [delete(1, None, None, ts=110)])
    assert reader.scan().read_all().num_rows == 0
    assert reader.scan(["name"], version=first).read_all().to_pylist() == [{"name": "a"}]
    newest, oldest = reader.history(2)
    assert (newest["operation"], oldest["operation"], oldest["version"]) == ("delete", "append", first)
    assert newest["weir.records"] == f'{{"{SPAN}": 200}}'
