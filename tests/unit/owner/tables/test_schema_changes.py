"""Schema changes under the real owner: who waits for whom, that no order of crashes applies one twice or never."""

import itertools
from collections.abc import Iterable
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owner.jobs import Pause, Rewind
from owner.progress.facts import Facts
from owner.progress.watermark import SpanPosition
from owner.questions import ApplySchema
from owner.tables.schema_changes import SchemaChanges
from owner.tables.sink_names import independent
from reactor import keys
from reactor.ids import TableSpan, Ts
from reactor.questions import Answered
from reactor.records.changefeed import ChangefeedStatus, FeedState, RunningError, Unit, UnitRecord, UnitStage
from reactor.records.tables.change_index import ChangeIndex
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from tests.unit.owner.owner_build import FEED, S1, S2, A, B, info
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, TABLES, SmallCluster
from tests.unit.owner.test_owner import running

T1, T2 = TABLES
NEW = TableRecord(table_id=3, schema_name="public", name="t3", key=("id",), start_ts=Ts(299))


def alter(table: TableRecord = T1, *, name: str = "") -> TableChange:
    after = table.with_(name=name or table.name)
    return TableChange(kind=SchemaChangeKind.ALTER, table_id=table.table_id, table=after)


def drop(table: TableRecord) -> TableChange:
    return TableChange(kind=SchemaChangeKind.DROP, table_id=table.table_id)


def create(table: TableRecord) -> TableChange:
    return TableChange(kind=SchemaChangeKind.CREATE, table_id=table.table_id, table=table)


def record(ts: int, *changes: TableChange) -> DdlRecord:
    return DdlRecord(ts=Ts(ts), changes=changes)


def applied(ts: int, error: str = "", *, retryable: bool = True) -> Answered[None]:
    """About the tables that the sink was asked for last."""
    failure = RunningError(code="SinkConflict", message=error, retryable=retryable) if error else None
    return Answered(FEED, ApplySchema(DdlRecord(ts=Ts(ts))), error=failure)


def asked(cluster: SmallCluster) -> list[int]:
    return [question.record.ts for question in cluster.schemas]


def at(cluster: SmallCluster) -> list[int]:
    """Where the spans of the tables are."""
    run = cluster.owner.changefeeds[FEED].run
    assert run is not None
    return [one.checkpoint_ts for one in sorted(run.positions(), key=lambda one: one.span)]


def names(cluster: SmallCluster) -> list[str]:
    return [table.name for table in cluster.state.changefeeds[FEED].units["main"].tables]


def is_done(cluster: SmallCluster, ts: int) -> bool:
    return cluster.state.changefeeds[FEED].ddl[ts].done


def test_a_table_waits_right_before_its_change_and_others_flow() -> None:
    cluster = running("a", "b")
    cluster.change_schema(record(300, alter()))
    cluster.step(6)
    assert at(cluster) == [299, 400]
    assert cluster.checkpoint_ts() == 299
    assert asked(cluster) == [300]
    assert cluster.view().blocked_by == "barrier schema change of public.t1 at 299"
    causes = [table.waiting_for for table in cluster.view().tables]
    assert causes == ["schema change at 300 is not in the sink yet", ""]
    cluster.ask(applied(300))
    cluster.step(4)
    assert is_done(cluster, 300)
    assert at(cluster) == [400, 400]
    assert cluster.checkpoint_ts() == 400
    assert asked(cluster) == [300]


def test_what_the_tables_are_changes_with_done() -> None:
    cluster = running("a")
    partitioning = TablePartitioning(table_id=2, spans=1, wanted=1)
    cluster.put(keys.PartitioningKey(CLUSTER, NAMESPACE, FEED, 2), partitioning)
    cluster.change_schema(record(300, alter(name="other"), drop(T2), create(NEW)))
    cluster.step(6)
    assert names(cluster) == ["t1", "t2"]
    cluster.ask(applied(300))
    assert names(cluster) == ["other", "t3"]
    assert not cluster.state.changefeeds[FEED].partitionings
    cluster.step(8)
    run = cluster.owner.changefeeds[FEED].run
    assert run is not None
    assert [span.table_id for span in sorted(run.coordinator.sets)] == [1, 3]
    assert cluster.checkpoint_ts() == 400


def test_a_new_table_is_not_passed_over() -> None:
    """The checkpoint waits for it, and its span starts where it began."""
    cluster = running("a")
    cluster.change_schema(record(300, create(NEW)))
    cluster.step(6)
    assert at(cluster) == [400, 400]
    assert cluster.checkpoint_ts() == 299
    cluster.ask(applied(300))
    run = cluster.owner.changefeeds[FEED].run
    assert run is not None
    cluster.step()
    starts = [at.checkpoint.checkpoint_ts for span, at in run.coordinator.sets.items() if span.table_id == 3]
    assert starts == [299]


