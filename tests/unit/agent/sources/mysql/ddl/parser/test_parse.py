"""Statements as MySQL and MariaDB write them into the binlog, and what they do to which table."""

from typing import Any

import pytest

from agent.rows.schema import Column, TableSchema
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl.parser.edits import (
    Altered,
    Created,
    DatabaseDefined,
    DatabaseDropped,
    Dropped,
    Edit,
    Effort,
    Rebuilt,
    Rekeyed,
    Renamed,
    Unfollowed,
    Unparsed,
)
from agent.sources.mysql.ddl.parser.parse import parse_ddl
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.dialect import DIALECT
from agent.sources.mysql.values.session import Session
from agent.sources.registry import arrow_schema

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
    return TableSchema(7, "d", name, marked, dialect=DIALECT)


def parsed(statement: str, *, is_mariadb: bool = True) -> list[Edit]:
    return parse_ddl(statement, "d", {T: table()}, is_mariadb=is_mariadb)


def altered(statement: str) -> Altered:
    [edit] = parsed(statement)
    assert isinstance(edit, Altered), statement
    return edit


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
        ("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a", ["id", "b", "a"], {"b": "a", "a": "b"}, (), {}),
        ("ALTER TABLE t CHANGE a b INT, CHANGE b a INT", ["id", "b", "a"], {"b": "a", "a": "b"}, (), {}),
        ("ALTER TABLE t DROP a, RENAME COLUMN b TO a", ["id", "a"], {"a": "b"}, (), {}),
        ("ALTER TABLE t RENAME COLUMN a TO c, ADD a INT AFTER c", ["id", "c", "a", "b"], {"c": "a"}, ("a",), {}),
        (
            "ALTER TABLE t CHANGE COLUMN IF EXISTS a c INT, MODIFY IF EXISTS no INT",
            ["id", "c", "b"],
            {"c": "a"},
            (),
            {},
        ),
        ("ALTER TABLE t ALGORITHM=INPLACE, LOCK=NONE, ADD n INT", ["id", "a", "b", "n"], {}, ("n",), {}),
        ("ALTER TABLE t COMMENT='x, y', ENGINE InnoDB, FORCE, DROP a", ["id", "b"], {}, (), {}),
        ("ALTER TABLE t ADD (x INT, y INT DEFAULT 2), DROP b", ["id", "a", "x", "y"], {}, ("x", "y"), {"y": "2"}),
        ("ALTER TABLE t ADD IF NOT EXISTS (a INT, n INT)", ["id", "a", "b", "n"], {}, ("n",), {}),
        ("ALTER TABLE t RENAME KEY u TO v, ALTER INDEX v INVISIBLE, DROP a", ["id", "b"], {}, (), {}),
        ("ALTER TABLE t ADD CHECK (b > 0), ADD n INT CHECK (n < 5)", ["id", "a", "b", "n"], {}, ("n",), {}),
        ("ALTER TABLE t ADD n INT DEFAULT 2 PARTITION BY HASH(id)", ["id", "a", "b", "n"], {}, ("n",), {"n": "2"}),
        ("ALTER /* x */ TABLE/**/t -- y\n ADD # z\n n INT", ["id", "a", "b", "n"], {}, ("n",), {}),
        ("ALTER TABLE t ADD n INT /*!50100 DEFAULT 3 */", ["id", "a", "b", "n"], {}, ("n",), {"n": "3"}),
        ("ALTER TABLE t /*!80000 ADD x INT, */ DROP a", ["id", "b"], {}, (), {}),
        ("ALTER TABLE t ADD n VARCHAR(9) DEFAULT '/* -- # '", ["id", "a", "b", "n"], {}, ("n",), {"n": "/* -- # "}),
        ("ALTER TABLE t MODIFY b INT FIRST", ["b", "id", "a"], {}, (), {}),
        ("ALTER TABLE t MODIFY id BIGINT AFTER c, CHANGE a c INT", ["c", "id", "b"], {"c": "a"}, (), {}),
        ("alter table t modify b int first, add n int after B", ["b", "n", "id", "a"], {}, ("n",), {}),
        ("ALTER TABLE t ADD x INT AFTER c, CHANGE a c INT", ["id", "c", "x", "b"], {"c": "a"}, ("x",), {}),
        (
            "ALTER TABLE t ADD r REAL, ADD i INET6, ADD c CHARACTER VARYING(3) BYTE",
            ["id", "a", "b", "r", "i", "c"],
            {},
            ("r", "i", "c"),
            {},
        ),
        ("SET STATEMENT max_statement_time=1, x='a FOR b, c' FOR ALTER TABLE t DROP a", ["id", "b"], {}, (), {}),
        ("SET /* x */ statement a=(SELECT 1 FOR UPDATE), b=2 FOR alter table t drop a", ["id", "b"], {}, (), {}),
        ("ALTER TABLE t ORDER BY id DESC, b, DROP a", ["id", "b"], {}, (), {}),
        ("ALTER TABLE t ORDER BY t.id DESC, t.b, DROP a", ["id", "b"], {}, (), {}),
        ("ALTER TABLE t ADD CONSTRAINT IF NOT EXISTS c CHECK (b > 0), DROP a", ["id", "b"], {}, (), {}),
        (
            "ALTER TABLE t DROP PERIOD IF EXISTS FOR p, ADD PERIOD IF NOT EXISTS FOR p (a, b), DROP a",
            ["id", "b"],
            {},
            (),
            {},
        ),
        ("/* app */ ALTER TABLE t ADD n INT COMMENT 'a, b (c)'", ["id", "a", "b", "n"], {}, ("n",), {}),
        ("ALTER TABLE t ADD d.t.n INT, DROP t.a, CHANGE .t.b c INT", ["id", "c", "n"], {"c": "b"}, ("n",), {}),
        (
            "ALTER TABLE t ADD n TEXT CHAR SET `latin1`, STORAGE DISK `page_compressed` = 1 DEFAULT CHAR SET utf8mb4",
            ["id", "a", "b", "n"],
            {},
            ("n",),
            {},
        ),
        ("ALTER TABLE t ADD n INT, ADD INDEX i (n), LOCK=NONE", ["id", "a", "b", "n"], {}, ("n",), {}),
    ],
)
def test_columns(
    statement: str, columns: list[str], renames: dict[str, str], added: tuple[str, ...], fills: dict[str, str]
) -> None:
    edit = altered(statement)
    assert names(edit.schema) == columns
    assert (dict(edit.renames), edit.added, dict(edit.fills), edit.unknown_fills) == (renames, added, fills, ())
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
        ("DATE NOT NULL DEFAULT '0000-00-00'", "0000-00-00"),
        ("VARCHAR(9) DEFAULT _utf8mb4'ab'", "ab"),
        ("VARCHAR(9) DEFAULT X'4142'", "AB"),
        ("BIT(8) DEFAULT 0x0F", "15"),
        ("UUID NOT NULL", "00000000-0000-0000-0000-000000000000"),
        ("INT DEFAULT NULL", None),
        ("INT", None),
        ("DATETIME NOT NULL", "0000-00-00 00:00:00"),
    ],
)
def test_what_older_rows_hold(definition: str, fill: str | None) -> None:
    edit = altered(f"ALTER TABLE t ADD n {definition}")
    assert edit.unknown_fills == ()
    assert dict(edit.fills) == ({} if fill is None else {"n": fill})


