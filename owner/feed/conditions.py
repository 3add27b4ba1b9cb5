"""Conditions: what makes a running changefeed a warning for as long as it lasts.

There are three: held tables, a source that is waited for, and a changefeed that does not move.

A quiet source moves: its head's time does. What does not move at all for ``standstill_s`` is never called normal.
"""

from datetime import UTC, datetime

from owner.feed import blocking, held
from owner.feed.run import Run
from owner.feed.state import STANDSTILL
from owner.progress.barrier import Limits
from owner.progress.facts import Facts
from owner.progress.units import SOURCE
from reactor.records.changefeed import RunningError

#: trouble that is over sooner is not worth a word
_TROUBLE_S = 5.0


class Conditions:
    """For one changefeed. A text does not change while its cause lasts: each change is a write."""

    def __init__(self, *, standstill_s: float, wall_offset_s: float) -> None:
        self._standstill_s = standstill_s
        self._wall_offset_s = wall_offset_s
        self._standing: RunningError | None = None

    def now(self, run: Run | None, facts: Facts, limits: Limits, now: float) -> list[RunningError]:
        """Those that hold at ``now``, the most lasting one first."""
        found = [held.warning(facts.held), self._trouble(run, facts, now), self._standstill(run, facts, limits, now)]
        return [condition for condition in found if condition is not None]

    def _trouble(self, run: Run | None, facts: Facts, now: float) -> RunningError | None:
        """What the reader of the source waits for, and what the source has to keep meanwhile."""
        worker = run.workers.workers.get(SOURCE) if run else None
        trouble = worker.trouble if worker else None
        if trouble is None or now + self._wall_offset_s < trouble.time + _TROUBLE_S:
            return None
        if facts.head is None:
            return trouble
        since = datetime.fromtimestamp(int(trouble.time), tz=UTC).isoformat().replace("+00:00", "Z")
        position = facts.head.position or facts.head.resolved_ts
        return trouble.with_(
            message=f"{trouble.message}; the source keeps its log from {position} on since {since}, watch its disk"
        )

    def _standstill(self, run: Run | None, facts: Facts, limits: Limits, now: float) -> RunningError | None:
        if run is None or facts.unit is None or run.still_s(facts, now) < self._standstill_s:
            self._standing = None
        elif self._standing is None:
            why = blocking.blocked_by(run, facts, limits, now) or "the cause is not known; look at the log"
            text = f"nothing has moved for {self._standstill_s:.0f} s: {why}"
            self._standing = RunningError(code=STANDSTILL, message=text, time=now + self._wall_offset_s)
        return self._standing
