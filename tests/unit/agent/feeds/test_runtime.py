"""The parts of one changefeed: a sink that never answers takes no thread that others need."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import anyio

from agent.feeds.runtime import ChangefeedRuntime, Feed
from agent.ports.executor import Executor
from agent.ports.sink import Sink
from agent.sinks.blackhole.sink import BlackholeSink
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from reactor.records.tables.table import TableRecord
from reactor.store.memory import MemoryClient, MemoryEtcd
from tests.patience import HANG_S

TABLE = TableRecord(table_id=1, schema_name="public", name="t")


class SilentSink(BlackholeSink):
    def __init__(self, asked: threading.Event, answer: threading.Event) -> None:
        self._asked, self._answer = asked, answer

    def committed_ts(self, table: TableRecord, span: TableSpan) -> Ts | None:
        self._asked.set()
        self._answer.wait()
        return None


class SilentFeed(Feed):
    asked, answer = threading.Event(), threading.Event()

    def open_sink(self) -> Sink:
        return SilentSink(self.asked, self.answer)


def parts_of(kind: type[Feed], directory: Path) -> ChangefeedRuntime:
    feed = kind(
        id=ChangefeedId("feed"),
        cluster="c",
        namespace="default",
        source_uri="postgresql://u@h/d",
        sink_uri="blackhole://",
        sink_mode=SinkMode.UPSERT,
        config=ChangefeedConfig(),
        start_ts=Ts(0),
        log_uri=str(directory),
        created=1,
    )
    client, nobody = MemoryClient(MemoryEtcd()), cast("Executor", None)
    return ChangefeedRuntime(feed, capture=CaptureId("a"), client=client, executor=nobody, checkpoint=lambda: Ts(0))


@contextmanager
def answering_at_last() -> Iterator[None]:
    try:
        yield
    finally:
        SilentFeed.answer.set()


async def test_a_sink_that_never_answers_delays_no_other_changefeed(tmp_path: Path) -> None:
    silent, other = parts_of(SilentFeed, tmp_path), parts_of(Feed, tmp_path)
    with answering_at_last(), anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(silent.open_span, TABLE, TableSpan(1, number), Ts(5))
            await anyio.to_thread.run_sync(SilentFeed.asked.wait)
            assert (await other.open_span(TABLE, TableSpan(1), Ts(5))).checkpoint_ts == 5
            group.cancel_scope.cancel()
