"""The owner over whole lives of changefeeds: start, fail-over, errors, jobs, removal; and what people are shown."""

import pytest

from owner import jobs
from owner.scheduler.replication import Role
from owner.settings import BackoffSettings, OwnerSettings
from reactor import keys
from reactor.effects import Log
from reactor.ids import ChangefeedId, TableSpan, Ts
from reactor.records.changefeed import FeedState, Mode, Unit, UnitStage
from reactor.records.formats import NEWEST
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.task_position import TaskPosition
from reactor.views import ChangefeedView
from tests.unit.owner.owner_build import FEED, S1, S2, A, B, C, error, info
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, SmallCluster, released

STEADY = OwnerSettings(standstill_s=1e9, backoff=BackoffSettings(jitter=0.0))


def running(*captures: str, mode: Mode = Mode.ALL, target_ts: int | None = None) -> SmallCluster:
    """A changefeed whose snapshot is loaded and whose log is at 200."""
    members = (A if name == "a" else B if name == "b" else C for name in captures)
    cluster = SmallCluster(*members, settings=STEADY, known=NEWEST)
    cluster.create(info(mode=mode, target_ts=target_ts))
    for _ in range(2):
        cluster.step(4)
        cluster.finish_unit()
    cluster.step(4)
    cluster.advance_log(200)
    cluster.step(8)
    return cluster


def test_from_creation_to_replication() -> None:
    cluster = SmallCluster(A, B, settings=STEADY)
    cluster.create()
    cluster.step(4)
    assert cluster.workers() == [(A, Unit.DUMP)]
    assert cluster.writers() == {}
    cluster.finish_unit()
    cluster.step(4)
    assert cluster.workers() == [(A, Unit.LOAD)]
    cluster.finish_unit()
    cluster.step(6)
    assert cluster.workers() == [(A, Unit.SYNC)]
    assert cluster.writers() == {S1: [A], S2: [B]}
    assert cluster.checkpoint_ts() == 100, "the snapshot's"
    cluster.advance_log(200)
    cluster.step(4)
    assert cluster.checkpoint_ts() == 200
    status = cluster.state.changefeeds[FEED].status
    assert status is not None
    assert status.checkpoint_time == cluster.state.changefeeds[FEED].heads["main"].resolved_time


def test_lost_capture_is_replaced_within_a_few_ticks() -> None:
    cluster = running("a", "b")
    cluster.leave(B)
    cluster.step(4)
    assert cluster.writers() == {S1: [A], S2: [A]}
    cluster.advance_log(300)
    cluster.step(3)
    assert cluster.checkpoint_ts() == 300


def test_lost_worker_is_replaced_with_a_newer_epoch() -> None:
    cluster = running("a", "b")
    cluster.elect(B)
    cluster.step(4)
    before = cluster.state.changefeeds[FEED].units["main"].epoch
    cluster.leave(A)
    cluster.step(4)
    assert cluster.workers() == [(B, Unit.SYNC)]
    assert cluster.state.changefeeds[FEED].units["main"].epoch > before


def test_new_owner_takes_over_without_touching_anything() -> None:
    cluster = running("a", "b")
    writers, workers = cluster.writers(), cluster.workers()
    epoch = cluster.state.changefeeds[FEED].units["main"].epoch
    cluster.elect(B)
    cluster.advance_log(300)
    cluster.step(6)
    assert (cluster.writers(), cluster.workers()) == (writers, workers)
    assert cluster.state.changefeeds[FEED].units["main"].epoch == epoch
    assert cluster.checkpoint_ts() == 300


def test_mode_full_finishes_after_load() -> None:
    cluster = SmallCluster(A, settings=STEADY)
    cluster.create(info(mode=Mode.FULL))
    for _ in range(2):
        cluster.step(4)
        cluster.finish_unit()
    cluster.step(2)
    assert cluster.info().state is FeedState.FINISHED
    assert cluster.processors == {}
    assert cluster.view().blocked_by == ""


def test_mode_incremental_only_syncs() -> None:
    cluster = SmallCluster(A, settings=STEADY)
    cluster.create(info(mode=Mode.INCREMENTAL))
    cluster.step(6)
    assert cluster.workers() == [(A, Unit.SYNC)]
    assert cluster.writers() == {S1: [A], S2: [A]}


def test_target_holds_and_then_finishes() -> None:
    cluster = running("a", target_ts=150)
    cluster.step(4)
    assert cluster.checkpoint_ts() == 150
    assert cluster.info().state is FeedState.FINISHED


