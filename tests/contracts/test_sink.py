"""The sink contract, over every sink: what is written again, by others, stale or after a crash is there once."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from agent.errors import CopyBehindError, SinkError, SinkFencedError, TableForeignError, TableHeldError
from agent.feeds.read_back import stand_ins
from agent.ports.plugin import sinks
from agent.ports.sink import (
    Alters,
    FlushResult,
    LaysOut,
    Maintains,
    ReadsBack,
    Repairs,
    Replaces,
    RowRepair,
    SpanRepartition,
    Splits,
)
from agent.ports.table_files import TableFiles
from agent.rows.changes import BEFORE_KEY
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.schema_changes.apply import Terms, apply
from owner.scheduler.spans import even_spans
from reactor.failpoints import Point
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from tests.contracts.sink_bed import SPAN, TABLE, Bed, needs
from tests.unit.agent.changes_build import ARROW, UNCHANGED, changes, delete, insert, table_schema, truncate, update

pytestmark = pytest.mark.sample(0.1)  # each case is tried on every implementation

FIRST = [insert(2, "b", "y", ts=110), update(1, "aa", "x", ts=120)]
AFTER_FIRST = ((1, "aa", "x"), (2, "b", "y"))


@pytest.fixture
def loaded(bed: Bed) -> Bed:
    bed.load((1, "a", "x"))
    return bed


def test_it_can_what_its_plugin_says(bed: Bed) -> None:
    sink = bed.open()
    assert sink.capabilities is bed.can
    ports = (Alters, Splits, ReadsBack, Replaces, Maintains, LaysOut)
    assert tuple(isinstance(sink, port) for port in ports) == (
        bed.can.alters,
        bed.can.splits,
        bed.can.reads_back,
        bed.can.replaces,
        bed.can.maintains,
        bed.can.lays_out,
    )
    assert bed.mode in bed.can.modes


def test_every_sink_that_is_installed_is_under_test(example_site: object) -> None:
    from tests.contracts.sink_bed import IMPLEMENTATIONS

    tested = {one.uri.partition(":")[0].partition("+")[0] for one in IMPLEMENTATIONS.values()}
    assert {found.entry.name for found in sinks().found()} == tested


def test_a_snapshot_is_taken_over_once(bed: Bed) -> None:
    bed.open().check([TABLE])
    for _ in range(2):
        bed.load((1, "a", "x"), (2, None, ""))
        bed.assert_at(100)
        bed.assert_holds((1, "a", "x"), (2, None, ""))
    bed.open().check([TABLE])


def test_a_table_begins_empty(bed: Bed) -> None:
    bed.load()
    bed.assert_at(100)
    bed.assert_holds()


def test_tables_of_any_names_are_different_tables(bed: Bed) -> None:
    """As long as servers let them be, and with names that are one text, or paths of each other."""
    names = [
        ("a", "b.c"),
        ("a.b", "c"),
        ("..", ".."),
        ("a", "b/c"),
        ("a/b", "c"),
        ("a", "b"),
        ("\n", '"'),
        ("☃" * 64, "😀" * 64),
    ]
    tables = [TableRecord.new(at, *name, key=("id",), start_ts=Ts(100)) for at, name in enumerate(names, 1)]
    sink = bed.open()
    sink.check(tables)
    assert not sink.unfit(tables)
    for table in tables:
        rows = changes([insert(table.table_id, "a", "x")]).after
        staged = sink.writer().stage(table, "1-0", iter([rows]), Ts(100))
        bed.open().load(table, table_schema(), ARROW, staged)
    for table in tables:
        bed.assert_holds((table.table_id, "a", "x"), table=table)


def test_the_record_moves_with_the_rows(loaded: Bed) -> None:
    result = loaded.flush(100, 200, FIRST)
    assert (result.committed, result.rows, result.error) == (True, 2, "")
    loaded.assert_at(200)
    loaded.assert_holds(*AFTER_FIRST)
    if loaded.can.keeps_record:
        assert loaded.open().visible(TABLE, [SPAN]).committed_ts == 200


def test_twice(loaded: Bed) -> None:
    for _ in range(2):
        assert loaded.flush(100, 200, FIRST).error == ""
        loaded.assert_at(200)
        loaded.assert_holds(*AFTER_FIRST)


def test_a_stale_writer_is_refused(loaded: Bed) -> None:
    needs(loaded.can.keeps_record, "record")
    loaded.flush(100, 200, FIRST)
    for from_ts, to_ts in ((100, 150), (100, 250), (150, 250)):
        with pytest.raises(SinkFencedError):
            loaded.flush(from_ts, to_ts, [delete(1, None, None, ts=130)])
        loaded.assert_at(200)
        loaded.assert_holds(*AFTER_FIRST)


def test_a_writer_that_is_ahead_of_the_record_is_refused(loaded: Bed) -> None:
    needs(loaded.can.keeps_record, "record")
    with pytest.raises(TableHeldError):
        loaded.flush(150, 200, FIRST)
    loaded.assert_at(100)
    loaded.assert_holds((1, "a", "x"))


def test_maintenance_changes_no_rows_and_no_record(loaded: Bed) -> None:
    needs(loaded.can.maintains, "maintenance")
    sink = loaded.open()
    assert isinstance(sink, Maintains)
    for turn in range(4):
        some = [insert(10 + turn, "n", "z", ts=101 + turn), update(1, f"t{turn}", "x", ts=101 + turn)]
        loaded.flush(100 + turn, 101 + turn, some)
    before = _sorted(loaded)
    done = sink.maintain(TABLE)
    if loaded.layouts:
        assert 0 < done.joined <= done.files_before
        assert done.files < done.files_before
    else:
        assert done.files == (2 if loaded.mode is SinkMode.HISTORY else 1), "ended versions lie apart"
        assert done.joined == (done.files_before if done.files_before > 1 else 0)
    assert _sorted(loaded) == before
    loaded.assert_at(104)
    assert loaded.open().maintain(TABLE).joined == 0  # type: ignore[attr-defined]
    loaded.flush(104, 105, [update(10, "u", "z", ts=105), delete(1, None, None, ts=105)])
    if loaded.mode is SinkMode.UPSERT:
        loaded.assert_holds((10, "u", "z"), *((10 + turn, "n", "z") for turn in range(1, 4)))
    loaded.assert_at(105)


def test_the_files_of_a_table_and_its_last_compaction_are_visible(loaded: Bed) -> None:
    needs(loaded.can.maintains, "maintenance")
    began = time.time()

    def seen() -> TableFiles:
        sink = loaded.open()
        assert isinstance(sink, Maintains)
        return sink.files(TABLE)

    assert seen().compacted_time == 0.0
    for turn in range(4):
        some = [insert(10 + turn, "n", "z", ts=101 + turn), update(1, f"t{turn}", "x", ts=101 + turn)]
        loaded.flush(100 + turn, 101 + turn, some)
    before = seen()
    assert before.deleted_rows is not None
    count = before.rows - before.deleted_rows
    if loaded.mode is SinkMode.UPSERT:  # of the others a reader sees not all, or others
        assert count == len(_sorted(loaded))
    done = loaded.open().maintain(TABLE)  # type: ignore[attr-defined]
    assert (done.files_before, done.bytes_before) == (before.files, before.bytes)
    after = seen()
    assert (after.files, after.bytes) == (done.files, done.bytes)
    assert (after.rows, after.deleted_rows) == (count, 0)
    assert (began - 1 < after.compacted_time <= time.time()) == (done.joined > 0)
    loaded.flush(104, 105, [delete(1, None, None, ts=105)])
    assert seen().compacted_time == after.compacted_time, "a flush compacts nothing"


def _sorted(bed: Bed) -> list[str]:
    sink = bed.open()
    assert isinstance(sink, ReadsBack)
    return sorted(repr(row) for batch in sink.read_rows(TABLE, table_schema(), ARROW) for row in batch.to_pylist())


def test_two_at_once(loaded: Bed) -> None:
    together = Barrier(2)

    def flush(_: int) -> FlushResult | SinkError:
        task = loaded.task(100, 200)
        together.wait()
        try:
            result = loaded.write(task, FIRST)
            together.wait()
            return loaded.commit(task, result)
        except SinkError as error:
            together.abort()
            return error

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(flush, range(2)))
    assert any(isinstance(one, FlushResult) and one.committed for one in outcomes)
    loaded.assert_at(200)
    loaded.assert_holds(*AFTER_FIRST)


@pytest.mark.parametrize("point", [Point.FLUSH_WRITTEN, Point.FLUSH_BEFORE_COMMIT, Point.FLUSH_AFTER_COMMIT])
def test_after_a_crash(loaded: Bed, point: Point) -> None:
    """What the lost process has done is unknown to the next one, which begins where the record says."""
    task = loaded.task(100, 200)
    result = loaded.write(task, FIRST)
    if point is Point.FLUSH_AFTER_COMMIT:
        loaded.commit(task, result)
    start = loaded.at() or Ts(100)
    if start < 200:
        loaded.flush(start, 200, FIRST)
    assert loaded.flush(200, 300, [delete(2, None, None, ts=210)]).committed
    loaded.assert_at(300)
    loaded.assert_holds((1, "aa", "x"))


def test_truncate(loaded: Bed) -> None:
    loaded.flush(100, 200, [insert(2, "b", "y", ts=110), truncate(ts=120), insert(3, "c", "z", ts=130)])
    loaded.assert_holds((3, "c", "z"))
    loaded.flush(200, 300, [truncate(ts=210)])
    loaded.assert_holds()
    loaded.assert_at(300)


def test_a_changed_key(loaded: Bed) -> None:
    moved = update(7, "a", "x", before=(1, None, None), before_kind=BEFORE_KEY, ts=110)
    loaded.flush(100, 200, [moved, insert(1, "new", "n", ts=120)])
    loaded.assert_holds((7, "a", "x"), (1, "new", "n"))


def test_a_value_that_was_left_out(loaded: Bed) -> None:
    loaded.flush(100, 200, [update(1, "aa", UNCHANGED, ts=110)])
    loaded.assert_holds((1, "aa", "x"))
    moved = update(5, "m", UNCHANGED, before=(1, None, None), before_kind=BEFORE_KEY, ts=210)
    loaded.flush(200, 300, [moved])
    loaded.assert_holds((5, "m", "x"))


def test_deletes_of_what_is_not_there(loaded: Bed) -> None:
    loaded.flush(100, 200, [delete(9, None, None, ts=110), delete(1, None, None, ts=120)])
    loaded.assert_holds()


def test_a_schema_change(loaded: Bed) -> None:
    sink = loaded.open()
    needs(isinstance(sink, Alters), "schema changes")
    assert isinstance(sink, Alters)
    wide = pa.schema([("id", pa.int64()), ("title", pa.string()), ("n", pa.int64())])
    columns = (
        ColumnMove("id", pa.int64(), "id"),
        ColumnMove("title", pa.string(), "name"),
        ColumnMove("n", pa.int64(), None, pa.scalar(7)),
    )
    renamed = TABLE.with_(name="u")
    change = SchemaChange(Ts(101), SchemaChangeKind.ALTER, TABLE, renamed, columns, table_schema(wide, name="u"), wide)
    for _ in range(2):
        sink.alter([change])
    loaded.assert_holds((1, "a", 7), table=renamed, arrow=wide)
    assert loaded.flush(100, 200, [insert(2, "b", None, ts=150)], table=renamed, arrow=wide).error == ""
    loaded.assert_holds((1, "a", 7), (2, "b", None), table=renamed, arrow=wide)


def test_a_table_takes_the_place_of_one_that_was_held_under_its_name_and_dropped_later(loaded: Bed) -> None:
    """The source had renamed the held one by then; here it kept its name, and its drop did not wait for others."""
    sink = loaded.open()
    needs(isinstance(sink, Alters) and loaded.can.keeps_record, "schema changes")
    assert isinstance(sink, Alters)
    gone = SchemaChange(Ts(300), SchemaChangeKind.DROP, TABLE, None, (), None, None)
    sink.alter([gone])
    other = TABLE.with_(table_id=17000, start_ts=Ts(149))
    made = SchemaChange(Ts(150), SchemaChangeKind.CREATE, None, other, (), table_schema(ARROW), ARROW)
    for change in (made, made, gone):
        sink.alter([change])
        assert loaded.at(TableSpan(17000), other) == 149
        loaded.assert_holds(table=other)
    stale = replace(made, ts=Ts(120), after=TABLE.with_(table_id=18000, start_ts=Ts(119)))
    assert loaded.flush(149, 200, [insert(2, "b", "y", ts=160)], table=other, span=TableSpan(17000)).committed
    sink.alter([replace(gone, ts=Ts(400), before=other)])
    sink.alter([stale])
    assert loaded.at(TableSpan(17000), other) == 200, "a later table's place is not taken"


def test_a_late_schema_change_reaches_no_other_table(loaded: Bed) -> None:
    """A capture that stood still in the middle of it finds another table under the name, or the table back again."""
    sink = loaded.open()
    needs(isinstance(sink, Alters) and loaded.can.keeps_record, "schema changes")
    assert isinstance(sink, Alters)
    wide, away, other = pa.schema([*ARROW, ("n", pa.int64())]), TABLE.with_(name="away"), TABLE.with_(table_id=17000)

    def change(ts: int, before: TableRecord, after: TableRecord, **fills: int) -> SchemaChange:
        kind = SchemaChangeKind.ALTER if before == after else SchemaChangeKind.RENAME
        moves = [ColumnMove(item.name, item.type, None if item.name in fills else item.name) for item in wide]
        return SchemaChange(Ts(ts), kind, before, after, tuple(moves), table_schema(wide, name=after.name), wide)

    altered, renamed = change(101, TABLE, TABLE, n=0), change(102, TABLE, away)
    made = SchemaChange(
        Ts(103), SchemaChangeKind.CREATE, None, other.with_(start_ts=Ts(102)), (), table_schema(ARROW), ARROW
    )
    for one in (altered, renamed, made):
        sink.alter([one])
    with pytest.raises(TableForeignError):
        sink.alter([altered])
    sink.alter([renamed])
    loaded.assert_holds((1, "a", "x", None), table=away, arrow=wide)
    loaded.assert_holds(table=other)
    sink.alter([SchemaChange(Ts(104), SchemaChangeKind.DROP, other, None, (), None, None)])
    back = change(105, away, TABLE)
    sink.alter([back])
    with pytest.raises(SinkError):
        sink.alter([renamed])
    loaded.assert_holds((1, "a", "x", None), arrow=wide)


@pytest.mark.parametrize("names", [("id",), ("id", "n")], ids=str)
def test_all_columns_get_other_types_at_once(bed: Bed, names: tuple[str, ...]) -> None:
    needs(bed.can.alters and not bed.layouts, "schema changes")
    before, after = (pa.schema([(name, arrow) for name in names]) for arrow in (pa.int32(), pa.int64()))
    bed.load_as(before, *(tuple(key for _ in names) for key in (1, 2)))
    moves = tuple(ColumnMove(name, pa.int64(), name) for name in names)
    change = SchemaChange(Ts(101), SchemaChangeKind.ALTER, TABLE, TABLE, moves, table_schema(after), after)
    sink = bed.open()
    assert isinstance(sink, Alters)
    for _ in range(2):
        sink.alter([change])
    bed.assert_holds(*(tuple(key for _ in names) for key in (1, 2)), arrow=after)
    bed.flush(100, 200, [insert(*(1 << 40 for _ in names), ts=150)], arrow=after)
    bed.assert_holds(*(tuple(key for _ in names) for key in (1, 2, 1 << 40)), arrow=after)


@pytest.mark.sample(0.12)
@pytest.mark.parametrize("seed", range(3))
def test_renamed_columns_whose_values_updates_left_out(loaded: Bed, seed: int) -> None:
    """Columns swap names, and new ones take the names of dropped ones."""
    sink, rng = loaded.open(), Random(seed)
    needs(isinstance(sink, Alters), "schema changes")
    assert isinstance(sink, Alters)
    arrow = ARROW
    row: tuple[Any, ...] = (1, "a", "x")
    loaded.flush(100, 200, [update(1, "a", UNCHANGED, ts=110)])
    for at in range(2, 7):
        names = rng.sample([*arrow.names[1:], "name", "other"], 2)
        dropped = rng.choice([None, 1, 2])
        if dropped is not None:
            names[dropped - 1] = arrow.names[dropped]
            row = (*row[:dropped], None, *row[dropped + 1 :])
        if len({*names}) < len(names):
            names[2 - (dropped or 1)] = f"more{at}"
        after = pa.schema([("id", pa.int64()), *((name, pa.string()) for name in names)])
        columns = tuple(
            ColumnMove(new.name, new.type, None if place == dropped else old.name)
            for place, (old, new) in enumerate(zip(arrow, after, strict=True))
        )
        change = SchemaChange(
            Ts(at * 100 + 1), SchemaChangeKind.ALTER, TABLE, TABLE, columns, table_schema(after), after
        )
        for _ in range(2):
            sink.alter([change])
        loaded.assert_holds(row, arrow=after)
        place = rng.choice([1, 2])
        row = (*row[:place], f"{seed}-{at}", *row[place + 1 :])
        left = (*row[: 3 - place], UNCHANGED, *row[4 - place :])
        loaded.flush(at * 100, (at + 1) * 100, [update(*left, ts=at * 100 + 50)], arrow=after)
        loaded.assert_holds(row, arrow=after)
        arrow = after


def test_a_key_that_moves_to_another_column(loaded: Bed) -> None:
    """What was distinguished by the old one stays so, also in a changelog, whose columns get other names as well."""
    sink = loaded.open()
    needs(isinstance(sink, Alters), "schema changes")
    assert isinstance(sink, Alters)
    loaded.flush(100, 200, FIRST)
    known, arrow, keys = TABLE, ARROW, [(("name",), "number"), (("number",), "n"), (("n", "name"), "id")]
    rows = [(1, "aa", "x"), (2, "b", "y")]
    for at, (key, name) in enumerate(keys, 2):
        after = pa.schema([pa.field(name, pa.int64()), *list(ARROW)[1:]])
        key = tuple(name if column == arrow.names[0] else column for column in key)
        table = known.with_(key=key)
        moves = tuple(ColumnMove(new.name, new.type, old.name) for old, new in zip(arrow, after, strict=True))
        change = SchemaChange(Ts(at * 100 + 1), SchemaChangeKind.ALTER, known, table, moves, table_schema(after), after)
        for _ in range(2):
            sink.alter([change])
        known, arrow = table, after
        loaded.assert_holds(*rows, table=known, arrow=arrow)
        if "name" in key:
            rows = (
                [(1, "aa", f"x{at}"), (20 + at, "b", "y")]
                if key == ("name",)
                else [*rows[:1], (*rows[1][:2], f"y{at}")]
            )
        else:
            rows = [rows[0], (rows[1][0], f"b{at}", "y")]
        changed = [update(*row, ts=at * 100 + 50) for row in rows]
        assert loaded.flush(at * 100, (at + 1) * 100, changed, table=known, arrow=arrow).error == ""
        loaded.assert_holds(*rows, table=known, arrow=arrow)


def test_a_schema_change_that_a_sink_cannot_follow_holds_the_table(loaded: Bed) -> None:
    needs(not loaded.can.alters, "table that a schema change holds")
    after = table_schema(pa.schema([*ARROW, ("n", pa.int64())]))
    change = TableChange(
        kind=SchemaChangeKind.ALTER,
        table_id=16384,
        table=TABLE,
        before=table_schema().to_json(),
        after=after.to_json(),
    )
    with pytest.raises(TableHeldError, match=r"does not follow schema changes, and public\.t has changed"):
        apply(loaded.open(), DdlRecord(ts=Ts(150), changes=(change,)), Terms(ChangefeedConfig(), loaded.mode))


def test_a_split(loaded: Bed) -> None:
    sink = loaded.open()
    needs(isinstance(sink, Splits) and loaded.can.keeps_record, "split tables")
    assert isinstance(sink, Splits)
    stale = loaded.task(100, 200)
    order = SpanRepartition((SPAN,), even_spans(16384, 2), Ts(100), 1)
    for _ in range(2):
        assert sink.repartition(TABLE, order) == 100
    with pytest.raises(SinkFencedError):
        loaded.commit(stale, loaded.write(stale, FIRST))
    with pytest.raises(SinkFencedError):
        loaded.at()
    for span in order.new:
        loaded.assert_at(100, span)
        assert loaded.flush(100, 200, FIRST, span=span).error == ""
        loaded.assert_at(200, span)
    loaded.assert_holds(*AFTER_FIRST)
    back = SpanRepartition(order.new, (SPAN,), Ts(200), 2)
    assert sink.repartition(TABLE, back) == 200
    with pytest.raises(SinkFencedError):
        sink.repartition(TABLE, order)
    loaded.flush(200, 300, [delete(1, None, None, ts=250)])
    loaded.assert_holds((2, "b", "y"))


def test_a_copy_takes_the_tables_place_once(loaded: Bed) -> None:
    """Asked for again it changes nothing, also when the table has gone on; an earlier copy that is stale neither."""
    sink = replacing(loaded)
    loaded.flush(100, 200, FIRST)
    late = loaded.copied(200, (7, "late", "copy"))
    copy = loaded.copied(300, (1, "a", "new"), (3, "c", "z"))
    for _ in range(2):
        sink.replace(copy)
        loaded.assert_at(300)
        loaded.assert_holds((1, "a", "new"), (3, "c", "z"))
    loaded.flush(300, 400, [insert(4, "d", "w", ts=310)])
    sink.replace(copy)
    with pytest.raises(SinkFencedError):
        sink.replace(late)
    loaded.assert_at(400)
    loaded.assert_holds((1, "a", "new"), (3, "c", "z"), (4, "d", "w"))


def test_copies_of_a_source_that_nobody_writes_are_of_one_position(loaded: Bed) -> None:
    """The later one counts, also behind the changes of its position."""
    sink = replacing(loaded)
    loaded.flush(100, 200, [update(1, "b", "x", ts=200), insert(2, "b", "y", ts=200), insert(3, "c", "z", ts=200)])
    late = loaded.copied(200, (9, "late", "copy"), number=6)
    for number, rows in ((5, [(1, "a", "x"), (2, "b", "y")]), (6, []), (7, [(1, "c", "x"), (4, "d", "w")])):
        copy = loaded.copied(200, *rows, number=number)
        for _ in range(2):
            sink.replace(copy)
            loaded.assert_at(200)
            loaded.assert_holds(*rows)
    with pytest.raises(SinkError):
        sink.replace(late)
    loaded.flush(200, 300, [delete(4, None, None, ts=210), insert(5, "e", "v", ts=220)])
    loaded.assert_holds((1, "c", "x"), (5, "e", "v"))


def test_a_copy_that_is_behind_its_table_is_refused(loaded: Bed) -> None:
    sink = replacing(loaded)
    loaded.flush(100, 200, FIRST)
    with pytest.raises(CopyBehindError):
        sink.replace(loaded.copied(150, (9, "i", "j")))
    loaded.assert_at(200)
    loaded.assert_holds(*AFTER_FIRST)


def test_a_copy_of_nothing_empties_the_table(loaded: Bed) -> None:
    replacing(loaded).replace(loaded.copied(200))
    loaded.assert_at(200)
    loaded.assert_holds()


def test_a_copy_brings_back_a_table_that_is_gone(bed: Bed) -> None:
    sink = replacing(bed)
    sink.replace(bed.copied(200, (1, "a", "x")))
    bed.assert_at(200)
    bed.assert_holds((1, "a", "x"))
    bed.flush(200, 300, [update(1, "b", "x", ts=210)])
    bed.assert_holds((1, "b", "x"))


def test_a_copy_of_nothing_may_be_the_first_table_of_its_sink(bed: Bed) -> None:
    """As where a changefeed was created before its tables."""
    sink = replacing(bed)
    sink.replace(bed.copied(200))
    bed.assert_at(200)
    bed.assert_holds()
    bed.flush(200, 300, [insert(1, "b", "x", ts=210)])
    bed.assert_holds((1, "b", "x"))


def test_a_copy_fences_the_writers_of_before(loaded: Bed) -> None:
    sink = replacing(loaded)
    stale = loaded.task(100, 190)
    written = loaded.write(stale, FIRST) if loaded.mode == "changelog" else None
    sink.replace(loaded.copied(200, (1, "a", "x"), (5, "e", "v")))
    if written is not None:
        assert loaded.commit(stale, written).error
    else:
        with pytest.raises(SinkFencedError):
            loaded.write(stale, FIRST)
    loaded.assert_at(200)
    loaded.assert_holds((1, "a", "x"), (5, "e", "v"))


def test_a_copy_of_a_split_table_is_one_for_all_its_spans(loaded: Bed) -> None:
    sink = replacing(loaded)
    assert isinstance(sink, Splits)
    order = SpanRepartition((SPAN,), even_spans(16384, 2), Ts(100), 1)
    sink.repartition(TABLE, order)
    sink.replace(replace(loaded.copied(200, (1, "a", "x"), (2, "b", "y")), spans=order.new, cut=1))
    for span in order.new:
        loaded.assert_at(200, span)
    with pytest.raises(SinkFencedError):
        loaded.at()
    loaded.assert_holds((1, "a", "x"), (2, "b", "y"))
    back = SpanRepartition(order.new, (SPAN,), Ts(200), 2)
    assert sink.repartition(TABLE, back) == 200


def test_a_copy_has_the_columns_of_its_time(loaded: Bed) -> None:
    """A schema change at or below its Ts is in it, so it is not made again."""
    sink = replacing(loaded)
    assert isinstance(sink, Alters)
    wide = pa.schema([*ARROW, pa.field("more", pa.int32())])
    sink.replace(loaded.copied(300, (1, "a", "x", 5), arrow=wide))
    loaded.assert_holds((1, "a", "x", 5), arrow=wide)
    moves = tuple(ColumnMove(item.name, item.type, item.name if item.name != "more" else None) for item in wide)
    sink.alter([SchemaChange(Ts(250), SchemaChangeKind.ALTER, TABLE, TABLE, moves, table_schema(wide), wide)])
    loaded.assert_holds((1, "a", "x", 5), arrow=wide)


@pytest.mark.sample(0.12)
@pytest.mark.parametrize(
    "names", [("id", "big", "name"), ("id", "title", "big"), ("id", "name", "title"), ("id", "big", "more")], ids=str
)
@pytest.mark.parametrize("is_later", [True, False], ids=["changed since", "copied since"])
def test_a_copy_may_have_columns_that_the_log_does_not_know_yet(
    loaded: Bed, names: tuple[str, ...], is_later: bool
) -> None:
    """PostgreSQL's log has a change of columns with the next row: behind the copy, which may have it or not. Columns
    swap their names, get others, and take others'. Where a table keeps columns under old names, it may be held."""
    sink = replacing(loaded)
    terms = [term for layout in loaded.layouts for term in layout.partition_by]
    needs("name" in names or not any("name" in term for term in terms), "column of its layout")
    assert isinstance(sink, Alters)
    after = pa.schema([(name, item.type) for name, item in zip(names, ARROW, strict=True)])
    sink.replace(loaded.copied(200, (1, "a", "x"), (2, "b", "y"), arrow=ARROW if is_later else after))
    moves = tuple(ColumnMove(new.name, new.type, old.name) for old, new in zip(ARROW, after, strict=True))
    change = SchemaChange(Ts(250), SchemaChangeKind.ALTER, TABLE, TABLE, moves, table_schema(after), after)
    is_lost = loaded.mode is SinkMode.CHANGELOG or (loaded.mode is SinkMode.HISTORY and "iceberg" in loaded.uri)
    taken = {new for old, new in zip(ARROW.names, names, strict=True) if old != new} & {*ARROW.names}
    if is_lost and (taken or not is_later):
        with pytest.raises(TableHeldError, match="were renamed, and its copy may have been made before or afterwards"):
            sink.alter([change])
        sink.replace(loaded.copied(260, (1, "a", "x"), (2, "b", "y"), arrow=after))
    for _ in range(2):
        sink.alter([change])
    loaded.assert_holds((1, "a", "x"), (2, "b", "y"), arrow=after)
    assert loaded.flush(loaded.at() or 0, 300, [insert(3, "c", "z", ts=270)], arrow=after).error == ""
    loaded.assert_holds((1, "a", "x"), (2, "b", "y"), (3, "c", "z"), arrow=after)


