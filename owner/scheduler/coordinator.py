"""Coordinator: the scheduler of one changefeed; processes captures' answers, and returns orders and heartbeats.

``poll`` is the whole protocol, in order. A coordinator lives as long as one run of its changefeed under one owner; a
new one learns everything from the captures' first answers. Stale messages (another owner revision, another changefeed
epoch, a capture that is gone, an earlier run of a processor) are rejected here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from zlib import crc32

from owner.scheduler.captures import CaptureManager
from owner.scheduler.heartbeat_budget import HeartbeatBudget
from owner.scheduler.inflight import Inflight
from owner.scheduler.lowest import LowestPosition
from owner.scheduler.policies import balance, basic, drain, move, rebalance
from owner.scheduler.replication import Order, ReplicationSet
from owner.scheduler.span_index import SpanIndex
from owner.scheduler.spans import TableSpans, assert_whole, refuse_overlap, spans_of, wanted_spans
from owner.scheduler.tasks import Burst, Task
from owner.scheduler.view import View
from owner.settings import SchedulerSettings
from reactor.effects import Send
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.messages import (
    Barrier,
    Body,
    DispatchResponse,
    Header,
    HeartbeatResponse,
    Message,
    RemoveSpan,
    SpanState,
    SpanStatus,
    WorkerStatus,
)
from reactor.records.log_head import LogHead

_ALL_WHOLE: TableSpans = {}
_NONE_CATCHING_UP: Mapping[int, Ts] = {}
_NO_FLOOR = Ts(0)
_STRAY = (SpanState.PREPARING, SpanState.PREPARED, SpanState.REPLICATING)


@dataclass(frozen=True, slots=True)
class Identity:
    """The sender of a coordinator's messages."""

    capture: CaptureId
    changefeed: ChangefeedId
    version: str
    owner_revision: int
    changefeed_epoch: int

    def message(self, receiver: CaptureId, body: Body, *, processor_epoch: str) -> Send:
        header = Header(self.version, self.owner_revision, processor_epoch, self.changefeed_epoch)
        return Send(Message(self.capture, receiver, self.changefeed, header, body))


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """The part of a heartbeat answer about its capture's worker."""

    capture: CaptureId
    status: WorkerStatus | None


