"""One span on one capture: the table, walked."""

import itertools

import pytest

from agent.control import effects
from agent.control.table_span import EVENTS, LATE, ORDERS, LocalSpan, Order
from reactor.errors import InvalidTransitionError
from reactor.ids import TableSpan, Ts
from reactor.messages import SpanCheckpoint, SpanState
from reactor.records.changefeed import RunningError

SPAN = TableSpan(1)
AT = SpanCheckpoint(Ts(3), Ts(5))
ERROR = RunningError(code="Sink", message="refused")

_EVENTS: list[effects.SpanEvent] = [
    effects.SpanPrepared(SPAN),
    effects.SpanRunning(SPAN),
    effects.SpanProgress(SPAN, AT),
    effects.SpanStopped(SPAN, AT),
    effects.SpanFailed(SPAN, ERROR),
]


def _state(span: LocalSpan) -> SpanState:
    return span.state


def test_every_state_has_a_row_for_every_order() -> None:
    states = [state for state in SpanState if state is not SpanState.UNKNOWN]
    assert set(ORDERS) == set(itertools.product(states, Order))


def test_life_of_a_span() -> None:
    span = LocalSpan(SPAN)
    assert span.handle_order(Order.PREPARE, AT).effects == (effects.PrepareSpan(SPAN, AT),)
    assert _state(span) is SpanState.PREPARING
    assert span.handle_event(effects.SpanPrepared(SPAN)).reply
    assert span.handle_order(Order.RUN, AT).effects == (effects.RunSpan(SPAN, Ts(3)),)
    assert _state(span) is SpanState.PREPARED
    assert span.handle_event(effects.SpanRunning(SPAN)).reply
    assert _state(span) is SpanState.REPLICATING
    span.handle_event(effects.SpanProgress(SPAN, SpanCheckpoint(Ts(9), Ts(9)), 100.0))
    step = span.handle_order(Order.REMOVE)
    assert step.reply
    assert step.effects == (effects.StopSpan(SPAN),)
    assert _state(span) is SpanState.STOPPING
    assert span.handle_event(effects.SpanStopped(SPAN, SpanCheckpoint(Ts(12), Ts(0)))).reply
    assert span.is_gone
    assert span.checkpoint == SpanCheckpoint(Ts(12), Ts(12)), "resolved is raised to the checkpoint"


def test_run_is_ordered_once() -> None:
    span = LocalSpan(SPAN)
    span.handle_order(Order.PREPARE, AT)
    span.handle_event(effects.SpanPrepared(SPAN))
    assert span.handle_order(Order.RUN, AT).effects
    again = span.handle_order(Order.RUN, AT)
    assert not again.effects
    assert not again.reply


def test_run_starts_nothing_that_is_not_prepared() -> None:
    """A promotion that came twice must not wake a span that was lost here meanwhile and went to another capture."""
    span = LocalSpan(SPAN)
    step = span.handle_order(Order.RUN, AT)
    assert not step.effects
    assert step.reply
    assert span.is_gone
    span.handle_order(Order.PREPARE, AT)
    assert not span.handle_order(Order.RUN, AT).effects


def test_a_stopping_span_takes_no_new_order_and_no_late_event() -> None:
    span = LocalSpan(SPAN)
    span.handle_order(Order.PREPARE, AT)
    span.handle_order(Order.REMOVE)
    for order in (Order.PREPARE, Order.RUN):
        assert not span.handle_order(order, AT).effects
    for event in (effects.SpanPrepared(SPAN), effects.SpanRunning(SPAN)):
        assert not span.handle_event(event).effects
    assert span.state is SpanState.STOPPING


def test_an_executor_error_is_reported_and_ends_the_span() -> None:
    span = LocalSpan(SPAN)
    span.handle_order(Order.PREPARE, AT)
    step = span.handle_event(effects.SpanFailed(SPAN, ERROR))
    assert step.effects == (effects.ReportError(ERROR),)
    assert step.reply
    assert span.is_gone


def test_a_running_writer_knows_better_than_a_late_order() -> None:
    span = LocalSpan(SPAN)
    span.handle_order(Order.PREPARE, AT)
    span.handle_event(effects.SpanPrepared(SPAN))
    span.handle_order(Order.RUN, AT)
    span.handle_event(effects.SpanRunning(SPAN))
    span.handle_order(Order.RUN, SpanCheckpoint(Ts(99), Ts(99)))
    assert span.checkpoint.checkpoint_ts == 3


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_any_sequence_keeps_the_invariants(length: int) -> None:
    """Checkpoints never go back; after the last event nothing comes; what no table has raises, and changes nothing."""
    steps: list[Order | effects.SpanEvent] = [*Order, *_EVENTS]
    for sequence in itertools.product(steps, repeat=length):
        span = LocalSpan(SPAN)
        is_run_ordered = False
        for step in sequence:
            if span.state is SpanState.STOPPED:
                break  # the agent drops it here
            before = (span.state, span.checkpoint)
            if isinstance(step, Order):
                is_run_ordered = is_run_ordered or step is Order.RUN
                span.handle_order(step, None if step is Order.REMOVE else AT)
            else:
                if span.state is SpanState.ABSENT:
                    continue  # the agent has no span to give it to
                is_row = (before[0], type(step)) in LATE or isinstance(step, effects.SpanProgress)
                if (before[0], type(step)) in EVENTS or is_row:
                    span.handle_event(step)
                    assert not is_row or span.state is before[0]
                    span.validate()
                    continue
                with pytest.raises(InvalidTransitionError, match="is preparing, which has no transition for SpanRun"):
                    span.handle_event(step)
                assert (span.state, span.checkpoint) == before
                break  # nothing has changed: what follows is another sequence
            span.validate()
            assert span.checkpoint.checkpoint_ts >= before[1].checkpoint_ts
            assert span.checkpoint.resolved_ts >= span.checkpoint.checkpoint_ts
