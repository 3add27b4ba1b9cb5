"""Plain reads of changefeeds."""

import pytest

from capture.errors import ChangefeedNotFoundError
from capture.member.querier import Querier
from reactor import keys
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.membership.progress import CaptureProgress, entry_of
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, FeedState, SealedUri
from reactor.records.log_head import LogHead
from reactor.state import ClusterState

_NS = keys.DEFAULT_NAMESPACE
A, B = ChangefeedId("a"), ChangefeedId("b")


def put(state: ClusterState, key: keys.Key, value: bytes | None) -> None:
    state.update(str(key), value, mod_revision=state.revision + 1, create_revision=1)


@pytest.fixture
def state() -> ClusterState:
    state, uri = ClusterState("c"), SealedUri(masked="x://", sealed="")
    for id in (B, A):
        info = ChangefeedInfo(id=id, source=uri, sink=uri, start_ts=Ts(3), incarnation=f"i-{id}")
        put(state, keys.InfoKey("c", _NS, id), info.encode())
    put(state, keys.StatusKey("c", _NS, A), ChangefeedStatus(checkpoint_ts=Ts(5)).encode())
    return state


def test_without_ids_all_are_read_and_a_missing_one_is_an_error(state: ClusterState) -> None:
    querier = Querier(state)
    assert [info.id for info in querier.changefeeds()] == [A, B]
    assert [info.id for info in querier.changefeeds(B)] == [B]
    assert querier.states(A) == {A: (FeedState.NORMAL, None, None)}
    for read in (querier.changefeeds, querier.states, querier.progress):
        with pytest.raises(ChangefeedNotFoundError, match="no changefeed 'none'"):
            read(A, "none")


def test_progress_is_the_newest_that_is_stored(state: ClusterState) -> None:
    querier = Querier(state)
    assert {id: status.checkpoint_ts for id, status in querier.progress().items()} == {A: 5, B: 3}
    (info,) = querier.changefeeds(A)
    newer = entry_of(info, ChangefeedStatus(checkpoint_ts=Ts(9)))
    record = CaptureProgress(changefeeds={A: newer})
    put(state, keys.ProgressKey("c", _NS, CaptureId("x")), record.encode())
    assert querier.progress(A)[A].checkpoint_ts == 9
    put(state, keys.ProgressKey("c", _NS, CaptureId("x")), None)
    assert querier.progress(A)[A].checkpoint_ts == 5


def test_what_has_not_begun_has_neither_unit_nor_log(state: ClusterState) -> None:
    querier = Querier(state)
    assert (querier.unit(A), querier.head(A), dict(querier.partitionings(A))) == (None, LogHead(), {})
