"""Statements as MySQL and MariaDB write them into the binlog, and what they do to which table."""

from typing import Any

import pytest

from agent.schema import Column, Dialect, TableSchema
from agent.sources.dialects import arrow_schema
from agent.sources.mysql.ddl import (
    Altered,
    Created,
    DatabaseDropped,
    Dropped,
    Edit,
    Renamed,
    Unparsed,
    parse_ddl,
)
from agent.sources.mysql.types import FieldType

T = ("d", "t")


def table(name: str = "t", *, key: str = "id") -> TableSchema:
    columns = (
        Column("id", int(FieldType.LONG), 0, "int"),
        Column("a", int(FieldType.VARCHAR), 80, "varchar(20)", collation=45),
        Column("b", int(FieldType.LONGLONG), 0, "bigint unsigned", is_unsigned=True),
    )
    marked = tuple(
        Column(c.name, c.type_id, c.modifier, c.type_name, c.name == key, c.is_unsigned, c.collation) for c in columns
    )
    return TableSchema(7, "d", name, marked, dialect=Dialect.MYSQL)


def parsed(statement: str, *, is_mariadb: bool = True) -> list[Edit] | Unparsed:
    return parse_ddl(statement, "d", {T: table()}, is_mariadb=is_mariadb)


def altered(statement: str) -> Altered:
    edits = parsed(statement)
    assert isinstance(edits, list), statement
    [edit] = edits
    assert isinstance(edit, Altered)
    return edit


def edits_of(statement: str) -> list[Edit]:
    edits = parsed(statement)
    assert isinstance(edits, list), statement
    return edits


def names(schema: TableSchema) -> list[str]:
    return [column.name for column in schema.columns]


@pytest.mark.parametrize(
    ("statement", "columns", "renames", "added", "fills"),
    [
        ("ALTER TABLE t ADD COLUMN n INT", ["id", "a", "b", "n"], {}, ("n",), {}),
        ("alter table `t` add n int not null default 7 after id", ["id", "n", "a", "b"], {}, ("n",), {"n": "7"}),
        ("ALTER TABLE d.t ADD n INT NOT NULL FIRST", ["n", "id", "a", "b"], {}, ("n",), {"n": "0"}),
        (
            "ALTER TABLE `d` . `t` ADD (x INT, y CHAR(3) DEFAULT 'q')",
            ["id", "a", "b", "x", "y"],
            {},
            ("x", "y"),
            {"y": "q"},
        ),
        ("ALTER ONLINE TABLE t ADD n INT", ["id", "a", "b", "n"], {}, ("n",), {}),
        ("ALTER TABLE IF EXISTS t WAIT 5 ADD n INT", ["id", "a", "b", "n"], {}, ("n",), {}),
        ("ALTER TABLE t ADD COLUMN IF NOT EXISTS a INT, DROP B", ["id", "a"], {}, (), {}),
        ("ALTER TABLE t DROP COLUMN a", ["id", "b"], {}, (), {}),
        ("ALTER TABLE t DROP a, ADD a INT DEFAULT -3", ["id", "b", "a"], {}, ("a",), {"a": "-3"}),
        ("ALTER TABLE t CHANGE a c VARCHAR(30)", ["id", "c", "b"], {"c": "a"}, (), {}),
        ("ALTER TABLE t CHANGE COLUMN A c TEXT AFTER b", ["id", "b", "c"], {"c": "a"}, (), {}),
        ("ALTER TABLE t RENAME COLUMN a TO z, ALGORITHM=INSTANT", ["id", "z", "b"], {"z": "a"}, (), {}),
        ("ALTER TABLE t RENAME COLUMN a TO c, RENAME COLUMN c TO e", ["id", "e", "b"], {"e": "a"}, (), {}),
        ("ALTER TABLE t MODIFY b INT FIRST", ["b", "id", "a"], {}, (), {}),
        ("/* app */ ALTER TABLE t ADD n INT COMMENT 'a, b (c)'", ["id", "a", "b", "n"], {}, ("n",), {}),
        ("ALTER TABLE t ADD n INT, ADD INDEX i (n), LOCK=NONE", ["id", "a", "b", "n"], {}, ("n",), {}),
    ],
)
def test_columns(
    statement: str, columns: list[str], renames: dict[str, str], added: tuple[str, ...], fills: dict[str, str]
) -> None:
    edit = altered(statement)
    assert names(edit.schema) == columns
    assert (dict(edit.renames), edit.added, dict(edit.fills), edit.untold) == (renames, added, fills, ())
    assert edit.schema.key == ("id",)


@pytest.mark.parametrize(
    ("definition", "fill"),
    [
        ("INT NOT NULL", "0"),
        ("VARCHAR(5) NOT NULL", ""),
        ("DECIMAL(8,2) NOT NULL DEFAULT 1.50", "1.50"),
        ("ENUM('x','y') NOT NULL", "x"),
        ("ENUM('x','y') DEFAULT 'y'", "y"),
        ("TINYINT(1) DEFAULT TRUE", "1"),
        ("BIT(4) DEFAULT b'0101'", "5"),
        ("VARBINARY(4) DEFAULT 'ab'", "6162"),
        ("BINARY(3) NOT NULL", "000000"),
        ("DATE DEFAULT '2024-02-03'", "2024-02-03"),
        ("INT DEFAULT NULL", None),
        ("INT", None),
        ("DATETIME NOT NULL", None),
    ],
)
def test_what_older_rows_hold(definition: str, fill: str | None) -> None:
    edit = altered(f"ALTER TABLE t ADD n {definition}")
    assert edit.untold == ()
    assert dict(edit.fills) == ({} if fill is None else {"n": fill})


