"""Statements as a real server logs them: what we make of each is what the server then has."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from agent.errors import DecodeError, TableGoneError
from agent.ports.source import Position, Scope, StreamOrder
from agent.rows.arena import Arena
from agent.rows.schema import TableSchema, ZeroDates
from agent.rows.schema_change import KnownTable
from agent.sources.mysql.ddl.environment import Server
from agent.sources.mysql.ddl.interpreter import Interpreter
from agent.sources.mysql.ddl.parser.edits import Created
from agent.sources.mysql.ddl.parser.parse import parse_ddl
from agent.sources.mysql.ddl.replicated_tables import KnownTables
from agent.sources.mysql.decode import wire
from agent.sources.mysql.decode.charsets import charset_of
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.position.positions import SourcePosition
from agent.sources.mysql.server.catalog import database_collations, read_schemas
from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.server.defaults import explicit_timestamps
from agent.sources.mysql.server.tables import has_checks, has_primary
from agent.sources.mysql.server.uniques import unique_columns
from agent.sources.mysql.server.uri import parse_uri
from agent.sources.mysql.streams import MysqlStream, MysqlStreams
from agent.sources.mysql.values.fills import fill_value
from capture.embedded import EmbeddedMariaDB
from reactor.records.changefeed import ChangefeedConfig, FilterConfig, SinkMode
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind
from reactor.records.tables.table import TableRecord
from tests.integration.agent.sources.mysql.binlog_rig import ARENA_BYTES, lines, read_until, run, streaming, where
from tests.mysql_server import is_mariadb

pytestmark = pytest.mark.sample(0.3)  # make matrix runs the others

_REPLACED = ["DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)"]
_TABLE = "CREATE TABLE t (id int PRIMARY KEY, a varchar(20), b bigint unsigned, UNIQUE KEY u (b))"


@pytest.fixture
def database(server: EmbeddedMariaDB, request: pytest.FixtureRequest) -> str:
    name = f"ddl_{abs(hash(request.node.nodeid)) % 10**9}"
    server.create_database(name)
    run(server, name, _TABLE)
    return name


def schema_of(server: EmbeddedMariaDB, database: str, name: str = "t") -> TableSchema:
    with connect(server.uri()) as connection:
        return read_schemas(connection, [(database, name)])[table_id(database, name)]


def look_at(server: EmbeddedMariaDB, name: tuple[str, str]) -> TableSchema | None:
    with contextlib.suppress(TableGoneError):
        return schema_of(server, *name)
    return None


def collation_of(server: EmbeddedMariaDB, database: str) -> int:
    with connect(server.uri()) as connection:
        return database_collations(connection).get(database, 0)


def explicit_of(server: EmbeddedMariaDB) -> bool | None:
    with connect(server.uri()) as connection:
        return explicit_timestamps(connection)


def uniques_of(server: EmbeddedMariaDB, name: tuple[str, str]) -> frozenset[str]:
    with connect(server.uri()) as connection:
        return unique_columns(connection, *name)


def has_primary_key(server: EmbeddedMariaDB, name: tuple[str, str]) -> bool:
    with connect(server.uri()) as connection:
        return has_primary(connection, *name)


def has_check(server: EmbeddedMariaDB, name: tuple[str, str]) -> bool:
    with connect(server.uri()) as connection:
        return has_checks(connection, *name)


class Followed:
    """Statements run on the server, and followed by their words alone, unless it ``looks``."""

    def __init__(
        self,
        server: EmbeddedMariaDB,
        database: str,
        *,
        looks: bool = False,
        zero_dates: ZeroDates = ZeroDates.NULL,
    ) -> None:
        self._server = server
        self._database = database
        number = table_id(database, "t")
        schema = replace(schema_of(server, database), zero_dates=zero_dates)
        is_primary = has_primary_key(server, (database, "t"))
        record = TableRecord(table_id=number, schema_name=database, name="t", key=schema.key, is_primary=is_primary)
        table = KnownTable(record, schema)
        self.known = KnownTables([table], zero_dates=zero_dates, is_mariadb=is_mariadb(server))
        them = Server(
            wants=lambda schema, _: schema == database,
            takes=lambda table: bool(table.key),
            look=lambda name: look_at(server, name) if looks else None,
            ignores_rename=lambda name, statement: False,
            ignores=lambda name, event: False,
            zero_dates=zero_dates,
            is_mariadb=is_mariadb(server),
            time_zone="UTC",
            collation_of=lambda name: collation_of(server, name),
            explicit_timestamps=explicit_of(server),
            place=lambda: where(server).resolved,
            uniques=lambda name: uniques_of(server, name),
            has_primary=lambda name: has_primary_key(server, name),
            has_checks=lambda name: has_check(server, name),
        )
        self._interpreter = Interpreter(self.known, them)

    def run(self, *statements: str) -> list[DdlRecord]:
        begin = where(self._server)
        run(self._server, self._database, *statements)
        return self.read(begin)

    def read(self, begin: SourcePosition) -> list[DdlRecord]:
        """Follow what has been logged since ``begin``."""
        found: list[DdlRecord] = []
        options: dict[str, Any] = {
            "interpret": self._interpreter.interpret,
            "hold": self._interpreter.hold,
            "written": self._interpreter.written,
            "is_wanted": self.known.is_wanted,
            "describe": self.known.describe,
        }
        with streaming(self._server, begin, self._database, **options) as stream:
            for cut in [*read_until(stream, where(self._server)), stream.progress()]:
                found += cut.ddl
        return found

    def schema(self, name: str = "t") -> TableSchema:
        schema = self.known.schema_of(self._database, name)
        assert schema is not None
        return schema


@pytest.mark.parametrize(
    "parts",
    [
        "ADD n int NOT NULL DEFAULT 7 AFTER a, ADD u smallint unsigned FIRST",
        "ADD COLUMN (x tinyint, y mediumint unsigned zerofill, z decimal(12,4), w float, v double)",
        "ADD d date, ADD e datetime(3), ADD f timestamp(6) NULL, ADD g time, ADD h year, ADD i bit(9)",
        "ADD c char(5), ADD v varchar(30), ADD t text, ADD l longtext, ADD m mediumtext, ADD s tinytext",
        "ADD b1 binary(4), ADD b2 varbinary(300), ADD b3 blob, ADD b4 tinyblob, ADD b5 longblob",
        "ADD e enum('x','y','it''s') NOT NULL, ADD s set('a','b','c')",
        "ADD j json",
        "ADD u uuid",
        "ADD bo boolean DEFAULT true, ADD f float(30), ADD i integer, ADD dc dec(5), ADD n numeric(6,1)",
        "ADD x decimal(0), ADD y decimal(0,0)",
        "DROP a, MODIFY b int, ADD a int",
        "CHANGE a `odd ``name` varchar(90) AFTER b, RENAME COLUMN id TO c",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (a, id)",
        "MODIFY id bigint FIRST, ADD INDEX i (a), ALGORITHM=COPY",
        "ENGINE=InnoDB, COMMENT='x'",
        "ALGORITHM=INPLACE, LOCK=NONE, ADD n int",
        "COMMENT='x, DROP b', DROP a",
        "/* x */ ADD # it's\n n int /*!50000 DEFAULT 4 */, RENAME KEY u TO v -- y",
        "RENAME COLUMN a TO b, RENAME COLUMN b TO a",
        "CHANGE a b varchar(20), CHANGE b a bigint unsigned",
        "DROP a, RENAME COLUMN b TO a",
        "RENAME COLUMN a TO c, ADD a int AFTER c, ADD CHECK (a > 0)",
    ],
)
def test_columns_are_what_the_server_has(server: EmbeddedMariaDB, database: str, parts: str) -> None:
    if not is_mariadb(server):
        parts = parts.replace("uuid", "binary(16)")
    followed = Followed(server, database)
    followed.run(f"/* a tool's */ ALTER TABLE t {parts}")
    assert followed.schema() == replace(schema_of(server, database), table_id=table_id(database, "t"))


@pytest.mark.parametrize(
    "parts",
    [
        "MODIFY a varchar(30) CHARACTER SET latin1, ADD n char(4) CHARSET gbk COLLATE gbk_bin",
        "CHANGE a c varchar(30) COLLATE utf8mb3_bin, ADD e enum('x','y') CHARACTER SET ucs2",
        "ADD n char(4) CHARACTER SET ucs2, ADD m varbinary(7), ADD i int",
        "ADD x text CHARACTER SET latin1, ADD y tinytext CHARACTER SET utf8mb3, ADD z longtext",
        "CONVERT TO CHARACTER SET latin1",
        "ADD j json, CONVERT TO CHARACTER SET latin1",
        "CONVERT TO CHARSET ucs2 COLLATE ucs2_bin",
    ],
)
def test_character_sets_are_what_the_server_has(server: EmbeddedMariaDB, database: str, parts: str) -> None:
    """A binlog with little metadata tells how long texts are at most, and nothing of their character sets."""
    followed = Followed(server, database)
    members = "" if parts.startswith("CONVERT TO CHARSET ucs2") else ", ADD s set('p','q')"
    followed.run(f"ALTER TABLE t ADD b1 binary(3){members}", f"ALTER TABLE t {parts}")
    found, there = (
        [(column.name, column.type_id, column.modifier, charset_of(column.collation)) for column in schema.columns]
        for schema in (followed.schema(), schema_of(server, database))
    )
    assert found == there


@pytest.mark.parametrize(
    "parts",
    [
        "ADD n int, ALTER n SET DEFAULT 5",
        "ADD n int DEFAULT 7, ALTER COLUMN n DROP DEFAULT",
        "ADD n int NOT NULL DEFAULT 7, ALTER n DROP DEFAULT",
        "ALTER n SET DEFAULT 'q', ADD n varchar(9) DEFAULT 'x'",
        "DROP a, ADD a varchar(20), ALTER a SET DEFAULT 5",
        "RENAME COLUMN a TO n, ADD a varchar(20), ALTER a SET DEFAULT 5",
        "CHANGE a n int, ADD a varchar(20), ALTER a SET DEFAULT 5",
    ],
)
def test_a_default_that_the_same_statement_sets_is_in_older_rows(
    server: EmbeddedMariaDB, database: str, parts: str
) -> None:
    run(server, database, "INSERT INTO t (id) VALUES (1)")
    followed = Followed(server, database)
    if not is_mariadb(server):  # it knows only columns that were there
        with pytest.raises(pymysql.err.OperationalError, match="Unknown column"):
            followed.run(f"ALTER TABLE t {parts}")
        return
    [record] = followed.run(f"ALTER TABLE t {parts}")
    [change] = record.changes
    [added] = change.added
    [[value]] = server.execute(f"SELECT {added} FROM {database}.t")
    assert change.fills.get(added) == (None if value is None else str(value))


def test_texts_that_are_too_long_for_their_type(server: EmbeddedMariaDB, database: str) -> None:
    """A server that is not strict takes the next larger one."""
    followed = Followed(server, database)
    lax = "ALTER TABLE t MODIFY a varchar(20000) CHARACTER SET utf8mb4, ADD x varbinary(70000), ADD y varchar(65000)"
    followed.run("SET sql_mode = ''", f"{lax} CHARACTER SET ucs2")
    found, there = (
        [(column.name, column.type_id, column.modifier) for column in schema.columns]
        for schema in (followed.schema(), schema_of(server, database))
    )
    assert found == there


def test_names_in_double_quotes(server: EmbeddedMariaDB, database: str) -> None:
    followed = Followed(server, database)
    followed.run(
        "SET sql_mode = 'ANSI_QUOTES'",
        'ALTER TABLE "t" ADD "the ""n""" int DEFAULT 4, RENAME COLUMN "a" TO "c"',
        'RENAME TABLE "t" TO "u`"',
    )
    assert followed.schema("u`").columns == schema_of(server, database, "u`").columns


