"""The scheduler of one changefeed: captures' answers in, orders and heartbeats out.

``poll`` is the protocol, read from top to bottom. A coordinator lives as long as one run of its changefeed under one
owner; a new one learns everything from the captures' first answers. What is stale (another owner revision, another
changefeed epoch, a capture that is gone, an earlier run of a processor) is refused at the door.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from owner.scheduler.captures import CaptureManager
from owner.scheduler.inflight import Inflight, spans_on
from owner.scheduler.policies import balance, basic, drain, move, rebalance
from owner.scheduler.replication import Order, ReplicationSet
from owner.scheduler.spans import Cuts, refuse_overlap, spans_of, wanted_spans
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

_NO_CUTS: Cuts = {}
_STRAY = (SpanState.PREPARING, SpanState.PREPARED, SpanState.REPLICATING)


@dataclass(frozen=True, slots=True)
class Identity:
    """As whom a coordinator speaks."""

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
    """What one heartbeat answer said of its capture's worker."""

    capture: CaptureId
    status: WorkerStatus | None


class Coordinator:
    """Keeps every span of ``tables`` written by exactly one capture."""

    def __init__(self, identity: Identity, settings: SchedulerSettings) -> None:
        self.identity = identity
        self.captures = CaptureManager(settings)
        self.sets: dict[TableSpan, ReplicationSet] = {}
        self.inflight = Inflight(settings.max_task_concurrency)
        self.drain_target: CaptureId | None = None
        self._settings = settings
        self._tables: Mapping[int, Ts] | None = None
        self._cuts: Cuts = {}
        self._wishes: dict[TableSpan, CaptureId] = {}
        self._wants_rebalance = False
        self._balance_at = 0.0
        self._serving: list[CaptureId] = []
        self._is_unsettled = True
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
        cuts: Cuts = _NO_CUTS,
    ) -> list[Send]:
        """One round. ``tables``: id → where its spans start if nobody knows better; None while they are not known.

        :raises owner.errors.SpanError: the captures contradict each other; the changefeed must run anew.
        """
        self._tables, self._cuts = tables, cuts
        self.captures.handle_alive(alive)
        orders = self._handle_lost()
        for message in messages:
            if not self._refuses(message):
                orders += self._handle(message)
        orders += self._start_from_first_answers()
        if self.captures.is_initialized and tables is not None and self._has_news(now):
            orders += self._schedule(now)
        return self._dispatches(orders) + self._heartbeats(barrier, now)

    def move_table(self, table_id: int, capture: CaptureId) -> int:
        """Ask for all spans of a table on ``capture``; how many there are."""
        spans = [span for span in self.sets if span.table_id == table_id]
        self._wishes.update(dict.fromkeys(spans, capture))
        return len(spans)

    def rebalance(self) -> None:
        self._wants_rebalance = True

    def drain(self, capture: CaptureId) -> int:
        """Ask for ``capture`` to be emptied; how many spans it still has (1 while that is not known)."""
        if not self.captures.is_initialized:
            return 1
        is_possible = len(self.captures.captures) > 1 and capture != self.identity.capture
        if is_possible and self.drain_target is None and self._is_draining(capture):
            self.drain_target = capture
        return len(spans_on(capture, self.sets))

    @property
    def rows_flushed(self) -> int:
        """Row changes that the runs of processors seen so far have written."""
        return sum(self._rows_flushed.values())

    def take_worker_reports(self) -> list[WorkerReport]:
        reports, self._reports = self._reports, []
        return reports

    def _refuses(self, message: Message) -> bool:
        header, identity = message.header, self.identity
        if (header.owner_revision, header.changefeed_epoch) != (identity.owner_revision, identity.changefeed_epoch):
            return True
        if message.receiver != identity.capture or message.sender not in self.captures.captures:
            return True
        is_dispatch = isinstance(message.body, DispatchResponse)
        return is_dispatch and header.processor_epoch != self.captures.epoch_of(message.sender)

    def _handle(self, message: Message) -> list[Order]:
        orders: list[Order] = []
        match message.body:
            case HeartbeatResponse() as response:
                self.captures.handle_response(message.sender, message.header.processor_epoch, response)
                orders += self._handle_lost()
                self._reports.append(WorkerReport(message.sender, response.worker))
                self._rows_flushed[message.sender, message.header.processor_epoch] = response.rows_flushed
                statuses: tuple[SpanStatus, ...] = response.statuses
            case DispatchResponse(status=status):
                statuses = (status,)
                self.captures.note_statuses(message.sender, statuses)
            case _:
                return []
        if self.captures.is_initialized:
            for status in statuses:
                orders += self._handle_status(message.sender, status)
        return orders

    def _handle_status(self, capture: CaptureId, status: SpanStatus) -> list[Order]:
        replication = self.sets.get(status.span)
        if replication is None:
            return [Order(capture, RemoveSpan(status.span))] if status.state in _STRAY else []
        # a leaving capture takes no new spans: repeating the order would be repeating it for ever
        is_refusal = status.state is SpanState.ABSENT and self.captures.is_stopping(capture)
        handle = replication.handle_status
        before = replication.state
        orders = replication.handle_capture_gone(capture) if is_refusal else handle(capture, status)
        self._is_unsettled = self._is_unsettled or replication.state is not before
        if replication.is_removed:
            del self.sets[status.span]
        return orders

    def _handle_lost(self) -> list[Order]:
        """Captures that are gone write no more: their spans go on elsewhere."""
        orders: list[Order] = []
        for capture in self.captures.take_lost():
            affected = spans_on(capture, self.sets)
            self.inflight.drop(affected)
            self._is_unsettled = True
            for span in affected:
                orders += self.sets[span].handle_capture_gone(capture)
                if self.sets[span].is_removed:
                    del self.sets[span]
        return orders

    def _start_from_first_answers(self) -> list[Order]:
        """Spans that their table is not cut into any more are leftovers: they were stopped before the sink was told."""
        initial = self.captures.take_initial()
        if initial is None:
            return []
        orders: list[Order] = []
        by_span: dict[TableSpan, dict[CaptureId, SpanStatus]] = {}
        for capture, statuses in initial.items():
            for status in statuses:
                by_span.setdefault(status.span, {})[capture] = status
        for span, reported in sorted(by_span.items()):
            if span in spans_of(span.table_id, self._cuts):
                self.sets[span] = ReplicationSet.rebuild(span, self._start_of(span), reported)
            else:
                orders += [Order(c, RemoveSpan(span)) for c, at in sorted(reported.items()) if at.state in _STRAY]
        return orders

    def _has_news(self, now: float) -> bool:
        """Something that a policy looks at has changed; with many spans, most rounds bring only checkpoints."""
        captures = frozenset(self.captures.statuses().items())
        seen = (frozenset(self._tables or ()), frozenset(self._cuts.items()), captures)
        has_wishes = bool(self._wishes or self._wants_rebalance or self.drain_target)
        has_news = self._is_unsettled or has_wishes or seen != self._seen or now >= self._balance_at
        self._seen = seen
        return has_news

    def _schedule(self, now: float) -> list[Order]:
        self.inflight.clear_finished(self.sets)
        wanted = self._wanted_spans()
        leftovers = sorted(self.sets.keys() - set(wanted))
        refuse_overlap((span for span in leftovers if span.table_id in (self._tables or ())), self.sets, self._cuts)
        for span in leftovers:
            if not self.sets[span].captures:
                del self.sets[span]
        view = self._view(wanted)
        self._is_unsettled = not view.is_settled or bool(self.inflight.running)
        orders: list[Order] = []
        for task in self._next_tasks(view, now):
            orders += self.inflight.start(task, self.sets, self._start_of)
        self._is_unsettled = self._is_unsettled or bool(orders)
        return orders

    def _next_tasks(self, view: View, now: float) -> Sequence[Task | Burst]:
        """The first policy with something to do decides this round."""
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
        """At intervals, and at every round as long as there is something to even out."""
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
        """It has something left, or has not yet said that it will take nothing more."""
        if capture not in self.captures.captures:
            return False
        return not self.captures.is_stopping(capture) or bool(spans_on(capture, self.sets))

    def _wanted_spans(self) -> list[TableSpan]:
        return list(wanted_spans(self._tables or (), self._cuts))

    def _view(self, wanted: list[TableSpan]) -> View:
        statuses = self.captures.statuses()
        limits = (self._settings.max_task_concurrency, self._settings.add_table_batch_size)
        return View(tuple(wanted), self.sets, statuses, self.identity.capture, *limits)

    def _start_of(self, span: TableSpan) -> Ts:
        return (self._tables or {}).get(span.table_id, Ts(0))

    def _dispatches(self, orders: list[Order]) -> list[Send]:
        return [
            self.identity.message(order.capture, order.body, processor_epoch=self.captures.epoch_of(order.capture))
            for order in orders
        ]

    def _heartbeats(self, barrier: Barrier, now: float) -> list[Send]:
        held: dict[CaptureId, list[TableSpan]] = {}
        for span, replication in self.sets.items():
            for capture in replication.captures:
                held.setdefault(capture, []).append(span)
        due = self.captures.heartbeats(held, barrier, now, drain=self.drain_target)
        return [self.identity.message(capture, body, processor_epoch=epoch) for capture, epoch, body in due]
