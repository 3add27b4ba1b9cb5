"""Assigned changefeeds of a capture: looked up when an assignment has changed, and right whatever else happens."""

from hypothesis import given
from hypothesis import strategies as st

from owner.metadata.observations import CaptureObservation
from reactor import keys
from reactor.ids import CaptureId, ChangefeedId
from reactor.records import formats
from reactor.records.capture import Assignment, OwnerState
from reactor.records.changefeed import ChangefeedStatus
from reactor.records.formats import ClusterFormat, Feature
from reactor.state import ClusterState

_CAPTURES = tuple(CaptureId(name) for name in "ab")
_FEEDS = tuple(ChangefeedId(f"feed-{number}") for number in range(4))

_step = st.one_of(
    st.tuples(st.just("assign"), st.sampled_from(_FEEDS), st.sampled_from(_CAPTURES), st.sampled_from(OwnerState)),
    st.tuples(st.sampled_from(["unassign", "write", "remove"]), st.sampled_from(_FEEDS)),
    st.tuples(st.just("format"), st.sampled_from([Feature.OWNERS - 1, formats.NEWEST])),
)


@given(st.lists(_step, max_size=30))
def test_it_is_what_the_records_say_after_every_step(steps: list[tuple[object, ...]]) -> None:
    state = ClusterState("c")
    observations = [CaptureObservation(capture) for capture in _CAPTURES]
    state.update(str(keys.FormatKey("c")), ClusterFormat(number=formats.NEWEST).encode(), mod_revision=1)
    for revision, (kind, *given_) in enumerate(steps, start=2):
        _take(state, str(kind), given_, revision)
        for observation in observations:
            mine = {
                id: feed
                for id, feed in state.changefeeds.items()
                if state.has_owners and feed.assignment is not None and feed.assignment.capture == observation.capture
            }
            assert observation.owned(state) == {
                id: feed.owner_revision for id, feed in mine.items() if feed.is_launched
            }
            assert [feed.id for feed in observation.ending(state)] == [
                id for id, feed in mine.items() if not feed.is_launched
            ]
            assert all(feed is state.changefeeds[feed.id] for feed in observation.ending(state))


def _take(state: ClusterState, kind: str, given_: list[object], revision: int) -> None:
    revisions = {"mod_revision": revision, "create_revision": revision}
    if kind == "format":
        state.update(str(keys.FormatKey("c")), ClusterFormat(number=int(str(given_[0]))).encode(), **revisions)
        return
    feed = ChangefeedId(str(given_[0]))
    assignment = str(keys.AssignmentKey("c", keys.DEFAULT_NAMESPACE, feed))
    status = str(keys.StatusKey("c", keys.DEFAULT_NAMESPACE, feed))
    match kind, given_:
        case "assign", [_, capture, OwnerState() as at]:
            value = Assignment(capture=CaptureId(str(capture)), state=at)
            state.update(assignment, value.encode(), **revisions)
        case "unassign", _:
            state.update(assignment, None, **revisions)
        case "write", _:
            state.update(status, ChangefeedStatus(checkpoint_ts=revision).encode(), **revisions)
        case "remove", _:
            state.update(status, None, **revisions)
