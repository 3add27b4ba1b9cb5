"""Rows read from a real server are those that its binlog tells, whatever their type, size and key."""

import struct
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.errors import DecodeError, SourceError
from agent.rows.schema import TableSchema, ZeroDates
from agent.sources.mysql.decode.decode import decode
from agent.sources.mysql.decode.types import arrow_schema
from agent.sources.mysql.server.catalog import read_schemas
from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.server.uri import parse_uri
from agent.sources.mysql.snapshot import rows_text
from agent.sources.mysql.snapshot.chunk_plan import plan_chunks
from agent.sources.mysql.snapshot.chunks import WHOLE_TABLE, Chunk, PlanKind
from agent.sources.mysql.snapshot.rows import read_chunk, select_rows
from capture.embedded import EmbeddedMariaDB
from tests.integration.agent.sources.mysql.row_events import new_binlog, table_events
from tests.integration.agent.sources.mysql.server.test_catalog import all_columns
from tests.mysql_server import is_mariadb

pytestmark = pytest.mark.sample(0.25)  # make matrix runs the others

#: rows of the table of all types: what differs from NULL
_ROWS: tuple[dict[str, str], ...] = (
    {},
    {
        "ti": "-128", "tiu": "255", "b1": "1", "si": "-32768", "siu": "65535", "mi": "-8388608", "miu": "16777215",
        "i": "-2147483648", "iu": "4294967295", "bi": "-9223372036854775808", "biu": "18446744073709551615",
        "iz": "42", "de": "-99999999.99", "deu": "9999999999999999999999999999.9999999999", "d0": "-99999",
        "de65": "-99999999999999999999999999999999999.999999999999999999999999999999", "dd": "9999999999",
        "f": "16777217", "db": "1.7976931348623157e308", "f72": "-99999.99", "dbu": "2.2250738585072014e-308",
        "bit1": "b'1'", "bit8": "b'11111111'", "bit63": "0x7fffffffffffffff", "bit64": "0xffffffffffffffff",
    },
    {
        "ti": "0", "bi": "9223372036854775807", "biu": "99999999999999999", "de": "0.01", "de65": "-1e-30", "d0": "0",
        "deu": "0.0000000001", "f": "-1.17549435e-38", "db": "5e-324", "bit1": "b'0'", "bit64": "0", "y": "0",
    },
    {
        "d": "'9999-12-31'", "t0": "'-838:59:59'", "t3": "'838:59:59.999'", "t6": "'-00:00:00.000001'",
        "dt0": "'1000-01-01 00:00:00'", "dt6": "'9999-12-31 23:59:59.999999'", "ts0": "'1970-01-01 00:00:01'",
        "ts6": "'2038-01-19 03:14:07.999999'", "y": "2155",
    },
    {
        "d": "'2024-02-29'", "t0": "'00:00:00'", "t3": "'12:34:56.7'", "t6": "'100:00:00.5'", "y": "1901",
        "dt0": "'2024-02-29 1:2:3'", "dt6": "'1969-12-31 23:59:59.5'", "ts0": "'2024-03-31 02:30:00'",
        "ts6": "'2024-10-27 01:30:00.000001'",
    },
    {
        "c": "'ab  '", "c255": "repeat('ä', 255)", "vc": "'a  '", "vcl": "repeat('😀', 1000)", "tx": "''", "tt": "'ü'",
        "mt": "repeat('x', 70000)", "lt": "'日本語'", "cl": "'é€'", "vg": "'中文'", "u2": "'ünï'", "u3": "'ẞ'",
        "tl": "'naïve'", "bn": "'a\\0'", "vb": "x'00ff80'", "bl": "x''", "tb": "x'00'",
        "mb": "repeat(x'80', 66000)",
        "lb": "'text'", "cb": "x'ff'",
    },
    {
        "e": "'ü,'", "st": "'x,z'", "el": "'é'", "j": """'{"a": [1, 2.5, null, "ü"]}'""", "g": "point(1.5, -2)",
        "p": "point(0, 0)", "inv": "7",
    },
    {
        "e": "0", "st": "''", "el": "''", "g": "st_geomfromtext('POLYGON((0 0,1 0,1 1,0 0))', 4326)", "c": "''",
        "bn": "''", "j": "'[]'",
    },
)  # fmt: skip
_MARIADB_ROWS: tuple[dict[str, str], ...] = (
    {
        "u": "'123e4567-e89b-12d3-a456-426655440000'", "i4": "'192.168.0.1'", "i6": "'2001:db8::ff00:42:8329'",
        "uca": "'Ω'", "vz": "repeat('y', 100)", "bz": "repeat('z', 500)", "tz": "'kurz'",
    },
    {"u": "'00000000-0000-0000-0000-000000000000'", "i6": "'::ffff:1.2.3.4'", "i4": "'0.0.0.0'"},
)  # fmt: skip
_MYSQL_ROWS: tuple[dict[str, str], ...] = (
    {
        "uca": "'Ω'", "ja": "'日本'", "u16": "'ü😀'", "gb": "'中文'", "v": "to_vector('[1.5,-2,0]')", "i": "7",
        "gm": "st_geomfromtext('MULTIPOLYGON(((0 0,1 0,1 1,0 0)))')", "g4": "st_srid(point(1, 2), 4326)",
        "gc": "st_geomfromtext('GEOMETRYCOLLECTION(POINT(1 2),LINESTRING(0 0,1 1))')",
    },
    *(
        {"j": value}
        for value in (
            "'null'", "'true'", "'-1'", "'32768'", "'4294967296'", "'18446744073709551615'", "'1e300'", "'-0.1'",
            "cast(cast('12345.678' as decimal(20,3)) as json)", "cast(timestamp'2024-02-29 01:02:03.5' as json)",
            "cast(date'2024-02-29' as json)", "cast(time'-12:34:56.000001' as json)", "cast(x'00ff' as json)",
            "json_object('k', repeat('ü', 40000), 'a', json_array(1, 2.5, null, false, json_object()))",
            "json_array(json_object('b', 1, 'aa', 2, 'ä', 3), '\"', '\\\\ \\n', '😀')", "json_quote('text')",
            "cast(cast(3 as year) as json)", "cast(1.0 as json)", "cast(1e15 as json)", "cast(1e21 as json)",
        )
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def binlog(server: EmbeddedMariaDB) -> str:
    """The file with the first statements of this module."""
    return new_binlog(server)


@pytest.fixture(scope="module")
def database(server: EmbeddedMariaDB, binlog: str) -> str:
    server.create_database("snapshot_test")
    return "snapshot_test"


def _schema(server: EmbeddedMariaDB, database: str, name: str, **options: Any) -> TableSchema:
    with connect(server.uri()) as connection:
        [schema] = read_schemas(connection, [(database, name)], **options).values()
    return schema


def _read(server: EmbeddedMariaDB, schema: TableSchema, chunk: Chunk = WHOLE_TABLE) -> pa.Table:
    batches = list(read_chunk(parse_uri(server.uri()), schema, chunk))
    return pa.Table.from_batches(batches, schema=arrow_schema(schema))


def _logged(server: EmbeddedMariaDB, schema: TableSchema, binlog: str) -> pa.Table:
    """What the inserts in the log say, under the schema of the catalog, which knows more than they do."""
    [(_, batch)] = table_events(server, schema.schema_name, schema.name, since=binlog)
    return pa.Table.from_batches([decode(schema, batch).after])


def test_every_type_is_read_as_the_log_is_decoded(server: EmbeddedMariaDB, database: str, binlog: str) -> None:
    rows = _ROWS + (_MARIADB_ROWS if is_mariadb(server) else _MYSQL_ROWS)
    definition = f"(id bigint primary key auto_increment, {all_columns(server)}) CHARACTER SET utf8mb4"
    with closing(server.connect(database)) as session, session.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        cursor.execute(f"CREATE TABLE all_types {definition}")
        for row in rows:
            cursor.execute(f"INSERT INTO all_types ({', '.join(row)}) VALUES ({', '.join(row.values())})")
    schema = _schema(server, database, "all_types")
    read, logged = _read(server, schema), _logged(server, schema, binlog)
    assert read.num_rows == len(rows)
    for name in read.schema.names:
        assert read.column(name).to_pylist() == logged.column(name).to_pylist(), name
    assert read.equals(logged)
    seen = {name for name in read.schema.names if read.column(name).null_count < len(rows)}
    assert seen == set(read.schema.names)


def test_years_of_two_digits_are_those_of_the_log(mariadb: EmbeddedMariaDB) -> None:
    binlog = new_binlog(mariadb)
    mariadb.create_database("years")
    mariadb.execute("CREATE TABLE years (id int PRIMARY KEY, a year(2), b year NOT NULL)", database="years")
    rows = "(1, 69, 0), (2, 70, 1901), (3, 0, 2155), (4, NULL, 1999), (5, 1901, 0), (6, 2155, 0), (7, '0000', 0)"
    mariadb.execute(f"INSERT INTO years VALUES {rows}", database="years")
    schema = _schema(mariadb, "years", "years")
    assert _read(mariadb, schema).equals(_logged(mariadb, schema, binlog))
    found = _read(mariadb, schema).to_pydict()
    assert found["a"] == [2069, 1970, 2000, None, 1901, 2155, 0]
    assert found["b"] == [0, 1901, 2155, 1999, 0, 0, 0]


def test_zeros_of_zerofill_are_not_read(server: EmbeddedMariaDB, database: str, binlog: str) -> None:
    kinds = ("decimal(65, 30)", "decimal(39)", "decimal(38, 3)", "int(11)", "bigint(20)")
    columns = ", ".join(f"c{at} {kind} ZEROFILL" for at, kind in enumerate(kinds))
    values = (0, 17, None, 99999999)
    with closing(server.connect(database)) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE TABLE filled (id int PRIMARY KEY, {columns})")
        for at, value in enumerate(values):
            cursor.execute("INSERT INTO filled VALUES (%s, %s, %s, %s, %s, %s)", (at, *[value] * len(kinds)))
    schema = _schema(server, database, "filled")
    read = _read(server, schema)
    assert read.equals(_logged(server, schema, binlog))
    assert read["c0"].to_pylist() == [value if value is None else f"{value}.{'0' * 30}" for value in values]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=200))
