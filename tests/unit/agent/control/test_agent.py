"""The agent: answers to orders and heartbeats, in every state and every order."""

import itertools

import pytest

from agent.control import effects
from agent.control.agent import Agent
from agent.control.gate import Owner
from reactor.effects import Log, Send
from reactor.ids import CaptureId, TableSpan, Ts
from reactor.messages import (
    Barrier,
    Body,
    Heartbeat,
    Liveness,
    Place,
    SpanState,
    StartWorker,
    StopWorker,
    WorkerStage,
    WorkerStatus,
)
from reactor.records.changefeed import RunningError, Unit
from reactor.records.log_head import LogHead
from tests.unit.agent.agent_build import (
    FEED,
    HERE,
    OWNER,
    SPAN,
    answers,
    bring_to,
    checkpoint,
    message,
    new_agent,
    orders,
    prepare,
    remove,
    responses,
    run,
    tell,
)

LIVE = [
    SpanState.ABSENT,
    SpanState.PREPARING,
    SpanState.PREPARED,
    SpanState.REPLICATING,
    SpanState.STOPPING,
]
ERROR = RunningError(code="Sink", message="refused")


def test_removing_an_unknown_span_is_not_answered() -> None:
    agent = new_agent()
    done = tell(agent, remove())
    assert not answers(done)
    assert isinstance(done[0], Log)


def test_a_leaving_agent_takes_no_new_span_but_commits_a_prepared_one() -> None:
    agent = new_agent()
    bring_to(agent, SpanState.PREPARED)
    agent.stop_serving()
    other = TableSpan(2)
    for order in (prepare(other), run(other)):
        assert answers(tell(agent, order)) == [SpanState.ABSENT]
    assert other not in agent.spans
    assert orders(tell(agent, run())) == [effects.RunSpan(SPAN, Ts(1))]
    assert answers(agent.handle_event(effects.SpanRunning(SPAN), 0.0)) == [SpanState.REPLICATING]


def test_dispatch_from_prepare_to_stopped() -> None:
    agent = new_agent()
    assert orders(tell(agent, prepare())) == [effects.PrepareSpan(SPAN, checkpoint(1))]
    assert answers(agent.handle_event(effects.SpanPrepared(SPAN), 0.0)) == [SpanState.PREPARED]
    assert answers(tell(agent, prepare())) == [SpanState.PREPARED]
    assert answers(tell(agent, run(ts=2))) == []
    assert answers(agent.handle_event(effects.SpanRunning(SPAN), 0.0)) == [SpanState.REPLICATING]
    done = tell(agent, remove())
    assert orders(done) == [effects.StopSpan(SPAN)]
    assert answers(done) == [SpanState.STOPPING]
    assert answers(tell(agent, remove())) == [SpanState.STOPPING]
    done = agent.handle_event(effects.SpanStopped(SPAN, checkpoint(3)), 0.0)
    assert answers(done) == [SpanState.STOPPED]
    assert SPAN not in agent.spans


def test_full_heartbeat_answers_every_span_and_every_question() -> None:
    agent = new_agent()
    for number, state in enumerate(LIVE[1:], start=1):
        bring_to(agent, state, TableSpan(number))
    unknown = [TableSpan(number) for number in range(11, 16)]
    absent = {span.table_id: SpanState.ABSENT for span in unknown}
    full = message(agent, Heartbeat(tuple(unknown)), processor_epoch="")
    (response,) = responses(agent.handle(full, 0.0))
    assert response.is_full
    states = {status.span.table_id: status.state for status in response.statuses}
    assert states == dict(enumerate(LIVE[1:], start=1)) | absent
    (response,) = responses(tell(agent, Heartbeat((TableSpan(2), *unknown))))
    assert not response.is_full
    states = {status.span.table_id: status.state for status in response.statuses}
    assert states == {2: SpanState.PREPARED} | absent, "who names the run is answered for what it asks"


def test_liveness_is_one_way() -> None:
    agent = new_agent()
    (response,) = responses(tell(agent, Heartbeat(is_stopping=True)))
    assert response.liveness is Liveness.STOPPING
    (response,) = responses(tell(agent, Heartbeat(is_stopping=False)))
    assert response.liveness is Liveness.STOPPING


