"""Owner watch: a capture gives up on an owner that it does not hear."""

from capture.member.ownership.owner_watch import OwnerLiveness
from reactor import keys
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.records.capture import Assignment
from reactor.records.changefeed import ChangefeedInfo, FeedState, SealedUri
from reactor.records.formats import ClusterFormat, Feature
from reactor.state import ClusterState
from reactor.store.port import Event

ME, OTHER, THIRD = CaptureId("me"), CaptureId("other"), CaptureId("third")
F, G = ChangefeedId("f"), ChangefeedId("g")


class Cluster:
    """Two changefeeds that run; both are owned by the other capture, assigned at revisions 7 and 8."""

    def __init__(self) -> None:
        self.state = ClusterState("c")
        self._revision = 100
        self.put(keys.FormatKey("c"), ClusterFormat(number=Feature.OWNERS).encode())
        for number, feed in enumerate((F, G)):
            self.set_state(feed, FeedState.NORMAL)
            self.assign(feed, OTHER, 7 + number)
        self.one = OwnerLiveness(ME, registered=150, session_ttl_s=10)
        assert self.unheard(100.0) == []

    def put(self, key: keys.Key, value: bytes | None, *, created: int = 1) -> None:
        self._revision += 1
        self.state.apply([Event(str(key), value, self._revision, created)])

    def assign(self, feed: ChangefeedId, capture: CaptureId, revision: int) -> None:
        key = keys.AssignmentKey("c", keys.DEFAULT_NAMESPACE, feed)
        self.put(key, Assignment(capture=capture).encode(), created=revision)

    def set_state(self, feed: ChangefeedId, state: FeedState) -> None:
        uri = SealedUri(masked="x://", sealed="")
        info = ChangefeedInfo(id=feed, source=uri, sink=uri, start_ts=Ts(1), created_at=0.0, state=state)
        self.put(keys.InfoKey("c", keys.DEFAULT_NAMESPACE, feed), info.encode())

    def note(self, sender: CaptureId, feed: ChangefeedId, revision: int, now: float) -> None:
        self.one.note(self.state, sender, feed, revision, now)

    def unheard(self, now: float) -> list[ChangefeedId]:
        return sorted(self.one.unheard(self.state, now))


def test_silence_beyond_a_lease_is_deafness() -> None:
    cluster = Cluster()
    assert cluster.unheard(112.0) == []
    assert cluster.unheard(112.1) == [F, G]


def test_every_word_of_a_capture_counts_for_all_that_it_owns() -> None:
    """A changefeed whose part of the owner has crashed is silent for a while."""
    cluster = Cluster()
    cluster.note(OTHER, F, 7, 111.0)
    assert cluster.unheard(123.0) == []
    assert cluster.unheard(123.1) == [F, G]


def test_what_an_earlier_owner_says_does_not_count() -> None:
    cluster = Cluster()
    cluster.note(OTHER, F, 6, 111.0)
    assert cluster.unheard(112.1) == [F, G]


def test_what_others_say_in_the_owners_name_does_not_count() -> None:
    cluster = Cluster()
    cluster.note(THIRD, F, 7, 111.0)
    assert cluster.unheard(112.1) == [F, G]


def test_every_owner_gets_the_whole_time() -> None:
    cluster = Cluster()
    cluster.assign(F, THIRD, 9)
    assert cluster.unheard(112.5) == [G], "the other capture owns one still"
    assert cluster.unheard(124.4) == [G]
    assert cluster.unheard(124.6) == [F, G]


def test_nothing_is_heard_of_what_does_not_run() -> None:
    """Nor of what the owner holds still because it cannot read it."""
    cluster = Cluster()
    cluster.set_state(F, FeedState.STOPPED)
    cluster.put(keys.StatusKey("c", keys.DEFAULT_NAMESPACE, G), b"no JSON")
    assert cluster.unheard(200.0) == []
    cluster.set_state(F, FeedState.NORMAL)
    assert cluster.unheard(252.0) == [], "a changefeed that has just been resumed"
    assert cluster.unheard(264.1) == [F]


def test_an_owner_hears_itself() -> None:
    cluster = Cluster()
    cluster.assign(F, ME, 9)
    cluster.assign(G, ME, 10)
    assert cluster.unheard(500.0) == []


def test_a_cluster_of_older_captures_has_one_owner() -> None:
    cluster = Cluster()
    cluster.put(keys.FormatKey("c"), ClusterFormat(number=Feature.PACKED).encode())
    cluster.put(keys.OwnerKey("c", "1"), OTHER.encode(), created=20)
    assert cluster.unheard(100.0) == []
    cluster.note(OTHER, F, 7, 111.0)
    assert cluster.unheard(112.1) == [F, G]


def test_an_owner_that_begins_after_the_capture_has_joined_may_wait_for_its_first_answer() -> None:
    cluster = Cluster()
    assert cluster.one.awaiting(cluster.state) == set()
    cluster.assign(G, OTHER, 151)
    assert cluster.one.awaiting(cluster.state) == {G}, "another owner"
    cluster._revision = 151
    cluster.set_state(F, FeedState.WARNING)
    assert cluster.one.awaiting(cluster.state) == {F, G}, "another run of the same one"


def test_another_capture_that_is_elected_may_wait_for_the_first_answer() -> None:
    """Before changefeeds had owners of their own; its candidacy may be older than the membership."""
    cluster = Cluster()
    cluster.put(keys.FormatKey("c"), ClusterFormat(number=Feature.DIVIDED).encode())
    cluster.put(keys.OwnerKey("c", "1"), OTHER.encode(), created=20)
    cluster.put(keys.OwnerKey("c", "2"), THIRD.encode(), created=30)
    assert cluster.one.awaiting(cluster.state) == set()
    cluster.put(keys.OwnerKey("c", "1"), None)
    assert cluster.one.awaiting(cluster.state) == {F, G}
