"""Operators' steps with one table under the real owner: paused, tried again, and continued without some changes."""

import pytest

from owner import jobs
from owner.tables.schema_changes import NOT_FOLLOWED
from reactor import keys
from reactor.ids import Ts
from reactor.records.changefeed import FeedState
from reactor.records.formats import Feature
from reactor.records.log_head import LogHead
from reactor.records.tables.held import HoldOrigin, HoldStage
from reactor.records.tables.table import TableRecord
from tests.unit.owner.feed.holds.test_held import broken, failure, held, hold, stage, until
from tests.unit.owner.owner_build import FEED, S1
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, SmallCluster
from tests.unit.owner.tables.test_resync import asked as resynced
from tests.unit.owner.tables.test_schema_changes import alter, applied, asked, record
from tests.unit.owner.test_owner import running


def pause(cluster: SmallCluster) -> str:
    return answer(cluster, jobs.PauseTable("p", FEED, 1))


def resume(cluster: SmallCluster) -> str:
    return answer(cluster, jobs.ResumeTable("t", FEED, 1))


def skip(cluster: SmallCluster, ts: int) -> str:
    return answer(cluster, jobs.SkipTable("s", FEED, 1, Ts(ts)))


def answer(cluster: SmallCluster, job: jobs.TableStep) -> str:
    cluster.ask(job)
    return cluster.answers[job.job_id].error


def first(cluster: SmallCluster) -> TableRecord:
    return cluster.state.changefeeds[FEED].units["main"].tables[0]


def test_a_paused_table_is_held_until_it_is_resumed_and_all_others_flow() -> None:
    cluster = running("a", "b")
    assert pause(cluster) == ""
    assert cluster.answers["p"].value == 200
    assert (held(cluster)[1].origin, held(cluster)[1].ts, held(cluster)[1].retry_at) == (HoldOrigin.PAUSE, 200, 0.0)
    cluster.advance_log(500)
    cluster.step(8, after_s=100.0)
    assert stage(cluster) is HoldStage.HELD, "it is not tried by itself"
    assert S1 not in cluster.writers()
    assert cluster.checkpoint_ts() == 500
    warning = cluster.info().warning
    assert cluster.info().state is FeedState.WARNING
    assert warning is not None
    assert "1 table is held, all others flow: public.t1 (Paused: an operator has paused it" in warning.message
    assert cluster.view().held[0].origin == "pause"
    assert "public.t1 is paused already" in pause(cluster)
    cluster.ask(jobs.Resume("r", FEED))
    assert "it is running" in cluster.answers["r"].error, "that is for tables that were not paused"
    assert resume(cluster) == ""
    assert cluster.answers["t"].value == 200
    until(cluster, None)
    cluster.step(2)
    assert cluster.writers()[S1]
    assert "public.t1 is not held" in resume(cluster)


def test_what_an_owner_has_stored_the_next_one_keeps() -> None:
    cluster = running("a", "b")
    pause(cluster)
    cluster.elect("b")  # type: ignore[arg-type]
    cluster.advance_log(500)
    cluster.step(8)
    assert stage(cluster) is HoldStage.HELD
    assert resume(cluster) == ""
    until(cluster, None)


def test_a_table_that_is_tried_again_and_again_is_paused() -> None:
    cluster = broken("a", "b")
    assert pause(cluster) == ""
    assert "it was held before (Decode: bytes that no type has" in held(cluster)[1].error.message
    cluster.step(4, after_s=200.0)
    assert stage(cluster) is HoldStage.HELD


def test_a_held_table_is_tried_at_once_when_it_is_resumed() -> None:
    cluster = broken("a", "b")
    assert stage(cluster) is HoldStage.HELD
    assert resume(cluster) == ""
    until(cluster, None, steps=6)


def test_a_paused_changefeed_keeps_its_tables_pauses() -> None:
    cluster = running("a")
    cluster.ask(jobs.Pause("x", FEED))
    cluster.step()
    assert pause(cluster) == ""
    cluster.ask(jobs.Resume("r", FEED))
    cluster.step(6)
    assert stage(cluster) is HoldStage.HELD


