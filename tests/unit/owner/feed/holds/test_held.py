"""Held tables under the real owner: one is out of everything, the others flow, and nothing is lost on its way back."""

import itertools

import pytest

from owner.jobs import Pause, Remove, Resume, Rewind
from owner.progress.facts import Facts
from owner.questions import TableRead
from owner.settings import BackoffSettings, OwnerSettings
from reactor import keys
from reactor.errors import Scope
from reactor.ids import Ts
from reactor.questions import Answered
from reactor.records.changefeed import FeedState, RunningError
from reactor.records.log_head import LogHead
from reactor.records.tables.held import HeldTable, HoldOrigin, HoldStage
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from tests.unit.owner.owner_build import FEED, S1, S2, A, B, info
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, TABLES, SmallCluster, released
from tests.unit.owner.tables.test_schema_changes import NEW, alter, applied, asked, create, drop, record
from tests.unit.owner.test_owner import running

T1, T2 = TABLES


def failure(table_id: int = 1, code: str = "Decode", *, retryable: bool = False, time: float = 1005.0) -> RunningError:
    text = "bytes that no type has; leave the table out"
    return RunningError(code=code, message=text, table_id=table_id, scope=Scope.TABLE, retryable=retryable, time=time)


def hold(ts: int, *others: TableChange, table: TableRecord = T1) -> DdlRecord:
    change = TableChange(kind=SchemaChangeKind.HOLD, table_id=1, table=table, reason="no names of columns; set FULL")
    return DdlRecord(ts=Ts(ts), changes=(change, *others))


def held(cluster: SmallCluster) -> dict[int, HeldTable]:
    return cluster.state.changefeeds[FEED].held


def stage(cluster: SmallCluster) -> HoldStage | None:
    table = held(cluster).get(1)
    return table.stage if table else None


def until(cluster: SmallCluster, wanted: HoldStage | None, *, steps: int = 60) -> None:
    for _ in range(steps):
        if stage(cluster) is wanted:
            return
        cluster.step()
    raise AssertionError(f"still {stage(cluster)}")


def broken(*captures: str) -> SmallCluster:
    """A changefeed at 200 whose first table has just failed."""
    cluster = running(*captures or "a")
    writer = next(capture for capture in cluster.writers()[S1])
    cluster.fail_tables(writer, failure())
    cluster.step()
    return cluster


def test_an_error_of_a_table_holds_it_alone() -> None:
    cluster = broken("a", "b")
    table = held(cluster)[1]
    assert (table.name, table.ts, table.stage, table.origin) == ("public.t1", 200, HoldStage.HELD, HoldOrigin.WRITE)
    cluster.advance_log(500)
    cluster.step(6)
    assert S1 not in cluster.writers()
    assert cluster.checkpoint_ts() == 500
    feed = cluster.info()
    assert (feed.state, feed.epoch) == (FeedState.WARNING, 1), "the others were not disturbed"
    assert feed.warning is not None
    assert feed.warning.message.startswith(
        "1 table is held, all others flow: public.t1 (Decode: bytes that no type has"
    )
    view = cluster.view()
    assert [(one.table, one.code, one.ts) for one in view.held] == [("public.t1", "Decode", 200)]
    assert [one.held is not None for one in view.tables] == [True, False]
    assert view.tables[0].checkpoint_ts == 200
    assert view.blocked_by.startswith("held: public.t1 (Decode")


def test_it_is_tried_again_later_and_later_and_flows_when_it_has_caught_up() -> None:
    cluster, waits = broken(), []
    for ts in range(500, 1200, 100):
        waits.append(round(held(cluster)[1].retry_at - held(cluster)[1].error.time))
        cluster.now = held(cluster)[1].retry_at
        until(cluster, HoldStage.TRIED)
        cluster.advance_log(ts)
        cluster.fail_tables(A, failure(time=cluster.now))
        until(cluster, HoldStage.HELD)
        cluster.step(6)
        assert cluster.checkpoint_ts() == ts
    assert waits == [5, 10, 20, 40, 80, 160, 300]
    cluster.now = held(cluster)[1].retry_at
    until(cluster, None)
    assert S1 in cluster.writers()
    cluster.step(4)
    assert cluster.checkpoint_ts() == 1100
    assert (cluster.info().state, cluster.info().warning) == (FeedState.NORMAL, None)
    assert [log.event for log in cluster.logs].count("a held table flows again") == 1


