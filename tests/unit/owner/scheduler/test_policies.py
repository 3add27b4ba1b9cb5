"""Policies as functions: the picture in, tasks out."""

from owner.scheduler.captures import CaptureStatus
from owner.scheduler.policies import balance, basic, drain, move, rebalance
from owner.scheduler.tasks import AddTask, Burst, MoveTask, RemoveTask
from reactor.ids import CaptureId, TableSpan
from tests.unit.owner.owner_build import S1, S2, S3, A, B, C, tables, view

INITIALIZED, STOPPING, UNKNOWN = CaptureStatus.INITIALIZED, CaptureStatus.STOPPING, CaptureStatus.UNINITIALIZED


def test_basic_adds_a_batch_to_the_least_loaded_with_ties_by_id() -> None:
    picture = view({S1: A}, [A, B, C], spans=[S1, *tables(4, first=2)], add_batch_size=3)
    (burst,) = basic.plan(picture)
    assert burst.tasks == (AddTask(TableSpan(2), B), AddTask(TableSpan(3), C), AddTask(TableSpan(4), A))


def test_basic_adds_nothing_to_captures_that_leave_or_have_not_answered() -> None:
    assert basic.plan(view({}, {A: STOPPING, B: UNKNOWN}, spans=[S1])) == []
    (burst,) = basic.plan(view({}, {A: STOPPING, B: INITIALIZED}, spans=[S1]))
    assert burst.tasks == (AddTask(S1, B),)


def test_basic_removes_all_that_should_not_be_and_adds_at_once() -> None:
    picture = view({S1: A, S2: B}, [A, B], spans=[S3])
    assert basic.plan(picture) == [Burst((AddTask(S3, A),)), Burst((RemoveTask(S1), RemoveTask(S2)))]


def test_basic_is_content() -> None:
    assert basic.plan(view({S1: A}, [A])) == []


def test_drain_levels_while_assigning() -> None:
    first, second, third, fourth = tables(4)
    picture = view({first: A, second: A, third: A, fourth: B}, {A: STOPPING, B: INITIALIZED, C: INITIALIZED}, owner=B)
    moves = drain.plan(picture, A)
    assert [(task.span, task.capture) for task in moves] == [(first, C), (second, B), (third, C)]


def test_drain_waits_for_all_spans_to_settle() -> None:
    picture = view({S1: A}, {A: STOPPING, B: INITIALIZED}, spans=[S1, S2])
    assert drain.plan(picture, A) == []


def test_drain_is_limited_and_needs_somebody_else() -> None:
    placed = dict.fromkeys(tables(5), A)
    assert len(drain.plan(view(placed, {A: STOPPING, B: INITIALIZED}, max_tasks=2), A)) == 2
    assert drain.plan(view(placed, {A: STOPPING}), A) == []


def test_drain_never_picks_the_owner() -> None:
    assert drain.pick_target(view({S1: A, S2: B}, {A: STOPPING, B: STOPPING}, owner=A)) == B
    assert drain.pick_target(view({S1: A}, {A: STOPPING, B: STOPPING}, owner=A)) is None, "b is empty already"
    assert drain.pick_target(view({}, {A: STOPPING, B: INITIALIZED}, owner=A)) is None


def test_move_keeps_what_cannot_start_and_drops_what_never_will() -> None:
    picture = view({S1: A, S2: A}, {A: INITIALIZED, B: INITIALIZED, C: STOPPING})
    picture.span_index.sets[S2].handle_move(B)
    wishes = {S1: B, S2: A, S3: B}
    move.settle(picture, wishes)
    assert wishes == {S1: B}, "S2 is written by A, and S3 is unknown"
    assert move.plan(picture, wishes) == [MoveTask(S1, B)]
    picture.span_index.sets[S1].handle_move(B)
    assert move.plan(picture, wishes) == [], "under way"
    to_leaving = {S1: C}
    move.settle(picture, to_leaving)
    assert to_leaving == {}


def test_rebalance_levels_in_one_burst() -> None:
    placed = dict.fromkeys(tables(6), A)
    burst = rebalance.plan(view(placed, [A, B, C]))
    assert burst is not None
    assert sorted(task.capture for task in burst.tasks if isinstance(task, MoveTask)) == [B, B, C, C]


def test_rebalance_waits_for_spans_and_is_dropped_for_a_leaving_capture() -> None:
    assert rebalance.plan(view({S1: A}, [A, B], spans=[S1, S2])) is None
    assert rebalance.plan(view({S1: A, S2: B}, {A: INITIALIZED, B: STOPPING})) == Burst(())


def test_balance_stops_when_level_and_is_limited() -> None:
    placed = dict.fromkeys(tables(30), A)
    assert len(balance.plan(view(placed, [A, B, C], max_tasks=4))) == 4
    level: dict[TableSpan, CaptureId] = {S1: A, S2: A, S3: B}
    assert balance.plan(view(level, [A, B])) == [], "one more is as level as it gets"
    captures = {A: INITIALIZED, B: INITIALIZED, C: STOPPING}
    assert balance.plan(view({**dict.fromkeys(tables(4), A), TableSpan(9): C}, captures)) == [], "its own come first"
    assert len(balance.plan(view(dict.fromkeys(tables(4), A), captures))) == 2, "it has none, and may stay for long"


def test_plans_are_the_same_whatever_the_order_of_the_maps() -> None:
    spans = tables(9)
    one = view(dict.fromkeys(spans, A), [A, B, C])
    other = view(dict.fromkeys(reversed(spans), A), [C, B, A])
    assert balance.plan(one) == balance.plan(other)
    assert rebalance.plan(one) == rebalance.plan(other)
