"""Tables with partitions and an order: rows that move between partitions, schema changes, copies, care, readers."""

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IcebergType

from agent.errors import SinkError, TableHeldError
from agent.ports.sink import Alters, LaysOut, Maintains, Replaces
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks.iceberg.table import compact
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.layout import Layout
from agent.sinks.iceberg.table.metadata import manifests
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from reactor.records.sink_settings import TableLayout
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.contracts.sink_bed import TABLE, Bed
from tests.integration.agent.sinks.iceberg.lake import table_of
from tests.integration.agent.sinks.iceberg.test_readers import agree
from tests.unit.agent.changes_build import delete, insert, random_turn, table_schema, truncate, update

pytestmark = pytest.mark.sample(0.25)  # make matrix runs the others

_ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("land", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("made", pa.timestamp("us", "UTC")),
        ("born", pa.date32()),
        ("small", pa.int16()),
    ]
)
_LAYOUTS = {
    "identity": TableLayout(matcher=("*.*",), partition_by=("land",)),
    "number": TableLayout(matcher=("*.*",), partition_by=("small",), sort_by=("price desc",)),
    "decimal": TableLayout(matcher=("*.*",), partition_by=("truncate(10, price)",)),
    "day": TableLayout(matcher=("*.*",), partition_by=("day(made)", "bucket(2, id)"), sort_by=("land", "id desc")),
    "month": TableLayout(matcher=("*.*",), partition_by=("month(born)", "truncate(1, land)")),
    "hour": TableLayout(matcher=("*.*",), partition_by=("hour(made)",)),
    "year": TableLayout(matcher=("*.*",), partition_by=("year(born)", "land")),
    "dates": TableLayout(matcher=("*.*",), partition_by=("born",)),
    "order": TableLayout(matcher=("*.*",), sort_by=("made desc nulls first", "land asc nulls last")),
}
_NEW_YEAR = datetime(1969, 12, 30, 22, tzinfo=UTC)


def _row(chance: random.Random, key: int) -> tuple[Any, ...]:
    made = _NEW_YEAR + timedelta(hours=chance.randrange(0, 60), minutes=chance.randrange(60))
    values = (
        chance.choice(["de", "fr", "it", "☃ snow/=", ""]),
        Decimal(chance.randrange(-3000, 3000)) / 100,
        made,
        date(1969, 11, 20) + timedelta(days=chance.randrange(60)),
        chance.randrange(-2, 2),
    )
    return (key, *(None if chance.random() < 0.15 else value for value in values))


def _bed(tmp_path: Path, layout: TableLayout, mode: SinkMode = SinkMode.UPSERT, options: str = "") -> Bed:
    return Bed(f"iceberg+file://{tmp_path}/lake{options}", mode, (layout,))


def _load(bed: Bed, rows: dict[int, tuple[Any, ...]]) -> None:
    batch = pa.RecordBatch.from_pylist(
        [dict(zip(_ARROW.names, row, strict=True)) for row in rows.values()], schema=_ARROW
    )
    half = batch.num_rows // 2
    staged = bed.open().writer().stage(TABLE, "1-0", iter([batch.slice(0, half), batch.slice(half)]), Ts(100))
    bed.open().load(TABLE, table_schema(_ARROW), _ARROW, staged)


def _every_file_is_of_one_partition(bed: Bed) -> None:
    """What the manifests say of each file is true of all its rows; deletes are where their data files are."""
    table = table_of(bed, TABLE)
    live = manifests.live(table)
    homes = {item.path: item.home for item in live.data}
    for item in live.data:
        for field, value in zip(table.specs()[item.home[0]].fields, item.home[1], strict=True):
            source = table.schema().find_field(field.source_id)
            transform = field.transform.transform(source.field_type)
            column = _physical(_read(table, item.path, source.field_id))
            assert {transform(each) for each in column} == {value}
    for item in live.deletes:
        with table.io.new_input(item.path).open() as stream:
            named = {*pq.read_table(stream).column("file_path").to_pylist()}
        assert {homes[path] for path in named if path in homes} <= {item.home}