def test_a_copy_may_have_a_column_of_another_type(loaded: Bed) -> None:
    """Also without rows, which say nothing of types."""
    sink = replacing(loaded)
    numbers = pa.schema([ARROW.field(0), pa.field(ARROW.names[1], pa.int32()), *list(ARROW)[2:]])
    sink.replace(loaded.copied(200, (1, 7, "x"), arrow=numbers))
    loaded.assert_at(200)
    loaded.assert_holds((1, 7, "x"), arrow=numbers)
    assert loaded.flush(200, 300, [insert(2, 8, "y", ts=210)], arrow=numbers).error == ""
    loaded.assert_holds((1, 7, "x"), (2, 8, "y"), arrow=numbers)
    sink.replace(loaded.copied(300))
    loaded.assert_holds()
    assert loaded.flush(300, 400, [insert(2, "b", "y", ts=310)]).error == ""
    loaded.assert_holds((2, "b", "y"))


def replacing(bed: Bed) -> Replaces:
    sink = bed.open()
    needs(isinstance(sink, Replaces), "table resync")
    assert isinstance(sink, Replaces)
    return sink


def test_a_table_of_another_changefeed_is_refused(loaded: Bed) -> None:
    needs(loaded.can.keeps_record, "record")
    with pytest.raises(SinkError):
        loaded.open("other").check([TABLE])
    with pytest.raises(SinkError):
        loaded.open("other").load(TABLE, table_schema(), ARROW, [])
    loaded.assert_holds((1, "a", "x"))


