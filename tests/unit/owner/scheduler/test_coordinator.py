"""The scheduler's protocol with captures: first answers, orders, heartbeats, refusals."""

import pytest

from owner.errors import MultiplePrimaryError, SpanError
from owner.scheduler.coordinator import Coordinator, Identity
from owner.scheduler.replication import Orders, Role, SetState
from owner.scheduler.spans import TableSpans, even_spans
from owner.settings import SchedulerSettings
from reactor.effects import Send
from reactor.ids import CaptureId, TableSpan, Ts
from reactor.messages import (
    AddSpan,
    Barrier,
    Body,
    DispatchResponse,
    Header,
    Heartbeat,
    HeartbeatResponse,
    Liveness,
    Message,
    RemoveSpan,
    SpanState,
    SpanStatus,
)
from tests.unit.owner.owner_build import FEED, S1, S2, A, B, C, status, tables

REVISION = 9
TABLES = {1: Ts(5), 2: Ts(5)}


class _Cluster:
    """A coordinator with captures that answer what a test says."""

    def __init__(self, *captures: CaptureId, settings: SchedulerSettings | None = None) -> None:
        self.coordinator = Coordinator(Identity(A, FEED, "0.1.0", REVISION, 1), settings or SchedulerSettings())
        self.captures = list(captures)
        self.tables: dict[int, Ts] | None = dict(TABLES)
        self.table_spans: TableSpans = {}
        self.barrier = Barrier()
        self.now = 0.0
        self._inbox: list[Message] = []

    def say(self, sender: CaptureId, body: Body, *, revision: int = REVISION, epoch: int = 1, run: str = "r") -> None:
        header = Header("0.1.0", revision, f"{sender}-{run}", epoch)
        self._inbox.append(Message(sender, A, FEED, header, body))

    def answer(self, sender: CaptureId, *statuses: SpanStatus, run: str = "r", stopping: bool = False) -> None:
        liveness = Liveness.STOPPING if stopping else Liveness.ALIVE
        self.say(sender, HeartbeatResponse(statuses, liveness), run=run)

    def poll(self, *, after_s: float = 0.1) -> list[Message]:
        self.now += after_s
        inbox, self._inbox = self._inbox, []
        sent = self.coordinator.poll(
            self.tables, self.captures, inbox, self.barrier, self.now, table_spans=self.table_spans
        )
        assert all(isinstance(effect, Send) for effect in sent)
        return [effect.message for effect in sent]

    def orders(self, sent: list[Message]) -> list[tuple[CaptureId, AddSpan | RemoveSpan]]:
        return [(one.receiver, one.body) for one in sent if isinstance(one.body, (AddSpan, RemoveSpan))]

    def settle(self) -> None:
        """Answer orders as quick captures would, until there are none."""
        sent = self.poll()
        while self.orders(sent):
            for capture, order in self.orders(sent):
                self.say(capture, DispatchResponse(_quick(order)))
            sent = self.poll()


def _quick(order: AddSpan | RemoveSpan) -> SpanStatus:
    if isinstance(order, RemoveSpan):
        return status(SpanState.STOPPED, 5, span=order.span)
    state = SpanState.PREPARED if order.is_secondary else SpanState.REPLICATING
    return status(state, order.checkpoint.checkpoint_ts, span=order.span)


def _started(*captures: CaptureId, settings: SchedulerSettings | None = None) -> _Cluster:
    cluster = _Cluster(*captures, settings=settings)
    cluster.poll()
    for capture in captures:
        cluster.answer(capture)
    cluster.settle()
    return cluster


def _places(cluster: _Cluster) -> dict[TableSpan, CaptureId | None]:
    return {span: known.primary for span, known in sorted(cluster.coordinator.sets.items())}


def test_nothing_is_ordered_before_every_capture_has_answered() -> None:
    cluster = _Cluster(A, B)
    assert [type(one.body) for one in cluster.poll()] == [Heartbeat, Heartbeat]
    cluster.answer(A)
    assert cluster.orders(cluster.poll()) == []
    cluster.answer(B, status(SpanState.REPLICATING, 8))
    (order,) = cluster.orders(cluster.poll())
    assert order == (A, AddSpan(S2, True, _quick(AddSpan(S2, True, status(SpanState.ABSENT, 5).checkpoint)).checkpoint))
    assert cluster.coordinator.sets[S1].primary == B