def test_leaving_is_reported_unasked() -> None:
    agent = new_agent()
    agent.stop_serving()
    (response,) = responses(agent.tick(0.0))
    assert response.liveness is Liveness.STOPPING
    assert agent.tick(0.0) == []


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize("sequence", list(itertools.permutations(["remove", "prepare", "run", "heartbeat"])))
@pytest.mark.parametrize("is_executor_quick", [True, False])
def test_any_order_of_orders_in_any_state(state: SpanState, sequence: tuple[str, ...], is_executor_quick: bool) -> None:
    agent = new_agent()
    bring_to(agent, state)
    bodies: dict[str, Body] = {
        "remove": remove(),
        "prepare": prepare(),
        "run": run(),
        "heartbeat": Heartbeat((SPAN,)),
    }
    stopped = 0
    for name in sequence:
        done = tell(agent, bodies[name])
        while is_executor_quick and orders(done):
            reported = answers(done)
            done = [effect for order in orders(done) for effect in agent.handle_event(_quick(order), 0.0)]
            stopped += answers(done).count(SpanState.STOPPED)
            assert SpanState.STOPPED not in reported
        if name == "heartbeat":
            assert len(responses(done)) == 1
    if not is_executor_quick:
        assert stopped == 0, "nothing is called stopped before the executor said so"
    for span in agent.spans.values():
        assert span.state not in (SpanState.ABSENT, SpanState.STOPPED), "spans that are gone are dropped"


def _quick(order: effects.AgentEffect) -> effects.SpanEvent:
    match order:
        case effects.PrepareSpan():
            return effects.SpanPrepared(order.span)
        case effects.RunSpan():
            return effects.SpanRunning(order.span)
        case effects.StopSpan():
            return effects.SpanStopped(order.span, checkpoint(3))
    raise AssertionError(order)


def test_foreign_input_is_refused_and_harms_nothing() -> None:
    agent = new_agent()
    bring_to(agent, SpanState.REPLICATING)
    foreign = [
        message(agent, remove(), sender=CaptureId("x")),
        message(agent, remove(), revision=1),
        message(agent, remove(), processor_epoch="another"),
        message(agent, remove(), changefeed_epoch=2),
        message(agent, agent_answer(agent)),
    ]
    for one in foreign:
        done = agent.handle(one, 0.0)
        assert [type(effect) for effect in done] == [Log]
    assert agent.spans[SPAN].state is SpanState.REPLICATING


def agent_answer(agent: Agent) -> Body:
    (response,) = responses(tell(agent, Heartbeat()))
    return response


def test_events_of_spans_that_are_gone_are_dropped() -> None:
    agent = new_agent()
    assert agent.handle_event(effects.SpanRunning(SPAN), 0.0) == []
    assert agent.handle_event(effects.UnitFinished("main", 3), 0.0) == []


def test_executor_error_leaves_the_agent() -> None:
    agent = new_agent()
    bring_to(agent, SpanState.PREPARING)
    done = agent.handle_event(effects.SpanFailed(SPAN, ERROR), 0.0)
    assert effects.ReportError(ERROR) in done
    assert answers(done) == [SpanState.STOPPED]


def test_barrier_is_that_of_the_newest_heartbeat() -> None:
    agent = new_agent()
    known = [agent.is_barrier_known]
    tell(agent, Heartbeat(barrier=Barrier(Ts(5))))
    tell(agent, Heartbeat(barrier=Barrier(Ts(9))))
    known.append(agent.is_barrier_known)
    assert known == [False, True]
    assert agent.barrier == Barrier(Ts(9))


def test_short_heartbeats_bring_only_what_changed() -> None:
    agent = new_agent()
    bring_to(agent, SpanState.REPLICATING)
    bring_to(agent, SpanState.REPLICATING, TableSpan(2))
    assert [len(r.statuses) for r in responses(tell(agent, Heartbeat()))] == [0]
    agent.handle_event(effects.SpanProgress(SPAN, checkpoint(8), 50.0), 0.0)
    (response,) = responses(agent.tick(0.0))
    assert [(status.span, status.checkpoint.checkpoint_ts, status.checkpoint_time) for status in response.statuses] == [
        (SPAN, 8, 50.0)
    ]
    assert agent.tick(0.0) == []


