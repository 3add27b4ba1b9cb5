"""Rolled back rows: ranges that lie apart, found one after the other."""

from agent.sources.mysql.binlog.rolled_back import NOTHING, Range, RolledBack
from reactor.ids import Ts


def test_the_next_range_is_reported_as_reading_continues() -> None:
    known = RolledBack()
    early, late, other = Range(Ts(100), 3, 5), Range(Ts(100), 8, 9), Range(Ts(200), 0, 7)
    assert [known.add(found) for found in (late, other, early, late)] == [True, True, True, False]
    places = [(0, 0), (100, 4), (100, 5), (100, 9), (200, 6), (200, 7)]
    assert [known.following(Ts(ts), ordinal) for ts, ordinal in places] == [early, early, late, other, other, NOTHING]


def test_what_is_gone_back_behind_goes_with_it() -> None:
    known = RolledBack()
    inner, outer, before = Range(Ts(100), 5, 7), Range(Ts(100), 3, 9), Range(Ts(100), 0, 2)
    assert known.add(before)
    assert known.add(inner)
    assert known.add(outer)
    assert known.following(Ts(100), 2) == outer
    assert known.following(Ts(100), 7) == outer, "the inner one ends in it"
    assert known.following(Ts(100), 0) == before


def test_what_is_in_the_log_is_forgotten() -> None:
    known = RolledBack()
    known.add(Range(Ts(100), 0, 7))
    known.add(Range(Ts(200), 0, 7))
    known.forget(Ts(100))
    assert known.following(Ts(0), 0) == Range(Ts(200), 0, 7)
