"""The processors of one capture: once it is drained, all of them say so, those that come later too."""

from collections.abc import Callable, Mapping
from typing import cast

import anyio
import pytest

from agent.control.gate import Owner
from agent.control.processors import MeetOwner, ProcessorEnded, ProcessorReported, StartProcessor, StopProcessor
from agent.control.runtime import SpanRuntime
from capture.member.processor_host import ProcessorHost
from reactor.ids import CaptureId, ChangefeedId
from reactor.messages import Header, Heartbeat, HeartbeatResponse, Liveness, Message
from reactor.records.changefeed import ChangefeedInfo, SealedUri

pytestmark = pytest.mark.looptime

HERE, OWNER = CaptureId("here"), CaptureId("owner")
URI = SealedUri(masked="x", sealed="y")


class NoParts:
    async def close(self) -> None: ...


class Surroundings:
    """RuntimeFactory and peers at once: nothing to work with, and a note of what was sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        return cast("SpanRuntime", NoParts())

    def set_peers(self, peers: Mapping[CaptureId, str]) -> None: ...

    def send_nowait(self, topic: str, message: Message) -> None:
        self.sent.append(message)

    def liveness(self, feed: ChangefeedId) -> Liveness | None:
        bodies = [m.body for m in self.sent if m.changefeed == feed and isinstance(m.body, HeartbeatResponse)]
        return bodies[-1].liveness if bodies else None


def start(feed: ChangefeedId) -> StartProcessor:
    return StartProcessor(feed, ChangefeedInfo(id=feed, source=URI, sink=URI))


def heartbeat(feed: ChangefeedId, *, is_stopping: bool = False) -> Message:
    return Message(OWNER, HERE, feed, Header("0.1.0", 3, "", 1), Heartbeat((), is_stopping))


async def until(condition: Callable[[], bool]) -> None:
    """Virtual time jumps, so looking again costs nothing."""
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def test_a_drained_capture_is_leaving_with_all_its_processors() -> None:
    one, two, late = ChangefeedId("one"), ChangefeedId("two"), ChangefeedId("late")
    around = Surroundings()
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=around, plant=around, tasks=tasks, post=lambda event: None)
        host.perform(MeetOwner(Owner(OWNER, 3)))
        for feed in (one, two):
            host.perform(start(feed))
            await host.on_message(heartbeat(feed))
        await until(lambda: around.liveness(one) is around.liveness(two) is Liveness.ALIVE)
        await host.on_message(heartbeat(one, is_stopping=True))
        await until(lambda: around.liveness(one) is Liveness.STOPPING)
        assert host.is_leaving
        host.perform(start(late))
        for feed in (two, late):
            await host.on_message(heartbeat(feed))
        await until(lambda: around.liveness(two) is around.liveness(late) is Liveness.STOPPING)
        for feed in (one, two, late):
            host.perform(StopProcessor(feed))


async def test_what_an_owner_says_waits_until_etcd_shows_it() -> None:
    """Its orders come by another way than the news of its election, and nobody is owner because he says so."""
    feed, around = ChangefeedId("one"), Surroundings()
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=around, plant=around, tasks=tasks, post=lambda event: None)
        host.perform(start(feed))
        for sender, revision in ((CaptureId("old"), 2), (OWNER, 3), (CaptureId("claims"), 9)):
            await host.on_message(Message(sender, HERE, feed, Header("0.1.0", revision, "", 1), Heartbeat()))
        await anyio.sleep(5)
        assert around.sent == [], "nobody has been elected, as far as is known here"
        host.perform(MeetOwner(Owner(OWNER, 3)))
        await until(lambda: bool(around.sent))
        await anyio.sleep(5)
        assert {message.receiver for message in around.sent} == {OWNER}
        assert {message.header.owner_revision for message in around.sent} == {3}
        late = ChangefeedId("late")
        host.perform(start(late))
        await host.on_message(Message(CaptureId("claims"), HERE, late, Header("0.1.0", 9, "", 1), Heartbeat()))
        await host.on_message(heartbeat(late))
        await until(lambda: around.liveness(late) is Liveness.ALIVE)
        assert {message.receiver for message in around.sent} == {OWNER}, "a new processor knows the owner too"
        for one in (feed, late):
            host.perform(StopProcessor(one))


class NoPlant(Surroundings):
    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        raise OverflowError("a position that nobody can take")


async def test_a_changefeed_whose_parts_cannot_be_built_hurts_nobody_else() -> None:
    posted: list[object] = []
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=NoPlant(), plant=NoPlant(), tasks=tasks, post=posted.append)
        host.perform(start(ChangefeedId("one")))
    reported, ended = posted
    assert isinstance(reported, ProcessorReported)
    assert reported.error.code == "ProcessorCrashed"
    assert ended == ProcessorEnded(ChangefeedId("one"))
