"""Guard of interpretation: whatever fails while one table's statement is interpreted holds that table alone."""

import decimal
from collections.abc import Callable
from typing import Any

import pytest

from agent.errors import DecodeError, SourceUnreachableError
from agent.sources.common import schema_diff
from agent.sources.mysql.ddl import interpreter, renames, replicated_tables, shown, written
from agent.sources.mysql.ddl.parser import parse, sql_text
from agent.sources.mysql.ddl.replicated_tables import TableUnknownError
from agent.sources.mysql.decode.table_ids import table_id
from tests.unit.agent.sources.mysql.ddl.test_interpreter import ALTER, DROP, HOLD, Rig

ERRORS = (
    ValueError("odd"),
    OverflowError("odd"),
    KeyError("odd"),
    RecursionError("odd"),
    decimal.InvalidOperation("odd"),
    AssertionError("odd"),
    NotImplementedError("odd"),
    DecodeError("odd"),
)
#: statements that change ``t``, and whose interpretation uses all of what ``PLACES`` replaces
STATEMENTS = (
    "ALTER TABLE t ADD COLUMN n int DEFAULT 1",
    "ALTER TABLE t MODIFY id bigint",
    "RENAME TABLE t TO x",
    "DROP TABLE t",
    "CREATE OR REPLACE TABLE t (id int PRIMARY KEY)",
)
PLACES = {
    "parse": (parse, "_edits"),
    "take": (interpreter.Interpreter, "_take"),
    "exact": (shown, "exact"),
    "move": (renames, "moved"),
    "recomputed": (interpreter, "recomputed"),
    "compare": (schema_diff, "compare"),
    "conversions": (schema_diff, "conversions"),
}


def raising(error: Exception, called: list[int]) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> Any:
        called.append(1)
        raise error

    return fail


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", PLACES)
def test_an_error_of_a_statement_holds_its_table_and_no_other(
    place: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []
    for statement in STATEMENTS:
        rig = Rig("t", "u")
        before = len(called)
        with monkeypatch.context() as patch:
            patch.setattr(*PLACES[place], raising(error, called))
            changes = rig.run(statement)
        if len(called) > before and place != "parse":  # what cannot be parsed is read from the server
            assert [change.kind for change in changes if change.kind is not DROP] == [HOLD], statement
            assert "odd" in changes[-1].reason
            [held] = [table for table in rig.tables.by_name.values() if table.is_held]
            assert held.record.table_id == changes[-1].table_id
        [change] = rig.run("ALTER TABLE u ADD COLUMN m int")
        assert change.kind is ALTER, statement
        assert not rig.tables.by_name["d", "u"].is_held
        assert rig.again().by_name.keys() == rig.tables.by_name.keys(), statement
    assert called


@pytest.mark.parametrize("at", range(4))
def test_an_exchange_of_names_in_which_one_step_fails_leaves_no_table_under_a_wrong_name(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig("t", "u", "w", "other")
    names = {table_id("d", old): new for old, new in (("t", "w"), ("u", "t"), ("w", "u"), ("other", "other"))}
    calls = list[int]()

    def failing(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == at + 1:
            raise DecodeError("odd")
        return replicated_tables.moved(*args)

    with monkeypatch.context() as patch:
        patch.setattr(renames, "moved", failing)
        changes = rig.run("RENAME TABLE t TO swap_, u TO t, w TO u, swap_ TO w")
    assert HOLD in [change.kind for change in changes]
    for tables in (rig.tables, rig.again()):
        followed = [table.record for table in tables.by_name.values() if not table.is_held]
        assert table_id("d", "other") in [record.table_id for record in followed]
        assert {record.table_id: record.name for record in followed}.items() <= names.items()


def test_a_new_table_whose_statement_fails_is_held_rather_than_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig("u")
    with monkeypatch.context() as patch:
        patch.setattr(shown, "exact", raising(OverflowError("odd"), []))
        [change] = rig.run("CREATE TABLE n (id int PRIMARY KEY)")
    assert change.kind is HOLD
    assert rig.names() == ["n", "u"]


def test_a_connection_that_is_lost_meanwhile_holds_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig("t")
    monkeypatch.setattr(shown, "exact", raising(SourceUnreachableError("gone"), []))
    with pytest.raises(SourceUnreachableError):
        rig.run(STATEMENTS[0])


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_statement_without_words_concerns_the_tables_in_its_text(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig("one", "two", "a`b")
    with monkeypatch.context() as patch:
        patch.setattr(sql_text, "meant", raising(error, []))
        [change] = rig.run("alter /* */ `TWO` ?")
        assert (change.kind, change.table_id) == (HOLD, rig.tables.by_name["d", "two"].record.table_id)
        known = {("d", name) for name in ("one", "two", "a`b")}
        assert parse.mentioned("?? `A``b`", "d", dict.fromkeys(known)) == [("d", "a`b")]
        found = written.written("?", "d", known, reaches=lambda names: False, fold=lambda name: name)
        assert found == sorted(known), "any may be changed"
    assert not rig.tables.by_name["d", "one"].is_held


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_declaration_that_fails_is_one_of_its_table(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig("t")
    monkeypatch.setattr(replicated_tables, "parse_table_map", raising(error, []))
    body = bytes(8) + b"\x01d\x00\x01t\x00" + b"\x00"
    with pytest.raises(TableUnknownError, match="odd") as found:
        rig.tables.describe(body)
    assert found.value.table == ("d", "t")
