"""Agent: the part of a processor that communicates with the owner: the gate, this capture's spans and units, and
answers.

``handle`` takes the owner's messages, ``handle_event`` the processor's events about spans and units, and ``tick``
reports to the owner what has changed since the last report. All return effects, perform none, and never raise on
foreign input.

A heartbeat that does not name this run of the processor, or that asks about spans, gets a full answer: every span here,
and Absent for every requested one that is not. Any other gets the changes only, which is cheap with many spans. The
owner requests full answers often enough that a lost answer does not matter. Until it has named this run once, every
answer is full: a part must never be taken for the whole. An answer with too many spans for one message is sent in
numbered parts.
"""

from agent.control import effects
from agent.control.gate import Gate
from agent.control.table_span import LocalSpan, Order, Step
from agent.control.unit_slot import UnitSlot
from reactor.effects import Log, Send
from reactor.errors import Scope
from reactor.ids import CaptureId, ChangefeedId, TableSpan, Ts
from reactor.messages import (
    AddSpan,
    Barrier,
    Body,
    DispatchResponse,
    Heartbeat,
    HeartbeatResponse,
    Liveness,
    Message,
    RemoveSpan,
    SpanCheckpoint,
    SpanState,
    SpanStatus,
    StartWorker,
    StopWorker,
    WorkerStatus,
    in_parts,
)

Effects = list[effects.AgentEffect]