@pytest.mark.parametrize("type", ["ENUM", "SET"])
@pytest.mark.parametrize("member", ["0x62", "x'62'", "b'1100010'", "X'62'"])
def test_a_member_that_is_spelt_as_bytes_is_not_left_out(type: str, member: str) -> None:
    """Else the numbers of those behind it would be others' names."""
    assert altered(f"ALTER TABLE t ADD n {type}('a', {member}, 'c')").schema.columns[-1].members == ("a", "b", "c")


@pytest.mark.parametrize(
    "definition",
    ["ENUM(0xFFFF) CHARACTER SET gbk", "ENUM(0xE9)", "SET(0x41) CHARACTER SET ucs2", "ENUM(0xFF) CHARACTER SET binary"],
)
def test_bytes_that_are_no_text_of_their_character_set_are_read_from_the_server(definition: str) -> None:
    [edit] = parsed(f"ALTER TABLE t ADD n {definition}")
    assert isinstance(edit, Unparsed)


@pytest.mark.parametrize(
    ("charset", "members"), [("", ("a", "b")), (" CHARACTER SET latin1", ("a", "b")), (" BINARY", ("a", "b"))]
)
def test_members_lose_the_spaces_at_their_ends(charset: str, members: tuple[str, ...]) -> None:
    assert altered(f"ALTER TABLE t ADD n SET('a ','b'){charset}").schema.columns[-1].members == members


