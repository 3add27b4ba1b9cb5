"""Changefeeds that take a new position: every table is lost, and not written, until its copy is in its place."""

from typing import Any

from owner import jobs
from owner.feed.retention import GC_TTL_EXCEEDED
from owner.questions import CopyTable, PlaceTable, TableCopied
from reactor import keys
from reactor.ids import MAX_TS, TableSpan, Ts
from reactor.questions import Answered
from reactor.records.changefeed import FeedState, Mode, RunningError, UnitRecord
from reactor.records.formats import NEWEST, Feature
from reactor.records.tables.held import HoldStage
from reactor.records.tables.resync import ResyncStage
from tests.unit.owner.owner_build import FEED, S1, S2, A, info
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, TABLES, SmallCluster, released
from tests.unit.owner.tables.test_schema_changes import NEW, alter, applied, create, record
from tests.unit.owner.test_owner import running

LOST = RunningError(code="PositionLost", message="the slot is gone; take another", retryable=False)


def failed(*, target_ts: int | None = None, on_lost: str = "fail") -> SmallCluster:
    """A changefeed at 200 whose position is lost."""
    cluster = running("a", "b", target_ts=target_ts)
    if on_lost != "fail":
        found = cluster.info()
        config = found.config.with_(on_lost_position=on_lost)
        cluster.put(keys.InfoKey(CLUSTER, NAMESPACE, FEED), found.with_(config=config))
        cluster.step()
    cluster.report(cluster.owner.capture, LOST)
    cluster.step()
    return cluster


def unit(cluster: SmallCluster) -> UnitRecord:
    return cluster.state.changefeeds[FEED].units["main"]


def resume(cluster: SmallCluster, *, is_resync: bool = True) -> str:
    cluster.ask(jobs.Resume("r", FEED, is_resync=is_resync))
    cluster.step()
    return cluster.answers["r"].error


def copy_all(cluster: SmallCluster, ts: int) -> None:
    """Whatever is asked of the copies is done."""
    done = 0
    for _ in range(80):
        for question in cluster.copies[done:]:
            answer = None
            if isinstance(question, CopyTable):
                answer = TableCopied(question.table.with_(start_ts=Ts(ts)), rows=1)
            answered: Answered[Any] = Answered(FEED, question, answer)
            cluster.jobs.append(answered)
        done = len(cluster.copies)
        cluster.step()


def test_no_table_is_written_before_its_copy_is_in_its_place() -> None:
    cluster = failed()
    assert cluster.info().state is FeedState.FAILED
    assert resume(cluster) == ""
    cluster.step(6)
    assert unit(cluster).lost_ts == MAX_TS
    assert (cluster.info().state, cluster.view().lost_tables) == (FeedState.NORMAL, 2)
    assert cluster.writers() == {}
    assert cluster.checkpoint_ts() == 200, "nothing is known of the log yet"
    assert cluster.state.changefeeds[FEED].resyncs == {}
    cluster.take_position(500)
    cluster.step(4)
    held, resyncs = cluster.state.changefeeds[FEED].held, cluster.state.changefeeds[FEED].resyncs
    assert {id: (table.stage, table.ts) for id, table in held.items()} == {
        1: (HoldStage.LOST, 200),
        2: (HoldStage.LOST, 200),
    }
    assert set(resyncs) == {1, 2}
    assert cluster.writers() == {}
    assert cluster.checkpoint_ts() == 500, "held tables are left out"
    copied_ts = 600
    for _ in range(3):
        cluster.step()
    head = cluster.state.changefeeds[FEED].heads["main"]
    cluster.put(keys.LogKey(CLUSTER, NAMESPACE, FEED, "main"), head.with_(resolved_ts=Ts(700)))
    copy_all(cluster, copied_ts)
    found = cluster.state.changefeeds[FEED]
    assert (found.held, found.resyncs, cluster.view().lost_tables) == ({}, {}, 0)
    assert set(cluster.writers()) == {S1, S2}
    assert (cluster.checkpoint_ts(), unit(cluster).lost_ts) == (700, 500)
    assert [table.start_ts for table in unit(cluster).tables] == [600, 600]
    assert cluster.info().state is FeedState.NORMAL


