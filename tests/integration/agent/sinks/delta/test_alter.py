"""Schema changes on real Delta tables: what becomes of the rows, what is done twice, what is refused."""

import os
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.errors import TableForeignError, TableHeldError, UnknownValuesError
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.table.names import ASIDE
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.schema_change import SchemaChangeKind
from reactor.records.tables.table import TableRecord
from tests.integration.agent.sinks.delta.test_sink import KEYED, SPAN, loaded, task
from tests.unit.agent.changes_build import ARROW, changes, delete, insert, table_schema

ROWS = [(1, "a", "x"), (2, None, "y")]
OTHER = KEYED.with_(table_id=16385, name="u")


def moves(arrow: pa.Schema, **origins: str | None) -> tuple[ColumnMove, ...]:
    """Columns that come from one of their own name, unless another is given."""
    return tuple(ColumnMove(item.name, item.type, origins.get(item.name, item.name)) for item in arrow)


def altered(
    columns: tuple[ColumnMove, ...], *, before: TableRecord = KEYED, after: TableRecord | None = None, ts: int = 150
) -> SchemaChange:
    arrow = pa.schema([(move.name, move.type) for move in columns])
    after = after or before
    return SchemaChange(Ts(ts), SchemaChangeKind.ALTER, before, after, columns, table_schema(arrow), arrow)


def created(table: TableRecord, *, ts: int) -> SchemaChange:
    columns = moves(ARROW)
    return SchemaChange(Ts(ts), SchemaChangeKind.CREATE, None, table, columns, table_schema(ARROW), ARROW)


def dropped(table: TableRecord, *, ts: int) -> SchemaChange:
    return SchemaChange(Ts(ts), SchemaChangeKind.DROP, table, None)


def rows(directory: Path, name: str = "t", *columns: str) -> list[tuple[Any, ...]]:
    table = DeltaTable(str(directory / "public" / name))
    found = pa.table(table.scan())
    return sorted((tuple(row.values()) for row in found.select(columns or found.column_names).to_pylist()), key=str)


def version(directory: Path, name: str = "t") -> int:
    return DeltaTable(str(directory / "public" / name)).version()


def add(sink: DeltaSink, *images: tuple[Any, ...], arrow: pa.Schema, from_ts: int, to_ts: int) -> None:
    part = changes([insert(*image, ts=to_ts) for image in images], arrow=arrow)
    result = sink.write(task(sink, from_ts, to_ts), iter([part]))
    [done] = sink.commit([task(sink, from_ts, to_ts)], [result])
    assert not done.error


def test_a_new_column_is_a_commit_without_data(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=ROWS)
    arrow = pa.schema([*ARROW, pa.field("n", pa.int32())])
    files = DeltaTable(str(tmp_path / "public/t")).file_uris()
    sink.alter([altered(moves(arrow, n=None))])
    assert DeltaTable(str(tmp_path / "public/t")).file_uris() == files
    assert rows(tmp_path) == [(1, "a", "x", None), (2, None, "y", None)]
    assert sink.committed_ts(KEYED, SPAN) == 100
    add(sink, (3, "c", "z", 7), arrow=arrow, from_ts=100, to_ts=150)
    assert rows(tmp_path)[-1] == (3, "c", "z", 7)


def test_done_again_changes_nothing(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=ROWS)
    change = altered(moves(pa.schema([("id", pa.int64()), ("n", pa.int32())]), n=None))
    sink.alter([change])
    before = version(tmp_path)
    add(sink, (3, 7), arrow=change.arrow or ARROW, from_ts=100, to_ts=200)
    sink.alter([change])
    assert version(tmp_path) == before + 1
    assert rows(tmp_path) == [(1, None), (2, None), (3, 7)]