def test_a_statement_with_a_mode_of_its_own_is_read_in_that_of_its_session(
    server: EmbeddedMariaDB, database: str
) -> None:
    """MariaDB parses the statement before it sets the mode, and logs the one that is set."""
    if not is_mariadb(server):
        pytest.skip("MySQL has no SET STATEMENT")
    own = "SET STATEMENT sql_mode = '' FOR"
    followed = Followed(server, database)
    found = followed.run(
        "SET sql_mode = 'ANSI_QUOTES'",
        f'{own} ALTER TABLE "t" ADD "n" int DEFAULT 4',
        f"{own} ALTER TABLE t ADD \"the 'm'\" varchar(9) DEFAULT 'a'",
        f'{own} RENAME TABLE "t" TO u',
        "SET sql_mode = ''",
        """SET STATEMENT sql_mode = "ANSI_QUOTES" FOR ALTER TABLE u ADD x varchar(9) DEFAULT "t" COMMENT "of t\"""",
        f'{own} CREATE TABLE w (id int PRIMARY KEY, e enum("a", "b") DEFAULT "b")',
    )
    for name in ("u", "w"):
        assert followed.schema(name).columns == schema_of(server, database, name).columns
    fills = [change.fills for record in found for change in record.changes if change.fills]
    assert fills == [{"n": "4"}, {"the 'm'": "a"}, {"x": "t"}]


