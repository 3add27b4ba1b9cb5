"""The processors of one capture: once it is drained, all of them say so, those that come later too."""

from collections.abc import Callable, Mapping
from typing import cast

import anyio
import pytest

from agent.control.gate import Owner
from agent.control.processors import (
    FaultOver,
    MeetOwner,
    Observe,
    ProcessorCrashed,
    ProcessorEnded,
    ProcessorReported,
    StartProcessor,
    StopProcessor,
)
from agent.control.runtime import SpanPosition, SpanRuntime
from agent.health.health import Health
from capture.errors import CaptureFaultError
from capture.member.faulty_runtime import Rests
from capture.member.processor_host import ProcessorHost
from reactor import keys
from reactor.errors import Scope
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.messages import AddSpan, Header, Heartbeat, HeartbeatResponse, Liveness, Message, SpanCheckpoint
from reactor.records.changefeed import ChangefeedInfo, RunningError, SealedUri, Unit, UnitRecord, UnitStage
from reactor.records.tables.table import TableRecord
from reactor.restarts import RestartPolicy
from reactor.state import ChangefeedState, ClusterState

pytestmark = pytest.mark.looptime

HERE, OWNER = CaptureId("here"), CaptureId("owner")
URI = SealedUri(masked="x", sealed="y")
TABLE = TableRecord(table_id=7, schema_name="public", name="t", key=("id",), start_ts=Ts(10))


class NoParts:
    def __init__(self, prepared: list[TableSpan]) -> None:
        self._prepared = prepared

    async def open_span(self, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        self._prepared.append(span)
        return SpanPosition(span, table, checkpoint_ts, checkpoint_ts)

    async def close(self) -> None: ...


class ActorContext:
    """RuntimeFactory and peers at once: nothing to work with, and a note of what was sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.prepared: list[TableSpan] = []

    async def load(self, info: ChangefeedInfo) -> None: ...

    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        return cast("SpanRuntime", NoParts(self.prepared))

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


def meet_owner(host: ProcessorHost) -> None:
    """etcd shows one owner of all changefeeds."""
    for feed in map(ChangefeedId, ("late", "one", "two")):
        host.perform(MeetOwner(feed, Owner(OWNER, 3)))


async def until(condition: Callable[[], bool]) -> None:
    """Virtual time jumps, so looking again costs nothing."""
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def test_a_drained_capture_is_leaving_with_all_its_processors() -> None:
    one, two, late = ChangefeedId("one"), ChangefeedId("two"), ChangefeedId("late")
    around = ActorContext()
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=around, plant=around, tasks=tasks, post=lambda event: None)
        meet_owner(host)
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
    feed, around = ChangefeedId("one"), ActorContext()
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=around, plant=around, tasks=tasks, post=lambda event: None)
        host.perform(start(feed))
        for sender, revision in ((CaptureId("old"), 2), (OWNER, 3), (CaptureId("claims"), 9)):
            await host.on_message(Message(sender, HERE, feed, Header("0.1.0", revision, "", 1), Heartbeat()))
        await anyio.sleep(5)
        assert around.sent == [], "nobody has been elected, as far as is known here"
        meet_owner(host)
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


class NoPlant(ActorContext):
    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        raise OverflowError("a position that nobody can take")


async def test_a_changefeed_whose_parts_cannot_be_built_affects_no_other() -> None:
    posted: list[object] = []
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=NoPlant(), plant=NoPlant(), tasks=tasks, post=posted.append)
        host.perform(start(ChangefeedId("one")))
    reported, ended = posted
    assert isinstance(reported, ProcessorReported)
    assert reported.error.code == "ProcessorCrashed"
    assert ended == ProcessorEnded(ChangefeedId("one"))


class SlowToLoad(ActorContext):
    """A plugin whose import takes as long as a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.may_load = anyio.Event()
        self.opened: list[ChangefeedId] = []

    async def load(self, info: ChangefeedInfo) -> None:
        await self.may_load.wait()

    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        self.opened.append(info.id)
        return super().open(info)


async def test_messages_wait_while_a_plugin_is_imported_and_who_is_stopped_meanwhile_opens_nothing() -> None:
    one, two, around, posted = ChangefeedId("one"), ChangefeedId("two"), SlowToLoad(), list[object]()
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=around, plant=around, tasks=tasks, post=posted.append)
        meet_owner(host)
        for feed in (one, two):
            host.perform(start(feed))
            await host.on_message(heartbeat(feed))
        host.perform(StopProcessor(two))
        await anyio.sleep(60)
        assert (around.sent, posted) == ([], [])
        around.may_load.set()
        await until(lambda: around.liveness(one) is Liveness.ALIVE and posted == [ProcessorEnded(two)])
        assert around.opened == [one]
        host.perform(StopProcessor(one))


