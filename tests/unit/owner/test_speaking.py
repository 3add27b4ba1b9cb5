"""Captures hear their owner, however rarely its changefeeds have something to say."""

from owner.settings import OwnerSettings, SchedulerSettings
from owner.speaking import SPEAK_S, Speaking
from reactor.effects import WakeAt
from reactor.ids import ChangefeedId
from tests.unit.owner.owner_build import A, B, C, info
from tests.unit.owner.small_cluster import SmallCluster

ONE, TWO = ChangefeedId("one"), ChangefeedId("two")


def test_who_has_heard_nothing_for_a_while_is_spoken_to_once_and_again_later() -> None:
    speaking = Speaking()
    assert not speaking.silent([A, B], 10.0)
    assert speaking.wakes() == [WakeAt(10.0 + SPEAK_S)]
    assert speaking.silent([A, B], 10.0 + SPEAK_S) == [A, B]
    assert not speaking.silent([A, B], 10.1 + SPEAK_S)
    assert speaking.silent([A, B, C], 10.0 + 2 * SPEAK_S) == [A, B]


def test_each_changefeed_has_its_turn() -> None:
    speaking = Speaking()
    turns = [speaking.speaker([ONE, TWO], float(now)) for now in range(4)]
    assert turns == [ONE, TWO, ONE, TWO]
    assert speaking.speaker([], 5.0) is None


def test_every_capture_hears_an_owner_whose_changefeeds_are_many_and_quiet() -> None:
    rare = SchedulerSettings(quiet_beats_per_s=1, whole_heartbeat_s=1_000.0)
    cluster = SmallCluster(A, B, C, settings=OwnerSettings(standstill_s=1e9, scheduler=rare))
    for number in range(20):
        cluster.create(info().with_(id=ChangefeedId(f"feed-{number}")))
    cluster.step(200)
    heard = dict.fromkeys((B, C), cluster.now)
    for _ in range(100):
        cluster.now += 0.25
        cluster.state.begin_tick(cluster.now)
        cluster._tick_owner()
        heard |= {message.receiver: cluster.now for message in cluster.sent}
        cluster._tick_captures()
        assert all(cluster.now - heard[capture] <= SPEAK_S for capture in (B, C))
