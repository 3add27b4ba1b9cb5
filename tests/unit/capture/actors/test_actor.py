"""Actors: order, back-pressure, answers, timers, ends. On virtual time; no test sleeps for real."""

from dataclasses import dataclass, field

import anyio
import pytest
from anyio.lowlevel import checkpoint

from benchmarks.support.actor_system import ActorSystem
from capture.actors.actor import Actor, ActorRef, Context
from capture.errors import ActorDeadError, AskTimeoutError, MailboxFullError
from reactor.errors import NotOwnerError

pytestmark = pytest.mark.looptime


@dataclass
class Recorder:
    """Keeps what it is sent; does what the message says."""

    seen: list[object] = field(default_factory=list)
    gate: anyio.Event = field(default_factory=anyio.Event)
    stopped: int = 0
    context: Context | None = None

    async def on_start(self, context: Context) -> None:
        self.context = context

    async def handle(self, message: object) -> object:
        match message:
            case "wait":
                await self.gate.wait()
            case "refuse":
                raise NotOwnerError("not the owner; ask another capture")
            case "crash":
                raise ZeroDivisionError("boom")
            case ("sleep", float(seconds)):
                await anyio.sleep(seconds)
        self.seen.append(message)
        return ("did", message)

    async def on_stop(self) -> None:
        self.stopped += 1


class Silent:
    """Neither wants its context nor cleans up."""

    async def handle(self, message: object) -> None:
        await checkpoint()


async def test_messages_of_one_sender_are_handled_in_order() -> None:
    recorder = Recorder()
    async with ActorSystem("test") as system:
        ref = system.spawn(recorder, "recorder", mailbox_size=4)
        for number in range(1000):
            await ref.tell(number)
    assert recorder.seen == list(range(1000))


async def test_leaving_the_system_drains_mailboxes_and_stops_once() -> None:
    recorder = Recorder()
    async with ActorSystem("test") as system:
        ref = system.spawn(recorder, "recorder")
        ref.tell_nowait(1)
        ref.tell_nowait(2)
    assert recorder.seen == [1, 2]
    assert recorder.stopped == 1
    assert ref.statistics().is_dead


async def test_ask_returns_what_handle_returns() -> None:
    async with ActorSystem("test") as system:
        ref = system.spawn(Recorder(), "recorder")
        assert await ref.ask("this", timeout_s=1) == ("did", "this")


async def test_an_error_on_purpose_is_the_answer_and_the_actor_lives_on() -> None:
    async with ActorSystem("test") as system:
        ref = system.spawn(Recorder(), "recorder")
        with pytest.raises(NotOwnerError):
            await ref.ask("refuse", timeout_s=1)
        assert await ref.ask("next", timeout_s=1) == ("did", "next")


async def test_ask_gives_up_after_its_time_and_the_message_is_still_handled() -> None:
    recorder = Recorder()
    async with ActorSystem("test") as system:
        ref = system.spawn(recorder, "recorder")
        start = anyio.current_time()
        with pytest.raises(AskTimeoutError, match=r"within 2\.5 s"):
            await ref.ask(("sleep", 10.0), timeout_s=2.5)
        assert anyio.current_time() - start == pytest.approx(2.5)
    assert recorder.seen == [("sleep", 10.0)]


async def test_ask_counts_the_time_it_waits_for_room() -> None:
    recorder = Recorder()
    async with ActorSystem("test") as system:
        ref = system.spawn(recorder, "recorder", mailbox_size=1)
        await ref.tell("wait")
        await anyio.wait_all_tasks_blocked()
        await ref.tell("fills the mailbox")
        with pytest.raises(AskTimeoutError):
            await ref.ask("no room", timeout_s=1)
        recorder.gate.set()
    assert recorder.seen == ["wait", "fills the mailbox"]


