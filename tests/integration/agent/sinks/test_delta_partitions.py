"""Tables with partitions: rows that move between them, schema changes, copies, care, others' files, and readers."""

import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from agent.errors import SinkConflictError, SinkError, TableHeldError
from agent.ports.sink import Alters, LaysOut, Maintains, Repairs, Replaces, RowRepair
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks import open_table
from agent.sinks.delta.table import partitions
from agent.sinks.delta.table.place import TablePlace
from agent.sinks.delta.upkeep import upkeep
from agent.sinks.delta.upsert import by_vectors
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from reactor.records.sink_settings import TableLayout
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.contracts.sink_bed import SPAN, TABLE, Bed
from tests.integration.agent.sinks.delta.readers import READERS
from tests.unit.agent.changes_build import (
    UNCHANGED,
    changes,
    insert,
    random_turn,
    table_schema,
    truncate,
    update,
)

_ARROW = pa.schema(
    [
        ("id", pa.int64()),
        ("land", pa.string()),
        ("price", pa.decimal128(12, 2)),
        ("made", pa.timestamp("us", "UTC")),
        ("clock", pa.timestamp("us")),
        ("born", pa.date32()),
        ("small", pa.int16()),
        ("is", pa.bool_()),
    ]
)

pytestmark = pytest.mark.sample(0.12)
_NAMES = list(_ARROW.names)
_LANDS = ["de", "☃ snow/=", "a b%20&?#", " lead:", "x\ny\\\"'", "__HIVE__", "%2F..", "NULL"]
_MOMENTS = [datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(2024, 2, 29, 12, tzinfo=UTC)]
_COLUMNS = ["land", "price", "made", "clock", "born", "small", "is"]
_VECTORS = "?deletion_vectors=true"


def _row(chance: random.Random, key: int) -> tuple[Any, ...]:
    made = chance.choice(_MOMENTS)
    values = (
        chance.choice(_LANDS),
        Decimal(chance.randrange(-2, 2)).scaleb(-2),
        made,
        made.replace(tzinfo=None) + timedelta(days=1),
        chance.choice([date(1, 1, 1), date(1890, 3, 4), date(9999, 12, 31)]),
        chance.randrange(-2, 2),
        chance.random() < 0.5,
    )
    return (key, *(None if chance.random() < 0.15 else value for value in values))


def _layout(*columns: str) -> TableLayout:
    return TableLayout(matcher=("*.*",), partition_by=columns)


def _bed(tmp_path: Path, *columns: str, mode: SinkMode = SinkMode.UPSERT, options: str = "") -> Bed:
    return Bed(f"delta+file://{tmp_path}/lake{options}", mode, (_layout(*columns),))


def _load(bed: Bed, rows: dict[int, tuple[Any, ...]]) -> None:
    bed.load_as(_ARROW, *rows.values())


def _location(bed: Bed) -> str:
    return f"{bed.uri.removeprefix('delta+file://').partition('?')[0]}/public/t"


def _table(bed: Bed) -> DeltaTable:
    return DeltaTable(_location(bed))


def _every_file_is_of_one_partition(bed: Bed) -> list[str]:
    """What the log says of each file is true of all its rows; returns the columns that divide them."""
    table = _table(bed)
    names = table.metadata().partition_columns
    actions = pa.table(table.get_add_actions(flatten=True))
    for at, path in enumerate(actions.column("path").to_pylist()):
        found = pq.ParquetFile(f"{_location(bed)}/{path}").read()
        for name in names:
            if name in found.column_names:
                assert {*found.column(name).to_pylist()} == {actions.column(f"partition.{name}")[at].as_py()}
    return list(names)


def _agree(bed: Bed, rows: Sequence[tuple[Any, ...]], arrow: pa.Schema = _ARROW) -> None:
    """Every reader that is here finds these rows, and so does Weir."""
    bed.assert_holds(*rows, arrow=arrow)
    for reader in READERS:
        if reader.has_all and not reader.why_not():
            found = pa.table(
                [reader.rows(_location(bed)).column(item.name).cast(item.type) for item in arrow], arrow.names
            )
            assert sorted(map(repr, map(_values, found.to_pylist()))) == sorted(map(repr, rows)), reader


def _values(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value.replace(tzinfo=UTC) if getattr(value, "tzinfo", None) else value for value in row.values())