def test_a_row_that_an_update_cannot_find_is_not_made_up(loaded: Bed) -> None:
    needs(loaded.can.reads_back and loaded.mode == "upsert", "rows that are looked up")
    with pytest.raises(TableHeldError):
        loaded.flush(100, 200, [update(9, "n", UNCHANGED, ts=110)])
    loaded.assert_at(100)
    loaded.assert_holds((1, "a", "x"))


def test_a_value_that_was_left_out_of_a_repaired_row(loaded: Bed) -> None:
    sink = loaded.open()
    needs(isinstance(sink, Repairs) and loaded.mode == "upsert", "single rows that are looked up")
    assert isinstance(sink, Repairs)
    repaired = changes([update(1, "b", "y", ts=100), insert(9, "n", "z", ts=100)])
    sink.repair(RowRepair(TABLE, (SPAN,), Ts(100), repaired))
    loaded.assert_at(100)
    loaded.assert_holds((1, "b", "y"), (9, "n", "z"))
    loaded.flush(100, 200, [update(1, "c", UNCHANGED, ts=110), update(9, "m", UNCHANGED, ts=120)])
    loaded.assert_holds((1, "c", "y"), (9, "m", "z"))


def test_a_repair_may_be_done_twice(loaded: Bed) -> None:
    """As by two owners of a changefeed whose source nobody writes. All of its rows are new, or only some."""
    sink = loaded.open()
    needs(isinstance(sink, Repairs), "single rows")
    assert isinstance(sink, Repairs)
    for rows in (
        [insert(8, "m", "z", ts=100), insert(9, "n", "z", ts=100)],
        [insert(7, "l", "z", ts=100), delete(8, None, None, ts=100)],
    ):
        for _ in range(2):
            sink.repair(RowRepair(TABLE, (SPAN,), Ts(100), changes(rows)))
    loaded.assert_holds((1, "a", "x"), (7, "l", "z"), (9, "n", "z"))
    loaded.flush(100, 200, [delete(9, None, None, ts=110), update(7, "k", "z", ts=120)])
    loaded.assert_holds((1, "a", "x"), (7, "k", "z"))