def test_tables_come_to_captures_in_two_phases() -> None:
    cluster = _started(A, B)
    assert _places(cluster) == {S1: A, S2: B}
    assert {known.state for known in cluster.coordinator.sets.values()} == {SetState.REPLICATING}


def test_first_heartbeats_are_without_epoch_and_orders_carry_it() -> None:
    cluster = _Cluster(A)
    assert [one.header for one in cluster.poll()] == [Header("0.1.0", REVISION, "", 1)]
    cluster.answer(A)
    sent = cluster.poll()
    assert {one.header.processor_epoch for one in sent if isinstance(one.body, AddSpan)} == {"a-r"}


def test_stale_and_foreign_messages_are_dropped() -> None:
    cluster = _started(A, B)
    before = _places(cluster)
    stop = DispatchResponse(status(SpanState.STOPPED))
    cluster.say(A, stop, revision=REVISION - 1)
    cluster.say(A, stop, epoch=2)
    cluster.say(A, stop, run="older")
    cluster.say(C, HeartbeatResponse())
    cluster.say(A, Heartbeat())
    cluster.poll()
    assert _places(cluster) == before
    assert C not in cluster.coordinator.captures.captures


def test_lost_capture_gives_its_spans_to_the_others() -> None:
    cluster = _started(A, B)
    cluster.captures.remove(B)
    cluster.settle()
    assert _places(cluster) == {S1: A, S2: A}


def test_new_run_of_a_processor_is_a_lost_capture_that_is_there() -> None:
    cluster = _started(A, B)
    cluster.answer(B, run="second")
    sent = cluster.poll()
    assert cluster.coordinator.sets[S2].state is SetState.PREPARE
    assert [capture for capture, _ in cluster.orders(sent)] == [B]
    assert cluster.coordinator.captures.epoch_of(B) == "b-second"


def test_a_new_silent_capture_holds_nothing_up() -> None:
    cluster = _started(A)
    cluster.captures.append(B)
    cluster.answer(A, status(SpanState.REPLICATING, 30), status(SpanState.REPLICATING, 31, span=S2))
    sent = cluster.poll()
    assert B in [one.receiver for one in sent if isinstance(one.body, Heartbeat)], "it is greeted at once"
    assert [known.checkpoint.checkpoint_ts for known in cluster.coordinator.sets.values()] == [30, 31]
    assert _places(cluster) == {S1: A, S2: A}


def test_balance_gives_a_new_capture_its_share() -> None:
    cluster = _started(A)
    cluster.captures.append(B)
    cluster.poll()
    cluster.answer(B)
    cluster.settle()
    assert sorted(filter(None, _places(cluster).values())) == [A, B]


def test_leaving_capture_is_drained_and_gets_nothing() -> None:
    cluster = _started(A, B)
    cluster.answer(B, stopping=True)
    cluster.settle()
    assert _places(cluster) == {S1: A, S2: A}


def test_a_capture_whose_next_run_serves_gets_work_again() -> None:
    """It lacked something, and has it now."""
    cluster = _started(A, B)
    cluster.answer(B, stopping=True)
    cluster.settle()
    assert set(_places(cluster).values()) == {A}
    cluster.answer(B, run="next")
    cluster.settle()
    assert B in cluster.coordinator.captures.serving()


def test_drain_counts_down_and_marks_the_heartbeat() -> None:
    cluster = _Cluster(A, B)
    assert cluster.coordinator.drain(B) == 1, "not known yet"
    cluster = _started(A, B)
    assert cluster.coordinator.drain(B) == 1
    sent = cluster.poll(after_s=1.0)
    assert [one.receiver for one in sent if isinstance(one.body, Heartbeat) and one.body.is_stopping] == [B]
    for capture, order in cluster.orders(sent):
        cluster.say(capture, DispatchResponse(_quick(order)))
    cluster.settle()
    assert cluster.coordinator.drain(B) == 0
    assert cluster.coordinator.drain_target == B, "until it has said that it takes nothing more"
    cluster.answer(B, stopping=True)
    cluster.poll(after_s=60.0)
    assert cluster.coordinator.drain(A) == 2, "the owner's own capture is counted, and not drained"
    assert cluster.coordinator.drain(B) == 0
    assert cluster.coordinator.drain_target is None


