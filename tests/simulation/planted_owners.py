"""Planted bugs of controllers and owners: each breaks one rule of ``owner.metadata``."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from unittest import mock

from owner.metadata.observations import CaptureObservation, ControllerObservation, OwnerObservation
from owner.metadata.schedule import ScheduledChangefeed
from reactor import keys, patches
from reactor.effects import Commit
from reactor.ids import ChangefeedId, Ts
from reactor.patches import Patch
from reactor.records.capture import Assignment, OwnerState
from reactor.records.changefeed import ChangefeedStatus
from reactor.state import ChangefeedState, ClusterState


def launch_over_an_owner(stack: ExitStack) -> None:
    """The controller gives a changefeed to another capture before its owner has ended."""
    original = ControllerObservation.set_owner

    def set_owner(self: ControllerObservation, after: ScheduledChangefeed) -> Commit:
        if after.state is not OwnerState.REMOVING or not after.next:
            return original(self, after)
        key = keys.AssignmentKey(self.state.cluster, self.state.namespace, after.changefeed)
        return Commit(patches.group([patches.put_record(key, Assignment(capture=after.next))]))

    stack.enter_context(mock.patch.object(ControllerObservation, "set_owner", set_owner))


def own_what_is_being_removed(stack: ExitStack) -> None:
    """An owner that is asked to end goes on, and never says that it has ended."""

    def ending(self: CaptureObservation, state: ClusterState) -> Iterator[ChangefeedState]:
        return iter(())

    def owned(self: CaptureObservation, state: ClusterState) -> Mapping[ChangefeedId, int]:
        return {feed.id: feed.owner_revision for feed in self._assigned(state)}

    stack.enter_context(mock.patch.object(CaptureObservation, "ending", ending))
    stack.enter_context(mock.patch.object(CaptureObservation, "owned", owned))


def go_back_over_a_move(stack: ExitStack) -> None:
    """An owner that ends stores a position from before."""
    original = OwnerObservation.post_removed

    def post_removed(self: OwnerObservation, progress: Sequence[Patch] = ()) -> Commit:
        status = self.feed.status
        if status is None or not status.checkpoint_ts:
            return original(self, progress)
        key = keys.StatusKey(self.state.cluster, self.state.namespace, self.feed.id)
        back: ChangefeedStatus = status.with_(checkpoint_ts=Ts(status.checkpoint_ts - 1))
        return original(self, [patches.put_record(key, back)])

    stack.enter_context(mock.patch.object(OwnerObservation, "post_removed", post_removed))


def lose_an_assignment(stack: ExitStack) -> None:
    """A capture does not notice some of the changefeeds that it is given."""
    original = CaptureObservation.owned

    def owned(self: CaptureObservation, state: ClusterState) -> Mapping[ChangefeedId, int]:
        return {id: revision for id, revision in original(self, state).items() if revision % 5}

    stack.enter_context(mock.patch.object(CaptureObservation, "owned", owned))


PLANTED: dict[str, Callable[[ExitStack], None]] = {
    plant.__name__.replace("_", " "): plant
    for plant in (
        launch_over_an_owner,
        own_what_is_being_removed,
        go_back_over_a_move,
        lose_an_assignment,
    )
}