def test_a_prepared_statement_is_read_in_the_mode_of_its_preparation(server: EmbeddedMariaDB, database: str) -> None:
    """The log has the mode of its execution."""
    followed = Followed(server, database)
    found = followed.run(
        "SET sql_mode = 'ANSI_QUOTES'",
        """PREPARE a FROM 'ALTER TABLE "t" ADD "n" int DEFAULT 4'""",
        """PREPARE r FROM 'RENAME TABLE "t" TO "u"'""",
        "SET sql_mode = ''",
        "EXECUTE a",
        "EXECUTE r",
        'ALTER TABLE u ADD x varchar(9) DEFAULT "t"',
    )
    assert followed.schema("u").columns == schema_of(server, database, "u").columns
    assert [change.fills for record in found for change in record.changes if change.fills] == [{"n": "4"}, {"x": "t"}]


@pytest.mark.parametrize("mode", ["", "NO_BACKSLASH_ESCAPES"])
def test_a_backslash_of_an_unknown_mode_holds_the_table(server: EmbeddedMariaDB, database: str, mode: str) -> None:
    if not is_mariadb(server):
        pytest.skip("MySQL has no SET STATEMENT")
    followed = Followed(server, database)
    alter = r"ALTER TABLE t ADD x varchar(9) DEFAULT 'a\\b'"
    found = followed.run(f"SET sql_mode = '{mode}'", f"SET STATEMENT sql_mode = '' FOR {alter}")
    assert [change.kind for record in found for change in record.changes][-1] == SchemaChangeKind.HOLD


def test_tables_come_go_and_change_names(server: EmbeddedMariaDB, database: str) -> None:
    followed = Followed(server, database)
    found = followed.run(
        "CREATE TABLE u (id int AUTO_INCREMENT PRIMARY KEY, v varchar(10) NOT NULL, KEY k (v)) ENGINE=InnoDB",
        "CREATE TABLE w LIKE t",
        "CREATE TABLE x AS SELECT 1 AS i",
        "RENAME TABLE t TO t2, u TO t",
        "ALTER TABLE w RENAME TO w2",
        "DROP TABLE w2",
        *(["CREATE OR REPLACE TABLE t (id int PRIMARY KEY)"] if is_mariadb(server) else _REPLACED),
    )
    kinds = [[change.kind for change in record.changes] for record in found]
    create, rename, drop = SchemaChangeKind.CREATE, SchemaChangeKind.RENAME, SchemaChangeKind.DROP
    assert kinds[:6] == [[create], [create], [SchemaChangeKind.HOLD], [rename, rename], [rename], [drop]]
    assert [kind for kinds_ in kinds[6:] for kind in kinds_] == [drop, create]
    for name in ("t", "t2"):
        assert followed.schema(name).columns == schema_of(server, database, name).columns


