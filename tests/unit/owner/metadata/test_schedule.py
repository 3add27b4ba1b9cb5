"""The schedule's state machine, cell by cell, and the differences of whole schedules."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owner.errors import ScheduleError
from owner.metadata.schedule import ScheduledChangefeed, check, differences
from reactor.ids import CaptureId, ChangefeedId
from reactor.records.capture import OwnerState

F = ChangefeedId("f")
A, B = CaptureId("a"), CaptureId("b")
REMOVED, LAUNCHED, REMOVING = OwnerState.REMOVED, OwnerState.LAUNCHED, OwnerState.REMOVING

#: (before, after, same owner) → allowed
CELLS = {
    (REMOVED, LAUNCHED, True): True,
    (REMOVED, LAUNCHED, False): True,
    (REMOVED, REMOVING, True): False,
    (REMOVED, REMOVED, True): False,
    (LAUNCHED, LAUNCHED, True): True,
    (LAUNCHED, LAUNCHED, False): False,
    (LAUNCHED, REMOVING, True): True,
    (LAUNCHED, REMOVING, False): False,
    (LAUNCHED, REMOVED, True): True,
    (REMOVING, LAUNCHED, True): False,
    (REMOVING, LAUNCHED, False): False,
    (REMOVING, REMOVING, True): False,
    (REMOVING, REMOVED, True): True,
}


def scheduled(state: OwnerState, owner: CaptureId = A, changefeed: ChangefeedId = F) -> ScheduledChangefeed:
    return ScheduledChangefeed(changefeed, None if state is REMOVED else owner, state)


@pytest.mark.parametrize(("before", "after", "is_same"), CELLS)
def test_each_cell(before: OwnerState, after: OwnerState, is_same: bool) -> None:
    def step() -> None:
        # another object for the same name: owners are compared by value
        check(scheduled(before), scheduled(after, CaptureId("".join("a")) if is_same else B))

    if CELLS[before, after, is_same]:
        step()
    else:
        with pytest.raises(ScheduleError, match="has no transition"):
            step()


def test_an_owner_belongs_to_all_states_but_removed() -> None:
    for wrong in (ScheduledChangefeed(F, A, REMOVED), ScheduledChangefeed(F, None, LAUNCHED)):
        with pytest.raises(ScheduleError):
            check(scheduled(LAUNCHED), wrong)


def test_changefeeds_are_not_mixed_up() -> None:
    with pytest.raises(AssertionError):
        check(scheduled(REMOVED), scheduled(LAUNCHED, changefeed=ChangefeedId("g")))


ROWS = [scheduled(REMOVED), *(scheduled(state, owner) for state in (LAUNCHED, REMOVING) for owner in (A, B))]
SCHEDULES = st.dictionaries(st.sampled_from([ChangefeedId(name) for name in "fghijk"]), st.sampled_from(ROWS))


def _named(rows: dict[ChangefeedId, ScheduledChangefeed]) -> list[ScheduledChangefeed]:
    return [ScheduledChangefeed(id, row.owner, row.state) for id, row in rows.items()]


@given(SCHEDULES, SCHEDULES)
def test_differences_lead_to_the_target_or_nothing_is_written(
    before: dict[ChangefeedId, ScheduledChangefeed], after: dict[ChangefeedId, ScheduledChangefeed]
) -> None:
    origin, target = _named(before), _named(after)
    try:
        rows = differences(origin, target)
    except ScheduleError:
        pairs = [
            (next((o for o in origin if o.changefeed == id), scheduled(REMOVED, changefeed=id)), new)
            for id in {row.changefeed for row in (*origin, *target)}
            for new in [next((t for t in target if t.changefeed == id), scheduled(REMOVED, changefeed=id))]
        ]
        assert any(not _is_allowed(old, new) for old, new in pairs if old != new)
        return
    reached = {row.changefeed: row for row in (*origin, *rows)}
    present = {id: row for id, row in reached.items() if row.state is not REMOVED}
    assert present == {row.changefeed: row for row in target if row.state is not REMOVED}


def _is_allowed(before: ScheduledChangefeed, after: ScheduledChangefeed) -> bool:
    try:
        check(before, after)
    except ScheduleError:
        return False
    return True


def test_what_is_left_of_the_longer_list_counts() -> None:
    """Whichever of the two ends first."""
    feeds = [ChangefeedId(name) for name in "abcd"]
    launched = [scheduled(LAUNCHED, changefeed=feed) for feed in feeds]
    for short in range(len(feeds)):
        gone = differences(launched, launched[:short])
        assert [(row.changefeed, row.state) for row in gone] == [(feed, REMOVED) for feed in feeds[short:]]
        assert differences(launched[:short], launched) == launched[short:]


def test_every_pair_of_states_is_a_cell() -> None:
    pairs = {(before, after) for before, after, _ in CELLS}
    assert pairs == set(itertools.product(OwnerState, OwnerState))
