"""Transactions that are too large to be folded at once, into an upserted table: against what a dictionary says."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.ports.sink import FlushTask, SpanRepartition
from agent.rows.batches import SegmentRef
from agent.rows.changes import BEFORE_KEY, Changes
from agent.rows.spans import keep_span
from agent.sinks import open_sink
from agent.sinks.delta.sink import DeltaSink
from agent.sinks.delta.table import commit
from agent.sinks.delta.upsert import by_vectors
from agent.sinks.delta.upsert import large as delta_large
from agent.sinks.delta.upsert import stored as delta_stored
from owner.scheduler.spans import even_spans
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord
from tests.integration.agent.sinks.delta.test_sink import KEYED, SPAN, flush, loaded, rows, task
from tests.integration.agent.sinks.delta.test_vectors import rows as stored
from tests.unit.agent.changes_build import (
    ARROW,
    UNCHANGED,
    Change,
    changes,
    delete,
    insert,
    table_schema,
    truncate,
    update,
)

Rows = dict[int, tuple[Any, ...]]


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_large, "_WHOLE_BYTES", 0)


def heavy(order: FlushTask) -> FlushTask:
    """As if its segments were large: 20 parts."""
    segment = SegmentRef("", 1, 1, Ts(101), Ts(200), Ts(200), bytes=20 << 20)
    return replace(order, segments=(segment,))


def holding(directory: Path, held: Rows, *, vectors: bool) -> DeltaSink:
    """The rows in three files."""
    uri = f"delta+file://{directory}?deletion_vectors={str(vectors).lower()}"
    sink = open_sink(uri, changefeed="feed", mode=SinkMode.UPSERT)
    assert isinstance(sink, DeltaSink)
    everything = sorted((key, *row) for key, row in held.items())
    thirds = [everything[at::3] for at in range(3)]
    staged = [
        file
        for number, third in enumerate(thirds)
        for file in sink.stage(KEYED, str(number), iter([changes([insert(*row) for row in third]).after]), Ts(100))
    ]
    sink.load(KEYED, table_schema(), ARROW, staged)
    return sink


def version(sink: DeltaSink) -> int:
    return int(DeltaTable(sink.place(KEYED).location).version())


def files(sink: DeltaSink) -> list[str]:
    return list(DeltaTable(sink.place(KEYED).location).file_uris())


def gone(key: int) -> Change:
    return delete(key, None, None, before_kind=BEFORE_KEY)


def moved(old: int, new: int, *row: Any) -> Change:
    return update(new, *row, before=(old, None, None), before_kind=BEFORE_KEY)


def test_large_segments_may_hold_nothing_of_the_range(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=[(1, "a", "x")])
    result = flush(sink, heavy(task(sink, 100, 200)))
    assert (result.committed, result.rows, result.error) == (False, 0, "")
    assert sink.committed_ts(KEYED, SPAN) == 100


def test_very_many_new_rows_come_part_by_part_and_in_one_commit(tmp_path: Path) -> None:
    """What the transaction itself changes and deletes of them is not there."""
    sink = loaded(tmp_path, rows=[(-1, "a", "x")])
    before = version(sink)
    parts = [changes([insert(at, "n", "n") for at in range(start, start + 100)]) for start in range(0, 1_000, 100)]
    parts.append(changes([update(at, "u", "u") for at in range(0, 1_000, 10)]))
    parts.append(changes([gone(at) for at in range(5, 1_000, 10)]))
    order = heavy(task(sink, 100, 200))
    result = flush(sink, order, *parts)
    assert (result.committed, result.rows) == (True, 1_200)
    assert version(sink) == before + 1
    assert len(files(sink)) == 1 + 1
    left = {at: ("u" if at % 10 == 0 else "n") for at in range(1_000) if at % 10 != 5} | {-1: "a"}
    assert dict(rows(sink, "id", "name")) == left
    assert flush(sink, order, *parts).committed
    assert len(rows(sink)) == len(left)


@pytest.mark.matrix
@pytest.mark.parametrize("vectors", [True, False])
def test_whatever_it_does_it_is_one_commit_and_nothing_of_it_is_merged_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: bool
) -> None:
    """Keys change, within a part and from one to another, also again and again, and come back; values are left out."""
    _refuse_merges(monkeypatch)
    monkeypatch.setattr(by_vectors, "_SMALL_BYTES", 0)
    chance = random.Random(7)
    expected: Rows = dict.fromkeys(range(3000), ("a", "x"))
    sink = holding(tmp_path, expected, vectors=vectors)
    for step in range(4):
        parts = [changes(list(_some_changes(chance, expected, 400))) for _ in range(5)]
        before = version(sink)
        order = heavy(task(sink, 100 + step, 101 + step))
        assert flush(sink, order, *parts).committed
        assert version(sink) == before + 1
        assert stored(sink) == expected
        assert flush(sink, order, *parts).committed
        assert version(sink) == before + 1
    assert sink.committed_ts(KEYED, SPAN) == 104


def _halves(sink: DeltaSink) -> tuple[TableSpan, TableSpan]:
    first, second = even_spans(KEYED.table_id, 2)
    sink.repartition(KEYED, SpanRepartition((SPAN,), (first, second), Ts(100), 1))
    return first, second


def _some_changes(chance: random.Random, expected: Rows, count: int) -> list[Change]:
    made: list[Change] = []
    for number in range(count):
        key, value = chance.choice(list(expected)), (f"n{number}", chance.choice(["x", None]))
        new = chance.randrange(100_000)
        match chance.randrange(6):
            case 0 if new not in expected:
                expected[new] = value
                made.append(insert(new, *value))
            case 1:
                del expected[key]
                made.append(gone(key))
            case 2 if new not in expected:
                del expected[key]
                expected[new] = value
                made.append(moved(key, new, *value))
            case 3:
                expected[key] = value
                made.append(update(key, *value))
            case 4:
                expected[key] = (expected[key][0], value[1])
                made.append(update(key, UNCHANGED, value[1]))
            case _:
                expected[key] = (value[0], expected[key][1])
                made.append(update(key, value[0], UNCHANGED))
    return made


def _refuse_merges(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("merged as a whole")

    monkeypatch.setattr("agent.sinks.delta.upsert.merge._apply", refuse)
    monkeypatch.setattr(by_vectors, "apply", refuse)


def test_parts_are_put_together_to_files_of_a_moderate_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_vectors, "_FILE_BYTES", 20_000)
    sink = loaded(tmp_path, rows=[(-1, "a", "x")])
    large = changes([insert(at, "n", "n") for at in range(4_000)])
    assert flush(sink, heavy(task(sink, 100, 200)), large).committed
    assert 3 <= len(files(sink)) <= 7
    assert len(rows(sink)) == 4_001


def test_of_a_file_that_loses_little_only_the_vector_changes(tmp_path: Path) -> None:
    sink = holding(tmp_path, dict.fromkeys(range(3000), ("a", "x")), vectors=True)
    before = files(sink)
    assert flush(sink, heavy(task(sink, 100, 200)), changes([gone(at) for at in range(0, 300, 3)])).committed
    assert files(sink) == before
    assert len(stored(sink)) == 2_900


def test_a_file_that_loses_all_goes(tmp_path: Path) -> None:
    sink = holding(tmp_path, dict.fromkeys(range(3000), ("a", "x")), vectors=True)
    assert flush(sink, heavy(task(sink, 100, 200)), changes([gone(at) for at in range(0, 3_000, 3)])).committed
    assert len(files(sink)) == 2
    assert len(stored(sink)) == 2_000


def test_one_span_of_a_table_leaves_the_others_alone(tmp_path: Path) -> None:
    """A key that moves out of the span is a delete, and the other span's insert."""
    held = dict.fromkeys(range(300), ("a", "x"))
    sink = holding(tmp_path, held, vectors=True)
    span, _ = _halves(sink)
    order = heavy(replace(task(sink, 100, 200), span=span))
    everything = changes([update(at, "b", "y") for at in range(300)])
    mine = keep_span(everything, span, key=KEYED.key)
    assert 0 < len(mine) < 300
    assert flush(sink, order, mine).committed
    ours = set(mine.after.column("id").to_pylist())
    assert stored(sink) == {at: ("b", "y") if at in ours else ("a", "x") for at in range(300)}