def _read(table: Any, path: str, number: int) -> pa.ChunkedArray:
    with table.io.new_input(path).open() as stream:
        found = pq.read_table(stream)
    [at] = [at for at, field in enumerate(found.schema) if field.metadata[b"PARQUET:field_id"] == b"%d" % number]
    return found.column(at)


def _physical(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.int64())
    return list(column.to_pylist())


@pytest.mark.sample(0.12)
@pytest.mark.parametrize("name", _LAYOUTS)
def test_rows_move_between_partitions(name: str, tmp_path: Path) -> None:
    bed, chance = _bed(tmp_path, _LAYOUTS[name]), random.Random(name)
    rows = {key: _row(chance, key) for key in range(60)}
    _load(bed, rows)
    _every_file_is_of_one_partition(bed)
    for turn in range(14):  # past the merging of deletes in one partition
        some = random_turn(chance, rows, turn, _row)
        assert bed.flush(turn * 10 + 100, turn * 10 + 110, some, arrow=_ARROW).error == ""
    agree(bed, list(rows.values()))
    _every_file_is_of_one_partition(bed)
    sink = bed.open()
    assert isinstance(sink, Maintains)
    done = sink.maintain(TABLE)
    assert done.joined
    assert done.files <= len({item.home for item in manifests.live(table_of(bed, TABLE)).data})
    agree(bed, list(rows.values()))
    _every_file_is_of_one_partition(bed)
    assert bed.flush(240, 250, [truncate(ts=245), insert(*rows[100], ts=246)], arrow=_ARROW).committed
    agree(bed, [rows[100]])


def test_files_are_in_the_order(tmp_path: Path) -> None:
    bed, chance = _bed(tmp_path, _LAYOUTS["order"]), random.Random(3)
    _load(bed, {key: _row(chance, key) for key in range(50)})
    table = table_of(bed, TABLE)
    [item] = manifests.live(table).data
    assert item.file.sort_order_id == table.sort_order().order_id != 0
    made = _physical(_read(table, item.path, table.schema().find_field("made").field_id))
    nulls = made.count(None)
    assert nulls
    assert made[:nulls] == [None] * nulls
    assert made[nulls:] == sorted(made[nulls:], reverse=True)


def test_files_that_are_joined_are_in_the_order_and_lose_what_a_flush_takes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, chance = _bed(tmp_path, _LAYOUTS["order"]), random.Random(4)
    rows = {key: _row(chance, key) for key in range(50)}
    _load(bed, rows)
    for turn in range(3):
        rows[turn] = _row(chance, turn)
        assert bed.flush(100 + turn, 101 + turn, [update(*rows[turn], ts=101 + turn)], arrow=_ARROW).committed
    sorted_rows = compact.rewritten_in_order

    def flushed_meanwhile(*given: Any) -> Any:
        made = sorted_rows(*given)
        for key in (7, 8, 40):
            del rows[key]
        assert bed.flush(103, 104, [delete(key, *[None] * 5, ts=104) for key in (7, 8, 40)], arrow=_ARROW).committed
        return made

    monkeypatch.setattr(compact, "rewritten_in_order", flushed_meanwhile)
    sink = bed.open()
    assert isinstance(sink, Maintains)
    sink.maintain(TABLE)
    agree(bed, list(rows.values()))
    table = table_of(bed, TABLE)
    [item] = manifests.live(table).data
    assert item.file.sort_order_id == table.sort_order().order_id != 0
    made = _physical(_read(table, item.path, table.schema().find_field("made").field_id))
    known = [value for value in made if value is not None]
    assert made == [None] * made.count(None) + sorted(known, reverse=True)


