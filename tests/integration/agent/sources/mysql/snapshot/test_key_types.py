"""Keys of any type, collation and number of columns: chunks hold every row once, and rows are found by their keys.

What the server takes for equal, and how it orders, is its own: texts by their collation, enums by their number. The
rows are random, and such as the server accepts as keys that differ.
"""

import random
from collections.abc import Callable
from contextlib import closing

import pyarrow as pa
import pytest

from agent.errors import SourceConfigError
from agent.rows.schema import TableSchema
from agent.sources.common.key_constants import key_conditions
from agent.sources.mysql.decode.types import arrow_schema
from agent.sources.mysql.position.consistency import open_reader
from agent.sources.mysql.server.catalog import read_schemas
from agent.sources.mysql.server.connection import Connection, connect
from agent.sources.mysql.snapshot.chunk_plan import plan_chunks
from agent.sources.mysql.snapshot.chunks import Chunk
from agent.sources.mysql.snapshot.rows import _CONSTANTS, select_rows
from capture.embedded import EmbeddedMariaDB
from tests.mysql_server import is_mariadb

#: a random literal
Make = Callable[[random.Random], str]

_ROWS = 60
_LETTERS = ("a", "A", "ä", "ae", "Æ", "ß", "ss", "z", "Z", "é", "_", "%", "0", "10", " ", "b\t", "I", "ı", "'", "\\")
_BYTES = ("", "00", "0000", "20", "61", "6120", "7F", "80", "FF", "FFFF", "5C", "27")
_TEXTS = (
    "utf8mb4 COLLATE utf8mb4_bin",
    "utf8mb4 COLLATE utf8mb4_general_ci",
    "utf8mb4 COLLATE utf8mb4_unicode_ci",
    "utf8mb4 COLLATE utf8mb4_german2_ci",
    "utf8mb4 COLLATE utf8mb4_swedish_ci",
    "latin1 COLLATE latin1_german2_ci",
    "latin1 COLLATE latin1_bin",
    "cp1250 COLLATE cp1250_czech_cs",
    "utf16 COLLATE utf16_unicode_ci",
    "ucs2 COLLATE ucs2_bin",
    "gbk",
    "sjis",
)
#: of MySQL alone, and of MariaDB
_TEXTS_MYSQL = (
    "utf8mb4 COLLATE utf8mb4_0900_ai_ci",
    "utf8mb4 COLLATE utf8mb4_0900_as_cs",
    "utf8mb4 COLLATE utf8mb4_0900_bin",
)
_TEXTS_MARIADB = ("utf8mb4 COLLATE utf8mb4_nopad_bin", "utf8mb4 COLLATE utf8mb4_uca1400_ai_ci")


def _text(rng: random.Random) -> str:
    text = "".join(rng.choice(_LETTERS) for _ in range(rng.randint(0, 3))).replace("\\", "\\\\").replace("'", "''")
    return f"'{text}'"


def _moment(rng: random.Random) -> str:
    day = f"{rng.choice([1971, 2024])}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
    return f"'{day} {rng.randint(0, 23):02}:59:59.999'"


def _time(rng: random.Random) -> str:
    return f"'{rng.choice(['-', ''])}{rng.choice([0, 9, 99, 838])}:{rng.randint(10, 59)}:00.{rng.randint(0, 9)}'"


def _uuid(rng: random.Random) -> str:
    version = rng.choice(["1bc0-11ec", "0000-4000"])
    return f"'{rng.randrange(1 << 32):08x}-{version}-8000-{rng.randrange(1 << 48):012x}'"


def _one_of(*literals: str) -> Make:
    return lambda rng: rng.choice(literals)


def _integer(low: int, high: int) -> Make:
    return lambda rng: str(rng.choice([low, high, rng.randint(low, high), max(rng.randint(-9, 9), low)]))