def test_floats_keep_every_bit(server: EmbeddedMariaDB, database: str, values: list[float]) -> None:
    singles = [value for value in values if abs(value) < 3e38]
    with closing(server.connect(database)) as session, session.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS floats")
        cursor.execute("CREATE TABLE floats (id int primary key auto_increment, d double, f float)")
        cursor.executemany("INSERT INTO floats (d) VALUES (%s)", [(repr(value),) for value in values])
        cursor.executemany("INSERT INTO floats (f) VALUES (%s)", [(repr(value),) for value in singles])
    read = _read(server, _schema(server, database, "floats")).to_pydict()
    assert _bits(read["d"][: len(values)], "d") == _bits(values, "d")
    assert _bits(read["f"][len(values) :], "f") == _bits(singles, "f")


def _bits(values: Sequence[float], form: str) -> list[bytes]:
    """Of the numbers in a column's width; with one zero only, since the server shows no other."""
    return [struct.pack(form, struct.unpack(form, struct.pack(form, value))[0] + 0.0) for value in values]


@pytest.fixture(scope="module")
def zero_dates(server: EmbeddedMariaDB, database: str) -> str:
    with closing(server.connect(database)) as session, session.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute("CREATE TABLE dates (id int primary key, d date, dt datetime(1), ts timestamp)")
        cursor.execute(
            "INSERT INTO dates VALUES (1, '0000-00-00', '0000-00-00', '0000-00-00'), (2, '2024-02-31', '2024-01-00', "
            "'2024-01-01'), (3, '2024-01-01', '2024-01-01 01:02:03.4', '2024-01-01 01:02:03')"
        )
    return "dates"