def test_a_new_owner_never_gets_a_part_for_the_whole() -> None:
    """Its first answer may be lost: until it names this run, all that is sent is full."""
    agent = new_agent()
    bring_to(agent, SpanState.REPLICATING)
    bring_to(agent, SpanState.REPLICATING, TableSpan(2))
    agent.gate.elect(Owner(HERE, 8))
    hello = message(agent, Heartbeat(), sender=HERE, revision=8, processor_epoch="")
    (lost,) = responses(agent.handle(hello, 0.0))
    assert len(lost.statuses) == 2
    agent.handle_event(effects.SpanProgress(SPAN, checkpoint(8)), 0.0)
    (unasked,) = responses(agent.tick(0.0))
    assert len(unasked.statuses) == 2
    named = message(agent, Heartbeat(), sender=HERE)
    (short,) = responses(agent.handle(named, 0.0))
    assert short.statuses == ()


def test_answers_go_to_the_owner_under_the_own_epoch() -> None:
    agent = new_agent()
    (effect,) = tell(agent, Heartbeat())
    assert isinstance(effect, Send)
    sent = effect.message
    assert (sent.sender, sent.receiver, sent.changefeed) == (HERE, OWNER, FEED)
    assert sent.header.processor_epoch == agent.gate.processor_epoch
    assert sent.header.owner_revision == agent.gate.owner.revision


def _worker(agent: Agent) -> WorkerStatus | None:
    (response,) = responses(tell(agent, Heartbeat()))
    return response.worker


def test_unit_runs_progresses_and_finishes() -> None:
    agent = new_agent()
    assert orders(tell(agent, StartWorker("main", Unit.DUMP, 4))) == [effects.StartUnit("main", Unit.DUMP, 4)]
    assert orders(tell(agent, StartWorker("main", Unit.DUMP, 4))) == [], "the same order again changes nothing"
    assert len(responses(agent.tick(0.0))) == 1, "a new stage is reported unasked"
    agent.handle_event(effects.UnitProgress("main", 4, 10, 100), 0.0)
    assert agent.tick(0.0) == [], "rows alone are not"
    assert _worker(agent) == WorkerStatus("main", Unit.DUMP, 4, WorkerStage.RUNNING, 10, 100)
    agent.handle_event(effects.UnitFinished("main", 4), 0.0)
    for _ in range(2):
        assert _worker(agent) == WorkerStatus("main", Unit.DUMP, 4, WorkerStage.FINISHED, 10, 100)


def test_a_newer_order_replaces_the_running_unit_only_after_its_end() -> None:
    agent = new_agent()
    tell(agent, StartWorker("main", Unit.SYNC, 4))
    assert orders(tell(agent, StartWorker("main", Unit.SYNC, 6))) == [effects.StopUnit("main", 4)]
    assert orders(tell(agent, StartWorker("main", Unit.SYNC, 7))) == [], "the stop is under way"
    assert orders(tell(agent, StartWorker("main", Unit.SYNC, 5))) == [], "older than what is due"
    done = agent.handle_event(effects.UnitFailed("main", 4, ERROR), 0.0)
    assert orders(done) == [effects.StartUnit("main", Unit.SYNC, 7)]


def test_stop_of_a_unit() -> None:
    agent = new_agent()
    tell(agent, StartWorker("main", Unit.SYNC, 4))
    assert orders(tell(agent, StopWorker("main", 3))) == [], "meant an older one"
    assert orders(tell(agent, StopWorker("main", 4))) == [effects.StopUnit("main", 4)]
    assert orders(tell(agent, StopWorker("main", 4))) == []
    assert orders(agent.handle_event(effects.UnitStopped("main", 4), 0.0)) == []
    worker = _worker(agent)
    assert worker is not None
    assert worker.stage is WorkerStage.STOPPED
    assert orders(tell(agent, StartWorker("main", Unit.SYNC, 5))) == [effects.StartUnit("main", Unit.SYNC, 5)]


def test_unit_error_is_reported_with_its_text() -> None:
    agent = new_agent()
    tell(agent, StartWorker("main", Unit.SYNC, 4))
    agent.handle_event(effects.UnitFailed("main", 4, ERROR), 0.0)
    agent.handle_event(effects.UnitProgress("main", 4, 1, 1), 0.0)
    assert _worker(agent) == WorkerStatus("main", Unit.SYNC, 4, WorkerStage.ERROR, error=ERROR)


