"""Agent: the part of a processor that communicates with the owner: the gate, this capture's spans and units, and
answers.

``handle`` takes the owner's messages, ``handle_event`` the processor's events about spans and units, and ``tick``
reports to the owner what has changed since the last report. All return effects, perform none, and never raise on
foreign input.

A heartbeat that does not name this run of the processor gets a full answer: every span here, and Absent for every
requested one that is not. Any other gets the requested spans and the changes, which is cheap with many spans: those
that are together (``agent.control.together``) change as one. All messages are counted, so that the owner sees when one
is lost, and requests a full answer. Until it has named this run once, every answer is full: a part must never be taken
for the whole. An answer with too many spans for one message is sent in numbered parts. An owner of an older version,
which does not understand spans together, gets each by itself.
"""

from collections.abc import Iterable
from itertools import zip_longest

from agent.control import effects
from agent.control.gate import Gate
from agent.control.table_span import LocalSpan, Order, Step
from agent.control.together import SpansTogether
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
    Place,
    RemoveSpan,
    SpanCheckpoint,
    SpanState,
    SpanStatus,
    StartWorker,
    StopWorker,
    WorkerStatus,
    in_parts,
)
from reactor.records.log_head import LogHead

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
        self.together = SpansTogether()
        #: revisions of the owners that understand spans together, and that follow the log
        self._takes_together = self._follows_log = -1
        #: of the last message that was sent
        self._number = 0
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
        self.together.note(span)
        if span.status != before:
            self._unreported[event.span] = None
        return self._after(span, step)

    def _on_progress(self, event: effects.SpansProgress) -> Effects:
        together, spans, unreported = self.together, self.spans, self._unreported
        unreported.update((at, None) for at in event.left if together.leave(at))
        together.move(event.place)
        for progress in event.spans:
            span = spans.get(progress.span)
            if span is not None and span.advance(progress):
                together.note(span)
                unreported[progress.span] = None
        for at in [*together.awaited(), *event.joined]:
            span = spans.get(at)
            if span is not None and together.join(span):
                unreported[at] = None
        return []

    def tick(self, now: float) -> Effects:
        """Report changes to the owner; nothing if there are none, or no owner is known."""
        worker = self._worker()
        is_news = worker is not None and _without_progress(worker) != self._worker_reported
        is_news = is_news or self.liveness is not self._liveness_reported
        is_news = is_news or self.together.is_moved or bool(self.together.unnamed)
        if self.gate.owner.id is None or not (self._unreported or is_news):
            return []
        return [*self._respond()]

    def follow(self, head: LogHead) -> bool:
        """Move the spans together to the log's ``head``, up to which they have nothing to write, without a report.

        Return False if the owner does not follow the log itself, or if spans are still to join them.

        Where they were before is or will be reported: it is at or behind the log's last event (``LogHead.ends_at``).
        """
        if self.together.awaited() or (self.together.spans and self._follows_log != self.gate.owner.revision):
            return False
        self.together.follow(Place(SpanCheckpoint(head.resolved_ts, head.resolved_ts), head.resolved_time))
        return True

    def announce(self) -> Effects:
        """Report that this run has begun, to an owner that may not ask before long."""
        return [*self._respond()] if self.gate.owner.id is not None else []

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
        assert self.together.spans.keys() <= self.spans.keys(), "unknown spans are together"
        self.together.validate()
        for source, slot in self.slots.items():
            assert slot.source == source, f"the unit of {slot.source} is known as {source}'s"
            slot.validate()
        assert self.is_barrier_known or self.barrier == Barrier(), "a barrier without a heartbeat"

    def _on_heartbeat(self, heartbeat: Heartbeat, *, is_full: bool) -> Effects:
        is_news = heartbeat.is_stopping and self.liveness is Liveness.ALIVE
        if is_news:
            self.stop_serving()
        self.barrier, self.is_barrier_known = heartbeat.barrier, True
        if heartbeat.takes_together and self._takes_together != self.gate.owner.revision:
            self._takes_together = self.gate.owner.revision
            self.together.unnamed = dict.fromkeys(self.together.spans)
        if heartbeat.follows_log:
            self._follows_log = self.gate.owner.revision
        result: Effects = [*self._answer(heartbeat, is_full=is_full)]
        return [*result, effects.LeaveAsked()] if is_news else result

    def _answer(self, heartbeat: Heartbeat, *, is_full: bool) -> list[Send]:
        """Answer the last part of a heartbeat for all of it."""
        self._asked = {*heartbeat.spans} if heartbeat.part == 0 else self._asked.union(heartbeat.spans)
        if heartbeat.part + 1 < heartbeat.parts:
            return []
        asked, self._asked = self._asked, set()
        return self._respond(asked, is_full=is_full)

    def _on_add(self, order: AddSpan) -> Effects:
        span = self.spans.get(order.span)
        if span is None:
            # a span already prepared here may still be ordered to run: its old writer has been stopped for it
            if self.liveness is Liveness.STOPPING:
                return [self._reply(_absent(order.span))]
            span = self.spans[order.span] = LocalSpan(order.span)
        kind = Order.PREPARE if order.is_secondary else Order.RUN
        return self._after(span, span.handle_order(kind, order.checkpoint))

    def _on_remove(self, order: RemoveSpan) -> Effects:
        span = self.spans.get(order.span)
        if span is None:
            return [Log("debug", "asked to remove an unknown span", (("span", str(order.span)),))]
        return self._after(span, span.handle_order(Order.REMOVE))

    def _after(self, span: LocalSpan, step: Step) -> Effects:
        self.together.note(span)
        result: Effects = list(step.effects)
        if step.reply:
            self._unreported.pop(span.span, None)
            result.append(self._reply(span.status))
        if span.is_gone:
            self._unreported.pop(span.span, None)
            del self.spans[span.span]
        return result

    def _respond(self, asked: Iterable[TableSpan] = (), *, is_full: bool = False) -> list[Send]:
        """Report all spans, or only the changed ones and those that are ``asked`` for; always all until the owner has
        shown that it had them once."""
        is_full = is_full or self._epoch_known != self.gate.processor_epoch
        together, is_taken = self.together, self._takes_together == self.gate.owner.revision
        here = self.spans.keys()
        due = here if is_full else self._unreported.keys() | (here & asked)
        joined = together.spans.keys() & due | together.unnamed.keys()
        if is_taken:
            due -= joined
        else:
            due |= together.spans.keys() if together.is_moved else joined
            joined = set()
        statuses = [self.spans[span].status for span in sorted(due)]
        statuses += [_absent(span) for span in sorted(set(asked) - here)]
        self._unreported.clear()
        together.unnamed.clear()
        together.is_moved = False
        worker = self._worker()
        self._worker_reported = _without_progress(worker) if worker else None
        self._liveness_reported = self.liveness
        parts = list(zip_longest(in_parts(statuses), in_parts(sorted(joined))))
        place = together.place if is_taken else None
        of_all = self.liveness, worker, self.rows_flushed
        return [
            self._send(
                HeartbeatResponse(part or (), *of_all, number, len(parts), self._next(), is_full, place, some or ())
            )
            for number, (part, some) in enumerate(parts)
        ]

    def _reply(self, status: SpanStatus) -> Send:
        """Answer an order. For the owner the span is not with those together from then on."""
        if status.span in self.together.spans:
            self.together.unnamed[status.span] = None
        return self._send(DispatchResponse(status, self._next()))

    def _next(self) -> int:
        self._number += 1
        return self._number

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
