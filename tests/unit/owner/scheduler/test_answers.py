"""Answers with too many spans for one message: parts that fit into frames, joined or requested again."""

import pytest

from agent.control.agent import Agent
from agent.control.gate import Gate, Owner
from capture.messaging import frames
from owner.scheduler.answers import Answers
from owner.scheduler.captures import CaptureManager
from owner.scheduler.coordinator import Coordinator, Identity
from owner.scheduler.heartbeat_budget import HeartbeatBudget
from owner.scheduler.replication import SetState
from owner.settings import SchedulerSettings
from reactor.effects import Send
from reactor.ids import KEY_SPACE, MAX_TS, CaptureId, TableSpan, Ts
from reactor.messages import (
    SPANS_PER_MESSAGE,
    Barrier,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Message,
    SpanCheckpoint,
    SpanState,
    SpanStatus,
    in_parts,
)
from tests.unit.owner.owner_build import FEED, A, B, C, status, tables

MANY = SPANS_PER_MESSAGE + 1
LARGEST = TableSpan((1 << 63) - 1, KEY_SPACE - 2, KEY_SPACE)


def _part(number: int, of: int, *spans: TableSpan) -> HeartbeatResponse:
    return HeartbeatResponse(tuple(status(SpanState.REPLICATING, span=span) for span in spans), part=number, parts=of)


class _Pair:
    """The real coordinator and one real agent, with every message through its bytes."""

    def __init__(self, agent: Agent, revision: int) -> None:
        self.agent = agent
        settings = SchedulerSettings(add_table_batch_size=MANY)
        self.coordinator = Coordinator(Identity(A, FEED, "0.1.0", revision, 1), settings)
        self.now = 0.0
        self.carried: list[Message] = []
        self._answers: list[Message] = []

    def step(self, table_count: int) -> None:
        self.now += 0.5
        known = {span.table_id: Ts(1) for span in tables(table_count)}
        inbox, self._answers = self._answers, []
        self.agent.gate.elect(Owner(A, self.coordinator.identity.owner_revision))
        for send in self.coordinator.poll(known, [A], inbox, Barrier(), self.now):
            for effect in self.agent.handle(self._carry(send.message), self.now):
                if isinstance(effect, Send):
                    self._answers.append(self._carry(effect.message))

    def _carry(self, message: Message) -> Message:
        (frame,) = frames.Decoder().feed(frames.encode(frames.Data("topic", 1, message)))
        assert isinstance(frame, frames.Data)
        self.carried.append(frame.message)
        return frame.message


def test_the_largest_messages_are_far_below_the_frames_limit() -> None:
    at = SpanCheckpoint(MAX_TS, MAX_TS)
    full = (SpanStatus(LARGEST, SpanState.STOPPED, at, 1.7e9),) * SPANS_PER_MESSAGE
    for body in (HeartbeatResponse(full), Heartbeat((LARGEST,) * SPANS_PER_MESSAGE)):
        data = frames.Data("topic", 1, Message(A, B, FEED, Header("0.1.0", 1, "run", 1), body))
        assert len(frames.encode(data)) < frames.FRAME_BYTES_MAX / 32


@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 10, 11])
def test_parts_are_everything_in_order(count: int) -> None:
    parts = in_parts(range(count), 5)
    assert [item for part in parts for item in part] == list(range(count))
    assert all(len(part) <= 5 for part in parts)
    assert parts, "nothing is said in one part, too"


@pytest.mark.matrix
def test_many_spans_of_one_capture_come_to_a_new_owner_in_parts() -> None:
    pair = _Pair(Agent(A, FEED, gate=Gate("run", 1, version="0.1.0")), 1)
    while not pair.coordinator.span_index.held_by(A) or not pair.coordinator.span_index.is_whole:
        pair.step(MANY)
    later = _Pair(pair.agent, 2)
    while not later.coordinator.captures.is_initialized:
        later.step(MANY)
        assert len(later.coordinator.sets) in (0, MANY), "all at once, or none"
    answered = [one.body for one in later.carried if isinstance(one.body, HeartbeatResponse)]
    assert [(body.part, body.parts, len(body.statuses)) for body in answered[:2]] == [
        (0, 2, SPANS_PER_MESSAGE),
        (1, 2, 1),
    ]
    assert SetState.ABSENT not in {known.state for known in later.coordinator.sets.values()}