@pytest.mark.sample(0.06)
@pytest.mark.parametrize("options", ["", _VECTORS], ids=["rewritten", "vectors"])
@pytest.mark.parametrize("column", _COLUMNS)
def test_rows_move_between_partitions(
    column: str, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_vectors, "SMALL_MAX", 5)
    bed, chance = _bed(tmp_path, column, options=options), random.Random(column)
    rows = {key: _row(chance, key) for key in range(60)}
    _load(bed, rows)
    assert _every_file_is_of_one_partition(bed) == [column]
    for turn in range(14):
        some = random_turn(chance, rows, turn, _row)
        assert bed.flush(turn * 10 + 100, turn * 10 + 110, some, arrow=_ARROW).error == ""
        if turn == 7:
            upkeep.write_checkpoint(TablePlace(_location(bed)))
    _agree(bed, list(rows.values()))
    _every_file_is_of_one_partition(bed)
    sink = bed.open()
    assert isinstance(sink, Maintains)
    done = sink.maintain(TABLE)
    assert done.files <= len({row[_NAMES.index(column)] for row in rows.values()}) < done.files_before
    _agree(bed, list(rows.values()))
    _every_file_is_of_one_partition(bed)
    assert bed.flush(240, 250, [truncate(ts=245), insert(*rows[100], ts=246)], arrow=_ARROW).committed
    _agree(bed, [rows[100]])


@pytest.mark.parametrize("mode", [SinkMode.CHANGELOG, SinkMode.HISTORY])
def test_changelogs_and_histories_are_divided(mode: SinkMode, tmp_path: Path) -> None:
    bed, chance = _bed(tmp_path, "land", "born", mode=mode), random.Random(mode)
    rows = {key: _row(chance, key) for key in range(20)}
    _load(bed, rows)
    for turn in range(4):
        some = [update(*rows.setdefault(key, _row(chance, key)), ts=101 + turn) for key in chance.sample(range(20), 5)]
        rows[50 + turn] = _row(chance, 50 + turn)
        assert bed.flush(
            100 + turn, 101 + turn, [*some, insert(*rows[50 + turn], ts=101 + turn)], arrow=_ARROW
        ).committed
    assert _every_file_is_of_one_partition(bed) == ["land", "born"]
    bed.assert_holds(*rows.values(), arrow=_ARROW)


def test_a_value_that_an_update_left_out_is_found_in_the_partition_of_before(tmp_path: Path) -> None:
    bed = _bed(tmp_path, "land", "id", options=_VECTORS)
    rows = {key: _row(random.Random(key), key) for key in range(6)}
    _load(bed, rows)
    moved = update(3, "elsewhere", *[UNCHANGED] * 6, ts=105)
    assert bed.flush(100, 110, [moved], arrow=_ARROW).error == ""
    _agree(bed, [*(row for key, row in rows.items() if key != 3), (3, "elsewhere", *rows[3][2:])])


@pytest.mark.parametrize("text", ["", "__HIVE_DEFAULT_PARTITION__"])
def test_a_text_that_readers_take_for_null_holds_the_table(text: str, tmp_path: Path) -> None:
    bed = _bed(tmp_path, "land")
    rows = {key: (key, "de", *_row(random.Random(key), key)[2:]) for key in range(3)}
    _load(bed, rows)
    with pytest.raises(TableHeldError, match=f"column land has the text '{text}', which readers of partitions take"):
        bed.flush(100, 110, [update(1, text, *rows[1][2:], ts=105)], arrow=_ARROW)
    sink = bed.open()
    assert isinstance(sink, Repairs)
    empty = changes([update(1, text, *rows[1][2:], ts=100)], arrow=_ARROW)
    with pytest.raises(TableHeldError, match="take for NULL"):
        sink.repair(RowRepair(TABLE, (SPAN,), Ts(100), empty))
    _agree(bed, list(rows.values()))


def test_what_delta_rs_merges_and_compacts_is_read_and_removed(tmp_path: Path) -> None:
    """Its files lack the columns of the partitions, and lie in directories that are named by them."""
    bed, chance = _bed(tmp_path, "land", "born", options=f"{_VECTORS}&retention_seconds=0"), random.Random(21)
    rows = {key: _row(chance, key) for key in range(40)}
    _load(bed, rows)
    sink = bed.open()
    assert isinstance(sink, Repairs)
    assert isinstance(sink, Maintains)
    for key in range(0, 40, 3):
        rows[key] = _row(chance, key)
    repaired = changes([update(*rows[key], ts=100) for key in range(0, 40, 3)], arrow=_ARROW)
    sink.repair(RowRepair(TABLE, (SPAN,), Ts(100), repaired))
    _agree(bed, list(rows.values()))
    assert any("=" in path for path in _paths(bed))
    _table(bed).optimize.compact()
    read = open_table(bed.uri, "public/t")
    parts = read.parts(read.version(), bytes_max=1 << 20)
    found = pa.concat_tables(table for part in parts for table in read.scan_part(read.version(), part))
    assert sorted(map(repr, map(_values, found.to_pylist()))) == sorted(map(repr, rows.values()))
    for turn in range(3):
        some = chance.sample(sorted(rows), 8)
        rows |= {key: _row(chance, key) for key in some}
        moves = [update(*rows[key], ts=101 + turn) for key in some]
        assert bed.flush(100 + turn, 101 + turn, moves, arrow=_ARROW).error == ""
        _agree(bed, list(rows.values()))
    sink.maintain(TABLE)
    sink.maintain(TABLE)
    _agree(bed, list(rows.values()))
    there = {str(path.relative_to(_location(bed))) for path in Path(_location(bed)).rglob("*.parquet")}
    assert {name for name in there if not name.startswith("_delta_log")} == {*map(unquote, _paths(bed))}


