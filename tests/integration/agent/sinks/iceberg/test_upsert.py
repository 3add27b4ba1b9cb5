"""Upserts: where rows are looked for, what a large transaction is folded by, and what spans do to each other."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from agent.errors import LeftOutValueError
from agent.ports.sink import SpanRepartition, Splits
from agent.sinks.common.folds import parts as fold
from agent.sinks.iceberg.table import rows
from owner.scheduler.spans import even_spans
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from tests.contracts.sink_bed import SPAN, TABLE, Bed
from tests.integration.agent.sinks.iceberg.lake import table_of
from tests.unit.agent.changes_build import ARROW, UNCHANGED, Change, delete, insert, table_schema, truncate, update


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(f"iceberg+file://{tmp_path}/lake", SinkMode.UPSERT)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Data files that were opened."""
    found: list[str] = []
    inner = rows.opened

    def opened(io: Any, path: str, schema: Any) -> Any:
        found.append(path)
        return inner(io, path, schema)

    monkeypatch.setattr(rows, "opened", opened)
    return found


def test_only_files_that_may_hold_a_key_are_opened(bed: Bed, opened: list[str]) -> None:
    staged = []
    for part in range(4):
        batch = _batch(range(part * 100, part * 100 + 100))
        staged += bed.open().writer().stage(TABLE, f"{part}-0", iter([batch]), Ts(100))
    bed.open().load(TABLE, table_schema(), ARROW, staged)
    opened.clear()
    bed.flush(100, 200, [update(250, "u", "x", ts=110)])
    assert opened == [staged[2].path]
    opened.clear()
    bed.flush(200, 300, [insert(1000, "new", "x", ts=210)])
    assert opened == [], "the source says that an inserted key is new"


def _batch(ids: range) -> pa.RecordBatch:
    columns = [pa.array(ids, pa.int64()), pa.array([f"n{at}" for at in ids]), pa.array(["b"] * len(ids))]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "_WHOLE_BYTES", 100)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("seed", range(3))
def test_a_large_transaction_is_folded_by_parts(bed: Bed, seed: int) -> None:
    """With the same result as one that is folded as a whole: values left out, keys deleted and inserted again."""
    random = np.random.default_rng(seed)
    held = {at: (at, f"n{at}", f"b{at}") for at in range(50)}
    bed.load(*held.values())
    some: list[Change] = []
    for number in range(200):
        ts, at = 101 + number, int(random.integers(0, 80))
        if at not in held:
            held[at] = (at, f"i{number}", "r")
            some.append(insert(*held[at], ts=ts))
        elif random.random() < 0.3:
            del held[at]
            some.append(delete(at, None, None, ts=ts))
        else:
            held[at] = (at, f"u{number}", held[at][2])
            some.append(update(at, f"u{number}", UNCHANGED, ts=ts))
    assert bed.flush(100, 400, some[:100], some[100:]).committed
    bed.assert_holds(*held.values())
    bed.flush(400, 500, [update(0, "z", "z", ts=410)], [truncate(ts=420)], [insert(5, "after", "t", ts=430)])
    bed.assert_holds((5, "after", "t"))


@pytest.mark.usefixtures("small_parts")
def test_a_value_that_no_row_has_holds_the_table_by_parts_too(bed: Bed) -> None:
    bed.load((1, "a", "x"))
    with pytest.raises(LeftOutValueError):
        bed.flush(100, 200, [update(9, "n", UNCHANGED, ts=110)], [insert(10, "m", "x", ts=120)])
    bed.assert_at(100)


def test_a_truncate_of_one_span_keeps_the_rows_of_others(bed: Bed) -> None:
    bed.load(*((at, f"n{at}", "b") for at in range(100)))
    sink, spans = bed.open(), even_spans(SPAN.table_id, 2)
    assert isinstance(sink, Splits)
    sink.repartition(TABLE, SpanRepartition((SPAN,), spans, Ts(100), 1))
    some = [truncate(ts=110), insert(500, "new", "r", ts=120)]
    bed.flush(100, 200, some, span=spans[0])
    mid = set(_ids(bed))
    assert 0 < len(mid - {500}) < 100, "the other span's rows are there until it truncates"
    bed.flush(100, 200, some, span=spans[1])
    bed.assert_holds((500, "new", "r"))


def _ids(bed: Bed) -> Iterator[int]:
    for batch in bed.open().read_rows(TABLE, table_schema(), ARROW):  # type: ignore[attr-defined]
        yield from batch.column("id").to_pylist()


def test_rows_are_deleted_by_position_and_never_by_value(bed: Bed) -> None:
    bed.load(*((at, f"n{at}", "b") for at in range(100)))
    bed.flush(100, 200, [update(5, "u", "x", ts=110), delete(6, None, None, ts=120)])
    deletes = table_of(bed, TABLE).inspect.delete_files().to_pylist()
    assert [(row["content"], row["record_count"]) for row in deletes] == [(1, 2)]


def test_a_new_column_comes_with_the_rows_that_have_it(bed: Bed) -> None:
    bed.load((1, "a", "x"))
    wide = pa.schema([*ARROW, ("more", pa.int32())])
    assert bed.flush(100, 200, [insert(2, "b", "y", 7, ts=110)], arrow=wide).committed
    bed.assert_holds((1, "a", "x", None), (2, "b", "y", 7), arrow=wide)