@pytest.mark.parametrize("rule", [ZeroDates.NULL, ZeroDates.STRING])
def test_dates_that_no_calendar_has(
    server: EmbeddedMariaDB, database: str, binlog: str, zero_dates: str, rule: ZeroDates
) -> None:
    schema = _schema(server, database, zero_dates, zero_dates=rule)
    read = _read(server, schema)
    assert read.equals(_logged(server, schema, binlog))
    first, second = read.to_pylist()[:2]
    is_null = rule is ZeroDates.NULL
    assert first["dt"] == (None if is_null else "0000-00-00 00:00:00.0")
    assert second["d"] == (None if is_null else "2024-02-31")


def test_dates_that_no_calendar_has_may_be_refused(server: EmbeddedMariaDB, database: str, zero_dates: str) -> None:
    with pytest.raises(DecodeError, match=r"snapshot_test\.dates: column d .* a date that no calendar has"):
        _read(server, _schema(server, database, zero_dates, zero_dates=ZeroDates.STRICT))


def test_rows_larger_than_a_packet_and_than_the_block(server: EmbeddedMariaDB, database: str) -> None:
    sizes = [0, 1, 250, 251, 65_535, 65_536, 16_777_210, 16_777_215 - 8, 16_777_216, 40_000_000, 7]
    server.execute("SET GLOBAL max_allowed_packet = 134217728")
    server.execute("CREATE TABLE large (id int primary key, a longblob, b longtext)", database=database)
    for i, size in enumerate(sizes):
        server.execute(f"INSERT INTO large VALUES ({i}, repeat(x'ab', {size}), 'after')", database=database)
    read = _read(server, _schema(server, database, "large")).to_pydict()
    assert [len(value) for value in read["a"]] == sizes
    assert all(value == b"\xab" * len(value) for value in read["a"])
    assert set(read["b"]) == {"after"}


