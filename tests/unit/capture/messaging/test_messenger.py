"""Messaging: order kept, nothing lost, nothing doubled; whatever is wrong costs a connection and nothing else.

Most tests run on virtual time over a network in memory; the last ones over real loopback. Who is let in is tested in
``test_admission``.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random

import anyio
import pytest
from anyio.abc import ByteStream

from benchmarks.support.actor_system import ActorSystem
from capture.errors import (
    ConfigError,
    FrameTooLargeError,
    PeerCongestedError,
    PeerMismatchError,
    PeerUnknownError,
    PeerUnreachableError,
    PortInUseError,
    TopicTakenError,
)
from capture.messaging import frames
from capture.messaging.messenger import Handler, LinkState, MessagingSettings, Messenger
from capture.messaging.transport import TcpTransport
from reactor.ids import CaptureId, ChangefeedId, TableSpan
from reactor.messages import Header, Heartbeat, Message, StopWorker
from tests.unit.capture.network import MemoryNetwork

A, B, C = CaptureId("capture-a"), CaptureId("capture-b"), CaptureId("capture-c")
TOPIC, OTHER = "changefeed/feed/agent", "changefeed/feed/owner"
SETTINGS = MessagingSettings(window=16, keepalive_s=5, backoff_s=0.05, backoff_s_max=1)


def message(number: int, *, sender: CaptureId = A, receiver: CaptureId = B) -> Message:
    return Message(sender, receiver, ChangefeedId("feed"), Header("1", 1, "", 1), StopWorker("source", number))


def number_of(received: Message) -> int:
    assert isinstance(received.body, StopWorker)
    return received.body.epoch


@dataclass
class Receiver:
    """A handler that keeps what it gets; waits while its gate is shut."""

    seen: list[int] = field(default_factory=list)
    wanted: int = 0
    arrived: anyio.Event = field(default_factory=anyio.Event)
    gate: anyio.Event | None = None

    async def __call__(self, received: Message) -> None:
        if self.gate is not None:
            await self.gate.wait()
        self.seen.append(number_of(received))
        if len(self.seen) >= self.wanted:
            self.arrived.set()

    async def wait_for(self, count: int) -> None:
        self.wanted, self.arrived = count, anyio.Event()
        if len(self.seen) < count:
            with anyio.fail_after(60):
                await self.arrived.wait()


@dataclass
class Cluster:
    """Messengers that know each other, on one network in memory."""

    network: MemoryNetwork
    stack: AsyncExitStack
    settings: MessagingSettings = SETTINGS
    members: dict[CaptureId, Messenger] = field(default_factory=dict)

    async def join(self, capture: CaptureId) -> Messenger:
        messenger = Messenger(capture, listen=f"{capture}:1", transport=self.network, settings=self.settings)
        self.members[capture] = await self.stack.enter_async_context(messenger)
        self.introduce()
        await anyio.wait_all_tasks_blocked()
        return messenger

    def introduce(self) -> None:
        for member in self.members.values():
            member.set_peers({capture: other.address for capture, other in self.members.items()})


@asynccontextmanager
async def cluster(settings: MessagingSettings = SETTINGS) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(MemoryNetwork(), stack, settings)


looptime = pytest.mark.looptime


@looptime
async def test_messages_arrive_in_order_on_every_topic() -> None:
    async with cluster() as c:
        a, b = await c.join(A), await c.join(B)
        receivers = {topic: Receiver() for topic in ("one", "two", "three")}
        for topic, receiver in receivers.items():
            b.register(topic, receiver)
        for number in range(300):
            for topic in receivers:
                await a.send(topic, message(number))
        for receiver in receivers.values():
            await receiver.wait_for(300)
            assert receiver.seen == list(range(300))


@looptime
async def test_both_ways_at_once() -> None:
    async with cluster() as c:
        a, b = await c.join(A), await c.join(B)
        at_a, at_b = Receiver(), Receiver()
        a.register(TOPIC, at_a)
        b.register(TOPIC, at_b)
        for number in range(100):
            await a.send(TOPIC, message(number))
            await b.send(TOPIC, message(number, sender=B, receiver=A))
        await at_a.wait_for(100)
        await at_b.wait_for(100)
        assert at_a.seen == at_b.seen == list(range(100))


@looptime
async def test_what_is_handled_is_forgotten_by_the_sender() -> None:
    async with cluster() as c:
        a, b = await c.join(A), await c.join(B)
        receiver = Receiver()
        b.register(TOPIC, receiver)
        await a.send(TOPIC, message(1))
        await receiver.wait_for(1)
        await anyio.sleep(1)
        (link,) = a.statistics().links
        assert (link.owed, link.owed_bytes, link.state) == (0, 0, LinkState.CONNECTED)


@looptime
async def test_messages_before_the_peer_listens_arrive_when_it_does() -> None:
    async with cluster() as c:
        a = await c.join(A)
        a.set_peers({B: f"{B}:1"})
        for number in range(5):
            a.send_nowait(TOPIC, message(number))
        await anyio.sleep(30)
        receiver = Receiver()
        (await c.join(B)).register(TOPIC, receiver)
        await receiver.wait_for(5)
        assert receiver.seen == [0, 1, 2, 3, 4]


@looptime
async def test_connections_that_break_all_the_time_lose_and_double_nothing() -> None:
    async with anyio.create_task_group() as tasks, cluster() as c:
        a, b = await c.join(A), await c.join(B)
        receivers = {topic: Receiver() for topic in (TOPIC, OTHER)}
        for topic, receiver in receivers.items():
            b.register(topic, receiver)

        async def breaks() -> None:
            while True:
                await anyio.sleep(0.13)
                c.network.cut_all()

        tasks.start_soon(breaks)
        for number in range(400):
            for topic in receivers:
                await a.send(topic, message(number))
            if number % 7 == 0:
                await anyio.sleep(0.01)
        for receiver in receivers.values():
            await receiver.wait_for(400)
            assert receiver.seen == list(range(400))
        tasks.cancel_scope.cancel()
        assert len(c.network.clients) > 4


@looptime
async def test_an_acknowledgement_lost_with_its_connection_doubles_nothing() -> None:
    async with cluster() as c:
        a, b = await c.join(A), await c.join(B)
        receiver = Receiver()
        b.register(TOPIC, receiver)
        await a.send(TOPIC, message(1))
        await receiver.wait_for(1)
        c.network.cut_all()  # handled, and the Ack is not yet on its way
        await a.send(TOPIC, message(2))
        await receiver.wait_for(2)
        await anyio.sleep(1)
        assert receiver.seen == [1, 2]
        (link,) = a.statistics().links
        assert link.owed == 0
        assert link.resent >= 1
        assert b.statistics().senders[0].duplicates == 1


@looptime
async def test_a_full_window_makes_send_wait_and_send_nowait_refuse() -> None:
    async with anyio.create_task_group() as tasks, cluster() as c:
        a, b = await c.join(A), await c.join(B)
        for number in range(16):
            a.send_nowait(TOPIC, message(number))
        with pytest.raises(PeerCongestedError, match="16 messages to capture-b wait"):
            a.send_nowait(TOPIC, message(99))
        tasks.start_soon(a.send, TOPIC, message(16))
        tasks.start_soon(a.send, TOPIC, message(17))
        await anyio.sleep(10)
        assert a.statistics().links[0].owed == 16
        assert b.statistics().waiting == {TOPIC: 16}
        receiver = Receiver()
        b.register(TOPIC, receiver)
        await receiver.wait_for(18)
        assert receiver.seen == list(range(18))


@looptime
async def test_a_slow_topic_holds_up_no_other() -> None:
    async with cluster() as c:
        a, b = await c.join(A), await c.join(B)
        slow, quick = Receiver(gate=anyio.Event()), Receiver()
        b.register("slow", slow)
        b.register("quick", quick)
        for number in range(16):
            a.send_nowait("slow", message(number))
        for number in range(100):
            await a.send("quick", message(number))
        await quick.wait_for(100)
        assert slow.seen == []
        assert slow.gate is not None
        slow.gate.set()
        await slow.wait_for(16)


@looptime
async def test_a_receiver_with_a_smaller_window_is_not_overrun() -> None:
    async with cluster() as c:
        a = await c.join(A)
        a.set_peers({B: f"{B}:1"})
        for number in range(16):
            a.send_nowait(TOPIC, message(number))
        c.settings = MessagingSettings(window=3)
        b = await c.join(B)
        await anyio.sleep(1)
        assert b.statistics().waiting == {TOPIC: 3}
        receiver = Receiver()
        b.register(TOPIC, receiver)
        await receiver.wait_for(16)
        assert receiver.seen == list(range(16))
        assert b.statistics().refused == 0


@looptime
async def test_a_handler_may_change_and_misses_nothing() -> None:
    async with cluster() as c:
        a, b = await c.join(A), await c.join(B)
        first, second = Receiver(), Receiver()
        b.register(TOPIC, first)
        with pytest.raises(TopicTakenError):
            b.register(TOPIC, second)
        await a.send(TOPIC, message(1))
        await first.wait_for(1)
        b.unregister(TOPIC)
        await a.send(TOPIC, message(2))
        await anyio.sleep(1)
        b.register(TOPIC, second)
        await second.wait_for(1)
        assert (first.seen, second.seen) == ([1], [2])


@looptime
async def test_a_discarded_topic_owes_and_keeps_nothing() -> None:
    async with cluster() as c:
        a, b = await c.join(A), await c.join(B)
        for number in range(16):
            a.send_nowait(TOPIC, message(number))
        await anyio.sleep(1)
        b.unregister(TOPIC, discard=True)
        await anyio.sleep(1)
        assert b.statistics().waiting == {}
        assert a.statistics().links[0].owed == 0


@looptime
async def test_a_handler_that_fails_has_had_its_message() -> None:
    seen: list[int] = []

    async def fails_once(received: Message) -> None:
        seen.append(number_of(received))
        if len(seen) == 1:
            raise ZeroDivisionError("boom")

    async with cluster() as c:
        a, b = await c.join(A), await c.join(B)
        b.register(TOPIC, fails_once)
        await a.send(TOPIC, message(1))
        await a.send(TOPIC, message(2))
        await anyio.sleep(1)
        assert seen == [1, 2]
        assert a.statistics().links[0].owed == 0


@looptime
async def test_a_dead_actor_loses_its_topic_and_not_the_message() -> None:
    class Sink:
        async def handle(self, received: Message) -> None: ...

    async with ActorSystem("test") as system, cluster() as c:
        a, b = await c.join(A), await c.join(B)
        ref = system.spawn(Sink(), "sink")
        b.register(TOPIC, ref.tell)
        ref.stop()
        await ref.wait_dead()
        await a.send(TOPIC, message(1))
        await anyio.sleep(1)
        receiver = Receiver()
        b.register(TOPIC, receiver)
        await receiver.wait_for(1)
        assert receiver.seen == [1]


async def send_until_refused(messenger: Messenger) -> int:
    """How many messages there was room for."""
    for sent in range(1000):
        try:
            messenger.send_nowait(TOPIC, message(sent))
        except PeerCongestedError:
            return sent
        await anyio.sleep(0.2)
    raise AssertionError("never refused")


@looptime
async def test_a_full_mailbox_reaches_the_sender() -> None:
    gate = anyio.Event()

    class Slow:
        def __init__(self) -> None:
            self.seen: list[int] = []

        async def handle(self, received: Message) -> None:
            await gate.wait()
            self.seen.append(number_of(received))

    async with ActorSystem("test") as system, cluster() as c:
        a, b = await c.join(A), await c.join(B)
        slow = Slow()
        b.register(TOPIC, system.spawn(slow, "slow", mailbox_size=2).tell)
        sent = await send_until_refused(a)
        assert sent < 25  # the window, the mailbox, and the two on their way
        gate.set()
        await anyio.sleep(1)
        assert slow.seen == list(range(sent))


@looptime
async def test_messages_to_oneself_take_no_connection_and_keep_the_window() -> None:
    async with cluster() as c:
        a = await c.join(A)
        for number in range(16):
            a.send_nowait(TOPIC, message(number, receiver=A))
        with pytest.raises(PeerCongestedError, match="to oneself"):
            a.send_nowait(TOPIC, message(99, receiver=A))
        receiver = Receiver()
        a.register(TOPIC, receiver)
        for number in range(16, 100):
            await a.send(TOPIC, message(number, receiver=A))
        await receiver.wait_for(100)
        assert receiver.seen == list(range(100))
        assert c.network.attempts == 0


@looptime
async def test_sending_to_a_stranger_is_refused() -> None:
    async with cluster() as c:
        a = await c.join(A)
        with pytest.raises(PeerUnknownError):
            await a.send(TOPIC, message(1))
        with pytest.raises(PeerUnknownError):
            a.send_nowait(TOPIC, message(1))


@looptime
async def test_a_peer_that_leaves_is_owed_nothing_and_frees_who_waits() -> None:
    refused: list[int] = []

    async def send(messenger: Messenger, number: int) -> None:
        try:
            await messenger.send(TOPIC, message(number))
        except PeerUnknownError:
            refused.append(number)

    async with anyio.create_task_group() as tasks, cluster() as c:
        a = await c.join(A)
        a.set_peers({B: "nobody:1"})
        for number in range(18):
            tasks.start_soon(send, a, number)
        await anyio.sleep(10)
        a.set_peers({})
        await anyio.wait_all_tasks_blocked()
        assert sorted(refused) == [16, 17]
        attempts = c.network.attempts
        await anyio.sleep(60)
        assert c.network.attempts == attempts


@looptime
async def test_a_restarted_receiver_is_another_peer_and_is_owed_nothing() -> None:
    async with cluster() as c:
        a, b = await c.join(A), await c.join(B)
        await a.send(TOPIC, message(1))
        await anyio.sleep(1)
        assert b.statistics().waiting == {TOPIC: 1}
        del c.members[B]
        reborn = await c.join(C)
        receiver = Receiver()
        reborn.register(TOPIC, receiver)
        await a.send(TOPIC, message(2, receiver=C))
        await receiver.wait_for(1)
        await anyio.sleep(5)
        assert receiver.seen == [2]


@looptime
async def test_a_sender_that_left_takes_its_waiting_messages_along() -> None:
    async with cluster() as c:
        a, b = await c.join(A), await c.join(B)
        await a.send(TOPIC, message(1))
        await anyio.sleep(1)
        assert b.statistics().waiting == {TOPIC: 1}
        b.set_peers({})
        assert b.statistics().waiting == {}


@looptime
async def test_a_peer_that_left_and_came_back_is_heard_again() -> None:
    """Its numbers restart at the sender; the receiver, which never saw it leave, must not take them for old ones."""
    async with cluster() as c:
        a, b = await c.join(A), await c.join(B)
        receiver = Receiver()
        b.register(TOPIC, receiver)
        for number in range(5):
            await a.send(TOPIC, message(number))
        await receiver.wait_for(5)
        a.set_peers({})
        a.set_peers({B: b.address})
        for number in range(5, 8):
            await a.send(TOPIC, message(number))
        await receiver.wait_for(8)
        assert receiver.seen == list(range(8))


@looptime
async def test_a_receiver_that_forgot_its_sender_still_gets_what_it_is_owed() -> None:
    async with cluster() as c:
        a, b = await c.join(A), await c.join(B)
        receiver = Receiver()
        b.register(TOPIC, receiver)
        for number in range(5):
            await a.send(TOPIC, message(number))
        await receiver.wait_for(5)
        await anyio.sleep(1)
        b.set_peers({})
        b.set_peers({A: a.address})
        for number in range(5, 8):
            await a.send(TOPIC, message(number))
        await receiver.wait_for(8)
        assert receiver.seen == list(range(8))


@looptime
async def test_the_wrong_capture_is_refused_until_the_address_changes() -> None:
    async with cluster() as c:
        a, b, other = await c.join(A), await c.join(B), await c.join(C)
        receiver = Receiver()
        b.register(TOPIC, receiver)
        a.set_peers({B: other.address})
        await anyio.sleep(1)
        assert a.statistics().links[0].state is LinkState.MISMATCHED
        with pytest.raises(PeerMismatchError):
            await a.send(TOPIC, message(1))
        attempts = c.network.attempts
        await anyio.sleep(60)
        assert c.network.attempts == attempts
        a.set_peers({B: b.address})
        await anyio.sleep(1)
        await a.send(TOPIC, message(2))
        await receiver.wait_for(1)
        assert receiver.seen == [2]


@looptime
async def test_what_was_owed_follows_the_peer_to_its_new_address() -> None:
    async with cluster() as c:
        a = await c.join(A)
        a.set_peers({B: "nobody:1"})
        await a.send(TOPIC, message(1))
        await anyio.sleep(1)
        receiver = Receiver()
        (await c.join(B)).register(TOPIC, receiver)
        await receiver.wait_for(1)
        assert receiver.seen == [1]


@looptime
async def test_the_waits_between_attempts_grow_to_their_limit() -> None:
    async with cluster() as c:
        a = await c.join(A)
        a.set_peers({B: "nobody:1"})
        await anyio.sleep(60)
        assert 60 < c.network.attempts < 75


@looptime
async def test_a_silent_connection_is_given_up_and_nothing_is_lost() -> None:
    async with cluster() as c:
        a, b = await c.join(A), await c.join(B)
        receiver = Receiver()
        b.register(TOPIC, receiver)
        for stream in c.network.clients:
            stream.is_stalled = True
        await a.send(TOPIC, message(1))
        await receiver.wait_for(1)
        assert anyio.current_time() < 20
        assert receiver.seen == [1]


@looptime
async def test_an_idle_connection_is_kept() -> None:
    async with cluster() as c:
        a, _ = await c.join(A), await c.join(B)
        await anyio.sleep(600)
        assert a.statistics().links[0].connections == 1


@looptime
async def test_a_trickle_that_nobody_handles_keeps_its_connection() -> None:
    async with cluster(MessagingSettings(keepalive_s=5)) as c:
        a, _ = await c.join(A), await c.join(B)
        for number in range(60):
            await a.send(TOPIC, message(number))
            await anyio.sleep(1)
        assert a.statistics().links[0].connections == 1


@looptime
async def test_an_address_that_is_none_is_tried_until_it_is_corrected() -> None:
    async with Messenger(A, settings=SETTINGS) as a:
        a.set_peers({B: "not an address"})
        await a.send(TOPIC, message(1))
        await anyio.sleep(5)
        assert a.statistics().links[0].state is LinkState.CONNECTING


@looptime
@pytest.mark.parametrize("seed", range(8))
async def test_any_faults_at_any_time_lose_and_double_nothing(seed: int) -> None:
    """Cuts, stalls, outages, slow handlers and changes of handlers, in an order given by the seed."""
    dice = Random(seed)
    seen: dict[str, list[int]] = {"one": [], "two": [], "three": []}

    def handler(topic: str) -> Handler:
        async def handle(received: Message) -> None:
            if dice.random() < 0.1:
                await anyio.sleep(dice.random())
            seen[topic].append(number_of(received))

        return handle

    async def send_all(sender: Messenger, topic: str) -> None:
        for number in range(150):
            await sender.send(topic, message(number))
            if dice.random() < 0.3:
                await anyio.sleep(dice.random() / 10)

    async def faults(network: MemoryNetwork, receiver: Messenger) -> None:
        while True:
            await anyio.sleep(dice.random() * 2)
            match dice.randrange(4):
                case 0:
                    network.cut_all()
                case 1:
                    for stream in network.clients:
                        stream.is_stalled |= dice.random() < 0.5  # until it is cut: TCP loses no bytes in between
                case 2:
                    network.is_down = not network.is_down
                case 3:
                    topic = dice.choice(list(seen))
                    receiver.unregister(topic)
                    await anyio.sleep(dice.random())
                    receiver.register(topic, handler(topic))

    async with cluster() as c:
        a, b = await c.join(A), await c.join(B)
        for topic in seen:
            b.register(topic, handler(topic))
        async with anyio.create_task_group() as faulty:
            faulty.start_soon(faults, c.network, b)
            async with anyio.create_task_group() as senders:
                for topic in seen:
                    senders.start_soon(send_all, a, topic)
            faulty.cancel_scope.cancel()
        c.network.is_down = False
        for topic in seen:
            with suppress(TopicTakenError):
                b.register(topic, handler(topic))
        await anyio.sleep(120)
    assert seen == {topic: list(range(150)) for topic in seen}


@looptime
async def test_a_message_over_the_limit_is_refused_and_harms_no_other() -> None:
    async with cluster(MessagingSettings(frame_bytes_max=500)) as c:
        a, b = await c.join(A), await c.join(B)
        receiver = Receiver()
        b.register(TOPIC, receiver)
        heavy = Message(A, B, ChangefeedId("feed"), Header("1", 1, "", 1), Heartbeat((TableSpan(1),) * 1000))
        with pytest.raises(FrameTooLargeError):
            await a.send(TOPIC, heavy)
        await a.send(TOPIC, message(1))
        await receiver.wait_for(1)
        assert receiver.seen == [1]


async def greet(c: Cluster, capture: CaptureId, connection: int, *, stream: int = 1) -> ByteStream:
    """A connection made by hand."""
    wire = await c.network.connect(f"{B}:1")
    await wire.send(frames.encode(frames.Hello(capture, B, connection, stream)))
    return wire


async def answer_on(wire: ByteStream) -> frames.Frame | frames.Skipped:
    with anyio.fail_after(30):
        return frames.Decoder().feed(await wire.receive())[0]


@looptime
@pytest.mark.parametrize(
    ("connection", "stream", "reason"),
    [(5, 1, frames.Reason.DUPLICATE), (4, 1, frames.Reason.STALE), (9, 0, frames.Reason.STALE)],
)
async def test_old_and_doubled_connections_are_refused(connection: int, stream: int, reason: frames.Reason) -> None:
    async with cluster() as c:
        await c.join(B)
        wire = await greet(c, A, 5)
        assert isinstance(await answer_on(wire), frames.Welcome)
        late = await greet(c, A, connection, stream=stream)
        answer = await answer_on(late)
        assert isinstance(answer, frames.Refuse)
        assert answer.reason is reason
        await wire.send(frames.encode(frames.Ping()))
        assert await answer_on(wire) == frames.Pong()
        for end in (late, wire):
            await end.aclose()


@looptime
async def test_a_newer_connection_takes_over() -> None:
    async with cluster() as c:
        await c.join(B)
        old = await greet(c, A, 5)
        assert isinstance(await answer_on(old), frames.Welcome)
        new = await greet(c, A, 6)
        assert isinstance(await answer_on(new), frames.Welcome)
        with pytest.raises((anyio.EndOfStream, anyio.ClosedResourceError)):
            await old.receive()
        await new.aclose()


@looptime
@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", frames.Reason.BROKEN),
        (frames.encode(frames.Ping()), frames.Reason.BROKEN),
        (b"", frames.Reason.BROKEN),
        (frames.encode(frames.Hello(A, C, 1, 1)), frames.Reason.WRONG_RECEIVER),
        (frames.encode(frames.Hello(A, B, 1, 1, major=9)), frames.Reason.WRONG_VERSION),
    ],
)
async def test_who_does_not_greet_properly_is_refused_with_a_reason(sent: bytes, reason: frames.Reason) -> None:
    async with cluster() as c:
        await c.join(B)
        wire = await c.network.connect(f"{B}:1")
        await wire.send(sent)
        answer = await answer_on(wire)
        assert isinstance(answer, frames.Refuse)
        assert answer.reason is reason
        await wire.aclose()


@looptime
@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ([b"garbage"], frames.Reason.BROKEN),
        ([frames.encode(frames.Data(TOPIC, 1, message(1, sender=C)))], frames.Reason.BROKEN),
        ([frames.encode(frames.Data(TOPIC, number, message(1))) for number in (1, 3)], frames.Reason.BROKEN),
        ([frames.encode(frames.Data(TOPIC, number, message(1))) for number in range(1, 20)], frames.Reason.CONGESTED),
        ([frames.encode(frames.Welcome(1))], frames.Reason.BROKEN),
    ],
)
async def test_whoever_misbehaves_loses_its_connection_only(sent: list[bytes], reason: frames.Reason) -> None:
    async with cluster() as c:
        b, other = await c.join(B), await c.join(C)
        wire = await greet(c, A, 1)
        await answer_on(wire)
        for data in sent:
            await wire.send(data)
        answer = await answer_on(wire)
        while isinstance(answer, frames.Ack):
            answer = await answer_on(wire)
        assert isinstance(answer, frames.Refuse)
        assert answer.reason is reason
        await wire.aclose()
        receiver = Receiver()
        b.register(OTHER, receiver)
        await other.send(OTHER, message(7, sender=C))
        await receiver.wait_for(1)
        assert receiver.seen == [7]


@looptime
async def test_what_a_newer_version_says_is_skipped_and_acknowledged() -> None:
    async with cluster() as c:
        b = await c.join(B)
        receiver = Receiver()
        b.register(TOPIC, receiver)
        wire = await greet(c, A, 1)
        await answer_on(wire)
        unknown = bytearray(frames.encode(frames.Data(TOPIC, 1, message(1))))
        unknown[unknown.index(b"\x07\x92\xa6source")] = 0x7F
        await wire.send(bytes(unknown) + frames.encode(frames.Data(TOPIC, 2, message(2))))
        await receiver.wait_for(1)
        assert receiver.seen == [2]
        assert await answer_on(wire) == frames.Ack(TOPIC, 2)
        assert b.statistics().skipped == 1
        await wire.aclose()


@looptime
async def test_a_taken_address_is_named() -> None:
    async with cluster() as c:
        await c.join(A)
        with pytest.raises(PortInUseError, match="capture-a:1"):
            await Messenger(B, listen=f"{A}:1", transport=c.network).__aenter__()


# over real loopback


async def exchange(one: Messenger, other: Messenger, count: int = 500) -> None:
    """``count`` messages each way, in order."""
    at_one, at_other = Receiver(), Receiver()
    one.register(TOPIC, at_one)
    other.register(TOPIC, at_other)
    for messenger in (one, other):
        messenger.set_peers({one.capture_id: one.address, other.capture_id: other.address})
    for number in range(count):
        await one.send(TOPIC, message(number, sender=one.capture_id, receiver=other.capture_id))
        await other.send(TOPIC, message(number, sender=other.capture_id, receiver=one.capture_id))
    for receiver in (at_one, at_other):
        await receiver.wait_for(count)
        assert receiver.seen == list(range(count))


async def test_two_messengers_over_tcp() -> None:
    async with Messenger(A) as a, Messenger(B) as b:
        await exchange(a, b)


async def forward(source: ByteStream, target: ByteStream) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for chunk in source:
            await target.send(chunk)
    await anyio.aclose_forcefully(target)


async def test_tcp_connections_that_are_reset_lose_and_double_nothing() -> None:
    """Through a proxy that resets its connections, wherever in a frame they are."""
    through: list[ByteStream] = []
    hasty = MessagingSettings(ack_interval_s=0.01, backoff_s=0.01, backoff_s_max=0.02)

    async with Messenger(A, settings=hasty) as a, Messenger(B, settings=hasty) as b, anyio.create_task_group() as tasks:
        proxy = await TcpTransport().listen("127.0.0.1:0")

        async def relay(incoming: ByteStream) -> None:
            async with incoming, await TcpTransport().connect(b.address) as outgoing:
                through.extend((incoming, outgoing))
                async with anyio.create_task_group() as pair:
                    pair.start_soon(forward, incoming, outgoing)
                    pair.start_soon(forward, outgoing, incoming)

        tasks.start_soon(proxy.serve, relay)
        receiver = Receiver()
        b.register(TOPIC, receiver)
        a.set_peers({B: proxy.address})
        for number in range(3000):
            await a.send(TOPIC, message(number))
            if number % 300 == 150:
                await receiver.wait_for(number - 100)
                while through:
                    await anyio.aclose_forcefully(through.pop())
        await receiver.wait_for(3000)
        assert receiver.seen == list(range(3000))
        assert a.statistics().links[0].connections > 5
        tasks.cancel_scope.cancel()
    await proxy.aclose()


async def test_a_port_in_use_is_named() -> None:
    async with Messenger(A) as a:
        with pytest.raises(PortInUseError, match=a.address):
            await Messenger(B, listen=a.address).__aenter__()


async def test_nobody_at_the_address_is_named() -> None:
    async with Messenger(A) as a:
        free = a.address
    with pytest.raises(PeerUnreachableError, match=free):
        await TcpTransport().connect(free)


async def test_garbage_on_the_port_has_no_effect() -> None:
    async with Messenger(A) as a, Messenger(B) as b:
        async with await TcpTransport().connect(b.address) as wire:
            await wire.send(b"\x16\x03\x01\x02\x00\x01\x00" * 100)
            assert isinstance(await answer_on(wire), frames.Refuse)
        await exchange(a, b)


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:x", "host:70000"])
async def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        await TcpTransport().connect(address)
    with pytest.raises(ConfigError, match="host:port"):
        await TcpTransport().listen(address)
