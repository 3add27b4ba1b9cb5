"""Quiet logs: when the owner follows the head by itself, and when it waits for captures' reports."""

import pytest

from owner.feed import run
from owner.progress import barrier
from owner.progress.facts import Facts
from owner.progress.units import SOURCE
from reactor.ids import Ts
from reactor.records.changefeed import Unit, UnitRecord, UnitStage
from reactor.records.log_head import LogHead
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from reactor.state import ChangefeedState
from tests.unit.owner.owner_build import FEED, info

TABLE = TableRecord(table_id=7, schema_name="public", name="t", key=("id",), start_ts=Ts(1))
UNIT = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=(TABLE,), start_ts=Ts(1))
HEAD = LogHead(resolved_ts=Ts(100))


def _facts(*, change_ts: int = 0, done: bool = False) -> Facts:
    feed = ChangefeedState(FEED, info=info(), units={SOURCE: UNIT}, heads={SOURCE: HEAD})
    if change_ts:
        change = TableChange(kind=SchemaChangeKind.DROP, table_id=7)
        feed.ddl[change_ts] = DdlRecord(ts=Ts(change_ts), changes=(change,), done=done)
    return Facts.of(feed, info())


@pytest.mark.parametrize(("target", "is_free"), [(None, True), (101, True), (100, True), (99, False)])
def test_the_owner_follows_a_log_that_ends_at_or_in_front_of_the_barrier(target: int | None, is_free: bool) -> None:
    limits = barrier.limits(None if target is None else Ts(target), None, ())
    assert run._is_free(_facts(), HEAD, limits) is is_free


@pytest.mark.parametrize("held", [(), (7,)], ids=["waits", "held"])
def test_where_a_table_waits_for_a_schema_change_captures_report_where_they_are(held: tuple[int, ...]) -> None:
    facts = _facts(change_ts=90)
    assert facts.pending_ddl
    assert not run._is_free(facts, HEAD, barrier.limits(None, None, facts.pending_ddl, held=held))
    behind = _facts(change_ts=101)
    assert run._is_free(behind, HEAD, barrier.limits(None, None, behind.pending_ddl, held=held))
    done = _facts(change_ts=90, done=True)
    assert run._is_free(done, HEAD, barrier.limits(None, None, done.pending_ddl))
