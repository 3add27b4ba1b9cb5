"""Which changefeeds are ticked: any news is seen at once, and without news none waits for longer than its patience."""

import pytest

from owner.agenda import Agenda
from reactor import patches
from reactor.effects import Commit, Effect, WakeAt
from reactor.ids import ChangefeedId
from reactor.state import ChangefeedState

ONE = ChangefeedId("one")


def _feed(id: str = "one", change: int = 1) -> ChangefeedState:
    return ChangefeedState(ChangefeedId(id), change=change)


def _ticked(*effects: Effect) -> Agenda:
    agenda = Agenda()
    agenda.begin([ONE], "shared")
    assert agenda.is_due(_feed(), 10.0), "it has never been ticked"
    agenda.done(_feed(), effects, 10.0)
    return agenda


def test_without_news_it_waits_for_as_long_as_it_has_said_and_never_for_longer_than_its_patience() -> None:
    agenda = _ticked(WakeAt(10.2), WakeAt(10.1))
    assert [agenda.is_due(_feed(), now) for now in (10.0, 10.09, 10.1)] == [False, False, True]
    assert agenda.wakes() == [WakeAt(10.1)]
    patient = _ticked(WakeAt(1e9))
    assert [patient.is_due(_feed(), now) for now in (10.49, 10.5)] == [False, True]
    assert patient.wakes() == [WakeAt(10.5)]


def test_a_changed_record_is_news() -> None:
    assert _ticked().is_due(_feed(change=2), 10.0)


def test_what_its_records_do_not_show_is_news_too() -> None:
    agenda = _ticked()
    agenda.note(ONE)
    assert agenda.is_due(_feed(), 10.0)


def test_a_tick_that_has_committed_is_followed_by_another() -> None:
    """The commit may have been refused, and nothing shows that but what is missing."""
    assert _ticked(WakeAt(99.0), Commit(patches.group([]))).is_due(_feed(), 10.0)


def test_what_all_share_is_news_for_all() -> None:
    agenda = _ticked()
    agenda.begin([ONE], "shared")
    assert not agenda.is_due(_feed(), 10.0)
    agenda.begin([ONE], "other")
    assert agenda.is_due(_feed(), 10.0)


def test_a_changefeed_that_has_gone_and_comes_again_is_new() -> None:
    agenda = _ticked()
    agenda.begin([], "shared")
    assert agenda.wakes() == []
    agenda.begin([ONE], "shared")
    assert agenda.is_due(_feed(), 10.0)


@pytest.mark.parametrize(("count", "patience_s"), [(1, 0.5), (50, 2.0), (100, 4.0), (400, 5.0)])
def test_many_changefeeds_are_more_patient(count: int, patience_s: float) -> None:
    agenda, feeds = Agenda(), [_feed(f"feed-{number}") for number in range(count)]
    agenda.begin([feed.id for feed in feeds], "shared")
    for feed in feeds:
        agenda.done(feed, [], 10.0)
    for feed in feeds:
        agenda.done(feed, [], 11.0)
    assert not any(agenda.is_due(feed, 10.9 + patience_s) for feed in feeds)
    assert all(agenda.is_due(feed, 11.0 + patience_s) for feed in feeds)
