"""Agenda of ticks: any news is seen at once, or in the next round, and without news none waits for longer than its
patience."""

import pytest

from owner.agenda import Agenda
from reactor import patches
from reactor.effects import Commit, Effect, WakeAt
from reactor.ids import ChangefeedId

ONE = ChangefeedId("one")


def _is_due(agenda: Agenda, now: float) -> bool:
    return bool(agenda.due(now))


def _ticked(*effects: Effect) -> Agenda:
    agenda = Agenda()
    agenda.note(ONE)
    agenda.begin([ONE], "shared")
    assert agenda.due(10.0) == [ONE], "it has never been ticked"
    agenda.done(ONE, effects, 10.0)
    agenda.validate([ONE])
    return agenda


def _quiet(count: int, at: float = 10.0) -> tuple[Agenda, list[ChangefeedId]]:
    """Many changefeeds, all ticked at ``at`` without news since."""
    agenda, feeds = Agenda(), [ChangefeedId(f"feed-{number:03d}") for number in range(count)]
    agenda.begin(feeds, "shared")
    for _ in range(2):  # the patience is that of many only when all are known
        for feed in feeds:
            agenda.done(feed, [], at)
    return agenda, feeds


def test_without_news_it_waits_for_as_long_as_it_has_said_and_never_for_longer_than_its_patience() -> None:
    agenda = _ticked(WakeAt(10.2), WakeAt(10.1))
    assert agenda.wakes(10.0) == [WakeAt(10.1)]
    assert [_is_due(agenda, now) for now in (10.0, 10.09, 10.1)] == [False, False, True]
    patient = _ticked(WakeAt(1e9))
    assert patient.wakes(10.0) == [WakeAt(10.5)]
    assert [_is_due(patient, now) for now in (10.49, 10.5)] == [False, True]


@pytest.mark.parametrize("is_urgent", [True, False])
def test_news_of_one_of_a_few_is_seen_at_once(*, is_urgent: bool) -> None:
    agenda = _ticked()
    agenda.note(ONE, is_urgent=is_urgent)
    assert _is_due(agenda, 10.0)


def test_progress_of_many_waits_for_a_common_round_and_other_news_does_not() -> None:
    agenda, (one, two, three, *_) = _quiet(50)
    agenda.note(one, is_urgent=False)
    assert agenda.due(10.1) == [one], "the first round is not over"
    agenda.done(one, [], 10.1)
    for feed in (one, two):
        agenda.note(feed, is_urgent=False)
    agenda.note(three)
    assert agenda.due(10.2) == [three]
    agenda.done(three, [], 10.2)
    assert agenda.wakes(10.2) == [WakeAt(10.5)]
    assert agenda.due(10.5) == [one, two]


def test_a_tick_that_has_committed_is_followed_by_another() -> None:
    """The commit may have been refused, and nothing shows that but what is missing."""
    assert _is_due(_ticked(WakeAt(99.0), Commit(patches.group([]))), 10.0)


def test_what_all_share_is_news_for_all() -> None:
    agenda = _ticked()
    agenda.begin([ONE], "shared")
    assert not _is_due(agenda, 10.0)
    agenda.begin([ONE], "other")
    assert _is_due(agenda, 10.0)


def test_a_changefeed_that_has_gone_is_not_ticked_and_if_it_comes_again_it_is_new() -> None:
    agenda = _ticked()
    agenda.forget(ONE)
    agenda.validate([])
    assert (agenda.due(99.0), agenda.wakes(99.0)) == ([], [])
    agenda.note(ONE)
    assert _is_due(agenda, 99.0)


def test_a_changefeed_that_would_never_be_ticked_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="never"):
        _ticked().validate([ONE, ChangefeedId("two")])


@pytest.mark.parametrize(("count", "patience_s"), [(1, 0.5), (12, 0.5), (50, 10.0), (100, 20.0), (400, 30.0)])
def test_many_changefeeds_are_more_patient(count: int, patience_s: float) -> None:
    agenda, _ = _quiet(count)
    assert agenda.wakes(10.0) == [WakeAt(10.0 + patience_s)]
    assert not agenda.due(9.9 + patience_s)
    assert agenda.due(10.0 + patience_s)


def test_many_changefeeds_without_news_are_ticked_in_common_rounds_but_what_is_wanted_soon_is_exact() -> None:
    agenda, feeds = _quiet(50)
    agenda.done(feeds[0], [WakeAt(10.9)], 10.01)
    assert [_is_due(agenda, now) for now in (10.9, 10.99, 11.0)] == [False, False, True]
    agenda.done(feeds[0], [WakeAt(10.3)], 10.01)
    assert _is_due(agenda, 10.3)
    few, (one, *_) = _quiet(2)
    few.done(one, [WakeAt(10.47)], 10.01)
    assert _is_due(few, 10.47)


def test_a_tick_takes_the_longest_waiting_ones_and_the_next_follows_at_once() -> None:
    agenda, feeds = _quiet(100)
    taken: list[ChangefeedId] = []
    for now in (30.0 + n * 0.05 for n in range(12)):
        due = agenda.due(now)
        for feed in due:
            agenda.done(feed, [Commit(patches.group([]))], now)  # news again, which must not let others starve
        taken += due
        assert len(due) == 10
        assert agenda.wakes(now) == [WakeAt(now)]
    assert set(taken[:100]) == set(feeds)


def test_none_of_those_that_a_job_changes_is_taken() -> None:
    agenda, (one, two) = _quiet(2)
    assert agenda.due(99.0, without={one}) == [two]
    assert agenda.due(99.0) == [one, two]


def test_times_that_are_void_do_not_add_up() -> None:
    agenda, (one, _) = _quiet(2)
    for number in range(10_000):
        agenda.done(one, [], 10.0 + number / 1e3)
    assert len(agenda._times) < 1_000
    assert agenda.wakes(20.0) == [WakeAt(10.5)]
