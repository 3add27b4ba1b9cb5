"""Table span: the state machine of one span on this capture, with at most one order in work.

        PREPARE                 prepared               RUN              running
Absent ─────────► Preparing ─────────────► Prepared ─────────► (Prepared) ───────► Replicating
                      │                       │                                        │
                      └──────────REMOVE───────┴────────────────REMOVE──────────────────┘
                                                ▼
                                            Stopping ──stopped──► Stopped (reported once, then dropped)

The owner's orders are rows of ``ORDERS``; what the executor answers are rows of ``EVENTS``. An order in work is
answered when its end state is reached; a second order that arrives meanwhile is dropped, since the owner sends again
until it has seen the state it wants. A span that is stopping takes no new order but another REMOVE.

RUN starts nothing but a span that is prepared: the owner promotes only what said so. A RUN that finds the span absent
was sent before it was lost here (repeated, or stale), and by now another capture may have it.
"""

from dataclasses import dataclass
from enum import Enum, auto

from agent.control import effects
from agent.control.effects import AgentEffect
from reactor.ids import TableSpan, Ts
from reactor.messages import Place, SpanCheckpoint, SpanState, SpanStatus
from reactor.places import Here, Placed
from reactor.transitions import Steps, invalid, noted


class Order(Enum):
    """The owner's orders for a span: ``AddSpan`` as secondary, ``AddSpan`` as primary, ``RemoveSpan``."""

    PREPARE = auto()
    RUN = auto()
    REMOVE = auto()


class Action(Enum):
    """The steps that an order or an event causes."""

    PREPARE = auto()
    RUN = auto()
    STOP = auto()
    WAIT = auto()
    REPLY = auto()


#: (state, order) → action. WAIT keeps the order in progress; REPLY answers at once with the current state
ORDERS: dict[tuple[SpanState, Order], Action] = {
    (SpanState.ABSENT, Order.PREPARE): Action.PREPARE,
    (SpanState.ABSENT, Order.RUN): Action.REPLY,
    (SpanState.ABSENT, Order.REMOVE): Action.REPLY,
    (SpanState.PREPARING, Order.PREPARE): Action.WAIT,
    (SpanState.PREPARING, Order.RUN): Action.REPLY,
    (SpanState.PREPARING, Order.REMOVE): Action.STOP,
    (SpanState.PREPARED, Order.PREPARE): Action.REPLY,
    (SpanState.PREPARED, Order.RUN): Action.RUN,
    (SpanState.PREPARED, Order.REMOVE): Action.STOP,
    (SpanState.REPLICATING, Order.PREPARE): Action.REPLY,
    (SpanState.REPLICATING, Order.RUN): Action.REPLY,
    (SpanState.REPLICATING, Order.REMOVE): Action.STOP,
    (SpanState.STOPPING, Order.PREPARE): Action.REPLY,
    (SpanState.STOPPING, Order.RUN): Action.REPLY,
    (SpanState.STOPPING, Order.REMOVE): Action.REPLY,
    (SpanState.STOPPED, Order.PREPARE): Action.REPLY,
    (SpanState.STOPPED, Order.RUN): Action.REPLY,
    (SpanState.STOPPED, Order.REMOVE): Action.REPLY,
}

#: (state, event) → next state
EVENTS: dict[tuple[SpanState, type[effects.SpanEvent]], SpanState] = {
    (SpanState.PREPARING, effects.SpanPrepared): SpanState.PREPARED,
    (SpanState.PREPARED, effects.SpanRunning): SpanState.REPLICATING,
    **{
        (state, event): SpanState.STOPPED
        for state in (SpanState.PREPARING, SpanState.PREPARED, SpanState.REPLICATING, SpanState.STOPPING)
        for event in (effects.SpanStopped, effects.SpanFailed)
    },
}


#: events that are stale: the writer sent them before it received the next order
LATE: frozenset[tuple[SpanState, type[effects.SpanEvent]]] = frozenset(
    (state, event)
    for state in (SpanState.PREPARED, SpanState.REPLICATING, SpanState.STOPPING)
    for event in (effects.SpanPrepared, effects.SpanRunning)
    if (state, event) not in EVENTS
)
_NOWHERE = Place(SpanCheckpoint(Ts(0), Ts(0)))
_NAMES = {state: state.name.lower() for state in SpanState}
#: state → the orders that may be in progress in it
_IN_WORK: dict[SpanState, tuple[Order | None, ...]] = {
    SpanState.PREPARING: (Order.PREPARE,),
    SpanState.PREPARED: (None, Order.RUN),
}


@dataclass(frozen=True, slots=True)
class Step:
    """The result of an order or event: orders for the executor, and whether to notify the owner now."""

    effects: tuple[AgentEffect, ...] = ()
    reply: bool = False


