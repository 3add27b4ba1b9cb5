"""Observations: what controller, capture and owner see of the schedule, and the fences of what they write.

- the *controller* writes only while it is elected: its worker compares the election in each transaction
  (``Elector.proof``), and each change of the schedule requires the record as this tick has seen it;
- an *owner* writes only while its assignment is as this tick has seen it (``OwnerObservation.fenced``), in launched and
  in removing, and never once it was removed or given to another;
- a *capture* writes only while its session lives: its worker compares its own record, which goes with the lease.

Decisions only: the worker sends the transactions (after the interfaces of TiCDC's cdcv2 metadata).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from owner.metadata.schedule import ScheduledChangefeed, check
from reactor import keys, patches
from reactor.effects import Commit, Effect
from reactor.errors import ConflictError
from reactor.ids import CaptureId, ChangefeedId
from reactor.membership.progress import furthest
from reactor.patches import Patch, PatchGroup
from reactor.records.capture import Assignment, OwnerState
from reactor.records.changefeed import ChangefeedStatus
from reactor.state import ChangefeedState, ClusterState


@dataclass(frozen=True, slots=True)
class ControllerObservation:
    """The schedule in one tick of the controller."""

    state: ClusterState

    def schedule(self) -> list[ScheduledChangefeed]:
        """Return all changefeeds by id; without those whose assignment cannot be read: nothing is known of them."""
        feeds = sorted(self.state.changefeeds.items())
        return [ScheduledChangefeed.of(feed) for _, feed in feeds if str(self._key(feed.id)) not in feed.broken]

    def set_owner(self, after: ScheduledChangefeed) -> Commit:
        """Change one changefeed's schedule.

        :raises ScheduleError: its state has no such transition.
        """
        feed = self.state.changefeeds[after.changefeed]
        before, key = ScheduledChangefeed.of(feed), self._key(after.changefeed)
        check(before, after)
        match after.state:
            case OwnerState.LAUNCHED:
                assert after.owner is not None, "a launched changefeed has an owner"
                alive = keys.CaptureKey(self.state.cluster, after.owner)
                launched = [*stored_progress(feed, self.state), _created(key, after.assignment())]
                return Commit(patches.group(launched, requires=[alive]))
            case OwnerState.REMOVING:
                assert feed.assignment is not None, "only a launched changefeed is removed"
                return Commit(patches.group([patches.replace_record(key, feed.assignment, after.assignment())]))
            case _:
                assert feed.assignment is not None, "only a changefeed with an owner loses it"
                gone = keys.CaptureKey(self.state.cluster, feed.assignment.capture)
                assert str(gone) not in self.state.raw, f"{gone} is there: its lease is not over"
                return Commit(patches.group([patches.delete_record(key, feed.assignment)], requires=[gone]))

    def _key(self, changefeed: ChangefeedId) -> keys.AssignmentKey:
        return keys.AssignmentKey(self.state.cluster, self.state.namespace, changefeed)


class Ownership(Protocol):
    """The changefeeds that an owner may decide, and the fence of what it writes about one."""

    def owned(self, state: ClusterState) -> Mapping[ChangefeedId, int]:
        """Return changefeeds → owner revision."""
        ...

    def ending(self, state: ClusterState) -> Iterator[ChangefeedState]:
        """Yield those that this owner has to hand over."""
        ...

    def fenced(self, feed: ChangefeedState, state: ClusterState, effects: Iterable[Effect]) -> list[Effect]: ...


@dataclass(frozen=True, slots=True)
class Elected:
    """The elected capture owns all changefeeds, as before ``Feature.OWNERS``; its worker compares the election."""

    revision: int

    def owned(self, state: ClusterState) -> Mapping[ChangefeedId, int]:
        return dict.fromkeys(state.changefeeds, self.revision)

    def ending(self, state: ClusterState) -> Iterator[ChangefeedState]:
        return iter(())

    def fenced(self, feed: ChangefeedState, state: ClusterState, effects: Iterable[Effect]) -> list[Effect]:
        return list(effects)


class CaptureObservation:
    """The changefeeds that are assigned to one capture. ``spent``: revisions of ownerships that have crashed here:
    under such a one the capture decides nothing more, as it has forgotten which orders it gave."""

    def __init__(self, capture: CaptureId, spent: Mapping[ChangefeedId, int] | None = None) -> None:
        self.capture = capture
        self._spent = spent if spent is not None else {}
        #: what follows from the assignments of a state, and how many changes of them it had seen: each tick asks for it
        self._known_of: tuple[ClusterState | None, int] = (None, 0)
        self._owned: Mapping[ChangefeedId, int] = {}
        self._ending: Sequence[ChangefeedState] = ()

    def owned(self, state: ClusterState) -> Mapping[ChangefeedId, int]:
        """Return the same object while no assignment changes."""
        self._look(state)
        return self._owned

    def ending(self, state: ClusterState) -> Iterator[ChangefeedState]:
        self._look(state)
        return iter(self._ending)

    def fenced(self, feed: ChangefeedState, state: ClusterState, effects: Iterable[Effect]) -> list[Effect]:
        return OwnerObservation(feed, state).fenced(effects)

    def _look(self, state: ClusterState) -> None:
        known_of = state, state.assignments if state.has_owners else -1
        if known_of == self._known_of:
            return
        self._known_of = known_of
        mine = self._assigned(state)
        self._owned = {feed.id: feed.owner_revision for feed in mine if feed.is_launched and not self._is_spent(feed)}
        self._ending = [feed for feed in mine if feed.id not in self._owned]

    def _assigned(self, state: ClusterState) -> list[ChangefeedState]:
        of_all = ((feed, feed.assignment) for feed in state.changefeeds.values()) if state.has_owners else ()
        return [feed for feed, at in of_all if at is not None and at.capture == self.capture]

    def _is_spent(self, feed: ChangefeedState) -> bool:
        return self._spent.get(feed.id, 0) >= feed.owner_revision


@dataclass(frozen=True, slots=True)
class OwnerObservation:
    """One changefeed in one tick of its owner."""

    feed: ChangefeedState
    state: ClusterState

    @property
    def key(self) -> keys.AssignmentKey:
        return keys.AssignmentKey(self.state.cluster, self.state.namespace, self.feed.id)

    def fenced(self, effects: Iterable[Effect]) -> list[Effect]:
        """Make every commit require the assignment as it is in this tick."""
        return [self._fenced(effect) if isinstance(effect, Commit) else effect for effect in effects]

    def post_removed(self, latest: ChangefeedStatus | None = None) -> Commit:
        """The owner has ended: store its last progress, and let the controller give the changefeed to another."""
        assert self.feed.assignment is not None, "an owner has an assignment"
        gone = patches.delete_record(self.key, self.feed.assignment)
        return Commit(patches.group([*stored_progress(self.feed, self.state, latest), gone]))

    def _fenced(self, commit: Commit) -> Commit:
        group = commit.group
        return replace(commit, group=PatchGroup(group.patches, (*group.requires, str(self.key))))


def stored_progress(feed: ChangefeedState, state: ClusterState, latest: ChangefeedStatus | None = None) -> list[Patch]:
    """Return what moves a changefeed's progress to its status, and makes its owner's entry void. ``latest``: what the
    owner knows and nobody has stored."""
    status = furthest(feed.status, latest)
    if status is None or (status is feed.status and not feed.is_ahead):
        return []
    key = keys.StatusKey(state.cluster, state.namespace, feed.id)
    return [patches.replace_record(key, feed.stored_status, feed.to_store(status))]


def _created(key: keys.AssignmentKey, assignment: Assignment) -> Patch:
    """An assignment is created, never overwritten: its creation is the owner revision."""

    def create(old: Assignment | None) -> Assignment:
        if old is not None:
            raise ConflictError(f"{key} exists already; tick again")
        return assignment

    return patches.patch_record(key, Assignment, create)