def test_a_change_waits_until_all_spans_of_its_tables_are_there() -> None:
    """One of two tables that one transaction changed is slow."""
    cluster = running("a")
    cluster.processors[A, FEED].writing.discard(S2)
    cluster.change_schema(record(300, alter(T1), alter(T2)))
    cluster.step(6)
    assert asked(cluster) == []
    first, second = (table.waiting_for for table in cluster.view().tables)
    assert (first, second.startswith("schema change")) == ("schema change at 300 is not in the sink yet", False)
    cluster.processors[A, FEED].writing.add(S2)
    cluster.step(3)
    assert at(cluster) == [299, 299]
    assert asked(cluster) == [300]


def test_changes_of_one_table_come_one_after_the_other_and_others_at_once() -> None:
    cluster = running("a")
    for ts, table in ((300, T1), (310, T1), (320, T2)):
        cluster.change_schema(record(ts, alter(table)))
    cluster.step(6)
    assert asked(cluster) == [300, 320]
    cluster.ask(applied(320))
    cluster.step(3)
    assert at(cluster) == [299, 420]
    cluster.ask(applied(300))
    cluster.step(3)
    assert asked(cluster) == [300, 320, 310]
    assert at(cluster) == [309, 420]


def test_an_error_that_may_pass_is_a_warning_and_it_is_tried_again() -> None:
    cluster = running("a")
    cluster.change_schema(record(300, alter()))
    cluster.step(6)
    waits = []
    for _ in range(2):
        cluster.ask(applied(300, "the lake is full; empty it"))
        asked_at, count = cluster.now, len(cluster.schemas)
        cluster.step(1)
        assert cluster.info().state is FeedState.WARNING
        assert cluster.view().blocked_by.endswith("at 299: the lake is full; empty it")
        causes = [table.waiting_for for table in cluster.view().tables]
        assert causes == ["schema change at 300 is not in the sink yet: the lake is full; empty it", ""]
        while len(cluster.schemas) == count:
            cluster.step()
        waits.append(round(cluster.now - asked_at))
    assert waits == [5, 10]
    cluster.ask(applied(300))
    cluster.step(4)
    assert cluster.checkpoint_ts() == 400
    assert cluster.info().state is FeedState.NORMAL
    assert not any(table.waiting_for for table in cluster.view().tables)


#: what happens between a change found and the next one, in each possible order
STEPS = ("owner", "capture", "answer", "lose answer", "step")


@pytest.mark.sample(0.25)
@pytest.mark.parametrize("order", list(itertools.permutations(STEPS, 4)), ids="-".join)
def test_every_order_of_crashes_ends_with_the_change_done(order: tuple[str, ...]) -> None:
    """The sink is asked at least once; what it is asked again, it has by its own record; no span passes the change."""
    cluster = running("a", "b")
    cluster.change_schema(record(300, alter(name="other")))
    for name in order:
        match name:
            case "owner":
                cluster.elect(B)
            case "capture":
                cluster.leave(A)
                cluster.elect(B)
                cluster.join(A)
            case "answer":
                cluster.jobs += [applied(ts) for ts in asked(cluster)]
            case "lose answer":
                cluster.step(3)
        cluster.step(2)
        if not is_done(cluster, 300):
            assert all(ts <= 299 for span, ts in positions(cluster) if span == S1)
    for _ in range(40):
        cluster.step(2)
        cluster.jobs += [applied(ts) for ts in asked(cluster)]
    assert is_done(cluster, 300)
    assert cluster.checkpoint_ts() == 400
    assert names(cluster) == ["other", "t2"]


def positions(cluster: SmallCluster) -> list[tuple[object, int]]:
    run = cluster.owner.changefeeds[FEED].run
    return [(one.span, one.checkpoint_ts) for one in run.positions()] if run else []


def test_records_go_when_nobody_can_ask_for_them() -> None:
    """But each table's newest stays: it says which schema the table has."""
    cluster = running("a")
    for ts, table in ((300, T1), (310, T1), (320, T2)):
        cluster.change_schema(record(ts, alter(table)))
    for _ in range(12):
        cluster.step()
        cluster.jobs += [applied(ts) for ts in asked(cluster)]
    assert sorted(cluster.state.changefeeds[FEED].ddl) == [300, 310, 320]
    head = cluster.state.changefeeds[FEED].heads["main"].with_(removed_ts=Ts(350))
    cluster.put(keys.LogKey(CLUSTER, NAMESPACE, FEED, "main"), head)
    cluster.step(2)
    assert sorted(cluster.state.changefeeds[FEED].ddl) == [310, 320]


