"""The catalog of a real server: it describes tables as table maps do."""

from contextlib import closing
from dataclasses import replace

import pytest

from agent.errors import TableGoneError
from agent.rows.schema import TableSchema, ZeroDates
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.server.catalog import read_schemas
from agent.sources.mysql.server.computed import computed_columns
from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.server.uniques import unique_columns
from capture.embedded import EmbeddedMariaDB
from tests.integration.agent.sources.mysql.row_events import new_binlog, table_events
from tests.mysql_server import EmbeddedMysql, is_mariadb

_COLUMNS = """
 ti tinyint, tiu tinyint unsigned, b1 boolean, si smallint, siu smallint unsigned, mi mediumint,
 miu mediumint unsigned, i int, iu int unsigned, bi bigint, biu bigint unsigned, iz int(6) zerofill,
 de decimal(10,2), deu decimal(38,10) unsigned, de65 decimal(65,30), d0 decimal(5,0), dd decimal,
 f float, db double, f72 float(7,2), dbu double unsigned, bit1 bit(1), bit8 bit(8), bit63 bit(63), bit64 bit(64),
 d date, t0 time, t3 time(3), t6 time(6), dt0 datetime, dt6 datetime(6), ts0 timestamp null, ts6 timestamp(6) null,
 y year, c char(10), c255 char(255), vc varchar(100), vcl varchar(1000), tx text, tt tinytext, mt mediumtext,
 lt longtext, cl char(10) character set latin1, vg varchar(50) character set gbk, u2 varchar(20) character set ucs2,
 u3 varchar(10) character set utf8mb3, tl text character set latin1,
 bn binary(5), vb varbinary(50), bl blob, tb tinyblob, mb mediumblob, lb longblob, cb char(3) character set binary,
 e enum('a','it''s','ü,'), st set('x','y','z'), el enum('é') character set latin1, j json, g geometry, p point,
 gs int generated always as (i + 1) stored, gv int generated always as (i + 2) virtual,
 inv int invisible default 5
"""
_MARIADB_COLUMNS = """
 uca varchar(9) collate utf8mb4_uca1400_ai_ci, u uuid, i4 inet4, i6 inet6,
 vz varchar(100) compressed, bz blob compressed, tz text compressed
"""
_MYSQL_COLUMNS = """
 uca varchar(9) collate utf8mb4_0900_ai_ci, ja varchar(20) collate utf8mb4_ja_0900_as_cs,
 u16 varchar(5) character set utf16, gb varchar(9) character set gb18030,
 gm multipolygon, gc geometrycollection, g4 point srid 4326,
 gj json generated always as (json_object('i', i)) virtual, v vector(3)
"""
#: the log shows their bytes only, and not how a number is printed
_ONLY_IN_THE_CATALOG = {
    **{"uuid": "binary(16)", "inet4": "binary(4)", "inet6": "binary(16)"},
    **{"int(6) unsigned zerofill": "int unsigned", "float(7,2)": "float", "vector(3)": "vector"},
}


def all_columns(server: EmbeddedMariaDB) -> str:
    return f"{_COLUMNS}, {_MARIADB_COLUMNS if is_mariadb(server) else _MYSQL_COLUMNS}"


_TABLES = {
    "all_types": "(id bigint primary key auto_increment, {})",
    "no_key": "(a int, b varchar(5))",
    "composite": "(a int not null, b int not null, c int, primary key (b, a))",
    "first_unique": "(a int not null, b int not null, unique key z (b), unique key a (a))",
    "nullable_unique": "(a int, b int not null, unique key q (a), unique key w (b, a))",
    "unique_over_two": "(a int, b int not null, c int not null, unique key n (a), unique key y (c, b))",
    "prefix": "(a varchar(50), b int, primary key (a(10)))",
    "unique_prefix": "(a varchar(50) not null, unique key (a(5)))",
    "big_enum": "(id int primary key, e enum(" + ",".join(f"'{i}'" for i in range(300)) + "))",
    "Weird `name": "(`ö ``x` int primary key, `select` int)",
}


@pytest.fixture(scope="module")
def database(server: EmbeddedMariaDB) -> str:
    server.create_database("catalog_test")
    for name, definition in _TABLES.items():
        quoted = name.replace("`", "``")
        filled = definition.format(all_columns(server)) if name == "all_types" else definition
        server.execute(f"CREATE TABLE `{quoted}` {filled} CHARACTER SET utf8mb4", database="catalog_test")
    return "catalog_test"


def _declared(server: EmbeddedMariaDB, database: str, name: str) -> TableSchema:
    quoted = name.replace("`", "``")
    since = new_binlog(server)
    server.execute(f"INSERT IGNORE INTO `{quoted}` () VALUES ()", database=database)
    [(schema, _)] = table_events(server, database, name, since=since)
    return schema


