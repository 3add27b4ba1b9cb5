"""Placement: plans which capture owns which changefeed.

A changefeed without an owner is placed at once, on the capture with the least load, of equal ones the smallest id. A
capture that leaves, or cannot work, gives all its changefeeds away. Captures are evened out a few changefeeds at a
time, and only where that brings two loads closer by at least what an idle owner weighs, so no changefeed goes back and
forth; what an operator has placed stays.

Load: an owner's tick takes a time for each changefeed and a time for each of its tables (``benchmarks/cluster``), so
both count (``weight``). Measured times would differ from tick to tick, and move changefeeds for nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from owner.metadata.schedule import ScheduledChangefeed
from reactor.ids import CaptureId, ChangefeedId
from reactor.records.capture import OwnerState

#: tables that take as long in a tick as a changefeed does by itself
_TABLES_PER_CHANGEFEED = 50


def weight(tables: int) -> float:
    """Return the load of an owner, in idle owners."""
    return 1.0 + tables / _TABLES_PER_CHANGEFEED


@dataclass(frozen=True, slots=True)
class Members:
    """``present``: captures whose lease is not over. ``serving``: those that may own changefeeds, by id. ``steady``:
    those of them that have served for a while, among which changefeeds are evened out; None: all."""

    present: frozenset[CaptureId]
    serving: tuple[CaptureId, ...]
    steady: frozenset[CaptureId] | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """``moves``: where operators want launched changefeeds. ``places``: where removed ones are to be launched, and
    whether an operator has chosen that."""

    moves: Mapping[ChangefeedId, CaptureId] = field(default_factory=dict)
    places: Mapping[ChangefeedId, tuple[CaptureId, bool]] = field(default_factory=dict)


def plan(
    origin: Sequence[ScheduledChangefeed],
    members: Members,
    weights: Mapping[ChangefeedId, float],
    wishes: Wishes = Wishes(),
    *,
    evened_at_once: int = 0,
) -> list[ScheduledChangefeed]:
    """Return the schedule that is to follow ``origin``, by changefeed id. ``evened_at_once``: how many changefeeds may
    be on their way to another capture for evening out; 0: none."""
    planned = _Plan(members, weights)
    for scheduled in origin:
        planned.keep(scheduled, wishes.moves.get(scheduled.changefeed))
    for scheduled in sorted(planned.waiting, key=lambda one: one.changefeed):
        planned.place(scheduled, wishes.places.get(scheduled.changefeed))
    planned.even_out(evened_at_once)
    return [planned.target[scheduled.changefeed] for scheduled in origin]


class _Plan:
    """The schedule as it is planned so far, and the loads that follow from it."""

    def __init__(self, members: Members, weights: Mapping[ChangefeedId, float]) -> None:
        self.target: dict[ChangefeedId, ScheduledChangefeed] = {}
        self.waiting: list[ScheduledChangefeed] = []
        self._members = members
        self._weights = weights
        self._loads = dict.fromkeys(members.serving, 0.0)
        self._is_settled = True

    def keep(self, scheduled: ScheduledChangefeed, wish: CaptureId | None) -> None:
        """Decide whether it stays with its owner."""
        after = scheduled
        if scheduled.state is OwnerState.REMOVED:
            self.waiting.append(scheduled)
        elif scheduled.owner not in self._members.present:
            after = ScheduledChangefeed(scheduled.changefeed)
            self._is_settled = False
        elif scheduled.state is OwnerState.LAUNCHED and self._loads:
            if wish in self._loads and wish != scheduled.owner:
                after = replace(scheduled, state=OwnerState.REMOVING, next=wish, is_chosen=True)
            elif scheduled.owner not in self._loads:
                after = replace(scheduled, state=OwnerState.REMOVING, next="", is_chosen=False)
                self._is_settled = False
        self.target[scheduled.changefeed] = after
        place = after.next if after.state is OwnerState.REMOVING else after.owner
        if place in self._loads:
            self._loads[CaptureId(place)] += self._weight(scheduled)

    def place(self, scheduled: ScheduledChangefeed, wish: tuple[CaptureId, bool] | None) -> None:
        """Launch a changefeed that has no owner."""
        if not self._loads:
            return
        self._is_settled = False
        capture, is_chosen = wish if wish and wish[0] in self._loads else (self._least(self._loads), False)
        launched = ScheduledChangefeed(scheduled.changefeed, capture, OwnerState.LAUNCHED, is_chosen=is_chosen)
        self.target[scheduled.changefeed] = launched
        self._loads[capture] += self._weight(scheduled)

    def even_out(self, at_once: int) -> None:
        """Remove changefeeds from the fullest captures; never while others are being placed."""
        on_their_way = sum(one.state is OwnerState.REMOVING for one in self.target.values())
        steady = self._loads.keys() if self._members.steady is None else self._loads.keys() & self._members.steady
        while self._is_settled and on_their_way < at_once and len(steady) > 1:
            fullest = max(sorted(steady), key=lambda capture: self._loads[capture])
            emptiest = self._least(steady)
            moved = self._closest(fullest, self._loads[fullest] - self._loads[emptiest])
            if moved is None:
                return
            self.target[moved.changefeed] = replace(moved, state=OwnerState.REMOVING, next=emptiest)
            self._loads[fullest] -= self._weight(moved)
            self._loads[emptiest] += self._weight(moved)
            on_their_way += 1

    def _closest(self, capture: CaptureId, gap: float) -> ScheduledChangefeed | None:
        """Return the changefeed of ``capture`` that closes most of a ``gap``, if that is worth it."""
        movable = [
            one
            for one in self.target.values()
            if one.owner == capture and one.state is OwnerState.LAUNCHED and not one.is_chosen
        ]
        best = min(movable, key=lambda one: (abs(gap - 2 * self._weight(one)), one.changefeed), default=None)
        return best if best is not None and gap - abs(gap - 2 * self._weight(best)) >= weight(0) else None

    def _least(self, captures: Iterable[CaptureId]) -> CaptureId:
        return min(captures, key=lambda capture: (self._loads[capture], capture))

    def _weight(self, scheduled: ScheduledChangefeed) -> float:
        return self._weights.get(scheduled.changefeed, weight(0))