def test_a_table_is_shown_as_held_from_the_moment_that_its_rows_are_known_to_be_missing() -> None:
    """The round that writes the hold comes later, and the checkpoint leaves the table out before it."""
    cluster = failed()
    resume(cluster)
    cluster.step(6)
    cluster.take_position(500)
    for _ in range(4):
        view = cluster.view()
        assert [(one.table_id, one.code) for one in view.held] == [(1, "PositionLost"), (2, "PositionLost")]
        assert [table.held is not None for table in view.tables] == [True, True]
        cluster.step()


def test_a_schema_change_of_a_table_that_has_its_copy_does_not_lose_it_again() -> None:
    cluster = failed()
    resume(cluster)
    cluster.take_position(500)
    cluster.step(4)
    head = cluster.state.changefeeds[FEED].heads["main"]
    cluster.put(keys.LogKey(CLUSTER, NAMESPACE, FEED, "main"), head.with_(resolved_ts=Ts(700)))
    copy_all(cluster, 600)
    assert TABLES[0].start_ts == 100, "what the source's reader still has"
    cluster.put(keys.DdlKey(CLUSTER, NAMESPACE, FEED, 750), record(750, alter(TABLES[0])))
    cluster.put(keys.LogKey(CLUSTER, NAMESPACE, FEED, "main"), head.with_(resolved_ts=Ts(800)))
    cluster.step(8)
    cluster.ask(applied(750))
    cluster.step(8)
    assert unit(cluster).tables[0].start_ts == 600
    assert cluster.view().lost_tables == 0
    assert cluster.checkpoint_ts() == 800


def test_a_copy_of_before_the_new_position_is_made_again() -> None:
    """One was under way when the position was lost."""
    cluster = running("a")
    cluster.ask(jobs.ResyncTable("t", FEED, 1))
    cluster.step(6)
    [question] = cluster.copies
    cluster.report(cluster.owner.capture, LOST)
    cluster.step()
    resume(cluster)
    cluster.take_position(500)
    cluster.step(8)
    first = next(one for one in cluster.copies[1:] if isinstance(one, CopyTable) and one.table.table_id == 1)
    cluster.ask(Answered(FEED, first, TableCopied(first.table.with_(start_ts=Ts(450)), rows=1)))
    cluster.step(10)
    again = [one for one in cluster.copies if isinstance(one, CopyTable) and one.table.table_id == 1][-1]
    assert isinstance(question, CopyTable)
    assert again.number > first.number == question.number
    assert not any(isinstance(one, PlaceTable) and one.table.table_id == 1 for one in cluster.copies)


def test_a_position_that_is_lost_again_is_taken_again() -> None:
    cluster = failed()
    resume(cluster)
    cluster.take_position(500)
    cluster.step(4)
    cluster.report(cluster.owner.capture, LOST)
    cluster.step()
    assert cluster.info().state is FeedState.FAILED
    assert resume(cluster) == ""
    assert unit(cluster).lost_ts == MAX_TS
    cluster.take_position(900)
    cluster.step(4)
    head = cluster.state.changefeeds[FEED].heads["main"]
    cluster.put(keys.LogKey(CLUSTER, NAMESPACE, FEED, "main"), head.with_(resolved_ts=Ts(1200)))
    copy_all(cluster, 1000)
    assert [table.start_ts for table in unit(cluster).tables] == [1000, 1000]
    assert cluster.state.changefeeds[FEED].held == {}


def test_a_lost_table_is_not_left_as_it_is() -> None:
    cluster = failed()
    resume(cluster)
    cluster.take_position(500)
    cluster.step(2)
    assert cluster.state.changefeeds[FEED].resyncs[1].stage in (ResyncStage.ASKED, ResyncStage.STOPPING)
    cluster.ask(jobs.ResyncTable("c", FEED, 1, is_cancelled=True))
    cluster.step()
    assert "cannot be left as it is: the log behind it is lost" in cluster.answers["c"].error


def test_one_that_runs_or_has_a_target_or_no_log_is_refused() -> None:
    cluster = running("a")
    assert resume(cluster).startswith("changefeed feed is normal: pause it first")
    assert "remove the target first" in resume(failed(target_ts=10_000))
    cluster = SmallCluster(A, known=NEWEST)
    cluster.create(info(mode=Mode.FULL))
    cluster.step(4)
    cluster.ask(jobs.Pause("p", FEED))
    assert "follows no log in mode full" in resume(cluster)


