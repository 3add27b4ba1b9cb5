"""A bug in the owner's part of one changefeed: it begins again from etcd, alone, within a budget."""

from collections.abc import Callable
from typing import Any

import pytest

from owner import jobs
from owner.feed.changefeed import Changefeed
from owner.questions import ApplySchema, ReleaseSource
from owner.settings import BackoffSettings, OwnerSettings
from reactor import keys
from reactor.effects import Log
from reactor.ids import ChangefeedId
from reactor.questions import UNDER_WAY, Answered
from reactor.records.changefeed import FeedState, RunningError
from reactor.records.task_position import TaskPosition
from tests.unit.owner.owner_build import FEED, S1, S2, A, B, info
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, SmallCluster, released
from tests.unit.owner.tables.test_schema_changes import alter, applied, asked, is_done, record

OTHER = ChangefeedId("other")
STEADY = OwnerSettings(backoff=BackoffSettings(jitter=0.0), standstill_s=1e9)


def two_running() -> SmallCluster:
    cluster = SmallCluster(A, B, settings=STEADY)
    cluster.create()
    cluster.create(info().with_(id=OTHER))
    for _ in range(2):
        cluster.step(4)
        for feed in (FEED, OTHER):
            cluster.finish_unit(feed=feed)
    cluster.step(4)
    for feed in (FEED, OTHER):
        cluster.advance_log(200, feed=feed)
    cluster.step(8)
    assert cluster.checkpoint_ts(FEED) == cluster.checkpoint_ts(OTHER) == 200
    return cluster


