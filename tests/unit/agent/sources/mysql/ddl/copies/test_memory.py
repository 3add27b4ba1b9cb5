"""Streams that go on where others ended, anywhere in a history: they record what one stream would."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agent.rows.schema import TableSchema
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl.copies.memory import Memory
from agent.sources.mysql.ddl.copies.shadows import Shadow
from agent.sources.mysql.decode.charsets import charset_of
from reactor.records.tables.schema_change import DdlRecord
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
    "a database's collation": [
        "ALTER DATABASE d CHARACTER SET latin1",
        "CREATE TABLE v (id INT PRIMARY KEY, x varchar(9))",
    ],
}


def played(history: Sequence[str], *, restarts: bool) -> tuple[list[DdlRecord | None], dict[Any, Any]]:
    """What a history records, and the tables that it ends with."""
    rig, records = Rig("t", "u", collations=lambda: {"d": 45}), []
    for statement in history:
        if statement.startswith("rows of "):
            name = statement.removeprefix("rows of ")
            if ("d", name) in rig.tables.by_name:
                rig.tables.describe(minimal_map(name))
            else:
                rig.fill(name)
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
        frozenset({one}),
    )  # fmt: skip
    again = Memory.from_text(memory.to_text())
    assert again == memory
    assert again.copies[copy].schema.collation == 9
    assert Memory.from_text("") == Memory()
    assert Memory.from_text('{"more": 1}') == Memory()