def test_an_online_schema_change_is_one_alter(server: EmbeddedMariaDB, database: str) -> None:
    followed = Followed(server, database)
    [record] = followed.run(
        "CREATE TABLE _t_gho LIKE t",
        "ALTER TABLE _t_gho ADD n int NOT NULL DEFAULT 5, CHANGE a c varchar(20)",
        "INSERT INTO t VALUES (1, 'x', 2)",
        "INSERT INTO _t_gho (id, c, b) SELECT id, a, b FROM t",
        "RENAME TABLE t TO _t_del, _t_gho TO t",
        "DROP TABLE _t_del",
    )
    [change] = record.changes
    assert (change.kind, change.renames, change.fills) == (SchemaChangeKind.ALTER, {"c": "a"}, {"n": "5"})
    assert followed.schema() == schema_of(server, database)


@pytest.mark.parametrize("change", ["MODIFY a varchar(1)", "MODIFY a varchar(50) COLLATE utf8mb4_unicode_ci"])
def test_a_copy_that_lacks_rows_of_its_table_holds_it(server: EmbeddedMariaDB, database: str, change: str) -> None:
    """Its unique key refuses one of two values that have become equal, and such tools leave that row out."""
    run(server, database, "ALTER TABLE t MODIFY a varchar(50) COLLATE utf8mb4_bin, ADD UNIQUE (a)")
    followed = Followed(server, database)
    [record] = followed.run(
        "SET sql_mode = ''",
        "INSERT INTO t VALUES (1, 'x', 1), (2, 'X ', 2), (3, 'x2', 3)",
        "CREATE TABLE _t_gho LIKE t",
        f"ALTER TABLE _t_gho {change}",
        "INSERT IGNORE INTO _t_gho SELECT * FROM t",
        "RENAME TABLE t TO _t_del, _t_gho TO t",
    )
    assert int(server.execute("SELECT count(*) FROM t", database=database)[0][0]) < 3
    assert [change.kind for change in record.changes] == [SchemaChangeKind.HOLD]


def test_the_key_that_is_left_is_looked_up(server: EmbeddedMariaDB, database: str) -> None:
    keys = "DROP TABLE t", "CREATE TABLE t (x int NOT NULL, y int NOT NULL, UNIQUE k1 (x), UNIQUE k2 (y, x))"
    run(server, database, *keys)
    followed = Followed(server, database, looks=True)
    assert followed.schema().key == ("x",)
    [record] = followed.run("/* away */ DROP /* with */ INDEX k1 ON t")
    assert [change.table.key for change in record.changes if change.table] == [("x", "y")]
    [record] = followed.run("ALTER TABLE t MODIFY y int NULL")
    assert [change.table.key for change in record.changes if change.table] == [()]


def test_new_tables_whose_definition_cannot_be_read_are_looked_at(server: EmbeddedMariaDB, database: str) -> None:
    followed = Followed(server, database, looks=True)
    parts = "PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (5), PARTITION b VALUES LESS THAN MAXVALUE)"
    found = followed.run(
        f"CREATE TABLE u (id int PRIMARY KEY, c char(3) BYTE) {parts}",
        f"CREATE TABLE w (id int PRIMARY KEY) /*!50100 {parts} */",
    )
    assert [change.kind for record in found for change in record.changes] == [SchemaChangeKind.CREATE] * 2
    assert followed.schema("u").columns == schema_of(server, database, "u").columns


#: definitions with several keys, of which the server takes one or none
_KEYS = [
    "x int NOT NULL, y int NOT NULL, UNIQUE k (y), UNIQUE (x)",
    "x int NOT NULL UNIQUE, y int NOT NULL, UNIQUE k (y)",
    "x int, y int NOT NULL, UNIQUE k (x), UNIQUE (y)",
    "x int NULL, y int, UNIQUE (x, y)",
    "x int NOT NULL, y int, UNIQUE (x, y)",
    "x int NOT NULL, y int NOT NULL, UNIQUE (y, x), PRIMARY KEY (x, y)",
    "x varchar(20) NOT NULL, y int NOT NULL, UNIQUE (x(3)), UNIQUE (y)",
    "x varchar(20) NOT NULL, UNIQUE (x(3))",
    "x varchar(20) NOT NULL, UNIQUE (x(20))",
    "x blob NOT NULL, y int NOT NULL, UNIQUE (x(4), y)",
    "x SERIAL, y int",
    "x bigint SERIAL DEFAULT VALUE, y int NOT NULL, UNIQUE (y)",
    "x bigint SERIAL DEFAULT VALUE NULL, y int",
    "x int NOT NULL NULL UNIQUE, y int NOT NULL, UNIQUE (y)",
    "x int NULL NOT NULL UNIQUE, y int NOT NULL, UNIQUE (y)",
    "x int AUTO_INCREMENT UNIQUE, y int NOT NULL UNIQUE",
    "x int AUTO_INCREMENT NULL UNIQUE, y int NOT NULL UNIQUE",
    "x int NULL AUTO_INCREMENT UNIQUE, y int",
    "x int KEY, y int NOT NULL UNIQUE",
    "x int NOT NULL, y int NOT NULL, UNIQUE u (x DESC, y)",
    "x int NOT NULL, y int NOT NULL, KEY (y), UNIQUE INDEX USING BTREE (y), UNIQUE KEY (x)",
    "x int, y int AS (x + 1) STORED, z int NOT NULL, UNIQUE (y), UNIQUE (z)",
    "x timestamp NOT NULL, y timestamp, UNIQUE (y), UNIQUE (x)",
    "x int NOT NULL, y int NOT NULL, CONSTRAINT c UNIQUE (y), CHECK (y > 0)",
]
_KEYS_MYSQL = [
    "x int, y int AS (x + 1) VIRTUAL NOT NULL, z int NOT NULL, UNIQUE (y), UNIQUE (z)",
    "x int, y int AS (x + 1) NOT NULL, UNIQUE (y)",
    "x int, y int GENERATED ALWAYS AS (x + 1) STORED NOT NULL, z int NOT NULL, UNIQUE (y), UNIQUE (z)",
    "x int NOT NULL, y int NOT NULL, UNIQUE ((x + 1)), UNIQUE (y)",
    "x int NOT NULL, y int NOT NULL, UNIQUE (y) /*!80000 VISIBLE */, UNIQUE (x)",
    "x serial NULL, y int NOT NULL UNIQUE",
]


