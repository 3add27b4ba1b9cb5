"""Quiet logs: a processor moves with the head without a message, and without a report to an owner that follows it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import anyio
import pytest

from agent.control.gate import Owner
from agent.control.processor import Processor
from agent.control.processors import MeetOwner, Observe, StartProcessor, StopProcessor
from agent.control.runtime import NOBODY, Flushed, FlushLimits, SpanFlushed, SpanPosition, SpanRuntime, Together
from capture.member.processor_host import ProcessorHost
from reactor import keys
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.messages import (
    AddSpan,
    Barrier,
    Body,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Message,
    Place,
    SpanCheckpoint,
)
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, SealedUri, Unit, UnitRecord, UnitStage
from reactor.records.log_head import LogHead
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState

pytestmark = pytest.mark.looptime

HERE, OWNER, FEED = CaptureId("here"), CaptureId("owner"), ChangefeedId("feed")
URI = SealedUri(masked="x", sealed="y")
TABLE = TableRecord(table_id=7, schema_name="public", name="t", key=("id",), start_ts=Ts(10))
UNIT = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=(TABLE,), start_ts=Ts(10))


class _Around:
    """Runtime, its factory and the peers at once."""

    def __init__(self) -> None:
        self.sent: list[HeartbeatResponse] = []
        self.flushes = 0
        #: of the processor's run
        self.epoch = ""

    async def load(self, info: ChangefeedInfo) -> None: ...

    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        return cast("SpanRuntime", self)

    def set_peers(self, peers: Mapping[CaptureId, str]) -> None: ...

    def send_nowait(self, topic: str, message: Message) -> None:
        self.epoch = message.header.processor_epoch
        if isinstance(message.body, HeartbeatResponse):
            self.sent.append(message.body)

    async def open_span(self, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        return SpanPosition(span, table, checkpoint_ts, checkpoint_ts)

    async def flush(
        self, positions: Sequence[SpanPosition], limits: FlushLimits, together: Together = NOBODY
    ) -> Flushed:
        self.flushes += 1
        ts = limits.highest_ts
        moved = (replace(position, checkpoint_ts=ts, committed_ts=ts) for position in positions)
        spans = tuple(SpanFlushed(position, limits.time_at(ts), is_settled=True) for position in moved)
        return Flushed(spans, together_ts=ts)

    async def close(self) -> None: ...


class _World:
    """A host with one processor, and etcd as it is shown there."""

    def __init__(self, host: ProcessorHost, around: _Around) -> None:
        self.host, self.around = host, around
        self.state = ClusterState("c")
        self.head = LogHead(epoch=1, resolved_ts=Ts(10))
        self.info = ChangefeedInfo(id=FEED, source=URI, sink=URI)
        place = ("c", keys.DEFAULT_NAMESPACE, FEED)
        self._log = keys.LogKey(*place, "main")
        self.put(keys.InfoKey(*place), self.info.encode())
        self.put(keys.StatusKey(*place), ChangefeedStatus(checkpoint_ts=Ts(10)).encode())
        self.put(keys.UnitKey(*place, "main"), UNIT.encode())

    def put(self, key: keys.Key, value: bytes) -> None:
        revision = self.state.revision + 1
        self.state.update(str(key), value, mod_revision=revision, create_revision=revision)

    def move(self, ts: int, *, has_events: bool = False) -> None:
        """Move the log's head, and show that here."""
        head = self.head.with_(resolved_ts=Ts(ts), resolved_time=float(ts))
        if has_events:
            seqs = dict.fromkeys(("last_seq", "complete_seq", "written_seq"), head.last_seq + 1)
            head = head.with_(written_ts=Ts(ts), **seqs)
        self.head = head
        self.put(self._log, head.encode())
        self.host.perform(Observe(FEED, self.state.changefeeds[FEED]))

    async def beat(self, *, follows_log: bool = True) -> None:
        await self.send(Heartbeat(takes_together=True, follows_log=follows_log))

    async def send(self, body: Body) -> None:
        await self.host.on_message(Message(OWNER, HERE, FEED, Header("0.1.0", 3, self.around.epoch, 1), body))
        await anyio.sleep(1)

    def take_places(self) -> list[Place | None]:
        """Return what was reported since the last call."""
        sent, self.around.sent = self.around.sent, []
        return [answer.together for answer in sent]


@asynccontextmanager
async def flowing(*, follows_log: bool = True) -> AsyncIterator[_World]:
    """A span is written up to the log's end, at 100, and that was reported."""
    around = _Around()
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=around, plant=around, tasks=tasks, post=lambda event: None)
        world = _World(host, around)
        host.perform(MeetOwner(FEED, Owner(OWNER, 3)))
        host.perform(StartProcessor(FEED, world.info))
        world.move(100, has_events=True)
        await world.beat(follows_log=follows_log)
        for is_secondary in (True, False):
            await world.send(AddSpan(TableSpan(7), is_secondary, SpanCheckpoint(Ts(10), Ts(10))))
        await world.beat(follows_log=follows_log)
        assert world.take_places()[-1] == _place(100)
        yield world
        host.perform(StopProcessor(FEED))


def _place(ts: int) -> Place:
    return Place(SpanCheckpoint(Ts(ts), Ts(ts)), float(ts))


async def test_the_move_of_a_quiet_logs_head_is_neither_a_message_nor_a_report() -> None:
    async with flowing() as world:
        flushes = world.around.flushes
        for ts in (200, 300):
            world.move(ts)
            await anyio.sleep(1)
        assert world.take_places() == []
        await world.beat()
        assert world.take_places() == [_place(300)], "it is there, and says so when it is asked"
        world.move(400, has_events=True)
        await anyio.sleep(1)
        assert world.around.flushes == flushes + 1
        assert world.take_places() == [_place(400)]


async def test_an_owner_that_does_not_follow_the_log_gets_each_move() -> None:
    async with flowing(follows_log=False) as world:
        for ts in (200, 300):
            world.move(ts)
            await anyio.sleep(1)
        assert world.take_places() == [_place(200), _place(300)]


async def test_a_processor_that_cannot_follow_is_sent_the_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of one changefeed must not end whoever runs all of them."""

    def follow(self: Processor, feed: object) -> bool:
        raise ZeroDivisionError("a bug")

    async with flowing() as world:
        monkeypatch.setattr(Processor, "follow", follow)
        world.move(200)
        await anyio.sleep(1)
        assert world.take_places() == [_place(200)]


async def test_nothing_is_followed_past_a_barrier() -> None:
    async with flowing() as world:
        await world.send(Heartbeat(barrier=Barrier(Ts(150)), takes_together=True, follows_log=True))
        world.move(200)
        await anyio.sleep(1)
        assert world.take_places()[-1] == Place(SpanCheckpoint(Ts(150), Ts(150)), 100.0)
