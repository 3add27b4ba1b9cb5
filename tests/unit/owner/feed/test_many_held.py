"""Hundreds of tables are held, lost, copied and released at once: no transaction is larger than etcd takes."""

import sys
from collections.abc import Callable, Collection, Iterable
from types import FrameType

import pytest

from owner.feed.holds.held import HeldTables
from owner.jobs import Pause, Resume
from owner.progress.facts import Facts
from owner.tables.refusal import Refusal
from owner.tables.verdict import Verdict
from reactor import keys
from reactor.effects import Commit
from reactor.errors import Scope
from reactor.ids import Ts
from reactor.patches import group
from reactor.records.changefeed import ChangefeedStatus, FeedState, RunningError
from reactor.records.log_head import LogHead
from reactor.records.tables.held import HeldTable, HoldOrigin, HoldStage
from reactor.records.tables.resync import ResyncStage, TableResync
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from reactor.txn import OPERATIONS_MAX
from tests.unit.owner.owner_build import FEED, A
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, SmallCluster
from tests.unit.owner.test_owner import running

PLACE = (CLUSTER, NAMESPACE, FEED)
#: more than one transaction has operations
COUNT = 300


def table(number: int) -> TableRecord:
    return TableRecord(table_id=number, schema_name="public", name=f"t{number}", key=("id",), start_ts=Ts(100))


def many(count: int = COUNT) -> SmallCluster:
    """A changefeed at 200 with so many tables, all of which flow."""
    cluster = running("a")
    unit = cluster.state.changefeeds[FEED].units["main"]
    tables = tuple(table(number) for number in range(1, count + 1))
    cluster.put(keys.UnitKey(*PLACE, "main"), unit.with_(tables=tables))
    until(cluster, lambda: len(cluster.writers()) == count, steps=1_000)
    return cluster


def until(cluster: SmallCluster, done: Callable[[], bool], *, steps: int = 100) -> None:
    for _ in range(steps):
        if done():
            return
        cluster.step()
    raise AssertionError("it does not come to that")


def failure(number: int, text: str = "bytes that no type has") -> RunningError:
    return RunningError(code="Decode", message=text, table_id=number, scope=Scope.TABLE, retryable=False, time=1005.0)


def held(cluster: SmallCluster) -> dict[int, HeldTable]:
    return cluster.state.changefeeds[FEED].held


def facts(cluster: SmallCluster) -> Facts:
    return Facts.of(cluster.state.changefeeds[FEED], cluster.info())


class Standing:
    """Spans that have all come to ``ts``."""

    def __init__(self, ts: int = 200) -> None:
        self._ts = Ts(ts)

    def reached(self, ids: Iterable[int], *, is_written: bool = False) -> dict[int, Ts]:
        return dict.fromkeys(ids, self._ts)

    def writes_others(self, failing: Collection[int]) -> bool:
        return True


def put_held(cluster: SmallCluster, number: int, **fields: object) -> None:
    record = HeldTable(table_id=number, name=f"public.t{number}", ts=Ts(200), since=1.0, error=failure(number))
    cluster.put(keys.HeldKey(*PLACE, number), record.with_(**fields))


def test_tables_of_all_causes_are_held_in_the_same_round() -> None:
    """Each cause alone fits into a transaction, which forty captures' reports are in, too."""
    cluster = many()
    for number in range(1, 61):
        put_held(cluster, number, retry_at=1.0)
    tables = HeldTables(FEED, cluster=CLUSTER, namespace=NAMESPACE, wall_offset_s=0.0)
    refusals = [Refusal(n, f"public.t{n}", Ts(200), HoldOrigin.SOURCE, failure(n)) for n in range(101, 161)]
    tables.note([failure(number) for number in range(201, 261)], refusals)
    changed: list[str] = []
    while len(changed) < 180:
        verdict = tables.tick(facts(cluster), Standing(), cluster.now)
        assert 0 < len(verdict.changes) < OPERATIONS_MAX - 40
        cluster._commit(Commit(group(verdict.changes)))
        changed += [change.key for change in verdict.changes]
    assert len(set(changed)) == 180


