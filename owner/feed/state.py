"""Changefeed state: what users see as its state, and whether it runs.

                 error                    wait over                  progress
 normal ◄──┐  ┌──────────► pending ──────────────────► warning ─────────────────► normal
   │       │  │               │                          │
   │ pause │resume            │ enough                   │ stuck, or an error that waiting does not cure
   ▼       │                  ▼                          ▼
 stopped ──┴───────────── failed ◄───────────────────────┘            target reached: finished; remove: removed

``TRANSITIONS`` is the whole machine; an absent row changes nothing: what an operator wishes is refused, anything else
is a bug, and the error says how the machine came there. Stored are only the state, the epoch and the last error (in
``ChangefeedInfo``); waits and histories live with the owner, and a new one starts again.

A *condition* (held tables, a silent source, a cause that has to pass) makes a running changefeed a ``warning`` for as
long as it lasts.

The epoch grows whenever the changefeed starts or stops running, or runs again after a crash of the owner's part of it
(``owner.feed.crashes``), so that what is left of the run before is refused everywhere.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum

from owner.errors import JobRefusedError, StuckError
from owner.feed.backoff import Backoff, Uniform
from owner.settings import BackoffSettings
from reactor.records.changefeed import ChangefeedInfo, FeedState, RunningError
from reactor.transitions import History, invalid

HISTORY_LENGTH = 32

#: a retry cannot cure these, whatever the error itself says
FAST_FAIL = frozenset({"PositionLost", "SnapshotLostByGC", "SinkUri", "LogStorageMismatch", "Stuck"})
#: source, sink or log storage refuse as a whole: a disk is full, a password has changed, a mount is missing. Retrying
#: loses nothing, however long the repair takes. (At creation they are rejected at once.)
PASSING = frozenset(
    {
        "SourceUnreachable",
        "TableLocked",
        "SourceAuth",
        "SourceConfig",
        "OpenTransactions",
        "SlotInUse",
        "SinkConfig",
        "SinkPassing",
        "SinkTimeout",
        "JobTimeout",
        "Log",
        "CaptureFault",
        "TableHeld",  # of all tables at once (owner.held)
        "TablePassing",
        "TableForeign",
    }
)
#: a stale writer was fenced; a run under a new epoch begins at what is recorded
FENCED = frozenset({"LogFenced", "SinkFenced", "UnitFenced"})


class Trigger(StrEnum):
    """The causes that move a changefeed from state to state."""

    PAUSE = "pause"
    RESUME = "resume"
    REMOVE = "remove"
    FINISH = "target reached"
    ERROR = "error"
    FAIL = "fatal error"
    WAIT_OVER = "wait over"
    WARN = "warning"
    PROGRESS = "progress"
    EXPIRE = "stopped too long"
    CRASH = "owner's part crashed"


#: requests of operators
WISHES = frozenset({Trigger.PAUSE, Trigger.RESUME, Trigger.REMOVE})

#: (state, trigger) → state
TRANSITIONS: dict[tuple[FeedState, Trigger], FeedState] = {
    **{
        (state, trigger): after
        for state in (FeedState.NORMAL, FeedState.WARNING)
        for trigger, after in (
            (Trigger.PAUSE, FeedState.STOPPED),
            (Trigger.FINISH, FeedState.FINISHED),
            (Trigger.ERROR, FeedState.PENDING),
            (Trigger.FAIL, FeedState.FAILED),
            (Trigger.WARN, FeedState.WARNING),
            (Trigger.CRASH, state),
        )
    },
    (FeedState.WARNING, Trigger.PROGRESS): FeedState.NORMAL,
    (FeedState.PENDING, Trigger.WAIT_OVER): FeedState.WARNING,
    (FeedState.PENDING, Trigger.PAUSE): FeedState.STOPPED,
    (FeedState.PENDING, Trigger.FAIL): FeedState.FAILED,
    (FeedState.STOPPED, Trigger.EXPIRE): FeedState.FAILED,
    (FeedState.FAILED, Trigger.EXPIRE): FeedState.FAILED,
    **{
        (state, Trigger.RESUME): FeedState.NORMAL for state in (FeedState.STOPPED, FeedState.FAILED, FeedState.FINISHED)
    },
    **{(state, Trigger.REMOVE): FeedState.REMOVED for state in FeedState if state is not FeedState.REMOVED},
}

#: maximum delay between two attempts when a cause may end at any time
_PASSING_MAX_S = 60.0
#: a transient cause that has not been reported for this long has ended
_PASSING_KNOWN_S = 90.0

_RUNNING = (FeedState.NORMAL, FeedState.WARNING)

#: codes of conditions: tables are held; there is no progress; every capture has a fault of its own
HELD_TABLES, STANDSTILL, CAPTURE_FAULT = "HeldTables", "Standstill", "CaptureFault"
LASTING = frozenset({HELD_TABLES, STANDSTILL, CAPTURE_FAULT})

#: a changefeed's progress, comparable over its life: (number of the unit, checkpoint or rows of it)
Progress = tuple[int, int]
#: a warning that needs no progress to end
_OVER_WHEN_GONE: Progress = (-1, 0)


def is_running(state: FeedState) -> bool:
    """Return whether the changefeed should be running."""
    return state in _RUNNING


def is_fatal(error: RunningError) -> bool:
    """Return whether a retry cannot help."""
    return error.code in FAST_FAIL or (not error.retryable and error.code not in FENCED | PASSING)


def combined(conditions: Sequence[RunningError]) -> RunningError | None:
    """Combine lasting conditions into one warning."""
    if len(conditions) < 2:
        return conditions[0] if conditions else None
    texts = [conditions[0].message, *(f"{other.code}: {other.message}" for other in conditions[1:])]
    return conditions[0].with_(message="; ".join(texts))


def step(info: ChangefeedInfo, trigger: Trigger, *, error: RunningError | None = None) -> ChangefeedInfo:
    """Return the changefeed after ``trigger``.

    :raises JobRefusedError: its state has no row for an operator's request.
    :raises InvalidTransitionError: its state has no row for an event.
    """
    after = TRANSITIONS.get((info.state, trigger))
    if after is None and trigger in WISHES:
        raise JobRefusedError(f"changefeed {info.id} is {info.state}: {trigger} is not possible{_cure(info.state)}")
    if after is None:
        raise invalid(f"changefeed {info.id}", info.state, trigger, ())
    changes: dict[str, object] = {"state": after}
    if is_running(info.state) != is_running(after) or trigger is Trigger.CRASH:
        changes["epoch"] = info.epoch + 1
    match trigger:
        case Trigger.ERROR | Trigger.FAIL | Trigger.EXPIRE:
            changes["error"] = error
        case Trigger.WARN:
            changes["warning"] = error
        case Trigger.RESUME | Trigger.PROGRESS | Trigger.FINISH:
            changes |= {"error": None, "warning": None}
    return info.with_(**changes)


class FeedStateMachine:
    """The memory between ticks that decides transitions that no operator requests."""

    def __init__(self, settings: BackoffSettings, uniform: Uniform, *, wall_offset_s: float = 0.0) -> None:
        self._wall_offset_s = wall_offset_s
        self.history: deque[RunningError] = deque(maxlen=HISTORY_LENGTH)
        self.steps = History("changefeed")
        self.retry_at: float | None = None
        self._backoff = Backoff(settings, uniform)
        self._progress: Progress = (0, 0)
        self._progress_at: float | None = None
        self._failed_at_progress: Progress | None = None
        #: the last reported transient cause, and when
        self._passing: RunningError | None = None
        self._passing_at = 0.0

    def step(self, info: ChangefeedInfo, trigger: Trigger, *, error: RunningError | None = None) -> ChangefeedInfo:
        """Return the changefeed after ``trigger``, like ``step``.

        :raises JobRefusedError: its state has no row for an operator's request.
        :raises InvalidTransitionError: its state has no row for an event.
        """
        if (info.state, trigger) not in TRANSITIONS and trigger not in WISHES:
            raise self.steps.invalid(info.state, trigger)
        after = step(info, trigger, error=error)
        if after.state is not info.state:
            self.steps.note(info.state, f"{trigger} {error.code}" if error else trigger, after.state)
        assert is_running(info.state) == is_running(after.state) or after.epoch > info.epoch, "a new run, a new epoch"
        return after

    def tick(
        self,
        info: ChangefeedInfo,
        errors: Sequence[RunningError],
        warnings: Sequence[RunningError],
        now: float,
        *,
        conditions: Sequence[RunningError] = (),
    ) -> ChangefeedInfo:
        """Return the changefeed after this tick's errors, warnings and time. ``conditions``: what makes it a warning
        while it lasts."""
        self.history.extend([*errors, *warnings])
        if info.state is FeedState.PENDING:
            return self._tick_pending(info, now)
        self.retry_at = None
        if not is_running(info.state):
            return info
        if errors:
            return self._on_error(info, _worst(errors), now)
        for warning in warnings:
            self._failed_at_progress = self._progress
            if warning.code in PASSING:
                self._passing, self._passing_at = warning, now
        lasting = combined([*conditions, *self._passing_now(now)])
        if lasting is not None:
            self._failed_at_progress = _OVER_WHEN_GONE if conditions else self._failed_at_progress
            return info if _is_same(info.warning, lasting) else self.step(info, Trigger.WARN, error=lasting)
        return self.step(info, Trigger.WARN, error=warnings[-1]) if warnings else info

    def note_progress(
        self,
        info: ChangefeedInfo,
        progress: Progress,
        *,
        has_work: bool,
        now: float,
        conditions: Sequence[RunningError] = (),
    ) -> ChangefeedInfo:
        """Return the changefeed after it has reached ``progress``; ``has_work``: there is pending work.

        Time with a known transient cause does not count as being stuck.
        """
        if self._progress_at is not None and progress > self._progress:
            self._passing = None
        is_excused = any(known.code in PASSING for known in [*conditions, *self._passing_now(now)])
        if self._progress_at is None or progress > self._progress or not has_work or is_excused:
            self._progress_at = now
        self._progress = max(self._progress, progress)
        stuck_s = info.config.stuck_seconds
        if now - self._progress_at > stuck_s:
            return self._fail(info, _stuck(stuck_s, now + self._wall_offset_s))
        if conditions or self._passing_now(now):
            return info
        if info.state is FeedState.WARNING and self._has_recovered(info, progress):
            self._failed_at_progress = None
            return self.step(info, Trigger.PROGRESS)
        return info

    def next_at(self, info: ChangefeedInfo, now: float) -> float:
        """Return when a running changefeed is stuck, or a transient cause has ended, if nothing happens before."""
        times = [self._passing_at + _PASSING_KNOWN_S] if self._passing is not None else []
        if self._progress_at is not None:
            times.append(self._progress_at + info.config.stuck_seconds)
        return min((at for at in times if at > now), default=float("inf"))

    def reset(self) -> None:
        """Forget history: an operator has resumed the changefeed."""
        self.retry_at = self._progress_at = self._failed_at_progress = self._passing = None
        self._progress = (0, 0)

    def _tick_pending(self, info: ChangefeedInfo, now: float) -> ChangefeedInfo:
        if self.retry_at is None:  # a new owner: its own first delay
            self._backoff.reset(now)
            self.retry_at = now + (self._backoff.next_s(now, give_up_s=info.config.stuck_seconds) or 0.0)
        if now < self.retry_at:
            return info
        self.retry_at = self._progress_at = None
        return self.step(info, Trigger.WAIT_OVER)

    def _on_error(self, info: ChangefeedInfo, error: RunningError, now: float) -> ChangefeedInfo:
        if is_fatal(error):
            return self._fail(info, error)
        if self._failed_at_progress is None or self._progress > self._failed_at_progress:
            self._backoff.reset(now)
        self._failed_at_progress = self._progress
        is_passing = error.code in PASSING
        if is_passing:
            self._passing, self._passing_at = error, now
        wait_s = self._backoff.next_s(now, give_up_s=float("inf") if is_passing else info.config.stuck_seconds)
        if wait_s is None:
            return self._fail(info, error)
        self.retry_at = now + (min(wait_s, _PASSING_MAX_S) if is_passing else wait_s)
        return self.step(info, Trigger.ERROR, error=error)

    def _fail(self, info: ChangefeedInfo, error: RunningError) -> ChangefeedInfo:
        return self.step(info, Trigger.FAIL, error=error)

    def _passing_now(self, now: float) -> list[RunningError]:
        """Return the transient cause, which lasts until there is progress, or it has not been reported for long."""
        is_known = self._passing is not None and now - self._passing_at < _PASSING_KNOWN_S
        return [self._passing] if is_known and self._passing is not None else []

    def _has_recovered(self, info: ChangefeedInfo, progress: Progress) -> bool:
        """Return whether a warning is over: there is progress since it began, or the condition has ended."""
        if self._failed_at_progress is None and info.warning is not None and info.warning.code in LASTING:
            return True
        if self._failed_at_progress is None:
            self._failed_at_progress = progress
        return progress > self._failed_at_progress


def _is_same(known: RunningError | None, now: RunningError) -> bool:
    return known is not None and (known.code, known.message) == (now.code, now.message)


def _worst(errors: Sequence[RunningError]) -> RunningError:
    """Return a fatal error if there is any, else the newest."""
    return next((error for error in errors if is_fatal(error)), errors[-1])


def _stuck(stuck_s: float, time: float) -> RunningError:
    text = f"no progress for {stuck_s:.0f} s while there was something to write; look at the log, then resume"
    return RunningError(code=StuckError.code, message=text, time=time, retryable=False)


def _cure(state: FeedState) -> str:
    match state:
        case FeedState.NORMAL | FeedState.WARNING:
            return "; it is running"
        case FeedState.PENDING:
            return "; it tries again by itself, or pause it first"
        case FeedState.STOPPED | FeedState.FAILED | FeedState.FINISHED:
            return "; it is not running, resume or remove it"
        case FeedState.REMOVED:
            return "; it is being removed"
