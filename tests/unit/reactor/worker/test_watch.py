"""The cursor: revisions only grow, and our own commit is waited for."""

from reactor.store.port import Event, WatchBatch
from reactor.worker.watch import WatchCursor


def batch(*revisions: int) -> WatchBatch:
    return WatchBatch(tuple(Event(f"k{revision}", b"", revision) for revision in revisions), revisions[-1])


def drained(cursor: WatchCursor) -> list[int]:
    return [event.mod_revision for event in cursor.drain()]


def test_events_wait_until_drained() -> None:
    cursor = WatchCursor()
    cursor.push(batch(2, 2))
    cursor.push(batch(3))
    assert drained(cursor) == [2, 2, 3]
    assert drained(cursor) == []


def test_stale_events_are_dropped() -> None:
    cursor = WatchCursor()
    cursor.reset(5)
    assert cursor.push(batch(4, 5)) == ()
    assert [event.mod_revision for event in cursor.push(batch(5, 6))] == [6]
    assert cursor.push(batch(6)) == ()
    assert drained(cursor) == [6]


def test_nothing_is_drained_before_our_own_commit_is_back() -> None:
    cursor = WatchCursor()
    cursor.push(batch(2))
    cursor.commit(4)
    cursor.push(batch(3))
    assert drained(cursor) == []
    cursor.push(batch(4))
    assert drained(cursor) == [2, 3, 4]


def test_a_commit_behind_what_is_known_comes_next() -> None:
    cursor = WatchCursor()
    cursor.push(batch(2))
    assert not cursor.commit(4), "3 may be anybody's"
    assert cursor.commit(3)
    cursor.push(batch(3, 4))
    assert not cursor.commit(4), "the watch was quicker"


def test_progress_does_not_open_the_barrier() -> None:
    """It may overtake the events it seems to cover."""
    cursor = WatchCursor()
    cursor.commit(4)
    assert cursor.push(WatchBatch((), 9, is_progress=True)) == ()
    assert not cursor.is_caught_up
    assert cursor.revision == 0


def test_an_older_expectation_does_not_lower_the_barrier() -> None:
    cursor = WatchCursor()
    cursor.commit(4)
    cursor.commit(3)
    assert cursor.barrier == 4


def test_a_reset_replaces_what_waited() -> None:
    cursor = WatchCursor()
    cursor.push(batch(2))
    cursor.commit(4)
    cursor.reset(7)
    assert cursor.is_caught_up
    assert drained(cursor) == []