def test_a_row_that_stands_in_is_what_an_update_finds(loaded: Bed) -> None:
    """The rows are the source's at 200; the updates come in several flushes, and one row was there before."""
    needs(loaded.can.reads_back and loaded.mode == "upsert", "rows that are looked up")
    with pytest.raises(TableHeldError):
        loaded.flush(100, 120, [update(9, "n", UNCHANGED, ts=110)])
    batch = changes([insert(1, "late", "x"), insert(9, "later", "Y")]).after
    sink = loaded.open()
    needs(isinstance(sink, Repairs), "single rows")
    assert isinstance(sink, Repairs)
    for _ in range(2):
        sink.repair(RowRepair(TABLE, (SPAN,), Ts(100), stand_ins(table_schema(), batch, Ts(100))))
    loaded.assert_at(100)
    loaded.assert_holds((1, "late", "x"), (9, "later", "Y"))
    loaded.flush(100, 120, [update(9, "n", UNCHANGED, ts=110), insert(5, "e", "f", ts=111)])
    loaded.assert_holds((1, "late", "x"), (5, "e", "f"), (9, "n", "Y"))
    with pytest.raises(SinkFencedError):
        sink.repair(RowRepair(TABLE, (SPAN,), Ts(100), stand_ins(table_schema(), batch, Ts(100))))
    loaded.flush(120, 200, [update(1, "late", UNCHANGED, ts=130), update(9, "later", UNCHANGED, ts=140)])
    loaded.assert_holds((1, "late", "x"), (5, "e", "f"), (9, "later", "Y"))