@pytest.mark.parametrize("name", _TABLES)
def test_the_catalog_and_the_log_agree(server: EmbeddedMariaDB, database: str, name: str) -> None:
    with connect(server.uri()) as connection:
        [schema] = read_schemas(connection, [(database, name)]).values()
    columns = (replace(c, type_name=_ONLY_IN_THE_CATALOG.get(c.type_name, c.type_name)) for c in schema.columns)
    assert replace(schema, columns=tuple(columns)) == _declared(server, database, name)


def test_uuid_and_addresses_are_known_from_the_catalog(server: EmbeddedMariaDB, database: str) -> None:
    with connect(server.uri()) as connection:
        [schema] = read_schemas(connection, [(database, "all_types")], zero_dates=ZeroDates.STRING).values()
    named = {"uuid", "inet4", "inet6"} if is_mariadb(server) else {"vector(3)", "json"}
    assert named <= {column.type_name for column in schema.columns}
    assert schema.zero_dates is ZeroDates.STRING


def test_keys_are_those_that_the_server_goes_by(server: EmbeddedMariaDB, database: str) -> None:
    names = ["no_key", "composite", "first_unique", "nullable_unique", "unique_over_two", "prefix", "unique_prefix"]
    with connect(server.uri()) as connection:
        schemas = read_schemas(connection, [(database, name) for name in names])
    keys = [schemas[table_id(database, name)].key for name in names]
    assert keys == [(), ("a", "b"), ("b",), (), ("b", "c"), ("a",), ()]


def test_many_tables_at_once_and_one_that_is_gone(server: EmbeddedMariaDB, database: str) -> None:
    with connect(server.uri()) as connection:
        both = [(database, "composite"), ("mysql", "db")]
        assert {schema.qualified_name for schema in read_schemas(connection, both).values()} == {
            "catalog_test.composite",
            "mysql.db",
        }
        assert read_schemas(connection, []) == {}
        with pytest.raises(TableGoneError, match=r"table catalog_test\.gone is gone"):
            read_schemas(connection, [(database, "composite"), (database, "gone")])


def test_views_and_sequences_are_no_tables(server: EmbeddedMariaDB, database: str) -> None:
    server.execute("CREATE VIEW seen AS SELECT * FROM composite", database=database)
    if is_mariadb(server):
        server.execute("CREATE SEQUENCE numbers", database=database)
    for name in ("seen", "numbers"):
        with connect(server.uri()) as connection, pytest.raises(TableGoneError, match="is gone"):
            read_schemas(connection, [(database, name)])


def test_generated_columns_and_what_they_are_computed_from(server: EmbeddedMariaDB) -> None:
    name = "catalog_computed"
    server.create_database(name)
    columns = "id int PRIMARY KEY, `B c` int, n int, s int AS (`B c` + 1) STORED, v text AS (upper(hex(n))) VIRTUAL"
    server.execute(f"CREATE TABLE t ({columns})", database=name)
    server.execute("CREATE TABLE u (id int PRIMARY KEY, S int AS (id) STORED)", database=name)
    with connect(server.uri()) as connection:
        found = computed_columns(connection, name, "t")
        gone = computed_columns(connection, name, "has_another_name_now")
    assert sorted(found) == ["s", "v"]
    assert "`B c`" in found["s"]
    assert "`n`" in found["v"]
    assert "`B c`" in gone["s"]
    assert "`id`" in gone["s"]


def test_columns_of_unique_keys(server: EmbeddedMariaDB) -> None:
    name = "unique_keys"
    server.create_database(name)
    expression = "" if is_mariadb(server) else ", UNIQUE KEY ((D + 1))"
    columns = "id int PRIMARY KEY, `A a` int UNIQUE, b int, c int, D int, KEY (b), UNIQUE (c, id)"
    server.execute(f"CREATE TABLE t ({columns}{expression})", database=name)
    server.execute("CREATE TABLE u (id int PRIMARY KEY, e int UNIQUE)", database=name)
    with connect(server.uri()) as connection:
        found = unique_columns(connection, name, "t")
        assert found == ({"id", "a a", "c"} if is_mariadb(server) else {"id", "a a", "b", "c", "d"})
        assert unique_columns(connection, name, "has_another_name_now") == found | {"id", "e"}
        assert unique_columns(connection, "none", "t") == frozenset()


def test_a_key_that_mysql_made_and_hides_is_seen(mysql: EmbeddedMysql) -> None:
    mysql.create_database("made_keys")
    with closing(mysql.connect("made_keys")) as session, session.cursor() as cursor:
        cursor.execute("SET sql_generate_invisible_primary_key = ON")
        cursor.execute("CREATE TABLE t (a int)")
    mysql.execute("SET GLOBAL show_gipk_in_create_table_and_information_schema = OFF")
    try:
        with connect(mysql.uri()) as connection:
            [schema] = read_schemas(connection, [("made_keys", "t")]).values()
    finally:
        mysql.execute("SET GLOBAL show_gipk_in_create_table_and_information_schema = ON")
    assert schema.key == ("my_row_id",)
    assert schema == _declared(mysql, "made_keys", "t")