def test_the_spans_of_a_table_that_is_tried_start_where_it_was() -> None:
    """Not at the checkpoint of the others, which would lose what is between."""
    cluster = broken()
    cluster.step(8)
    cluster.advance_log(900)
    cluster.step(4)
    assert cluster.checkpoint_ts() == 900
    cluster.now = held(cluster)[1].retry_at
    until(cluster, HoldStage.TRIED)
    run = cluster.owner.changefeeds[FEED].run
    assert run is not None
    for _ in range(20):
        if S1 not in run.coordinator.sets:
            cluster.step()
    assert run.coordinator.sets[S1].checkpoint.checkpoint_ts == 200


@pytest.mark.parametrize("lag", [0, 1, 7])
def test_the_checkpoint_never_goes_back_when_a_table_returns(lag: int) -> None:
    """Also while the log moves on all the time, and the table is always a little behind."""
    cluster = broken("a", "b")
    cluster.now = held(cluster)[1].retry_at
    seen, ts = [], 500
    for _ in range(200):
        ts += 10
        cluster.advance_log(ts)
        cluster.step()
        seen.append((cluster.checkpoint_ts(), cluster.view().checkpoint_ts))
        if stage(cluster) is None:
            break
    assert stage(cluster) is None
    assert seen == sorted(seen)
    for _ in range(lag):
        cluster.step()
    assert cluster.checkpoint_ts() <= min(at.checkpoint_ts for at in cluster.owner.changefeeds[FEED].run.positions())  # type: ignore[union-attr]


def test_a_table_that_the_source_cannot_follow_waits_where_that_began() -> None:
    cluster = running("a")
    cluster.change_schema(hold(300))
    until(cluster, HoldStage.HELD)
    cluster.step(6)
    table = held(cluster)[1]
    assert (table.ts, table.origin, table.retry_at) == (299, HoldOrigin.SOURCE, 0.0)
    assert table.error.message == "no names of columns; set FULL"
    assert cluster.checkpoint_ts() == 400
    assert asked(cluster) == []
    cluster.ask(Resume("1", FEED, None))
    until(cluster, HoldStage.TRIED)
    until(cluster, HoldStage.HELD)
    assert held(cluster)[1].ts == 299
    assert cluster.checkpoint_ts() == 400


def test_others_of_the_same_transaction_follow() -> None:
    cluster = running("a")
    cluster.change_schema(hold(300, alter(T2, name="other")))
    until(cluster, HoldStage.HELD)
    cluster.step(4)
    assert [effect.record.table_ids for effect in cluster.schemas] == [{2}]
    cluster.ask(applied(300))
    cluster.step(4)
    assert cluster.state.changefeeds[FEED].ddl[300].pending_ids == {1}
    assert [table.name for table in cluster.state.changefeeds[FEED].units["main"].tables] == ["t1", "other"]
    assert cluster.checkpoint_ts() == 400


@pytest.mark.parametrize("retryable", [False, True])
def test_a_schema_change_that_the_sink_refuses_holds_its_table(retryable: bool) -> None:
    cluster = running("a")
    cluster.change_schema(record(300, alter()))
    cluster.step(6)
    for _ in range(3 if retryable else 1):
        cluster.ask(applied(300, "no such type; change it", retryable=retryable))
        count = len(cluster.schemas)
        for _ in range(100):
            if len(cluster.schemas) == count and not held(cluster):
                cluster.step()
    assert (held(cluster)[1].ts, held(cluster)[1].origin) == (299, HoldOrigin.SCHEMA)
    cluster.advance_log(700)
    cluster.step(6)
    assert cluster.checkpoint_ts() == 700
    assert cluster.info().state is FeedState.WARNING
    cluster.now = held(cluster)[1].retry_at
    until(cluster, HoldStage.TRIED)
    cluster.step(4)
    assert not cluster.state.changefeeds[FEED].ddl[300].done
    cluster.ask(applied(300))
    until(cluster, None)
    assert cluster.state.changefeeds[FEED].ddl[300].pending_ids == frozenset()
    cluster.step(4)
    assert cluster.checkpoint_ts() == 700
    assert cluster.info().state is FeedState.NORMAL