def test_a_result_of_another_writer_is_never_committed(loaded: Bed) -> None:
    """A stale commit, of what is written already."""
    needs(loaded.can.keeps_record, "record")
    task = loaded.task(100, 200)
    late = loaded.write(task, FIRST)
    loaded.commit(task, late)
    loaded.flush(200, 300, [update(1, "z", "z", ts=210)])
    try:
        again = loaded.commit(task, replace(late, committed=late.committed))
    except SinkError:
        again = late
    assert again.error or again.committed or not again.files
    loaded.assert_at(300)
    loaded.assert_holds((1, "z", "z"), (2, "b", "y"))


def test_a_column_whose_name_differs_in_case_only_holds_its_table(loaded: Bed) -> None:
    """Delta and Iceberg take both names for one: whoever had written it would have stopped with an unknown error."""
    needs(loaded.uri.startswith(("delta", "iceberg")), "a table format")
    arrow = pa.schema([ARROW.field("id"), ARROW.field("name"), ARROW.field("big").with_name("BIG")])
    try:
        done = loaded.flush(100, 200, [insert(2, "b", "y", ts=110)], arrow=arrow)
        code, text = done.error_code, done.error
    except TableHeldError as error:
        code, text = error.code, str(error)
    assert code == TableHeldError.code
    assert "columns big and BIG of public.t are one" in text
    loaded.assert_at(100)
    loaded.assert_holds((1, "a", "x"))
