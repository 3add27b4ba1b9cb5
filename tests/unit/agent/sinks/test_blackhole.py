"""The sink that keeps nothing still answers as a sink does."""

from dataclasses import replace

from agent.control.runtime import FlushLimits, SpanPosition
from agent.flush.job import FlushContext, flush
from agent.ports.sink import FeedContext, FlushTask
from agent.sinks import open_sink
from capture.api.inputs import spec_of
from reactor.ids import MAX_TS, TableSpan, Ts
from reactor.messages import Barrier
from reactor.records.changefeed import Mode, SinkMode
from reactor.records.log_head import LogHead
from reactor.records.tables.table import TableRecord
from tests.unit.agent.changes_build import ARROW, changes, insert, table_schema, update

RECORD = TableRecord(table_id=16384, schema_name="public", name="t", key=("id",), start_ts=Ts(100))
TASK = FlushTask(FeedContext("feed", "blackhole://", SinkMode.UPSERT), TableSpan(16384), RECORD, (), Ts(100), Ts(200))


def test_changes_are_counted_and_dropped() -> None:
    sink = open_sink("blackhole://", changefeed="feed", mode=SinkMode.UPSERT)
    sink.check([RECORD])
    part = changes([insert(1, "a", "x"), update(1, "b", "y")], commit_time=5.0)
    [result] = sink.commit([TASK], [sink.writer().write(TASK, iter([part]))])
    assert (result.committed, result.rows, result.commit_time) == (True, 2, 5.0)
    assert result.bytes > 0
    failed = replace(result, committed=False, error="no", error_code="Sink")
    assert sink.commit([TASK], [failed]) == [failed]


def test_nothing_is_recorded() -> None:
    sink = open_sink("blackhole://", changefeed="feed", mode=SinkMode.UPSERT)
    [staged] = sink.writer().stage(RECORD, "0", iter([changes([insert(1, "a", "x")]).after]), Ts(100))
    assert staged.rows == 1
    sink.load(RECORD, table_schema(), ARROW, [staged])
    assert sink.committed_ts(RECORD, TableSpan(16384)) is None


def test_a_sink_that_takes_no_changes_is_passed_without_reading_the_log() -> None:
    """Neither its log nor an executor is there."""
    sink = open_sink("none://", changefeed="feed", mode=SinkMode.UPSERT)
    context = FlushContext(TASK.feed, sink, None, None)  # type: ignore[arg-type]
    here, beyond = SpanPosition(TableSpan(16384), RECORD, Ts(100), Ts(100)), RECORD.with_(table_id=2)
    there = SpanPosition(TableSpan(2), beyond, Ts(250), Ts(250))
    limits = FlushLimits(LogHead(resolved_ts=Ts(200), resolved_time=7.0), Barrier(MAX_TS))
    flushed = flush(context, [here, there], limits)
    assert [span.position.checkpoint_ts for span in flushed.spans] == [200, 250]
    assert [(span.rows, span.error) for span in flushed.spans] == [(0, None)] * 2
    assert flushed.spans[0].commit_time == 7.0


def test_mode_of_a_changefeed_without_a_sink() -> None:
    assert spec_of("feed", "postgresql://h/d", "none").mode is Mode.INCREMENTAL
    assert spec_of("feed", "postgresql://h/d", "none").sink_uri == "none://"
    assert spec_of("feed", "postgresql://h/d", "none://", mode="full").mode is Mode.FULL, "which preflight refuses"
    assert spec_of("feed", "postgresql://h/d", "blackhole://").mode is Mode.ALL