def test_a_capture_without_spans_is_drained_too() -> None:
    cluster = _started(A, B)
    cluster.tables = {}
    cluster.settle()
    assert cluster.coordinator.drain(B) == 0
    sent = cluster.poll(after_s=1.0)
    assert [one.receiver for one in sent if isinstance(one.body, Heartbeat) and one.body.is_stopping] == [B]


def test_removed_table_is_taken_away_and_its_stray_too() -> None:
    cluster = _started(A, B)
    cluster.tables = {1: Ts(5)}
    cluster.settle()
    assert _places(cluster) == {S1: A}
    cluster.answer(B, status(SpanState.PREPARED, span=S2))
    assert cluster.orders(cluster.poll()) == [(B, RemoveSpan(S2))]


def test_a_table_that_goes_with_the_writer_of_its_span_is_not_given_to_another() -> None:
    """As when a table is held because it has ended the capture."""
    cluster = _started(A, B, C)
    span = cluster.coordinator.span_index.written_by(B)[0]
    cluster.coordinator.move_table(span.table_id, C)
    assert [capture for capture, _ in cluster.orders(cluster.poll())] == [C]
    cluster.say(C, DispatchResponse(status(SpanState.PREPARED, 5, span=span)))
    assert cluster.orders(cluster.poll()) == [(B, RemoveSpan(span))]
    cluster.captures.remove(B)
    cluster.tables = {id: ts for id, ts in TABLES.items() if id != span.table_id}
    assert (C, RemoveSpan(span)) in (orders := cluster.orders(cluster.poll()))
    assert not [order for _, order in orders if isinstance(order, AddSpan) and order.span == span]


def test_both_captures_of_a_move_lost_at_once() -> None:
    cluster = _started(A, B, C)
    span = cluster.coordinator.span_index.written_by(B)[0]
    cluster.coordinator.move_table(span.table_id, C)
    cluster.poll()
    cluster.say(C, DispatchResponse(status(SpanState.PREPARED, 5, span=span)))
    cluster.poll()
    cluster.captures = [A]
    assert {capture for capture, _ in cluster.orders(cluster.poll())} == {A}


def test_unknown_tables_change_nothing() -> None:
    cluster = _started(A)
    cluster.tables = None
    cluster.settle()
    assert _places(cluster) == {S1: A, S2: A}


def test_move_table_and_concurrency_limit() -> None:
    cluster = _started(A, B)
    assert cluster.coordinator.move_table(1, B) == 1
    assert cluster.coordinator.move_table(9, B) == 0
    cluster.settle()
    assert cluster.coordinator.sets[S1].primary == B


def test_single_tasks_wait_for_a_place_and_bursts_do_not() -> None:
    settings = SchedulerSettings(max_task_concurrency=1, check_balance_interval_s=1000.0)
    cluster = _started(A, settings=settings)
    assert len(cluster.coordinator.sets) == 2, "additions are a burst"
    cluster.captures.append(B)
    cluster.poll()
    cluster.answer(B)
    sent = cluster.poll()
    assert len(cluster.orders(sent)) == 1
    cluster.coordinator.move_table(1, B)
    cluster.coordinator.move_table(2, B)
    assert cluster.orders(cluster.poll()) == [], "one move is running already"
    assert len(cluster.coordinator.inflight.running) == 1


def test_heartbeats_are_short_but_for_the_periodic_question() -> None:
    cluster = _started(A, settings=SchedulerSettings(heartbeat_s=1.0, full_heartbeat_s=3.0))
    asked = []
    for _ in range(8):
        asked += [one.body.spans for one in cluster.poll(after_s=1.0) if isinstance(one.body, Heartbeat)]
    assert asked.count((S1, S2)) >= 2
    assert asked.count(()) >= 4


