"""Owner watch: when a capture gives up on a silent owner."""

from capture.member.owner_watch import OwnerLiveness
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedInfo, FeedState, SealedUri
from reactor.state import ChangefeedState, Owner

ME, OTHER = CaptureId("me"), CaptureId("other")
OWNER = Owner(OTHER, 7)


def feed(state: FeedState = FeedState.NORMAL, **more: object) -> ChangefeedState:
    uri = SealedUri(masked="x://", sealed="")
    info = ChangefeedInfo(id=ChangefeedId("f"), source=uri, sink=uri, start_ts=Ts(1), created_at=0.0)
    result = ChangefeedState(ChangefeedId("f"), info=info.with_(state=state))
    for name, value in more.items():
        setattr(result, name, value)
    return result


def liveness() -> OwnerLiveness:
    """One that has just seen the owner."""
    one = OwnerLiveness(ME, session_ttl_s=10)
    assert not one.is_deaf(OWNER, [feed()], 100.0)
    return one


def test_silence_beyond_a_lease_is_deafness() -> None:
    one = liveness()
    assert not one.is_deaf(OWNER, [feed()], 112.0)
    assert one.is_deaf(OWNER, [feed()], 112.1)


def test_every_word_of_the_owner_counts() -> None:
    one = liveness()
    one.note(OTHER, 7, 111.0)
    assert not one.is_deaf(OWNER, [feed()], 123.0)
    assert one.is_deaf(OWNER, [feed()], 123.1)


def test_what_an_earlier_owner_says_does_not_count() -> None:
    one = liveness()
    one.note(OTHER, 6, 111.0)
    assert one.is_deaf(OWNER, [feed()], 112.1)


def test_what_others_say_in_the_owners_name_does_not_count() -> None:
    one = liveness()
    one.note(CaptureId("third"), 7, 111.0)
    assert one.is_deaf(OWNER, [feed()], 112.1)


def test_every_owner_gets_the_whole_time() -> None:
    one = liveness()
    assert not one.is_deaf(None, [feed()], 111.0)
    assert not one.is_deaf(Owner(OTHER, 9), [feed()], 112.5)
    assert not one.is_deaf(Owner(OTHER, 9), [feed()], 124.4)
    assert one.is_deaf(Owner(OTHER, 9), [feed()], 124.6)


def test_nothing_is_heard_of_what_does_not_run() -> None:
    """Nor of what the owner holds still because it cannot read it."""
    one = liveness()
    for number, quiet in enumerate(([], [feed(FeedState.STOPPED)], [feed(broken={"key": "no JSON"})])):
        assert not one.is_deaf(OWNER, quiet, 200.0 + 20 * number)
    assert not one.is_deaf(OWNER, [feed()], 252.0), "a changefeed that has just been resumed"
    assert one.is_deaf(OWNER, [feed()], 252.1)


def test_an_owner_hears_itself() -> None:
    one = liveness()
    assert not one.is_deaf(Owner(ME, 7), [feed()], 500.0)
