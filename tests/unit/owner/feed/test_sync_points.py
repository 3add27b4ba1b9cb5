"""Sync points: all spans at one Ts, the sink's versions there; slips, silence, new owners, and how many are kept."""

from dataclasses import replace
from typing import Any

import pytest

from owner import jobs
from owner.questions import ReadPositions, TableRead
from reactor import keys
from reactor.effects import Log
from reactor.ids import TableSpan, Ts
from reactor.questions import Answered
from reactor.records.changefeed import ChangefeedConfig, FeedState
from reactor.records.sync_point import SyncPoint
from tests.unit.owner.owner_build import FEED, S1, S2, B
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, SmallCluster, failure, released
from tests.unit.owner.test_owner import running

EVERY_S = 60


def pointed(*captures: str) -> SmallCluster:
    """A changefeed at 200 that wants a sync point every minute."""
    cluster = running(*captures)
    cluster.put(
        keys.InfoKey(CLUSTER, NAMESPACE, FEED),
        cluster.info().with_(config=ChangefeedConfig(sync_point_interval_seconds=EVERY_S)),
    )
    cluster.step()
    return cluster


def spans(cluster: SmallCluster) -> set[int]:
    return {span.checkpoint_ts for table in cluster.view().tables for span in table.spans}


def points(cluster: SmallCluster) -> list[SyncPoint]:
    stored = cluster.state.changefeeds[FEED].sync_points
    return [stored[ts] for ts in sorted(stored)]


def read(ts: int, *recorded: int) -> Answered[tuple[TableRead, ...]]:
    found = (TableRead(f"public.t{n}", str(40 + n), Ts(at)) for n, at in enumerate(recorded, start=1))
    return Answered(FEED, ReadPositions((), (), Ts(ts)), tuple(found))


def test_all_spans_stand_at_one_ts_which_is_recorded_with_the_sinks_versions() -> None:
    cluster = pointed("a", "b")
    cluster.advance_log(300)
    cluster.step(2, after_s=float(EVERY_S))
    for resolved in range(310, 400, 10):
        cluster.advance_log(resolved)
        cluster.step()
    assert spans(cluster) == {300}
    assert cluster.view().blocked_by == "barrier sync point at 300"
    assert [(ask.ts, ask.spans, [t.name for t in ask.tables]) for ask in cluster.reads] == [
        (300, (S1, S2), ["t1", "t2"])
    ]
    cluster.ask(replace(read(300, 300, 200), question=cluster.reads[0]))
    versions, table_ids = {"public.t1": "41", "public.t2": "42"}, {"public.t1": 1, "public.t2": 2}
    assert points(cluster) == [SyncPoint(ts=Ts(300), time=cluster.now, versions=versions, table_ids=table_ids)]
    assert cluster.view().sync_point == points(cluster)[0]
    cluster.step(4)
    assert spans(cluster) == {390}
    cluster.step(40)
    assert len(cluster.reads) == 1, "not before another minute"
    cluster.step(5, after_s=15.0)
    assert [ask.ts for ask in cluster.reads] == [300, 390]


@pytest.mark.parametrize("is_resumed", [False, True])
def test_points_behind_a_rewind_are_removed(is_resumed: bool) -> None:
    """Who restores a backup rewinds: a Delta table gives the versions of these points to other rows then."""
    cluster = pointed("a")
    cluster.advance_log(300)
    cluster.step(4)
    for ts in (150, 160, 300):
        cluster.put(keys.SyncPointKey(CLUSTER, NAMESPACE, FEED, Ts(ts)), SyncPoint(ts=Ts(ts), time=1.0))
    cluster.ask(jobs.Pause("1", FEED))
    cluster.ask(jobs.Resume("2", FEED, Ts(160)) if is_resumed else jobs.Rewind("2", FEED, Ts(160)))
    assert cluster.answers["2"].error == ""
    assert [point.ts for point in points(cluster)] == [150, 160]


def test_a_table_that_slipped_past_moves_the_hold_on() -> None:
    cluster = pointed("a", "b")
    cluster.step(2, after_s=float(EVERY_S))
    cluster.advance_log(300)
    cluster.step(4)
    assert [ask.ts for ask in cluster.reads] == [200]
    cluster.ask(read(200, 250, 200))
    assert points(cluster) == [], "what the sink shows is more than what stood at 200"
    cluster.step(6)
    assert spans(cluster) == {250}
    assert [ask.ts for ask in cluster.reads] == [200, 250]
    cluster.ask(read(200, 200, 200))
    assert points(cluster) == [], "the answer to an earlier question"
    cluster.ask(read(250, 250, 200))
    assert [point.ts for point in points(cluster)] == [250]


def test_a_span_that_is_further_than_the_others_is_waited_for_by_them() -> None:
    cluster = pointed("a", "b")
    cluster.processors[B, FEED].writing.clear()
    cluster.advance_log(300)
    cluster.step(4)
    assert spans(cluster) == {200, 300}
    cluster.step(2, after_s=float(EVERY_S))
    assert cluster.reads == []
    cluster.processors[B, FEED].writing.add(TableSpan(2))
    cluster.advance_log(900)
    cluster.step(4)
    assert spans(cluster) == {300}
    assert [ask.ts for ask in cluster.reads] == [300]


@pytest.mark.parametrize(
    "answer", [None, Answered(FEED, ReadPositions((), (), Ts(200)), error=failure("bucket is gone"))]
)
def test_a_sink_that_cannot_be_read_holds_nobody_for_long(answer: Answered[Any] | None) -> None:
    cluster = pointed("a")
    cluster.step(2, after_s=float(EVERY_S))
    cluster.advance_log(300)
    cluster.step(2)
    assert spans(cluster) == {200}
    if answer:
        cluster.ask(answer)
    else:
        cluster.step(after_s=30.0)
    cluster.step(4)
    assert spans(cluster) == {300}
    assert points(cluster) == []
    assert cluster.info().state is FeedState.NORMAL
    (log,) = [log for log in cluster.logs if isinstance(log, Log) and log.level == "warning"]
    assert log.event == "no sync point this time"
    cluster.step(6, after_s=12.0)
    assert [ask.ts for ask in cluster.reads] == [200, 300], "the next one is tried"


def test_a_new_owner_counts_on_from_the_last_point() -> None:
    cluster = pointed("a", "b")
    cluster.step(2, after_s=float(EVERY_S))
    cluster.ask(read(200, 200, 200))
    cluster.step(4, after_s=10.0)
    cluster.elect(B)
    cluster.step(4)
    assert len(cluster.reads) == 1
    cluster.step(5, after_s=6.0)
    assert len(cluster.reads) == 2


def test_only_the_newest_are_kept_and_none_survives_the_changefeed() -> None:
    cluster = pointed("a")
    for ts in range(100, 130):
        key = keys.SyncPointKey(CLUSTER, NAMESPACE, FEED, ts)
        cluster.put(key, SyncPoint(ts=Ts(ts), time=cluster.now, versions={}))
    cluster.step(2, after_s=float(EVERY_S))
    cluster.ask(read(200, 200, 200))
    assert [point.ts for point in points(cluster)] == [*range(107, 130), 200]
    cluster.ask(jobs.Remove("1", FEED))
    cluster.ask(released())
    assert not [key for key in cluster.state.raw if "sync-point" in key]


def test_without_an_interval_there_are_none() -> None:
    cluster = running("a")
    cluster.step(10, after_s=3600.0)
    assert cluster.reads == []