def test_the_records_of_a_dropped_table_go_too() -> None:
    """Each table that was ever dropped left its last record in etcd for good."""
    cluster = running("a")
    for ts, change in ((300, alter(T1)), (310, drop(T1)), (320, alter(T2))):
        cluster.change_schema(record(ts, change))
    for _ in range(12):
        cluster.step()
        cluster.jobs += [applied(ts) for ts in asked(cluster)]
    assert sorted(cluster.state.changefeeds[FEED].ddl) == [300, 310, 320]
    for removed_ts, left in ((305, [310, 320]), (350, [320])):
        head = cluster.state.changefeeds[FEED].heads["main"].with_(removed_ts=Ts(removed_ts))
        cluster.put(keys.LogKey(CLUSTER, NAMESPACE, FEED, "main"), head)
        cluster.step(3)
        assert sorted(cluster.state.changefeeds[FEED].ddl) == left


def test_a_changefeed_is_not_rewound_over_a_schema_change() -> None:
    cluster = running("a")
    cluster.change_schema(record(300, alter(name="other")))
    for _ in range(8):
        cluster.step()
        cluster.jobs += [applied(ts) for ts in asked(cluster)]
    cluster.ask(Pause("1", FEED))
    cluster.ask(Rewind("2", FEED, Ts(250)))
    assert cluster.answers["2"].error.startswith("the schema of public.other was changed at 300, behind 250")
    cluster.ask(Rewind("3", FEED, Ts(350)))
    assert cluster.answers["3"].error == ""


@pytest.mark.parametrize("retryable", [False, True])
def test_only_the_table_that_cannot_follow_is_held(retryable: bool) -> None:
    """The sink answers for a transaction's schema changes as one; which of them it refuses is found out by itself."""
    cluster = running("a")
    cluster.change_schema(record(300, alter(T1), alter(T2, name="u2"), create(NEW)))
    cluster.step(6)
    answered = 0
    for _ in range(30):
        for question in cluster.schemas[answered:]:
            failure = RunningError(code="TableHeld", message="no", retryable=retryable)
            error = failure if 1 in question.record.table_ids else None
            cluster.jobs.append(Answered(FEED, question, error=error))
        answered = len(cluster.schemas)
        cluster.step(2, after_s=5)
    assert [(held.table, held.ts) for held in cluster.view().held] == [("public.t1", 299)]
    assert names(cluster) == ["t1", "u2", "t3"]
    assert cluster.state.changefeeds[FEED].ddl[300].pending_ids == {1}


def test_tables_that_exchange_names_are_held_together() -> None:
    cluster = running("a")
    cluster.change_schema(record(300, alter(T1, name="t2"), alter(T2, name="t1"), create(NEW)))
    cluster.step(6)
    answered = 0
    for _ in range(30):
        for question in cluster.schemas[answered:]:
            failure = RunningError(code="TableHeld", message="no", retryable=False)
            cluster.jobs.append(Answered(FEED, question, error=failure if 1 in question.record.table_ids else None))
        answered = len(cluster.schemas)
        cluster.step(2, after_s=5)
    assert [held.table for held in cluster.view().held] == ["public.t1", "public.t2"]
    assert names(cluster) == ["t1", "t2", "t3"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=6))
def test_groups_of_changes_share_no_name_and_nothing_is_left_out(changes: list[tuple[int, int]]) -> None:
    known = tuple(TableRecord(table_id=n, schema_name="s", name=f"n{old}") for n, (old, _) in enumerate(changes, 1))
    facts = Facts(
        info(FeedState.NORMAL),
        ChangefeedStatus(),
        UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=known),
        None,
    )
    moves = [alter(table, name=f"n{new}") for table, (_, new) in zip(known, changes, strict=True)]
    groups = independent(moves, facts)
    assert sorted(change.table_id for group in groups for change in group) == list(range(1, len(changes) + 1))
    touched = [{n for change in group for n in changes[change.table_id - 1]} for group in groups]
    assert all(not one & other for one, other in itertools.combinations(touched, 2))
    for group in groups:  # none could be divided further
        reached, rest = set(changes[group[0].table_id - 1]), [changes[change.table_id - 1] for change in group]
        for _ in group:
            reached |= {n for pair in rest if reached & set(pair) for n in pair}
        assert all(reached & set(pair) for pair in rest)


