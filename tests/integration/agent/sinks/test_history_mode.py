"""History tables: each version of a row with its begin and end, beside a model that writes down every change."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent.errors import SinkUriError, TableHeldError
from agent.ports.sink import Alters, Maintains, ReadsBack, Repairs, Replaces, RowRepair, SpanRepartition, Splits
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks import open_sink, open_table
from owner.scheduler.spans import even_spans
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.schema_change import SchemaChangeKind
from tests.contracts.sink_bed import SPAN, TABLE, Bed
from tests.integration.agent.sinks.delta.readers import READERS
from tests.integration.agent.sinks.iceberg.lake import table_of
from tests.integration.agent.sinks.iceberg.readers import duckdb_rows
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

pytestmark = pytest.mark.sample(0.25)  # make matrix runs the others

_SINKS = ("iceberg", "delta")
_COLUMNS = ("_valid_from", "_valid_to", "_is_current")


@dataclass
class Model:
    """The versions that are to be there: ``[row, begin, end]``."""

    ended: list[tuple[tuple[Any, ...], int, int | None]] = field(default_factory=list)
    current: dict[int, tuple[tuple[Any, ...], int]] = field(default_factory=dict)

    def end(self, key: int, ts: int) -> tuple[Any, ...] | None:
        found = self.current.pop(key, None)
        if found is None:
            return None
        if found[1] < ts:
            self.ended.append((*found, ts))
        return found[0]

    def begin(self, row: tuple[Any, ...], ts: int) -> None:
        self.end(row[0], ts)
        self.current[row[0]] = (row, ts)

    @property
    def versions(self) -> list[tuple[Any, ...]]:
        now = [(*row, begin, None, True) for row, begin in self.current.values()]
        return sorted([*now, *((*row, begin, end, False) for row, begin, end in self.ended)], key=repr)


def _stored(bed: Bed) -> list[tuple[Any, ...]]:
    rows = open_table(bed.uri, TABLE.path).scan([*ARROW.names, *_COLUMNS]).read_all().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def _agrees(bed: Bed, model: Model) -> None:
    assert _stored(bed) == model.versions
    bed.assert_holds(*(row for row, _ in model.current.values()))


@pytest.fixture(params=_SINKS)
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Bed:
    return Bed(f"{request.param}+file://{tmp_path}/lake", SinkMode.HISTORY)


def _loaded(bed: Bed, *rows: tuple[Any, ...]) -> Model:
    bed.load(*rows)
    model = Model()
    for row in rows:
        model.begin(row, 100)
    return model


def _some(chance: random.Random, model: Model, ts: int, *, cuts: bool) -> list[Change]:
    """A transaction's changes, noted in the model."""
    made: list[Change] = []
    for _ in range(chance.randrange(1, 5)):
        keys, what = sorted(model.current), chance.random()
        if cuts and what < 0.04:
            for key in keys:
                model.end(key, ts)
            made.append(truncate(ts=ts))
        elif what < 0.3 or not keys:
            key = chance.randrange(30)
            if key in model.current:
                continue
            row = (key, chance.choice("abc"), chance.choice(["x", None]))
            model.begin(row, ts)
            made.append(insert(*row, ts=ts))
        elif what < 0.45:
            key = chance.choice(keys)
            model.end(key, ts)
            made.append(delete(key, None, None, ts=ts))
        elif what < 0.55:
            key, new = chance.choice(keys), chance.randrange(30)
            if new in model.current:
                continue
            before = model.end(key, ts)
            assert before is not None
            row = (new, chance.choice("abc"), before[2])
            model.begin(row, ts)
            made.append(update(new, row[1], UNCHANGED, before=(key, None, None), before_kind=1, ts=ts))
        else:
            key = chance.choice(keys)
            row = (key, chance.choice("abc"), model.current[key][0][2])
            is_left_out = chance.random() < 0.5
            if not is_left_out:
                row = (*row[:2], chance.choice(["x", "y", None]))
            model.begin(row, ts)
            made.append(update(*row[:2], UNCHANGED if is_left_out else row[2], ts=ts))
    return made


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.matrix) for seed in range(2, 12))])
def test_every_version_is_kept(seed: int, bed: Bed) -> None:
    chance = random.Random(seed)
    model = _loaded(bed, *((key, "a", "x") for key in range(8)))
    ts = 100
    for turn in range(25):
        parts = [_some(chance, model, ts + at, cuts=seed % 2 == 0) for at in range(1, chance.randrange(2, 5))]
        result = bed.flush(ts, ts + 10, *(part for part in parts if part))
        assert result.error == ""
        assert (bed.at() == ts + 10) or not any(parts)
        recorded = bed.at()
        assert recorded is not None
        ts = int(recorded)
        if turn % 8 == 7:
            sink = bed.open()
            assert isinstance(sink, Maintains)
            sink.maintain(TABLE)
        if turn % 5 == 4:
            _agrees(bed, model)
    _agrees(bed, model)