def test_renamed_dropped_filled_and_widened_at_once(tmp_path: Path) -> None:
    arrow = pa.schema([("id", pa.int32()), ("v", pa.string()), ("d", pa.decimal128(5, 2))])
    record = KEYED
    sink = loaded(tmp_path, table=record)
    sink.alter([altered(moves(arrow, v="name", d=None), ts=110)])
    add(sink, (1, "a", None), arrow=arrow, from_ts=100, to_ts=120)
    wide = pa.schema([("id", pa.int64()), ("w", pa.string()), ("d", pa.decimal128(12, 2)), ("f", pa.date32())])
    columns = [*moves(wide, w="v")[:3], ColumnMove("f", pa.date32(), None, pa.scalar(date(2020, 2, 3)))]
    sink.alter([altered(tuple(columns), ts=130)])
    add(sink, (2, "b", None, None), arrow=wide, from_ts=120, to_ts=140)
    assert rows(tmp_path) == [(1, "a", None, date(2020, 2, 3)), (2, "b", None, None)]
    stored = pa.schema(DeltaTable(str(tmp_path / "public/t")).schema().to_arrow())
    assert [str(item.type) for item in stored] == ["int64", "string", "decimal128(12, 2)", "date32[day]"]


def test_a_table_in_the_place_of_one_that_goes_with_it(tmp_path: Path) -> None:
    """CREATE OR REPLACE TABLE: both at one Ts; crashes in between, and doing it again, change nothing."""
    sink = loaded(tmp_path, rows=ROWS)
    new = KEYED.with_(table_id=99, start_ts=Ts(149))
    sink.alter([dropped(KEYED, ts=150)])
    for _ in range(2):
        sink.alter([dropped(KEYED, ts=150), created(new, ts=150)])
        assert rows(tmp_path) == []
    assert sink.committed_ts(new, TableSpan(99)) == 149
    sink.alter([dropped(OTHER, ts=150)])  # which never was here


def test_a_table_that_goes_leaves_another_one_in_its_place_alone(tmp_path: Path) -> None:
    """It was held, and never came to the name that it had at last."""
    sink = loaded(tmp_path, rows=ROWS)
    sink.alter([dropped(OTHER.with_(name=KEYED.name), ts=150)])
    with pytest.raises(TableForeignError, match="holds another table of changefeed"):
        sink.alter([created(KEYED.with_(table_id=99, start_ts=Ts(159)), ts=160)])
    assert len(rows(tmp_path)) == len(ROWS)


def test_a_table_whose_new_place_is_taken_stays_in_its_old_one(tmp_path: Path) -> None:
    """Two tables swap their names, and one of them is held: the other one can be written on."""
    sink = loaded(tmp_path, rows=ROWS)
    sink.alter([created(OTHER.with_(start_ts=Ts(119)), ts=120)])
    move = altered(moves(ARROW), after=KEYED.with_(name="u"))
    back = altered(moves(ARROW), before=OTHER, after=OTHER.with_(name="t"))
    aside = tmp_path / "public" / f"{ASIDE}{KEYED.table_id}-{150:x}"
    for is_aside in (False, True):
        if is_aside:  # a crash, before that other one was held
            (tmp_path / "public/t").rename(aside)
        with pytest.raises(TableHeldError, match="is taken; it follows when"):
            sink.alter([move])
        assert sink.committed_ts(KEYED, SPAN) == 100
        assert not aside.exists()
    for _ in range(2):
        sink.alter([move, back])
        assert rows(tmp_path, "u") == [(1, "a", "x"), (2, None, "y")]
        assert rows(tmp_path, "t") == []


def test_names_that_change_places(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=ROWS)
    sink.alter([altered(moves(ARROW, name="big", big="name"))])
    assert rows(tmp_path) == [(1, "x", "a"), (2, "y", None)]


def test_names_that_differ_in_case_alone_are_refused(tmp_path: Path) -> None:
    """Delta and its readers take them for one: the table waits, or is never made."""
    arrow = pa.schema([*ARROW, pa.field("Name", pa.int32())])
    sink = loaded(tmp_path, rows=ROWS)
    with pytest.raises(TableHeldError, match=r"columns name and Name of public\.t are one to Delta"):
        sink.alter([altered(moves(arrow, Name=None))])
    batch = changes([insert(1, "a", "x", 5)], arrow=arrow).after
    with pytest.raises(TableHeldError, match="leave it out by a column selector"):
        sink.stage(KEYED, "0", iter([batch]), Ts(200))
    with pytest.raises(TableHeldError, match="rename one"):
        sink.load(OTHER, table_schema(arrow), arrow, [])


