"""The two-phase protocol whole: the real coordinator and real agents over a network that delays, loses and doubles.

Messages of one pair keep their order (``capture.messaging.messenger`` promises it); executors answer when they like;
captures die, join, and restart their processors; owners change. At no time may two captures write one span, and once
the disturbances end every span is written by exactly one.
"""

from collections import deque
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.control import effects
from agent.control.agent import Agent
from agent.control.gate import Gate, Owner
from owner.scheduler.coordinator import Coordinator, Identity
from owner.scheduler.replication import SetState
from owner.settings import SchedulerSettings
from reactor.effects import Send
from reactor.ids import CaptureId, TableSpan, Ts
from reactor.messages import Barrier, Message, SpanCheckpoint
from reactor.records.changefeed import RunningError
from tests.example_counts import many
from tests.unit.owner.owner_build import FEED

_SETTINGS = SchedulerSettings(heartbeat_s=1.0, full_heartbeat_s=2.0, check_balance_interval_s=5.0)
_TABLES = {1: Ts(1), 2: Ts(1), 3: Ts(1)}
_ERROR = RunningError(code="Sink", message="it broke")


class _Processor:
    """An agent and its executor: what it is asked to do is done some time later, in order."""

    def __init__(self, capture: CaptureId, run: int, network: "_Network") -> None:
        self.agent = Agent(capture, FEED, gate=Gate(f"run-{run}", 1, version="0.1.0"))
        self.work: deque[effects.AgentEffect] = deque()
        self.writing: set[TableSpan] = set()
        self.written_to: dict[TableSpan, int] = {}
        self._network = network

    def take(self, done: list[effects.AgentEffect]) -> None:
        for effect in done:
            match effect:
                case Send():
                    self._network.send(effect.message)
                case effects.PrepareSpan() | effects.RunSpan() | effects.StopSpan():
                    self.work.append(effect)

    def work_once(self) -> None:
        if not self.work:
            return
        match self.work.popleft():
            case effects.PrepareSpan(span=span):
                self._happened(effects.SpanPrepared(span))
            case effects.RunSpan(span=span, checkpoint_ts=ts):
                self.writing.add(span)
                self.written_to[span] = max(ts, self.written_to.get(span, 0))
                self._happened(effects.SpanRunning(span))
            case effects.StopSpan(span=span):
                self.writing.discard(span)
                self._happened(effects.SpanStopped(span, self._at(span)))

    def write(self, span: TableSpan) -> None:
        self.written_to[span] += 1
        self._happened(effects.SpanProgress(span, self._at(span)))

    def fail(self, span: TableSpan) -> None:
        """The executor gives up by itself; a stop that is under way finds nothing."""
        self.writing.discard(span)
        self.work = deque(effect for effect in self.work if getattr(effect, "span", None) != span)
        self._happened(effects.SpanFailed(span, _ERROR))

    def _at(self, span: TableSpan) -> SpanCheckpoint:
        ts = Ts(self.written_to.get(span, 0))
        return SpanCheckpoint(ts, ts)

    def _happened(self, event: effects.SpanEvent) -> None:
        self.take(self.agent.handle_event(event, 0.0))


class _Network:
    """One queue for each pair; losing and doubling keep the order of what remains."""

    def __init__(self, random: Random) -> None:
        self.queues: dict[tuple[CaptureId, CaptureId], deque[Message]] = {}
        self.is_calm = False
        self._random = random

    def send(self, message: Message) -> None:
        chance = 1.0 if self.is_calm else self._random.random()
        copies = 0 if chance < 0.15 else 2 if chance < 0.3 else 1
        queue = self.queues.setdefault((message.sender, message.receiver), deque())
        queue.extend([message] * copies)

    def receive(self, pair: tuple[CaptureId, CaptureId]) -> Message | None:
        queue = self.queues.get(pair)
        return queue.popleft() if queue else None


