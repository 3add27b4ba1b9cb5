"""Validation bites: a state that cannot be is named, whichever part of the owner has it."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from owner.errors import InconsistentSpanError
from owner.feed.changefeed import Changefeed
from owner.feed.run import Run
from owner.feed.sync_points import Phase
from owner.progress.barrier import Hold
from owner.scheduler.captures import CaptureStatus
from owner.scheduler.replication import SetState
from owner.scheduler.spans import even_spans
from owner.scheduler.tasks import RemoveTask
from reactor.ids import CaptureId, TableSpan, Ts
from reactor.records.changefeed import ChangefeedStatus
from tests.unit.owner.owner_build import FEED, S1, S2, A, B, error
from tests.unit.owner.small_cluster import SmallCluster
from tests.validated import validate


def _running() -> SmallCluster:
    cluster = SmallCluster(A, B)
    cluster.create()
    cluster.step(6)
    for _ in range(2):
        cluster.finish_unit()
        cluster.step(4)
    cluster.advance_log(200)
    cluster.step(8)
    assert cluster.checkpoint_ts() == 200
    return cluster


def _of(cluster: SmallCluster) -> tuple[Changefeed, Run]:
    changefeed = cluster.owner.changefeeds[FEED]
    assert changefeed.run is not None
    return changefeed, changefeed.run


def _unindexed(cluster: SmallCluster) -> None:
    span_index = _of(cluster)[1].coordinator.span_index
    span_index._held[span_index.sets[S1].primary or A].pop(S1)


def _uncounted(cluster: SmallCluster) -> None:
    _of(cluster)[1].coordinator.span_index.lowest.add(Ts(7), 0.0)


def _moved_beside_the_index(cluster: SmallCluster) -> None:
    _of(cluster)[1].coordinator.span_index.sets[S1].handle_move(CaptureId("c"))


def _on_a_capture_that_is_gone(cluster: SmallCluster) -> None:
    _of(cluster)[1].coordinator.captures.captures.pop(A)


def _known_without_a_run(cluster: SmallCluster) -> None:
    _of(cluster)[1].coordinator.captures.captures[A].status = CaptureStatus.UNINITIALIZED


def _task_of_another_span(cluster: SmallCluster) -> None:
    _of(cluster)[1].coordinator.inflight.running[S1] = RemoveTask(S2)


def _epoch_given_already(cluster: SmallCluster) -> None:
    _of(cluster)[1].workers.epoch_floor = 0


def _held_while_idle(cluster: SmallCluster) -> None:
    points = _of(cluster)[0].sync_points
    assert points is not None
    assert points.phase is Phase.IDLE
    points.hold_ts = Ts(5)


def _hold_without_a_run(cluster: SmallCluster) -> None:
    changefeed = _of(cluster)[0]
    changefeed._release()
    changefeed.hold = Hold(Ts(5), until=1e9)


def _status_past_its_barrier(cluster: SmallCluster) -> None:
    _of(cluster)[0].latest = ChangefeedStatus(checkpoint_ts=Ts(9), resolved_ts=Ts(9), min_table_barrier_ts=Ts(8))


def _status_past_what_is_resolved(cluster: SmallCluster) -> None:
    _of(cluster)[0].latest = ChangefeedStatus(checkpoint_ts=Ts(9), resolved_ts=Ts(8), min_table_barrier_ts=Ts(9))


def _run_of_another_epoch(cluster: SmallCluster) -> None:
    _of(cluster)[1].epoch += 1


def _asked_while_spans_run(cluster: SmallCluster) -> None:
    _of(cluster)[1].repartitions._ask_at[1] = 5.0


def _error_of_another_table(cluster: SmallCluster) -> None:
    _of(cluster)[0].held._errors[1] = error().with_(table_id=2)


def _with_a_hole(cluster: SmallCluster) -> None:
    _of(cluster)[1].coordinator._table_spans = {1: even_spans(1, 4)[1:]}


def _without_an_end(cluster: SmallCluster) -> None:
    _of(cluster)[1].coordinator._table_spans = {1: even_spans(1, 4)[:3]}


def _known_by_another_name(cluster: SmallCluster) -> None:
    cluster.owner.changefeeds[FEED].id = type(FEED)("other")


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_unindexed, "who has what"),
        (_uncounted, "positions are counted that nobody has"),
        (_moved_beside_the_index, "who has what"),
        (_on_a_capture_that_is_gone, "captures that are gone"),
        (_known_without_a_run, "is uninitialized, its run is"),
        (_task_of_another_span, "the task of"),
        (_epoch_given_already, "is not below 0"),
        (_held_while_idle, "idle, and held at 5"),
        (_hold_without_a_run, "does not run, but keeps"),
        (_status_past_its_barrier, "past its barrier"),
        (_status_past_what_is_resolved, "checkpoint 9 is past 8"),
        (_run_of_another_epoch, "under its own epoch"),
        (_asked_while_spans_run, "whose spans still run"),
        (_error_of_another_table, "is of table 2"),
        (_with_a_hole, "does not follow on 0 of table 1"),
        (_without_an_end, "the spans of table 1 end at"),
        (_known_by_another_name, "is known as feed"),
    ],
)
def test_what_cannot_be_is_named(spoil: Callable[[SmallCluster], None], complaint: str) -> None:
    cluster = _running()
    cluster.owner.validate()
    spoil(cluster)
    with pytest.raises(AssertionError, match=complaint):
        cluster.owner.validate()
    cluster.owner.changefeeds.clear()  # it is looked at again after the test


def test_roles_that_do_not_fit_are_an_error() -> None:
    cluster = _running()
    _of(cluster)[1].coordinator.span_index.sets[S1].state = SetState.ABSENT
    with pytest.raises(InconsistentSpanError, match="is absent with roles"):
        cluster.owner.validate()
    cluster.owner.changefeeds.clear()


def test_a_span_knows_how_it_came_to_its_state() -> None:
    replication = _of(_running())[1].coordinator.span_index.sets[TableSpan(1)]
    assert [step[2] for step in replication.steps] == ["prepare", "commit", "replicating"]


def test_what_a_test_leaves_behind_is_looked_at(made: deque[Any]) -> None:
    """As the fixture does after this test, and every other."""
    cluster = _running()
    assert cluster.owner in made
    assert {processor.agent for processor in cluster.processors.values()} <= set(made)
    _uncounted(cluster)
    with pytest.raises(AssertionError, match="counted"):
        validate(made)
    made.clear()
