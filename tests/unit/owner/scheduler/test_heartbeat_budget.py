"""Heartbeat budget: a few changefeeds ask captures at the usual rate, each of many seldom."""

import math

from hypothesis import given
from hypothesis import strategies as st

from owner.scheduler.captures import CaptureManager
from owner.scheduler.heartbeat_budget import HeartbeatBudget
from owner.settings import SchedulerSettings
from reactor.ids import CaptureId, Ts
from reactor.messages import Barrier, HeartbeatResponse, WorkerStage, WorkerStatus
from reactor.records.changefeed import Unit

SETTINGS = SchedulerSettings()


def _budget(changefeeds: int, captures: int) -> HeartbeatBudget:
    return HeartbeatBudget(SETTINGS, spans=20 * changefeeds, changefeeds=changefeeds, captures=captures)


def test_few_changefeeds_ask_as_often_as_one() -> None:
    for changefeeds in (1, 5):
        budget = _budget(changefeeds, 3)
        assert [budget.beat_s(phase) for phase in (0.0, 0.5, 1.0)] == [SETTINGS.heartbeat_s] * 3
        assert budget.full_s(1.0) == SETTINGS.full_heartbeat_s


@given(changefeeds=st.integers(1, 2000), captures=st.integers(1, 200))
def test_the_heartbeats_of_all_changefeeds_are_bounded_and_each_capture_hears_its_owner(
    changefeeds: int, captures: int
) -> None:
    """An owner that is silent for a lease and more counts as lost (``capture.member.ownership.owner_watch``)."""
    budget = _budget(changefeeds, captures)
    phases = [number / changefeeds for number in range(changefeeds)]
    rate = sum(captures / budget.beat_s(phase) for phase in phases)
    to_one = sum(1 / budget.beat_s(phase) for phase in phases)
    assert to_one >= 0.9, "once a second each capture hears something"
    allowed = max(SETTINGS.beats_per_s, changefeeds * captures / SETTINGS.beat_max_s)
    assert rate <= max(captures / SETTINGS.heartbeat_s, 1.5 * allowed, 3.0 * captures)


def test_a_capture_that_has_not_answered_is_asked_often_however_many_changefeeds_there_are() -> None:
    manager, capture, budget = CaptureManager(SETTINGS, phase=0.5), CaptureId("a"), _budget(1000, 5)
    manager.handle_alive([capture])

    def beats(now: float) -> int:
        return len(manager.heartbeats(lambda _: (), Barrier(), now, drain=None, heartbeat_budget=budget))

    assert [beats(now) for now in (0.0, 0.4, 0.5, 1.0)] == [1, 0, 1, 1]
    manager.handle_response(capture, "run", HeartbeatResponse())
    assert math.isclose(budget.beat_s(0.5), SETTINGS.beat_max_s)
    assert [beats(now) for now in (1.5, 20.9, 21.0, 21.5)] == [0, 0, 1, 0]
    assert manager.next_heartbeat_at() == 41.0


def test_a_capture_of_which_nothing_is_missing_is_asked_seldom_unless_it_copies() -> None:
    manager, capture, budget = CaptureManager(SETTINGS, phase=0.5), CaptureId("a"), _budget(1000, 5)
    manager.handle_alive([capture])
    copying = WorkerStatus("main", Unit.DUMP, 1, WorkerStage.RUNNING, rows_done=5)

    def beats(now: float) -> int:
        return len(manager.heartbeats(lambda _: (), Barrier(), now, drain=None, heartbeat_budget=budget))

    assert beats(0.0) == 1
    manager.handle_response(capture, "run", HeartbeatResponse(number=1, is_full=True))
    manager.take_initial()
    manager.handle_response(capture, "run", HeartbeatResponse(number=2, is_full=True))
    assert manager.is_whole(capture)
    assert [beats(now) for now in (59.9, 60.0, 60.1)] == [0, 1, 0]
    manager.handle_response(capture, "run", HeartbeatResponse(number=3, worker=copying))
    assert [beats(now) for now in (79.9, 80.0, 80.1)] == [0, 1, 0]
    manager.handle_response(capture, "run", HeartbeatResponse(number=4))
    assert manager.next_heartbeat_at() == 140.0


def test_a_changed_barrier_is_sent_at_once_however_many_changefeeds_there_are() -> None:
    manager, capture, budget = CaptureManager(SETTINGS), CaptureId("a"), _budget(1000, 5)
    manager.handle_alive([capture])
    for now, barrier, beats in ((0.0, Barrier(), 1), (0.1, Barrier(), 0), (0.2, Barrier(Ts(5)), 1)):
        due = manager.heartbeats(lambda _: (), barrier, now, drain=None, heartbeat_budget=budget)
        assert len(due) == beats
        manager.handle_response(capture, "run", HeartbeatResponse())