def test_a_held_table_that_is_dropped_is_gone_with_all_that_waited_for_it() -> None:
    cluster = running("a")
    cluster.change_schema(hold(300))
    until(cluster, HoldStage.HELD)
    cluster.change_schema(record(500, drop(T1)))
    cluster.step(4)
    cluster.ask(applied(500))
    cluster.step(6)
    assert held(cluster) == {}
    assert all(not record.pending_ids for record in cluster.state.changefeeds[FEED].ddl.values())
    assert cluster.checkpoint_ts() == 600
    cluster.change_schema(record(700, create(T1.with_(start_ts=Ts(699)))))
    cluster.step(4)
    cluster.ask(applied(700))
    cluster.step(8)
    assert cluster.checkpoint_ts() == 800
    assert cluster.info().state is FeedState.NORMAL


@pytest.mark.parametrize("is_followed", [True, False])
def test_the_checkpoint_waits_for_a_table_that_is_created_under_the_number_of_a_held_one(is_followed: bool) -> None:
    """MySQL's tables have the number of their first name. Rows behind the new one's beginning would be left out."""
    cluster = running("a")
    if is_followed:
        cluster.change_schema(record(300, alter(T1)))
        cluster.step(6)
        cluster.ask(applied(300, "no such type", retryable=False))
    else:
        cluster.change_schema(hold(300))
    until(cluster, HoldStage.HELD)
    cluster.step(6)
    assert cluster.checkpoint_ts() == 400
    cluster.put(keys.DdlKey(CLUSTER, NAMESPACE, FEED, Ts(500)), record(500, drop(T1)))
    cluster.change_schema(record(550, create(T1.with_(start_ts=Ts(549)))))
    cluster.step(8)
    assert asked(cluster)[-1] == 500
    assert cluster.checkpoint_ts() == 549
    cluster.ask(applied(500))
    cluster.step(8)
    assert cluster.checkpoint_ts() == 549
    cluster.ask(applied(550))
    cluster.step(8)
    assert held(cluster) == {}
    assert cluster.checkpoint_ts() == 650


def test_a_table_whose_log_is_gone_has_lost_its_position_and_is_not_tried_again() -> None:
    cluster = broken()
    head = LogHead(resolved_ts=Ts(900), removed_ts=Ts(300), resolved_time=cluster.now)
    cluster.put(keys.LogKey(CLUSTER, NAMESPACE, FEED, "main"), head)
    until(cluster, HoldStage.LOST)
    cluster.step(8)
    cluster.now += 10_000
    cluster.ask(Resume("1", FEED, None))
    assert cluster.answers["1"].error
    cluster.step(10)
    assert stage(cluster) is HoldStage.LOST
    assert held(cluster)[1].error.code == "PositionLost"
    assert S1 not in cluster.writers()
    assert cluster.checkpoint_ts() == 900


def test_an_operator_tries_again_at_once_without_disturbing_the_others() -> None:
    cluster = broken()
    cluster.ask(Resume("1", FEED, None))
    assert cluster.answers["1"].error == ""
    until(cluster, None, steps=12)
    assert cluster.info().epoch == 1


def test_what_was_held_when_it_was_paused_is_tried_when_it_is_resumed() -> None:
    cluster = running("a")
    cluster.change_schema(hold(300))
    until(cluster, HoldStage.HELD)
    cluster.ask(Pause("1", FEED))
    cluster.step(2)
    cluster.ask(Resume("2", FEED, None))
    until(cluster, HoldStage.TRIED)
    until(cluster, HoldStage.HELD)


def test_a_wrong_sink_is_one_error_and_not_one_for_each_table() -> None:
    cluster = running("a", "b")
    wrong = [failure(table, "TableForeign") for table in (1, 2)]
    writers = cluster.writers()
    for capture in (A, B):
        cluster.fail_tables(capture, *(e for e in wrong if writers[S1 if e.table_id == 1 else S2] == [capture]))
    cluster.step(2)
    assert held(cluster) == {}
    assert cluster.info().state is FeedState.PENDING
    assert cluster.info().error is not None
    assert cluster.info().error.message.startswith("2 of 2 tables cannot be written, and none can: ")  # type: ignore[union-attr]
    facts = Facts.of(cluster.state.changefeeds[FEED], cluster.info())
    assert cluster.owner.changefeeds[FEED].held.next_at(facts) == float("inf"), "nothing is waited for: no tick is due"


