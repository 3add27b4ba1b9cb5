"""Changes of changefeeds in their order, and what of them is more than progress."""

from hypothesis import given
from hypothesis import strategies as st

from reactor import keys
from reactor.changes import Changes
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedStatus
from reactor.records.log_head import LogHead
from reactor.state import ClusterState
from reactor.store.port import Event

FEED = ChangefeedId("feed")
_HEAD, _STATUS = keys.LogKey("c", keys.DEFAULT_NAMESPACE, FEED, "main"), keys.StatusKey("c", "default", FEED)


@given(noted=st.lists(st.sampled_from("abcde"), max_size=30), seen=st.integers(0, 30))
def test_those_that_have_changed_since_are_found(noted: list[str], seen: int) -> None:
    changes = Changes()
    assert [changes.note(ChangefeedId(id)) for id in noted] == list(range(1, len(noted) + 1))
    assert sorted(changes.since(seen)) == sorted(set(noted[seen:]))
    assert changes.latest == len(noted)


def test_progress_of_the_log_is_no_news_but_a_log_that_cannot_be_read_is() -> None:
    state = ClusterState("c")

    def put(key: keys.Key, value: bytes | None) -> bool:
        before = state.changes.news
        revision = state.revision + 1
        state.apply([Event(str(key), value, revision, revision)])
        assert state.changes.since(state.changes.latest - 1) == [FEED]
        return state.changes.news > before

    assert put(_STATUS, ChangefeedStatus(checkpoint_ts=Ts(1)).encode())
    assert not put(_HEAD, LogHead(resolved_ts=Ts(5)).encode())
    assert put(_HEAD, b"?")
    assert state.changefeeds[FEED].news == state.changes.news
    assert put(_HEAD, LogHead(resolved_ts=Ts(6)).encode())
    assert not put(_HEAD, LogHead(resolved_ts=Ts(7)).encode())
    assert not put(_HEAD, None)
    assert put(_STATUS, None), "it has gone"
    assert not state.changefeeds