class Agent:
    """The decisions of one processor. ``barrier``: the limit of the newest heartbeat; flushes must not pass it.

    ``is_barrier_known`` is False until a heartbeat has arrived: nothing may be written before.
    """

    def __init__(self, capture: CaptureId, changefeed: ChangefeedId, *, gate: Gate) -> None:
        self.capture = capture
        self.changefeed = changefeed
        self.gate = gate
        self.spans: dict[TableSpan, LocalSpan] = {}
        self.slots: dict[str, UnitSlot] = {}
        self.liveness = Liveness.ALIVE
        self.barrier = Barrier()
        self.is_barrier_known = False
        #: row changes written to the sink so far; counted by the processor
        self.rows_flushed = 0
        #: in the order of their changes
        self._unreported: dict[TableSpan, None] = {}
        #: spans named in the parts of a heartbeat received so far
        self._asked: set[TableSpan] = set()
        self._worker_reported: WorkerStatus | None = None
        self._liveness_reported = Liveness.ALIVE
        #: the processor epoch that the owner has named, which proves that it has had a full answer of this run
        self._epoch_known = ""

    def handle(self, message: Message, now: float) -> Effects:
        """Process one message of the owner, or of a capture that considers itself the owner."""
        reason = self.gate.admit(message)
        if message.changefeed != self.changefeed or message.receiver != self.capture:
            reason = "addressed to another processor"
        if reason:
            return [_refused(message, reason)]
        if self.gate.is_own(message.header):
            self._epoch_known = self.gate.processor_epoch
        match message.body:
            case Heartbeat():
                return self._on_heartbeat(message.body, is_full=not self.gate.is_own(message.header))
            case AddSpan():
                return self._on_add(message.body)
            case RemoveSpan():
                return self._on_remove(message.body)
            case StartWorker() | StopWorker():
                return self._slot(message.body.source).handle_order(message.body)
        return [_refused(message, "not an order")]

    def handle_event(self, event: effects.AgentEvent, now: float) -> Effects:
        """Process an event of a span or unit here. Events of removed spans and units are dropped."""
        if isinstance(event, effects.UnitEvent):
            slot = self.slots.get(event.source)
            found: Effects = [*(slot.handle_event(event) if slot else ())]
            if isinstance(event, effects.UnitFailed) and event.error.scope is Scope.CAPTURE:
                found.append(effects.ReportError(event.error))
            return found
        if isinstance(event, effects.SpansProgress):
            return self._on_progress(event)
        span = self.spans.get(event.span)
        if span is None:
            return []
        before = span.status
        step = span.handle_event(event)
        if span.status != before:
            self._unreported[event.span] = None
        return self._after(span, step)

    def _on_progress(self, event: effects.SpansProgress) -> Effects:
        for progress in event.spans:
            span = self.spans.get(progress.span)
            if span is not None and span.advance(progress):
                self._unreported[progress.span] = None
        spans, unreported, checkpoint, time = self.spans, self._unreported, event.checkpoint, event.checkpoint_time
        for at in event.together:  # with no call for each, since they are many
            span = spans.get(at)
            if span is None:
                continue
            if span.checkpoint.resolved_ts <= checkpoint.checkpoint_ts:
                span.checkpoint, span.checkpoint_time = checkpoint, time or span.checkpoint_time
                unreported[at] = None
            elif span.advance(effects.SpanProgress(at, checkpoint, time)):
                unreported[at] = None
        return []

    def tick(self, now: float) -> Effects:
        """Report changes to the owner; nothing if there are none, or no owner is known."""
        worker = self._worker()
        is_news = worker is not None and _without_progress(worker) != self._worker_reported
        is_news = is_news or self.liveness is not self._liveness_reported
        if self.gate.owner.id is None or not (self._unreported or is_news):
            return []
        return [*self._respond([])]

    def announce(self) -> Effects:
        """Report that this run has begun, to an owner that may not ask before long."""
        return [*self._respond([])] if self.gate.owner.id is not None else []

    def stop_serving(self) -> None:
        """This capture is leaving: its spans are moved away, and it accepts no new ones. One-way."""
        self.liveness = Liveness.STOPPING

    def validate(self) -> None:
        """Assert the invariants between two messages."""
        for at, span in self.spans.items():
            assert span.span == at, f"span {span.span} is known as {at}"
            assert not span.is_gone, f"span {at} is {span.state} but was not removed"
            span.validate()
        assert self._unreported.keys() <= self.spans.keys(), "unreported changes of unknown spans"
        for source, slot in self.slots.items():
            assert slot.source == source, f"the unit of {slot.source} is known as {source}'s"
            slot.validate()
        assert self.is_barrier_known or self.barrier == Barrier(), "a barrier without a heartbeat"

    def _on_heartbeat(self, heartbeat: Heartbeat, *, is_full: bool) -> Effects:
        is_news = heartbeat.is_stopping and self.liveness is Liveness.ALIVE
        if is_news:
            self.stop_serving()
        self.barrier, self.is_barrier_known = heartbeat.barrier, True
        result: Effects = [*self._answer(heartbeat, is_full=is_full)]
        return [*result, effects.LeaveAsked()] if is_news else result

    def _answer(self, heartbeat: Heartbeat, *, is_full: bool) -> list[Send]:
        """Answer the last part of a heartbeat for all of it."""
        self._asked = {*heartbeat.spans} if heartbeat.part == 0 else self._asked.union(heartbeat.spans)
        if heartbeat.part + 1 < heartbeat.parts:
            return []
        asked, self._asked = self._asked, set()
        absent = [_absent(span) for span in sorted(asked - self.spans.keys())]
        return self._respond(absent, is_full=is_full or bool(asked))

    def _on_add(self, order: AddSpan) -> Effects:
        span = self.spans.get(order.span)
        if span is None:
            # a span already prepared here may still be ordered to run: its old writer has been stopped for it
            if self.liveness is Liveness.STOPPING:
                return [self._send(DispatchResponse(_absent(order.span)))]
            span = self.spans[order.span] = LocalSpan(order.span)
        kind = Order.PREPARE if order.is_secondary else Order.RUN
        return self._after(span, span.handle_order(kind, order.checkpoint))

    def _on_remove(self, order: RemoveSpan) -> Effects:
        span = self.spans.get(order.span)
        if span is None:
            return [Log("debug", "asked to remove an unknown span", (("span", str(order.span)),))]
        return self._after(span, span.handle_order(Order.REMOVE))

    def _after(self, span: LocalSpan, step: Step) -> Effects:
        result: Effects = list(step.effects)
        if step.reply:
            self._unreported.pop(span.span, None)
            result.append(self._send(DispatchResponse(span.status)))
        if span.is_gone:
            self._unreported.pop(span.span, None)
            del self.spans[span.span]
        return result

    def _respond(self, absent: list[SpanStatus], *, is_full: bool = False) -> list[Send]:
        """Report all spans, or only the changed ones; always all until the owner has shown that it had them once."""
        is_full = is_full or self._epoch_known != self.gate.processor_epoch
        due = self.spans if is_full else self._unreported
        statuses = [self.spans[span].status for span in sorted(due)] + absent
        self._unreported.clear()
        worker = self._worker()
        self._worker_reported = _without_progress(worker) if worker else None
        self._liveness_reported = self.liveness
        parts = in_parts(statuses)
        return [
            self._send(HeartbeatResponse(part, self.liveness, worker, self.rows_flushed, number, len(parts)))
            for number, part in enumerate(parts)
        ]

    def _worker(self) -> WorkerStatus | None:
        statuses = [slot.status for slot in self.slots.values() if slot.status]
        return max(statuses, key=lambda status: (status.epoch, status.source), default=None)

    def _slot(self, source: str) -> UnitSlot:
        return self.slots.setdefault(source, UnitSlot(source))

    def _send(self, body: Body) -> Send:
        owner = self.gate.owner.id
        assert owner is not None, "only an admitted message is answered, and admitting it made the owner known"
        return Send(Message(self.capture, owner, self.changefeed, self.gate.header, body))


def _absent(span: TableSpan) -> SpanStatus:
    return SpanStatus(span, SpanState.ABSENT, SpanCheckpoint(Ts(0), Ts(0)))


def _without_progress(status: WorkerStatus) -> WorkerStatus:
    """Row counts alone are not reported as changes: heartbeats carry them."""
    return WorkerStatus(status.source, status.unit, status.epoch, status.stage, error=status.error)


def _refused(message: Message, reason: str) -> Log:
    fields = (("sender", message.sender), ("body", type(message.body).__name__), ("reason", reason))
    return Log("debug", "message refused", fields)
