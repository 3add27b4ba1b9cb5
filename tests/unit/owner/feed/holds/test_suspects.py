"""Suspects under the real owner: what was under way when captures ended is written apart, and one table is held."""

from owner.jobs import Resume
from reactor import keys
from reactor.ids import CaptureId, Ts
from reactor.records.attempts import Attempt, Suspects
from reactor.records.changefeed import FeedState
from reactor.records.tables.held import CAPTURE_ENDED, HoldStage
from tests.unit.owner.feed.holds.test_held import T1, T2, held, until
from tests.unit.owner.owner_build import FEED, S1, S2, A
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, SmallCluster
from tests.unit.owner.tables.test_schema_changes import alter, applied, record
from tests.unit.owner.test_owner import running

GONE, GONE_TOO, LAST = CaptureId("gone-1"), CaptureId("gone-2"), CaptureId("gone-3")


def ends(cluster: SmallCluster, capture: CaptureId, *tables: int, is_trial: bool = False) -> None:
    """A capture that the owner has not seen, or no longer sees, left this behind."""
    key = keys.AttemptKey(CLUSTER, NAMESPACE, FEED, capture)
    cluster.put(key, Attempt(tables=tables, is_trial=is_trial))
    cluster.step()
    assert capture not in cluster.state.changefeeds[FEED].attempts


def suspects(cluster: SmallCluster) -> tuple[int, ...]:
    found = cluster.state.changefeeds[FEED].suspects
    return found.tables if found else ()


def behind(*captures: str) -> SmallCluster:
    """Whose log has come further than its spans."""
    cluster = running(*captures or "a")
    for processor in cluster.processors.values():
        processor.flush = lambda *_: None  # type: ignore[method-assign]
    cluster.advance_log(500)
    return cluster


def test_what_was_under_way_when_a_capture_ended_is_suspected() -> None:
    cluster = behind()
    ends(cluster, GONE, 1, 2, 77)
    assert cluster.state.changefeeds[FEED].suspects == Suspects(tables=(1, 2), ts=Ts(500), capture=GONE)
    assert held(cluster) == {}
    assert cluster.info().state is FeedState.NORMAL
    (line,) = [log for log in cluster.logs if "ended while tables were written" in log.event]
    assert dict(line.fields)["tables"] == "public.t1, public.t2"


def test_who_is_alive_is_suspected_of_nothing() -> None:
    cluster = behind()
    key = keys.AttemptKey(CLUSTER, NAMESPACE, FEED, A)
    cluster.put(key, Attempt(tables=(1, 2), is_trial=True))
    cluster.step(3)
    assert suspects(cluster) == ()
    assert cluster.state.changefeeds[FEED].attempts.keys() == {A}


def test_spans_that_pass_where_the_log_was_clear_their_table() -> None:
    cluster = running("a")
    ends(cluster, GONE, 1, 2)
    assert suspects(cluster) == (), "they are written as far as the log is already"
    (processor,) = cluster.processors.values()
    flush, processor.flush = processor.flush, lambda *_: None  # type: ignore[method-assign]
    cluster.advance_log(500)
    ends(cluster, GONE_TOO, 1, 2)
    cluster.step(4)
    assert suspects(cluster) == (1, 2)
    processor.flush = flush  # type: ignore[method-assign]
    cluster.step(6)
    assert suspects(cluster) == ()
    assert str(keys.SuspectsKey(CLUSTER, NAMESPACE, FEED)) not in cluster.state.raw


def test_a_table_that_was_alone_when_another_capture_ended_is_held_alone() -> None:
    cluster = behind()
    ends(cluster, GONE, 1, 2)
    ends(cluster, GONE_TOO, 1, is_trial=True)
    table = held(cluster)[1]
    assert (table.stage, table.error.code, table.error.capture, table.retry_at) == (
        HoldStage.HELD,
        CAPTURE_ENDED,
        GONE_TOO,
        0.0,
    )
    assert table.error.message.startswith("two captures have ended while they wrote public.t1")
    assert suspects(cluster) == (2,)
    cluster.step(4)
    assert S1 not in cluster.writers()
    assert S2 in cluster.writers()
    cluster.now += 3600
    cluster.step(4)
    assert held(cluster)[1].stage is HoldStage.HELD, "trying again would end a capture"


