"""Ticks come with cause, not too often, and now and then without."""

import pytest

from reactor.worker.pace import Pace


def pace(*, interval_s: float = 0.05) -> Pace:
    return Pace(interval_s, burst=2, idle_interval_s=0.5)


def test_the_first_tick_needs_no_cause() -> None:
    assert pace().take(100.0)


def test_without_cause_the_next_comes_after_the_idle_interval() -> None:
    subject = pace()
    subject.take(0.0)
    assert subject.delay_s(0.0) == 0.5
    assert not subject.take(0.49)
    assert subject.take(0.5)


def test_news_are_limited_to_a_burst_and_then_one_per_interval() -> None:
    subject = pace()
    taken = []
    for step in range(1000):
        subject.note_news()
        if subject.take(step / 1000):
            taken.append(step)
    assert taken[:4] == [0, 1, 50, 100]
    assert len(taken) == 21


def test_without_an_interval_every_cause_is_served() -> None:
    subject = pace(interval_s=0)
    for _ in range(100):
        subject.note_news()
        assert subject.take(1.0)


def test_the_earliest_wake_up_time_counts_until_it_has_come() -> None:
    subject = pace()
    subject.take(0.0)
    subject.note_wake(0.3)
    subject.note_wake(0.4)
    assert subject.delay_s(0.1) == pytest.approx(0.2)
    subject.note_news()
    assert subject.take(0.2)
    assert subject.take(0.3)
    assert subject.delay_s(0.3) == 0.5
