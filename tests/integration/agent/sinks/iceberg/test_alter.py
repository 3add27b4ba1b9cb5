"""Schema changes by name: tables that are renamed, swap names, are dropped and made again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from agent.errors import TableHeldError
from agent.ports.sink import Alters, Repairs, RowRepair
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.schema_change import SchemaChangeKind
from reactor.records.tables.table import TableRecord
from tests.contracts.sink_bed import SPAN, TABLE, Bed
from tests.integration.agent.sinks.iceberg.lake import table_of
from tests.unit.agent.changes_build import ARROW, changes, delete, insert, table_schema, update

OTHER = TABLE.with_(table_id=2, name="other")
_SAME = tuple(ColumnMove(item.name, item.type, item.name) for item in ARROW)


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    bed = Bed(f"iceberg+file://{tmp_path}/lake", SinkMode.UPSERT)
    bed.load((1, "a", "x"))
    staged = bed.open().writer().stage(OTHER, "1-0", iter([changes([insert(2, "b", "y")]).after]), Ts(100))
    bed.open().load(OTHER, table_schema(name="other"), ARROW, staged)
    return bed


def _alter(bed: Bed, *some: SchemaChange) -> None:
    sink = bed.open()
    assert isinstance(sink, Alters)
    sink.alter(some)


def _renamed(table: TableRecord, name: str, ts: int = 150) -> SchemaChange:
    after = table.with_(name=name)
    return SchemaChange(Ts(ts), SchemaChangeKind.RENAME, table, after, _SAME, table_schema(name=name), ARROW)


def test_tables_swap_their_names(bed: Bed) -> None:
    swap = (_renamed(TABLE, "other"), _renamed(OTHER, "t"))
    for _ in range(2):
        _alter(bed, *swap)
        bed.assert_holds((1, "a", "x"), table=TABLE.with_(name="other"))
        bed.assert_holds((2, "b", "y"), table=OTHER.with_(name="t"))


def test_a_crash_between_the_steps_of_a_swap_is_healed(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, left = TablePlace.rename_to, [1]

    def rename_to(self: TablePlace, new: TablePlace) -> None:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        inner(self, new)

    swap = (_renamed(TABLE, "other"), _renamed(OTHER, "t"))
    for steps in range(4):  # one more each time
        left[:] = [1] * (1 if steps else 0)
        monkeypatch.setattr(TablePlace, "rename_to", rename_to)
        with pytest.raises(KeyboardInterrupt):
            _alter(bed, *swap)
    monkeypatch.setattr(TablePlace, "rename_to", inner)
    _alter(bed, *swap)
    bed.assert_holds((1, "a", "x"), table=TABLE.with_(name="other"))
    bed.assert_holds((2, "b", "y"), table=OTHER.with_(name="t"))


def test_a_taken_name_holds_the_table_where_it_was(bed: Bed) -> None:
    with pytest.raises(TableHeldError, match="is taken"):
        _alter(bed, _renamed(TABLE, "other"))
    bed.assert_at(100)
    bed.assert_holds((1, "a", "x"))


def test_a_dropped_table_makes_way_for_one_of_its_name(bed: Bed) -> None:
    drop = SchemaChange(Ts(150), SchemaChangeKind.DROP, TABLE, None)
    again = TABLE.with_(table_id=3, start_ts=Ts(160))
    create = SchemaChange(Ts(160), SchemaChangeKind.CREATE, None, again, _SAME, table_schema(), ARROW)
    for _ in range(2):
        _alter(bed, drop)
    for _ in range(2):
        _alter(bed, create)
        bed.assert_holds(table=again)
    assert bed.at(TableSpan(3), again) == 160
    kept = TABLE.with_(name="t!dropped-96")
    assert table_of(bed, kept).scan().to_arrow().num_rows == 1
    assert bed.flush(160, 200, [insert(7, "new", "n", ts=170)], span=TableSpan(3), table=again).committed
    _alter(bed, drop)  # it is stale, and is not of this table
    bed.assert_holds((7, "new", "n"), table=again)


def test_a_change_that_the_values_do_not_fit_holds_the_table(bed: Bed) -> None:
    arrow = pa.schema([("id", pa.int64()), ("name", pa.int32()), ("big", pa.string())])
    moves = tuple(ColumnMove(item.name, item.type, item.name) for item in arrow)
    change = SchemaChange(Ts(150), SchemaChangeKind.ALTER, TABLE, TABLE, moves, table_schema(arrow), arrow)
    with pytest.raises(TableHeldError, match="does not fit"):
        _alter(bed, change)
    bed.assert_holds((1, "a", "x"))


def test_another_type_rewrites_the_rows(bed: Bed) -> None:
    arrow = pa.schema([("id", pa.string()), ("name", pa.string()), ("big", pa.string())])
    moves = tuple(ColumnMove(item.name, item.type, item.name) for item in arrow)
    bed.flush(100, 140, [update(1, "b", "x", ts=110)])
    change = SchemaChange(Ts(150), SchemaChangeKind.ALTER, TABLE, TABLE, moves, table_schema(arrow), arrow)
    for _ in range(2):
        _alter(bed, change)
    bed.assert_holds(("1", "b", "x"), arrow=arrow)


def test_a_changelog_keeps_what_was_dropped(tmp_path: Path) -> None:
    bed = Bed(f"iceberg+file://{tmp_path}/lake", SinkMode.CHANGELOG)
    bed.load((1, "a", "x"))
    arrow = pa.schema([("id", pa.int64()), ("big", pa.int64())])
    moves = (ColumnMove("id", pa.int64(), "id"), ColumnMove("big", pa.int64(), None))
    change = SchemaChange(Ts(150), SchemaChangeKind.ALTER, TABLE, TABLE, moves, table_schema(arrow), arrow)
    for _ in range(2):
        _alter(bed, change)
    assert bed.flush(100, 200, [insert(2, 7, ts=160)], arrow=arrow).error == ""
    found = table_of(bed, TABLE).scan().to_arrow()
    assert found.column("big_before_96").to_pylist().count("x") == 1
    bed.assert_holds((1, None), (2, 7), arrow=arrow)


@pytest.mark.parametrize("mode", SinkMode)
def test_rows_are_repaired_without_moving_the_record(tmp_path: Path, mode: SinkMode) -> None:
    bed = Bed(f"iceberg+file://{tmp_path}/lake", mode)
    bed.load((1, "a", "x"), (2, "lost", "y"))
    wrong: list[Any] = [update(1, "right", "x", ts=100), delete(2, None, None, ts=100), insert(3, "c", "z", ts=100)]
    made = changes(wrong)
    sink = bed.open()
    assert isinstance(sink, Repairs)
    sink.repair(RowRepair(TABLE, (SPAN,), Ts(100), replace(made, seq=made.seq + 10)))
    bed.assert_at(100)
    bed.assert_holds((1, "right", "x"), (3, "c", "z"))