def test_an_owner_that_does_not_know_of_spans_together_is_told_of_each() -> None:
    spans = [TableSpan(1), TableSpan(2), TableSpan(3)]
    agent = new_agent()
    for span in spans:
        bring_to(agent, SpanState.REPLICATING, span)
    agent.handle_event(effects.SpansProgress((), Place(checkpoint(50), 7.0), tuple(spans[:2])), 0.0)
    agent.handle_event(effects.SpansProgress((), Place(checkpoint(60), 8.0)), 0.0)
    [response] = responses(agent.tick(0.0))
    assert {at.span: (at.checkpoint, at.checkpoint_time) for at in response.statuses} == {
        span: (checkpoint(60), 8.0) for span in spans[:2]
    }
    assert (response.together, response.joined) == (None, ())
    agent.handle_event(effects.SpansProgress((), Place(checkpoint(40), 6.0), (TableSpan(9),)), 0.0)
    assert agent.spans[TableSpan(1)].checkpoint == checkpoint(60), "no span goes back"
    agent.validate()


def test_of_many_spans_that_move_together_only_the_place_is_reported() -> None:
    spans = tuple(TableSpan(number) for number in range(1, 101))
    agent = new_agent()
    for span in spans:
        bring_to(agent, SpanState.REPLICATING, span)
    tell(agent, Heartbeat(takes_together=True))
    agent.handle_event(effects.SpansProgress((), Place(checkpoint(50), 7.0), spans), 0.0)
    [response] = responses(agent.tick(0.0))
    assert (response.statuses, response.joined, response.together) == ((), spans, Place(checkpoint(50), 7.0))
    agent.handle_event(effects.SpansProgress((), Place(checkpoint(60), 8.0), left=(SPAN,)), 0.0)
    [later] = responses(agent.tick(0.0))
    assert [(at.span, at.checkpoint) for at in later.statuses] == [(SPAN, checkpoint(50))]
    assert (later.number, later.joined, later.together) == (response.number + 1, (), Place(checkpoint(60), 8.0))
    assert agent.tick(0.0) == []
    agent.validate()


def _together_at_50() -> Agent:
    agent = new_agent()
    bring_to(agent, SpanState.REPLICATING, SPAN)
    tell(agent, Heartbeat(takes_together=True, follows_log=True))
    agent.handle_event(effects.SpansProgress((), Place(checkpoint(50), 7.0), (SPAN,)), 0.0)
    assert len(responses(agent.tick(0.0))) == 1
    return agent


def test_the_move_of_a_quiet_logs_head_is_not_reported_to_an_owner_that_follows_the_log() -> None:
    agent = _together_at_50()
    assert agent.follow(LogHead(resolved_ts=Ts(60), resolved_time=8.0))
    assert (agent.spans[SPAN].checkpoint, agent.spans[SPAN].checkpoint_time) == (checkpoint(60), 8.0)
    assert agent.tick(0.0) == []
    [answer] = responses(tell(agent, Heartbeat(takes_together=True, follows_log=True)))
    assert answer.together == Place(checkpoint(60), 8.0)
    agent.validate()


def test_an_owner_of_an_older_version_is_told_every_move() -> None:
    agent = new_agent()
    bring_to(agent, SpanState.REPLICATING, SPAN)
    tell(agent, Heartbeat(takes_together=True))
    agent.handle_event(effects.SpansProgress((), Place(checkpoint(50), 7.0), (SPAN,)), 0.0)
    assert not agent.follow(LogHead(resolved_ts=Ts(60)))
    assert agent.spans[SPAN].checkpoint == checkpoint(50)
    agent = _together_at_50()
    agent.gate.elect(Owner(CaptureId("next"), 99))
    assert not agent.follow(LogHead(resolved_ts=Ts(60))), "the next owner has not said that it follows the log"


def test_spans_that_are_still_to_join_the_others_are_not_left_behind() -> None:
    agent, ahead = _together_at_50(), TableSpan(7)
    bring_to(agent, SpanState.REPLICATING, ahead)
    agent.handle_event(
        effects.SpansProgress((effects.SpanProgress(ahead, checkpoint(70)),), Place(checkpoint(60), 8.0), (ahead,)), 0.0
    )
    assert ahead not in agent.together.spans
    assert not agent.follow(LogHead(resolved_ts=Ts(80)))
