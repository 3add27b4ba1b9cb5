"""The decoder on real servers: what only one of them has, what only some settings bring, and the catalog beside it."""

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from agent.errors import DecodeError
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, DELETE, INSERT, UPDATE, Changes
from agent.rows.schema import TableSchema, ZeroDates
from agent.sources.mysql.decode import charsets
from agent.sources.mysql.decode.decode import decode
from agent.sources.mysql.server.catalog import read_schemas
from agent.sources.mysql.server.connection import connect
from capture.embedded.mariadb import EmbeddedMariaDB
from tests import binlog_rows
from tests.integration.agent.sources.mysql.decode.test_oracle import TYPES
from tests.integration.agent.sources.mysql.retyping.rig import read
from tests.mysql_server import is_mariadb

_DATABASE = "decode_values"


def batched(codes: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    return (codes[begin : begin + size] for begin in range(0, len(codes), size))


def _catalog_schema(server: EmbeddedMariaDB, table: str) -> TableSchema:
    with connect(server.uri(_DATABASE)) as connection:
        (schema,) = read_schemas(connection, [(_DATABASE, table)]).values()
    return schema


def _events(
    server: EmbeddedMariaDB, table: str, statements: list[str], select: str
) -> tuple[binlog_rows.TableEvents, list[tuple[Any, ...]]]:
    """What the statements left in the log, and what ``select`` shows afterwards."""
    server.execute(f"CREATE DATABASE IF NOT EXISTS {_DATABASE}")
    start = binlog_rows.position(server)
    with server.connect(_DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        for statement in statements:
            cursor.execute(statement)
        cursor.execute(select)
        rows = list(cursor.fetchall())
    (found,) = binlog_rows.read_events(server, start, f"{_DATABASE}.{table}")
    return found, rows


def _columns(changes: Changes) -> list[list[Any]]:
    return [list(row.values()) for row in changes.after.to_pylist()]


def test_every_collation_and_every_byte_is_read_as_the_server_does(server: EmbeddedMariaDB) -> None:
    known = "collation_character_set_applicability" if is_mariadb(server) else "collations"
    for number, charset in server.execute(f"SELECT id, character_set_name FROM information_schema.{known}"):
        assert charsets.charset_of(int(number)) == charset
    for charset, width in server.execute("SELECT character_set_name, maxlen FROM information_schema.character_sets"):
        assert charsets.bytes_per_character(charset) == width
        if charsets.is_single_byte(charset):
            each = ", ".join(f"CONVERT(_{charset} X'{number:02x}' USING utf8mb4)" for number in range(256))
            assert list(charsets.table(charset)) == server.execute(f"SELECT {each}")[0], charset


_DOUBLE = [bytes(code) for code in product(range(0x81, 0xFF), range(0x40, 0xFF))]
_TRIPLE = [b"\x8f" + bytes(code) for code in product(range(0xA1, 0xFF), repeat=2)]


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("share", [12, pytest.param(1, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("charset", ["big5", "cp932", "eucjpms", "euckr", "gb2312", "gbk", "sjis", "ujis"])
def test_every_code_of_several_bytes_is_read_as_the_server_does(
    server: EmbeddedMariaDB, charset: str, share: int
) -> None:
    """What a server takes for a code, and which character it shows for it."""
    codes = _DOUBLE + (_TRIPLE if charset in ("eucjpms", "ujis") else [])
    chosen = [*codes[len(charset) % share :: share], b"\x8e\xa0"]  # one that MySQL alone takes for a code
    done = 0
    for block in batched(chosen, 2000):
        texts = [f"CONVERT(X'{code.hex()}', CHAR CHARACTER SET {charset})" for code in block]
        [stored] = server.execute(f"SELECT {', '.join(f'HEX({text})' for text in texts)}")
        [shown] = server.execute(f"SELECT {', '.join(f'HEX(CONVERT({text} USING utf8mb4))' for text in texts)}")
        for code, kept, utf8 in zip(block, stored, shown, strict=True):
            if kept is not None and bytes.fromhex(kept) == code:
                assert charsets.to_text(charset, code) == bytes.fromhex(utf8).decode(), code.hex()
                done += 1
    assert done > len(chosen) // 10


def test_the_catalog_and_a_table_map_say_the_same_of_all_types(server: EmbeddedMariaDB) -> None:
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(TYPES))
    statements = [
        f"CREATE TABLE alltypes (id int PRIMARY KEY, {columns}, inv int INVISIBLE, "
        "twice int AS (id * 2) VIRTUAL, thrice int AS (id * 3) STORED, UNIQUE (c1))",
        "INSERT INTO alltypes (id) VALUES (7)",
    ]
    found, rows = _events(server, "alltypes", statements, "SELECT twice, thrice FROM alltypes")
    catalog = _catalog_schema(server, "alltypes")
    assert found.schema.columns == catalog.columns
    assert found.schema == catalog
    after = decode(found.schema, found.batch()).after
    assert [after.column("twice")[0].as_py(), after.column("thrice")[0].as_py()] == list(rows[0]) == [14, 21]


def test_uuids_and_addresses_are_the_servers_text_under_the_catalogs_names(mariadb: EmbeddedMariaDB) -> None:
    values = [
        ("12345678-9abc-1ef0-8234-56789abc0000", "255.1.0.0", "::"),
        ("00000000-0000-0000-0000-000000000000", "0.0.0.0", "2001:db8::1:0:0:1"),
        ("ffffffff-ffff-4fff-bfff-ffffffffffff", "10.0.0.1", "::ffff:1.2.3.4"),
        ("018f3b5c-1234-7abc-8def-0123456789ab", "1.2.3.4", str(ipaddress.IPv6Address(2**127))),
    ]
    # zeros in every set of places: which of them the server shortens
    values += [
        (values[0][0], "1.2.3.4", ":".join("0b"[mask >> place & 1] for place in range(8))) for mask in range(256)
    ]
    inserted = ", ".join(f"({i}, {', '.join(map(repr, row))})" for i, row in enumerate(values))
    statements = [
        "CREATE TABLE named (id int PRIMARY KEY, u uuid, a inet4, b inet6)",
        f"INSERT INTO named VALUES {inserted}",
        "INSERT INTO named (id) VALUES (999)",
    ]
    found, rows = _events(mariadb, "named", statements, "SELECT id, u, a, b FROM named ORDER BY id")
    schema = _catalog_schema(mariadb, "named")
    assert [column.type_name for column in schema.columns] == ["int", "uuid", "inet4", "inet6"]
    assert _columns(decode(schema, found.batch())) == [list(row) for row in rows]


def test_zero_dates_of_a_lenient_server(server: EmbeddedMariaDB) -> None:
    statements = [
        "CREATE TABLE zeros (id int PRIMARY KEY, d date, t datetime(3), s timestamp(2) NULL)",
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        "INSERT INTO zeros VALUES (1, '0000-00-00', '0000-00-00', '0000-00-00'), "
        "(2, '2024-02-00', '2024-02-31 01:02:03.123', '2024-02-29 01:02:03.12'), (3, NULL, NULL, NULL)",
    ]
    select = "SELECT id, CAST(d AS char), CAST(t AS char), CAST(s AS char) FROM zeros"
    found, rows = _events(server, "zeros", statements, select)
    as_text = decode(replace(found.schema, zero_dates=ZeroDates.STRING), found.batch())
    assert _columns(as_text) == [list(row) for row in rows]
    after = decode(found.schema, found.batch()).after
    assert [after.column(name).null_count for name in "dts"] == [3, 3, 2]
    with pytest.raises(
        DecodeError, match=r"decode_values\.zeros: column d cannot be read: a date that no calendar has"
    ):
        decode(replace(found.schema, zero_dates=ZeroDates.STRICT), found.batch())


def test_geometries_that_a_server_filled_in_are_empty(mariadb: EmbeddedMariaDB) -> None:
    """An added column that is NOT NULL has no geometry in older rows, not even a reference system."""
    statements = [
        "CREATE TABLE places (id int PRIMARY KEY)",
        "INSERT INTO places VALUES (1)",
        "ALTER TABLE places ADD p point NOT NULL",
    ]
    _events(mariadb, "places", statements, "SELECT 1")
    schema, values = read(mariadb, _DATABASE, "places", ZeroDates.NULL)
    assert values.to_pylist() == [{"id": 1, "p": b""}]
    found, rows = _events(mariadb, "places", ["UPDATE places SET id = 2"], "SELECT id, p FROM places")
    assert _columns(decode(schema, found.batch())) == [list(row) for row in rows] == [[2, b""]]


_SMALL = "CREATE TABLE {} (id int PRIMARY KEY, a int DEFAULT 7, b text, c varchar(10))"


def test_rows_of_a_minimal_image(server: EmbeddedMariaDB) -> None:
    statements = [
        _SMALL.format("minimal"),
        "INSERT INTO minimal VALUES (1, 1, 'b', 'c')",
        "SET binlog_row_image = MINIMAL",
        "UPDATE minimal SET a = 3 WHERE id = 1",
        "UPDATE minimal SET id = 9, b = NULL WHERE id = 1",
        "DELETE FROM minimal WHERE id = 9",
    ]
    found, _ = _events(server, "minimal", statements, "SELECT 1")
    changes = decode(found.schema, found.batch())
    assert changes.op.tolist() == [INSERT, UPDATE, UPDATE, DELETE]
    assert changes.before_kind.tolist()[1:] == [BEFORE_KEY] * 3
    assert _columns(changes)[1:3] == [[1, 3, None, None], [9, None, None, None]]
    unchanged = {name: mask.tolist() for name, mask in changes.unchanged.items()}
    assert unchanged == {
        "a": [False, False, True, False],
        "b": [False, True, False, False],
        "c": [False, True, True, False],
    }
    assert changes.before is not None
    assert changes.before.column("id").to_pylist() == [None, 1, 1, 9]


def test_rows_of_an_image_without_blobs(server: EmbeddedMariaDB) -> None:
    statements = [
        _SMALL.format("noblob"),
        "INSERT INTO noblob VALUES (1, 1, 'b', 'c')",
        "SET binlog_row_image = NOBLOB",
        "UPDATE noblob SET a = 3 WHERE id = 1",
        "UPDATE noblob SET b = 'new' WHERE id = 1",
    ]
    found, _ = _events(server, "noblob", statements, "SELECT 1")
    changes = decode(found.schema, found.batch())
    assert _columns(changes) == [[1, 1, "b", "c"], [1, 3, None, "c"], [1, 3, "new", "c"]]
    assert {name: mask.tolist() for name, mask in changes.unchanged.items()} == {"b": [False, True, False]}


def test_an_insert_of_a_minimal_image_is_refused(server: EmbeddedMariaDB) -> None:
    statements = [_SMALL.format("defaults"), "SET binlog_row_image = MINIMAL", "INSERT INTO defaults (id) VALUES (1)"]
    found, _ = _events(server, "defaults", statements, "SELECT 1")
    with pytest.raises(DecodeError, match="an insert leaves out columns; set binlog_row_image=FULL"):
        decode(found.schema, found.batch())


def test_compressed_and_dynamic_columns_and_a_refused_enum(mariadb: EmbeddedMariaDB) -> None:
    statements = [
        "CREATE TABLE odd (id int PRIMARY KEY, t text COMPRESSED CHARACTER SET latin1, v varchar(900) COMPRESSED, "
        "b blob COMPRESSED, d blob, e enum('a'), y year)",
        "SET sql_mode = ''",
        "INSERT INTO odd VALUES (1, REPEAT('ä', 300), REPEAT('中', 300), REPEAT(X'00ff', 300), "
        "COLUMN_CREATE('k', 1), 'wrong', 0), (2, '', 'x', X'', NULL, 'a', 2155)",
    ]
    select = "SELECT id, CONVERT(t USING utf8mb4), v, b, d, CAST(e AS char), CAST(CAST(y AS char) AS int) FROM odd"
    found, rows = _events(mariadb, "odd", statements, select)
    changes = decode(found.schema, found.batch())
    assert _columns(changes) == [list(row) for row in rows]


def test_one_statement_of_very_many_rows(server: EmbeddedMariaDB) -> None:
    statements = [
        "CREATE TABLE many (id int PRIMARY KEY, t varchar(50))",
        "INSERT INTO many SELECT seq, IF(seq % 3, CONCAT('row ', seq), NULL) FROM seq_1_to_30000",
        "UPDATE many SET id = id + 100000 WHERE id % 2",
    ]
    found, rows = _events(server, "many", statements, "SELECT COUNT(*), SUM(id) FROM many")
    changes = decode(found.schema, found.batch())
    assert len(changes) == 45_000
    assert (changes.before_kind[30_000:] == BEFORE_FULL).all()
    inserted = changes.after.column("t").to_pylist()[:30_000]
    assert inserted == [f"row {n}" if n % 3 else None for n in range(1, 30_001)]
    kept = dict.fromkeys(changes.after.column("id").to_pylist()[:30_000])
    assert changes.before is not None
    for old, new in zip(
        changes.before.column("id").to_pylist()[30_000:], changes.after.column("id").to_pylist()[30_000:], strict=True
    ):
        del kept[old]
        kept[new] = None
    assert (len(kept), sum(kept)) == (rows[0][0], int(rows[0][1]))
