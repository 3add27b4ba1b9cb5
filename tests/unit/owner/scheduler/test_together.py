"""Spans together, agent and coordinator over a wire that loses messages: nobody is taken to have more than it has."""

from dataclasses import replace
from itertools import count
from random import Random

import pytest

from agent.control import effects
from agent.control.agent import Agent
from agent.control.gate import Gate, Owner
from capture.messaging import frames
from owner.scheduler.coordinator import Coordinator, Identity
from owner.scheduler.replication import ReplicationSet, SetState
from owner.scheduler.span_index import SpanIndex
from owner.settings import SchedulerSettings
from reactor.effects import Send
from reactor.ids import MAX_TS, CaptureId, TableSpan, Ts
from reactor.messages import (
    Barrier,
    DispatchResponse,
    Heartbeat,
    HeartbeatResponse,
    Message,
    Place,
    SpanCheckpoint,
    SpanState,
    SpanStatus,
)
from reactor.records.log_head import LogHead
from tests.unit.owner.owner_build import FEED, A, B, tables

SPANS = tables(6)
TABLES = {span.table_id: Ts(1) for span in SPANS}


def _place(ts: int) -> Place:
    return Place(SpanCheckpoint(Ts(ts), Ts(ts)), float(ts))


class _Log:
    """The change log: its head, and where it has events."""

    def __init__(self) -> None:
        self.head = LogHead(epoch=1, resolved_ts=Ts(1))
        self.events: list[int] = []

    def write(self, ts: int) -> None:
        at = Ts(self.head.resolved_ts + ts)
        self.events.append(at)
        seqs = dict.fromkeys(("last_seq", "complete_seq", "written_seq"), self.head.last_seq + 1)
        self.head = self.head.with_(resolved_ts=at, resolved_time=float(at), written_ts=at, **seqs)

    def move(self, ts: int) -> None:
        at = Ts(self.head.resolved_ts + ts)
        self.head = self.head.with_(resolved_ts=at, resolved_time=float(at))

    def has_events(self, after: int, to: int) -> bool:
        return any(after < ts <= to for ts in self.events)


class _Capture:
    """An agent, and what its spans and flusher do. ``head``: the log's, as it is shown here."""

    def __init__(self, id: CaptureId, run: int) -> None:
        self.id, self.run = id, run
        self.agent = Agent(id, FEED, gate=Gate(f"{id}-{run}", 1, version="0.1.0"))
        #: as the flusher has it
        self.together: set[TableSpan] = set()
        self.ts = 1
        self.head = LogHead(resolved_ts=Ts(1))
        self._changes: dict[TableSpan, bool] = {}
        self.sent: list[Message] = []

    def perform(self, done: list[effects.AgentEffect]) -> None:
        for effect in done:
            match effect:
                case Send(message):
                    self.sent.append(message)
                case effects.PrepareSpan(span):
                    self.perform(self.agent.handle_event(effects.SpanPrepared(span), 0.0))
                case effects.RunSpan(span):
                    self.perform(self.agent.handle_event(effects.SpanRunning(span), 0.0))
                case effects.StopSpan(span):
                    self.part(span)
                    at = self.agent.spans[span].checkpoint
                    self.perform(self.agent.handle_event(effects.SpanStopped(span, at), 0.0))
        self.agent.validate()

    def part(self, span: TableSpan) -> None:
        if span in self.together:
            self.together.discard(span)
            self._changes[span] = False

    def flush(self, random: Random) -> None:
        """Move those together, and let some others arrive there, or move by themselves."""
        self.ts = min(self.ts + random.randrange(3), self.head.resolved_ts)
        running = self.running()
        for span in running:
            if random.random() < 0.2:
                self.part(span)
        alone = [span for span in running if span not in self.together]
        moved = [span for span in alone if random.random() < 0.7]
        arrived = [span for span in moved if random.random() < 0.7]
        spans = tuple(
            effects.SpanProgress(span, *_place(self.ts if span in arrived else self._near(random))) for span in moved
        )
        self.together.update(arrived)
        self._changes |= dict.fromkeys(arrived, True)
        joined = tuple(span for span, is_in in self._changes.items() if is_in)
        left = tuple(span for span, is_in in self._changes.items() if not is_in)
        self._changes = {}
        self.perform(self.agent.handle_event(effects.SpansProgress(spans, _place(self.ts), joined, left), 0.0))

    def running(self) -> list[TableSpan]:
        return [at for at, span in sorted(self.agent.spans.items()) if span.state is SpanState.REPLICATING]

    def arrive(self) -> None:
        """Flush to the log's end."""
        self.ts, joined = self.head.resolved_ts, tuple(self.running())
        self.together, self._changes = set(joined), {}
        spans = tuple(effects.SpanProgress(span, *_place(self.ts)) for span in joined)
        self.perform(self.agent.handle_event(effects.SpansProgress(spans, _place(self.ts), joined), 0.0))

    def follow(self) -> None:
        """Move with a quiet log's head, without a report if the owner needs none; flush if there is more to do."""
        if self._changes or not self.together.issuperset(self.running()) or not self.head.ends_at(Ts(self.ts)):
            self.arrive()
            return
        self.ts = self.head.resolved_ts
        if not self.agent.follow(self.head):
            self.perform(self.agent.handle_event(effects.SpansProgress((), _place(self.ts)), 0.0))
        self.agent.validate()

    def _near(self, random: Random) -> int:
        return min(self.ts + random.randrange(-3, 3), self.head.resolved_ts)


