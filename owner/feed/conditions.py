"""Conditions: what puts a running changefeed in state warning for as long as it lasts.

There are four: held tables, a source that is unavailable, captures that all have a fault of their own, and a changefeed
without progress.

A quiet source still makes progress: its head's time advances. A changefeed without any for ``standstill_s`` is never
normal.
"""

from collections.abc import Mapping, Sequence, Sized
from datetime import UTC, datetime

from owner.feed import blocking
from owner.feed.run import Run
from owner.feed.state import CAPTURE_FAULT, HELD_TABLES, STANDSTILL
from owner.progress.barrier import Limits
from owner.progress.facts import Facts
from owner.progress.units import SOURCE
from reactor.records.changefeed import RunningError
from reactor.records.tables.held import HeldTable

#: shorter trouble is not reported
_TROUBLE_S = 5.0


class Conditions:
    """The conditions of one changefeed. A text does not change while its cause lasts, since each change is a write."""

    def __init__(self, *, standstill_s: float, wall_offset_s: float) -> None:
        self._standstill_s = standstill_s
        self._wall_offset_s = wall_offset_s
        self._standing: RunningError | None = None

    def now(
        self, run: Run | None, facts: Facts, limits: Limits, now: float, *, faults: Sequence[RunningError] = ()
    ) -> list[RunningError]:
        """Return the conditions at ``now``, the longest-lasting first. ``faults``: those of the captures, if each of
        them has one."""
        found = [
            _of_held(facts.held),
            _unfit(faults),
            self._trouble(run, facts, now),
            self._standstill(run, facts, limits, now),
        ]
        return [condition for condition in found if condition is not None]

    def next_at(self, run: Run, facts: Facts, now: float) -> float:
        """Return when a condition begins if nothing happens before."""
        worker = run.workers.workers.get(SOURCE)
        trouble = worker.trouble if worker else None
        times = [trouble.time + _TROUBLE_S - self._wall_offset_s] if trouble else []
        if facts.unit is not None:
            times.append(now + self._standstill_s - run.still_s(facts, now))
        return min((at for at in times if at > now), default=float("inf"))

    def _trouble(self, run: Run | None, facts: Facts, now: float) -> RunningError | None:
        """Return what the source's reader waits for, and what the source has to keep meanwhile."""
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


def _of_held(held: Mapping[int, HeldTable]) -> RunningError | None:
    """Return a changefeed's warning about its held tables, naming some of them."""
    if not held:
        return None
    text = f"{_count_of(held)} held, all others flow: {blocking.named(held.values())}"
    time = max(table.error.time for table in held.values())
    return RunningError(code=HELD_TABLES, message=text, time=time)


def _count_of(tables: Sized) -> str:
    return f"{len(tables)} table{'s are' if len(tables) != 1 else ' is'}"


def _unfit(faults: Sequence[RunningError]) -> RunningError | None:
    """No capture can work; the changefeed continues by itself when one can."""
    if not faults:
        return None
    causes = dict.fromkeys(fault.message for fault in faults)
    text = "no capture can work for it"
    return faults[0].with_(code=CAPTURE_FAULT, message=f"{text}: {'; '.join(causes)}", capture=None)