@pytest.mark.parametrize("charset", [" CHARACTER SET binary", " CHARSET BINARY"])
def test_members_that_are_bytes_keep_the_spaces_at_their_ends(charset: str) -> None:
    assert altered(f"ALTER TABLE t ADD n SET('a','a '){charset}").schema.columns[-1].members == ("a", "a ")


@pytest.mark.parametrize(
    "definition",
    [
        "INT DEFAULT (RAND() * 10)",
        "DATETIME DEFAULT CURRENT_TIMESTAMP",
        "BIGINT AUTO_INCREMENT UNIQUE",
        "INT GENERATED ALWAYS AS (id + 1) STORED",
        "SERIAL",
        "TIMESTAMP DEFAULT '2024-02-03 04:05:06'",  # in whose time zone?
    ],
)
def test_what_no_statement_tells(definition: str) -> None:
    assert altered(f"ALTER TABLE t ADD n {definition}").unknown_fills == ("n",)


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
        ("DECIMAL(7.2)", "decimal128(7, 0)"),
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
        ("ALTER TABLE t RENAME AS u", [Renamed(T, ("d", "u"))]),
        ("ALTER TABLE t RENAME = `u`, ALGORITHM=COPY", [Renamed(T, ("d", "u"))]),
        ("RENAME /* x */ TABLE t /* y */ TO u", [Renamed(T, ("d", "u"))]),
        ("ALTER TABLE _t_gho RENAME TO t", [Renamed(("d", "_t_gho"), T)]),
        ("DROP TABLE IF EXISTS `t`, e.u /* generated by server */", [Dropped(T), Dropped(("e", "u"))]),
        ("DROP TABLE t", [Dropped(T)]),
        ("DROP /* x */ TABLES t WAIT 5 CASCADE", [Dropped(T)]),
        ("CREATE TABLE u (LIKE t)", [Created(("d", "u"), T)]),
        ("CREATE TABLE IF NOT EXISTS u FANCY", [Created(("d", "u"), if_absent=True)]),
        ("CREATE TABLE u (increment bigint(21) NOT NULL) ENGINE=InnoDB SEQUENCE=1", []),
        ("CREATE OR REPLACE TABLE t FANCY", [Dropped(T), Created(T, replaces=True)]),
        ("DROP DATABASE d /* bye */", [DatabaseDropped("d")]),
        ("CREATE TABLE u LIKE t", [Created(("d", "u"), T)]),
        ("DROP DATABASE IF EXISTS `d`", [DatabaseDropped("d")]),
        ("DROP SCHEMA d", [DatabaseDropped("d")]),
        ("CREATE DATABASE e", [DatabaseDefined("e", 0)]),
        ("CREATE DATABASE IF NOT EXISTS e CHAR SET latin1 DEFAULT ENCRYPTION 'N'", [DatabaseDefined("e", 5, True)]),
        ("ALTER DATABASE e DEFAULT ENCRYPTION = 'Y'", []),
        ("CREATE OR REPLACE SCHEMA d", [DatabaseDropped("d"), DatabaseDefined("d", 0)]),
        ("CREATE INDEX i ON t (a)", []),
        ("ALTER TABLE t ENGINE=InnoDB", []),
        ("ALTER TABLE t ADD UNIQUE KEY u (a)", [Rekeyed(T, (frozenset("a"),))]),
        ("ALTER TABLE t PARTITION BY HASH(id) PARTITIONS 4", []),
        ("ALTER TABLE t ADD PARTITION (PARTITION p VALUES LESS THAN (5))", []),
        (
            "ALTER TABLE t ENGINE=`blackhole`, ALGORITHM=COPY",
            [Unfollowed(T, "its engine is blackhole, which has other rows than its log, or none", True)],
        ),
        (
            "ALTER TABLE t DROP PARTITION p, q",
            [Unfollowed(T, "a partition was dropped with its rows", True, "drop table partition", of_partition=True)],
        ),
        (
            "ALTER TABLE t TRUNCATE PARTITION ALL",
            [Unfollowed(T, "a partition was emptied", True, "truncate table partition", of_partition=True)],
        ),
        (
            "ALTER TABLE t EXCHANGE PARTITION p WITH TABLE e.`u` WITHOUT VALIDATION",
            [
                Unfollowed(T, "a partition was exchanged for a table", of_partition=True),
                Unfollowed(("e", "u"), "a partition was exchanged for a table", of_partition=True),
            ],
        ),
        ("ALTER TABLE t ALTER COLUMN b SET DEFAULT 5", []),
        ("ALTER TABLE t ADD CONSTRAINT f FOREIGN KEY (b) REFERENCES x (y)", []),
        ("ALTER TABLE nobody ADD n INT", []),
        ("DROP TEMPORARY TABLE t", []),
    ],
)
def test_tables(statement: str, edits: list[Edit]) -> None:
    assert [edit for edit in parsed(statement) if not isinstance(edit, Rebuilt)] == edits