def test_a_condition_on_a_partition_reads_its_files_alone(tmp_path: Path) -> None:
    bed, chance = _bed(tmp_path, _LAYOUTS["identity"]), random.Random(5)
    rows = {key: _row(chance, key) for key in range(60)}
    _load(bed, rows)
    scan = table_of(bed, TABLE).scan(row_filter="land == 'de'")
    assert len(list(scan.plan_files())) == 1
    assert {row["id"] for row in scan.to_arrow().to_pylist()} == {key for key, row in rows.items() if row[1] == "de"}


def _change(ts: int, *moves: ColumnMove) -> SchemaChange:
    after = pa.schema([(move.name, move.type) for move in moves])
    return SchemaChange(Ts(ts), SchemaChangeKind.ALTER, TABLE, TABLE, moves, table_schema(after), after)


def _same(*names: str) -> list[ColumnMove]:
    return [ColumnMove(item.name, item.type, item.name) for item in _ARROW if item.name in names]


def test_a_partition_column_is_renamed_and_another_takes_its_name(tmp_path: Path) -> None:
    bed, chance = _bed(tmp_path, _LAYOUTS["year"]), random.Random(7)
    rows = {key: _row(chance, key) for key in range(20)}
    _load(bed, rows)
    sink = bed.open()
    assert isinstance(sink, Alters)
    moves = [
        ColumnMove("country", pa.string(), "land") if move.name == "land" else move for move in _same(*_ARROW.names)
    ]
    sink.alter([_change(201, *moves)])
    agree(bed, list(rows.values()))
    moves = [ColumnMove(move.name, move.type, move.name) for move in moves]
    sink.alter([_change(202, *moves, ColumnMove("land", pa.string(), None, None))])
    wide = pa.schema([*((move.name, move.type) for move in moves), ("land", pa.string())])
    stored = {key: (*row, None) for key, row in rows.items()}
    stored[3] = (*rows[4][:1], "xx", *rows[4][2:], "yy")
    stored[3] = (3, *stored[3][1:])
    assert bed.flush(100, 300, [update(*stored[3], ts=250)], arrow=wide).error == ""
    agree(bed, list(stored.values()))
    spec = table_of(bed, TABLE).spec()
    names = {field.name for field in table_of(bed, TABLE).schema().fields}
    assert [str(field.transform) for field in spec.fields] == ["year", "identity"]
    assert not names & {field.name for field in spec.fields}
    _every_file_is_of_one_partition(bed)


@pytest.mark.parametrize("gone", ["land", "born"])
def test_a_partition_column_that_is_dropped_divides_no_longer(gone: str, tmp_path: Path) -> None:
    bed, chance = _bed(tmp_path, _LAYOUTS["year"]), random.Random(9)
    rows = {key: _row(chance, key) for key in range(20)}
    _load(bed, rows)
    sink = bed.open()
    assert isinstance(sink, Alters)
    left = [name for name in _ARROW.names if name != gone]
    sink.alter([_change(201, *_same(*left))])
    at, narrow = _ARROW.names.index(gone), pa.schema([_ARROW.field(name) for name in left])
    kept = {key: (*row[:at], *row[at + 1 :]) for key, row in rows.items()}
    agree(bed, list(kept.values()))
    assert len(table_of(bed, TABLE).spec().fields) == 1
    kept[50] = (50, *kept[1][1:])
    assert bed.flush(100, 300, [insert(*kept[50], ts=250)], arrow=narrow).committed
    agree(bed, list(kept.values()))
    assert isinstance(sink, Maintains)
    sink.maintain(TABLE)
    agree(bed, list(kept.values()))


def test_a_partition_column_with_another_type(tmp_path: Path) -> None:
    bed, chance = _bed(tmp_path, _LAYOUTS["number"]), random.Random(11)
    rows = {key: _row(chance, key) for key in range(20)}
    _load(bed, rows)
    sink = bed.open()
    assert isinstance(sink, Alters)
    wider = [*_same(*_ARROW.names[:-1]), ColumnMove("small", pa.int64(), "small")]
    sink.alter([_change(201, *wider)])
    agree(bed, list(rows.values()))
    as_text = [*_same(*_ARROW.names[:-1]), ColumnMove("small", pa.string(), "small", _to_text)]
    sink.alter([_change(202, *as_text)])
    agree(bed, [(*row[:-1], None if row[-1] is None else str(row[-1])) for row in rows.values()])
    [field] = table_of(bed, TABLE).spec().fields
    assert table_of(bed, TABLE).schema().find_field(field.source_id).name == "small"


