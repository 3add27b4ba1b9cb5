"""Placement: captures on which changefeeds are launched, and changefeeds that move."""

from hypothesis import given
from hypothesis import strategies as st

from owner.controller.placement import Members, Wishes, plan, weight
from owner.metadata.schedule import ScheduledChangefeed, differences
from reactor.ids import CaptureId, ChangefeedId
from reactor.records.capture import OwnerState

CAPTURES = [CaptureId(name) for name in "abcde"]
Schedule = list[ScheduledChangefeed]


def members(serving: list[CaptureId], *others: CaptureId) -> Members:
    return Members(frozenset([*serving, *others]), tuple(sorted(serving)))


def removed(count: int) -> Schedule:
    return [ScheduledChangefeed(ChangefeedId(f"f{number:03}")) for number in range(count)]


def counts(schedule: Schedule) -> dict[str, int]:
    owners = [str(one.owner) for one in schedule if one.owner is not None]
    return {owner: owners.count(owner) for owner in sorted(set(owners))}


def ended(schedule: Schedule) -> tuple[Schedule, dict[ChangefeedId, tuple[CaptureId, bool]]]:
    """All owners that are being removed have ended."""
    removing = [one for one in schedule if one.state is OwnerState.REMOVING]
    places = {one.changefeed: (CaptureId(one.next), one.is_chosen) for one in removing if one.next}
    return [ScheduledChangefeed(one.changefeed) if one in removing else one for one in schedule], places


def settled(schedule: Schedule, now: Members, weights: dict[ChangefeedId, float] | None = None) -> tuple[Schedule, int]:
    """Plan until nothing changes; return the schedule, and how many removals that took."""
    moves, places = 0, dict[ChangefeedId, tuple[CaptureId, bool]]()
    for _ in range(500):
        after = plan(schedule, now, weights or {}, Wishes(places=places), evened_at_once=10)
        differences(schedule, after)  # every step is allowed
        before, moves = schedule, moves + sum(one.state is OwnerState.REMOVING for one in after)
        schedule, places = ended(after)
        if schedule == before:
            return schedule, moves
    raise AssertionError("it never settles")


def test_new_changefeeds_are_spread_at_once() -> None:
    after = plan(removed(100), members(CAPTURES), {})
    assert counts(after) == dict.fromkeys("abcde", 20)


def test_ties_go_to_the_smallest_id() -> None:
    assert plan(removed(1), members(CAPTURES[1:]), {})[0].owner == "b"


def test_a_capture_that_is_gone_loses_its_changefeeds_and_the_others_share_them() -> None:
    before = plan(removed(100), members(CAPTURES), {})
    lost = plan(before, members(CAPTURES[:4]), {})
    assert {one.state for one in lost if one not in before} == {OwnerState.REMOVED}, "removed first, launched then"
    after = plan(lost, members(CAPTURES[:4]), {})
    assert counts(after) == dict.fromkeys("abcd", 25)
    orphans = {one.changefeed for one in lost if one.owner is None}
    assert {one.changefeed for one in after if one not in before} == orphans, "nothing else moves"


def test_a_new_capture_gets_its_share_and_no_changefeed_moves_twice() -> None:
    before = plan(removed(100), members(CAPTURES[:4]), {})
    after, moves = settled(before, members(CAPTURES))
    assert counts(after) == dict.fromkeys("abcde", 20)
    assert moves == 20
    assert all(one.owner == "e" for one in after if one not in before)


def test_a_capture_that_comes_and_goes_keeps_no_others_from_being_evened_out() -> None:
    """Whoever is not heard for a moment, again and again, is never steady."""
    before = plan(removed(90), members(CAPTURES[:3]), {})
    joined = Members(frozenset(CAPTURES), tuple(CAPTURES), steady=frozenset(CAPTURES[:4]))
    after, moves = settled(before, joined)
    assert [sorted(counts(after).values()), counts(after).keys() & "e"] == [[22, 22, 23, 23], set()]
    assert moves == 22
    assert settled(before, Members(joined.present, joined.serving, steady=frozenset()))[1] == 0


