"""Flush tasks whose changes are too many to be folded at once: they end earlier, at a segment's end."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from agent.control.runtime import FlushLimits, SpanPosition
from agent.flush import job, task
from agent.log import segment
from agent.ports.sink import FeedContext, FlushResult, FlushTask
from agent.rows.batches import SegmentRef
from agent.rows.changes import INSERT, Changes
from agent.rows.schema import LOG_BATCH, Column, TableSchema
from reactor.errors import Scope
from reactor.ids import TableSpan, Ts
from reactor.messages import Barrier
from reactor.records.changefeed import SinkMode
from reactor.records.log_head import LogHead
from reactor.records.tables.table import TableRecord

SCHEMA = TableSchema(1, "d", "t", (Column("id", 3, 0, "int", is_key=True),), dialect="mysql")
TABLE = TableRecord(table_id=1, schema_name="d", name="t", key=("id",))
FEED = FeedContext("feed", "delta+file:///lake", SinkMode.UPSERT)
#: resolved at 10, 20, 30, 40; each has one row, a little before
SEGMENTS = tuple(
    SegmentRef(str(at), at, 1, Ts(10 * at - 5), Ts(10 * at - 5), Ts(10 * at), 1, frozenset({1})) for at in range(1, 5)
)
TASK = FlushTask(FEED, TableSpan(1), TABLE, SEGMENTS, Ts(2), Ts(40))


def read_batches(path: str, _: int) -> Iterator[tuple[TableSchema, pa.RecordBatch, float]]:
    columns = [pa.array([10 * int(path) - 5]), pa.array([0]), pa.array([b"x" * 1000], pa.large_binary())]
    yield SCHEMA, pa.record_batch(columns, schema=LOG_BATCH), 1.0


def decode(schema: TableSchema, batch: pa.RecordBatch, _: object) -> Changes:
    ts, count = batch.column(0).to_numpy(), batch.num_rows
    after = pa.record_batch([pa.array(ts)], names=["id"])
    return Changes(schema, np.full(count, INSERT, np.int8), ts, ts * 0, after, None, np.zeros(count, np.int8))


class Sink:
    """``written``: the Ts of rows, by write. ``commits``: the tasks."""

    def __init__(self, *, fails: str = "") -> None:
        self.written: list[list[int]] = []
        self.commits: list[FlushTask] = []
        self.capabilities = cast("Any", self)
        self.takes_changes = True
        self._fails = fails

    def writer(self) -> "Sink":
        return self

    def write(self, task: FlushTask, changes: Iterable[Changes]) -> FlushResult:
        rows = [int(ts) for part in changes for ts in part.commit_ts]
        if self._fails:
            raise pa.ArrowInvalid(self._fails)
        self.written.append(rows)
        return task.result(committed=True, rows=len(rows))

    def commit(self, tasks: Sequence[FlushTask], results: Sequence[FlushResult]) -> Sequence[FlushResult]:
        self.commits += tasks
        return results


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Sink:
    return with_sink(monkeypatch, Sink())


def with_sink(monkeypatch: pytest.MonkeyPatch, sink: Sink) -> Sink:
    monkeypatch.setattr(task, "open_sink", lambda *_, **__: sink)
    monkeypatch.setattr(task, "decode", decode)
    monkeypatch.setattr(segment, "read_batches", read_batches)
    monkeypatch.setattr(task, "_FOLDED_BYTES", 1500)
    return sink


def test_a_task_ends_at_the_segment_that_makes_it_too_large(sink: Sink) -> None:
    result = task.run_flush(TASK)
    assert (sink.written, result.to_ts, result.error) == ([[5, 15]], 20, "")


def test_each_part_of_what_is_too_much_goes_on_from_the_last(sink: Sink) -> None:
    to_ts = Ts(2)
    while to_ts < TASK.to_ts:
        to_ts = task.run_flush(replace(TASK, from_ts=to_ts)).to_ts
    assert sink.written == [[5, 15], [25, 35]]


@pytest.mark.parametrize(
    "whole",
    [
        # one transaction, up to which nothing is resolved
        replace(TASK, segments=tuple(replace(item, resolved_ts=Ts(2)) for item in SEGMENTS)),
        replace(TASK, table=TABLE.with_(consistent_ts=Ts(40))),
        replace(TASK, parts=2),
        replace(TASK, feed=replace(FEED, sink_mode=SinkMode.CHANGELOG)),
    ],
)
def test_what_cannot_be_divided_is_written_whole(sink: Sink, whole: FlushTask) -> None:
    result = task.run_flush(whole)
    assert (sink.written, result.to_ts) == ([[5, 15, 25, 35]], 40)


def test_the_first_place_at_which_a_copy_is_consistent_is_not_passed_over(sink: Sink) -> None:
    result = task.run_flush(replace(TASK, table=TABLE.with_(consistent_ts=Ts(30))))
    assert (sink.written, result.to_ts) == ([[5, 15, 25]], 30)


def test_a_column_that_arrow_cannot_hold_holds_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    with_sink(monkeypatch, Sink(fails="offset overflow while concatenating arrays"))
    result = task.run_flush(replace(TASK, parts=2))
    assert "d.t: changes that belong together have more than 2 GiB in one column" in result.error
    assert (result.scope, result.retryable) == (Scope.TABLE, False)


def test_another_error_of_arrow_is_no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    with_sink(monkeypatch, Sink(fails="something else"))
    with pytest.raises(pa.ArrowInvalid, match="something else"):
        task.run_flush(replace(TASK, parts=2))


def test_a_flush_says_how_far_it_came(sink: Sink) -> None:
    class Log:
        def segments(self, *_: object, **__: object) -> Sequence[SegmentRef]:
            return SEGMENTS

    class Here:
        def map(self, function: Any, groups: Sequence[Any], **_: object) -> list[Any]:
            return [function(group) for group in groups]

        def cores(self) -> int:
            return 2

    position = SpanPosition(TableSpan(1), TABLE, Ts(2), Ts(2))
    limits = FlushLimits(LogHead(resolved_ts=Ts(40)), Barrier(Ts(1 << 62)))
    context = job.FlushContext(FEED, cast("Any", sink), cast("Any", Log()), cast("Any", Here()))
    flushed = job.flush(context, [position], limits)
    [moved] = flushed.spans
    assert (moved.position.checkpoint_ts, moved.position.committed_ts, flushed.is_behind) == (20, 20, True)
    assert [item.to_ts for item in sink.commits] == [20]
    flushed = job.flush(context, [moved.position], limits)
    assert (flushed.spans[0].position.checkpoint_ts, flushed.is_behind) == (40, False)


def test_a_part_of_the_log_without_a_change_of_the_table_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that was altered behind its last row and before the end of a segment was read in each flush, until the
    segment was removed, which failed."""

    class Idle(Sink):
        def write(self, task: FlushTask, changes: Iterable[Changes]) -> FlushResult:
            return replace(super().write(task, changes), committed=bool(self.written[-1]))

    class Log:
        segments_ = (replace(SEGMENTS[0], last_ts=Ts(9)), replace(SEGMENTS[1], tables=frozenset({2})), SEGMENTS[2])

        def segments(self, _: object, from_ts: Ts, to_ts: Ts, **__: object) -> Sequence[SegmentRef]:
            return [item for item in self.segments_ if item.last_ts > from_ts and item.first_ts <= to_ts]

    class Here:
        def map(self, function: Any, groups: Sequence[Any], **_: object) -> list[Any]:
            return [function(group) for group in groups]

        def cores(self) -> int:
            return 2

    sink = with_sink(monkeypatch, Idle())
    context = job.FlushContext(FEED, cast("Any", sink), cast("Any", Log()), cast("Any", Here()))
    position = SpanPosition(TableSpan(1), TABLE, Ts(6), Ts(6))
    for end in (10, 11, 20, 30):
        [moved] = job.flush(context, [position], FlushLimits(LogHead(resolved_ts=Ts(end)), Barrier(Ts(1 << 62)))).spans
        assert moved.is_settled
        position = moved.position
        assert position.checkpoint_ts == end
    assert sink.written == [[], [25]]
    assert [task.segments for task in sink.commits] == [Log.segments_[:1], Log.segments_[2:]]
    assert position.committed_ts == 30
