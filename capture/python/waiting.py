"""Waiting: what a changefeed is waited for, and when that fails. Pure but for the clock."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from capture.api.connection import may_pass
from capture.api.inputs import one_of, seconds_of, whole_of
from reactor.errors import WeirError
from reactor.records.changefeed import FeedState, Unit
from reactor.views import ChangefeedView

POLL_S = 0.1
#: how long nobody may answer: longer than another capture takes to become owner
_OUTAGE_S = 60.0
_ENDED = (FeedState.FAILED, FeedState.STOPPED, FeedState.FINISHED, FeedState.REMOVED)


@dataclass(slots=True)
class Goal:
    """``state`` None: any. ``ts`` None: no position. Without both: the snapshot is in the sink, or in
    mode incremental, changes are followed. ``deadline``: of the
    monotonic clock."""

    changefeed: str
    state: FeedState | None
    ts: int | None
    timeout: float | None
    deadline: float
    _answered_at: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, changefeed: str, state: FeedState | str | None, ts: int | None, timeout: float | None) -> Self:
        """:raises ConfigError: one of the values is wrong."""
        deadline = float("inf") if timeout is None else time.monotonic() + seconds_of(timeout, "timeout")
        wanted = None if state is None else one_of(FeedState, state, "state")
        return cls(changefeed, wanted, None if ts is None else whole_of(ts, "ts"), timeout, deadline)

    def is_reached(self, view: ChangefeedView) -> bool:
        """:raises WeirError: it has ended without reaching it."""
        self._answered_at = time.monotonic()
        if self.state is not None and view.state is not self.state:
            is_reached = False
        elif self.ts is not None:
            is_reached = view.checkpoint_ts >= self.ts
        else:
            is_reached = self.state is not None or (view.unit is Unit.SYNC and view.checkpoint_ts > 0)
        if not is_reached and view.state in _ENDED and view.state is not self.state:
            why = f": {view.error.message}" if view.error else ""
            raise WeirError(f"changefeed {self.changefeed} is {view.state}{why}")
        return is_reached

    def refuse_timeout(self, view: ChangefeedView) -> None:
        """:raises TimeoutError: the deadline has passed."""
        if time.monotonic() >= self.deadline:
            why = f", because {view.blocked_by}" if view.blocked_by else ""
            at = f"{view.state} at {view.checkpoint_ts}{why}"
            raise TimeoutError(f"changefeed {self.changefeed} is {at} after {self.timeout:g} s")

    def wait_out(self, error: WeirError) -> None:
        """Return if the question may be answered soon: its owner has died, say, and another is elected.

        :raises WeirError: the error itself, if it does not pass, or has lasted for too long.
        """
        if not may_pass(error) or time.monotonic() >= min(self.deadline, self._answered_at + _OUTAGE_S):
            raise error


def wait(goal: Goal, ask: Callable[[], ChangefeedView]) -> ChangefeedView:
    """Ask again and again; see ``Goal`` for the errors."""
    while True:
        try:
            if goal.is_reached(view := ask()):
                return view
            goal.refuse_timeout(view)
        except WeirError as error:
            goal.wait_out(error)
        time.sleep(POLL_S)