def _to_text(column: Any) -> Any:
    return column.cast(pa.string())


def test_a_copy_takes_another_layout(tmp_path: Path) -> None:
    bed, chance = _bed(tmp_path, _LAYOUTS["identity"]), random.Random(13)
    rows = {key: _row(chance, key) for key in range(30)}
    _load(bed, rows)
    for name in ("day", "month", "identity", "order"):
        bed.layouts = (_LAYOUTS[name].model_copy(update={"properties": {"owner": name}}),)
        ts = bed.at()
        assert ts is not None
        rows = {key: _row(chance, key) for key in range(30)}
        values = [tuple(row) for row in rows.values()]
        sink = bed.open()
        assert isinstance(sink, Replaces)
        sink.replace(bed.copied(ts + 100, *values, arrow=_ARROW))
        agree(bed, values)
        _every_file_is_of_one_partition(bed)
        table = table_of(bed, TABLE)
        assert len(table.spec().fields) == len(_LAYOUTS[name].partition_by)
        assert len(table.sort_order().fields) == len(_LAYOUTS[name].sort_by)
        assert table.properties["owner"] == name
        rows[5] = (5, *rows[6][1:])
        assert bed.flush(ts + 100, ts + 200, [update(*rows[5], ts=ts + 150)], arrow=_ARROW).error == ""
        agree(bed, list(rows.values()))


def test_a_changelog_is_divided_by_its_own_columns(tmp_path: Path) -> None:
    layout = TableLayout(matcher=("*.*",), partition_by=("_change_type", "bucket(2, id)"))
    bed, chance = _bed(tmp_path, layout, SinkMode.CHANGELOG), random.Random(15)
    rows = {key: _row(chance, key) for key in range(10)}
    _load(bed, rows)
    assert bed.flush(
        100, 200, [delete(*rows.pop(3), ts=150), insert(*_row(chance, 70), ts=151)], arrow=_ARROW
    ).committed
    table = table_of(bed, TABLE)
    kinds = {item.home[1][0] for item in manifests.live(table).data}
    assert kinds == {"insert", "delete"}
    assert table.scan(row_filter="_change_type == 'delete'").to_arrow().num_rows == 1


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (TableLayout(matcher=("*.*",), partition_by=("nope",)), r"names column nope, which it lacks; it has id, land"),
        (TableLayout(matcher=("*.*",), partition_by=("day(land)",)), r"has day\(land\), and land is string; choose"),
        (TableLayout(matcher=("*.*",), partition_by=("week(made)",)), r"partition-by has week\(made\); known are a"),
        (
            TableLayout(matcher=("*.*",), partition_by=("bucket(id)",)),
            r"partition-by has bucket\(id\); write bucket\(16",
        ),
        (TableLayout(matcher=("*.*",), partition_by=("bucket(0, id)",)), r"bucket\(0, id\); write bucket\(16"),
        (
            TableLayout(matcher=("*.*",), partition_by=("land", "land")),
            r"partition-by of a \[\[layout\]\] names land twice",
        ),
        (TableLayout(matcher=("*.*",), sort_by=("",)), r"sort-by of a \[\[layout\]\] has an empty text"),
        (TableLayout(matcher=("*.*",), sort_by=("price sideways",)), r"names column price sideways, which it lacks"),
        (TableLayout(matcher=("*.*",), cluster_by=("id",)), r"has cluster-by, which Iceberg tables lack; use sort-by"),
        (TableLayout(matcher=("*.*",), properties={"weir.state": "x"}), r"sets weir\.state, which Weir itself sets"),
        (TableLayout(matcher=("*.*",), properties={"format-version": "3"}), r"sets format-version, which Weir"),
    ],
)
def test_a_layout_that_is_none_is_refused_in_one_line(layout: TableLayout, reason: str, tmp_path: Path) -> None:
    sink = _bed(tmp_path, layout).open()
    assert isinstance(sink, LaysOut)
    with pytest.raises(SinkError, match=reason) as caught:
        sink.check_layout(TABLE, table_schema(_ARROW), _ARROW)
    assert "\n" not in str(caught.value)


