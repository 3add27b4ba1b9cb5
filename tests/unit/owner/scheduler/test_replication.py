"""The span's machine on the owner's side: life-cycles, losses, and every sequence of statuses to a fixed depth."""

import itertools

import pytest

from owner.errors import InconsistentSpanError, MultiplePrimaryError, SpanError
from owner.scheduler.replication import Order, ReplicationSet, Role, SetState
from reactor.ids import CaptureId, Ts
from reactor.messages import AddSpan, RemoveSpan, SpanCheckpoint, SpanState
from tests.unit.owner.owner_build import S1, A, B, C, status

HERE = [state for state in SpanState if state is not SpanState.UNKNOWN]


def add(capture: CaptureId, ts: int, *, is_secondary: bool) -> list[Order]:
    return [Order(capture, AddSpan(S1, is_secondary, SpanCheckpoint(Ts(ts), Ts(ts))))]


def remove(capture: CaptureId) -> list[Order]:
    return [Order(capture, RemoveSpan(S1))]


def written_by(capture: CaptureId, ts: int = 5) -> ReplicationSet:
    return ReplicationSet.rebuild(S1, Ts(1), {capture: status(SpanState.REPLICATING, ts)})


def moving() -> ReplicationSet:
    """From A to B, and B is prepared: A has been asked to stop."""
    known = written_by(A)
    assert known.handle_move(B) == add(B, 5, is_secondary=True)
    assert known.handle_status(B, status(SpanState.PREPARED)) == remove(A)
    return known


@pytest.mark.parametrize(
    ("statuses", "state", "roles"),
    [
        ({}, SetState.ABSENT, {}),
        ({A: SpanState.ABSENT, B: SpanState.STOPPED}, SetState.ABSENT, {}),
        ({A: SpanState.PREPARING}, SetState.PREPARE, {A: Role.SECONDARY}),
        ({A: SpanState.PREPARED}, SetState.COMMIT, {A: Role.SECONDARY}),
        ({A: SpanState.REPLICATING}, SetState.REPLICATING, {A: Role.PRIMARY}),
        ({A: SpanState.STOPPING}, SetState.REMOVING, {A: Role.UNDETERMINED}),
        (
            {A: SpanState.REPLICATING, B: SpanState.PREPARED},
            SetState.COMMIT,
            {A: Role.PRIMARY, B: Role.SECONDARY},
        ),
        (
            {A: SpanState.REPLICATING, B: SpanState.PREPARING},
            SetState.PREPARE,
            {A: Role.PRIMARY, B: Role.SECONDARY},
        ),
        (
            {A: SpanState.STOPPING, B: SpanState.PREPARED},
            SetState.COMMIT,
            {A: Role.UNDETERMINED, B: Role.SECONDARY},
        ),
        ({A: SpanState.PREPARING, B: SpanState.PREPARED}, SetState.COMMIT, {B: Role.SECONDARY}),
        (
            {A: SpanState.STOPPING, B: SpanState.REPLICATING},
            SetState.REPLICATING,
            {A: Role.UNDETERMINED, B: Role.PRIMARY},
        ),
    ],
)
def test_rebuild(statuses: dict[CaptureId, SpanState], state: SetState, roles: dict[CaptureId, Role]) -> None:
    known = ReplicationSet.rebuild(S1, Ts(3), {capture: status(said, 2) for capture, said in statuses.items()})
    assert (known.state, known.captures) == (state, roles)
    assert known.checkpoint.checkpoint_ts == 3


def test_rebuild_refuses_two_writers() -> None:
    with pytest.raises(MultiplePrimaryError, match="several writers"):
        ReplicationSet.rebuild(S1, Ts(1), dict.fromkeys((A, B), status(SpanState.REPLICATING)))


def test_add_with_every_message_lost_once() -> None:
    known = ReplicationSet(S1, Ts(3))
    order = add(A, 3, is_secondary=True)
    assert known.handle_add(A) == order
    assert known.handle_add(B) == [], "somebody has it already"
    assert known.handle_status(A, status(SpanState.ABSENT)) == order, "a lost order is repeated"
    assert known.handle_status(A, status(SpanState.PREPARING)) == []
    commit = add(A, 3, is_secondary=False)
    assert known.handle_status(A, status(SpanState.PREPARED)) == commit
    assert known.handle_status(A, status(SpanState.PREPARED)) == commit, "and so is a lost promotion"
    assert known.handle_status(A, status(SpanState.REPLICATING, 4)) == []
    assert (known.state, known.primary) == (SetState.REPLICATING, A)
    assert known.checkpoint.checkpoint_ts == 4


def test_remove_with_losses() -> None:
    known = written_by(A)
    assert known.handle_remove() == remove(A)
    assert known.handle_remove() == []
    assert known.handle_status(A, status(SpanState.REPLICATING, 6)) == remove(A)
    assert known.handle_status(A, status(SpanState.STOPPING, 6)) == []
    assert known.handle_status(A, status(SpanState.STOPPED, 7)) == []
    assert known.is_removed


