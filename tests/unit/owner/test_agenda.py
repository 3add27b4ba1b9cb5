"""Agenda of ticks: any news is seen at once, and without news none waits for longer than its patience."""

import pytest

from owner.agenda import Agenda
from reactor import patches
from reactor.effects import Commit, Effect, WakeAt
from reactor.ids import ChangefeedId
from reactor.state import ChangefeedState

ONE = ChangefeedId("one")


def _feed(id: str = "one", change: int = 1) -> ChangefeedState:
    return ChangefeedState(ChangefeedId(id), change=change)


def _is_due(agenda: Agenda, feed: ChangefeedState, now: float) -> bool:
    return bool(agenda.due([feed], now))


def _ticked(*effects: Effect) -> Agenda:
    agenda = Agenda()
    agenda.begin([ONE], "shared")
    assert _is_due(agenda, _feed(), 10.0), "it has never been ticked"
    agenda.done(_feed(), effects, 10.0)
    return agenda


def _quiet(count: int, at: float = 10.0) -> tuple[Agenda, list[ChangefeedState]]:
    """Many changefeeds, all ticked at ``at`` without news since."""
    agenda, feeds = Agenda(), [_feed(f"feed-{number:03d}") for number in range(count)]
    agenda.begin([feed.id for feed in feeds], "shared")
    for _ in range(2):  # the patience is that of many only when all are known
        for feed in feeds:
            agenda.done(feed, [], at)
    return agenda, feeds


def test_without_news_it_waits_for_as_long_as_it_has_said_and_never_for_longer_than_its_patience() -> None:
    agenda = _ticked(WakeAt(10.2), WakeAt(10.1))
    assert [_is_due(agenda, _feed(), now) for now in (10.0, 10.09, 10.1)] == [False, False, True]
    assert agenda.wakes(10.0) == [WakeAt(10.1)]
    patient = _ticked(WakeAt(1e9))
    assert [_is_due(patient, _feed(), now) for now in (10.49, 10.5)] == [False, True]
    assert patient.wakes(10.0) == [WakeAt(10.5)]


def test_a_changed_record_is_news() -> None:
    assert _is_due(_ticked(), _feed(change=2), 10.0)


def test_what_its_records_do_not_show_is_news_too() -> None:
    agenda = _ticked()
    agenda.note(ONE)
    assert _is_due(agenda, _feed(), 10.0)


def test_a_tick_that_has_committed_is_followed_by_another() -> None:
    """The commit may have been refused, and nothing shows that but what is missing."""
    assert _is_due(_ticked(WakeAt(99.0), Commit(patches.group([]))), _feed(), 10.0)


def test_what_all_share_is_news_for_all() -> None:
    agenda = _ticked()
    agenda.begin([ONE], "shared")
    assert not _is_due(agenda, _feed(), 10.0)
    agenda.begin([ONE], "other")
    assert _is_due(agenda, _feed(), 10.0)


def test_a_changefeed_that_has_gone_and_comes_again_is_new() -> None:
    agenda = _ticked()
    agenda.begin([], "shared")
    assert agenda.wakes(10.0) == []
    agenda.begin([ONE], "shared")
    assert _is_due(agenda, _feed(), 10.0)


@pytest.mark.parametrize(("count", "patience_s"), [(1, 0.5), (50, 2.0), (100, 4.0), (400, 5.0)])
def test_many_changefeeds_are_more_patient(count: int, patience_s: float) -> None:
    agenda, feeds = _quiet(count)
    assert not agenda.due(feeds, 9.9 + patience_s)
    assert agenda.due(feeds, 10.0 + patience_s)
    assert agenda.wakes(10.0) in ([WakeAt(10.0)], [WakeAt(10.0 + patience_s)])


def test_many_changefeeds_without_news_are_ticked_in_common_rounds_but_what_is_wanted_soon_is_exact() -> None:
    agenda, feeds = _quiet(50)
    agenda.done(feeds[0], [WakeAt(10.9)], 10.01)
    assert [_is_due(agenda, feeds[0], now) for now in (10.9, 10.99, 11.0)] == [False, False, True]
    agenda.done(feeds[0], [WakeAt(10.3)], 10.01)
    assert _is_due(agenda, feeds[0], 10.3)
    few, (one, *_) = _quiet(2)
    few.done(one, [WakeAt(10.47)], 10.01)
    assert _is_due(few, one, 10.47)


def test_a_tick_takes_the_longest_waiting_ones_and_the_next_follows_at_once() -> None:
    agenda, feeds = _quiet(50)
    taken: list[ChangefeedId] = []
    for now in (20.0, 20.05, 20.1, 20.15, 20.2, 20.25):
        due = agenda.due(feeds, now)
        for feed in due:
            agenda.done(feed, [Commit(patches.group([]))], now)  # news again, which must not let others starve
        taken += [feed.id for feed in due]
        assert len(due) == 10
        assert agenda.wakes(now) == [WakeAt(now)]
    assert set(taken[:50]) == {feed.id for feed in feeds}


def test_messages_are_never_put_off() -> None:
    agenda, feeds = _quiet(50)
    ids = {feed.id for feed in feeds[10:40]}
    assert [feed.id for feed in agenda.due(feeds, 20.0, with_messages=ids)] == [*sorted(ids), feeds[0].id]