_SMALL = ("0.000000123456789012345678901234", "0.000000123456789012345678901235", "-0.000000000000000000000000000001")
_OTHERS: dict[str, Make] = {
    "tinyint": _integer(-128, 127),
    "bigint": _integer(-(1 << 63), (1 << 63) - 1),
    "bigint unsigned": _integer(0, (1 << 64) - 1),
    "decimal(40,30)": lambda rng: rng.choice([*_SMALL, "0", str(rng.randint(-99, 99) / 7)]),
    "double": lambda rng: repr(rng.choice([0.1, 1e300, -5e-324, rng.random()])),
    "float": lambda rng: repr(rng.random()),
    "date": lambda rng: _moment(rng)[:11] + "'",
    "datetime(2)": _moment,
    "timestamp(3)": _moment,
    "time(3)": _time,
    "year": lambda rng: str(rng.choice([0, 1901, 2155, rng.randint(1960, 2010)])),
    "enum('b','a','C','10','9')": _one_of("'b'", "'a'", "'C'", "'10'", "'9'"),
    "set('z','y','x')": _one_of("''", "'z'", "'y'", "'x'", "'z,y'", "'y,x'", "'z,y,x'"),
    "bit(17)": _integer(0, (1 << 17) - 1),
    "varbinary(20)": lambda rng: f"X'{''.join(rng.choice(_BYTES) for _ in range(2))}'",
    "binary(4)": lambda rng: f"X'{(rng.choice(_BYTES) + rng.choice(_BYTES))[:8]}'",
}
_OTHERS_MARIADB: dict[str, Make] = {
    "uuid": _uuid,
    "inet6": lambda rng: f"'{rng.choice(['::', '2001:db8::', 'ff::'])}{rng.randint(1, 999)}'",
    "inet4": lambda rng: f"'{rng.choice([9, 10, 100])}.0.0.{rng.randint(0, 255)}'",
}


def _columns(rng: random.Random, server: EmbeddedMariaDB, seed: int) -> list[tuple[str, Make]]:
    """The first seeds have each type alone."""
    texts = _TEXTS + (_TEXTS_MARIADB if is_mariadb(server) else _TEXTS_MYSQL)
    others = [*_OTHERS.items(), *(_OTHERS_MARIADB.items() if is_mariadb(server) else ())]
    if seed < len(others):
        return [others[seed]]
    found: list[tuple[str, Make]] = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        if rng.random() < 0.5:
            form = rng.choice(["varchar(200)", "char(12)"])
            found.append((f"{form} CHARACTER SET {rng.choice(texts)}", _text))
        else:
            found.append(rng.choice(others))
    return found


def _numbers(connection: Connection, schema: TableSchema, predicate: str) -> list[int]:
    batches = list(select_rows(connection, schema, Chunk(0, predicate)))
    return [number for batch in batches for number in batch.column("n").to_pylist()]


@pytest.mark.sample(0.15)
@pytest.mark.parametrize("seed", range(60))
def test_every_row_is_in_one_chunk_and_is_found_by_its_key(server: EmbeddedMariaDB, seed: int) -> None:
    rng, database, name = random.Random(seed), "key_types", f"t{seed}"
    columns = _columns(rng, server, seed)
    if not server.has_database(database):
        server.create_database(database)
    names = [f"k{at}" for at in range(len(columns))]
    definitions = ", ".join(f"{name} {kind} NOT NULL" for name, (kind, _) in zip(names, columns, strict=True))
    with closing(server.connect(database)) as session, session.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        cursor.execute(f"CREATE TABLE {name} (n int, {definitions}, PRIMARY KEY ({', '.join(names)}))")
        for number in range(_ROWS):
            values = ", ".join(make(rng) for _, make in columns)
            cursor.execute(f"INSERT IGNORE INTO {name} VALUES ({number}, {values})")
        cursor.execute(f"SELECT n FROM {name} ORDER BY n")
        there = [number for (number,) in cursor.fetchall()]
    with connect(server.uri()) as connection:
        [schema] = read_schemas(connection, [(database, name)]).values()
    with open_reader(connection.target) as connection:
        plan = plan_chunks(connection, schema, key=names, chunk_rows=7)
        found = [n for at in range(plan.count) for n in _numbers(connection, schema, plan.chunk(at).predicate)]
        assert sorted(found) == there, (columns, plan)
        rows = pa.Table.from_batches(list(select_rows(connection, schema, Chunk(0, "true"))), arrow_schema(schema))
        for at in range(rows.num_rows):
            row = rows.slice(at, 1)
            try:
                [condition] = key_conditions(row.select(names), _CONSTANTS)
            except SourceConfigError:  # a type that is not written as a constant: nothing is taken for gone
                return
            assert _numbers(connection, schema, condition) == row.column("n").to_pylist(), (columns, row.to_pylist())
