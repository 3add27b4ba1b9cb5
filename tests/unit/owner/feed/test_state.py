"""Every row of the changefeed's state table, and the waits between runs."""

import pytest

from owner.errors import JobRefusedError
from owner.feed.backoff import Backoff, uniform_of
from owner.feed.state import HISTORY_LENGTH, TRANSITIONS, WISHES, FeedStateMachine, Trigger, is_fatal, is_running, step
from owner.settings import BackoffSettings
from reactor.errors import InvalidTransitionError
from reactor.records.changefeed import ChangefeedInfo, FeedState, RunningError
from tests.unit.owner.owner_build import error, info

STEADY = BackoffSettings(jitter=0.0)
N, W, P = FeedState.NORMAL, FeedState.WARNING, FeedState.PENDING
STOPPED, FAILED, FINISHED, REMOVED = FeedState.STOPPED, FeedState.FAILED, FeedState.FINISHED, FeedState.REMOVED


def machine() -> FeedStateMachine:
    return FeedStateMachine(STEADY, lambda: 0.5)


@pytest.mark.parametrize(
    ("before", "trigger", "after"),
    [
        (N, Trigger.PAUSE, STOPPED),
        (W, Trigger.PAUSE, STOPPED),
        (P, Trigger.PAUSE, STOPPED),
        (STOPPED, Trigger.RESUME, N),
        (FAILED, Trigger.RESUME, N),
        (FINISHED, Trigger.RESUME, N),
        (N, Trigger.FINISH, FINISHED),
        (W, Trigger.FINISH, FINISHED),
        (N, Trigger.ERROR, P),
        (W, Trigger.ERROR, P),
        (N, Trigger.FAIL, FAILED),
        (W, Trigger.FAIL, FAILED),
        (P, Trigger.FAIL, FAILED),
        (P, Trigger.WAIT_OVER, W),
        (N, Trigger.WARN, W),
        (W, Trigger.WARN, W),
        (W, Trigger.PROGRESS, N),
        *((state, Trigger.REMOVE, REMOVED) for state in FeedState if state is not REMOVED),
    ],
)
def test_row(before: FeedState, trigger: Trigger, after: FeedState) -> None:
    changed = step(info(before, epoch=3), trigger, error=error())
    assert changed.state is after
    assert (changed.epoch != 3) == (is_running(before) != is_running(after)), "a new epoch iff parts start or stop"


def test_what_is_not_in_the_table_is_refused_and_changes_nothing() -> None:
    for state in FeedState:
        for trigger in Trigger:
            if (state, trigger) not in TRANSITIONS:
                refused = f"is {state}: {trigger} is not possible;"
                kind, text = (
                    (JobRefusedError, refused) if trigger in WISHES else (InvalidTransitionError, f"is {state}")
                )
                with pytest.raises(kind, match=text):
                    step(info(state), trigger)


def test_resume_forgets_the_error() -> None:
    assert step(info(FAILED, error=error()), Trigger.RESUME).error is None


@pytest.mark.parametrize(
    ("found", "fatal"),
    [
        (error("SourceUnreachable"), False),
        (error("PositionLost"), True),
        (error("SinkUri", retryable=True), True),
        (error("SinkConfig", retryable=False), False),
        (error("SourceAuth", retryable=False), False),
        (error("Whatever", retryable=False), True),
        (error("SinkFenced", retryable=False), False),
        (error("LogFenced", retryable=False), False),
        (error("Internal"), False),
    ],
)
def test_which_errors_waiting_does_not_cure(found: RunningError, fatal: bool) -> None:
    assert is_fatal(found) is fatal


def test_error_waits_then_runs_as_warning_then_normal_after_progress() -> None:
    feed = machine()
    running = feed.note_progress(info(), (2, 10), has_work=True, now=0.0)
    pending = feed.tick(running, [error()], [], 1.0)
    assert (pending.state, pending.epoch, pending.error) == (P, 2, error())
    assert feed.retry_at == 11.0
    assert feed.tick(pending, [error()], [], 10.9) == pending, "what the old run still says changes nothing"
    warning = feed.tick(pending, [], [], 11.0)
    assert (warning.state, warning.epoch) == (W, 3)
    assert feed.note_progress(warning, (2, 10), has_work=True, now=12.0).state is W
    normal = feed.note_progress(warning, (2, 11), has_work=True, now=13.0)
    assert (normal.state, normal.error) == (N, None)


def _waits(feed: FeedStateMachine, count: int, *, progress: bool) -> list[float]:
    now, waits = 0.0, []
    current = info(stuck_s=100_000)
    for round_ in range(count):
        current = feed.note_progress(current, (2, round_ if progress else 0), has_work=True, now=now)
        current = feed.tick(current, [error("SpanFault")], [], now)
        assert feed.retry_at is not None
        waits.append(feed.retry_at - now)
        now = feed.retry_at
        current = feed.tick(current, [], [], now)
    return waits


def test_waits_double_up_to_ten_minutes_without_progress() -> None:
    assert _waits(machine(), 8, progress=False) == [10, 20, 40, 80, 160, 320, 600, 600]


def test_progress_between_errors_resets_the_waits() -> None:
    assert _waits(machine(), 30, progress=True) == [10] * 30


def test_gives_up_after_the_stuck_time_without_progress() -> None:
    feed, now, current = machine(), 0.0, info(stuck_s=60)
    for _ in range(4):
        current = feed.tick(current, [error("SpanFault")], [], now)
        if current.state is FAILED:
            break
        assert feed.retry_at is not None
        now = feed.retry_at
        current = feed.tick(current, [], [], now)
    assert (current.state, now) == (FAILED, 70.0)