def test_a_sync_point_leaves_a_held_table_out_and_reports_it() -> None:
    cluster = broken("a")
    config = cluster.info().config.with_(sync_point_interval_seconds=1)
    cluster.put(keys.InfoKey(CLUSTER, NAMESPACE, FEED), cluster.info().with_(config=config))
    cluster.advance_log(600)
    for _ in range(20):
        cluster.step()
        if cluster.reads:
            break
    assert [table.name for table in cluster.reads[0].tables] == ["t2"]
    cluster.ask(Answered(FEED, cluster.reads[0], (TableRead("public.t2", "7", Ts(0)),)))
    (point,) = cluster.state.changefeeds[FEED].sync_points.values()
    assert point.left_out == ("public.t1",)


def test_a_target_is_not_reached_without_the_held_tables() -> None:
    cluster = running("a", target_ts=400)
    cluster.fail_tables(A, failure())
    cluster.step()
    cluster.advance_log(500)
    cluster.step(6)
    assert cluster.checkpoint_ts() == 400
    assert cluster.info().state is FeedState.WARNING
    cluster.now = held(cluster)[1].retry_at
    for _ in range(20):
        cluster.step()
    assert cluster.info().state is FeedState.FINISHED


def test_a_table_that_is_held_at_the_target_has_nothing_to_write_and_lets_the_changefeed_finish() -> None:
    cluster = running("a", target_ts=400)
    cluster.fail_tables(A, failure(2))
    cluster.step()
    cluster.advance_log(900)
    cluster.step(4)
    cluster.fail_tables(A, failure())
    cluster.step(4)
    assert {id: table.ts for id, table in held(cluster).items()} == {1: 400, 2: 200}
    cluster.now = max(table.retry_at for table in held(cluster).values())
    for _ in range(30):
        cluster.step()
    assert (cluster.info().state, held(cluster)) == (FeedState.FINISHED, {})


#: what happens to a table between two looks, in each possible order
STEPS = ("owner", "capture", "fails", "log", "time")


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("order", list(itertools.permutations(STEPS, 4)), ids="-".join)
def test_in_every_order_nothing_is_passed_over(order: tuple[str, ...]) -> None:
    """A new owner, a lost capture, another failure: the checkpoint passes no table that flows, and it comes back."""
    cluster = broken("a", "b")
    ts, seen = 200, [cluster.checkpoint_ts()]
    for name in order:
        match name:
            case "owner":
                cluster.elect(B)
            case "capture":
                cluster.leave(A)
                cluster.elect(B)
                cluster.join(A)
            case "fails":
                for capture in cluster.writers().get(S1, []):
                    cluster.fail_tables(capture, failure())
            case "log":
                ts += 300
                cluster.advance_log(ts)
            case "time":
                cluster.now += 20
        for _ in range(3):
            cluster.step()
            seen.append(cluster.checkpoint_ts())
            _check(cluster)
    for _ in range(60):
        cluster.step(after_s=5.0)
        seen.append(cluster.checkpoint_ts())
        _check(cluster)
    assert seen == sorted(seen)
    assert held(cluster) == {}
    assert cluster.checkpoint_ts() == ts
    assert sorted(cluster.writers()) == [S1, S2]


def _check(cluster: SmallCluster) -> None:
    """What flows has written all up to the checkpoint, wherever it is written."""
    written = {span: at for processor in cluster.processors.values() for span, at in processor._written.items()}
    for span, at in written.items():
        if span.table_id not in held(cluster) and any(span in one.writing for one in cluster.processors.values()):
            assert at >= cluster.checkpoint_ts(), f"{span} is at {at}"


def test_what_does_not_move_is_never_normal() -> None:
    settings = OwnerSettings(backoff=BackoffSettings(jitter=0.0), standstill_s=120.0)
    cluster = SmallCluster(A, settings=settings)
    cluster.create(info())
    for _ in range(2):
        cluster.step(4)
        cluster.finish_unit()
    cluster.step(4)
    for _ in range(50):
        cluster.advance_log(200)
        cluster.step(after_s=10.0)
        assert cluster.info().state is FeedState.NORMAL, "a quiet source moves by its time"
    cluster.step(20, after_s=10.0)
    assert cluster.info().state is FeedState.WARNING
    assert cluster.info().warning is not None
    assert cluster.info().warning.message.startswith("nothing has moved for 120 s: sync: nothing heard from the source")  # type: ignore[union-attr]
    cluster.advance_log(300)
    cluster.step(4)
    assert cluster.info().state is FeedState.NORMAL