def test_a_changelog_keeps_a_column_beside_one_whose_name_differs_in_case(tmp_path: Path) -> None:
    sink = loaded(tmp_path, SinkMode.CHANGELOG, rows=[(1, "a", "x")])
    arrow = pa.schema([("id", pa.int64()), ("Name", pa.int32()), ("big", pa.string())])
    sink.alter([altered(moves(arrow, Name=None))])
    assert rows(tmp_path, "t", "id", "Name", "name_before_96") == [(1, None, "a")]


def test_a_column_that_comes_back_is_empty(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=ROWS)
    sink.alter([altered(moves(ARROW, name=None))])
    assert rows(tmp_path) == [(1, None, "x"), (2, None, "y")]


@pytest.mark.parametrize(
    ("old", "new", "value", "after"),
    [
        (pa.int16(), pa.int64(), 5, 5),
        (pa.int64(), pa.int16(), 70_000, None),
        (pa.float32(), pa.float64(), 0.5, 0.5),
        (pa.decimal128(20, 4), pa.decimal128(6, 2), 1234567, None),
        (pa.int64(), pa.string(), 5, "5"),
        (pa.string(), pa.int64(), "42", 42),
        (pa.string(), pa.int64(), "x", None),
        (pa.date32(), pa.timestamp("us"), date(2020, 1, 2), datetime(2020, 1, 2)),
        (pa.timestamp("us"), pa.string(), datetime(2020, 1, 2), None),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), datetime(2020, 1, 2), None),
    ],
    ids=str,
)
def test_values_follow_where_they_can(
    tmp_path: Path, old: pa.DataType, new: pa.DataType, value: object, after: object
) -> None:
    """``after`` None: refused, and the table is as it was."""
    first, second = (pa.schema([("id", pa.int64()), ("v", arrow)]) for arrow in (old, new))
    sink = loaded(tmp_path)
    sink.alter([altered(moves(first, v=None), ts=110)])
    add(sink, (1, value), arrow=first, from_ts=100, to_ts=120)
    change = altered(moves(second), ts=130)
    if after is None:
        with pytest.raises(UnknownValuesError, match=r"column v of public\.t has become"):
            sink.alter([change])
        assert len(rows(tmp_path)) == 1
        return
    sink.alter([change])
    assert rows(tmp_path) == [(1, after)]


def test_a_changelog_keeps_what_the_source_drops(tmp_path: Path) -> None:
    sink = loaded(tmp_path, SinkMode.CHANGELOG, rows=ROWS)
    arrow = pa.schema([("id", pa.int64()), ("w", pa.string()), ("n", pa.int32())])
    columns = [*moves(arrow, w="name")[:2], ColumnMove("n", pa.int32(), None, pa.scalar(7, pa.int32()))]
    sink.alter([altered(tuple(columns))])
    add(sink, (3, "c", None), arrow=arrow, from_ts=100, to_ts=150)
    assert rows(tmp_path, "t", "id", "w", "n", "big", "_commit_version") == [
        (1, "a", 7, "x", 100),
        (2, None, 7, "y", 100),
        (3, "c", None, None, 150),
    ]


def test_a_changelog_keeps_a_column_whose_name_comes_back(tmp_path: Path) -> None:
    sink = loaded(tmp_path, SinkMode.CHANGELOG, rows=ROWS)
    sink.alter([altered(moves(ARROW, name=None))])
    assert rows(tmp_path, "t", "id", "name", "name_before_96") == [(1, None, "a"), (2, None, None)]