def test_before_the_snapshot_is_there_nothing_is_lost() -> None:
    """It is begun again, with a position of its own."""
    cluster = SmallCluster(A, known=NEWEST)
    cluster.create()
    cluster.step(4)
    cluster.ask(jobs.Pause("p", FEED))
    assert resume(cluster) == ""
    assert unit(cluster).lost_ts == 0
    assert cluster.info().state is FeedState.NORMAL


def test_captures_that_do_not_know_it_yet_are_waited_for() -> None:
    cluster = SmallCluster(A, known=Feature.NEW_POSITION - 1)
    cluster.create()
    cluster.step(4)
    cluster.ask(jobs.Pause("p", FEED))
    assert "a new position needs format 4, and the cluster uses 3" in resume(cluster)
    assert cluster.info().state is FeedState.STOPPED


def test_what_was_released_is_taken_again_and_will_be_released_again() -> None:
    cluster = running("a")
    cluster.ask(jobs.Pause("p", FEED))
    cluster.step(after_s=86_400.0)
    cluster.step(after_s=3.0)
    stored = cluster.info()
    assert stored.error is not None
    assert stored.error.code == GC_TTL_EXCEEDED
    assert "`weir changefeed resume --resync`" in stored.error.message
    assert "is still being released" in resume(cluster)
    cluster.ask(released())
    cluster.step()
    assert resume(cluster) == ""
    assert (cluster.info().state, unit(cluster).lost_ts) == (FeedState.NORMAL, MAX_TS)
    asked = len(cluster.dropped)
    cluster.ask(jobs.Remove("x", FEED))
    cluster.step(4, after_s=1.0)
    assert len(cluster.dropped) > asked, "its slot is there again"


def test_by_itself() -> None:
    cluster = failed(on_lost="resync")
    found = cluster.info()
    assert found.error is not None
    assert (found.state, found.error.code) == (FeedState.PENDING, "PositionRenewed")
    assert unit(cluster).lost_ts == MAX_TS
    cluster.put(keys.PositionKey(CLUSTER, NAMESPACE, cluster.owner.capture, FEED), None)
    cluster.step(20, after_s=10.0)
    assert cluster.info().state in (FeedState.WARNING, FeedState.NORMAL)
    cluster.take_position(500)
    cluster.step(4)
    assert set(cluster.state.changefeeds[FEED].resyncs) == {1, 2}


def test_a_table_that_came_with_rows_is_copied_before_it_is_written() -> None:
    cluster = running("a")
    came = NEW.with_(start_ts=Ts(299), to_copy=True)
    cluster.change_schema(record(300, create(came)))
    cluster.step(4)
    cluster.ask(applied(300))
    cluster.step(6)
    feed = cluster.state.changefeeds[FEED]
    assert (feed.held[3].stage, feed.held[3].ts, feed.held[3].error.code) == (HoldStage.LOST, 0, "CameWithRows")
    assert TableSpan(3) not in cluster.writers()
    assert cluster.checkpoint_ts() == 400, "the others flow"
    cluster.advance_log(700)
    copy_all(cluster, 600)
    cluster.advance_log(720)
    cluster.step(8)
    assert (feed.held, feed.resyncs) == ({}, {})
    assert TableSpan(3) in cluster.writers()
    cluster.put(keys.DdlKey(CLUSTER, NAMESPACE, FEED, 750), record(750, alter(came)))
    cluster.advance_log(800)
    cluster.step(8)
    cluster.ask(applied(750))
    cluster.step(8)
    assert cluster.view().lost_tables == 0, "though the source's reader says still that it came with rows"
    assert cluster.checkpoint_ts() == 800


def test_a_changefeed_with_a_target_copies_no_table_that_comes() -> None:
    """The copy would be of a later Ts than its target may be."""
    cluster = running("a", target_ts=10_000)
    cluster.change_schema(record(300, create(NEW.with_(start_ts=Ts(299), to_copy=True))))
    cluster.step(4)
    cluster.ask(applied(300))
    cluster.step(6)
    feed = cluster.state.changefeeds[FEED]
    assert feed.held[3].stage is HoldStage.LOST
    assert feed.resyncs == {}


def test_a_table_that_comes_after_the_target_does_not_keep_the_changefeed_from_its_end() -> None:
    cluster = running("a", target_ts=400)
    cluster.change_schema(record(450, create(NEW.with_(start_ts=Ts(449), to_copy=True))))
    cluster.advance_log(800)
    cluster.step(8)
    assert cluster.state.changefeeds[FEED].held == {}
    assert cluster.info().state is FeedState.FINISHED