def test_a_changefeed_is_not_rewound_behind_what_it_has() -> None:
    """A held table that is further than the new position is simply there when it is tried."""
    cluster = broken()
    cluster.advance_log(900)
    cluster.step(4)
    cluster.ask(Pause("1", FEED))
    cluster.ask(Rewind("2", FEED, Ts(150)))
    assert cluster.answers["2"].error == ""
    cluster.ask(Resume("3", FEED, None))
    for _ in range(20):
        cluster.step()
    assert held(cluster) == {}
    assert cluster.checkpoint_ts() == 900


@pytest.mark.parametrize("copied_ts", [100, 170])
@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_held_table_goes_back_with_its_changefeed_as_far_as_its_last_copy(is_resumed: bool, copied_ts: int) -> None:
    """Its sink was set back, which is why it is held: all of it is to be written again."""
    cluster = broken()
    unit = cluster.state.changefeeds[FEED].units["main"]
    tables = tuple(one.with_(start_ts=copied_ts) if one.table_id == 1 else one for one in unit.tables)
    cluster.put(keys.UnitKey(CLUSTER, NAMESPACE, FEED, "main"), unit.with_(tables=tables))
    cluster.ask(Pause("1", FEED))
    cluster.ask(Resume("2", FEED, Ts(150)) if is_resumed else Rewind("2", FEED, Ts(150)))
    assert cluster.answers["2"].error == ""
    assert held(cluster)[1].ts == max(150, copied_ts)
    assert cluster.checkpoint_ts() == 150


def test_while_some_captures_do_not_know_of_held_tables_it_is_the_changefeeds_error() -> None:
    cluster = SmallCluster(A, settings=OwnerSettings(standstill_s=1e9))
    cluster.create(info())
    for _ in range(2):
        cluster.step(4)
        cluster.finish_unit()
    cluster.step(8)
    cluster.fail_tables(A, failure())
    cluster.step(2)
    assert held(cluster) == {}
    assert cluster.info().state is FeedState.FAILED


def test_it_goes_with_its_changefeed() -> None:
    """What was held in a first life says nothing of a second one under the same name."""
    cluster = broken()
    assert held(cluster)
    cluster.ask(Remove("1", FEED))
    cluster.ask(released())
    assert [key for key in cluster.state.raw if FEED in key] == []


def test_a_table_that_the_sink_never_had_holds_nothing_and_may_come_again() -> None:
    """Renamed into the filter, say: nobody has its rows. Renamed away and created again it is a new one."""
    cluster = running("a")
    strange = TableChange(kind=SchemaChangeKind.HOLD, table_id=3, table=NEW, reason="its rows are not in the log")
    cluster.change_schema(record(300, strange))
    for _ in range(10):
        cluster.step()
    assert [(id, one.name, one.origin) for id, one in held(cluster).items()] == [(3, "public.t3", HoldOrigin.SOURCE)]
    assert cluster.checkpoint_ts() == 400
    cluster.change_schema(record(500, create(NEW.with_(start_ts=Ts(499)))))
    cluster.step(4)
    assert asked(cluster) == [500]
    cluster.ask(applied(500))
    cluster.step(10)
    assert held(cluster) == {}
    assert all(not record.pending_ids for record in cluster.state.changefeeds[FEED].ddl.values())
    assert cluster.checkpoint_ts() == 600
    assert cluster.info().state is FeedState.NORMAL


def test_a_table_that_the_sink_never_had_and_that_goes_is_forgotten() -> None:
    cluster = running("a")
    strange = TableChange(kind=SchemaChangeKind.HOLD, table_id=3, table=NEW, reason="its rows are not in the log")
    cluster.change_schema(record(300, strange))
    cluster.step(10)
    cluster.change_schema(record(500, drop(NEW)))
    cluster.step(10)
    assert asked(cluster) == []
    assert held(cluster) == {}
    assert cluster.checkpoint_ts() == 600


