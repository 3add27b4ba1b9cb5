"""Spans of one table from the change log to the sink: rows that move between them, and what none of them can pass."""

import json
import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from agent.control.runtime import Flushed, SpanFlushed, SpanPosition
from agent.errors import SinkFencedError, TableForeignError
from agent.feeds import furthest
from agent.feeds.runtime import ChangefeedRuntime, Feed
from agent.flush.job import flush
from agent.kernels.key_hash import key_hash
from agent.ports.sink import SpanRepartition, Splits
from agent.sources.postgres.decode.types import arrow_schema
from owner.scheduler.spans import even_spans
from owner.tables.repartition import ROW_MOVED
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.records.changefeed import ChangefeedConfig, FeedState, RunningError, SinkMode
from reactor.store.memory import MemoryClient, MemoryEtcd
from tests.integration.agent.flush.pgoutput_build import TABLE, inserted, updated
from tests.integration.agent.flush.test_job import RECORD, Inline, Rig
from tests.unit.agent.changes_build import changes, insert
from tests.unit.owner.owner_build import info

SPANS = even_spans(TABLE.table_id, 4)


def cut(rig: Rig, old: tuple[TableSpan, ...], new: tuple[TableSpan, ...], *, ts: int, number: int) -> None:
    assert isinstance(rig.context.sink, Splits)
    assert rig.context.sink.repartition(RECORD, SpanRepartition(old, new, Ts(ts), number)) == ts


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


def feed_at(log: Path, lake: Path) -> Feed:
    return Feed(
        id=ChangefeedId("feed"),
        cluster="c",
        namespace="default",
        source_uri="postgresql://u@h/d",
        sink_uri=f"delta+file://{lake}",
        sink_mode=SinkMode.UPSERT,
        config=ChangefeedConfig(),
        start_ts=Ts(0),
        log_uri=str(log / "log"),
        created=1,
    )


async def test_a_table_that_was_set_back_between_two_runs_is_noticed(tmp_path: Path) -> None:
    """Its directory was copied back while the changefeed was paused: its log may be gone already."""
    rig, lake, copy = Rig(tmp_path, SinkMode.UPSERT, Inline()), tmp_path / "own", tmp_path / "copy"
    feed, whole = feed_at(tmp_path, lake), TableSpan(TABLE.table_id)
    feed.open_sink().load(RECORD, TABLE, arrow_schema(TABLE), [])

    def run() -> ChangefeedRuntime:
        client = MemoryClient(MemoryEtcd())
        return ChangefeedRuntime(
            feed, capture=CaptureId("a"), client=client, executor=Inline(), checkpoint=lambda: Ts(0)
        )

    async def written(at: SpanPosition, ts: int) -> SpanPosition:
        rig.append(ts, inserted(ts - 10, ts, "name", "big"))
        [done] = (await run().flush([at], rig.limits())).spans
        assert (done.error, done.position.committed_ts) == (None, ts)
        return done.position

    at = await written(await run().open_span(RECORD, whole, Ts(100)), 150)
    copytree(lake, copy)
    await written(at, 200)
    assert (await run().open_span(RECORD, whole, Ts(230))).committed_ts == 200, "nothing of it was in the log since"
    copytree(lake, tmp_path / "newer")

    def put_back(other: Path) -> None:
        rmtree(lake)
        copytree(other, lake)

    put_back(copy)
    for _ in range(2):
        with pytest.raises(TableForeignError, match=r"public\.t was set back: it records 150, and 200 was written"):
            await run().open_span(RECORD, whole, Ts(230))
    put_back(tmp_path / "newer")
    assert (await run().open_span(RECORD, whole, Ts(230))).committed_ts == 200
    put_back(copy)
    at = await run().open_span(RECORD, whole, Ts(140))
    assert (at.committed_ts, at.checkpoint_ts) == (150, 150), "rewound: all of it is written again"
    [done] = (await run().flush([at], rig.limits())).spans
    assert (done.error, done.position.committed_ts) == (None, 200)


class SpanRig:
    """A process of one capture after the other, and a table that each writes further."""

    def __init__(self, root: Path) -> None:
        self.rig, self.lake = Rig(root, SinkMode.UPSERT, Inline()), root / "own"
        self.feed, self.span = feed_at(root, self.lake), TableSpan(TABLE.table_id)
        self.feed.open_sink().load(RECORD, TABLE, arrow_schema(TABLE), [])
        self.log = Path(str(self.feed.log_directory("main")))
        self.client = MemoryClient(MemoryEtcd())
        self.runtime = self.start("a")

    def files(self) -> list[str]:
        return [path.name for path in self.log.glob("records-*")]

    async def put(self, state: FeedState) -> None:
        await self.client.put(self.feed.guard.key, info(state=state).encode())

    def start(self, capture: str) -> ChangefeedRuntime:
        """Another process: what the one before had in memory is gone."""
        furthest._furthest.clear()
        self.runtime = ChangefeedRuntime(
            self.feed, capture=CaptureId(capture), client=self.client, executor=Inline(), checkpoint=lambda: Ts(0)
        )
        return self.runtime

    async def write(self, ts: int) -> None:
        at = await self.runtime.open_span(RECORD, self.span, Ts(100))
        self.rig.append(ts, inserted(ts - 10, ts, "name", "big"))
        [done] = (await self.runtime.flush([at], self.rig.limits())).spans
        assert (done.error, done.position.committed_ts) == (None, ts)

    async def write_behind(self, copy: Path) -> None:
        """Write, copy the lake, and write on."""
        await self.write(150)
        copytree(self.lake, copy)
        await self.write(200)

    async def reopen(self) -> Ts:
        return (await self.runtime.open_span(RECORD, self.span, Ts(230))).committed_ts

    def put_back(self, other: Path) -> None:
        rmtree(self.lake)
        copytree(other, self.lake)