def test_a_heartbeat_in_parts_is_answered_once_for_all_of_it() -> None:
    agent = Agent(A, FEED, gate=Gate("run", 1, version="0.1.0", owner=Owner(B, 1)))
    header = Header("0.1.0", 1, "", 1)
    asked = tables(MANY)
    done = [
        effect.message.body
        for number, spans in enumerate(in_parts(asked))
        for effect in agent.handle(Message(B, A, FEED, header, Heartbeat(spans, part=number, parts=2)), 0.0)
        if isinstance(effect, Send)
    ]
    assert all(isinstance(body, HeartbeatResponse) for body in done)
    statuses = [known for body in done if isinstance(body, HeartbeatResponse) for known in body.statuses]
    assert [known.span for known in statuses] == asked
    assert {known.state for known in statuses} == {SpanState.ABSENT}


def test_an_answer_with_a_gap_is_no_answer() -> None:
    answers, (first, second, third) = Answers(), tables(3)
    assert answers.take(A, "run", _part(0, 3, first)) is None
    assert answers.take(A, "run", _part(2, 3, third)) is None, "the second is missing"
    assert answers.take(A, "run", _part(1, 3, second)) is None, "the first is forgotten with it"
    assert answers.take(A, "run", _part(0, 2, first)) is None
    assert answers.take(A, "other run", _part(1, 2, second)) is None
    assert answers.take(A, "run", _part(0, 2, first)) is None
    whole = answers.take(A, "run", _part(1, 2, second))
    assert whole is not None
    assert [known.span for known in whole.statuses] == [first, second]


def test_a_part_initializes_nobody() -> None:
    manager = CaptureManager(SchedulerSettings())
    manager.handle_alive([A])
    assert manager.handle_response(A, "run", _part(0, 2, *tables(1))) is None
    assert not manager.are_all_initialized
    assert manager.take_initial() is None
    manager.handle_response(A, "run", _part(1, 2, *tables(1, first=2)))
    assert manager.take_initial() == {A: _part(0, 1, *tables(2)).statuses}


def test_the_start_does_not_wait_for_a_capture_that_has_joined_later() -> None:
    """It holds nothing, and may never be reached: one that loses its peers joins again and again."""
    manager = CaptureManager(SchedulerSettings())
    manager.handle_alive([A, B])
    manager.handle_response(A, "run", _part(0, 1, *tables(1)))
    assert not manager.are_all_initialized, "what B holds is not known"
    manager.handle_alive([A, C])
    assert manager.take_initial() == {A: _part(0, 1, *tables(1)).statuses}
    assert manager.serving() == [A]


def test_a_capture_that_is_gone_takes_its_parts_along() -> None:
    manager = CaptureManager(SchedulerSettings())
    manager.handle_alive([A])
    manager.handle_response(A, "run", _part(0, 2, *tables(1)))
    manager.handle_alive([])
    manager.handle_alive([A])
    assert manager.handle_response(A, "run", _part(1, 2, *tables(1, first=2))) is None


def test_questions_for_everything_are_spread_over_rounds() -> None:
    settings = SchedulerSettings(full_spans_per_round=10, full_spans_per_s=10)
    manager = CaptureManager(settings)
    captures: list[CaptureId] = [A, B, C]
    manager.handle_alive(captures)
    held = dict(zip(captures, (tables(10), tables(10, first=11), tables(10, first=21)), strict=True))

    def asked(now: float) -> list[CaptureId]:
        due = manager.heartbeats(
            held.__getitem__, Barrier(), now, drain=None, heartbeat_budget=HeartbeatBudget(settings, spans=30)
        )
        return [capture for capture, _, beat in due if beat.spans]

    assert asked(0.0) == captures, "who has said nothing yet is asked whatever it costs"
    for capture in captures:
        manager.handle_response(capture, "run", HeartbeatResponse())
    assert asked(2.5) == [], "30 spans at 10 a second"
    assert [asked(3.0), manager.next_heartbeat_at() < 3.0] == [[A], True], "there is more to ask"
    assert [asked(3.1), asked(3.2)] == [[B], [C]]
    assert manager.next_heartbeat_at() > 3.2
    assert asked(5.9) == []
    assert asked(6.1) == [A]
