"""Definitions from the catalog that a stream notes: only those that are at least as new as its own."""

from dataclasses import replace
from unittest.mock import Mock

import pytest

from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.publication import quiet_changes
from agent.sources.postgres.publication.proof import Proof
from agent.sources.postgres.publication.published import Catalog, Relation
from agent.sources.postgres.publication.quiet_changes import QuietChanges
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord

_ID, _NEW = Column("id", 23, -1, "int4", True, place=1), Column("n", 23, -1, "int4", False, place=2)
_KNOWN = TableSchema(7, "public", "t", (_ID,), "d")
_ALTERED = replace(_KNOWN, columns=(_ID, _NEW))


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> QuietChanges:
    monkeypatch.setattr(
        quiet_changes,
        "read_schemas",
        lambda _connection, tables, _terms: {table: replace(_ALTERED, table_id=table) for table in tables},
    )
    monkeypatch.setattr(quiet_changes, "read_terms", Mock())
    return QuietChanges()


def look(
    changes: QuietChanges, *, horizon: int, ahead: int, end_ts: int, running: tuple[int, ...] = (), table_id: int = 7
) -> None:
    facts = {1: (23, -1, 0), 2: (23, -1, 0)}
    numbers = {"id": 1, "n": 2}
    table = Relation(table_id, "public", "t", 1, False, True, False, file=7, columns=facts, numbers=numbers)
    written_by = {f"c{table_id}.1": 10, f"c{table_id}.2": 90}
    now = Catalog(horizon, ahead, Ts(end_ts), {}, {table_id: table}, {}, written_by, frozenset(running))
    before = Proof(horizon=50, columns={table_id: {1: (23, -1, 0)}})
    record, known = TableRecord.new(table_id, "public", "t", key=("id",)), replace(_KNOWN, table_id=table_id)
    changes.look(Mock(), (), before, now, {table_id: record}, {table_id: known})


def test_a_definition_waits_for_the_stream(changes: QuietChanges) -> None:
    look(changes, horizon=100, ahead=100, end_ts=999)
    assert changes.take(Ts(0), Ts(998)) == []
    assert changes.take(Ts(0), Ts(999)) == [(Ts(999), _ALTERED, 100)]
    assert changes.take(Ts(1000), Ts(1001)) == []


def test_each_table_has_a_place_of_its_own(changes: QuietChanges) -> None:
    for table_id in (7, 8):
        look(changes, horizon=100, ahead=100, end_ts=999, table_id=table_id)
    assert [ts for ts, *_ in changes.take(Ts(0), Ts(999))] == [999]
    assert changes.take(Ts(999), Ts(999)) == []
    assert [ts for ts, *_ in changes.take(Ts(999), Ts(1100))] == [1000]


@pytest.mark.parametrize(("xid", "counts"), [(98, True), (99, False), (100, False)])
def test_a_declaration_that_the_catalog_did_not_show_is_newer(changes: QuietChanges, xid: int, counts: bool) -> None:
    changes.note_declared(7, xid)
    look(changes, horizon=99, ahead=100, end_ts=999, running=(99,))
    assert bool(changes.take(Ts(0), Ts(2000))) is counts


def test_without_a_declaration_all_transactions_of_the_first_reading_must_have_ended(changes: QuietChanges) -> None:
    look(changes, horizon=80, ahead=100, end_ts=999, running=(80,))
    assert changes.take(Ts(0), Ts(1000)) == []
    look(changes, horizon=99, ahead=120, end_ts=1099, running=(99,))
    assert changes.take(Ts(1000), Ts(1100)) == []
    look(changes, horizon=110, ahead=130, end_ts=1199, running=(110,))
    assert changes.take(Ts(1100), Ts(1200)) == [(Ts(1199), _ALTERED, 130)]


def test_what_does_not_count_yet_is_read_again(changes: QuietChanges, monkeypatch: pytest.MonkeyPatch) -> None:
    look(changes, horizon=80, ahead=100, end_ts=999, running=(80,))
    assert not changes.is_due()
    monkeypatch.setattr(quiet_changes, "_AGAIN_S", 0.0)
    look(changes, horizon=80, ahead=100, end_ts=999, running=(80,))
    assert changes.is_due()
    look(changes, horizon=100, ahead=100, end_ts=999)
    assert not changes.is_due()