class Coordinator:
    """Ensures that every span of ``tables`` is written by exactly one capture."""

    def __init__(self, identity: Identity, settings: SchedulerSettings) -> None:
        self.identity = identity
        phase = crc32(identity.changefeed.encode()) / 2**32
        self.captures = CaptureManager(settings, phase=phase)
        self.span_index = SpanIndex()
        self.inflight = Inflight(settings.max_task_concurrency)
        self.drain_target: CaptureId | None = None
        self._settings = settings
        self._tables: Mapping[int, Ts] | None = None
        self._table_spans: TableSpans = {}
        self._floor_ts = Ts(0)
        self._catching_up: Mapping[int, Ts] = {}
        #: the tables, partitionings and catching_up from which the span index's wanted spans were computed
        self._wanted_of: tuple[Mapping[int, Ts] | None, TableSpans, frozenset[int]] = (None, {}, frozenset())
        self._wishes: dict[TableSpan, CaptureId] = {}
        self._wants_rebalance = False
        self._balance_at = 0.0
        self._serving: list[CaptureId] = []
        self._seen: object = None
        self._reports: list[WorkerReport] = []
        self._rows_flushed: dict[tuple[CaptureId, str], int] = {}

    def poll(
        self,
        tables: Mapping[int, Ts] | None,
        alive: Iterable[CaptureId],
        messages: Sequence[Message],
        barrier: Barrier,
        now: float,
        *,
        table_spans: TableSpans = _ALL_WHOLE,
        floor_ts: Ts = _NO_FLOOR,
        catching_up: Mapping[int, Ts] = _NONE_CATCHING_UP,
        heartbeat_budget: HeartbeatBudget | None = None,
    ) -> list[Send]:
        """Run one round. ``tables``: id → where its spans start without a record; None while they are not known.

        The spans are recomputed only if ``tables`` is a different object. ``floor_ts``: no span starts below it, except
        those of ``catching_up``, which start at their own position and delay no other. ``heartbeat_budget``: what this
        round may ask for; None: there are no other changefeeds.

        :raises owner.errors.SpanError: the captures contradict each other; the changefeed must restart.
        """
        self._tables, self._table_spans, self._floor_ts, self._catching_up = tables, table_spans, floor_ts, catching_up
        self.captures.handle_alive(alive)
        orders = self._handle_lost()
        for message in messages:
            if not self._refuses(message):
                orders += self._handle(message)
        orders += self._start_from_first_answers()
        if self.captures.is_initialized and tables is not None and self._has_news(now):
            orders += self._schedule(now)
        heartbeat_budget = heartbeat_budget or HeartbeatBudget(self._settings, spans=len(self.sets))
        return self._dispatches(orders) + self._heartbeats(barrier, heartbeat_budget, now)

    def follow_log(self, head: LogHead) -> list[Send]:
        """Move the spans together that have nothing to write up to ``head``, which nothing keeps them from."""
        orders: list[Order] = []
        for capture, statuses in self.span_index.follow_log(head):
            orders += self._handle_statuses(capture, statuses)
            self.span_index.join_together(capture, ())
        return self._dispatches(orders)

    def move_table(self, table_id: int, capture: CaptureId) -> int:
        """Request that all spans of a table move to ``capture``; return their number."""
        spans = [span for span in self.span_index.sets if span.table_id == table_id]
        self._wishes.update(dict.fromkeys(spans, capture))
        return len(spans)

    def rebalance(self) -> None:
        self._wants_rebalance = True

    def drain(self, capture: CaptureId) -> int:
        """Request that ``capture`` be emptied; return how many spans it still has (1 while unknown)."""
        if not self.captures.is_initialized:
            return 1
        is_possible = len(self.captures.captures) > 1 and capture != self.identity.capture
        if is_possible and self.drain_target is None and self._is_draining(capture):
            self.drain_target = capture
        return len(self.span_index.held_by(capture))

    @property
    def sets(self) -> Mapping[TableSpan, ReplicationSet]:
        """Every known span."""
        return self.span_index.sets

    @property
    def lowest(self) -> LowestPosition | None:
        """The position of the slowest span of the tables; None while one of them is unknown."""
        return self.span_index.lowest if self.span_index.is_whole and not self._is_repartitioned() else None

    @property
    def rows_flushed(self) -> int:
        """Row changes written by the processor runs seen so far."""
        return sum(self._rows_flushed.values())

    def take_worker_reports(self) -> list[WorkerReport]:
        reports, self._reports = self._reports, []
        return reports

    def validate(self) -> None:
        """Assert the invariants between two rounds."""
        self.captures.validate()
        self.span_index.validate()
        assert not self.sets or self.captures.is_initialized, "spans are known before all captures have answered"
        present = self.captures.captures.keys()
        for span, replication in self.sets.items():
            assert replication.captures.keys() <= present, f"span {span} is on captures that are gone"
        for table in self._tables or ():
            assert_whole(table, spans_of(table, self._table_spans))
        for span, task in self.inflight.running.items():
            assert task.span == span, f"the task of {span} is of {task.span}"

    def _refuses(self, message: Message) -> bool:
        header, identity = message.header, self.identity
        if (header.owner_revision, header.changefeed_epoch) != (identity.owner_revision, identity.changefeed_epoch):
            return True
        if message.receiver != identity.capture or message.sender not in self.captures.captures:
            return True
        is_dispatch = isinstance(message.body, DispatchResponse)
        return is_dispatch and header.processor_epoch != self.captures.epoch_of(message.sender)

    def _handle(self, message: Message) -> list[Order]:
        match message.body:
            case HeartbeatResponse() as response:
                return self._handle_response(message, response)
            case DispatchResponse(status=status, number=number):
                self.captures.count(message.sender, number)
                self.captures.note_statuses(message.sender, (status,))
                self._part(message.sender, [status.span])
                return self._handle_statuses(message.sender, (status,))
        return []

    def _handle_response(self, message: Message, response: HeartbeatResponse) -> list[Order]:
        sender, epoch = message.sender, message.header.processor_epoch
        answer = self.captures.handle_response(sender, epoch, response)
        if answer is None:
            return []
        orders = self._handle_lost()
        self._reports.append(WorkerReport(sender, response.worker))
        self._rows_flushed[sender, epoch] = response.rows_flushed
        statuses = [*answer.statuses, *answer.at_place()]
        self._part(sender, [status.span for status in statuses])
        if answer.together is None or not self.captures.is_whole(sender):
            return orders + self._handle_statuses(sender, statuses)
        if (answer.is_full and answer.part == 0) or not self.span_index.has_together(sender):
            self.span_index.begin_together(sender, answer.together)
        statuses += self.span_index.move_together(sender, answer.together)
        orders += self._handle_statuses(sender, statuses)
        self.span_index.join_together(sender, answer.joined)
        return orders

    def _part(self, capture: CaptureId, spans: Iterable[TableSpan]) -> None:
        """These are reported singly, or all are because a message that may have said so is missing."""
        if self.captures.is_whole(capture):
            self.span_index.leave_together(capture, spans)
        else:
            self.span_index.end_together(capture)

    def _handle_statuses(self, capture: CaptureId, statuses: Sequence[SpanStatus]) -> list[Order]:
        if not self.captures.is_initialized:
            return []
        return [
            order
            for status in self.span_index.note(capture, statuses)
            for order in self._handle_status(capture, status)
        ]

    def _handle_status(self, capture: CaptureId, status: SpanStatus) -> list[Order]:
        replication = self.span_index.sets.get(status.span)
        if replication is None:
            return [Order(capture, RemoveSpan(status.span))] if status.state in _STRAY else []
        # a leaving capture accepts no new spans, so repeating the order would never end
        if status.state is SpanState.ABSENT and self.captures.is_stopping(capture):
            return self.span_index.change(replication, partial(replication.handle_capture_gone, capture))
        return self.span_index.change(replication, partial(replication.handle_status, capture, status))

    def _handle_lost(self) -> list[Order]:
        """Reassign the spans of captures that are gone and write no more; those that are not wanted any more end."""
        orders: list[Order] = []
        lost = self.captures.take_lost()
        if lost:
            self._want()
        for capture in lost:
            self.span_index.end_together(capture)
            affected = list(self.span_index.held_by(capture))
            self.inflight.drop(affected)
            for span in affected:
                replication = self.span_index.sets[span]
                if span in self.span_index.surplus:
                    orders += self.span_index.change(replication, replication.handle_remove)
                orders += self.span_index.change(replication, partial(replication.handle_capture_gone, capture))
        # of two that are lost in one round, the second may have been ordered to replace the first
        return [order for order in orders if self.captures.epoch_of(order.capture)] if lost else orders

    def _start_from_first_answers(self) -> list[Order]:
        """Spans that no longer belong to their table are leftovers: they were stopped before the sink was asked."""
        initial = self.captures.take_initial()
        if initial is None:
            return []
        orders: list[Order] = []
        by_span: dict[TableSpan, dict[CaptureId, SpanStatus]] = {}
        for capture, statuses in initial.items():
            for status in statuses:
                by_span.setdefault(status.span, {})[capture] = status
        for span, reported in sorted(by_span.items()):
            if span in spans_of(span.table_id, self._table_spans):
                self.span_index.add(ReplicationSet.rebuild(span, self._start_of(span), reported))
            else:
                orders += [Order(c, RemoveSpan(span)) for c, at in sorted(reported.items()) if at.state in _STRAY]
        return orders

    def _has_news(self, now: float) -> bool:
        """Return whether anything that policies look at has changed; with many spans, most rounds bring only
        checkpoints."""
        seen = self.captures.statuses()
        has_wishes = bool(self._wishes or self._wants_rebalance or self.drain_target)
        is_moving = not self.span_index.is_settled or bool(self.inflight.running)
        has_news = is_moving or has_wishes or seen != self._seen or self._is_repartitioned() or now >= self._balance_at
        self._seen = seen
        return has_news

    def _schedule(self, now: float) -> list[Order]:
        self._want()
        self.inflight.clear_finished(self.span_index)
        self._drop_leftovers()
        view = self._view()
        orders: list[Order] = []
        for task in self._next_tasks(view, now):
            orders += self.inflight.start(task, self.span_index, self._start_of)
        self._refuse_overlap()
        return orders

    def _want(self) -> None:
        """Compute the wanted spans, if what they depend on has changed."""
        if self._tables is not None and self._is_repartitioned():
            aside = frozenset(self._catching_up)
            self.span_index.want(wanted_spans(self._tables, self._table_spans), aside=aside)
            self._wanted_of = (self._tables, self._table_spans, aside)

    def _is_repartitioned(self) -> bool:
        tables, table_spans, aside = self._wanted_of
        return self._tables is not tables or self._table_spans != table_spans or self._catching_up.keys() != aside

    def _drop_leftovers(self) -> None:
        for span in sorted(self.span_index.surplus):
            if not self.span_index.sets[span].captures:
                self.span_index.discard(span)

    def _refuse_overlap(self) -> None:
        """Check before anything that was decided here is sent.

        :raises owner.errors.InconsistentSpanError: an unwanted span overlaps a wanted one.
        """
        tables = self._tables or ()
        refuse_overlap(
            (span for span in self.span_index.surplus if span.table_id in tables), self.sets, self._table_spans
        )

    def _next_tasks(self, view: View, now: float) -> Sequence[Task | Burst]:
        """Return the tasks of the first policy that has any."""
        self._settle_requests(view, now)
        if bursts := basic.plan(view):
            return bursts
        if self.inflight.is_full:
            return []
        if self.drain_target and (moves := drain.plan(view, self.drain_target)):
            return moves
        if moves := move.plan(view, self._wishes):
            return moves
        if self._wants_rebalance and (burst := rebalance.plan(view)) is not None:
            self._wants_rebalance = False
            return [burst]
        return self._balance(view, now)

    def _balance(self, view: View, now: float) -> Sequence[Task]:
        """Balance at intervals, and in every round while there is something to even out."""
        if now < self._balance_at or not view.is_settled:
            return []
        moves = balance.plan(view)
        self._balance_at = now if moves else now + self._settings.check_balance_interval_s
        return moves

    def _settle_requests(self, view: View, now: float) -> None:
        move.settle(view, self._wishes)
        if self.drain_target and not self._is_draining(self.drain_target):
            self.drain_target = None
        self.drain_target = self.drain_target or drain.pick_target(view)
        if self._serving != view.serving:
            self._serving, self._balance_at = view.serving, now

    def _is_draining(self, capture: CaptureId) -> bool:
        """Return whether it still has spans, or has not yet reported that it accepts no more."""
        if capture not in self.captures.captures:
            return False
        return not self.captures.is_stopping(capture) or bool(self.span_index.held_by(capture))

    def _view(self) -> View:
        additions = self._settings.add_table_batch_size * max(1, len(self.captures.serving()))
        limits = (self._settings.max_task_concurrency, additions)
        return View(self.span_index, self.captures.statuses(), self.identity.capture, *limits)

    def _start_of(self, span: TableSpan) -> Ts:
        if span.table_id in self._catching_up:
            return self._catching_up[span.table_id]
        return max(self._floor_ts, (self._tables or {}).get(span.table_id, Ts(0)))

    def _dispatches(self, orders: list[Order]) -> list[Send]:
        sends = []
        for order in orders:
            epoch = self.captures.epoch_of(order.capture)
            assert epoch, f"an order names the run it is for: {order}"
            sends.append(self.identity.message(order.capture, order.body, processor_epoch=epoch))
        return sends

    def _heartbeats(self, barrier: Barrier, heartbeat_budget: HeartbeatBudget, now: float) -> list[Send]:
        index, drain = self.span_index, self.drain_target
        due = self.captures.heartbeats(
            index.held_by, barrier, now, to_ask=index.to_ask, drain=drain, heartbeat_budget=heartbeat_budget
        )
        return [self.identity.message(capture, body, processor_epoch=epoch) for capture, epoch, body in due]