def test_a_few_move_at_a_time() -> None:
    before = plan(removed(100), members(CAPTURES[:4]), {})
    after = plan(before, members(CAPTURES), {}, evened_at_once=3)
    assert sum(one.state is OwnerState.REMOVING for one in after) == 3
    assert plan(after, members(CAPTURES), {}, evened_at_once=3) == after, "none before these have ended"
    assert plan(before, members(CAPTURES), {}, evened_at_once=0) == before


def test_a_difference_that_a_move_would_only_turn_round_stays() -> None:
    before = plan(removed(5), members(CAPTURES[:2]), {})
    assert counts(before) == {"a": 3, "b": 2}
    assert settled(before, members(CAPTURES[:2])) == (before, 0)


def test_a_capture_that_leaves_gives_all_away_and_nothing_else_moves() -> None:
    before = plan(removed(20), members(CAPTURES[:4]), {})
    now = members(CAPTURES[:3], CAPTURES[3])
    first = plan(before, now, {}, evened_at_once=10)
    assert [one.owner for one in first if one.state is OwnerState.REMOVING] == ["d"] * 5
    after, moves = settled(before, now)
    assert counts(after) == {"a": 7, "b": 7, "c": 6}
    assert moves == 5


def test_nobody_is_left_to_take_over() -> None:
    before = plan(removed(3), members(CAPTURES[:1]), {})
    assert plan(before, members([], CAPTURES[0]), {}) == before, "better there than nowhere"
    assert plan(removed(3), members([]), {}) == removed(3)


def test_what_an_operator_has_moved_stays() -> None:
    before = plan(removed(4), members(CAPTURES[:2]), {})
    moved = next(one for one in before if one.owner == "a")
    for one in [one for one in before if one.owner == "a"]:
        asked = plan(before, members(CAPTURES[:2]), {}, Wishes({one.changefeed: CAPTURES[1]}))
        (removing,) = [one for one in asked if one.state is OwnerState.REMOVING]
        assert (removing.next, removing.is_chosen) == ("b", True)
        waiting, places = ended(asked)
        before = plan(waiting, members(CAPTURES[:2]), {}, Wishes(places=places))
    assert counts(before) == {"b": 4}
    after, _ = settled(before, members(CAPTURES[:2]))
    chosen = [one for one in after if one.is_chosen]
    assert {one.owner for one in chosen} == {"b"}
    assert moved.changefeed in {one.changefeed for one in chosen}
    assert counts(after) == {"a": 2, "b": 2}, "the others make room"


def test_heavy_changefeeds_count_for_more() -> None:
    weights = {ChangefeedId("f000"): weight(1000)}
    after = plan(removed(12), members(CAPTURES[:2]), weights)
    assert counts(after) == {"a": 1, "b": 11}


@given(
    st.lists(st.tuples(st.sampled_from([None, *CAPTURES]), st.integers(0, 500)), max_size=30),
    st.sets(st.sampled_from(CAPTURES), min_size=1),
)
def test_any_schedule_settles(owners: list[tuple[CaptureId | None, int]], serving: set[CaptureId]) -> None:
    schedule = [
        ScheduledChangefeed(ChangefeedId(f"f{n:03}"), owner, OwnerState.LAUNCHED if owner else OwnerState.REMOVED)
        for n, (owner, _) in enumerate(owners)
    ]
    weights = {one.changefeed: weight(tables) for one, (_, tables) in zip(schedule, owners, strict=True)}
    after, moves = settled(schedule, members(sorted(serving)), weights)
    assert {one.owner for one in after} <= serving
    assert all(one.state is OwnerState.LAUNCHED for one in after)
    assert moves <= len(schedule), "no changefeed moves twice"
