"""Changefeeds that have no table at the moment, under the real owner: the checkpoint follows the log all the same."""

import itertools

import pytest

from owner.jobs import Pause, Resume
from reactor import keys
from reactor.ids import Ts
from reactor.records.changefeed import FeedState, RunningError
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.table import TableRecord
from tests.unit.owner.owner_build import FEED, A, B
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, TABLES, SmallCluster
from tests.unit.owner.tables.test_schema_changes import applied, create, drop, names, record
from tests.unit.owner.test_owner import running

#: what may happen while there is no table, before one comes
DISTURBANCES = ("owner", "capture", "pause", "partitioning")


def change(cluster: SmallCluster, ts: int, *changes: object) -> None:
    cluster.change_schema(record(ts, *changes))  # type: ignore[arg-type]
    cluster.step(6)
    cluster.ask(applied(ts))
    cluster.step(6)


def without_tables() -> SmallCluster:
    cluster = running("a", "b")
    change(cluster, 300, *(drop(table) for table in TABLES))
    assert names(cluster) == []
    return cluster


def check_flows(cluster: SmallCluster, ts: int) -> None:
    cluster.advance_log(ts)
    cluster.step(8)
    assert cluster.checkpoint_ts() == ts
    assert cluster.info().state is FeedState.NORMAL
    assert cluster.view().blocked_by == ""


def disturb(cluster: SmallCluster, what: str) -> None:
    match what:
        case "owner":
            cluster.elect(B if cluster.owner.capture == A else A)
        case "capture":
            cluster.leave(B if cluster.owner.capture == A else A)
            cluster.step(4)
            cluster.join(A if A not in cluster.state.captures else B)
        case "pause":
            cluster.ask(Pause("pause", FEED))
            cluster.step(4)
            cluster.ask(Resume("resume", FEED))
        case "partitioning":  # left by a table that is gone
            key = keys.PartitioningKey(CLUSTER, NAMESPACE, FEED, 2)
            cluster.put(key, TablePartitioning(table_id=2, spans=1, wanted=1))
    cluster.step(8, after_s=1.0)


def test_the_checkpoint_follows_the_log_when_the_last_table_is_dropped() -> None:
    check_flows(without_tables(), 1000)


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("order", list(itertools.permutations(DISTURBANCES, 2)))
def test_tables_come_and_go_whatever_happens_in_between(order: tuple[str, ...]) -> None:
    cluster = without_tables()
    for number, what in enumerate(order, start=1):
        disturb(cluster, what)
        check_flows(cluster, 1000 * number)
        came_ts, went_ts = 1000 * number + 100, 1000 * number + 500
        table = TableRecord(
            table_id=2 + number, schema_name="public", name=f"t{number}", key=("id",), start_ts=Ts(came_ts - 1)
        )
        change(cluster, came_ts, create(table))
        assert [span.table_id for span in cluster.writers()] == [table.table_id]
        check_flows(cluster, came_ts + 200)
        change(cluster, went_ts, drop(table))
        check_flows(cluster, went_ts + 200)
        assert cluster.writers() == {}


def test_the_only_table_is_held_and_dropped() -> None:
    cluster = running("a", "b")
    change(cluster, 300, drop(TABLES[1]))
    error = RunningError(code="TableHeld", message="it cannot be; mend it", retryable=False, scope="table", table_id=1)
    cluster.fail_tables(A, error)
    cluster.step(40)
    cluster.fail_tables(A)
    change(cluster, 1300, drop(TABLES[0]))
    assert names(cluster) == []
    check_flows(cluster, 2000)