def test_the_key_of_a_new_table_is_the_one_that_the_server_takes(server: EmbeddedMariaDB, database: str) -> None:
    wrong, unknown = [], []
    for columns in _KEYS if is_mariadb(server) else _KEYS + _KEYS_MYSQL:
        statement = f"CREATE TABLE u ({columns})"
        run(server, database, "DROP TABLE IF EXISTS u", statement)
        [edit] = parse_ddl(statement, database, {}, is_mariadb=is_mariadb(server))
        assert isinstance(edit, Created)
        assert edit.schema is not None, statement
        key = {*schema_of(server, database, "u").key}
        is_known = bool(edit.schema.key) or edit.is_keyless
        wrong += [(columns, edit.schema.key, key)] * (is_known and {*edit.schema.key} != key)
        unknown += [columns] * (not is_known)
    assert wrong == []
    assert [columns for columns in unknown if "UNIQUE (x(" not in columns and "((" not in columns] == []


#: what moves rows between tables, or takes them away, without an event for any of them; for MariaDB alone: with a mark
_PARTITIONS_MOVED = {
    "ALTER TABLE p EXCHANGE PARTITION a WITH TABLE s": "ps",
    "alter /* to */ table `p` exchange /* fro */ partition a with table s": "ps",
    "/*!50100 ALTER TABLE p EXCHANGE PARTITION a WITH TABLE s */": "ps",
    "SET @s = 'ALTER TABLE p EXCHANGE PARTITION a WITH TABLE s'; PREPARE s FROM @s; EXECUTE s": "ps",
    "ALTER TABLE p TRUNCATE PARTITION a": "p",
    "ALTER TABLE p DROP PARTITION a": "p",
    "SET STATEMENT max_statement_time = 9 FOR ALTER TABLE p EXCHANGE PARTITION a WITH TABLE s": "ps mariadb",
    "ALTER TABLE p CONVERT PARTITION a TO TABLE x": "px mariadb",
    "ALTER TABLE q CONVERT TABLE s TO PARTITION b VALUES LESS THAN (20)": "qs mariadb",
}


@pytest.mark.both_flavours  # some are MariaDB's alone
@pytest.mark.parametrize("statement", _PARTITIONS_MOVED)
def test_rows_that_move_with_partitions_hold_their_tables(
    server: EmbeddedMariaDB, database: str, statement: str
) -> None:
    expected, *mark = _PARTITIONS_MOVED[statement].split()
    if mark and not is_mariadb(server):
        pytest.skip("MySQL has no such statement")
    followed = Followed(server, database, looks=True)
    parts = "PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (10)"
    followed.run(
        "CREATE TABLE s (id int PRIMARY KEY, v int)",
        f"CREATE TABLE p (id int PRIMARY KEY, v int) {parts}, PARTITION rest VALUES LESS THAN MAXVALUE)",
        f"CREATE TABLE q (id int PRIMARY KEY, v int) {parts})",
        "INSERT INTO p VALUES (1, 1), (11, 1)",
        f"INSERT INTO s VALUES ({12 if expected == 'qs' else 2}, 2)",
    )
    changes = [change for record in followed.run(*statement.split("; ")) for change in record.changes]
    held = {change.table.name for change in changes if change.kind is SchemaChangeKind.HOLD and change.table}
    gone = {"s"} if expected == "qs" else set()  # it is a partition from then on
    assert held | gone == set(expected), changes
    assert all(change.kind in (SchemaChangeKind.HOLD, SchemaChangeKind.DROP) for change in changes)


def test_a_rename_beside_what_cannot_be_read(server: EmbeddedMariaDB, database: str) -> None:
    followed = Followed(server, database, looks=True)
    [record] = followed.run("ALTER TABLE t ADD p point, CHANGE a c varchar(9), ADD n int DEFAULT 3, RENAME AS u")
    [change] = record.changes
    assert (change.renames, change.added, change.fills) == ({"c": "a"}, ("p", "n"), {"n": "3"})
    assert followed.schema("u").columns == schema_of(server, database, "u").columns


