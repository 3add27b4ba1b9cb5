"""Streams that continue where others ended, anywhere in a history: they record what one stream would."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from agent.rows.schema import TableSchema
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl.copies.memory import FileBegin, Memory
from agent.sources.mysql.ddl.copies.shadows import Shadow
from agent.sources.mysql.ddl.replicated_tables import TableUnknownError
from agent.sources.mysql.decode.charsets import charset_of
from tests.unit.agent.sources.mysql.ddl.parser.test_parse import table
from tests.unit.agent.sources.mysql.ddl.test_interpreter import CREATE, DROP, Rig, definitions, minimal_map

#: "rows of" a copy, or of a replicated table, are in the log at that place
HISTORIES = {
    "gh-ost": [
        "CREATE TABLE `_t_gho` LIKE t",
        "ALTER TABLE `_t_gho` ADD COLUMN n INT NOT NULL DEFAULT 3, CHANGE a c VARCHAR(20)",
        "rows of _t_gho",
        "ALTER TABLE `_t_gho` RENAME COLUMN n TO m, DROP b",
        "RENAME TABLE t TO _t_del, _t_gho TO t",
        "DROP TABLE IF EXISTS _t_del",
        "ALTER TABLE t ADD z INT DEFAULT 4",
    ],
    "a text with the copy's collation": [
        "CREATE TABLE _u_gho LIKE u",
        "ALTER TABLE _u_gho ADD z varchar(9) DEFAULT 'q'",
        "rows of _u_gho",
        "RENAME TABLE u TO _u_del, _u_gho TO u",
    ],
    "two statements": [
        "CREATE TABLE _t_new LIKE t",
        "ALTER TABLE _t_new DROP b, MODIFY a varchar(30)",
        "rows of _t_new",
        "RENAME TABLE t TO _t_old",
        "RENAME TABLE _t_new TO t",
        "DROP TABLE _t_old",
    ],
    "drop and swap": [
        "CREATE TABLE _t_new LIKE t",
        "ALTER TABLE _t_new ADD z INT DEFAULT 4",
        "rows of _t_new",
        "DROP TABLE t",
        "RENAME TABLE _t_new TO t",
    ],
    "a copy without rows": [
        "CREATE TABLE _t_new LIKE t",
        "ALTER TABLE _t_new ADD z INT DEFAULT 4",
        "RENAME TABLE t TO _t_old, _t_new TO t",
    ],
    "unknown values": [
        "CREATE TABLE _t_new LIKE t",
        "ALTER TABLE _t_new ADD z DATETIME DEFAULT CURRENT_TIMESTAMP",
        "rows of _t_new",
        "RENAME TABLE t TO _t_old, _t_new TO t",
    ],
    "a doubt": [
        "CREATE TABLE _t_new LIKE t",
        "ALTER TABLE _t_new ADD UNIQUE (a) USING HASH",
        "rows of _t_new",
        "RENAME TABLE t TO _t_old, _t_new TO t",
    ],
    "another table of the name": [
        "CREATE TABLE _t_new LIKE t",
        "DROP TABLE t",
        "CREATE TABLE t (id INT PRIMARY KEY, x INT)",
        "DROP TABLE _t_new",
    ],
    "the copy is dropped": ["CREATE TABLE _t_gho LIKE t", "DROP TABLE t", "DROP TABLE _t_gho"],
    "the copy gets another name": [
        "CREATE TABLE _t_new LIKE t",
        "ALTER TABLE _t_new ADD z INT DEFAULT 7",
        "rows of _t_new",
        "RENAME TABLE _t_new TO _t_gho",
        "rows of _t_gho",
        "RENAME TABLE t TO _t_del, _t_gho TO t",
    ],
    "back again": [
        "CREATE TABLE _t_gho LIKE t",
        "RENAME TABLE t TO _t_del",
        "RENAME TABLE _t_del TO t",
        "DROP TABLE t",
        "DROP TABLE _t_gho",
    ],
    "an empty table": ["CREATE TABLE v (id INT PRIMARY KEY)", "ALTER TABLE v ADD n INT AUTO_INCREMENT UNIQUE"],
    "a table with rows": [
        "CREATE TABLE v (id INT PRIMARY KEY, a varchar(20), b bigint unsigned)",
        "rows of v",
        "ALTER TABLE v ADD n INT AUTO_INCREMENT UNIQUE",
    ],
    "rows under the first name of another table": [
        "RENAME TABLE t TO v",
        "CREATE TABLE _u_new LIKE u",
        "RENAME TABLE v TO w",
        "CREATE TABLE _w_new LIKE w",
        "RENAME TABLE u TO _t_new",
        "RENAME TABLE _w_new TO u",
        "rows of u",
        "DROP TABLE w",
    ],
    "a held table gets another name": [
        "ALTER TABLE t ADD c INT DEFAULT 1",
        "rows of t",
        "RENAME TABLE t TO _t_gho",
        "DROP TABLE _t_gho",
    ],
    "another table of a held one's name": [
        "ALTER TABLE t ADD c INT DEFAULT 1",
        "rows of t",
        "DROP TABLE t",
        "CREATE TABLE t (id INT PRIMARY KEY)",
    ],
    "a database's collation": [
        "ALTER DATABASE d CHARACTER SET latin1",
        "CREATE TABLE v (id INT PRIMARY KEY, x varchar(9))",
    ],
}


_NAMES = ("t", "u", "v", "_t_new", "_t_gho", "_t_old", "_u_new")


@st.composite
def histories(draw: st.DrawFn) -> list[str]:
    """Statements of a few tables, their copies and remnants; all of them succeed."""
    there, absent, made = {"t", "u"}, {*_NAMES} - {"t", "u"}, list[str]()
    for number in range(draw(st.integers(3, 12))):
        kind = draw(st.sampled_from(("like", "create", "alter", "alter", "drop", "rename", "swap", "rows", "rows")))
        one = draw(st.sampled_from(sorted(there)))
        new = draw(st.sampled_from(sorted(absent))) if absent else ""
        if kind in ("alter", "rows") or not new or len(there) == 1:
            made.append(f"rows of {one}" if kind == "rows" else f"ALTER TABLE {one} ADD c{number} INT DEFAULT {number}")
            continue
        gone = draw(st.sampled_from(sorted(there - {one}))) if kind == "swap" else one
        made.append(
            {
                "like": f"CREATE TABLE {new} LIKE {one}",
                "create": f"CREATE TABLE {new} (id INT PRIMARY KEY, a varchar(20))",
                "drop": f"DROP TABLE {one}",
                "rename": f"RENAME TABLE {one} TO {new}",
                "swap": f"RENAME TABLE {one} TO {new}, {gone} TO {one}",
            }[kind]
        )
        there |= {new} if kind != "drop" else set()
        there -= {gone} if kind in ("drop", "rename", "swap") else set()
        absent = {*_NAMES} - there
    return made


def rows(rig: Rig, name: str) -> Sequence[object]:
    """What rows of a table are found to be."""
    try:
        if rig.tables.is_wanted("d", name):
            rig.tables.describe(minimal_map(name))
    except TableUnknownError as error:
        return [error.reason, *rig.hold(name)]
    return []


def played(history: Sequence[str], *, restarts: bool) -> tuple[list[object], dict[Any, Any]]:
    """What a history records, and the tables that it ends with."""
    rig, records = Rig("t", "u", collations=lambda: {"d": 45}), list[object]()
    for statement in history:
        if statement.startswith("rows of "):
            records += rows(rig, statement.removeprefix("rows of "))
        else:
            records.append(rig.record(statement))
        if restarts:
            rig.restart()
    return records, definitions(rig.tables)


@pytest.mark.parametrize("name", HISTORIES)
def test_streams_that_begin_anywhere_record_what_one_does(name: str) -> None:
    whole = played(HISTORIES[name], restarts=False)
    assert any(whole[0])
    assert played(HISTORIES[name], restarts=True) == whole


@pytest.mark.matrix
@given(histories())
def test_streams_that_begin_anywhere_in_any_history_record_what_one_does(history: list[str]) -> None:
    assert played(history, restarts=True) == played(history, restarts=False)


def test_another_table_of_a_name_begins_empty_beside_a_copy_that_is_left_over() -> None:
    rig = Rig("t")
    rig.run("CREATE TABLE _t_new LIKE t", "DROP TABLE t")
    rig.restart()
    gone, created = rig.run("CREATE TABLE t (id INT PRIMARY KEY)")
    assert (gone.kind, created.kind, gone.table_id == created.table_id) == (DROP, CREATE, False)


def test_a_statement_of_an_open_transaction_is_not_remembered() -> None:
    """The next stream reads it again."""
    rig = Rig("t")
    rig.run("CREATE TABLE _t_new LIKE t")
    before = rig.memory()
    rig.run("CREATE TABLE _u_new LIKE t")
    assert rig.memory(119) == before != rig.memory(120)


def test_the_database_of_a_new_table_has_the_collation_that_the_log_says_though_the_server_shows_another() -> None:
    rig = Rig("t", collations=lambda: {"d": 45})
    rig.run("ALTER DATABASE d CHARACTER SET latin1")
    rig.restart()
    [change] = rig.run("CREATE TABLE v (id INT PRIMARY KEY, x varchar(9))")
    after = {column.name: column for column in TableSchema.from_json(change.after).columns}
    assert charset_of(after["x"].collation) == "latin1"


def test_memories_are_kept_as_they_are() -> None:
    columns = Columns({"c": "a"}, ("n",), {"n": "3"}, frozenset({"id", "n"}))
    shadow = Shadow(replace(table("_t_gho"), collation=9), columns, ("z",), "odd")
    copy, one = ("d", "_t_gho"), ("d", "t")
    memory = Memory(
        {copy: shadow}, frozenset({copy}), frozenset({one}), {"d": 8}, frozenset({5}), frozenset({6}), {one: 7},
        frozenset({one}), burnt=frozenset({9}), file=FileBegin(0, 7, 1_700_000_000),
    )  # fmt: skip
    again = Memory.from_text(memory.to_text())
    assert again == memory
    assert again.copies[copy].schema.collation == 9
    assert Memory.from_text("") == Memory()
    assert Memory.from_text('{"more": 1}') == Memory()