def test_error_of_a_processor_waits_and_runs_again() -> None:
    cluster = running("a", "b")
    epoch = cluster.info().epoch
    cluster.report(B, error("JobFailed"))
    cluster.step()
    stored = cluster.info()
    assert (stored.state, stored.error, stored.epoch) == (FeedState.PENDING, error("JobFailed"), epoch + 1)
    assert cluster.state.changefeeds[FEED].positions[B] == TaskPosition()
    assert cluster.processors == {}
    assert "JobFailed: it broke (tries again in" in cluster.view().blocked_by
    cluster.step(44)
    assert cluster.info().state is FeedState.WARNING
    assert cluster.info().epoch == epoch + 2
    cluster.advance_log(300)
    cluster.step(8)
    assert (cluster.info().state, cluster.checkpoint_ts()) == (FeedState.NORMAL, 300)


def test_error_of_a_worker_takes_the_same_way() -> None:
    from agent.control import effects

    cluster = running("a")
    order = cluster.processors[A, FEED].units["main"]
    cluster.processors[A, FEED].happened(
        effects.UnitFailed("main", order.epoch, error("PositionLost", retryable=False))
    )
    cluster.step(3)
    stored = cluster.info()
    assert stored.state is FeedState.FAILED
    assert stored.error is not None
    assert stored.error.code == "PositionLost"
    assert cluster.view().blocked_by == "PositionLost: it broke"


def test_an_error_that_changes_while_it_is_taken_is_not_lost() -> None:
    from owner.progress import processor_reports

    seen = TaskPosition(error=error("One"))
    taken = processor_reports.take({A: seen}, [A], cluster=CLUSTER, namespace=NAMESPACE, feed=FEED)
    (patch,) = taken.patches
    assert patch.function(seen.encode()) == TaskPosition().encode()
    with pytest.raises(Exception, match="has changed"):
        patch.function(TaskPosition(error=error("Two")).encode())


def test_where_the_source_is_read_on_is_reported_by_the_log_and_before_it_by_the_snapshot() -> None:
    cluster = SmallCluster(A, settings=STEADY)
    cluster.create()
    cluster.step()
    assert cluster.view().log_ts == 0, "all of the source's log may be needed"
    cluster.step(3)
    cluster.finish_unit()
    cluster.step(4)
    assert cluster.view().log_ts == 100
    cluster.advance_log(200)
    cluster.step()
    assert cluster.view().log_ts == 200


def test_positions_of_dead_captures_are_dropped_unread() -> None:
    cluster = running("a")
    cluster.report(C, error())
    cluster.step()
    assert cluster.info().state is FeedState.NORMAL
    assert C not in cluster.state.changefeeds[FEED].positions


def test_pause_and_resume() -> None:
    cluster = running("a")
    cluster.ask(jobs.Pause("1", FEED))
    assert cluster.answers["1"].error == ""
    cluster.step()
    assert cluster.info().state is FeedState.STOPPED
    assert cluster.processors == {}
    assert cluster.view().blocked_by == "paused by an operator"
    cluster.ask(jobs.Pause("2", FEED))
    assert (cluster.answers["2"].error, cluster.answers["2"].value) == (
        "changefeed feed is stopped: pause is not possible; it is not running, resume or remove it",
        "JobRefused",
    )
    cluster.advance_log(400)
    cluster.ask(jobs.Resume("3", FEED))
    assert cluster.answers["3"].error == ""
    cluster.step(8)
    assert cluster.checkpoint_ts() == 400


@pytest.mark.parametrize("fails", [False, True])
def test_the_checkpoint_that_was_shown_is_not_taken_back_when_it_stops(fails: bool) -> None:
    """It is stored at intervals."""
    cluster = running("a")
    cluster.advance_log(400)
    cluster.step(4, after_s=0.001)
    assert (cluster.view().checkpoint_ts, cluster.checkpoint_ts()) == (400, 200)
    if fails:
        cluster.report(A, error("SinkUri"))
        cluster.step(1, after_s=0.001)
    else:
        cluster.ask(jobs.Pause("1", FEED))
    assert cluster.info().state in (FeedState.FAILED, FeedState.STOPPED)
    assert (cluster.view().checkpoint_ts, cluster.checkpoint_ts()) == (400, 400)