def test_move_hands_over_only_after_the_stop_and_with_the_last_checkpoint() -> None:
    known = moving()
    assert known.handle_status(A, status(SpanState.REPLICATING, 6)) == remove(A), "the order was lost"
    assert known.handle_status(A, status(SpanState.STOPPING, 7)) == [], "stopping is not stopped"
    assert known.handle_status(B, status(SpanState.PREPARED)) == remove(A)
    assert known.handle_status(A, status(SpanState.STOPPED, 9)) == add(B, 9, is_secondary=False)
    assert known.handle_status(B, status(SpanState.REPLICATING, 9)) == []
    assert (known.state, known.captures) == (SetState.REPLICATING, {B: Role.PRIMARY})
    assert known.handle_status(A, status(SpanState.ABSENT)) == [], "a late word of the old one changes nothing"


def test_a_lost_stop_answer_promotes_with_what_was_last_known() -> None:
    known = moving()
    known.handle_status(A, status(SpanState.REPLICATING, 8))
    assert known.handle_status(A, status(SpanState.ABSENT)) == add(B, 8, is_secondary=False)


def test_stopping_primary_in_prepare_is_still_the_writer() -> None:
    """An answer of the old writer during a move (a defect of TiCDC's scheduler)."""
    known = written_by(A)
    known.handle_move(B)
    assert known.handle_status(A, status(SpanState.STOPPING)) == []
    assert known.primary == A
    assert known.handle_status(B, status(SpanState.PREPARED)) == remove(A), "not promoted"


def test_undetermined_capture_blocks_promotion_in_every_path() -> None:
    """The same after a change of owner, B prepared, A stopping, and the writer C stops."""
    said = {A: SpanState.STOPPING, B: SpanState.PREPARED, C: SpanState.REPLICATING}
    known = ReplicationSet.rebuild(S1, Ts(1), {capture: status(state) for capture, state in said.items()})
    assert known.handle_status(C, status(SpanState.STOPPED, 4)) == []
    assert known.handle_status(B, status(SpanState.PREPARED)) == []
    assert known.handle_status(A, status(SpanState.STOPPED, 6)) == add(B, 6, is_secondary=False)


def test_move_to_itself_is_nothing() -> None:
    known = written_by(A)
    assert known.handle_move(A) == []
    assert known.state is SetState.REPLICATING


def test_stray_spans_are_removed() -> None:
    known = written_by(A)
    assert known.handle_status(B, status(SpanState.PREPARED)) == remove(B)
    assert known.handle_status(B, status(SpanState.STOPPING)) == []
    assert known.captures == {A: Role.PRIMARY}


def test_second_writer_raises() -> None:
    known = written_by(A)
    known.handle_move(B)
    with pytest.raises(MultiplePrimaryError):
        known.handle_status(B, status(SpanState.REPLICATING))


def test_a_secondary_that_the_last_owner_promoted_is_the_writer() -> None:
    known = ReplicationSet.rebuild(S1, Ts(1), {B: status(SpanState.PREPARED)})
    assert known.handle_status(B, status(SpanState.REPLICATING, 3)) == []
    assert (known.state, known.primary) == (SetState.REPLICATING, B)


@pytest.mark.parametrize("gone", [A, B, C])
@pytest.mark.parametrize("phase", ["prepare", "commit", "promoted", "replicating", "removing"])
def test_capture_gone(gone: CaptureId, phase: str) -> None:
    known = written_by(A)
    if phase in ("prepare", "commit", "promoted"):
        known.handle_move(B)
    if phase in ("commit", "promoted"):
        known.handle_status(B, status(SpanState.PREPARED))
    if phase == "promoted":
        known.handle_status(A, status(SpanState.STOPPED, 6))
    if phase == "removing":
        known.handle_remove()
    before = dict(known.captures)
    orders = known.handle_capture_gone(gone)
    known.check()
    assert gone not in known.captures
    if gone not in before:
        assert (orders, known.captures) == ([], before)
    expected: dict[tuple[str, CaptureId], tuple[SetState, list[Order]]] = {
        ("prepare", A): (SetState.PREPARE, []),
        ("prepare", B): (SetState.REPLICATING, []),
        ("commit", A): (SetState.COMMIT, add(B, 5, is_secondary=False)),
        ("commit", B): (SetState.COMMIT, []),
        ("promoted", B): (SetState.ABSENT, []),
        ("replicating", A): (SetState.ABSENT, []),
        ("removing", A): (SetState.REMOVING, []),
    }
    if (phase, gone) in expected:
        assert (known.state, orders) == expected[phase, gone]


def test_both_captures_gone_in_a_move_leave_nobody() -> None:
    for first, second in ((A, B), (B, A)):
        known = moving()
        known.handle_capture_gone(first)
        known.handle_capture_gone(second)
        assert (known.state, known.captures) == (SetState.ABSENT, {})