@pytest.mark.parametrize("next_capture", ["a", "b"])
async def test_a_table_that_was_set_back_while_no_process_ran_is_noticed(tmp_path: Path, next_capture: str) -> None:
    rig, old, newest = SpanRig(tmp_path), tmp_path / "old", tmp_path / "newest"
    await rig.put(FeedState.NORMAL)
    await rig.write_behind(old)
    await rig.runtime.close()
    rig.start(next_capture)
    assert await rig.reopen() == 200, "as it was left"
    copytree(rig.lake, newest)
    await rig.runtime.close()
    rig.put_back(old)
    rig.start("c")
    with pytest.raises(TableForeignError, match=r"public\.t was set back: it records 150, and 200 was written"):
        await rig.reopen()
    rig.put_back(newest)
    assert await rig.reopen() == 200


async def test_a_sink_to_which_an_older_state_was_copied_is_noticed(tmp_path: Path) -> None:
    """An operator has given the changefeed another URI."""
    rig, other = SpanRig(tmp_path), tmp_path / "other"
    await rig.put(FeedState.NORMAL)
    await rig.write_behind(other)
    await rig.runtime.close()
    rig.feed = feed_at(tmp_path, other)
    rig.start("b")
    with pytest.raises(TableForeignError, match=r"records 150, and 200 was written; .* or pause it, and rewind it to"):
        await rig.reopen()
    assert (await rig.runtime.open_span(RECORD, rig.span, Ts(150))).committed_ts == 150, "rewound"


async def test_a_rewind_is_no_cure_behind_the_table_s_last_copy(tmp_path: Path) -> None:
    rig, old = SpanRig(tmp_path), tmp_path / "old"
    await rig.write_behind(old)
    rig.put_back(old)
    with pytest.raises(TableForeignError, match="200 was written; it was copied at 180 since: bring the newer"):
        await rig.runtime.open_span(RECORD.with_(start_ts=Ts(180)), rig.span, Ts(200))


async def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It names the sink by its URI, too."""
    rig = SpanRig(tmp_path)
    await rig.write(150)
    of = sha256("\n".join((rig.feed.sink_owner, rig.feed.incarnation, rig.feed.sink_uri)).encode()).hexdigest()[:8]
    known = [[rig.span.table_id, rig.span.start, rig.span.end, 200]]
    (rig.log / "records-x.json").write_text(json.dumps({"of": of, "records": known}))
    rig.start("b")
    with pytest.raises(TableForeignError, match="it records 150, and 200 was written"):
        await rig.reopen()


async def test_a_process_that_is_killed_leaves_what_it_has_seen_a_while_ago(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(furthest, "_SAVE_S", 0.0)
    rig, old = SpanRig(tmp_path), tmp_path / "old"
    await rig.write_behind(old)
    rig.put_back(old)
    rig.start("b")
    with pytest.raises(TableForeignError, match="it records 150, and 200 was written"):
        await rig.reopen()


async def test_a_changefeed_that_is_removed_leaves_no_file(tmp_path: Path) -> None:
    rig = SpanRig(tmp_path)
    await rig.put(FeedState.REMOVED)
    await rig.write(150)
    await rig.runtime.close()
    assert rig.files() == []


async def test_files_of_captures_that_are_long_gone_are_taken_over(tmp_path: Path) -> None:
    rig, old = SpanRig(tmp_path), tmp_path / "old"
    await rig.put(FeedState.NORMAL)
    await rig.write_behind(old)
    await rig.runtime.close()
    assert rig.files() == ["records-a.json"]
    os.utime(rig.log / "records-a.json", (0, 0))
    rig.start("b")
    assert await rig.reopen() == 200
    await rig.runtime.close()
    assert rig.files() == ["records-b.json"]
    rig.put_back(old)
    rig.start("c")
    with pytest.raises(TableForeignError):
        await rig.reopen()


async def test_a_file_of_another_changefeed_or_a_damaged_one_says_nothing(tmp_path: Path) -> None:
    rig = SpanRig(tmp_path)
    await rig.write(150)
    span = rig.span
    for name, text in (
        ("records-x.json", json.dumps({"of": "0", "records": [[span.table_id, span.start, span.end, 900]]})),
        ("records-y.json", "{"),
        ("records-z.json", json.dumps({"of": "0", "records": [[1]]})),
    ):
        (rig.log / name).write_text(text)
    rig.start("b")
    assert await rig.reopen() == 150


async def test_a_late_capture_s_span_fails_alone(tmp_path: Path) -> None:
    """Where the sink stands now is no position for it, and the other spans of its flush keep theirs."""
    feed = feed_at(tmp_path, tmp_path / "lake")
    sink, whole = feed.open_sink(), TableSpan(TABLE.table_id)
    sink.load(RECORD, TABLE, arrow_schema(TABLE), [])
    client = MemoryClient(MemoryEtcd())
    parts = ChangefeedRuntime(feed, capture=CaptureId("a"), client=client, executor=Inline(), checkpoint=lambda: Ts(0))
    assert (await parts.open_span(RECORD, whole, Ts(0))).committed_ts == 100
    assert isinstance(sink, Splits)
    assert sink.repartition(RECORD, SpanRepartition((whole,), SPANS, Ts(150), 1)) == 150
    late = SpanFlushed(
        SpanPosition(whole, RECORD, Ts(100), Ts(100)), error=RunningError(code=SinkFencedError.code, message="late")
    )
    assert await parts._reread_position(late, RECORD) is late
    with pytest.raises(SinkFencedError, match="has other spans than"):
        await parts.open_span(RECORD, whole, Ts(0))
    assert (await parts.open_span(RECORD, SPANS[2], Ts(0))).committed_ts == 150