def test_resume_from_another_checkpoint() -> None:
    cluster = running("a")
    cluster.ask(jobs.Pause("1", FEED))
    cluster.step()
    cluster.ask(jobs.Resume("2", FEED, Ts(900)))
    assert "would lose changes" in cluster.answers["2"].error
    assert cluster.info().state is FeedState.STOPPED
    cluster.ask(jobs.Resume("3", FEED, Ts(120)))
    assert cluster.checkpoint_ts() == 120
    cluster.step(8)
    assert cluster.checkpoint_ts() == 200


def test_unknown_changefeed() -> None:
    cluster = running("a")
    cluster.ask(jobs.Query("1", ChangefeedId("nope")))
    assert cluster.answers["1"].value == "UnknownChangefeed"
    assert cluster.answers["1"].error == "no changefeed nope; `weir changefeed list` shows which there are"


def test_query_and_list() -> None:
    cluster = running("a")
    cluster.ask(jobs.Query("1", FEED))
    cluster.ask(jobs.List("2"))
    found = cluster.answers["1"].value
    assert isinstance(found, ChangefeedView)
    assert isinstance(cluster.answers["2"].value, tuple)
    assert [view.id for view in cluster.answers["2"].value] == [FEED]
    assert (found.state, found.checkpoint_ts, found.resolved_ts) == (FeedState.NORMAL, 200, 200)
    assert [(table.table, table.checkpoint_ts, [span.capture for span in table.spans]) for table in found.tables] == [
        ("public.t1", 200, [A]),
        ("public.t2", 200, [A]),
    ]
    assert (found.unit, found.worker) == (Unit.SYNC, A)
    assert found.lag_seconds is not None


def test_remove_stops_cleans_up_deletes_and_then_answers() -> None:
    cluster = running("a", "b")
    cluster.ask(jobs.Remove("1", FEED))
    assert "1" not in cluster.answers
    cluster.step()
    assert cluster.info().state is FeedState.REMOVED
    assert cluster.processors == {}
    assert [drop.changefeed for drop in cluster.dropped] == [FEED]
    cluster.ask(released("slot is in use"))
    cluster.step(12)
    assert len(cluster.dropped) == 2, "asked again"
    assert cluster.view().blocked_by == "slot is in use"
    cluster.ask(released())
    assert cluster.answers["1"].error == ""
    assert FEED not in cluster.state.changefeeds
    assert not [key for key in cluster.state.raw if "feed" in key.split("/")[-1]]
    cluster.step()
    assert cluster.owner.changefeeds == {}


def test_more_keys_than_fit_into_one_transaction_are_removed() -> None:
    cluster = running("a")
    for ts in range(300, 600):
        cluster.put(keys.DdlKey(CLUSTER, NAMESPACE, FEED, Ts(ts)), DdlRecord(ts=Ts(ts)))
    cluster.ask(jobs.Remove("1", FEED))
    cluster.ask(released())
    assert "1" not in cluster.answers, "not before its info is gone"
    cluster.step(4)
    assert cluster.answers["1"].error == ""
    assert not [key for key in cluster.state.raw if "feed" in key]


def test_removal_continues_under_a_new_owner() -> None:
    cluster = running("a", "b")
    cluster.ask(jobs.Remove("1", FEED))
    cluster.elect(B)
    cluster.step()
    assert [drop.changefeed for drop in cluster.dropped] == [FEED]
    cluster.ask(released())
    assert FEED not in cluster.state.changefeeds


def test_what_a_late_writer_leaves_is_swept_away() -> None:
    """Else a changefeed created later under the same id would take its record for its own."""
    cluster = running("a")
    late = cluster.state.changefeeds[FEED].units["main"]
    cluster.ask(jobs.Remove("1", FEED))
    cluster.ask(released())
    assert FEED not in cluster.state.changefeeds
    cluster.put(keys.UnitKey(CLUSTER, NAMESPACE, FEED, "main"), late)
    cluster.step(2)
    assert FEED not in cluster.state.changefeeds
    cluster.put_raw(str(keys.InfoKey(CLUSTER, NAMESPACE, FEED)), b"{")
    cluster.put(keys.UnitKey(CLUSTER, NAMESPACE, FEED, "main"), late)
    cluster.step(2)
    assert cluster.state.changefeeds[FEED].units == {"main": late}, "it is there, and cannot be read"
    cluster.ask(jobs.Query("2", FEED))
    assert cluster.answers["2"].value == "BrokenRecord"
    assert "cannot be read" in cluster.answers["2"].error