def test_a_replayed_range_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before ``consistent_ts`` an insert may be there already."""
    _refuse_merges(monkeypatch)
    sink = loaded(tmp_path, rows=[(at, "a", "x") for at in range(50)])
    replayed = KEYED.with_(consistent_ts=Ts(300))
    again = changes([insert(at, "m", "m") for at in range(2, 60)])
    assert flush(sink, heavy(task(sink, 100, 200, table=replayed)), again).committed
    assert stored(sink) == {at: ("m", "m") if at >= 2 else ("a", "x") for at in range(60)}


@pytest.mark.parametrize("vectors", [True, False])
def test_what_every_update_leaves_out_is_read_once_from_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: bool
) -> None:
    """``binlog_row_image=MINIMAL``: of some rows the one value, of some the other."""
    _refuse_merges(monkeypatch)
    read: list[str] = []
    inner = delta_stored.ReplacedRows.values

    def values(self: delta_stored.ReplacedRows, *arguments: Any) -> Any:
        read.append(self.path)
        return inner(self, *arguments)

    monkeypatch.setattr(delta_stored.ReplacedRows, "values", values)
    sink = holding(tmp_path, {at: (f"name {at}", f"big {at}") for at in range(3_000)}, vectors=vectors)
    parts = [
        changes([update(at, "b", UNCHANGED) for at in range(0, 3_000, 2)]),
        changes([update(at, UNCHANGED, "y") for at in range(0, 3_000, 3)]),
        changes([insert(at, "n", "z") for at in range(3_000, 3_100)]),
    ]
    before = version(sink)
    assert flush(sink, heavy(task(sink, 100, 200)), *parts).committed
    assert version(sink) == before + 1
    assert len(read) == len(set(read)) == 3
    changed = {at: ("b" if at % 2 == 0 else f"name {at}", "y" if at % 3 == 0 else f"big {at}") for at in range(3_000)}
    assert stored(sink) == changed | dict.fromkeys(range(3_000, 3_100), ("n", "z"))


@pytest.mark.parametrize("vectors", [True, False])
def test_all_rows_written_again_behind_a_truncate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vectors: bool
) -> None:
    """What stands before it is void, also what would have to be merged as a whole."""
    _refuse_merges(monkeypatch)
    sink = holding(tmp_path, dict.fromkeys(range(300), ("a", "x")), vectors=vectors)
    before = version(sink)
    parts = [
        changes([insert(at, "early", "x") for at in range(1_000, 1_100)]),
        changes([moved(7, 7_000, "m", UNCHANGED), truncate(), insert(1, "n", "z")]),
        changes([insert(at, "n", "z") for at in range(2, 600)]),
        changes([update(at, "u", UNCHANGED) for at in range(0, 600, 2) if at]),
    ]
    order = heavy(task(sink, 100, 200))
    assert flush(sink, order, *parts).committed
    assert version(sink) == before + 1
    assert stored(sink) == {at: ("n" if at % 2 else "u", "z") for at in range(1, 600)}
    assert flush(sink, order, *parts).committed
    assert version(sink) == before + 1


def test_nothing_but_a_truncate_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse_merges(monkeypatch)
    sink = holding(tmp_path, dict.fromkeys(range(300), ("a", "x")), vectors=True)
    parts = [changes([insert(at, "n", "z") for at in range(1_000, 1_100)]), changes([truncate()])]
    assert flush(sink, heavy(task(sink, 100, 200)), *parts).committed
    assert stored(sink) == {}


def test_one_span_truncates_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse_merges(monkeypatch)
    held = dict.fromkeys(range(300), ("a", "x"))
    sink = holding(tmp_path, held, vectors=True)
    span, _ = _halves(sink)
    order = heavy(replace(task(sink, 100, 200), span=span))
    anew = [keep_span(changes([truncate(), *(insert(at, "b", "y") for at in range(300))]), span, key=KEYED.key)]
    assert flush(sink, order, *anew).committed
    ours = set(anew[0].after.column("id").to_pylist()) - {None}
    assert 0 < len(ours) < 300
    assert stored(sink) == {at: ("b", "y") if at in ours else ("a", "x") for at in range(300)}


def test_a_key_that_changes_while_a_value_is_left_out_is_merged_as_a_whole(tmp_path: Path) -> None:
    sink = loaded(tmp_path, rows=[(1, "a", "x"), (2, "a", "y")])
    assert flush(sink, heavy(task(sink, 100, 200)), changes([moved(1, 5, "b", UNCHANGED)])).committed
    assert stored(sink) == {5: ("b", "x"), 2: ("a", "y")}


def test_new_rows_with_another_column_beside_changes_are_merged_as_a_whole(tmp_path: Path) -> None:
    """The one part's rows fit the table, the other's do not yet."""
    sink = loaded(tmp_path, rows=[(1, "a", "x")])
    wide = pa.schema([*ARROW, pa.field("late", pa.string())])
    parts = [changes([update(1, "b", "y")]), changes([insert(at, "n", "z", "l") for at in range(2, 6)], arrow=wide)]
    assert flush(sink, heavy(task(sink, 100, 200)), *parts).committed
    found = {row[0]: row[1:] for row in rows(sink, "id", "name", "late")}
    assert found == {1: ("b", None)} | dict.fromkeys(range(2, 6), ("n", "l"))


def test_a_new_row_that_moves_and_leaves_a_value_out_keeps_it(tmp_path: Path) -> None:
    """The value stands in the part that the row has left."""
    sink = loaded(tmp_path)
    moves = [moved(at, at + 1_000, "m", UNCHANGED) for at in range(40)]
    large = changes([*(insert(at, "n", f"big {at}") for at in range(40)), *moves])
    assert flush(sink, heavy(task(sink, 100, 200)), large).committed
    assert stored(sink) == {at + 1_000: ("m", f"big {at}") for at in range(40)}


def test_another_commit_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has done to the files is respected."""
    sink = holding(tmp_path, dict.fromkeys(range(300), ("a", "x")), vectors=True)
    first, second = _halves(sink)
    everything = changes([update(at, "b", UNCHANGED) for at in range(0, 300, 2)])
    inner = commit.append_to
    pending = [heavy(replace(task(sink, 100, 200), span=second))]

    def append_to(*arguments: Any) -> None:
        if pending:
            order = pending.pop()
            assert flush(sink, order, keep_span(everything, second, key=KEYED.key)).committed
        inner(*arguments)

    monkeypatch.setattr(commit, "append_to", append_to)
    order = heavy(replace(task(sink, 100, 200), span=first))
    assert flush(sink, order, keep_span(everything, first, key=KEYED.key)).committed
    assert stored(sink) == {at: ("a", "x") if at % 2 else ("b", "x") for at in range(300)}