def test_a_cause_that_passes_is_waited_for_without_limit() -> None:
    feed, now, current, waits = machine(), 0.0, info(stuck_s=60), set()
    for _ in range(40):
        current = feed.tick(current, [error("SinkConfig", retryable=False)], [], now)
        assert current.state is P
        assert feed.retry_at is not None
        waits.add(feed.retry_at - now)
        now = feed.retry_at
        current = feed.tick(current, [], [], now)
        current = feed.note_progress(current, (2, 10), has_work=True, now=now)
        assert current.state is W
    assert waits == {10, 20, 40, 60}


def test_time_with_a_known_passing_cause_does_not_make_it_stuck() -> None:
    feed, current = machine(), info(stuck_s=60)
    current = feed.note_progress(current, (2, 10), has_work=True, now=0.0)
    full = error("SinkPassing")
    for now in range(15, 3_600, 15):
        current = feed.tick(current, [], [full], float(now))
        current = feed.note_progress(current, (2, 10), has_work=True, now=float(now))
        assert (current.state, current.warning) == (W, full)
    for now in (3_600, 3_700):
        current = feed.tick(current, [], [], float(now))
        current = feed.note_progress(current, (2, 10), has_work=True, now=float(now))
    assert current.state is FAILED, "nobody has named a cause for so long, and nothing moves"


def test_a_condition_is_a_warning_for_as_long_as_it_lasts() -> None:
    feed, held = machine(), error("HeldTables")
    current = feed.tick(info(), [], [], 0.0, conditions=[held])
    assert (current.state, current.warning, current.epoch) == (W, held, 1)
    for now in range(1, 100):
        assert feed.tick(current, [], [], float(now), conditions=[held]) == current
        assert feed.note_progress(current, (2, now), has_work=True, now=float(now), conditions=[held]) == current
    both = feed.tick(current, [], [], 100.0, conditions=[held, error("SourceAuth")])
    assert both.warning == held.with_(message="it broke; SourceAuth: it broke")
    over = feed.note_progress(feed.tick(both, [], [], 101.0), (2, 99), has_work=False, now=101.0)
    assert (over.state, over.warning) == (N, None), "it needs no progress to be over"


def test_fatal_error_wins_over_others_and_fails_at_once() -> None:
    feed = machine()
    failed = feed.tick(info(), [error("PositionLost"), error()], [], 0.0)
    assert (failed.state, failed.error) == (FAILED, error("PositionLost"))


@pytest.mark.parametrize("state", [STOPPED, FAILED, FINISHED, REMOVED])
def test_errors_of_what_does_not_run_are_ignored(state: FeedState) -> None:
    stored = info(state)
    assert machine().tick(stored, [error()], [error()], 0.0) == stored


def test_warning_keeps_running_and_ends_with_progress() -> None:
    feed = machine()
    stored = feed.note_progress(info(), (2, 5), has_work=True, now=0.0)
    warned = feed.tick(stored, [], [error("Slow")], 1.0)
    assert (warned.state, warned.epoch, warned.warning) == (W, 1, error("Slow"))
    assert feed.note_progress(warned, (2, 5), has_work=True, now=2.0).state is W
    normal = feed.note_progress(warned, (2, 6), has_work=True, now=3.0)
    assert (normal.state, normal.warning) == (N, None)


def test_stuck_changefeed_fails_but_an_idle_one_does_not() -> None:
    feed = machine()
    stored = info(stuck_s=60)
    for now in range(0, 600, 50):
        assert feed.note_progress(stored, (2, 5), has_work=False, now=float(now)) == stored
    assert feed.note_progress(stored, (2, 5), has_work=True, now=600.0).state is N
    failed = feed.note_progress(stored, (2, 5), has_work=True, now=620.0)
    assert failed.state is FAILED
    assert failed.error is not None
    assert failed.error.code == "Stuck"


def test_a_change_of_the_stuck_time_takes_effect() -> None:
    feed = machine()
    feed.note_progress(info(stuck_s=60), (2, 5), has_work=True, now=0.0)
    assert feed.note_progress(info(stuck_s=500), (2, 5), has_work=True, now=100.0).state is N
    assert feed.note_progress(info(stuck_s=60), (2, 5), has_work=True, now=100.0).state is FAILED


def test_the_wait_of_another_owner_begins_again() -> None:
    feed, pending = machine(), info(P)
    assert feed.tick(pending, [], [], 100.0) == pending
    assert feed.tick(pending, [], [], 110.0).state is W


def test_history_is_bounded() -> None:
    feed = machine()
    stored: ChangefeedInfo = info(STOPPED)
    for number in range(100):
        feed.tick(stored, [error(f"E{number}")], [], 0.0)
    assert len(feed.history) == HISTORY_LENGTH
    assert feed.history[-1].code == "E99"


def test_jitter_is_bounded_seeded_and_spread() -> None:
    backoff = Backoff(BackoffSettings(), uniform_of("a"))
    same = Backoff(BackoffSettings(), uniform_of("a"))
    waits = []
    for _ in range(200):
        backoff.reset(0.0)
        same.reset(0.0)
        waits.append(backoff.next_s(0.0, give_up_s=60))
        assert waits[-1] == same.next_s(0.0, give_up_s=60)
    assert all(wait is not None and 9.0 <= wait <= 11.0 for wait in waits)
    assert len(set(waits)) > 150