def test_removal_that_cannot_clean_up_reports_it_and_can_be_forced() -> None:
    cluster = running("a")
    cluster.ask(jobs.Remove("1", FEED))
    cluster.ask(released("host is down"))
    cluster.step(70)
    assert "host is down" in cluster.answers["1"].error
    cluster.ask(jobs.Remove("2", FEED, force=True))
    cluster.ask(released("host is down"))
    assert cluster.answers["2"].error == ""
    assert FEED not in cluster.state.changefeeds


def test_hold_keeps_every_span_at_one_ts_until_released() -> None:
    cluster = running("a", "b")
    cluster.ask(jobs.HoldAt("1", FEED, Ts(150)))
    assert "past 150" in cluster.answers["1"].error
    cluster.ask(jobs.HoldAt("2", FEED, Ts(250)))
    assert cluster.answers["2"].error == ""
    cluster.advance_log(300)
    cluster.step(6)
    assert {span.checkpoint_ts for table in cluster.view().tables for span in table.spans} == {250}
    assert cluster.view().blocked_by == "barrier hold at 250"
    assert cluster.view().state is FeedState.NORMAL
    cluster.ask(jobs.Release("3", FEED))
    assert cluster.answers["3"].value == 250
    cluster.step(4)
    assert cluster.checkpoint_ts() == 300
    cluster.ask(jobs.Release("4", FEED))
    assert cluster.answers["4"].value is None, "nothing was held any more"


def test_hold_ends_by_itself() -> None:
    cluster = running("a")
    cluster.ask(jobs.HoldAt("1", FEED, Ts(250), timeout_s=2.0))
    cluster.advance_log(300)
    cluster.step(4)
    assert cluster.checkpoint_ts() == 250
    cluster.step(10)
    assert cluster.checkpoint_ts() == 300


def test_move_table_and_drain() -> None:
    cluster = running("a", "b")
    cluster.ask(jobs.MoveTable("1", FEED, 1, B))
    assert cluster.answers["1"].value == 1
    cluster.step(6)
    assert cluster.writers()[S1] == [B]
    cluster.ask(jobs.MoveTable("2", FEED, 99, B))
    assert "no table 99" in cluster.answers["2"].error
    cluster.ask(jobs.MoveTable("3", FEED, 1, C))
    assert "does not serve" in cluster.answers["3"].error
    cluster.ask(jobs.DrainCapture("4", B))
    assert isinstance(cluster.answers["4"].value, int)
    cluster.step(12)
    cluster.ask(jobs.DrainCapture("5", B))
    assert cluster.answers["5"].value == 0
    assert set(cluster.writers()) == {S1, S2}
    assert cluster.workers() == [(A, Unit.SYNC)]
    cluster.ask(jobs.DrainCapture("6", C))
    assert cluster.answers["6"].value == "UnknownCapture"
    cluster.ask(jobs.DrainCapture("7", A))
    assert cluster.answers["7"].error == "capture a is the owner; let it resign first (owner resign), then drain it"


def test_drain_takes_the_worker_along_and_the_successor_of_an_owner_drains_it() -> None:
    cluster = running("a", "b")
    assert cluster.workers() == [(A, Unit.SYNC)]
    cluster.ask(jobs.ResignOwner("1"))
    assert cluster.answers["1"].error == ""
    cluster.elect(B)
    cluster.step(4)
    cluster.ask(jobs.DrainCapture("2", A))
    assert cluster.answers["2"].value == 2, "a span and a worker"
    cluster.step(16)
    cluster.ask(jobs.DrainCapture("3", A))
    assert cluster.answers["3"].value == 0
    assert cluster.workers() == [(B, Unit.SYNC)]
    assert cluster.writers() == {S1: [B], S2: [B]}
    cluster.advance_log(300)
    cluster.step(4)
    assert cluster.checkpoint_ts() == 300


def test_one_capture_is_drained_at_a_time() -> None:
    cluster = running("a", "b", "c")
    cluster.jobs = [jobs.DrainCapture("1", B), jobs.DrainCapture("2", C)]
    cluster.step()
    assert cluster.answers["1"].error == ""
    assert cluster.answers["2"].error == "capture b is being drained; ask again when it is empty"


def test_one_changefeeds_fault_is_its_own() -> None:
    cluster = running("a")
    other = ChangefeedId("other")
    cluster.create(info().with_(id=other))
    cluster.step()
    broken = cluster.owner.changefeeds[FEED].run
    assert broken is not None
    broken.coordinator.sets[S1].captures[B] = Role.PRIMARY
    cluster.advance_log(300)
    cluster.step(3)
    assert cluster.info().state is FeedState.PENDING
    assert cluster.info().error is not None
    assert "has several writers" in str(cluster.info().error)
    assert cluster.info(other).state is FeedState.NORMAL
    assert any(isinstance(log, Log) and log.level == "error" for log in cluster.logs)