@pytest.mark.parametrize("name", ["t1", "renamed"])
def test_a_table_that_takes_the_name_of_a_held_one_comes_when_that_one_is_dropped(name: str) -> None:
    """CREATE OR REPLACE of a table that the sink could not change: its name there, which may be an older one, is freed
    first."""
    cluster = running("a")
    cluster.change_schema(record(300, alter(T1, name=name)))
    cluster.step(6)
    cluster.ask(applied(300, "no such type", retryable=False))
    until(cluster, HoldStage.HELD)
    new = NEW.with_(name="t1", start_ts=Ts(499))
    cluster.change_schema(record(500, drop(T1.with_(name=name)), create(new)))
    cluster.step(4)
    asked_for = [({*one.record.table_ids}, [table.name for table in one.tables]) for one in cluster.schemas[1:]]
    assert asked_for == [({1}, ["t1"])]
    cluster.ask(applied(500))
    cluster.step(4)
    assert cluster.schemas[-1].record.table_ids == {3}
    cluster.ask(applied(500))
    cluster.step(10)
    assert held(cluster) == {}
    assert cluster.checkpoint_ts() == 600
    assert cluster.info().state is FeedState.NORMAL


def test_a_table_that_is_renamed_to_the_name_of_a_held_one_lies_beside_it() -> None:
    cluster = running("a")
    cluster.change_schema(record(300, alter(T1, name="renamed")))
    cluster.step(6)
    cluster.ask(applied(300, "its place is taken", retryable=False))
    until(cluster, HoldStage.HELD)
    cluster.change_schema(record(500, alter(T2, name=T1.name)))
    cluster.step(6)
    [moved] = cluster.schemas[-1].record.changes
    assert moved.table is not None
    assert moved.table.path == f"{T1.path}!t2"


def test_a_new_table_of_the_name_of_a_held_one_lies_beside_it() -> None:
    cluster = running("a")
    cluster.change_schema(record(300, alter(T1, name="renamed")))
    cluster.step(6)
    cluster.ask(applied(300, "its place is taken", retryable=False))
    until(cluster, HoldStage.HELD)
    new = TableRecord.new(3, T1.schema_name, T1.name, key=("id",), start_ts=Ts(499))
    cluster.change_schema(record(500, create(new)))
    cluster.step(4)
    [made] = cluster.schemas[-1].record.changes
    assert made.table is not None
    assert made.table.path == f"{T1.path}!t3"
    cluster.ask(applied(500))
    cluster.change_schema(record(550, alter(new.with_(key=("id", "b")))))
    cluster.step(10)
    [altered] = cluster.schemas[-1].record.changes
    assert altered.table is not None
    assert (altered.table.path, altered.table.key) == (made.table.path, ("id", "b")), "it stays there under its name"
    cluster.ask(applied(550))
    cluster.step(4)
    assert {table.table_id: table.path for table in cluster.state.changefeeds[FEED].units["main"].tables}[
        3
    ] == made.table.path
    assert list(held(cluster)) == [1]


def test_a_held_table_is_shown_with_the_name_that_it_has_at_the_source_by_now() -> None:
    cluster = running("a")
    cluster.change_schema(hold(300))
    until(cluster, HoldStage.HELD)
    assert cluster.view().held[0].renamed_to == ""
    cluster.change_schema(record(500, alter(T1, name="newer")))
    cluster.step(4)
    (table,) = cluster.view().held
    assert (table.table.split(".")[1], table.renamed_to.split(".")[1]) == (T1.name, "newer")
    cluster.change_schema(hold(520, table=T1.with_(name="newest")))
    cluster.step(4)
    assert cluster.view().held[0].renamed_to.split(".")[1] == "newest", "also where the source cannot follow the rows"


def test_a_new_table_that_the_sink_refuses_is_gone_when_it_is_dropped() -> None:
    cluster = running("a")
    cluster.change_schema(record(300, create(NEW)))
    cluster.step(6)
    cluster.ask(applied(300, "its place is taken", retryable=False))
    cluster.step(4)
    assert held(cluster)[3].stage is HoldStage.HELD
    cluster.change_schema(record(500, drop(NEW)))
    cluster.step(2)
    assert asked(cluster) == [300, 500]
    cluster.ask(applied(500))
    cluster.step(10)
    assert held(cluster) == {}
    assert cluster.checkpoint_ts() == 600
    assert cluster.info().state is FeedState.NORMAL