@pytest.mark.parametrize(
    ("statement", "copies"),
    [
        ("ALTER TABLE t ENGINE=InnoDB", True),
        ("ALTER TABLE t FORCE, ALGORITHM=INPLACE", False),
        ("ALTER TABLE t COMMENT='ALGORITHM=INPLACE'", True),
        ("ALTER TABLE t ADD INDEX (a), algorithm nocopy", False),
        ("CREATE INDEX i ON t (a)", True),
        ("CREATE INDEX i ON t (a) ALGORITHM = INSTANT", False),
        ("ALTER TABLE t RENAME TO e.u", False),
        ("ALTER TABLE t RENAME u, FORCE", True),
        ("ALTER TABLE t RENAME u REMOVE PARTITIONING", True),
        ("ALTER TABLE t RENAME INDEX i TO j", True),
    ],
)
def test_whether_the_server_may_copy_the_table(statement: str, copies: bool) -> None:
    found = [edit for edit in parsed(statement) if not isinstance(edit, Renamed)]
    assert found == ([Rebuilt(T, Effort())] if copies else [])


def test_a_new_table_is_defined() -> None:
    [edit] = parsed("CREATE TABLE IF NOT EXISTS u (id INT, v VARCHAR(10) UNIQUE, PRIMARY KEY (id), KEY k (v)) ENGINE=x")
    assert isinstance(edit, Created)
    assert edit.if_absent
    assert edit.schema is not None
    assert (names(edit.schema), edit.schema.key) == (["id", "v"], ("id",))
    dropped, created = parsed("CREATE OR REPLACE TABLE t (x INT)")
    assert dropped == Dropped(T)
    assert isinstance(created, Created)


def test_a_new_table_in_partitions_is_defined() -> None:
    [edit] = parsed(
        "CREATE TABLE u (id INT PRIMARY KEY) /*!50100 PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (5)) */"
    )
    assert isinstance(edit, Created)
    assert edit.schema is not None
    assert edit.schema.key == ("id",)


def test_keys() -> None:
    assert altered("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (b, A)").schema.key == ("a", "b")
    assert altered("ALTER TABLE t CHANGE id key_ BIGINT").schema.key == ("key_",)
    assert altered("ALTER TABLE t DROP PRIMARY KEY").schema.key == ()
    assert altered("ALTER TABLE t ADD PRIMARY KEY (c), DROP PRIMARY KEY, CHANGE b c INT").schema.key == ("c",)
    assert altered("ALTER TABLE t DROP PRIMARY KEY, ADD n INT PRIMARY KEY").schema.key == ("n",)


@pytest.mark.parametrize(
    "statement",
    [
        "DROP INDEX /* x */ i ON t",
        "ALTER TABLE t DROP INDEX i",
        "ALTER TABLE t DROP KEY i, ADD UNIQUE k (b)",
        "ALTER TABLE t DROP CONSTRAINT i",
        "ALTER TABLE t MODIFY id INT",
        "ALTER TABLE t DROP COLUMN id",
        "ALTER TABLE t ADD PRIMARY KEY IF NOT EXISTS (b)",
        "ALTER TABLE t ADD COLUMN IF NOT EXISTS b INT PRIMARY KEY",
    ],
)
def test_which_key_is_left_only_the_server_knows(statement: str) -> None:
    assert altered(statement).asks_key


