"""Several spans of one Delta table: commits side by side, TRUNCATE, cuts, and a stale writer at a cut."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.errors import SinkFencedError, TableForeignError, TableHeldError
from agent.ports.sink import FeedContext, FlushResult, FlushTask, SpanRepartition
from agent.rows.changes import BEFORE_KEY
from agent.rows.spans import keep_span
from agent.sinks import open_sink
from agent.sinks.delta.sink import DeltaSink
from owner.scheduler.spans import even_spans
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord
from tests.unit.agent.changes_build import ARROW, Change, changes, delete, insert, table_schema, truncate, update

pytestmark = pytest.mark.sample(0.25)  # make matrix runs the others

TABLE = TableRecord(table_id=16384, schema_name="public", name="t", key=("id",), start_ts=Ts(100))
ID = TABLE.table_id
both_modes = pytest.mark.parametrize("mode", [SinkMode.UPSERT, SinkMode.CHANGELOG])


@dataclass
class Rig:
    """A table, the changes of its source, and its spans, each with a writer that continues from its record."""

    sink: DeltaSink
    mode: SinkMode
    log: list[Change]
    cuts: int = 0
    spans: tuple[TableSpan, ...] = (TableSpan(ID),)

    @classmethod
    def at(cls, directory: Path, mode: SinkMode, log: Sequence[Change] = ()) -> "Rig":
        sink = open_sink(f"delta+file://{directory}", changefeed="feed", mode=mode)
        assert isinstance(sink, DeltaSink)
        sink.load(TABLE, table_schema(), ARROW, [])
        return cls(sink, mode, list(log))

    def recorded(self, span: TableSpan) -> Ts:
        ts = self.sink.committed_ts(TABLE, span)
        assert ts is not None
        return ts

    def task(self, span: TableSpan, to_ts: int, *, from_ts: int | None = None) -> FlushTask:
        start = self.recorded(span) if from_ts is None else Ts(from_ts)
        return FlushTask(FeedContext("feed", "", self.mode), span, TABLE, (), start, Ts(to_ts))

    def written(self, task: FlushTask) -> FlushResult:
        part = [change for change in self.log if task.from_ts < change.commit_ts <= task.to_ts]
        return self.sink.write(task, iter([keep_span(changes(part), task.span, key=TABLE.key)] if part else []))

    def flush(self, span: TableSpan, to_ts: int) -> FlushResult:
        task = self.task(span, to_ts)
        [result] = self.sink.commit([task], [self.written(task)])
        return result

    def flush_all(self, to_ts: int) -> None:
        for span in self.spans:
            assert self.flush(span, to_ts).error == ""

    def order(self, count: int, ts: int) -> SpanRepartition:
        return SpanRepartition(self.spans, even_spans(ID, count), Ts(ts), self.cuts + 1)

    def cut(self, count: int, ts: int) -> None:
        order = self.order(count, ts)
        assert self.sink.repartition(TABLE, order) == ts
        self.spans, self.cuts = order.new, order.number

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        names = list(columns) or ["id", "name"]
        table = DeltaTable(self.sink.place(TABLE).location).to_pyarrow_table(columns=names)
        return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)

    def version(self) -> int:
        return DeltaTable(self.sink.place(TABLE).location).version()


def inserts(count: int, *, ts: int) -> list[Change]:
    return [insert(key, f"n{key}", "x", ts=ts) for key in range(count)]


@both_modes
def test_a_cut_moves_records_and_nothing_else(tmp_path: Path, mode: SinkMode) -> None:
    rig = Rig.at(tmp_path, mode, inserts(50, ts=110))
    rig.flush_all(120)
    before = rig.rows()
    rig.cut(4, 150)
    assert [rig.recorded(span) for span in rig.spans] == [150] * 4
    assert rig.rows() == before
    rig.log += [update(key, "new", "y", ts=160) for key in range(50)]
    rig.flush_all(170)
    if mode is SinkMode.UPSERT:
        assert rig.rows() == sorted(((key, "new") for key in range(50)), key=repr)
    else:
        assert len(rig.rows()) == 100
    rig.cut(1, 170)
    rig.log.append(insert(99, "last", "z", ts=180))
    rig.flush_all(190)
    assert (99, "last") in rig.rows()
    assert rig.recorded(TableSpan(ID)) == 190


@both_modes
def test_the_same_cut_again_changes_nothing(tmp_path: Path, mode: SinkMode) -> None:
    """The answer was lost, or its owner: the next one asks again, also when the new spans have gone on."""
    rig = Rig.at(tmp_path, mode, inserts(9, ts=160))
    order = rig.order(3, 150)
    rig.cut(3, 150)
    rig.flush(rig.spans[0], 170)
    before = rig.version(), rig.rows(), [rig.recorded(span) for span in rig.spans]
    assert rig.sink.repartition(TABLE, order) == 150
    assert (rig.version(), rig.rows(), [rig.recorded(span) for span in rig.spans]) == before


@both_modes
def test_a_late_writer_of_an_old_span_is_refused(tmp_path: Path, mode: SinkMode) -> None:
    rig = Rig.at(tmp_path, mode, inserts(9, ts=110))
    late = rig.task(TableSpan(ID), 120)
    done = rig.written(late) if mode is SinkMode.CHANGELOG else None  # an upsert commits as it writes
    rig.cut(2, 150)
    if done is not None:
        [result] = rig.sink.commit([late], [done])
        assert (result.committed, result.error_code) == (False, "SinkFenced")
    else:
        with pytest.raises(SinkFencedError, match="has other spans than"):
            rig.written(late)
    with pytest.raises(SinkFencedError, match="has other spans than"):
        rig.sink.committed_ts(TABLE, TableSpan(ID))
    assert rig.rows() == []


@both_modes
def test_a_span_that_is_further_is_reported_and_nothing_changes(tmp_path: Path, mode: SinkMode) -> None:
    rig = Rig.at(tmp_path, mode, inserts(9, ts=160))
    rig.cut(2, 150)
    rig.flush(rig.spans[1], 170)
    version = rig.version()
    assert rig.sink.repartition(TABLE, rig.order(1, 160)) == 170
    assert rig.version() == version
    rig.flush_all(170)
    rig.cut(1, 170)


@both_modes
def test_cut_and_late_writer_at_once(tmp_path: Path, mode: SinkMode) -> None:
    """Either the writer was first, and the repartition learns it, or the cut was, and the writer is refused."""
    outcomes = set()
    for attempt in range(12):
        rig = Rig.at(tmp_path / str(attempt), mode, inserts(40, ts=110))
        late, order = rig.task(TableSpan(ID), 120), rig.order(2, 115)
        with ThreadPoolExecutor(2) as pool:
            written = pool.submit(_caught, rig, late)
            cut = pool.submit(rig.sink.repartition, TABLE, order)
            was_written, furthest = written.result(), cut.result()
        assert was_written == (furthest == 120)
        assert len(rig.rows()) == (40 if was_written else 0)
        outcomes.add(was_written)
    assert outcomes <= {True, False}


def _caught(rig: Rig, task: FlushTask) -> bool:
    try:
        [result] = rig.sink.commit([task], [rig.written(task)])
    except SinkFencedError:
        return False
    return not result.error


@both_modes
def test_a_cut_that_comes_after_a_newer_one_is_refused(tmp_path: Path, mode: SinkMode) -> None:
    rig = Rig.at(tmp_path, mode)
    first = rig.order(4, 150)
    rig.cut(4, 150)
    rig.cut(1, 150)  # nothing was written in between: the old record looks like the new one
    with pytest.raises(SinkFencedError, match="stale"):
        rig.sink.repartition(TABLE, first)
    assert rig.recorded(TableSpan(ID)) == 150


@both_modes
def test_a_sink_that_was_set_back_is_not_cut(tmp_path: Path, mode: SinkMode) -> None:
    rig = Rig.at(tmp_path, mode)
    with pytest.raises(TableHeldError, match="set back or replaced"):
        rig.sink.repartition(TABLE, replace(rig.order(2, 150), number=3))
    with pytest.raises(TableHeldError, match="set back or replaced"):
        rig.sink.repartition(TABLE, SpanRepartition(even_spans(ID, 3), even_spans(ID, 2), Ts(150), 1))


def test_a_standing_counts_living_records_only(tmp_path: Path) -> None:
    rig = Rig.at(tmp_path, SinkMode.UPSERT)
    rig.cut(2, 150)
    assert rig.sink.visible(TABLE, [TableSpan(ID), *rig.spans]).committed_ts == 150
    assert rig.sink.visible(TABLE, [TableSpan(ID)]).committed_ts == 0


def test_a_table_of_an_earlier_changefeed_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    rig = Rig.at(tmp_path, SinkMode.UPSERT)
    rig.cut(2, 150)
    with pytest.raises(TableForeignError, match=r"an earlier changefeed .* loaded \(it is split"):
        rig.sink.load(TABLE, table_schema(), ARROW, [])


def test_a_span_truncates_its_own_rows_at_its_own_pace(tmp_path: Path) -> None:
    rig = Rig.at(tmp_path, SinkMode.UPSERT, inserts(200, ts=110))
    rig.flush_all(120)
    rig.cut(3, 120)
    rig.log += [
        truncate(ts=130),
        insert(500, "after", "y", ts=135),
        *(insert(k, "again", "z", ts=140) for k in range(3)),
    ]
    first, second, third = rig.spans
    rig.flush(first, 138)
    rest = {row for row in rig.rows() if row[1].startswith("n")}
    assert 0 < len(rest) < 200
    rig.flush(third, 150)
    rig.flush(second, 131)
    assert not [row for row in rig.rows() if row[1].startswith("n")]
    rig.flush_all(150)
    assert rig.rows() == sorted([(500, "after"), *((key, "again") for key in range(3))], key=repr)


def test_truncate_knows_keys_of_every_type_again(tmp_path: Path) -> None:
    """What Delta stores in another type than the source has must hash as it did."""
    arrow = pa.schema(
        [("at", pa.time64("us")), ("on", pa.timestamp("us", "UTC")), ("n", pa.decimal128(12, 3)), ("v", pa.string())]
    )
    key = ("at", "on", "n")
    table = TABLE.with_(key=key)
    sink = open_sink(f"delta+file://{tmp_path}", changefeed="feed", mode=SinkMode.UPSERT)
    assert isinstance(sink, DeltaSink)
    sink.load(table, table_schema(arrow, key=key), arrow, [])
    rows = [insert(at * 1_500_001, at * 10**12, at, f"v{at}", ts=110) for at in range(100)]
    whole = FlushTask(FeedContext("feed", "", SinkMode.UPSERT), TableSpan(ID), table, (), Ts(100), Ts(120))
    sink.write(whole, iter([changes(rows, arrow=arrow, key=key)]))
    spans = even_spans(ID, 2)
    sink.repartition(table, SpanRepartition((TableSpan(ID),), spans, Ts(120), 1))
    before = _values(sink)
    for number, span in enumerate(spans):
        part = keep_span(changes([truncate(ts=130)], arrow=arrow, key=key), span, key=key)
        sink.write(FlushTask(FeedContext("feed", "", SinkMode.UPSERT), span, table, (), Ts(120), Ts(140)), iter([part]))
        mine = keep_span(changes(rows, arrow=arrow, key=key), span, key=key).after.column("v").to_pylist()
        before -= set(mine)
        assert _values(sink) == before, f"span {number}"
    assert before == set()


def _values(sink: DeltaSink) -> set[str]:
    table = DeltaTable(sink.place(TABLE).location).to_pyarrow_table(columns=["v"])
    return set(table.column("v").to_pylist())


def history(random: Random, *, from_ts: int, to_ts: int, alive: dict[int, str]) -> Iterator[Change]:
    """A source that does everything; ``alive`` is its table, kept as it goes."""
    for ts in range(from_ts, to_ts):
        what, key = random.random(), random.randrange(60)
        if what < 0.02:
            alive.clear()
            yield truncate(ts=ts)
        elif key not in alive:
            alive[key] = f"i{ts}"
            yield insert(key, alive[key], "b", ts=ts)
        elif what < 0.2:
            del alive[key]
            yield delete(key, None, None, ts=ts)
        elif what < 0.4 and (to := random.randrange(60)) not in alive:
            del alive[key]
            alive[to] = f"m{ts}"
            yield update(to, alive[to], "b", before=(key, None, None), before_kind=BEFORE_KEY, ts=ts)
        else:
            alive[key] = f"u{ts}"
            yield update(key, alive[key], "b", ts=ts)


@pytest.mark.parametrize("seed", range(4))
def test_spans_side_by_side_and_cut_come_to_what_the_source_has(tmp_path: Path, seed: int) -> None:
    """Writers in threads, each at its own pace, of tables that are cut again and again."""
    random, alive = Random(seed), dict[int, str]()
    rig = Rig.at(tmp_path, SinkMode.UPSERT)
    for round in range(4):
        start = 101 + 200 * round
        rig.log += history(random, from_ts=start, to_ts=start + 190, alive=alive)
        stands = start + 195
        paces = [sorted(random.sample(range(start, stands), 3)) for _ in rig.spans]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(_write_by_steps, [rig] * len(rig.spans), rig.spans, paces))
        rig.flush_all(stands)
        assert rig.rows() == sorted(alive.items(), key=repr)
        rig.cut(random.choice([n for n in (1, 2, 3, 5) if n != len(rig.spans)]), stands)


def _write_by_steps(rig: Rig, span: TableSpan, pace: list[int]) -> None:
    for to_ts in pace:
        while True:  # a commit that others were faster than too often is tried again by the flusher
            try:
                rig.flush(span, to_ts)
                break
            except Exception as error:
                if type(error).__name__ != "SinkConflictError":
                    raise