class Crashing(ActorContext):
    """An answer that cannot be given is a bug: as often as it is asked to, for one changefeed."""

    def __init__(self) -> None:
        super().__init__()
        self.crashes = 0
        self.opened: list[ChangefeedId] = []

    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        self.opened.append(info.id)
        return super().open(info)

    def send_nowait(self, topic: str, message: Message) -> None:
        if message.changefeed == "one" and self.crashes:
            self.crashes -= 1
            raise ZeroDivisionError("a bug")
        super().send_nowait(topic, message)

    def runs(self, feed: ChangefeedId) -> list[str]:
        """Processor epochs, in the order in which they were heard of."""
        return list(dict.fromkeys(m.header.processor_epoch for m in self.sent if m.changefeed == feed))


async def test_a_processor_that_crashes_is_built_again_as_another_run_and_no_other_notices() -> None:
    one, two = ChangefeedId("one"), ChangefeedId("two")
    around, posted = Crashing(), list[object]()
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=around, plant=around, tasks=tasks, post=posted.append)
        meet_owner(host)
        for feed in (one, two):
            host.perform(start(feed))
            await host.on_message(heartbeat(feed))
        await until(lambda: len(around.sent) == 4)  # each has announced itself, and has answered
        around.crashes = 2
        for _ in range(4):  # one is lost with each crash; the owner sends the next
            await host.on_message(heartbeat(one))
            await anyio.sleep(1)
        await host.on_message(heartbeat(two))
        await until(lambda: len([message for message in around.sent if message.changefeed == two]) == 3)
        assert len(around.runs(one)) == 2
        assert around.opened == [one, two, one, one]
        assert len(around.runs(two)) == 1
        assert [type(event) for event in posted] == [ProcessorCrashed] * 2
        assert isinstance(posted[0], ProcessorCrashed)
        assert posted[0].error.message.startswith("the processor of one crashed (ZeroDivisionError)")
        assert posted[0].error.capture == HERE
        for feed in (one, two):
            host.perform(StopProcessor(feed))


async def test_a_processor_knows_again_what_etcd_shows_after_a_crash() -> None:
    """Its first life was shown it; nobody shows it again before something changes."""
    one, around = ChangefeedId("one"), Crashing()
    unit = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=(TABLE,))
    state = ClusterState("c")
    state.update(str(keys.UnitKey("c", "default", one, "main")), unit.encode(), mod_revision=1)
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=around, plant=around, tasks=tasks, post=lambda event: None)
        meet_owner(host)
        host.perform(start(one))
        host.perform(Observe(one, state.changefeeds[one]))
        around.crashes = 1
        for _ in range(2):
            await host.on_message(heartbeat(one))
            await anyio.sleep(1)
        header = Header("0.1.0", 3, around.runs(one)[0], 1)
        order = AddSpan(TableSpan(7), True, SpanCheckpoint(Ts(10), Ts(10)))
        await host.on_message(Message(OWNER, HERE, one, header, order))
        await until(lambda: TableSpan(7) in around.prepared)
        host.perform(StopProcessor(one))


async def test_a_processor_that_crashes_too_often_fails_its_changefeed_alone() -> None:
    one, two = ChangefeedId("one"), ChangefeedId("two")
    around, posted = Crashing(), list[object]()
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=around, plant=around, tasks=tasks, post=posted.append)
        meet_owner(host)
        for feed in (one, two):
            host.perform(start(feed))
        around.crashes = 100
        with anyio.fail_after(60):
            while ProcessorEnded(one) not in posted:
                await host.on_message(heartbeat(one))
                await anyio.sleep(0.5)
        [reported] = [event for event in posted if isinstance(event, ProcessorReported)]
        assert (reported.error.code, reported.error.retryable, reported.is_warning) == ("CrashedTooOften", False, False)
        assert len([event for event in posted if isinstance(event, ProcessorCrashed)]) == 6
        await host.on_message(heartbeat(one))
        await host.on_message(heartbeat(two))
        await until(lambda: around.liveness(two) is Liveness.ALIVE)
        host.perform(StopProcessor(two))


async def test_a_processor_is_stopped_while_it_waits_for_its_next_life() -> None:
    one, around, posted = ChangefeedId("one"), Crashing(), list[object]()
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(
            HERE, peers=around, plant=around, tasks=tasks, post=posted.append, policy=RestartPolicy(delay_s=1_000)
        )
        meet_owner(host)
        host.perform(start(one))
        around.crashes = 1
        await host.on_message(heartbeat(one))
        await until(lambda: bool(posted))
        started = anyio.current_time()
        host.perform(StopProcessor(one))
    assert posted[-1] == ProcessorEnded(one)
    assert anyio.current_time() - started < 10


