"""Tables that leave their changefeed and come again: marked, and fenced against whoever wrote them before."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.table import TableAlterer

from agent.errors import SinkFencedError, TableForeignError, TableHeldError
from agent.ports.sink import FlushTask, MarksLeft, SpanRepartition
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks.delta.alter import dropping
from agent.sinks.iceberg.sink import IcebergSink
from agent.sinks.iceberg.table.state import State
from owner.scheduler.spans import even_spans
from reactor.errors import Scope, WeirError
from reactor.ids import TableSpan, Ts
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.contracts.sink_bed import IMPLEMENTATIONS, SPAN, TABLE, Bed
from tests.unit.agent.changes_build import ARROW, Change, delete, insert, table_schema

SINCE = 1_700_000_000.0
WORDS = "2023-11-14T22:13:20+00:00"


DAILY = ("delta-upsert", "delta-changelog", "iceberg-upsert", "iceberg-changelog")
OTHERS = ("delta-vectors", "delta-history", "delta-marks", "iceberg-history", "iceberg-marks", "iceberg-partitioned")


@pytest.fixture(params=[*DAILY, *(pytest.param(name, marks=pytest.mark.matrix) for name in OTHERS)])
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    return Bed.of(IMPLEMENTATIONS[request.param], tmp_path)


@pytest.fixture
def loaded(bed: Bed) -> Bed:
    bed.load((1, "a", "x"))
    return bed


def sink_of(bed: Bed) -> Any:
    sink = bed.open()
    assert isinstance(sink, MarksLeft)
    return sink


def is_refused(bed: Bed, task: FlushTask, rows: Sequence[Change]) -> bool:
    """Where the capture commits, it is when it does."""
    try:
        return bed.commit(task, bed.write(task, rows)).error_code == SinkFencedError.code
    except SinkFencedError:
        return True


def dropped(ts: int) -> SchemaChange:
    return SchemaChange(Ts(ts), SchemaChangeKind.DROP, TABLE, None, (), None, None)


def created(table_id: int, ts: int) -> SchemaChange:
    """A table of the same name and columns is made."""
    table, schema = TABLE.with_(table_id=table_id, start_ts=Ts(ts)), replace(table_schema(), table_id=table_id)
    columns = tuple(ColumnMove(item.name, item.type, None) for item in ARROW)
    return SchemaChange(Ts(ts), SchemaChangeKind.CREATE, None, table, columns, schema, ARROW)


def mark(bed: Bed) -> tuple[int, str] | None:
    """Since when it is reported to readers that it is not replicated."""
    sink = sink_of(bed)
    place = sink.place(TABLE)
    if isinstance(sink, IcebergSink):
        state = State.of(place.opened())
        return (state.left, state.left_at) if state.left else None
    found = json.loads(DeltaTable(place.location).metadata().description)["weir"].get("left")
    return (found["ts"], found["time"]) if found else None


def test_a_table_that_leaves_says_so_until_a_copy_takes_its_place(loaded: Bed) -> None:
    sink_of(loaded).mark_left(TABLE, Ts(150), time=SINCE)
    sink_of(loaded).mark_left(TABLE, Ts(150), time=SINCE)
    assert mark(loaded) == (150, WORDS)
    loaded.assert_holds((1, "a", "x"))
    sink_of(loaded).replace(loaded.copied(200, (2, "b", "y")))
    assert mark(loaded) is None
    sink_of(loaded).mark_left(TABLE, Ts(150), time=SINCE)
    assert mark(loaded) is None, "that was before the copy"
    assert loaded.flush(200, 300, [insert(3, "c", "z", ts=210)]).error == ""
    loaded.assert_holds((2, "b", "y"), (3, "c", "z"))
    sink_of(loaded).mark_left(TABLE, Ts(300), time=SINCE + 3600)
    assert mark(loaded) == (300, WORDS.replace("22:", "23:"))


def test_a_table_leaves_again_while_nothing_is_committed(loaded: Bed) -> None:
    sink_of(loaded).mark_left(TABLE, Ts(150), time=SINCE)
    sink_of(loaded).replace(loaded.copied(150, (2, "b", "y")))
    sink_of(loaded).mark_left(TABLE, Ts(150), time=SINCE + 3600)
    assert mark(loaded) == (150, WORDS.replace("22:", "23:"))


def test_a_mark_of_an_earlier_departure_comes_too_late(loaded: Bed) -> None:
    """Its capture was suspended, and the table has joined and left again since, without a copy in its place."""
    sink_of(loaded).mark_left(TABLE, Ts(200), time=SINCE + 3600)
    sink_of(loaded).mark_left(TABLE, Ts(150), time=SINCE)
    assert mark(loaded) == (200, WORDS.replace("22:", "23:"))


def test_a_copy_of_before_it_left_is_refused(loaded: Bed) -> None:
    """Its capture was suspended while it put the copy in the table's place."""
    late = loaded.copied(140, (2, "b", "y"))
    sink_of(loaded).mark_left(TABLE, Ts(150), time=SINCE)
    with pytest.raises(SinkFencedError):
        sink_of(loaded).replace(late)
    assert mark(loaded) == (150, WORDS)
    loaded.assert_holds((1, "a", "x"))


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_copy_of_before_it_was_dropped_is_refused(loaded: Bed, is_made_again: bool) -> None:
    """It took the mark away, and the next table with its number was refused: its place seemed to be in use."""
    late = loaded.copied(140, (2, "b", "y"))
    sink_of(loaded).alter([dropped(150)])
    with pytest.raises(SinkFencedError):
        sink_of(loaded).replace(late)
    if is_made_again:
        sink_of(loaded).alter([created(TABLE.table_id, 200)])
        loaded.assert_holds()