def test_a_changelogs_column_has_one_type(tmp_path: Path) -> None:
    sink = loaded(tmp_path, SinkMode.CHANGELOG, rows=ROWS)
    arrow = pa.schema([("id", pa.string()), *list(ARROW)[1:]])
    sink.alter([altered(moves(arrow))])
    assert rows(tmp_path, "t", "id", "_change_type") == [("1", "insert"), ("2", "insert")]


def test_a_new_table_starts_empty_where_it_began(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=ROWS)
    new = OTHER.with_(start_ts=Ts(149))
    for _ in range(2):
        sink.alter([created(new, ts=150)])
    assert rows(tmp_path, "u") == []
    assert sink.committed_ts(new, SPAN.__class__(new.table_id)) == 149


def test_a_table_that_goes_stays_marked_and_gives_its_place_away(tmp_path: Path) -> None:
    """Also to one of the same id, as MySQL's are; with the old one in its history."""
    sink = loaded(tmp_path, rows=ROWS)
    for _ in range(2):
        sink.alter([dropped(KEYED, ts=150)])
    assert rows(tmp_path) == [(1, "a", "x"), (2, None, "y")]
    again = KEYED.with_(start_ts=Ts(169))
    for _ in range(2):
        sink.alter([created(again, ts=170)])
    assert rows(tmp_path) == []
    assert sink.committed_ts(again, SPAN) == 169
    add(sink, (1, "new", None), arrow=ARROW, from_ts=169, to_ts=180)
    sink.alter([dropped(KEYED, ts=150), created(again, ts=170)])  # late: nothing happens
    assert rows(tmp_path) == [(1, "new", None)]


def test_a_table_moves_with_its_name(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=ROWS)
    change = altered(moves(ARROW), after=KEYED.with_(name="z"))
    for _ in range(2):
        sink.alter([change])
    assert not (tmp_path / "public/t").exists()
    assert rows(tmp_path, "z") == [(1, "a", "x"), (2, None, "y")]
    assert sink.committed_ts(KEYED.with_(name="z"), SPAN) == 100


@pytest.mark.parametrize("steps", range(5))
def test_tables_that_change_names_with_each_other_wherever_a_crash_is(
    tmp_path: Path, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = loaded(tmp_path, rows=ROWS)
    sink.alter([created(OTHER.with_(start_ts=Ts(120)), ts=121)])
    swap = [
        altered(moves(ARROW), before=KEYED, after=KEYED.with_(name="u")),
        altered(moves(ARROW), before=OTHER, after=OTHER.with_(name="t")),
    ]
    rename, done = os.rename, 0

    def crash(old: str, new: str) -> None:
        nonlocal done
        if done == steps:
            raise SystemExit
        done += 1
        rename(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", crash)
        try:
            sink.alter(swap)
        except SystemExit:
            assert steps < 4
    sink.alter(swap)
    assert rows(tmp_path, "u") == [(1, "a", "x"), (2, None, "y")]
    assert rows(tmp_path, "t") == []
    assert sink.committed_ts(KEYED.with_(name="u"), SPAN) == 100


def test_another_table_in_the_way_is_left_alone(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=ROWS)
    sink.alter([created(OTHER.with_(start_ts=Ts(120)), ts=121)])
    with pytest.raises(TableHeldError, match="is taken; it follows when the table there"):
        sink.alter([altered(moves(ARROW), after=KEYED.with_(name="u"))])
    assert rows(tmp_path, "u") == []
    sink.alter([dropped(OTHER, ts=140)])
    sink.alter([altered(moves(ARROW), after=KEYED.with_(name="u"))])
    assert len(rows(tmp_path, "u")) == 2


def test_rows_continue_by_another_key(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=ROWS)
    sink.alter([altered(moves(ARROW), after=KEYED.with_(key=("big",)))])
    record = KEYED.with_(key=("big",))
    part = changes([delete(None, None, "x", ts=160)], key=("big",))
    result = sink.write(task(sink, 100, 160, table=record), iter([part]))
    assert result.committed
    assert rows(tmp_path) == [(2, None, "y")]