@pytest.mark.parametrize("is_paused", [False, True])
def test_all_are_tried_again_by_one_wish(is_paused: bool) -> None:
    cluster = many()
    for number in range(1, COUNT):
        put_held(cluster, number)
    cluster.step(4)
    if is_paused:
        cluster.ask(Pause("p", FEED))
        cluster.step(2)
    cluster.ask(Resume("r", FEED, None))
    assert cluster.answers["r"].error == ""
    until(cluster, lambda: not held(cluster))
    cluster.advance_log(900)
    until(cluster, lambda: cluster.checkpoint_ts() == 900)
    assert cluster.info().state is FeedState.NORMAL


def test_all_lose_their_position_at_once() -> None:
    cluster = many()
    for number in range(1, COUNT):
        put_held(cluster, number)
    cluster.step(2)
    head = LogHead(resolved_ts=Ts(900), resolved_time=cluster.now, removed_ts=Ts(500))
    cluster.put(keys.LogKey(*PLACE, "main"), head)
    until(cluster, lambda: all(one.stage is HoldStage.LOST for one in held(cluster).values()))
    assert len(held(cluster)) == COUNT - 1


def test_positions_of_tables_that_catch_up_together_are_stored_in_several_rounds() -> None:
    """While they are behind the checkpoint, which does not wait for them."""
    cluster = many()
    for number in range(1, COUNT):
        put_held(cluster, number, stage=HoldStage.TRIED)
    tables = HeldTables(FEED, cluster=CLUSTER, namespace=NAMESPACE, wall_offset_s=0.0)
    status = ChangefeedStatus(checkpoint_ts=Ts(900))
    tables.catch_up(facts(cluster), status, Standing(250), Verdict(), cluster.now)
    cluster.now += 10.0
    for _ in range(4):
        verdict = Verdict()
        tables.catch_up(facts(cluster), status, Standing(250), verdict, cluster.now)
        assert len(verdict.changes) < OPERATIONS_MAX - 40
        cluster._commit(Commit(group(verdict.changes)))
    assert {one.ts for one in held(cluster).values()} == {250}


def test_large_errors_are_divided_by_bytes() -> None:
    """Sixty records, as many as fit by their number."""
    cluster = many()
    cluster.fail_tables(A, *(failure(number, "x" * 30_000) for number in range(1, 61)))
    until(cluster, lambda: len(held(cluster)) == 60)


def test_tables_that_are_gone_are_forgotten_at_once() -> None:
    cluster = many()
    for number in range(1, COUNT):
        put_held(cluster, number)
    cluster.step(2)
    unit = cluster.state.changefeeds[FEED].units["main"]
    cluster.put(keys.UnitKey(*PLACE, "main"), unit.with_(tables=(table(COUNT),)))
    until(cluster, lambda: not held(cluster))


def test_work_to_hold_tables_at_one_position_grows_with_their_number() -> None:
    """And not with its square: a round that held three thousand took 5 to 9 s."""
    few, twice = work_to_hold(150), work_to_hold(300)
    assert twice < 3 * few


def work_to_hold(count: int) -> int:
    """Count the calls of the first round in which tables are held."""
    cluster = many(count)
    changes = (
        TableChange(kind=SchemaChangeKind.HOLD, table_id=n, table=table(n), reason="unlogged")
        for n in range(1, count + 1)
    )
    cluster.change_schema(DdlRecord(ts=Ts(300), changes=tuple(changes)))
    calls = 0

    def count_call(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    while not held(cluster):
        calls = 0
        sys.setprofile(count_call)
        try:
            cluster.step()
        finally:
            sys.setprofile(None)
    until(cluster, lambda: len(held(cluster)) == count)
    return calls


def test_resyncs_have_their_turn_whatever_the_order_of_their_keys() -> None:
    """The first in turn is the last one that was read."""
    cluster = many()
    for number in range(COUNT, 0, -1):
        wish = TableResync(table_id=number, name=f"public.t{number}", number=1)
        cluster.put(keys.ResyncKey(*PLACE, number), wish)
    until(cluster, lambda: cluster.state.changefeeds[FEED].resyncs[1].stage is ResyncStage.COPYING)
    assert held(cluster)[1].origin is HoldOrigin.RESYNC