def test_a_table_that_cannot_have_its_layout_is_held(tmp_path: Path) -> None:
    bed = _bed(tmp_path, TableLayout(matcher=("*.*",), partition_by=("nope",)))
    with pytest.raises(TableHeldError, match="names column nope"):
        _load(bed, {1: _row(random.Random(1), 1)})


@pytest.mark.parametrize(
    ("arrow", "transforms"),
    [
        (pa.int64(), ["identity", "bucket[7]", "truncate[10]"]),
        (pa.int32(), ["identity", "bucket[7]", "truncate[3]"]),
        (pa.string(), ["identity", "bucket[7]", "truncate[2]"]),
        (pa.decimal128(20, 3), ["identity", "bucket[7]", "truncate[50]"]),
        (pa.date32(), ["identity", "bucket[7]", "year", "month", "day"]),
        (pa.timestamp("us"), ["identity", "bucket[7]", "year", "month", "day", "hour"]),
        (pa.timestamp("us", "UTC"), ["identity", "bucket[7]", "year", "month", "day", "hour"]),
        (pa.time64("us"), ["identity", "bucket[7]"]),
        (pa.binary(), ["bucket[7]"]),
        (pa.bool_(), ["identity"]),
    ],
)
def test_partitions_are_those_of_icebergs_own_transforms(arrow: pa.DataType, transforms: list[str]) -> None:
    """Computed by columns, and one by one as pyiceberg does from Iceberg's specification."""
    chance = random.Random(str(arrow))
    column = pa.array([None, *(_value(chance, arrow) for _ in range(300))], arrow)
    schema = iceberg_schema.new_schema(pa.schema([("c", arrow)]))
    kind: IcebergType = schema.fields[0].field_type
    for text in transforms:
        name, _, number = text.rstrip("]").partition("[")
        term = "c" if name == "identity" else f"{name}({f'{number}, ' if number else ''}c)"
        layout = Layout.made(_wanted(term), schema, table="t")
        one_by_one = parse_transform(text).transform(kind)
        found = dict[Any, list[Any]]()
        for (value,), rows in layout.divided(pa.table({"c": column}), schema):
            assert value not in found
            found[value] = _physical(rows.column("c"))
        expected = dict[Any, list[Any]]()
        for each in _physical(pa.chunked_array([column])):
            expected.setdefault(one_by_one(each), []).append(each)
        assert found == expected, text


def _wanted(term: str) -> Any:
    from agent.sinks.common.layouts import parsed

    return parsed(TableLayout(matcher=("*.*",), partition_by=(term,)))


def _value(chance: random.Random, arrow: pa.DataType) -> Any:
    if arrow == pa.string():
        return "".join(chance.choice("aé☃𝄞b/=") for _ in range(chance.randrange(4)))
    if arrow == pa.binary():
        return chance.randbytes(chance.randrange(4))
    if arrow == pa.bool_():
        return chance.random() < 0.5
    if pa.types.is_decimal(arrow):
        return Decimal(chance.randrange(-(10**6), 10**6)) / 1000
    if arrow == pa.date32():
        return date(1970, 1, 1) + timedelta(days=chance.randrange(-700_000, 100_000))
    if pa.types.is_timestamp(arrow):
        zone = UTC if arrow.tz else None
        return datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=chance.randrange(-(10**17) // 2, 10**16))
    if pa.types.is_time(arrow):
        return (datetime(2000, 1, 1) + timedelta(microseconds=chance.randrange(86_400_000_000))).time()
    return chance.randrange(-50, 50)