def test_a_record_that_cannot_be_read_holds_its_changefeed_still() -> None:
    cluster = running("a")
    key = str(keys.StatusKey(CLUSTER, NAMESPACE, FEED))
    cluster.put_raw(key, b"{")
    cluster.advance_log(300)
    cluster.step(4)
    assert cluster.state.raw[key].value == b"{", "nothing is written over what cannot be read"
    assert key in cluster.view().blocked_by


def test_two_jobs_at_once_the_second_has_to_ask_again() -> None:
    cluster = running("a")
    cluster.jobs = [jobs.Pause("1", FEED), jobs.Resume("2", FEED), jobs.Query("3", FEED)]
    cluster.step()
    assert cluster.answers["1"].error == ""
    assert "ask again" in cluster.answers["2"].error
    assert cluster.answers["3"].error == ""


def test_status_is_written_at_most_five_times_a_second() -> None:
    cluster = running("a")
    written: set[int] = set()
    for number in range(40):
        cluster.advance_log(300 + number)
        cluster.step(after_s=0.05)
        written.add(cluster.checkpoint_ts())
    assert len(written) <= 40 * 0.05 / 0.2 + 2


def test_an_idle_changefeed_writes_nothing() -> None:
    cluster = running("a")
    revision = cluster.state.revision
    cluster.step(20)
    assert cluster.state.revision == revision
    assert cluster.wake_at > cluster.now


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        (0, "starting"),
        (1, "waiting for the first answer of a"),
        (3, "unit dump on capture a: 0 of 0 rows, 0 bytes"),
    ],
)
def test_what_a_starting_changefeed_waits_for(steps: int, shown: str) -> None:
    cluster = SmallCluster(A, settings=STEADY)
    cluster.create()
    cluster.state.begin_tick(cluster.now)
    cluster.owner._meet(cluster.state)
    cluster.step(steps)
    assert cluster.view().blocked_by == shown


def test_what_makes_no_progress_is_named() -> None:
    cluster = running("a", "b")
    assert cluster.view().blocked_by == ""
    cluster.step(30)
    assert cluster.view().blocked_by.startswith("sync: nothing heard from the source for")
    for processor in cluster.processors.values():
        processor.writing.clear()
    for number in range(30):
        cluster.advance_log(1000 + number)
        cluster.step()
    assert cluster.view().blocked_by.startswith(
        "flush: public.t1 (span 1:0-10000000000000000) on capture a has not moved for"
    )


def test_stuck_changefeed_fails_at_last() -> None:
    cluster = running("a")
    cluster.create(cluster.info().with_(config=info(stuck_s=60).config))
    cluster.processors[A, FEED].writing.clear()
    cluster.advance_log(1000)
    cluster.step(70, after_s=1.0)
    assert cluster.info().state is FeedState.FAILED
    assert cluster.info().error is not None
    assert "no progress for 60 s" in str(cluster.info().error)


def test_the_only_capture_does_not_resign() -> None:
    cluster = running("a")
    cluster.ask(jobs.ResignOwner("1"))
    assert cluster.answers["1"].error.startswith("capture a is the only one: nobody else could be owner;")


def test_sync_that_has_begun_is_not_dumped_again() -> None:
    cluster = running("a")
    cluster.leave(A)
    cluster.join(B)
    cluster.elect(B)
    cluster.step(8)
    assert cluster.workers() == [(B, Unit.SYNC)]
    assert cluster.state.changefeeds[FEED].units["main"].stage is UnitStage.RUNNING
    assert cluster.writers() == {TableSpan(1): [B], TableSpan(2): [B]}


def test_a_changefeed_that_fails_after_running_for_long_keeps_its_position_for_its_ttl() -> None:
    """What it has run for does not count as stopped: its slot would be released in the tick in which it fails."""
    cluster = running("a")
    config = cluster.info().config
    cluster.now += config.gc_ttl_seconds + 100
    cluster.step(3)
    cluster.report(A, error("Whatever", retryable=False))
    cluster.step(3)
    assert cluster.info().state is FeedState.FAILED
    assert cluster.info().error == error("Whatever", retryable=False)
    assert not cluster.dropped
    cluster.now += config.gc_ttl_seconds + 100
    cluster.step(2)
    assert cluster.info().error is not None
    assert cluster.info().error.code == "GCTTLExceeded"  # type: ignore[union-attr]
    assert cluster.dropped