def test_a_part_that_cannot_be_read_costs_itself_only() -> None:
    [edit] = parsed("ALTER TABLE t ADD n FANCYTYPE(3), CHANGE a c POINT, ADD m INT DEFAULT 4, RENAME TO u")[1:]
    assert edit == Unparsed(("d", "u"), Columns({"c": "a"}, ("m",), {"m": "4"}))


def test_with_a_new_name_at_once() -> None:
    edits = parsed("ALTER TABLE t ADD n INT, RENAME TO u")
    assert [type(edit) for edit in edits] == [Altered, Renamed]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t CONVERT TO CHARACTER SET DEFAULT",
        "ALTER TABLE t ADD n FANCYTYPE(3)",
        "ALTER TABLE t DROP COLUMN nobody",
        "ALTER TABLE t ADD n VARBINARY(4) DEFAULT '\ufffd'",
        "ALTER TABLE t ADD n ENUM('a', '\ufffd')",
        "ALTER TABLE t !!!",
        "ALTER TABLE t RENAME COLUMN a TO c, RENAME COLUMN c TO e",
    ],
)
def test_what_cannot_be_read_is_looked_at(statement: str) -> None:
    [edit] = parsed(statement)
    assert isinstance(edit, Unparsed)
    assert edit.table == T


@pytest.mark.parametrize(
    "text", ["", ";", "ALTER", "ALTER TABLE", "RENAME TABLE", "DROP TABLE", "CREATE TABLE", "SELECT 1"]
)
def test_nothing_makes_it_fall(text: str) -> None:
    found: Any = parsed(text)
    assert found == []


_ORACLE, _MAXDB = 1 << 9, 1 << 12


@pytest.mark.parametrize(
    ("sql_mode", "types", "expected"),
    [
        (_ORACLE, ["number", "number(5)", "number(7,2)"], ["double", "decimal(5,0)", "decimal(7,2)"]),
        (_ORACLE, ["raw(9)", "clob", "blob", "blob(100)"], ["varbinary(9)", "longtext", "longblob", "tinyblob"]),
        (_ORACLE, ["varchar2(4)", "date", "mariadb_schema.date"], ["varchar(4)", "datetime", "date"]),
        (0, ["date", "oracle_schema.date", "blob", "maxdb_schema.timestamp"], ["date", "datetime", "blob", "datetime"]),
        (_MAXDB, ["timestamp", "`mariadb_schema`.timestamp"], ["datetime", "timestamp"]),
    ],
)
def test_types_are_those_of_the_sql_mode(sql_mode: int, types: list[str], expected: list[str]) -> None:
    parts = ", ".join(f"ADD c{at} {name}" for at, name in enumerate(types))
    session = Session(sql_mode=sql_mode)
    [edit] = parse_ddl(f"ALTER TABLE t {parts}", "d", {T: table()}, is_mariadb=True, session=session)
    assert isinstance(edit, Altered)
    assert [column.type_name for column in edit.schema.columns[3:]] == expected


@pytest.mark.parametrize(
    ("definition", "members"),
    [
        ("enum('中','x') CHARACTER SET gbk", ("中", "x")),
        ("enum('€','x') CHARACTER SET latin2", ("?", "x")),
        ("set('😀','x') CHARACTER SET utf8mb3", ("?", "x")),
        ("enum('€','x') CHARACTER SET gbk", None),
    ],
)
def test_members_are_what_their_character_set_has(definition: str, members: tuple[str, ...] | None) -> None:
    """Which character stands for another in a set of East Asia, only the server knows: the definition is read there."""
    [edit] = parsed(f"ALTER TABLE t ADD e {definition}")
    assert isinstance(edit, Altered if members else Unparsed)
    if isinstance(edit, Altered):
        assert edit.schema.columns[-1].members == members


@pytest.mark.parametrize(
    ("moment", "is_known"),
    [("03-28 01:59:59", True), ("03-28 02:30:00", False), ("10-31 02:30:00", False), ("10-31 03:00:00", True)],
)
def test_a_default_that_the_clocks_of_the_session_show_twice_or_never_is_unknown(moment: str, is_known: bool) -> None:
    statement, session = f"ALTER TABLE t ADD x TIMESTAMP DEFAULT '2021-{moment}'", Session(time_zone="Europe/Berlin")
    [edit] = parse_ddl(statement, "d", {("d", "t"): table("t")}, is_mariadb=True, session=session)
    assert isinstance(edit, Altered)
    assert (edit.unknown_fills == ()) == is_known