def test_the_machine_of_several_captures_holds_nothing() -> None:
    """All end in one moment, at work on the same tables, and none knew that these were suspected."""
    cluster = behind()
    for capture in (GONE, GONE_TOO, LAST):
        ends(cluster, capture, 1)
    assert suspects(cluster) == (1,)
    assert held(cluster) == {}


def test_a_trial_of_what_was_not_suspected_holds_nothing() -> None:
    """It was cleared before its capture ended."""
    cluster = behind()
    ends(cluster, GONE, 1, is_trial=True)
    assert held(cluster) == {}
    assert suspects(cluster) == (1,)


def test_a_group_that_ends_a_capture_is_suspected_instead_of_all() -> None:
    cluster = behind()
    key = keys.SuspectsKey(CLUSTER, NAMESPACE, FEED)
    cluster.put(key, Suspects(tables=(1, 2, 3), ts=Ts(500), capture=GONE))
    ends(cluster, GONE_TOO, 1, 2, is_trial=True)
    assert suspects(cluster) == (1, 2)
    assert held(cluster) == {}
    ends(cluster, LAST, 2, is_trial=True)
    assert held(cluster).keys() == {2}
    assert suspects(cluster) == (1,)


def test_an_operator_tries_it_again_and_one_more_capture_is_enough() -> None:
    cluster = behind()
    ends(cluster, GONE, 1)
    ends(cluster, GONE_TOO, 1, is_trial=True)
    cluster.ask(Resume("job", FEED))
    until(cluster, HoldStage.TRIED)
    ends(cluster, LAST, 1, is_trial=True)
    table = held(cluster)[1]
    assert (table.stage, table.tries, table.error.capture) == (HoldStage.HELD, 1, LAST)


def test_it_flows_again_when_the_cause_is_gone() -> None:
    cluster = running("a")
    (processor,) = cluster.processors.values()
    flush, processor.flush = processor.flush, lambda *_: None  # type: ignore[method-assign]
    cluster.advance_log(500)
    ends(cluster, GONE, 1)
    ends(cluster, GONE_TOO, 1, is_trial=True)
    processor.flush = flush  # type: ignore[method-assign]
    cluster.ask(Resume("job", FEED))
    until(cluster, None)
    cluster.step(4)
    assert cluster.checkpoint_ts() == 500


def test_another_owner_continues_from_what_is_stored() -> None:
    cluster = behind("a", "b")
    ends(cluster, GONE, 1, 2)
    cluster.elect(CaptureId("b"))
    cluster.step(4)
    assert suspects(cluster) == (1, 2)
    ends(cluster, GONE_TOO, 2, is_trial=True)
    assert held(cluster).keys() == {2}


def test_a_schema_change_that_ends_captures_holds_its_table_behind_the_second() -> None:
    cluster = running("a")
    cluster.change_schema(record(300, alter(T1), alter(T2)))
    cluster.step(6)
    assert [{*one.record.table_ids} for one in cluster.schemas] == [{1, 2}]

    def end(capture: CaptureId, *tables: int, is_trial: bool) -> None:
        key = keys.SchemaAttemptKey(CLUSTER, NAMESPACE, FEED, capture)
        cluster.put(key, Attempt(tables=tables, is_trial=is_trial))
        cluster.step()
        assert capture not in cluster.state.changefeeds[FEED].schema_attempts

    end(GONE, 1, 2, is_trial=False)
    assert suspects(cluster) == (1, 2)
    cluster.step(4)
    assert [{*one.record.table_ids} for one in cluster.schemas[1:]] == [{1}, {2}], "each is asked for alone"
    end(GONE_TOO, 1, is_trial=True)
    until(cluster, HoldStage.HELD)
    assert [(id, table.error.code) for id, table in held(cluster).items()] == [(1, CAPTURE_ENDED)]
    cluster.ask(applied(300))
    cluster.step(20)
    assert suspects(cluster) == ()
    assert cluster.checkpoint_ts() > 300, "the other one follows"