class LocalSpan(Placed):
    """The state machine of one span on this capture."""

    def __init__(self, span: TableSpan) -> None:
        super().__init__(_NOWHERE)
        self.span = span
        self.state = SpanState.ABSENT
        self._in_work: Order | None = None
        self._steps: Steps = ()

    @property
    def status(self) -> SpanStatus:
        return SpanStatus(self.span, self.state, *self.place.at)

    @property
    def is_gone(self) -> bool:
        return self.state in (SpanState.ABSENT, SpanState.STOPPED)

    def handle_order(self, order: Order, checkpoint: SpanCheckpoint | None = None) -> Step:
        """Process an order of the owner; ``checkpoint`` comes with PREPARE and RUN."""
        if self._in_work not in (None, order) and order is not Order.REMOVE:
            return Step()
        if checkpoint is not None and self.state is not SpanState.REPLICATING:
            self._raise_checkpoint(checkpoint)  # a running writer knows its position better than the owner
        action = ORDERS[self.state, order]
        if action is Action.RUN and self._in_work is Order.RUN:
            return Step()  # the executor has been asked; SpanRunning will answer
        return self._do(action, order)

    def handle_event(self, event: effects.SpanEvent) -> Step:
        """Process an event of the executor.

        :raises InvalidTransitionError: it answers an order that was not given.
        """
        if isinstance(event, effects.SpanProgress):
            self.advance(event)
            return Step()
        state, said = EVENTS.get((self.state, type(event))), type(event).__name__
        if state is None and (self.state, type(event)) in LATE:
            return Step()
        if state is None:
            raise invalid(f"span {self.span}", _NAMES[self.state], said, self._steps)
        self._enter(state, said)
        if isinstance(event, effects.SpanStopped):
            self._raise_checkpoint(event.checkpoint)
        self._in_work = None
        report = (effects.ReportError(event.error),) if isinstance(event, effects.SpanFailed) else ()
        return Step(report, reply=True)

    def advance(self, event: effects.SpanProgress) -> bool:
        """Take over the executor's progress; return whether anything has changed."""
        before = self.place
        self._raise_checkpoint(event.checkpoint, event.checkpoint_time)
        return self.place is not before

    def orders_again(self) -> effects.PrepareSpan | effects.RunSpan | effects.StopSpan | None:
        """Return the order that brings an executor that has lost its memory to this span's state."""
        match self.state:
            case SpanState.PREPARING:
                return effects.PrepareSpan(self.span, self.checkpoint)
            case SpanState.PREPARED if self._in_work is Order.RUN:
                return effects.RunSpan(self.span, self.checkpoint.checkpoint_ts)
            case SpanState.REPLICATING:
                return effects.RunSpan(self.span, self.checkpoint.checkpoint_ts)
            case SpanState.STOPPING:
                return effects.StopSpan(self.span)
        return None

    def _do(self, action: Action, order: Order) -> Step:
        match action:
            case Action.PREPARE:
                self._in_work = order
                self._enter(SpanState.PREPARING, order.name)
                return Step((effects.PrepareSpan(self.span, self.checkpoint),))
            case Action.RUN:
                assert self.state is SpanState.PREPARED, "run starts nothing but a span that is prepared"
                self._in_work = order
                return Step((effects.RunSpan(self.span, self.checkpoint.checkpoint_ts),))
            case Action.STOP:
                self._in_work = None
                self._enter(SpanState.STOPPING, order.name)
                return Step((effects.StopSpan(self.span),), reply=True)
            case Action.WAIT:
                self._in_work = order
                return Step()
            case Action.REPLY:
                return Step(reply=True)

    def _enter(self, state: SpanState, cause: str) -> None:
        before, self.state = self.state, state
        self._steps = noted(self._steps, _NAMES[before], cause, _NAMES[state])

    def validate(self) -> None:
        """Assert the invariants between two messages."""
        assert self._in_work in _IN_WORK.get(self.state, (None,)), f"{self.span} is {self.state}, {self._in_work} waits"
        assert self.checkpoint.checkpoint_ts <= self.checkpoint.resolved_ts, f"{self.span} is past its resolved Ts"

    def _raise_checkpoint(self, new: SpanCheckpoint, time: float = 0.0) -> None:
        """Raise the checkpoint, which never goes back; nothing is checkpointed that is not resolved. What changes is
        the span's own from then on."""
        checkpoint_ts = max(self.checkpoint.checkpoint_ts, new.checkpoint_ts)
        resolved_ts = max(self.checkpoint.resolved_ts, new.resolved_ts, checkpoint_ts)
        after = Place(SpanCheckpoint(checkpoint_ts, resolved_ts), time or self.checkpoint_time)
        if after != self.place.at:
            self.place = Here(after)