DEFAULTS = [
    ("", "decimal(10,3) DEFAULT 1.23456"),
    ("", "decimal(50,2) DEFAULT -1.5"),
    ("", "int DEFAULT 1.6"),
    ("", "int DEFAULT 0x0F"),
    ("", "year DEFAULT 24"),
    ("", "double(10,3) DEFAULT 1.23456"),
    ("", "date DEFAULT '2024-1-2'"),
    ("", "date DEFAULT 20240102"),
    ("", "datetime DEFAULT '2024/1/2 3:4'"),
    ("", "datetime(3) DEFAULT 20240102030405.25"),
    ("", "varchar(9) DEFAULT _utf8mb4'ab'"),
    ("", "varchar(9) DEFAULT X'4142'"),
    ("", "char(5) NOT NULL DEFAULT 'ab  '"),
    ("", "enum('a','b') DEFAULT 'B'"),
    ("", "set('a','b','c') NOT NULL DEFAULT 'c,a'"),
    ("", "timestamp NULL DEFAULT '2024-01-02 03:04:05'"),
    ("time_zone = '+05:30'", "timestamp(3) NULL DEFAULT '2024-01-02 03:04:05.5'"),
    ("time_zone = '+05:30'", "datetime DEFAULT CURRENT_TIMESTAMP"),
    ("time_zone = '-03:00'", "datetime(3) DEFAULT NOW(3)"),
    ("", "timestamp NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP"),
    ("", "timestamp(6) NULL DEFAULT LOCALTIMESTAMP(6)"),
    ("timestamp = 1000000000", "timestamp DEFAULT NOW()"),
    ("sql_mode = 'NO_BACKSLASH_ESCAPES'", "varchar(9) DEFAULT 'a\\nb'"),
    ("sql_mode = 'PIPES_AS_CONCAT'", "varchar(9) DEFAULT ('a' || 'b\\'s' || 'c')"),
    ("sql_mode = 'ANSI'", "varchar(9) DEFAULT ('a' || 'b')"),
    ("timestamp = 1000000000.987654, time_zone = '+09:30'", "time DEFAULT (CURRENT_TIME)"),
    ("timestamp = 1000000000.987654, time_zone = '-11:00'", "time(6) DEFAULT (CURTIME(2))"),
    ("timestamp = 1000000000.987654, time_zone = '+09:30'", "time DEFAULT (NOW())"),
    ("timestamp = 1000000000.987654, time_zone = '+09:30'", "time(6) DEFAULT (NOW(6))"),
    ("timestamp = 1000000000.987654, time_zone = '+12:00'", "date DEFAULT (NOW())"),
    ("timestamp = 1000000000.987654, time_zone = '+12:00'", "date DEFAULT (CURRENT_DATE)"),
    ("timestamp = 1000000000.987654, time_zone = '+12:00'", "datetime(2) DEFAULT (CURDATE())"),
    ("timestamp = 1000000000.987654, time_zone = '+05:30'", "datetime(6) DEFAULT (NOW())"),
    ("timestamp = 1000000000.987654, time_zone = '+05:30'", "datetime(6) DEFAULT NOW(6)"),
    ("timestamp = 1000000000.25, time_zone = '+05:30'", "datetime(2) DEFAULT (NOW(6))"),
]


@pytest.mark.sample(0.15)
@pytest.mark.parametrize(("setting", "definition"), DEFAULTS, ids=[definition for _, definition in DEFAULTS])
def test_what_older_rows_hold_in_a_new_column(
    server: EmbeddedMariaDB, database: str, setting: str, definition: str
) -> None:
    run(server, database, "INSERT INTO t VALUES (1, 'x', 2)")
    followed = Followed(server, database)
    [record] = followed.run(*([f"SET SESSION {setting}"] if setting else []), f"ALTER TABLE t ADD n {definition}")
    [change] = record.changes
    value = fill_value(followed.schema(), "n", change.fills["n"]).as_py()
    with contextlib.closing(server.connect(database)) as session, session.cursor() as cursor:
        cursor.execute("SET SESSION time_zone = '+00:00'")
        # a double of so many digits is shown as rounded text, and sent as what it is
        cursor.execute("SELECT n + 0e0 FROM t" if definition.startswith("double") else "SELECT n FROM t")
        [[there]] = cursor.fetchall()
    assert str(value).removesuffix("+00:00") == str(there)


@pytest.mark.parametrize(
    "definition", ["datetime DEFAULT (NOW(3))", "timestamp(2) NULL DEFAULT (NOW(6))", "time(1) DEFAULT 10203.25"]
)
def test_times_of_more_digits_than_their_column(server: EmbeddedMariaDB, database: str, definition: str) -> None:
    """Whether they are rounded depends on the server and its SQL mode."""
    followed = Followed(server, database)
    [record] = followed.run("SET timestamp = 1000000000.987654", f"ALTER TABLE t ADD n {definition}")
    assert [change.is_hold for change in record.changes] == [True]


@pytest.mark.parametrize("definition", ["date NOT NULL", "datetime(2) NOT NULL DEFAULT '0000-00-00'"])
def test_dates_of_zeros_in_older_rows(server: EmbeddedMariaDB, database: str, definition: str) -> None:
    followed = Followed(server, database)
    [record] = followed.run("SET sql_mode = ''", f"ALTER TABLE t ADD n {definition}")
    [change] = record.changes
    assert fill_value(followed.schema(), "n", change.fills["n"]).as_py() is None
    as_text = replace(followed.schema(), zero_dates=ZeroDates.STRING)
    text = "0000-00-00" if definition.startswith("date ") else "0000-00-00 00:00:00.00"
    assert fill_value(as_text, "n", change.fills["n"]).as_py() == text
    with pytest.raises(DecodeError, match="weir table resync"):
        fill_value(replace(as_text, zero_dates=ZeroDates.STRICT), "n", change.fills["n"])


