"""Spans of one table from the change log to the sink: rows that move between them, and what none of them can pass."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.control.runtime import Flushed, SpanFlushed, SpanPosition
from agent.errors import SinkFencedError
from agent.feeds.runtime import ChangefeedRuntime, Feed
from agent.flush.job import flush
from agent.kernels.key_hash import key_hash
from agent.ports.sink import SpanRepartition
from agent.sources.postgres.decode.types import arrow_schema
from owner.scheduler.spans import even_spans
from owner.tables.repartition import ROW_MOVED
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.records.changefeed import ChangefeedConfig, Mode, RunningError, SinkMode
from reactor.store.memory import MemoryClient, MemoryEtcd
from tests.integration.pgoutput_build import TABLE, inserted, updated
from tests.integration.test_flush_job import RECORD, Inline, Rig
from tests.unit.agent.changes_build import changes, insert

SPANS = even_spans(TABLE.table_id, 4)


def cut(rig: Rig, old: tuple[TableSpan, ...], new: tuple[TableSpan, ...], *, ts: int, number: int) -> None:
    assert rig.context.sink.cut(RECORD, SpanRepartition(old, new, Ts(ts), number)) == ts


def flush_all(rig: Rig, spans: tuple[TableSpan, ...], *, at: int, to: int) -> Flushed:
    positions = [SpanPosition(span, RECORD, Ts(at), Ts(at)) for span in spans]
    return flush(rig.context, positions, rig.limits(to))


def key_in(span: TableSpan, *, first: int = 0) -> int:
    """The first key from ``first`` on that lies in the span."""
    keys = range(first, first + 200)
    hashes = key_hash(changes([insert(key, "", "") for key in keys], arrow=arrow_schema(TABLE)).after, ("id",))
    return next(key for key, at in zip(keys, hashes, strict=True) if span.start <= int(at) < span.end)


def split_rig(root: Path, mode: SinkMode) -> Rig:
    rig = Rig(root, mode, Inline())
    rig.append(120, *(inserted(110, key, f"n{key}", "big") for key in range(40)))
    rig.flush()
    cut(rig, (TableSpan(TABLE.table_id),), SPANS, ts=120, number=1)
    return rig


def test_a_row_that_moves_between_spans_takes_its_values_along(tmp_path: Path) -> None:
    rig = split_rig(tmp_path, SinkMode.UPSERT)
    old, new = key_in(SPANS[0]), key_in(SPANS[3], first=1000)
    rig.append(140, updated(130, new, "moved", "whole", old_key=(old, None, None)))
    flushed = flush_all(rig, SPANS, at=120, to=140)
    assert [span.error for span in flushed.spans] == [None] * 4
    rows = {row[0]: row[1:] for row in rig.rows()}
    assert len(rows) == 40
    assert old not in rows
    assert rows[new] == ("moved", "whole")


@pytest.mark.parametrize("is_in_one_span", [True, False])
def test_no_span_passes_a_row_whose_values_only_the_sink_knows(tmp_path: Path, is_in_one_span: bool) -> None:
    """Also those that it has nothing to do with: the table is joined in front of it, and then it goes."""
    rig = split_rig(tmp_path, SinkMode.UPSERT)
    old = key_in(SPANS[0])
    there = SPANS[0] if is_in_one_span else SPANS[2]
    new = key_in(there, first=1000)
    rig.append(140, updated(125, old, "first", ...))
    rig.append(160, updated(150, new, "moved", ..., old_key=(old, None, None)), inserted(155, 77, "late", "y"))
    flushed = flush_all(rig, SPANS, at=120, to=160)
    codes = [(span.error.code, span.error.retryable, span.error.table_id) for span in flushed.spans if span.error]
    assert codes == [(ROW_MOVED, False, TABLE.table_id)] * 4
    assert [rig.context.sink.committed_ts(RECORD, span) for span in SPANS] == [120] * 4
    before = flush_all(rig, SPANS, at=120, to=149)
    assert [span.error for span in before.spans] == [None] * 4
    whole = TableSpan(TABLE.table_id)
    cut(rig, SPANS, (whole,), ts=149, number=2)
    rig.position = replace(rig.position, committed_ts=Ts(149), checkpoint_ts=Ts(149))
    [span] = rig.flush().spans
    assert span.error is None
    rows = {row[0]: row[1:] for row in rig.rows()}
    assert rows[new] == ("moved", "big"), "the value that the log did not have"
    assert old not in rows
    assert rows[77] == ("late", "y")


def test_a_changelog_has_no_need_to_stop(tmp_path: Path) -> None:
    rig = split_rig(tmp_path, SinkMode.CHANGELOG)
    old = key_in(SPANS[0])
    new = key_in(SPANS[2], first=1000)
    rig.append(160, updated(150, new, "moved", ..., old_key=(old, None, None)))
    flushed = flush_all(rig, SPANS, at=120, to=160)
    assert [span.error for span in flushed.spans] == [None] * 4
    found = [row for row in rig.rows("_commit_version", "_change_type", "id", "_unchanged") if row[0] == 150]
    assert found == [(150, "delete", old, None), (150, "insert", new, ["big"])]


async def test_a_late_capture_s_span_fails_alone(tmp_path: Path) -> None:
    """Where the sink stands now is no position for it, and the other spans of its flush keep theirs."""
    feed = Feed(
        id=ChangefeedId("feed"),
        cluster="c",
        namespace="default",
        source_uri="postgresql://u@h/d",
        sink_uri=f"delta+file://{tmp_path}/lake",
        mode=Mode.ALL,
        sink_mode=SinkMode.UPSERT,
        config=ChangefeedConfig(),
        start_ts=Ts(0),
        log_uri=str(tmp_path / "log"),
        created=1,
    )
    sink, whole = feed.open_sink(), TableSpan(TABLE.table_id)
    sink.load(RECORD, TABLE, arrow_schema(TABLE), [])
    client = MemoryClient(MemoryEtcd())
    parts = ChangefeedRuntime(feed, capture=CaptureId("a"), client=client, executor=Inline(), checkpoint=lambda: Ts(0))
    assert (await parts.open_span(RECORD, whole, Ts(0))).committed_ts == 100
    assert sink.cut(RECORD, SpanRepartition((whole,), SPANS, Ts(150), 1)) == 150
    late = SpanFlushed(
        SpanPosition(whole, RECORD, Ts(100), Ts(100)), error=RunningError(code=SinkFencedError.code, message="late")
    )
    assert await parts._look_again(late) is late
    with pytest.raises(SinkFencedError, match="has other spans than"):
        await parts.open_span(RECORD, whole, Ts(0))
    assert (await parts.open_span(RECORD, SPANS[2], Ts(0))).committed_ts == 150