class _Cluster:
    """Everything, moved one random step at a time."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.network = _Network(random)
        self.now = 0.0
        self.runs = 0
        self.processors: dict[CaptureId, _Processor] = {}
        for _ in range(3):
            self.join()
        self.owner = self._elect(1)

    def join(self) -> None:
        capture = CaptureId(f"c{self.runs}")
        self.runs += 1
        self.processors[capture] = _Processor(capture, self.runs, self.network)

    def die(self) -> None:
        if len(self.processors) > 1:
            capture = self.random.choice(sorted(self.processors))
            del self.processors[capture]

    def restart(self) -> None:
        capture = self.random.choice(sorted(self.processors))
        self.runs += 1
        self.processors[capture] = _Processor(capture, self.runs, self.network)

    def change_owner(self) -> None:
        self.owner = self._elect(self.owner.identity.owner_revision + 1)

    def poll(self) -> None:
        self.now += self.random.random()
        arrived = []
        for pair in sorted(self.network.queues):
            while pair[1] == self.owner.identity.capture and (message := self.network.receive(pair)):
                arrived.append(message)
                if self.random.random() < 0.3:
                    break
        for send in self.owner.poll(_TABLES, sorted(self.processors), arrived, Barrier(), self.now):
            self.network.send(send.message)

    def deliver(self) -> None:
        for pair in sorted(self.network.queues):
            processor = self.processors.get(pair[1])
            if processor is not None and self.random.random() < 0.6 and (message := self.network.receive(pair)):
                if processor.agent.gate.owner.revision < message.header.owner_revision:  # etcd shows the owner by then
                    processor.agent.gate.elect(Owner(message.sender, message.header.owner_revision))
                processor.take(processor.agent.handle(message, self.now))

    def work(self) -> None:
        for capture in sorted(self.processors):
            processor = self.processors[capture]
            if self.random.random() < 0.6:
                processor.work_once()
            for span in sorted(processor.writing):
                if self.random.random() < 0.3:
                    processor.write(span)
            processor.take(processor.agent.tick(self.now))

    def fail(self) -> None:
        for capture in sorted(self.processors):
            for span in sorted(self.processors[capture].writing)[:1]:
                self.processors[capture].fail(span)

    def move(self) -> None:
        """A table to anybody."""
        capture = self.random.choice(sorted(self.processors))
        self.owner.move_table(self.random.choice(sorted(_TABLES)), capture)

    def wish(self) -> None:
        capture = self.random.choice(sorted(self.processors))
        match self.random.randrange(3):
            case 0:
                self.owner.move_table(self.random.choice(sorted(_TABLES)), capture)
            case 1:
                self.owner.rebalance()
            case 2:
                self.owner.drain(capture)

    def check(self) -> None:
        writers = [span for processor in self.processors.values() for span in processor.writing]
        assert len(writers) == len(set(writers)), "two captures write one span"

    def is_settled(self) -> bool:
        sets = self.owner.sets
        writers = sorted(span for processor in self.processors.values() for span in processor.writing)
        replicating = all(known.state is SetState.REPLICATING for known in sets.values())
        return replicating and writers == sorted(sets) == [TableSpan(table) for table in _TABLES]

    def _elect(self, revision: int) -> Coordinator:
        owner = CaptureId(f"owner-{revision}")
        return Coordinator(Identity(owner, FEED, "0.1.0", revision, 1), _SETTINGS)


@settings(max_examples=many(100), deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32), st.integers(20, 300))
def test_one_writer_always_and_all_spans_written_in_the_end(seed: int, steps: int) -> None:
    random = Random(seed)
    cluster = _Cluster(random)
    usual = [cluster.poll, cluster.deliver, cluster.work] * 8
    rare = [cluster.die, cluster.join, cluster.restart, cluster.change_owner, cluster.fail, cluster.wish, cluster.wish]
    for _ in range(steps):
        random.choice(usual + rare)()
        cluster.check()
    cluster.network.is_calm = True
    cluster.join()  # all others may be leaving
    for _ in range(600):  # of thousands of seeds, one needs more than 200
        for step in (cluster.poll, cluster.deliver, cluster.work):
            step()
            cluster.check()
        if cluster.is_settled():
            return
    raise AssertionError("it does not settle")


@settings(max_examples=many(100), deadline=None, derandomize=True)
@given(st.integers(0, 1 << 32))
def test_moves_under_changing_owners_never_make_two_writers(seed: int) -> None:
    """From a settled cluster, where moves really begin; executors are slow to stop, and no owner stays for long."""
    cluster = _Cluster(Random(seed))
    cluster.network.is_calm = True
    while not cluster.is_settled():
        for step in (cluster.poll, cluster.deliver, cluster.work):
            step()
    cluster.network.is_calm = False
    chosen = [cluster.poll, cluster.deliver] * 8 + [cluster.work, cluster.move, cluster.change_owner]
    for _ in range(150):
        cluster.random.choice(chosen)()
        cluster.check()