def test_a_batch_ends_where_the_block_is_full(
    server: EmbeddedMariaDB, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_text, "_BLOCK_BYTES", 1000)
    server.execute("CREATE TABLE many (id int primary key, t text)", database=database)
    server.execute("INSERT INTO many SELECT seq, repeat('x', seq % 300) FROM seq_1_to_5000", database=database)
    schema = _schema(server, database, "many")
    batches = list(read_chunk(parse_uri(server.uri()), schema, WHOLE_TABLE))
    assert len(batches) > 500
    read = pa.Table.from_batches(batches)
    assert read.column("id").to_pylist() == list(range(1, 5001))
    assert [len(text) for text in read.column("t").to_pylist()] == [i % 300 for i in range(1, 5001)]


def test_an_empty_table_has_no_batches(server: EmbeddedMariaDB, database: str) -> None:
    server.execute("CREATE TABLE nothing (id int primary key)", database=database)
    assert _read(server, _schema(server, database, "nothing")).num_rows == 0


def test_a_refusal_is_an_error_and_the_session_lives(server: EmbeddedMariaDB, database: str) -> None:
    server.execute("CREATE TABLE shrinking (id int primary key, gone int)", database=database)
    schema = _schema(server, database, "shrinking")
    server.execute("ALTER TABLE shrinking DROP COLUMN gone", database=database)
    with connect(server.uri()) as connection:
        with pytest.raises(SourceError, match="Unknown column 'gone'"):
            list(select_rows(connection, schema, WHOLE_TABLE))
        assert connection.query("SELECT 1") == [("1",)]