async def test_tell_nowait_refuses_when_the_mailbox_is_full() -> None:
    recorder = Recorder()
    async with ActorSystem("test") as system:
        ref = system.spawn(recorder, "recorder", mailbox_size=2)
        ref.tell_nowait(1)
        ref.tell_nowait(2)
        with pytest.raises(MailboxFullError, match="test/recorder is full"):
            ref.tell_nowait(3)
    assert recorder.seen == [1, 2]


async def test_tell_waits_for_room() -> None:
    recorder = Recorder()
    async with ActorSystem("test") as system, anyio.create_task_group() as senders:
        ref = system.spawn(recorder, "recorder", mailbox_size=1)
        ref.tell_nowait("wait")
        await anyio.wait_all_tasks_blocked()
        ref.tell_nowait("second")
        senders.start_soon(ref.tell, "third")
        await anyio.wait_all_tasks_blocked()
        assert ref.statistics().blocked == 1
        recorder.gate.set()
        senders.start_soon(ref.tell, "fourth")
    assert recorder.seen == ["wait", "second", "third", "fourth"]


async def test_stop_at_once_answers_every_unread_envelope() -> None:
    recorder, errors = Recorder(), list[ActorDeadError]()

    async def ask(message: str) -> None:
        with pytest.raises(ActorDeadError) as caught:
            await ref.ask(message, timeout_s=60)
        errors.append(caught.value)

    async with ActorSystem("test") as system, anyio.create_task_group() as askers:
        ref = system.spawn(recorder, "recorder", mailbox_size=2)
        for message in ("wait", "read never", "read never", "waits for room"):
            askers.start_soon(ask, message)
        await anyio.wait_all_tasks_blocked()
        ref.stop(drain=False)
    assert len(errors) == 4
    assert recorder.seen == []
    assert recorder.stopped == 1
    assert anyio.current_time() < 60


async def test_stop_with_drain_handles_what_is_unread_and_takes_nothing_new() -> None:
    recorder = Recorder()
    async with ActorSystem("test") as system:
        ref = system.spawn(recorder, "recorder")
        ref.tell_nowait(1)
        ref.stop()
        with pytest.raises(ActorDeadError):
            ref.tell_nowait(2)
        with pytest.raises(ActorDeadError):
            await ref.tell(2)
        with pytest.raises(ActorDeadError):
            await ref.ask(2, timeout_s=1)
        await ref.wait_dead()
    assert recorder.seen == [1]


async def test_stop_wakes_a_sender_that_waits_for_room() -> None:
    recorder, refused = Recorder(), list[object]()

    async def tell(message: str) -> None:
        try:
            await ref.tell(message)
        except ActorDeadError:
            refused.append(message)

    async with ActorSystem("test") as system, anyio.create_task_group() as senders:
        ref = system.spawn(recorder, "recorder", mailbox_size=1)
        for message in ("wait", "kept", "refused"):
            senders.start_soon(tell, message)
            await anyio.wait_all_tasks_blocked()
        ref.stop()
        recorder.gate.set()
    assert (recorder.seen, refused) == (["wait", "kept"], ["refused"])


async def test_a_crash_ends_the_system_and_names_the_actor() -> None:
    bystander = Recorder()

    async def scenario() -> None:
        async with ActorSystem("test") as system:
            system.spawn(bystander, "bystander")
            ref = system.spawn(Recorder(), "recorder")
            with pytest.raises(ActorDeadError):
                await ref.ask("crash", timeout_s=1)
            await anyio.sleep_forever()

    with pytest.raises(ZeroDivisionError) as caught:
        await scenario()
    assert caught.value.__notes__ == ["in actor test/recorder"]
    assert bystander.stopped == 1


async def test_using_a_crashed_actor_says_that_it_crashed() -> None:
    refs: list[ActorRef[object]] = []

    async def scenario() -> None:
        async with ActorSystem("test") as system:
            refs.append(system.spawn(Recorder(), "recorder"))
            refs[0].tell_nowait("crash")
            await anyio.sleep_forever()

    with pytest.raises(ZeroDivisionError):
        await scenario()
    with pytest.raises(ActorDeadError, match="test/recorder crashed: ZeroDivisionError"):
        refs[0].tell_nowait("anybody there?")