def opened_at(
    server: EmbeddedMariaDB, begin: SourcePosition, *tables: TableRecord, rules: tuple[str, ...], **settings: Any
) -> MysqlStream:
    """As the sync unit does."""
    schemas = {table.table_id: schema_of(server, table.schema_name, table.name) for table in tables}
    scope = Scope("c", "feed", SinkMode.UPSERT, ChangefeedConfig(filter=FilterConfig(rules=rules), **settings))
    streams = MysqlStreams(parse_uri(server.uri()), StreamOrder(tables, schemas=schemas, reader=4714), scope)
    return streams.open(Position(begin.resolved, begin.to_json()), Arena(ARENA_BYTES))


@pytest.mark.parametrize("setting", ["refuse", "accept"])
def test_tables_with_cascades_that_come_later(server: EmbeddedMariaDB, database: str, setting: str) -> None:
    """Held where the server does not log what they do, unless that is accepted."""
    begin = where(server)
    with contextlib.closing(opened_at(server, begin, rules=(f"{database}.*",), unlogged_cascades=setting)) as opened:
        key = "FOREIGN KEY (p) REFERENCES t (id) ON DELETE CASCADE"
        run(server, database, f"CREATE TABLE u (id int PRIMARY KEY, p int, {key})")
        run(server, database, "CREATE TABLE v (id int PRIMARY KEY, p int)", "INSERT INTO v VALUES (1, NULL)")
        run(server, database, f"ALTER TABLE v ADD {key}")
        cuts = [*read_until(opened.stream, where(server)), opened.stream.progress()]
    changes = [change for cut in cuts for record in cut.ddl for change in record.changes]
    held = {change.table.name for change in changes if change.kind is SchemaChangeKind.HOLD and change.table}
    assert held == ({"u", "v"} if setting == "refuse" and is_mariadb(server) else set())


def test_a_table_that_the_server_makes_for_itself_is_ignored(server: EmbeddedMariaDB, database: str) -> None:
    begin = where(server)
    with contextlib.closing(opened_at(server, begin, rules=("*.*",))) as opened:
        run(server, "mysql", "CREATE TABLE own_ (id int PRIMARY KEY)", "DROP TABLE own_")
        run(server, database, "CREATE TABLE u (id int PRIMARY KEY)")
        cuts = [*read_until(opened.stream, where(server)), opened.stream.progress()]
    records = [record for cut in cuts for record in cut.ddl]
    assert [change.table.name for record in records for change in record.changes if change.table] == ["u"]


def test_names_are_folded_where_the_server_folds_them(tmp_path: Path) -> None:
    settings = {"lower_case_table_names": "1"}
    with EmbeddedMariaDB(tmp_path, unsafe_no_fsync=True, settings=settings) as server:
        server.create_database("shop")
        run(server, "shop", _TABLE)
        table = TableRecord(table_id=table_id("shop", "t"), schema_name="shop", name="t", key=("id",))
        begin = where(server)
        run(server, "shop", "ALTER TABLE T ADD n int", "TRUNCATE SHOP.T", "CREATE TABLE New_ LIKE T", "DROP TABLE NEW_")
        run(
            server, "shop", "CREATE TABLE ΛΌΓΟΣ LIKE t", "ALTER TABLE ΛΌΓΟΣ ADD ΟΔΟΣ int", "ALTER TABLE ΛΌΓΟΣ DROP οδοσ"
        )
        with contextlib.closing(opened_at(server, begin, table, rules=("*.*",))) as opened:
            cuts = [*read_until(opened.stream, where(server)), opened.stream.progress()]
    found = [(change.kind, change.added) for cut in cuts for record in cut.ddl for change in record.changes]
    assert found == [
        (SchemaChangeKind.ALTER, ("n",)),
        (SchemaChangeKind.CREATE, ()),
        (SchemaChangeKind.DROP, ()),
        (SchemaChangeKind.CREATE, ()),
        (SchemaChangeKind.ALTER, ("ΟΔΟΣ",)),
        (SchemaChangeKind.ALTER, ()),
    ]
    assert [event[:1] for _, _, _, event in lines(cuts)] == [bytes([wire.TRUNCATED])]


def test_definitions_of_temporary_tables_are_none_of_ours(server: EmbeddedMariaDB, database: str) -> None:
    """In a session that logs statements, they are in the log, under names that replicated tables have too."""
    followed = Followed(server, database)
    before = followed.schema()
    records = followed.run(
        "SET SESSION binlog_format = STATEMENT",
        "CREATE TEMPORARY TABLE t (id int)",
        "ALTER TABLE t ADD n int",
        "TRUNCATE TABLE t",
        "DROP TABLE t",
        "SET SESSION binlog_format = ROW",
        "ALTER TABLE t COMMENT 'ours'",
    )
    assert records == []
    assert followed.schema() == before


