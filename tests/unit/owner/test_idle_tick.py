"""The cost of a tick in which nothing happens, in calls, which are the same on every machine."""

import sys
from types import FrameType

from reactor import keys
from reactor.ids import ChangefeedId
from reactor.records.partitioning import TablePartitioning
from tests.unit.owner.owner_build import A, B, C, info
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, SmallCluster

#: 143 when this was written, 238 before
_CALLS_MAX = 155


def _quiet(feeds: int) -> SmallCluster:
    cluster = SmallCluster(A, B, C)
    for number in range(feeds):
        cluster.create(info().with_(id=ChangefeedId(f"feed-{number}")))
    cluster.step(8)
    for _ in range(2):
        for feed in cluster.state.changefeeds:
            cluster.finish_unit(feed=feed)
        cluster.step(4)
    for feed in cluster.state.changefeeds:
        cluster.advance_log(200, feed=feed)
    cluster.step(40)
    assert {cluster.checkpoint_ts(feed) for feed in cluster.state.changefeeds} == {200}
    return cluster


def _calls_of_a_tick(cluster: SmallCluster) -> int:
    count = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    cluster.state.begin_tick(cluster.now)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        cluster.owner.tick(cluster.state, [], cluster.now)
    finally:
        sys.setprofile(before)
    return count


def test_an_idle_changefeed_costs_few_calls() -> None:
    one, six = _calls_of_a_tick(_quiet(1)), _calls_of_a_tick(_quiet(6))
    assert (six - one) / 5 <= _CALLS_MAX


def test_what_is_remembered_of_a_changefeed_follows_its_keys() -> None:
    """A repartition that another owner has wished for is seen in the next tick, though nothing else has changed."""
    cluster = _quiet(1)
    (feed,) = cluster.state.changefeeds
    before = _calls_of_a_tick(cluster)
    cluster.put(keys.PartitioningKey(CLUSTER, NAMESPACE, feed, 1), TablePartitioning(table_id=1, spans=1, wanted=4))
    assert _calls_of_a_tick(cluster) > before
    run = cluster.owner.changefeeds[feed].run
    assert run is not None
    assert run.repartitions.holds == {1: 200}
