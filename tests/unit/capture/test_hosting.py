"""The processors of one capture: once it is drained, all of them say so, those that come later too."""

from collections.abc import Callable, Mapping
from typing import cast

import anyio
import pytest

from agent.parts import Parts
from agent.processors import StartProcessor, StopProcessor
from capture.hosting import ProcessorHost
from reactor.ids import CaptureId, ChangefeedId
from reactor.messages import Header, Heartbeat, HeartbeatResponse, Liveness, Message
from reactor.records import ChangefeedInfo, SealedUri

pytestmark = pytest.mark.looptime

HERE, OWNER = CaptureId("here"), CaptureId("owner")
URI = SealedUri(masked="x", sealed="y")


class NoParts:
    async def close(self) -> None: ...


class Surroundings:
    """Plant and peers at once: nothing to work with, and a note of what was sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def open(self, info: ChangefeedInfo) -> Parts:
        return cast("Parts", NoParts())

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