@pytest.mark.parametrize(("made_ts", "dropped_ts"), [(200, 150), (120, 400)], ids=["dropped first", "made first"])
def test_late_writers_of_a_dropped_table_reach_no_other_table(loaded: Bed, made_ts: int, dropped_ts: int) -> None:
    """Their captures were suspended, and PostgreSQL's next table of the name has another number: the place had the
    records of both."""
    copied, task = loaded.copied(140, (2, "b", "y")), loaded.task(100, 140)
    made = created(17000, made_ts)
    sink_of(loaded).alter([dropped(dropped_ts)])
    sink_of(loaded).alter([made])
    other = made.after
    assert other is not None
    with pytest.raises((SinkFencedError, TableForeignError)):
        sink_of(loaded).replace(copied)
    with pytest.raises((SinkFencedError, TableForeignError)):
        loaded.commit(task, loaded.write(task, [insert(3, "c", "z", ts=120)]))
    loaded.assert_holds(table=other)
    assert loaded.flush(made_ts, 500, [insert(4, "d", "w", ts=450)], table=other, span=TableSpan(17000)).committed
    loaded.assert_holds((4, "d", "w"), table=other)


def test_a_table_that_is_not_there_has_no_mark(bed: Bed) -> None:
    sink_of(bed).mark_left(TABLE, Ts(150), time=SINCE)


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("other_id", [16384, 17000], ids=["same", "another number"])
def test_a_table_of_the_name_of_one_that_has_left_begins_empty(loaded: Bed, other_id: int) -> None:
    """MySQL's tables have the same number when they are made again, PostgreSQL's another."""
    sink_of(loaded).mark_left(TABLE, Ts(150), time=SINCE)
    for _ in range(2):
        sink_of(loaded).alter([created(other_id, 200)])
        sink_of(loaded).mark_left(TABLE, Ts(150), time=SINCE)
    assert mark(loaded) is None
    loaded.assert_holds()


def test_a_table_that_was_made_before_that_of_its_name_left_is_held(loaded: Bed) -> None:
    """It was taken for made, and its rows went to those of the other one."""
    sink_of(loaded).mark_left(TABLE, Ts(150), time=SINCE)
    made = TABLE.with_(table_id=17000, start_ts=Ts(140))
    columns = tuple(ColumnMove(item.name, item.type, None) for item in ARROW)
    schema = replace(table_schema(), table_id=17000)
    change = SchemaChange(Ts(140), SchemaChangeKind.CREATE, None, made, columns, schema, ARROW)
    for _ in range(2):
        with pytest.raises(WeirError) as refused:
            sink_of(loaded).alter([change])
        assert refused.value.scope is Scope.TABLE
    assert mark(loaded) == (150, WORDS)
    loaded.assert_holds((1, "a", "x"))
    copy = loaded.copied(200, (5, "e", "v"))
    sink_of(loaded).replace(replace(copy, table=made.with_(start_ts=Ts(200)), spans=even_spans(17000, 1)))
    loaded.assert_holds((5, "e", "v"))


def test_a_table_that_is_renamed_to_the_name_of_one_that_has_left_takes_its_place(loaded: Bed) -> None:
    other = TABLE.with_(table_id=17000, name="u")
    loaded.open().load(other, replace(table_schema(name="u"), table_id=17000), ARROW, [])
    columns = tuple(ColumnMove(item.name, item.type, item.name) for item in ARROW)
    schema = replace(table_schema(), table_id=17000)
    change = SchemaChange(Ts(200), SchemaChangeKind.RENAME, other, other.named("public", "t"), columns, schema, ARROW)
    with pytest.raises(TableHeldError, match="is taken"):
        sink_of(loaded).alter([change])
    sink_of(loaded).mark_left(TABLE, Ts(150), time=SINCE)
    for _ in range(2):
        sink_of(loaded).alter([change])
    assert mark(loaded) is None
    loaded.assert_holds()