def _paths(bed: Bed) -> list[str]:
    return list(pa.table(_table(bed).get_add_actions()).column("path").to_pylist())


def _change(ts: int, *moves: ColumnMove) -> SchemaChange:
    after = pa.schema([(move.name, move.type) for move in moves])
    return SchemaChange(Ts(ts), SchemaChangeKind.ALTER, TABLE, TABLE, moves, table_schema(after), after)


def _same(*names: str) -> list[ColumnMove]:
    return [ColumnMove(item.name, item.type, item.name) for item in _ARROW if item.name in names]


def test_a_partition_column_is_renamed_and_another_takes_its_name(tmp_path: Path) -> None:
    bed, chance = _bed(tmp_path, "land", "small"), random.Random(7)
    rows = {key: _row(chance, key) for key in range(20)}
    _load(bed, rows)
    sink = bed.open()
    assert isinstance(sink, Alters)
    moves = [ColumnMove("country", pa.string(), "land") if move.name == "land" else move for move in _same(*_NAMES)]
    moves.append(ColumnMove("land", pa.string(), None, None))
    sink.alter([_change(201, *moves)])
    wide = pa.schema([(move.name, move.type) for move in moves])
    stored = {key: (*row, None) for key, row in rows.items()}
    stored[3] = (3, "xx", *rows[4][2:], "")
    assert bed.flush(100, 300, [update(*stored[3], ts=250)], arrow=wide).error == ""
    _agree(bed, list(stored.values()), wide)
    assert _every_file_is_of_one_partition(bed) == ["country", "small"]