def test_other_readers_see_the_same_versions(bed: Bed) -> None:
    model, chance = _loaded(bed, *((key, "a", "x") for key in range(8))), random.Random(4)
    for turn in range(6):
        some = _some(chance, model, 101 + turn * 10, cuts=turn == 3)
        assert bed.flush(100 + turn * 10, 110 + turn * 10, some).committed
    columns = (*ARROW.names, *_COLUMNS)
    found = [table.select(columns).to_pylist() for table in _read_by_others(bed)]
    assert found
    for rows in found:
        assert sorted((tuple(row.values()) for row in rows), key=repr) == model.versions


def _read_by_others(bed: Bed) -> Iterator[pa.Table]:
    if bed.uri.startswith("iceberg"):
        table = table_of(bed, TABLE)
        yield table.scan().to_arrow()
        yield duckdb_rows(table)
        return
    location = open_table(bed.uri, TABLE.path).location
    for reader in READERS:
        if reader.why_not() is None:
            yield reader.rows(location)


def test_a_large_transaction_is_folded_in_parts(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.sinks.common.folds.parts._WHOLE_BYTES", 1)
    model, chance = _loaded(bed, *((key, "a", "x") for key in range(8))), random.Random(3)
    for turn in range(4):
        some = [_some(chance, model, 101 + turn * 10, cuts=turn == 3) for _ in range(3)]
        assert bed.flush(100 + turn * 10, 110 + turn * 10, *some).committed
        _agrees(bed, model)


def test_times_are_beside_positions(bed: Bed) -> None:
    model = _loaded(bed, (1, "a", "x"))
    task = bed.task(100, 200)
    part = changes([update(1, "b", "x", ts=150)], commit_time=1_700_000_000.25)
    bed.commit(task, bed.open().writer().write(task, [part]))
    model.begin((1, "b", "x"), 150)
    _agrees(bed, model)
    rows = open_table(bed.uri, TABLE.path).scan(["name", "_valid_from_time", "_valid_to_time"]).read_all().to_pylist()
    times = {row["name"]: (row["_valid_from_time"], row["_valid_to_time"]) for row in rows}
    moment = times["a"][1]
    assert moment.timestamp() == 1_700_000_000.25
    assert times == {"a": (None, moment), "b": (moment, None)}


def test_a_copy_brings_its_differences_as_changes(bed: Bed) -> None:
    model = _loaded(bed, (1, "a", "x"), (2, "b", None), (3, "c", "y"))
    assert bed.flush(100, 200, [update(1, "aa", "x", ts=150)]).committed
    model.begin((1, "aa", "x"), 150)
    sink = bed.open()
    assert isinstance(sink, Replaces)
    for _ in range(2):
        sink.replace(bed.copied(300, (1, "aa", "x"), (2, "b", "z"), (4, "d", None)))
    model.begin((2, "b", "z"), 300)
    model.end(3, 300)
    model.begin((4, "d", None), 300)
    _agrees(bed, model)
    assert bed.flush(300, 400, [update(4, "dd", UNCHANGED, ts=350), delete(2, None, None, ts=360)]).error == ""
    model.begin((4, "dd", None), 350)
    model.end(2, 360)
    _agrees(bed, model)


def test_a_large_copy_is_compared_in_parts(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.sinks.common.history.copies.KEYS_MAX", 3)
    test_a_copy_brings_its_differences_as_changes(bed)


def test_a_repair_ends_what_was_wrong(bed: Bed) -> None:
    model = _loaded(bed, (1, "a", "x"), (2, "b", None))
    sink = bed.open()
    assert isinstance(sink, Repairs)
    made = changes([update(1, "right", "x", ts=100), delete(2, None, None, ts=100), insert(3, "new", "n", ts=100)])
    sink.repair(RowRepair(TABLE, (SPAN,), Ts(100), made))
    model.begin((1, "right", "x"), 100)
    model.end(2, 100)
    model.begin((3, "new", "n"), 100)
    _agrees(bed, model)


def test_spans_end_their_own_rows(bed: Bed) -> None:
    model = _loaded(bed, *((key, "a", "x") for key in range(20)))
    sink, halves = bed.open(), even_spans(TABLE.table_id, 2)
    assert isinstance(sink, Splits)
    sink.repartition(TABLE, SpanRepartition((SPAN,), halves, Ts(100), 1))
    some = [update(3, "b", "x", ts=140), truncate(ts=150), insert(4, "c", "z", ts=160)]
    for span in halves:
        assert bed.flush(100, 200, some, span=span).error == ""
    model.begin((3, "b", "x"), 140)
    for key in range(20):
        model.end(key, 150)
    model.begin((4, "c", "z"), 160)
    _agrees(bed, model)


def test_a_column_that_is_dropped_stays_in_the_history(bed: Bed) -> None:
    _loaded(bed, (1, "a", "x"))
    sink = bed.open()
    assert isinstance(sink, Alters)
    narrow = pa.schema([("id", pa.int64()), ("title", pa.string())])
    moves = (ColumnMove("id", pa.int64(), "id"), ColumnMove("title", pa.string(), "name"))
    sink.alter([SchemaChange(Ts(101), SchemaChangeKind.ALTER, TABLE, TABLE, moves, table_schema(narrow), narrow)])
    assert bed.flush(100, 200, [update(1, "b", ts=150)], arrow=narrow).error == ""
    rows = open_table(bed.uri, TABLE.path).scan(["title", "big", *_COLUMNS]).read_all().to_pylist()
    found = sorted((tuple(row.values()) for row in rows), key=repr)
    assert found == [("a", "x", 100, 150, False), ("b", None, 150, None, True)]
    bed.assert_holds((1, "b"), arrow=narrow)
    taken = (*moves, ColumnMove("_valid_to", pa.int64(), None))
    wide = pa.schema([*narrow, ("_valid_to", pa.int64())])
    with pytest.raises(TableHeldError, match="source column _valid_to has the name of a column of history tables"):
        sink.alter([SchemaChange(Ts(201), SchemaChangeKind.ALTER, TABLE, TABLE, taken, table_schema(wide), wide)])


def test_the_cost_of_a_flush_does_not_grow_with_the_history(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that changes all the time: no ended version is read again."""
    _loaded(bed, *((key, "a", "x") for key in range(100)))
    reads = list[object]()

    class Counted(pq.ParquetFile):  # type: ignore[misc]  # pyarrow has no types
        def __init__(self, source: Any, **how: Any) -> None:
            reads.append(source)
            super().__init__(source, **how)

    counts = []
    for turn in range(20):
        before = len(reads)
        with monkeypatch.context() as patched:
            patched.setattr(pq, "ParquetFile", Counted)
            assert bed.flush(100 + turn, 101 + turn, [update(1, f"t{turn}", "x", ts=101 + turn)]).committed
        counts.append(len(reads) - before)
    assert reads
    assert max(counts[10:]) <= max(counts[:10])
    assert len(_stored(bed)) == 120


@pytest.mark.parametrize("scheme", _SINKS)
def test_options_of_upserted_tables_are_refused(scheme: str, tmp_path: Path) -> None:
    uri = f"{scheme}+file://{tmp_path}/lake?soft_delete=true"
    with pytest.raises(SinkUriError, match="soft_delete=true is one of upserted tables"):
        open_sink(uri, changefeed="feed", mode=SinkMode.HISTORY)


def test_diff_reads_what_is_current(bed: Bed) -> None:
    _loaded(bed, (1, "a", "x"))
    bed.flush(100, 200, [update(1, "b", "x", ts=150), delete(1, None, None, ts=160), insert(1, "c", "x", ts=170)])
    sink = bed.open()
    assert isinstance(sink, ReadsBack)
    [found] = [row for batch in sink.read_rows(TABLE, table_schema(), ARROW) for row in batch.to_pylist()]
    assert found == {"id": 1, "name": "c", "big": "x"}
