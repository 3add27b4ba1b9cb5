"""Departures under the real owner: the sink marks tables that have left, whoever is owner, until they join again."""

from owner.jobs import Update
from reactor import keys
from reactor.questions import Answered
from reactor.records.changefeed import ChangefeedConfig, FilterConfig, RunningError, UnitRecord
from reactor.records.tables.partitioning import LEFT_MAX, LeftTable
from tests.unit.owner.feed.test_amendment import moving
from tests.unit.owner.owner_build import FEED, B
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, TABLES, SmallCluster
from tests.unit.owner.test_owner import running

T1, T2 = TABLES
NAME = f"{T1.schema_name}.{T1.name}"


def left(cluster: SmallCluster) -> tuple[LeftTable, ...]:
    return cluster.state.changefeeds[FEED].units["main"].left


def without_first(*captures: str) -> SmallCluster:
    cluster = running(*captures)
    cluster.ask(moving(leaving=(1,)))
    assert cluster.answers["move"].error == ""
    cluster.step(2)
    return cluster


def answer(cluster: SmallCluster, error: RunningError | None = None) -> None:
    cluster.ask(Answered(FEED, cluster.marks[-1], error=error))
    cluster.step(2)


def test_the_sink_is_asked_once_and_the_answer_is_shown() -> None:
    cluster = without_first("a")
    [question] = cluster.marks
    assert (question.table.table_id, question.table.path, question.ts) == (1, T1.path, 200)
    [view] = cluster.view().left
    assert (view.table, view.ts, view.marked) == (NAME, 200, False)
    answer(cluster)
    [view] = cluster.view().left
    assert (view.marked, view.message) == (True, "")
    cluster.step(8)
    assert len(cluster.marks) == 1


def test_another_owner_asks_again_until_somebody_has_the_answer() -> None:
    cluster = without_first("a", "b")
    cluster.elect(B)
    cluster.step(12)
    assert len(cluster.marks) == 2
    answer(cluster)
    assert [one.marked for one in left(cluster)] == [True]


def test_an_error_that_passes_is_tried_again_and_another_is_shown() -> None:
    cluster = without_first("a")
    answer(cluster, RunningError(code="SinkPassing", message="away"))
    assert [(one.marked, one.message) for one in left(cluster)] == [(False, "")]
    assert [dict(log.fields)["error"] for log in cluster.logs if "not marked" in log.event] == ["away"]
    cluster.step(4, after_s=2.0)
    assert len(cluster.marks) == 2
    answer(cluster, RunningError(code="TableForeign", message="another's", retryable=False))
    assert [(one.marked, one.message) for one in left(cluster)] == [(False, "another's")]
    cluster.step(8, after_s=100.0)
    assert len(cluster.marks) == 2


def test_a_table_that_joins_again_is_forgotten_when_it_is_marked() -> None:
    """What lies at the sink may be in the way of a table that is made again before it has joined."""
    cluster = without_first("a")
    joins = ChangefeedConfig(filter=FilterConfig(rules=("*.*",)))
    cluster.ask(Update("back", FEED, config=joins, joining=((T1.schema_name, T1.name),)))
    cluster.step(12)
    assert cluster.view().left == ()
    assert [one.marked for one in left(cluster)] == [False]
    answer(cluster)
    cluster.step(2)
    assert left(cluster) == ()


def test_a_table_that_leaves_and_joins_at_once_is_marked_and_not_shown() -> None:
    cluster = running("a")
    cluster.ask(moving((T1.schema_name, T1.name), leaving=(1,)))
    cluster.step(4)
    assert cluster.view().left == ()
    answer(cluster)
    cluster.step(2)
    assert left(cluster) == ()


def test_a_table_that_has_left_is_forgotten_when_its_name_joins() -> None:
    cluster = without_first("a")
    answer(cluster)
    joins = ChangefeedConfig(filter=FilterConfig(rules=("*.*",)))
    cluster.ask(Update("back", FEED, config=joins, joining=((T1.schema_name, T1.name),)))
    cluster.step(4)
    assert (left(cluster), len(cluster.marks)) == ((), 1)


def test_the_newest_are_remembered() -> None:
    cluster = running("a")
    key = keys.UnitKey(CLUSTER, NAMESPACE, FEED, "main")
    unit = cluster.state.changefeeds[FEED].units["main"]
    assert isinstance(unit, UnitRecord)
    earlier = (
        LeftTable(table_id=1_000 + number, schema_name="s", name=f"t{number}", marked=True)
        for number in range(LEFT_MAX)
    )
    cluster.put(key, unit.with_(left=tuple(earlier)))
    cluster.step()
    cluster.ask(moving(leaving=(1,)))
    cluster.step(2)
    assert (len(left(cluster)), left(cluster)[0].name, left(cluster)[-1].table_id) == (LEFT_MAX, "t1", 1)