class _World:
    """Two captures and an owner, with messages that are encoded, delayed and lost. B may be of an ``older`` version; an
    owner of an older one does not follow the log."""

    def __init__(self, random: Random, *, loses: bool = True, older: bool = False, follows: bool = True) -> None:
        self.random = random
        self.older = older
        self.follows = follows
        self.loses = loses
        self.now = 0.0
        self._runs = count(1)
        self._revision = 0
        self.captures = {id: _Capture(id, next(self._runs)) for id in (A, B)}
        self.log = _Log()
        #: as the owner is shown it
        self.head = self.log.head
        self._to_owner: list[Message] = []
        self.elect()

    def elect(self) -> None:
        self._revision += 1
        self.coordinator = Coordinator(Identity(A, FEED, "0.1.0", self._revision, 1), SchedulerSettings())
        for capture in self.captures.values():
            capture.agent.gate.elect(Owner(A, self._revision))

    def step(self) -> None:
        random = self.random
        capture = self.captures[random.choice((A, B))]
        match random.randrange(48 if self.loses else 30):
            case 0:
                self.coordinator.move_table(random.choice(SPANS).table_id, random.choice((A, B)))
            case 1 | 2 | 3 | 4 | 5 | 6:
                capture.flush(random)
            case 7:
                capture.arrive()
            case 8 | 9 | 10 | 11 | 12 | 13 | 14:
                capture.head = self.log.head
                if random.random() < 0.8:
                    capture.follow()
            case 15 | 16 | 17 | 18:
                self.head = self.log.head
            case 32 | 33:
                self.log.write(random.randrange(1, 3))
            case 34 | 35 | 36 | 37:
                self.log.move(random.randrange(1, 3))
            case 30:
                self.elect()
            case 31:
                new = self.captures[capture.id] = _Capture(capture.id, next(self._runs))
                new.agent.gate.elect(Owner(A, self._revision))
            case _:
                self.tick()

    def tick(self) -> None:
        for capture in self.captures.values():
            capture.perform(capture.agent.tick(self.now))
            arrived = capture.sent if self.random.random() < 0.7 else capture.sent[: len(capture.sent) // 2]
            capture.sent = capture.sent[len(arrived) :]
            self._to_owner += [self._carried(message) for message in arrived if not self._is_lost()]
        self.now += self.random.random()
        due, self._to_owner = self._to_owner, []
        sent = self.coordinator.poll(TABLES, [A, B], due, Barrier(MAX_TS), self.now)
        if self.follows:
            sent += self.coordinator.follow_log(self.head)
        for effect in sent:
            message = self._carried(effect.message)
            if not self._is_lost():
                receiver = self.captures[message.receiver]
                receiver.perform(receiver.agent.handle(message, self.now))
        self.check()

    def is_known_whole(self) -> bool:
        """Return whether every span is known to be at the log's end."""
        return all(
            known.state is SetState.REPLICATING
            and known.primary is not None
            and known.checkpoint.checkpoint_ts == self.log.head.resolved_ts
            for known in self.coordinator.sets.values()
        )

    def due(self) -> list[Message]:
        """Return all that the captures have sent."""
        due = [message for capture in self.captures.values() for message in capture.sent]
        for capture in self.captures.values():
            capture.sent.clear()
        return due

    def _carried(self, message: Message) -> Message:
        if isinstance(message.body, Heartbeat) and not self.follows:
            message = replace(message, body=replace(message.body, follows_log=False))
        if self.older and B in (message.sender, message.receiver):
            match message.body:
                case Heartbeat():
                    message = replace(message, body=replace(message.body, takes_together=False, follows_log=False))
                case HeartbeatResponse():
                    message = replace(message, body=replace(message.body, number=0, is_full=False))
                case DispatchResponse():
                    message = replace(message, body=replace(message.body, number=0))
        (frame,) = frames.Decoder().feed(frames.encode(frames.Data("topic", 1, message)))
        assert isinstance(frame, frames.Data)
        return frame.message

    def _is_lost(self) -> bool:
        return self.loses and self.random.random() < 0.1

    def check(self) -> None:
        self.coordinator.validate()
        for span, known in self.coordinator.sets.items():
            written = [at.agent.spans[span].checkpoint for at in self.captures.values() if span in at.agent.spans]
            if known.primary is not None and (local := self.captures[known.primary].agent.spans.get(span)):
                assert local.state is not SpanState.REPLICATING or self._is_reached(known, local.checkpoint), span
            elif written and known.state is SetState.REPLICATING:
                assert self._is_reached(known, max(written)), span

    def _is_reached(self, known: ReplicationSet, at: SpanCheckpoint) -> bool:
        """Return whether a span that is ``at`` its place has all that the owner takes it for having."""
        ts = known.checkpoint.checkpoint_ts
        return ts <= self.log.head.resolved_ts and not self.log.has_events(at.checkpoint_ts, ts)


_MANY = [pytest.param(seed, marks=pytest.mark.matrix) for seed in range(12, 200)]


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("seed", [*range(12), *_MANY])
def test_no_position_is_ahead_of_its_span_whatever_is_lost(seed: int) -> None:
    world = _World(Random(seed), older=seed % 3 == 2, follows=seed % 4 != 3)
    for _ in range(250):
        world.step()
    world.loses = False
    for _ in range(100):
        world.step()
    _settle(world)
    for _ in range(10):  # from then on by the log alone
        world.log.move(1)
        _settle(world)


def _settle(world: _World) -> None:
    """Show everybody the log's end, and wait until the owner knows that all spans are there."""
    world.head, ticks = world.log.head, 0
    while not world.is_known_whole():  # a move to even captures out may have begun
        ticks += 1
        assert ticks < 200, "all is known when nothing is lost any more"
        for capture in world.captures.values():
            capture.head = world.log.head
            capture.follow()
        world.tick()


def _flowing() -> _World:
    """All spans are together with the others of their capture."""
    world = _World(Random(1), loses=False)
    world.log.move(99)
    for _ in range(20):
        world.tick()
    for capture in world.captures.values():
        spans = tuple(capture.agent.spans)
        capture.perform(capture.agent.handle_event(effects.SpansProgress((), _place(10), spans), 0.0))
    for _ in range(20):
        world.tick()
    assert world.coordinator.lowest is not None
    assert world.coordinator.lowest.ts == 10
    return world


def _move(capture: _Capture, ts: int, *, left: tuple[TableSpan, ...] = ()) -> list[HeartbeatResponse]:
    capture.sent.clear()
    capture.perform(capture.agent.handle_event(effects.SpansProgress((), _place(ts), left=left), 0.0))
    capture.perform(capture.agent.tick(0.0))
    return [message.body for message in capture.sent if isinstance(message.body, HeartbeatResponse)]


def test_what_moves_together_is_one_report_and_one_step() -> None:
    world = _flowing()
    for capture in world.captures.values():
        (report,) = _move(capture, 20)
        assert (report.statuses, report.joined) == ((), ())
    for _ in range(5):
        world.tick()
    assert {known.checkpoint for known in world.coordinator.sets.values()} == {_place(20).checkpoint}


def test_where_a_report_is_missing_nobody_moves_until_all_was_told_again() -> None:
    world = _flowing()
    capture = world.captures[A]
    left = next(iter(capture.agent.spans))
    _move(capture, 20, left=(left,))
    _move(capture, 30)
    world.tick()
    known = {span: world.coordinator.sets[span].checkpoint.checkpoint_ts for span in capture.agent.spans}
    assert set(known.values()) == {10}
    for _ in range(20):
        world.tick()
    known = {span: world.coordinator.sets[span].checkpoint.checkpoint_ts for span in capture.agent.spans}
    assert known == {span: 10 if span == left else 30 for span in capture.agent.spans}


def test_a_capture_whose_reports_are_all_here_is_seldom_asked_for_all() -> None:
    world = _flowing()
    asked = 0
    for now in range(100, 400):
        sent = world.coordinator.poll(TABLES, [A, B], world.due(), Barrier(MAX_TS), float(now))
        for effect in sent:
            receiver = world.captures[effect.message.receiver]
            assert isinstance(effect.message.body, Heartbeat)
            asked += bool(effect.message.body.spans)
            receiver.perform(receiver.agent.handle(effect.message, float(now)))
    assert asked <= 2 * (300 / SchedulerSettings().whole_heartbeat_s + 1)


def _known(world: _World, capture: _Capture) -> dict[TableSpan, int]:
    return {span: world.coordinator.sets[span].checkpoint.checkpoint_ts for span in capture.agent.spans}


def _quiet() -> tuple[_World, _Capture]:
    """All spans are together at 10, and the log has no event behind; the captures are shown nothing else."""
    world = _flowing()
    world.log.head = LogHead(epoch=1, resolved_ts=Ts(10), last_seq=1, complete_seq=1, written_seq=1, written_ts=Ts(10))
    world.log.events = [10]
    for capture in world.captures.values():
        capture.head, capture.ts, capture.together = world.log.head, 10, set(capture.agent.spans)
    return world, world.captures[A]


def test_the_move_of_a_quiet_logs_head_is_no_report() -> None:
    world, capture = _quiet()
    world.log.move(10)
    capture.head = world.head = world.log.head
    capture.sent.clear()
    capture.follow()
    capture.perform(capture.agent.tick(0.0))
    assert not capture.sent
    assert {span.checkpoint.checkpoint_ts for span in capture.agent.spans.values()} == {20}
    world.tick()
    assert set(_known(world, capture).values()) == {20}


def test_behind_an_event_nobody_moves_before_it_is_reported() -> None:
    world, capture = _quiet()
    world.log.write(5)
    world.log.move(5)
    world.head = capture.head = world.log.head
    world.tick()
    assert set(_known(world, capture).values()) == {10}
    capture.follow()
    world.tick()
    assert set(_known(world, capture).values()) == {20}


def test_a_span_that_joined_others_of_which_the_owner_knows_more_is_where_they_are() -> None:
    """Its capture is shown the log's end later than the owner, and has nothing more to report."""
    world, capture = _quiet()
    left = next(iter(capture.agent.spans))
    _move(capture, 10, left=(left,))
    capture.perform(capture.agent.handle_event(effects.SpansProgress((), _place(10), (left,)), 0.0))
    world.log.move(10)
    world.head = world.log.head
    world.coordinator.follow_log(world.head)
    world.tick()
    world.tick()
    assert set(_known(world, capture).values()) == {20}


def test_spans_that_join_where_nobody_was_any_more_are_not_where_the_others_were() -> None:
    """The place of a capture may go back while nobody is there."""
    index, log, (earlier, later) = SpanIndex(), _Log(), SPANS[:2]
    index.want([earlier, later])
    for span, ts in ((earlier, 20), (later, 15)):
        status = SpanStatus(span, SpanState.REPLICATING, *_place(ts))
        index.add(ReplicationSet.rebuild(span, Ts(ts), {A: status}))
    log.write(19)
    index.begin_together(A, _place(20))
    index.join_together(A, [earlier])
    index.leave_together(A, [earlier])
    index.move_together(A, _place(15))
    index.join_together(A, [later])
    log.move(1)
    assert index.follow_log(log.head) == []
    assert index.sets[later].checkpoint.checkpoint_ts == 15, "there is an event at 20"
    index.move_together(A, _place(20))
    assert [(capture, [at.span for at in said]) for capture, said in index.follow_log(log.head)] == [(A, [later])]
    index.validate()