def test_remove_during_a_move_stops_both_and_promotes_nobody() -> None:
    known = moving()
    assert known.handle_remove() == [Order(A, RemoveSpan(S1)), Order(B, RemoveSpan(S1))]
    assert known.handle_remove() == []
    assert known.handle_status(B, status(SpanState.PREPARED)) == [Order(B, RemoveSpan(S1))]
    assert known.handle_capture_gone(A) == []
    assert not known.is_removed
    assert known.handle_status(B, status(SpanState.STOPPED)) == []
    assert known.is_removed


def test_checkpoint_is_monotonic_and_below_resolved() -> None:
    known = written_by(A, 5)
    odd = status(SpanState.REPLICATING, 7)
    known.handle_status(A, type(odd)(S1, odd.state, SpanCheckpoint(Ts(7), Ts(1))))
    assert known.checkpoint == SpanCheckpoint(Ts(7), Ts(7))
    known.handle_status(A, status(SpanState.REPLICATING, 6))
    assert known.checkpoint == SpanCheckpoint(Ts(7), Ts(7))


def test_a_secondary_says_nothing_about_the_checkpoint() -> None:
    known = written_by(A, 5)
    known.handle_move(B)
    known.handle_status(B, status(SpanState.PREPARING, 9))
    assert known.checkpoint.checkpoint_ts == 5


def test_check_raises_on_what_does_not_fit() -> None:
    known = written_by(A)
    known.captures.clear()
    with pytest.raises(InconsistentSpanError):
        known.check()


class _World:
    """Who may be writing, by what it said itself: promoted and not yet seen stopped."""

    def __init__(self, known: ReplicationSet) -> None:
        self.writers = {
            capture for capture, role in known.captures.items() if role in (Role.PRIMARY, Role.UNDETERMINED)
        }

    def note_status(self, capture: CaptureId, said: SpanState) -> None:
        if said in (SpanState.ABSENT, SpanState.STOPPED):
            self.writers.discard(capture)

    def note_orders(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order.body, AddSpan) and not order.body.is_secondary:
                assert self.writers <= {order.capture}, "promoted while another may be writing"
                self.writers.add(order.capture)


_STARTS = [
    {},
    {A: SpanState.PREPARING},
    {A: SpanState.PREPARED},
    {A: SpanState.REPLICATING},
    {A: SpanState.STOPPING},
    {A: SpanState.REPLICATING, B: SpanState.PREPARING},
    {A: SpanState.REPLICATING, B: SpanState.PREPARED},
    {A: SpanState.STOPPING, B: SpanState.PREPARED},
    {A: SpanState.STOPPING, B: SpanState.PREPARING},
    {A: SpanState.STOPPING, B: SpanState.REPLICATING},
    {A: SpanState.STOPPING, B: SpanState.PREPARED, C: SpanState.REPLICATING},
]


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("start", range(len(_STARTS)))
def test_every_sequence_of_any_length_keeps_the_invariants(start: int) -> None:
    """Every reachable (state, roles, possible writers), with every status, add, move, removal and death in each.

    Transitions look at nothing else, so this covers sequences of any length over three captures. ``check`` runs
    inside every step (at most one primary, roles fit the state); here: nobody is promoted while another may be
    writing, a step other than a removal gives at most one order, and raises only when a second capture says that it
    writes.
    """
    captures = [A, B, C]
    commands = [(command, capture) for command in ("add", "move", "gone") for capture in captures]
    steps: list[Step] = [*itertools.product(captures, HERE), *commands, ("remove", "")]
    initial = {capture: status(said) for capture, said in _STARTS[start].items()}
    seen: set[object] = set()
    paths: list[tuple[Step, ...]] = [()]
    while paths:
        path = paths.pop()
        place = _walk(ReplicationSet.rebuild(S1, Ts(1), initial), path)
        if place is not None and place not in seen:
            seen.add(place)
            paths += [(*path, step) for step in steps]
    assert len(seen) > 1


Step = tuple[str, SpanState | str]


def _walk(known: ReplicationSet, path: tuple[Step, ...]) -> object:
    """Where ``path`` leads; None when its last step raised, as it should."""
    world = _World(known)
    for first, second in path:
        try:
            orders = _apply(known, world, first, second)
        except SpanError:
            assert second is SpanState.REPLICATING, "only a second writer is a contradiction"
            return None
        assert len(orders) <= 1 or first == "remove"
        world.note_orders(orders)
    return known.state, frozenset(known.captures.items()), frozenset(world.writers)


def _apply(known: ReplicationSet, world: _World, first: str, second: SpanState | str) -> list[Order]:
    match first, second:
        case "add", str():
            return known.handle_add(CaptureId(second))
        case "move", str():
            return known.handle_move(CaptureId(second))
        case "remove", _:
            return known.handle_remove()
        case "gone", str():
            world.writers.discard(CaptureId(second))
            return known.handle_capture_gone(CaptureId(second))
        case _, SpanState():
            world.note_status(CaptureId(first), second)
            return known.handle_status(CaptureId(first), status(second, 2))
    raise AssertionError((first, second))