@pytest.mark.parametrize("mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])
def test_a_partition_column_that_is_dropped_divides_no_longer(mode: SinkMode, tmp_path: Path) -> None:
    """A changelog keeps it, as it keeps any column."""
    bed, chance = _bed(tmp_path, "land", "born", mode=mode), random.Random(9)
    rows = {key: _row(chance, key) for key in range(20)}
    _load(bed, rows)
    sink = bed.open()
    assert isinstance(sink, Alters)
    left = [name for name in _NAMES if name != "land"]
    sink.alter([_change(201, *_same(*left))])
    kept = {key: (row[0], *row[2:]) for key, row in rows.items()}
    kept[50] = (50, *kept[1][1:])
    narrow = pa.schema([_ARROW.field(name) for name in left])
    assert bed.flush(100, 300, [insert(*kept[50], ts=250)], arrow=narrow).committed
    bed.assert_holds(*kept.values(), arrow=narrow)
    assert _every_file_is_of_one_partition(bed) == (["born"] if mode is SinkMode.UPSERT else ["land", "born"])


def test_a_partition_column_with_another_type(tmp_path: Path) -> None:
    bed, chance = _bed(tmp_path, "small"), random.Random(11)
    rows = {key: _row(chance, key) for key in range(20)}
    _load(bed, rows)
    sink = bed.open()
    assert isinstance(sink, Alters)
    at = _NAMES.index("small")
    for ts, arrow in enumerate((pa.int64(), pa.string(), pa.binary()), 201):
        moves = [*_same(*_NAMES)]
        moves[at] = ColumnMove("small", arrow, "small", lambda column, arrow=arrow: column.cast(arrow))
        sink.alter([_change(ts, *moves)])
        expected = [(*row[:at], _as(arrow, row[at]), *row[at + 1 :]) for row in rows.values()]
        _agree(bed, expected, _ARROW.set(at, pa.field("small", arrow)))
        assert _every_file_is_of_one_partition(bed) == (["small"] if arrow != pa.binary() else [])


def _as(arrow: pa.DataType, value: int | None) -> Any:
    if value is None or arrow == pa.int64():
        return value
    return str(value) if arrow == pa.string() else str(value).encode()


@pytest.mark.sample(0.06)
@pytest.mark.parametrize("mode", SinkMode)
def test_a_copy_takes_another_layout(mode: SinkMode, tmp_path: Path) -> None:
    """A changelog and a history keep their rows in it."""
    bed, chance = _bed(tmp_path, "land", mode=mode), random.Random(13)
    rows = {key: _row(chance, key) for key in range(30)}
    _load(bed, rows)
    count = 0
    for columns in (("born", "small"), ("born", "small"), (), ("land",)):
        ts = bed.at()
        assert ts is not None
        rows = {key: _row(chance, key) for key in range(30)}
        task = bed.task(ts, ts + 200)
        if mode is SinkMode.CHANGELOG:
            stale = bed.write(task, [insert(*_row(chance, 90), ts=ts + 150)], arrow=_ARROW)
        copy = bed.copied(ts + 100, *rows.values(), arrow=_ARROW)  # staged before the layout was changed
        bed.layouts = (_layout(*columns),)
        sink = bed.open()
        assert isinstance(sink, Replaces)
        sink.replace(copy)
        if mode is SinkMode.CHANGELOG:
            assert bed.commit(task, stale).error
        assert _every_file_is_of_one_partition(bed) == list(columns)
        rows[5] = (5, *rows[6][1:])
        assert bed.flush(ts + 100, ts + 200, [update(*rows[5], ts=ts + 150)], arrow=_ARROW).error == ""
        bed.assert_holds(*rows.values(), arrow=_ARROW)
        held = sum(reader.count(_location(bed)) for reader in READERS if reader.name == "delta-rs")
        assert held == len(rows) if mode is SinkMode.UPSERT else held > count
        count = held


def test_rows_that_were_written_for_other_partitions_are_written_again(tmp_path: Path) -> None:
    bed = _bed(tmp_path, "land", mode=SinkMode.CHANGELOG)
    rows = {key: _row(random.Random(key), key) for key in range(4)}
    _load(bed, rows)
    task = bed.task(100, 200)
    written = bed.write(task, [insert(*_row(random.Random(9), 9), ts=150)], arrow=_ARROW)
    sink = bed.open()
    assert isinstance(sink, Alters)
    moves = [ColumnMove("country", pa.string(), "land") if move.name == "land" else move for move in _same(*_NAMES)]
    sink.alter([_change(101, *moves, ColumnMove("land", pa.string(), None, None))])
    done = bed.commit(task, written)
    assert done.error_code == SinkConflictError.code
    assert done.retryable


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        (_layout("nope"), r"names column nope, which it lacks; it has id, land"),
        (_layout("day(made)"), r"has day\(made\), and Delta divides by columns alone; name a column"),
        (_layout("land", "land"), r"partition-by of a \[\[layout\]\] names land twice"),
        (_layout(*_NAMES), r"names all of its columns; Delta needs one that divides nothing"),
        (TableLayout(matcher=("*.*",), sort_by=("id",)), r"has sort-by, which Weir's Delta tables lack; leave it out"),
        (TableLayout(matcher=("*.*",), cluster_by=("id",)), r"has cluster-by, which Weir's Delta tables lack"),
        (TableLayout(matcher=("*.*",), properties={"a": "x"}), r"has properties, which Weir's Delta tables lack"),
    ],
)
def test_a_layout_that_delta_lacks_is_refused_in_one_line(layout: TableLayout, reason: str, tmp_path: Path) -> None:
    sink = Bed(f"delta+file://{tmp_path}/lake", SinkMode.UPSERT, (layout,)).open()
    assert isinstance(sink, LaysOut)
    with pytest.raises(SinkError, match=reason) as caught:
        sink.check_layout(TABLE, table_schema(_ARROW), _ARROW)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("arrow", [pa.float64(), pa.binary(), pa.list_(pa.string())], ids=str)
def test_a_column_whose_values_divide_nothing_is_refused(arrow: pa.DataType, tmp_path: Path) -> None:
    sink = _bed(tmp_path, "c").open()
    assert isinstance(sink, LaysOut)
    columns = pa.schema([("id", pa.int64()), ("c", arrow)])
    with pytest.raises(TableHeldError, match=r"has c, which is .*: no partition of Delta; choose another column"):
        sink.check_layout(TABLE, table_schema(columns), columns)


def test_a_day_without_a_text_holds_the_table(tmp_path: Path) -> None:
    rows = pa.table({"born": pa.array([4_000_000], pa.int32()).cast(pa.date32())})
    with pytest.raises(TableHeldError, match="column born has a time that Delta has no partition for"):
        list(partitions.divided(rows, ["born"]))


def test_values_come_back_from_their_texts() -> None:
    chance = random.Random(5)
    rows = [_row(chance, key) for key in range(100)]
    for at, item in enumerate(_ARROW):
        for row in rows:
            text = partitions.value_text(row[at])
            [found] = partitions.column({item.name: text}, item, 1).to_pylist()
            assert repr(_values({"": found})) == repr((row[at],))
