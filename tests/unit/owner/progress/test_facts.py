"""Facts: what they keep of the tables while other records change."""

import operator
from dataclasses import replace

import pytest

from owner.progress.facts import Facts
from owner.progress.units import SOURCE
from reactor.ids import ChangefeedId, Ts
from reactor.records.changefeed import ChangefeedInfo, SealedUri, Unit, UnitRecord, UnitStage
from reactor.records.log_head import LogHead
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from reactor.state import ChangefeedState

URI = SealedUri(masked="postgresql://h/d", sealed="x")
INFO = ChangefeedInfo(id=ChangefeedId("feed"), source=URI, sink=URI, epoch=1)


def table(number: int, *, start: int = 10, to_copy: bool = False) -> TableRecord:
    return TableRecord(
        table_id=number, schema_name="public", name=f"t{number}", key=("id",), start_ts=Ts(start), to_copy=to_copy
    )


def state(*tables: TableRecord, lost: int = 0, head: int = 0) -> ChangefeedState:
    unit = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=tables, start_ts=Ts(1), lost_ts=Ts(lost))
    return ChangefeedState(INFO.id, info=INFO, units={SOURCE: unit}, heads={SOURCE: LogHead(resolved_ts=Ts(head))})


def test_tables_are_not_looked_at_again_when_the_head_moves() -> None:
    feed = state(table(1), table(2))
    first = Facts.of(feed, INFO)
    feed.heads[SOURCE] = LogHead(resolved_ts=Ts(100))
    second = Facts.of(feed, INFO, before=first)
    assert second.known is first.known
    assert replace(second, info=INFO.with_(target_ts=Ts(5)), known_before=second.known).known is first.known


def test_what_does_not_follow_from_progress_is_derived_once() -> None:
    feed = state(table(1), table(2))
    feed.news = 7
    first = Facts.of(feed, INFO)
    derived = first.version, first.pending_ddl, first.waiting_names, first.parked
    feed.heads[SOURCE] = LogHead(resolved_ts=Ts(100))
    second = Facts.of(feed, INFO, before=first)
    assert second.head != first.head
    assert all(map(operator.is_, derived, (second.version, second.pending_ddl, second.waiting_names, second.parked)))
    feed.ddl[200] = DdlRecord(ts=Ts(200), changes=(TableChange(kind=SchemaChangeKind.DROP, table_id=1),))
    feed.news = 8
    third = Facts.of(feed, INFO, before=second)
    assert third.version is not second.version
    assert third.waiting_names == {1: "public.t1"}


def test_other_tables_are_known_at_once() -> None:
    first = Facts.of(state(table(1)), INFO)
    assert (first.table_ids, first.lost) == (frozenset({1}), frozenset())
    second = Facts.of(state(table(2)), INFO, before=first)
    assert (second.table_ids, frozenset(second.by_id)) == (frozenset({2}), frozenset({2}))


def test_a_lost_position_is_known_though_the_tables_are_the_same() -> None:
    feed = state(table(1, start=10), table(2, start=30))
    first = Facts.of(feed, INFO)
    feed.units[SOURCE] = feed.units[SOURCE].with_(lost_ts=Ts(20))
    second = Facts.of(feed, INFO, before=first)
    assert second.tables is first.tables
    assert (first.lost, second.lost) == (frozenset(), frozenset({1}))


@pytest.mark.parametrize(("target", "lost"), [(None, frozenset({1, 2})), (30, frozenset({1, 2})), (29, frozenset({1}))])
def test_a_table_to_copy_behind_the_target_is_not_lost(target: int | None, lost: frozenset[int]) -> None:
    facts = Facts.of(state(table(1, to_copy=True), table(2, start=30, to_copy=True), table(3)), INFO)
    assert replace(facts, info=INFO.with_(target_ts=target), known_before=facts.known).lost == lost