@pytest.mark.parametrize(
    "definition",
    [
        "INT DEFAULT (RAND() * 10)",
        "DATETIME DEFAULT CURRENT_TIMESTAMP",
        "BIGINT AUTO_INCREMENT UNIQUE",
        "INT GENERATED ALWAYS AS (id + 1) STORED",
    ],
)
def test_what_no_statement_tells(definition: str) -> None:
    assert altered(f"ALTER TABLE t ADD n {definition}").untold == ("n",)


@pytest.mark.parametrize(
    ("definition", "arrow"),
    [
        ("TINYINT", "int8"),
        ("TINYINT UNSIGNED", "int16"),
        ("MEDIUMINT UNSIGNED", "int32"),
        ("INT(10) UNSIGNED ZEROFILL", "int64"),
        ("BIGINT UNSIGNED", "decimal128(20, 0)"),
        ("DOUBLE", "double"),
        ("DECIMAL", "decimal128(10, 0)"),
        ("DECIMAL(7)", "decimal128(7, 0)"),
        ("DECIMAL(12,4)", "decimal128(12, 4)"),
        ("DATETIME(3)", "timestamp[us]"),
        ("TIMESTAMP NULL", "timestamp[us, tz=UTC]"),
        ("YEAR", "int16"),
        ("MEDIUMTEXT CHARACTER SET latin1", "string"),
        ("VARBINARY(8)", "binary"),
        ("JSON", "string"),
        ("SET('a','b')", "string"),
        ("UUID", "string"),
        ("BIT(1)", "bool"),
    ],
)
def test_types(definition: str, arrow: str) -> None:
    schema = altered(f"ALTER TABLE t ADD n {definition}").schema
    assert str(arrow_schema(schema).field("n").type) == arrow


@pytest.mark.parametrize(
    ("statement", "edits"),
    [
        ("RENAME TABLE t TO u", [Renamed(T, ("d", "u"))]),
        ("RENAME TABLE t TO `e`.`u`, x.y TO t", [Renamed(T, ("e", "u")), Renamed(("x", "y"), T)]),
        ("ALTER TABLE t RENAME u", [Renamed(T, ("d", "u"))]),
        ("ALTER TABLE t RENAME TO e.u", [Renamed(T, ("e", "u"))]),
        ("ALTER TABLE _t_gho RENAME TO t", [Renamed(("d", "_t_gho"), T)]),
        ("DROP TABLE IF EXISTS `t`, e.u /* generated by server */", [Dropped(T), Dropped(("e", "u"))]),
        ("DROP TABLE t", [Dropped(T)]),
        ("CREATE TABLE u LIKE t", [Created(("d", "u"), T)]),
        ("DROP DATABASE IF EXISTS `d`", [DatabaseDropped("d")]),
        ("DROP SCHEMA d", [DatabaseDropped("d")]),
        ("CREATE DATABASE e", []),
        ("CREATE INDEX i ON t (a)", []),
        ("DROP INDEX i ON t", []),
        ("ALTER TABLE t ENGINE=InnoDB", []),
        ("ALTER TABLE t ADD UNIQUE KEY u (a), DROP INDEX i", []),
        ("ALTER TABLE t PARTITION BY HASH(id) PARTITIONS 4", []),
        ("ALTER TABLE t ADD PARTITION (PARTITION p VALUES LESS THAN (5))", []),
        ("ALTER TABLE t ALTER COLUMN b SET DEFAULT 5", []),
        ("ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (b) REFERENCES x (y)", []),
        ("ALTER TABLE nobody ADD n INT", []),
        ("DROP TEMPORARY TABLE t", []),
    ],
)
def test_tables(statement: str, edits: list[Edit]) -> None:
    assert parsed(statement) == edits


def test_a_new_table_is_defined() -> None:
    [edit] = edits_of(
        "CREATE TABLE IF NOT EXISTS u (id INT, v VARCHAR(10) UNIQUE, PRIMARY KEY (id), KEY k (v)) ENGINE=x"
    )
    assert isinstance(edit, Created)
    assert edit.if_absent
    assert edit.schema is not None
    assert (names(edit.schema), edit.schema.key) == (["id", "v"], ("id",))
    dropped, created = edits_of("CREATE OR REPLACE TABLE t (x INT)")
    assert dropped == Dropped(T)
    assert isinstance(created, Created)


def test_keys() -> None:
    assert altered("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (b, A)").schema.key == ("a", "b")
    assert altered("ALTER TABLE t DROP PRIMARY KEY").loses_key
    assert altered("ALTER TABLE t CHANGE id key_ BIGINT").schema.key == ("key_",)


def test_with_a_new_name_at_once() -> None:
    edits = parsed("ALTER TABLE t ADD n INT, RENAME TO u")
    assert isinstance(edits, list)
    assert [type(edit) for edit in edits] == [Altered, Renamed]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4",
        "ALTER TABLE t ADD n FANCYTYPE(3)",
        "ALTER TABLE t DROP COLUMN nobody",
        "ALTER TABLE t ADD SYSTEM VERSIONING",
        "ALTER TABLE t ADD r REAL",
        "ALTER TABLE t ADD i INET6",
        "ALTER TABLE t !!!",
    ],
)
def test_what_cannot_be_read_is_looked_at(statement: str) -> None:
    assert parsed(statement) == Unparsed((T,))


@pytest.mark.parametrize(
    "text", ["", ";", "ALTER", "ALTER TABLE", "RENAME TABLE", "DROP TABLE", "CREATE TABLE", "SELECT 1"]
)
def test_nothing_makes_it_fall(text: str) -> None:
    found: Any = parsed(text)
    assert found == [] or isinstance(found, Unparsed)