WIDE = pa.schema([("amount", pa.decimal128(20, 3)), ("at", pa.time64("us")), ("name", pa.string()), ("n", pa.int64())])
WIDE_KEY = ("amount", "at", "name")
WIDE_TABLE = TableRecord(table_id=16384, schema_name="public", name="t", key=WIDE_KEY, start_ts=Ts(100))


def test_keys_of_several_columns_that_are_stored_as_other_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refuse_merges(monkeypatch)
    keys = [
        (Decimal(amount) / 8, time(hour, 5, 7, fraction), name)
        for amount in range(8)
        for hour, fraction in ((0, 0), (23, 120_000))
        for name in ("", "ä", "x" * 30)
    ]
    sink = open_sink(f"delta+file://{tmp_path}", changefeed="feed", mode=SinkMode.UPSERT)
    assert isinstance(sink, DeltaSink)
    schema = table_schema(WIDE, key=WIDE_KEY)
    held = _wide([insert(*key, 1) for key in keys])
    sink.load(WIDE_TABLE, schema, WIDE, sink.stage(WIDE_TABLE, "0", iter([held.after]), Ts(100)))
    large = _wide([update(*key, 2) for key in keys[::2]] + [delete(*key, None) for key in keys[1::4]])
    assert flush(sink, heavy(task(sink, 100, 200, table=WIDE_TABLE)), large).committed
    left = sorted(row[-1] for row in rows(sink, "amount", "n"))
    assert left == [1] * (len(keys[1::2]) - len(keys[1::4])) + [2] * len(keys[::2])


def _wide(made: Sequence[Change]) -> Changes:
    return changes(made, arrow=WIDE, key=WIDE_KEY)