#: what is behind ``n``: columns, which of them are the key, and their values
_KEYS = {
    "composite": (
        "a int, b varchar(9), c date",
        "a, b, c",
        "seq % 7, concat('k', seq % 11), '2024-01-01' + interval seq day",
    ),
    "accents": (
        "b varchar(40) collate utf8mb4_general_ci",
        "b",
        "concat(elt(seq % 5 + 1, 'a', 'Ä', 'b', 'É', 'z'), seq)",
    ),
    "cyrillic": ("b varchar(40) character set cp1251", "b", "concat(elt(seq % 3 + 1, 'ж', 'Я', 'b'), seq)"),
    "binary": ("b varbinary(9)", "b", "unhex(lpad(hex(seq * 7919 % 65521), 6, '0'))"),
    "decimal": ("b decimal(30,5)", "b", "seq / 7 - 100"),
    "moments": ("b timestamp(3)", "b", "from_unixtime(1700000000 + seq / 8)"),
    "unsigned": ("b bigint unsigned", "b", "18446744073709551615 - seq * 1000003"),
    "dense": ("b bigint", "b", "cast(seq as signed) - 600"),
    "uuids": ("b uuid", "b", "uuid()"),
    "quotes": ("b varchar(40)", "b", r"concat(seq % 3, '\'\\', seq)"),
}


@pytest.mark.parametrize("name", _KEYS)
def test_chunks_hold_every_row_once(server: EmbeddedMariaDB, database: str, name: str) -> None:
    columns, key, values = _KEYS[name]
    if not is_mariadb(server):
        columns, values = columns.replace("uuid", "binary(16)"), values.replace("uuid()", "uuid_to_bin(uuid())")
    server.execute(
        f"CREATE TABLE `{name}` (n int, {columns}, primary key ({key})) CHARACTER SET utf8mb4", database=database
    )
    server.execute(f"INSERT INTO `{name}` SELECT seq, {values} FROM seq_1_to_1200", database=database)
    schema = _schema(server, database, name)
    with connect(server.uri()) as connection:
        plan = plan_chunks(connection, schema, key=key.split(", "), chunk_rows=100)
    assert plan.kind is (PlanKind.KEYS if name == "dense" else PlanKind.BOUNDS)
    assert plan.count == 12
    chunks = [_read(server, schema, plan.chunk(number)).column("n").to_pylist() for number in range(plan.count)]
    assert sorted(n for chunk in chunks for n in chunk) == list(range(1, 1201))
    assert {len(chunk) for chunk in chunks} == {100}


def test_a_chunk_is_found_through_its_index(server: EmbeddedMariaDB, database: str) -> None:
    server.execute(
        "CREATE TABLE indexed (n int, a int, b varchar(20) character set latin1, primary key (a, b))", database=database
    )
    server.execute("INSERT INTO indexed SELECT seq, seq % 50, seq FROM seq_1_to_20000", database=database)
    server.execute("ANALYZE TABLE indexed", database=database)
    schema = _schema(server, database, "indexed")
    with connect(server.uri(database)) as connection:
        plan = plan_chunks(connection, schema, key=["a", "b"], chunk_rows=500)
        explain = "EXPLAIN" if is_mariadb(server) else "EXPLAIN FORMAT=TRADITIONAL"
        [explained] = connection.query(f"{explain} SELECT * FROM indexed WHERE {plan.chunk(20).predicate}")
    partitions = 0 if is_mariadb(server) else 1
    assert (explained[3 + partitions], explained[5 + partitions]) == ("range", "PRIMARY")
    assert int(explained[8 + partitions] or 0) < 3000


def test_a_key_of_an_enum_is_not_cut(server: EmbeddedMariaDB, database: str) -> None:
    server.execute("CREATE TABLE enums (e enum('b','a','c') primary key)", database=database)
    server.execute("INSERT INTO enums VALUES ('a'), ('b'), ('c')", database=database)
    schema = _schema(server, database, "enums")
    with connect(server.uri()) as connection:
        assert plan_chunks(connection, schema, key=["e"], chunk_rows=1).kind is PlanKind.WHOLE