def test_a_move_that_was_begun_is_asked_for_again_while_no_span_can_open_its_table() -> None:
    """The owner's capture ends between the sink's steps: a table lies at none of its names, and its span waits."""
    cluster = running("a")
    cluster.change_schema(record(300, alter(T1, name="other"), alter(T2)))
    cluster.step(6)
    assert asked(cluster) == [300]
    assert cluster.state.changefeeds[FEED].ddl[300].begun == (1, 2)
    cluster.is_moving = True
    cluster.leave(A)
    cluster.join(B)
    cluster.elect(B)
    cluster.step(20)
    assert cluster.writers() == {}
    assert asked(cluster) == [300, 300]
    cluster.ask(applied(300))
    assert names(cluster) == ["other", "t2"]
    cluster.end_move()
    cluster.step(10)
    assert cluster.checkpoint_ts() == 400


def test_a_table_that_takes_the_place_of_a_dropped_one_is_asked_for_again_while_no_span_can_open_that() -> None:
    """``CREATE OR REPLACE TABLE``: the sink has only the new table when the owner's capture ends."""
    cluster = running("a")
    cluster.change_schema(record(300, drop(T1), create(NEW.with_(name=T1.name))))
    cluster.step(6)
    assert asked(cluster) == [300]
    assert cluster.state.changefeeds[FEED].ddl[300].begun == (1, 3)
    cluster.is_moving = True
    cluster.leave(A)
    cluster.join(B)
    cluster.elect(B)
    cluster.step(20)
    assert asked(cluster) == [300, 300]
    cluster.ask(applied(300))
    cluster.end_move()
    cluster.step(10)
    assert sorted(names(cluster)) == ["t1", "t2"]
    assert cluster.checkpoint_ts() == 400


def test_a_change_that_moves_nothing_is_not_marked() -> None:
    cluster = running("a")
    cluster.change_schema(record(300, alter(T1), drop(T2), create(NEW)))
    cluster.step(6)
    assert asked(cluster) == [300]
    assert cluster.state.changefeeds[FEED].ddl[300].begun == ()


@pytest.mark.parametrize("leaves", ["drop", "rename", "rename twice"])
def test_a_name_is_taken_after_its_table_has_left_it(leaves: str) -> None:
    """The one that leaves waits for its rows, the one that comes has none."""
    cluster = running("a")
    gone = {
        "drop": [drop(T1)],
        "rename": [alter(T1, name="old")],
        "rename twice": [alter(T1, name="t3"), alter(T1, name="old")],
    }[leaves]
    name = "t3" if leaves == "rename twice" else T1.name
    for at_ts, change in enumerate(gone, 300):
        cluster.put(keys.DdlKey(CLUSTER, NAMESPACE, FEED, Ts(at_ts)), record(at_ts, change))
    cluster.change_schema(record(310, create(NEW.with_(name=name, start_ts=Ts(309)))))
    cluster.step(20)
    for _ in range(3):
        assert len(asked(cluster)) == len(set(asked(cluster)))
        cluster.ask(applied(asked(cluster)[-1]))
        cluster.step(10)
    assert asked(cluster) == [*range(300, 300 + len(gone)), 310]
    assert cluster.checkpoint_ts() == 410


def many_tables(count: int) -> tuple[TableRecord, ...]:
    return tuple(T1.with_(table_id=n, name=f"t{n}") for n in range(1, count + 1))


def round_s(tables: tuple[TableRecord, ...], ddl: Iterable[DdlRecord], at: int) -> float:
    """Return the processor time of a round in which ``tables`` are at ``at``, and of the next one."""
    unit = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=tables)
    status = ChangefeedStatus(checkpoint_ts=Ts(at))
    facts = Facts(info(), status, unit, None, ddl=ChangeIndex({record.ts: record for record in ddl}))
    spans = [SpanPosition(TableSpan(table.table_id), Ts(at)) for table in tables]
    changes, begun = SchemaChanges(cluster=CLUSTER, wall_offset_s=0.0), process_time()
    asked = changes.tick(facts, lambda: spans, 1.0)
    assert len(asked) in (0, 1, 4)
    changes.tick(facts, lambda: spans, 2.0)
    return process_time() - begun


@pytest.mark.parametrize("at", [200, 5_000], ids=["waiting", "there"])
@pytest.mark.parametrize("kind", ["altered", "renamed", "created", "in one transaction"])
def test_a_round_is_short_however_many_tables_change_at_once(kind: str, at: int) -> None:
    """A migration of a thousand tables: a round took 17 s, in which the capture lost its lease, and so did the next."""
    tables = many_tables(1_000)
    new = [table.with_(name=f"{table.name}_new") if kind == "renamed" else table for table in tables]
    changes = [create(table) if kind == "created" else alter(table) for table in new]
    ddl = [record(1_000 + n, change) for n, change in enumerate(changes)]
    if kind == "in one transaction":
        ddl = [record(1_000, *changes)]
    assert round_s(tables[:1] if kind == "created" else tables, ddl, at) < 2.0