def test_names_in_the_character_set_of_the_session(server: EmbeddedMariaDB, database: str) -> None:
    """A client that sends UTF-8 and says that it is latin1 makes names of more letters."""
    followed = Followed(server, database, looks=True)
    found = followed.run(
        "SET NAMES latin1",
        "CREATE TABLE `é` (`ü` int PRIMARY KEY)",
        "ALTER TABLE `é` ADD `ö` int",
        "RENAME TABLE `é` TO `ä`",
        "CREATE TABLE `è` LIKE `ä`",
        "DROP TABLE `è`",
        "CREATE TEMPORARY TABLE p (`ï` int PRIMARY KEY)",
        "CREATE TABLE `ê` LIKE p",
    )
    changes = [change for record in found for change in record.changes]
    kinds, names = [change.kind for change in changes], [change.table.name for change in changes if change.table]
    create, alter, rename = SchemaChangeKind.CREATE, SchemaChangeKind.ALTER, SchemaChangeKind.RENAME
    assert kinds == [create, alter, rename, create, SchemaChangeKind.DROP, create]
    assert names == ["Ã©", "Ã©", "Ã¤", "Ã¨", "Ãª"]
    assert [column.name for column in followed.schema("Ã¤").columns] == ["Ã¼", "Ã¶"]


@pytest.mark.parametrize(
    ("members", "parts", "is_held"),
    [
        ("'é', 'b'", "CONVERT TO CHARACTER SET utf8mb4", True),
        ("'é', 'b'", "CONVERT TO CHARACTER SET utf8mb4, MODIFY e enum('é', 'b')", True),
        ("'é', 'b'", "CONVERT TO CHARACTER SET utf8mb4, MODIFY e enum('é', 'b'), DROP s", False),
        ("'a', 'b'", "CONVERT TO CHARACTER SET utf8mb4", False),
        ("'a', 'b'", "CONVERT TO CHARACTER SET ucs2", True),
        ("'é', 'b'", "CHARACTER SET utf8mb4", False),
    ],
)
def test_members_in_another_character_set(
    server: EmbeddedMariaDB, database: str, members: str, parts: str, is_held: bool
) -> None:
    """The server takes their bytes for text of the new one, and loses values."""
    run(server, database, f"ALTER TABLE t CHARACTER SET latin1, ADD e enum({members}), ADD s set({members})")
    followed = Followed(server, database)
    changes = [
        change for record in followed.run("SET sql_mode = ''", f"ALTER TABLE t {parts}") for change in record.changes
    ]
    assert [change.is_hold for change in changes if change.is_hold] == [True] * is_held


def test_defaults_in_the_character_set_of_the_session(server: EmbeddedMariaDB, database: str) -> None:
    """The session says what the bytes of its statements mean, also where they are UTF-8 too."""
    run(server, database, "INSERT INTO t VALUES (1, 'a', 2)")
    followed = Followed(server, database)
    add = "ALTER TABLE t ADD c varchar(9) DEFAULT 'é', ADD e enum('é', 'b') DEFAULT 'é'"
    [record] = followed.run("SET NAMES latin1", add)
    [change] = record.changes
    [there] = server.execute("SELECT c, e FROM t", database=database)
    found = [fill_value(followed.schema(), name, change.fills[name]).as_py() for name in "ce"]
    assert found == there == ["Ã©", "Ã©"]
    [record] = followed.run("SET NAMES latin1", "ALTER TABLE t ADD x varbinary(9) DEFAULT 'é'")
    assert any(change.is_hold for change in record.changes), "its bytes depend on the session"


@pytest.mark.parametrize("between", [["INSERT INTO t (id) VALUES (77)"], []], ids=["rows", "no rows"])
def test_rows_of_a_time_without_a_primary_key_hold_a_table_that_has_got_it_since(
    server: EmbeddedMariaDB, database: str, between: list[str]
) -> None:
    """Read late, the server shows the key already: two rows with one id were one row, and deleting one deleted both."""
    followed = Followed(server, database, looks=True)
    records = followed.run("ALTER TABLE t DROP PRIMARY KEY", *between, "ALTER TABLE t ADD PRIMARY KEY (id)")
    holds = [change.reason for record in records for change in record.changes if change.is_hold]
    assert ["ahead of the log" in reason for reason in holds] == [True] * len(between)


@pytest.mark.parametrize("between", [["INSERT INTO t VALUES (7, 7)"], []], ids=["rows", "no rows"])
@pytest.mark.parametrize(
    "later", ["ADD UNIQUE k (x)", "ADD UNIQUE m (y)", "ADD PRIMARY KEY (x)", "ADD PRIMARY KEY (y)"]
)
def test_rows_of_a_time_without_a_unique_key_hold_a_table_that_has_got_one_since(
    server: EmbeddedMariaDB, database: str, between: list[str], later: str
) -> None:
    run(server, database, "DROP TABLE t", "CREATE TABLE t (x int NOT NULL, y int NOT NULL, UNIQUE k (x))")
    followed = Followed(server, database, looks=True)
    records = followed.run("ALTER TABLE t DROP INDEX k", *between, f"ALTER TABLE t {later}")
    holds = [change.reason for record in records for change in record.changes if change.is_hold]
    assert ["ahead of the log" in reason for reason in holds] == [True] * len(between)


def test_a_replacement_that_fails_has_dropped_its_table(mariadb: EmbeddedMariaDB) -> None:
    """MariaDB logs the statement that has failed, with an error."""
    database = "ddl_failed_replacement"
    mariadb.create_database(database)
    run(mariadb, database, _TABLE)
    followed = Followed(mariadb, database)
    begin = where(mariadb)
    with pytest.raises(pymysql.Error, match="nope"):
        run(mariadb, database, "CREATE OR REPLACE TABLE t (id int, PRIMARY KEY (nope))")
    assert mariadb.execute(f"SHOW TABLES FROM {database}") == []
    [record] = followed.read(begin)
    assert [change.kind for change in record.changes] == [SchemaChangeKind.DROP]
