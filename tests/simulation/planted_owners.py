"""Planted bugs of controllers and owners: each breaks one rule of ``owner.metadata``, or of what owners hear."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from unittest import mock

from capture.member.ownership import owners
from owner.metadata.observations import CaptureObservation, ControllerObservation, OwnerObservation
from owner.metadata.schedule import ScheduledChangefeed
from owner.owner import Owner
from owner.scheduler.captures import CaptureManager
from owner.scheduler.coordinator import Coordinator
from owner.scheduler.replication import Order
from owner.scheduler.span_index import SpanIndex
from reactor import keys, patches
from reactor.effects import Commit
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.membership.election import Elector
from reactor.messages import HeartbeatResponse, Message, SpanStatus
from reactor.records.capture import Assignment, OwnerState
from reactor.records.changefeed import ChangefeedStatus
from reactor.records.log_head import LogHead
from reactor.state import ChangefeedState, ClusterState
from reactor.store.port import Compare, Target, TxnResult
from reactor.txn import Plan
from reactor.worker.loop import ReactorWorker
from tests.simulation import crashes, etcd, run
from tests.simulation.fences import DEPOSED

#: what fences an owner's progress
_FENCES = ("/owner-of/", "/__meta__/capture/", "/changefeed/status/", "/progress/")


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
    """An owner that is asked to end continues, and never says that it has ended."""

    def ending(self: CaptureObservation, state: ClusterState) -> Iterator[ChangefeedState]:
        return iter(())

    def owned(self: CaptureObservation, state: ClusterState) -> Mapping[ChangefeedId, int]:
        return {feed.id: feed.owner_revision for feed in self._assigned(state)}

    stack.enter_context(mock.patch.object(CaptureObservation, "ending", ending))
    stack.enter_context(mock.patch.object(CaptureObservation, "owned", owned))


def go_back_over_a_move(stack: ExitStack) -> None:
    """An owner that ends stores a position from before."""
    original = OwnerObservation.post_removed

    def post_removed(self: OwnerObservation, latest: ChangefeedStatus | None = None) -> Commit:
        status = self.feed.status
        if status is None or not status.checkpoint_ts:
            return original(self, latest)
        return original(self, status.with_(checkpoint_ts=Ts(status.checkpoint_ts - 1)))

    stack.enter_context(mock.patch.object(OwnerObservation, "post_removed", post_removed))


def lose_an_assignment(stack: ExitStack) -> None:
    """A capture does not notice some of the changefeeds that it is given."""
    original = CaptureObservation.owned

    def owned(self: CaptureObservation, state: ClusterState) -> Mapping[ChangefeedId, int]:
        return {id: revision for id, revision in original(self, state).items() if revision % 5}

    stack.enter_context(mock.patch.object(CaptureObservation, "owned", owned))


def write_without_the_assignment(stack: ExitStack) -> None:
    """What an owner writes requires neither its assignment, nor that its capture is a member, nor the progress that it
    has seen; and it often arrives late."""

    class Unfenced(ReactorWorker):
        async def _ask(self, planned: Plan) -> TxnResult:
            kept = [one for one in planned.txn.compares if not any(kind in one.key for kind in _FENCES)]
            absent = [Compare(f"{fence.key}{DEPOSED}", Target.CREATE_REVISION, 0) for fence in self._fences]
            return await self._client.txn((*kept, *absent), planned.txn.operations)

    stack.enter_context(mock.patch.object(owners, "ReactorWorker", Unfenced))
    stack.enter_context(mock.patch.object(etcd, "_RARE", "/progress/"))


def own_over_a_crash(stack: ExitStack) -> None:
    """The owners of a capture continue after a crash under the ownerships of before."""
    stack.enter_context(mock.patch.object(run, "_CRASHING_SHARE", 1.0))
    stack.enter_context(mock.patch.object(crashes, "_ASYNC", ()))
    stack.enter_context(mock.patch.object(crashes, "_PLAIN", ((Owner, "tick", "owner"),)))
    stack.enter_context(mock.patch.object(CaptureObservation, "_is_spent", return_value=False))


def write_when_deposed(stack: ExitStack) -> None:
    """What the elected capture writes does not require that it is still elected."""

    def proof(self: Elector) -> Compare:
        return Compare(f"{self.key}{DEPOSED}", Target.CREATE_REVISION, 0)

    stack.enter_context(mock.patch.object(Elector, "proof", proof))


def miss_that_a_report_is_missing(stack: ExitStack) -> None:
    """Of the reports of who is together with others some are lost, and the owner does not look at their numbers."""
    handle = Coordinator._handle_response

    def lossy(self: Coordinator, message: Message, response: HeartbeatResponse) -> list[Order]:
        is_lost = response.number % 3 == 0 and not response.is_full and self.captures.is_initialized
        return [] if is_lost else handle(self, message, response)

    def count(self: CaptureManager, sender: CaptureId, number: int, *, is_start: bool = False) -> None:
        known = self.captures[sender]
        known.is_whole = self.is_initialized and number > 0 and (is_start or known.is_whole)

    stack.enter_context(mock.patch.object(Coordinator, "_handle_response", lossy))
    stack.enter_context(mock.patch.object(CaptureManager, "count", count))


def move_who_has_left_along(stack: ExitStack) -> None:
    """A span that its capture reports by itself still counts as together with the others."""
    stack.enter_context(mock.patch.object(SpanIndex, "leave_together", return_value=None))


def follow_a_log_that_has_events(stack: ExitStack) -> None:
    """The owner does not look where the log has its last event."""
    follow = SpanIndex.follow_log

    def planted(self: SpanIndex, head: LogHead) -> list[tuple[CaptureId, list[SpanStatus]]]:
        seqs = dict.fromkeys(("complete_seq", "written_seq"), head.last_seq)
        return follow(self, head.with_(written_ts=Ts(0), **seqs))

    stack.enter_context(mock.patch.object(SpanIndex, "follow_log", planted))


PLANTED: dict[str, Callable[[ExitStack], None]] = {
    plant.__name__.replace("_", " "): plant
    for plant in (
        launch_over_an_owner,
        own_what_is_being_removed,
        go_back_over_a_move,
        lose_an_assignment,
        write_without_the_assignment,
        own_over_a_crash,
        write_when_deposed,
        miss_that_a_report_is_missing,
        move_who_has_left_along,
        follow_a_log_that_has_events,
    )
}
