"""Schedule: the capture that owns a changefeed, and its state machine (after TiCDC's cdcv2 metadata).

    removed ──launch──► launched ──remove──► removing ──ended──► removed
                            └──── ended, or its capture is offline ────┘

``STATES`` is the whole machine. Only a removed changefeed gets another owner, so no two captures own one: an owner says
itself that it has ended, or the lease of its capture is over.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from owner.errors import ScheduleError
from reactor.ids import CaptureId, ChangefeedId
from reactor.records.capture import Assignment, OwnerState
from reactor.state import ChangefeedState


class Event(StrEnum):
    LAUNCH = "launch"
    LAUNCH_ELSEWHERE = "launch elsewhere"
    REMOVE = "remove"
    REMOVED = "ended, or capture offline"


#: (state, event) → state
STATES: dict[tuple[OwnerState, Event], OwnerState] = {
    (OwnerState.REMOVED, Event.LAUNCH): OwnerState.LAUNCHED,
    (OwnerState.REMOVED, Event.LAUNCH_ELSEWHERE): OwnerState.LAUNCHED,
    (OwnerState.LAUNCHED, Event.LAUNCH): OwnerState.LAUNCHED,
    (OwnerState.LAUNCHED, Event.REMOVE): OwnerState.REMOVING,
    (OwnerState.LAUNCHED, Event.REMOVED): OwnerState.REMOVED,
    (OwnerState.REMOVING, Event.REMOVED): OwnerState.REMOVED,
}


@dataclass(frozen=True, slots=True)
class ScheduledChangefeed:
    """A changefeed and its owner, None while it is removed. ``next`` and ``is_chosen``: see ``Assignment``."""

    changefeed: ChangefeedId
    owner: CaptureId | None = None
    state: OwnerState = OwnerState.REMOVED
    next: str = ""
    is_chosen: bool = False

    @classmethod
    def of(cls, feed: ChangefeedState) -> "ScheduledChangefeed":
        known = feed.assignment
        if known is None:
            return cls(feed.id)
        return cls(feed.id, known.capture, OwnerState(known.state), known.next, known.is_chosen)

    def assignment(self) -> Assignment:
        assert self.owner is not None, f"{self.changefeed} is removed: there is nothing to store"
        return Assignment(capture=self.owner, state=self.state, next=self.next, is_chosen=self.is_chosen)


def event_between(before: ScheduledChangefeed, after: ScheduledChangefeed) -> Event:
    """Return what leads from ``before`` to ``after``."""
    match after.state:
        case OwnerState.REMOVED:
            return Event.REMOVED
        case OwnerState.REMOVING:
            return Event.REMOVE
        case _:
            return Event.LAUNCH if before.owner in (None, after.owner) else Event.LAUNCH_ELSEWHERE


def check(before: ScheduledChangefeed, after: ScheduledChangefeed) -> None:
    """:raises ScheduleError: the state of ``before`` may not be followed by ``after``."""
    assert before.changefeed == after.changefeed, f"{before.changefeed} is compared with {after.changefeed}"
    is_same = after.owner == (before.owner if after.state is OwnerState.REMOVING else after.owner)
    has_owner = (after.owner is not None) == (after.state is not OwnerState.REMOVED)
    event = event_between(before, after)
    if not (is_same and has_owner) or STATES.get((before.state, event)) is not after.state:
        raise ScheduleError(f"{_text(before)} has no transition to {_text(after)} ({event})")


def differences(
    origin: Iterable[ScheduledChangefeed], target: Iterable[ScheduledChangefeed]
) -> list[ScheduledChangefeed]:
    """Return the changefeeds to write so that ``origin`` becomes ``target``, by id.

    One that ``target`` lacks becomes removed; one that ``origin`` lacks was removed before.

    :raises ScheduleError: a transition is not allowed; nothing must be written then.
    """
    before = {scheduled.changefeed: scheduled for scheduled in origin}
    after = {scheduled.changefeed: scheduled for scheduled in target}
    rows = []
    for id in sorted(before.keys() | after.keys()):
        old, new = before.get(id, ScheduledChangefeed(id)), after.get(id, ScheduledChangefeed(id))
        if old != new:
            check(old, new)
            rows.append(new)
    return rows


def _text(scheduled: ScheduledChangefeed) -> str:
    return f"{scheduled.changefeed} {scheduled.state} on {scheduled.owner or 'no capture'}"