async def test_a_handler_may_raise_what_the_mailbox_uses_inside() -> None:
    class Odd:
        async def handle(self, message: object) -> None:
            raise anyio.WouldBlock

    async def scenario() -> None:
        async with ActorSystem("test") as system:
            system.spawn(Odd(), "odd").tell_nowait(1)

    with pytest.raises(anyio.WouldBlock):
        await scenario()


async def test_timers_fire_in_order_and_can_be_cancelled() -> None:
    recorder = Recorder()
    async with ActorSystem("test") as system:
        ref = system.spawn(recorder, "recorder")
        await ref.ask("started", timeout_s=1)
        assert recorder.context is not None
        recorder.context.schedule(30, "late")
        recorder.context.schedule(10, "early")
        never = recorder.context.schedule(20, "never")
        await anyio.sleep(15)
        never.cancel()
        await anyio.sleep(30)
    assert recorder.seen == ["started", "early", "late"]


async def test_timers_do_not_outlive_the_actor() -> None:
    recorder = Recorder()
    async with ActorSystem("test") as system:
        ref = system.spawn(recorder, "recorder")
        await ref.ask("started", timeout_s=1)
        assert recorder.context is not None
        recorder.context.schedule(1000, "never")
    assert anyio.current_time() < 1000
    assert recorder.seen == ["started"]


async def test_children_end_before_their_parent_cleans_up() -> None:
    ends: list[str] = []

    class Leaf:
        async def handle(self, message: object) -> None: ...

        async def on_stop(self) -> None:
            ends.append("leaf")

    class Root:
        async def on_start(self, context: Context) -> None:
            self.leaf = context.spawn(Leaf(), "leaf")

        async def handle(self, message: object) -> str:
            return self.leaf.name

        async def on_stop(self) -> None:
            ends.append("root")

    async with ActorSystem("test") as system:
        assert await system.spawn(Root(), "root").ask("name", timeout_s=1) == "test/root/leaf"
    assert ends == ["leaf", "root"]


async def test_a_crashed_child_crashes_its_parent() -> None:
    class Parent(Silent):
        async def on_start(self, context: Context) -> None:
            context.spawn(Recorder(), "child").tell_nowait("crash")

    async def scenario() -> None:
        async with ActorSystem("test") as system:
            system.spawn(Parent(), "parent")
            await anyio.sleep_forever()

    with pytest.raises(ZeroDivisionError) as caught:
        await scenario()
    assert caught.value.__notes__ == ["in actor test/parent/child", "in actor test/parent"]


async def test_a_busy_actor_lets_others_run() -> None:
    turns: list[str] = []

    def writer(name: str) -> Actor[object]:
        class Writer:
            async def handle(self, message: object) -> None:
                turns.append(name)

        return Writer()

    async with ActorSystem("test") as system:
        refs = [system.spawn(writer(name), name, mailbox_size=2000) for name in "ab"]
        for ref in refs:
            for number in range(2000):
                ref.tell_nowait(number)
    assert turns.index("b") < 1000 < len(turns) - turns[::-1].index("a")


async def test_statistics_count() -> None:
    recorder = Recorder()
    async with ActorSystem("test") as system:
        ref = system.spawn(recorder, "recorder", mailbox_size=7)
        await ref.ask("first", timeout_s=1)
        ref.tell_nowait("wait")
        await anyio.wait_all_tasks_blocked()
        ref.tell_nowait("third")
        statistics = ref.statistics()
        recorder.gate.set()
    assert statistics.name == "test/recorder"
    assert (statistics.handled, statistics.waiting, statistics.mailbox_size) == (2, 1, 7)
    assert (statistics.starts, statistics.is_dead) == (1, False)
