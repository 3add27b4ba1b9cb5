"""Turns of copies under the real owner: few large tables at a time, and many small ones together."""

from typing import Any

import pytest

from owner.jobs import ResyncTable
from owner.questions import CopyTable, TableCopied
from owner.tables.copy_turns import AT_ONCE, READ_AT_ONCE, SMALL_AT_ONCE
from reactor import keys
from reactor.ids import Ts
from reactor.questions import Answered
from reactor.records.changefeed import RunningError
from reactor.records.tables.resync import ResyncStage
from tests.unit.owner.owner_build import FEED
from tests.unit.owner.small_cluster import CLUSTER, NAMESPACE, TABLES, SmallCluster
from tests.unit.owner.test_owner import running

AWAY = RunningError(code="SourceUnreachable", message="away")


def asked(count: int, **changes: object) -> SmallCluster:
    """A copy of each of ``count`` tables is asked for. ``changes``: of the changefeed's configuration."""
    cluster = running("a")
    if changes:
        info = cluster.info()
        cluster.put(keys.InfoKey(CLUSTER, NAMESPACE, FEED), info.with_(config=info.config.with_(**changes)))
    tables = tuple(TABLES[0].with_(table_id=n, name=f"t{n}", start_ts=Ts(150)) for n in range(1, count + 1))
    unit = cluster.state.changefeeds[FEED].units["main"]
    cluster.put(keys.UnitKey(CLUSTER, NAMESPACE, FEED, "main"), unit.with_(tables=tables))
    cluster.step(8)
    for table in tables:
        cluster.ask(ResyncTable(f"r{table.table_id}", FEED, table.table_id))
    cluster.step(8)
    return cluster


def measured(cluster: SmallCluster, *, large: tuple[int, ...] = (), gone: tuple[int, ...] = ()) -> None:
    question = cluster.measures[-1]
    rows = {table.table_id: 10**6 if table.table_id in large else 10 for table in question.tables}
    answer: Answered[Any] = Answered(FEED, question, {id: n for id, n in rows.items() if id not in gone})
    cluster.ask(answer)
    cluster.step(8)


def copied(cluster: SmallCluster) -> dict[int, bool]:
    """Return the tables that the source is asked to copy, and whether with others; the last question of each counts."""
    return {one.table.table_id: one.together for one in cluster.copies if isinstance(one, CopyTable)}


def answer(cluster: SmallCluster, ids: set[int], error: RunningError | None = None) -> None:
    last = {one.table.table_id: one for one in cluster.copies if isinstance(one, CopyTable)}
    for id in sorted(ids):
        found = TableCopied(last[id].table.with_(start_ts=Ts(600), consistent_ts=Ts(605)), rows=7)
        cluster.ask(Answered(FEED, last[id], None if error else found, error))
    cluster.step(8)


def stages(cluster: SmallCluster, wanted: ResyncStage) -> set[int]:
    return {id for id, one in cluster.state.changefeeds[FEED].resyncs.items() if one.stage is wanted}


def test_small_tables_are_copied_together_and_large_ones_two_at_a_time() -> None:
    cluster = asked(8)
    assert copied(cluster) == {1: False, 2: False}, "their sizes are not known yet"
    measured(cluster, large=(4, 6), gone=(8,))
    assert copied(cluster) == {1: False, 2: False, 3: True, 4: False, 5: True, 6: False, 7: True}
    assert stages(cluster, ResyncStage.ASKED) == {8}, "a table that is gone is no small one"
    answer(cluster, {1, 2, 3, 5, 7})
    assert stages(cluster, ResyncStage.ASKED) == {8}
    answer(cluster, {4})
    assert copied(cluster)[8] is False
    assert len(cluster.measures) == 1


def test_of_many_small_ones_as_many_as_are_copied_together_are_held() -> None:
    cluster = asked(SMALL_AT_ONCE + 20)
    measured(cluster)
    held = SMALL_AT_ONCE
    assert len(stages(cluster, ResyncStage.COPYING)) == held, "the first two are known to be small by now"
    answer(cluster, set(range(3, 13)))
    assert len(stages(cluster, ResyncStage.PLACING)) == 10
    assert len(stages(cluster, ResyncStage.COPYING)) == held - 10


def test_nobody_is_asked_for_sizes_if_all_may_begin() -> None:
    assert asked(READ_AT_ONCE).measures == []


@pytest.mark.parametrize("limit", [100, None])
def test_where_reading_is_limited_tables_are_copied_as_before(limit: int | None) -> None:
    """Rows of a group would be read without a pause."""
    cluster = asked(6, read_rows_per_second=limit)
    assert bool(cluster.measures) == (limit is None)
    assert copied(cluster) == {1: False, 2: False}


def test_a_small_table_that_could_not_be_copied_is_copied_alone() -> None:
    cluster = asked(6)
    measured(cluster)
    answer(cluster, {3}, AWAY)
    cluster.step(8, after_s=2.0)
    assert copied(cluster) == {1: False, 2: False, 3: False, 4: True, 5: True, 6: True}


def test_small_tables_that_all_failed_are_not_read_all_at_once() -> None:
    cluster = asked(12)
    measured(cluster)
    answer(cluster, set(range(3, 13)), AWAY)
    cluster.copies.clear()
    cluster.step(8, after_s=2.0)
    first = set(copied(cluster))
    assert len(first) == AT_ONCE - 2
    answer(cluster, first, AWAY)
    others = copied(cluster).keys() - first
    assert len(others) == AT_ONCE - 2, "an error is heard, and others have their turn"


def test_sizes_that_could_not_be_had_are_asked_for_later() -> None:
    cluster = asked(6)
    away: Answered[Any] = Answered(FEED, cluster.measures[0], error=AWAY)
    cluster.ask(away)
    cluster.step(8)
    assert (len(cluster.measures), copied(cluster)) == (1, {1: False, 2: False})
    cluster.step(8, after_s=5.0)
    assert len(cluster.measures) == 2
    measured(cluster)
    assert [*copied(cluster)] == [1, 2, 3, 4, 5, 6]


def test_the_next_owner_reads_few_alone_until_it_knows_which_are_small() -> None:
    cluster = asked(12)
    measured(cluster)
    cluster.copies.clear()
    cluster.elect(cluster.owner.capture)
    cluster.step(8)
    assert list(copied(cluster).values()) == [False] * AT_ONCE
    measured(cluster)
    assert len(copied(cluster)) == 12
    assert list(copied(cluster).values()).count(True) == 12 - AT_ONCE