class Bug:
    """Raised by a method of one changefeed's part, before or after it has done its work, as often as it is asked to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str = "tick", *, when: str = "before") -> None:
        self.times = 0
        original: Callable[..., Any] = getattr(Changefeed, name)

        def crash(changefeed: Changefeed, *args: Any, **kwargs: Any) -> Any:
            is_due = changefeed.id == FEED and self.times > 0
            done = None if is_due and when == "before" else original(changefeed, *args, **kwargs)
            if is_due:
                self.times -= 1
                raise ZeroDivisionError("a bug")
            return done

        monkeypatch.setattr(Changefeed, name, crash)


@pytest.mark.parametrize("when", ["before", "after"])
def test_it_begins_again_under_a_new_epoch_and_no_other_notices(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    cluster, bug = two_running(), Bug(monkeypatch, when=when)
    part, other = cluster.owner.changefeeds[FEED], cluster.owner.changefeeds[OTHER]
    bug.times = 1
    cluster.step()
    assert cluster.owner.changefeeds[FEED] is not part, "what it knew is forgotten"
    assert cluster.owner.changefeeds[OTHER] is other
    for _ in range(12):
        cluster.step()
        assert all(len(writers) <= 2 for writers in cluster.writers().values()), "one of each changefeed"
    cluster.advance_log(300)
    cluster.advance_log(300, feed=OTHER)
    cluster.step(6)
    assert cluster.checkpoint_ts(FEED) == cluster.checkpoint_ts(OTHER) == 300
    assert (cluster.info().state, cluster.info().error) == (FeedState.NORMAL, None)
    assert (cluster.info().epoch, cluster.info(OTHER).epoch) == (2, 1)
    view = cluster.view()
    assert view.crashes == 1
    assert view.last_crash is not None
    assert view.last_crash.code == "OwnerCrashed"
    assert view.last_crash.message.startswith("the owner's part of changefeed feed crashed (ZeroDivisionError)")
    assert (cluster.view(OTHER).crashes, cluster.view(OTHER).last_crash) == (0, None)
    (log,) = [log for log in cluster.logs if isinstance(log, Log) and log.level == "error"]
    assert dict(log.fields)["error"] == "ZeroDivisionError: a bug"
    cluster.elect(B)
    cluster.step(4)
    assert cluster.view().crashes == 1, "the next owner shows it too"


def test_workers_orders_never_carry_an_epoch_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """An order may be on its way when the part that gave it crashes."""
    cluster, bug = two_running(), Bug(monkeypatch)
    workers = cluster.owner.changefeeds[FEED].run
    assert workers is not None
    before = workers.workers.epoch_floor
    bug.times = 1
    cluster.step(10)
    again = cluster.owner.changefeeds[FEED].run
    assert again is not None
    assert min(worker.epoch for worker in again.workers.workers.values()) > before


def test_an_answer_that_cannot_be_taken_is_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, bug = two_running(), Bug(monkeypatch, "handle_answer")
    bug.times = 1
    cluster.ask(Answered(FEED, ReleaseSource()))
    cluster.step(12)
    assert cluster.view().crashes == 1
    assert cluster.info(OTHER).epoch == 1
    cluster.advance_log(300)
    cluster.step(4)
    assert cluster.checkpoint_ts() == 300


def test_too_many_crashes_fail_it_and_no_other_until_somebody_has_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, bug = two_running(), Bug(monkeypatch)
    bug.times = 1_000
    for _ in range(200):
        cluster.step()
        if cluster.info().state is FeedState.FAILED:
            break
    failed = cluster.info()
    assert failed.error is not None
    assert (failed.state, failed.error.code) == (FeedState.FAILED, "CrashedTooOften")
    assert failed.error.message.endswith(
        "crashed too often (ZeroDivisionError); see the log, then resume the changefeed"
    )
    assert cluster.view().crashes >= 6
    cluster.advance_log(300, feed=OTHER)
    cluster.step(40)
    assert (cluster.checkpoint_ts(OTHER), cluster.info(OTHER).epoch) == (300, 1)
    bug.times = 0
    cluster.step(60)
    cluster.ask(jobs.Resume("1", FEED))
    assert cluster.answers["1"].error == ""
    cluster.step(12)
    cluster.advance_log(300)
    cluster.step(4)
    assert cluster.checkpoint_ts() == 300
    bug.times = 5
    cluster.step(200)
    assert cluster.info().state is FeedState.NORMAL, "all of the budget was there again"


def test_one_that_does_not_run_begins_again_without_a_new_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, bug = two_running(), Bug(monkeypatch)
    cluster.ask(jobs.Pause("1", FEED))
    cluster.step(2)
    before = cluster.info()
    bug.times = 3
    cluster.step(12)
    assert cluster.info() == before
    assert cluster.view().crashes == 3


def test_who_waits_for_a_removal_is_answered_by_the_part_that_comes_after(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, bug = two_running(), Bug(monkeypatch)
    cluster.ask(jobs.Remove("1", FEED))
    bug.times = 1
    cluster.step(4)
    assert "1" not in cluster.answers
    cluster.ask(released())
    cluster.step(2)
    assert cluster.answers["1"].error == ""
    assert FEED not in cluster.state.changefeeds


def test_an_answer_to_the_part_before_is_taken_once_and_what_is_under_way_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sink may take hours for what it was asked by the part that crashed."""
    cluster, bug = two_running(), Bug(monkeypatch)
    cluster.change_schema(record(300, alter()))
    cluster.step(6)
    assert asked(cluster) == [300]
    bug.times = 1
    cluster.step(16)
    assert asked(cluster) == [300, 300], "asked again: whether it is done, the sink knows"
    busy = RunningError(code=UNDER_WAY, message="it has not answered the last time yet")
    for _ in range(5):
        cluster.ask(Answered(FEED, cluster.schemas[-1], error=busy))
        cluster.step(2, after_s=31.0)
    assert cluster.state.changefeeds[FEED].held == {}, "nobody is to blame"
    assert isinstance(cluster.schemas[-1], ApplySchema)
    for _ in range(2):
        cluster.ask(applied(300))
    cluster.step(4)
    assert is_done(cluster, 300)
    assert cluster.checkpoint_ts() == 400
    assert set(cluster.writers()) == {S1, S2}


def test_crashes_of_captures_that_are_gone_are_not_shown() -> None:
    cluster = two_running()
    position = cluster.state.changefeeds[FEED].positions.get(B)
    assert position is None
    error = RunningError(code="ProcessorCrashed", message="span", time=5.0)
    cluster.put(keys.PositionKey(CLUSTER, NAMESPACE, B, FEED), TaskPosition().crashed(3, error))
    cluster.step(2)
    assert (cluster.view().crashes, cluster.view().last_crash) == (3, error)
    cluster.leave(B)
    cluster.step(2)
    assert cluster.view().crashes == 0