def test_a_resync_ends_a_pause_and_cancelling_it_does_not() -> None:
    cluster = running("a")
    pause(cluster)
    assert resynced(cluster) == ""
    assert "public.t1 is being copied again" in pause(cluster)
    assert "public.t1 is being copied again" in resume(cluster)
    assert resynced(cluster, jobs.ResyncTable("c", FEED, 1, is_cancelled=True)) == ""
    cluster.step(6)
    assert stage(cluster) is HoldStage.HELD
    assert held(cluster)[1].is_paused


def test_a_table_skips_changes_for_good() -> None:
    cluster = running("a", "b")
    pause(cluster)
    cluster.advance_log(500)
    cluster.step(4)
    assert skip(cluster, 400) == ""
    assert cluster.answers["s"].value == 200
    assert (first(cluster).skipped_ts, held(cluster)[1].ts) == (400, 400), "both are stored at once"
    until(cluster, None)
    assert first(cluster).skipped_ts == 400
    assert [table.skipped_ts for table in cluster.view().tables] == [400, 0]
    cluster.change_schema(record(600, alter()))
    cluster.step(6)
    cluster.ask(applied(600))
    cluster.step(4)
    assert first(cluster).skipped_ts == 400, "a schema change keeps it"


def test_schema_changes_are_not_skipped() -> None:
    cluster = running("a", "b")
    pause(cluster)
    cluster.change_schema(record(300, alter()))
    cluster.step(6)
    assert asked(cluster) == []
    assert skip(cluster, 400) == ""
    assert (first(cluster).skipped_ts, held(cluster)[1].ts) == (400, 200)
    cluster.step(6)
    assert stage(cluster) is HoldStage.TRIED
    assert asked(cluster) == [300]
    cluster.ask(applied(300))
    until(cluster, None)


@pytest.mark.parametrize(
    ("ts", "words"),
    [
        (200, "public.t1 is at 200: 200 leaves out nothing"),
        (501, "reaches up to 500, and not to 501"),
    ],
)
def test_a_ts_that_is_not_ahead_in_the_log_is_refused(ts: int, words: str) -> None:
    cluster = running("a")
    assert "public.t1 is not held" in skip(cluster, 300)
    pause(cluster)
    cluster.advance_log(500)
    cluster.step(4)
    assert words in skip(cluster, ts)
    assert first(cluster).skipped_ts == 0


def test_a_lost_table_continues_where_the_log_begins() -> None:
    cluster = running("a", "b")
    pause(cluster)
    head = LogHead(resolved_ts=Ts(900), removed_ts=Ts(600), resolved_time=cluster.now)
    cluster.put(keys.LogKey(CLUSTER, NAMESPACE, FEED, "main"), head)
    until(cluster, HoldStage.LOST)
    assert "not written, its position is lost" in pause(cluster)
    assert "has lost its position" in resume(cluster)
    assert "reaches back to 600 only" in skip(cluster, 500)
    assert skip(cluster, 700) == ""
    until(cluster, None)
    assert first(cluster).skipped_ts == 700


def test_what_the_source_cannot_follow_is_not_skipped() -> None:
    cluster = running("a", "b")
    cluster.change_schema(hold(300))
    until(cluster, HoldStage.HELD)
    assert held(cluster)[1].error.code == NOT_FOLLOWED
    assert "cannot skip what its source cannot follow" in skip(cluster, 350)
    assert pause(cluster) == ""
    assert "cannot skip what its source cannot follow" in skip(cluster, 350)


def test_no_table_is_paused_while_captures_do_not_know_it() -> None:
    cluster = SmallCluster("a", known=Feature.TABLE_STEPS - 1)  # type: ignore[arg-type]
    cluster.create()
    cluster.step(8)
    assert "a table that an operator holds needs format 5" in pause(cluster)
    assert "a table that an operator holds needs format 5" in skip(cluster, 10)


def test_a_table_that_nobody_has_is_refused() -> None:
    cluster = running("a")
    cluster.fail_tables("a", failure(2))  # type: ignore[arg-type]
    assert "has no table 9" in answer(cluster, jobs.PauseTable("p", FEED, 9))