async def test_what_finds_no_room_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats come again by themselves; the news of an election does so with what etcd shows next."""
    monkeypatch.setattr("capture.member.processor_host._MAILBOX_SIZE", 2)
    one, around = ChangefeedId("one"), ActorContext()
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=around, plant=around, tasks=tasks, post=lambda event: None)
        host.perform(start(one))
        await anyio.sleep(1)  # it has begun without an owner
        for _ in range(3):
            host.perform(Observe(one, ChangefeedState(one)))
        meet_owner(host)
        await anyio.sleep(1)
        await host.on_message(heartbeat(one))
        await anyio.sleep(1)
        assert around.sent == [], "it has not heard of the election"
        host.perform(Observe(one, ChangefeedState(one)))
        await host.on_message(heartbeat(one))
        await until(lambda: around.liveness(one) is Liveness.ALIVE)
        host.perform(StopProcessor(one))


class LacksFile(ActorContext):
    """A capture on which a file that others have is missing at first."""

    lacks = True

    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        if self.lacks:
            raise CaptureFaultError("cannot read the secret file /x (no such file); it must exist on every capture")
        return super().open(info)


async def test_a_fault_of_the_capture_fails_nothing_and_it_serves_again_when_it_is_over() -> None:
    feed, around, posted = ChangefeedId("one"), LacksFile(), list[object]()
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=around, plant=around, tasks=tasks, post=posted.append)
        meet_owner(host)
        host.perform(start(feed))
        await host.on_message(heartbeat(feed))
        await until(lambda: around.liveness(feed) is Liveness.STOPPING)
        assert not host.is_leaving, "for other changefeeds it works"
        [reported] = posted
        assert isinstance(reported, ProcessorReported)
        assert (reported.is_warning, reported.error.scope, reported.error.retryable) == (True, Scope.CAPTURE, True)
        around.lacks = False
        await until(lambda: ProcessorEnded(feed) in posted)
        host.perform(start(feed))
        await host.on_message(heartbeat(feed))
        await until(lambda: around.liveness(feed) is Liveness.ALIVE)
        assert posted[-1] == FaultOver(feed)
        host.perform(StopProcessor(feed))


async def test_while_the_capture_is_unwell_it_takes_no_work_for_any_changefeed() -> None:
    feeds, around, posted, health = (ChangefeedId("one"), ChangefeedId("two")), ActorContext(), list[object](), Health()
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=around, plant=around, tasks=tasks, post=posted.append, health=health)
        tasks.start_soon(host.follow_health)
        meet_owner(host)

        async def begin(expected: Liveness) -> None:
            for feed in feeds:
                host.perform(start(feed))
                await host.on_message(heartbeat(feed))
            await until(lambda: all(around.liveness(feed) is expected for feed in feeds))

        await begin(Liveness.ALIVE)
        health.note("disk full")
        await until(lambda: all(ProcessorEnded(feed) in posted for feed in feeds))
        posted.clear()
        await begin(Liveness.STOPPING)
        reports = [event for event in posted if isinstance(event, ProcessorReported)]
        assert [(event.is_warning, event.error.scope, event.error.message) for event in reports] == [
            (True, Scope.CAPTURE, "disk full"),
            (True, Scope.CAPTURE, "disk full"),
        ]
        await anyio.sleep(300.0)
        assert not any(isinstance(event, ProcessorEnded) for event in posted), "there is nothing to try meanwhile"
        health.note("")
        await until(lambda: all(ProcessorEnded(feed) in posted for feed in feeds))
        await begin(Liveness.ALIVE)
        assert all(FaultOver(feed) in posted for feed in feeds)
        tasks.cancel_scope.cancel()


def test_a_changefeed_that_fails_here_by_a_fault_of_the_capture_rests_here_the_longer_the_more_often() -> None:
    rests, feed = Rests(), ChangefeedId("one")
    fault = RunningError(code="CaptureFault", message="no memory", scope=Scope.CAPTURE)
    now, waits = 0.0, []
    for _ in range(6):
        rests.note(feed, fault, now)
        waits.append(rests.left_s(feed, now))
        now += waits[-1] + 60.0
        assert rests.current(feed, now) is None
    assert waits == [30.0, 60.0, 120.0, 240.0, 480.0, 480.0]
    rests.note(feed, fault, now + 3_600.0)
    assert rests.left_s(feed, now + 3_600.0) == 30.0


async def test_a_processor_reports_by_itself_that_it_has_begun_also_after_a_crash() -> None:
    """An owner of many changefeeds may not ask for a long time, and would not learn that its orders are lost."""
    one, around = ChangefeedId("one"), Crashing()
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=around, plant=around, tasks=tasks, post=lambda event: None)
        meet_owner(host)
        host.perform(start(one))
        await until(lambda: len(around.runs(one)) == 1)
        around.crashes = 1
        await host.on_message(heartbeat(one))
        await until(lambda: len(around.runs(one)) == 2)
        assert [message.receiver for message in around.sent] == [OWNER, OWNER]
        host.perform(StopProcessor(one))


async def test_a_capture_that_is_to_leave_reports_so_unasked() -> None:
    one, around = ChangefeedId("one"), ActorContext()
    async with anyio.create_task_group() as tasks:
        host = ProcessorHost(HERE, peers=around, plant=around, tasks=tasks, post=lambda event: None)
        meet_owner(host)
        host.perform(start(one))
        await until(lambda: around.liveness(one) is Liveness.ALIVE)
        host.stop_serving()
        await until(lambda: around.liveness(one) is Liveness.STOPPING)
        host.perform(StopProcessor(one))
