"""Decoded values: several states of one process share the records of what they are shown."""

import pytest

from reactor import keys
from reactor.errors import InvalidRecordError
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.membership.progress import CaptureProgress, OwnedProgress
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, SealedUri
from reactor.records.decoded import decode
from reactor.records.log_head import LogHead
from reactor.state import ClusterState
from reactor.store.port import Event

FEED = ChangefeedId("feed")
HEAD = keys.LogKey("c", keys.DEFAULT_NAMESPACE, FEED, "main")
_URI = SealedUri(masked="postgresql://h/d", sealed="x")


def test_a_value_is_read_once_for_all_states() -> None:
    states = [ClusterState("c"), ClusterState("c")]
    for state in states:
        value = bytes(bytearray(LogHead(resolved_ts=Ts(5)).encode()))  # each watch has bytes of its own
        state.apply([Event(str(HEAD), value, 1, 1)])
    one, other = (state.changefeeds[FEED].heads["main"] for state in states)
    assert one is other
    assert one.resolved_ts == 5


def test_an_error_names_the_key_of_whoever_reads() -> None:
    for key in ("/one", "/other"):
        with pytest.raises(InvalidRecordError, match=key):
            decode(LogHead, key, b'{"first_seq": 9}')


def test_equal_bytes_of_two_kinds_are_two_records() -> None:
    assert isinstance(decode(LogHead, "/head", b"{}"), LogHead)
    assert isinstance(decode(ChangefeedStatus, "/status", b"{}"), ChangefeedStatus)


def test_the_status_follows_the_progress_of_owners_and_processors_are_shown_neither() -> None:
    state, revision = ClusterState("c"), 0

    def put(key: keys.Key, value: bytes | None) -> None:
        nonlocal revision
        revision += 1
        state.apply([Event(str(key), value, revision, revision)])

    def progress(ts: int) -> bytes:
        entry = OwnedProgress(checkpoint_ts=Ts(ts), incarnation="i")
        return CaptureProgress(changefeeds={FEED: entry}).encode()

    key = keys.ProgressKey("c", keys.DEFAULT_NAMESPACE, CaptureId("a"))
    info = ChangefeedInfo(id=FEED, source=_URI, sink=_URI, incarnation="i")
    put(keys.InfoKey("c", keys.DEFAULT_NAMESPACE, FEED), info.encode())
    put(keys.StatusKey("c", keys.DEFAULT_NAMESPACE, FEED), ChangefeedStatus(checkpoint_ts=Ts(3)).encode())
    feed = state.changefeeds[FEED]
    assert feed.status is feed.stored_status
    moves = feed.moves
    for ts in (5, 9):
        put(key, progress(ts))
        assert feed.status is not None
        assert feed.status.checkpoint_ts == ts
        assert feed.status is feed.status, "the same object while nothing has changed"
        assert feed.change == state.changes.latest
    assert feed.moves == moves
    put(key, None)
    assert feed.status is feed.stored_status
    put(HEAD, LogHead(resolved_ts=Ts(7)).encode())
    assert feed.moves == feed.change > moves