def test_a_new_table_where_nothing_lies_is_not_marked_for_one_of_before(bed: Bed) -> None:
    made = TABLE.with_(start_ts=Ts(200))
    columns = tuple(ColumnMove(item.name, item.type, None) for item in ARROW)
    change = SchemaChange(Ts(200), SchemaChangeKind.CREATE, None, made, columns, table_schema(), ARROW)
    sink_of(bed).alter([change])
    sink_of(bed).mark_left(TABLE, Ts(150), time=SINCE)
    assert mark(bed) is None


def test_a_copy_of_another_table_takes_the_place_of_one_that_has_left(loaded: Bed) -> None:
    sink_of(loaded).mark_left(TABLE, Ts(150), time=SINCE)
    copy = loaded.copied(200, (5, "e", "v"))
    other = copy.table.with_(table_id=17000)
    sink_of(loaded).replace(replace(copy, table=other, spans=even_spans(17000, 1)))
    assert mark(loaded) is None
    loaded.assert_holds((5, "e", "v"))


@pytest.mark.parametrize("kind", ["delta-upsert", "delta-changelog", "delta-history"])
@pytest.mark.parametrize("is_dropped", [False, True], ids=["left", "dropped"])
def test_a_copy_of_another_table_is_put_in_place_by_whoever_comes_after_a_crash(
    kind: str, is_dropped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Delta table's mark and its rows are two commits: between them it was nobody's, and the copy was refused."""
    bed = Bed.of(IMPLEMENTATIONS[kind], tmp_path)
    bed.load((1, "a", "x"))
    if is_dropped:
        sink_of(bed).alter([dropped(150)])
    else:
        sink_of(bed).mark_left(TABLE, Ts(150), time=SINCE)
    copy = bed.copied(200, (5, "e", "v"))
    other = replace(copy, table=copy.table.with_(table_id=17000), spans=even_spans(17000, 1))
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "create_write_transaction", killed)
        with pytest.raises(KeyboardInterrupt):
            sink_of(bed).replace(other)
    sink_of(bed).replace(other)
    bed.assert_at(200, *other.spans)
    assert mark(bed) is None
    bed.assert_holds((5, "e", "v"))


@pytest.mark.parametrize("kind", ["delta-upsert", "delta-changelog"])
def test_a_place_that_is_taken_over_loses_its_mark_also_after_a_crash(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table was dropped later than the new one was made. With its mark, the new one would lose its place."""
    bed = Bed.of(IMPLEMENTATIONS[kind], tmp_path)
    bed.load((1, "a", "x"))
    other = TABLE.with_(table_id=17000, start_ts=Ts(149))
    made = SchemaChange(Ts(150), SchemaChangeKind.CREATE, None, other, (), table_schema(ARROW), ARROW)
    sink_of(bed).alter([dropped(300)])
    with monkeypatch.context() as patched:
        patched.setattr(TableAlterer, "set_table_description", killed)
        with pytest.raises(KeyboardInterrupt):
            sink_of(bed).alter([made])
    sink_of(bed).alter([made])
    assert dropping.gone_ts(DeltaTable(sink_of(bed).place(other).location)) is None
    bed.assert_holds(table=other)


def killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_table_that_was_split_comes_again_as_one_and_is_split_again(loaded: Bed) -> None:
    """Nobody who still writes its spans of before is taken for a writer of the new ones."""
    order = SpanRepartition((SPAN,), even_spans(16384, 2), Ts(100), 1)
    sink_of(loaded).repartition(TABLE, order)
    late = [loaded.task(100, 190, span=span) for span in order.new]
    rows = [insert(number, "late", "x", ts=110) for number in range(2, 20)]
    sink_of(loaded).mark_left(TABLE, Ts(150), time=SINCE)
    sink_of(loaded).replace(loaded.copied(200, (1, "a", "x")))
    for task in late:
        assert is_refused(loaded, task, rows)
    loaded.assert_holds((1, "a", "x"))
    again = SpanRepartition((SPAN,), even_spans(16384, 2), Ts(200), 1)
    assert sink_of(loaded).repartition(TABLE, again) == 200
    for span in again.new:
        loaded.assert_at(200, span)
        assert loaded.flush(200, 300, [delete(1, None, None, ts=250)], span=span).error == ""
    loaded.assert_holds()
