"""The sink that keeps nothing still answers as a sink does."""

from dataclasses import replace

from agent.ports.sink import FeedContext, FlushTask
from agent.sinks import open_sink
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode, TableRecord
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