def test_a_new_barrier_is_reported_at_once() -> None:
    cluster = _started(A)
    assert cluster.poll(after_s=0.01) == []
    cluster.barrier = Barrier(Ts(77))
    (sent,) = cluster.poll(after_s=0.01)
    assert isinstance(sent.body, Heartbeat)
    assert sent.body.barrier == Barrier(Ts(77))


def test_lost_stop_answer_is_found_by_the_periodic_question() -> None:
    cluster = _started(A, B)
    cluster.answer(B, status(SpanState.ABSENT, span=S2))
    cluster.settle()
    assert cluster.coordinator.sets[S2].primary is not None


def test_what_does_not_fit_raises_also_when_a_capture_is_lost() -> None:
    cluster = _started(A, B, C)
    known = cluster.coordinator.sets[S1]

    def spoil() -> Orders:
        known.captures, known.state = {B: Role.SECONDARY, C: Role.SECONDARY}, SetState.COMMIT
        return []

    cluster.coordinator.span_index.change(known, spoil)
    cluster.captures = [A, C]
    with pytest.raises(SpanError):
        cluster.poll()


def test_two_writers_in_the_first_answers_raise() -> None:
    cluster = _Cluster(A, B)
    cluster.poll()
    for capture in (A, B):
        cluster.answer(capture, status(SpanState.REPLICATING))
    with pytest.raises(MultiplePrimaryError):
        cluster.poll()


def test_stops_between_the_first_answers_are_not_forgotten() -> None:
    cluster = _Cluster(A, B)
    cluster.poll()
    cluster.answer(A, status(SpanState.REPLICATING))
    cluster.say(A, DispatchResponse(status(SpanState.STOPPED, 9)))
    cluster.poll()
    cluster.answer(B)
    cluster.poll()
    assert cluster.coordinator.sets[S1].state in (SetState.PREPARE, SetState.ABSENT)


def test_many_spans_take_little_time() -> None:
    cluster = _Cluster(A, B, C, settings=SchedulerSettings(add_table_batch_size=1000))
    cluster.tables = {span.table_id: Ts(1) for span in tables(1000)}
    cluster.poll()
    for capture in (A, B, C):
        cluster.answer(capture)
    cluster.settle()
    counts = [list(_places(cluster).values()).count(capture) for capture in (A, B, C)]
    assert sorted(counts) == [333, 333, 334]


def test_a_new_owner_takes_over_the_spans_of_a_cut_and_fills_holes_only() -> None:
    cluster = _Cluster(A, B)
    low, high = even_spans(1, 2)
    cluster.table_spans = {1: (low, high)}
    cluster.poll()
    cluster.answer(A, status(SpanState.REPLICATING, 8, span=low))
    cluster.answer(B)
    cluster.settle()
    places = _places(cluster)
    assert places.keys() == {low, high, S2}
    assert places[low] == A


@pytest.mark.parametrize("state", [SpanState.PREPARING, SpanState.PREPARED, SpanState.REPLICATING])
def test_a_span_of_an_earlier_cut_is_stopped_and_never_promoted(state: SpanState) -> None:
    cluster = _Cluster(A, B)
    cluster.table_spans = {1: even_spans(1, 2)}
    cluster.poll()
    cluster.answer(A, status(state, 8, span=S1))
    cluster.answer(B)
    orders = cluster.orders(cluster.poll())
    assert (A, RemoveSpan(S1)) in orders
    assert S1 not in cluster.coordinator.sets
    cluster.answer(A, status(state, 9, span=S1))
    assert (A, RemoveSpan(S1)) in cluster.orders(cluster.poll()), "until it is gone"


def test_a_table_that_is_being_cut_has_no_span_and_loses_those_it_has() -> None:
    cluster = _started(A, B)
    cluster.table_spans = {1: ()}
    cluster.settle()
    assert _places(cluster) == {S2: B}
    cluster.table_spans = {1: even_spans(1, 2)}
    cluster.settle()
    assert _places(cluster).keys() == {*even_spans(1, 2), S2}


def test_spans_that_lie_across_each_other_are_no_guess() -> None:
    """A repartition that is not preceded by stopping the old span cannot come from anything that is right."""
    cluster = _started(A, B)
    cluster.table_spans = {1: even_spans(1, 2)}
    with pytest.raises(SpanError, match="overlap"):
        cluster.settle()
