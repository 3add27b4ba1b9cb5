"""The decoder against python-mysql-replication and against the server itself: random tables, random changes.

A server writes the events. python-mysql-replication decodes them on its own and every value of every image must be the
same; and what the last images say is what a ``SELECT`` says.
"""

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from agent.rows.changes import BEFORE_FULL, DELETE, INSERT, UPDATE, Changes
from agent.rows.schema import Column
from agent.sources.mysql.decode import charsets, types
from agent.sources.mysql.decode.decode import decode
from agent.sources.mysql.decode.types import Kind
from capture.embedded.mariadb import EmbeddedMariaDB
from tests import binlog_rows
from tests.mysql_server import is_mariadb

#: python-mysql-replication calls pymysql in an old way
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated, use:DeprecationWarning")

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30)
_WESTERN = st.text("abcäöüß€ ", max_size=12).map(lambda text: text.rstrip())
_BYTES = st.binary(max_size=40)
_YEARS = (dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59))
_UNIX = (dt.datetime(1970, 1, 2), dt.datetime(2038, 1, 19))


def _integers(bits: int, *, is_unsigned: bool = False) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1) if is_unsigned else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda n: Decimal(f"{n}E-{scale}"))


def _times(digits: int) -> st.SearchStrategy[str]:
    units = st.integers(-838 * 3600 * 10**digits, 838 * 3600 * 10**digits)
    return units.map(lambda n: _time_text(n * 10 ** (6 - digits)))


def _time_text(micros: int) -> str:
    seconds, fraction = divmod(abs(micros), 1_000_000)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
    return ("-" if micros < 0 else "") + clock


def _moments(digits: int, bounds: tuple[dt.datetime, dt.datetime]) -> st.SearchStrategy[dt.datetime]:
    unit = 10 ** (6 - digits)
    return st.datetimes(*bounds).map(lambda t: t.replace(microsecond=t.microsecond // unit * unit))


#: column types and their values
TYPES: dict[str, st.SearchStrategy[Any]] = {
    **{name: _integers(bits) for name, bits in (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32))},
    **{f"{name} unsigned": _integers(bits, is_unsigned=True) for name, bits in (("tinyint", 8), ("smallint", 16))},
    "mediumint unsigned": _integers(24, is_unsigned=True),
    "int unsigned": _integers(32, is_unsigned=True),
    "bigint": _integers(64),
    "bigint unsigned": _integers(64, is_unsigned=True),
    "tinyint(1)": st.integers(0, 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False),
    "double": st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
    "decimal(12,2)": _decimals(12, 2),
    "decimal(18,0)": _decimals(18, 0),
    "decimal(9,9)": _decimals(9, 9),
    "decimal(19,1)": _decimals(19, 1),
    "decimal(38,10)": _decimals(38, 10),
    "decimal(30,30)": _decimals(30, 30),
    "decimal(65,30)": _decimals(65, 30),
    "bit(1)": st.integers(0, 1),
    "bit(12)": st.integers(0, 2**12 - 1),
    "bit(64)": st.integers(0, 2**64 - 1),
    "date": st.dates(),
    **{f"time({digits})": _times(digits) for digits in range(7)},
    **{f"datetime({digits})": _moments(digits, _YEARS) for digits in range(7)},
    **{f"timestamp({digits})": _moments(digits, _UNIX) for digits in range(7)},
    "year": st.just(0) | st.integers(1901, 2155),
    "char(30) character set utf8mb4": _TEXT.map(lambda text: text.rstrip(" ")),
    "varchar(40) character set utf8mb4": _TEXT,
    "varchar(300) character set utf8mb3": st.text("abc äöü中文", max_size=300),
    "varchar(20) character set latin1": _WESTERN,
    "char(100) character set gbk": st.text("中文 abc", max_size=20).map(lambda text: text.rstrip(" ")),
    "varchar(20) character set ucs2": st.text("aä中", max_size=20),
    "varchar(20) character set cp1251": st.text("aбв", max_size=20),
    "tinytext character set utf8mb4": _TEXT,
    "text character set utf8mb4": st.text("ab", max_size=1).map(lambda text: text * 70_000).map(lambda t: t[:65_535])
    | _TEXT,
    "mediumtext character set utf8mb4": st.sampled_from(["", "x" * 70_000]),
    "longtext character set latin1": _WESTERN,
    "json": st.sampled_from(['{"a": [1, 2.5, "ä"]}', "null", "[]"]),
    "binary(16)": st.binary(max_size=16),
    "varbinary(30)": st.binary(max_size=30),
    "varbinary(300)": st.binary(max_size=300),
    "blob": _BYTES,
    "tinyblob": _BYTES,
    "mediumblob": st.sampled_from([b"", b"\0\xff" * 40_000]),
    "longblob": _BYTES,
    "enum('sad','ok','happy ☺') character set utf8mb4": st.sampled_from(["sad", "ok", "happy ☺"]),
    "enum('ä','b') character set latin1": st.sampled_from(["ä", "b"]),
    f"enum({','.join(repr(f'v{i}') for i in range(300))})": st.sampled_from(["v0", "v255", "v299"]),
    "set('a','b','ü') character set utf8mb4": st.sets(st.sampled_from("abü")).map(
        lambda members: ",".join(sorted(members))
    ),
    f"set({','.join(repr(f's{i}') for i in range(64))})": st.sampled_from(["", "s0,s63", "s7", "s0,s8,s40"]),
    "geometry": st.tuples(st.integers(-9, 9), st.integers(-9, 9)).map(lambda p: f"POINT({p[0]} {p[1]})"),
}


@dataclass(frozen=True)
class Case:
    """A table's column types and what is done to it: key, and a row (insert, update) or None (delete)."""

    column_types: list[str]
    steps: list[tuple[int, list[Any] | None]]
    is_compressed: bool


@st.composite
def cases(draw: Callable[..., Any]) -> Case:
    column_types = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=10))
    row = st.tuples(*(st.none() | TYPES[name] for name in column_types)).map(list)
    steps = draw(st.lists(st.tuples(st.integers(0, 5), st.none() | row), min_size=1, max_size=12))
    return Case(column_types, steps, draw(st.booleans()))


@pytest.fixture(scope="module")
def database(server: EmbeddedMariaDB) -> Iterator[str]:
    server.create_database("decode_oracle")
    yield "decode_oracle"
    _compress(server, False)


def _compress(server: EmbeddedMariaDB, on: bool) -> None:
    """MariaDB compresses events, MySQL transactions, and both only what is worth it."""
    if is_mariadb(server):
        server.execute(f"SET GLOBAL log_bin_compress = {int(on)}, log_bin_compress_min_len = 10")
    else:
        server.execute(f"SET GLOBAL binlog_transaction_compression = {int(on)}")


@pytest.mark.timeout(300)
# The same tables in every run, and as they are found: every one costs a server's round trips.
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=cases())
def test_values_are_what_others_read(server: EmbeddedMariaDB, database: str, case: Case) -> None:
    table = f"t_{uuid.uuid4().hex[:12]}"
    _compress(server, case.is_compressed)
    start = binlog_rows.position(server)
    with server.connect(database) as connection:
        _play(connection, table, case)
        selected = _select(connection, table, case)
    found = binlog_rows.read_events(server, start, f"{database}.{table}")
    # It passes compressed events over.
    oracle = [] if case.is_compressed else _oracle_rows(server, start, table)
    server.execute(f"DROP TABLE {table}", database=database)
    if not found:
        assert not oracle
        return
    changes = decode(found[0].schema, found[0].batch())
    changes.after.validate(full=True)
    assert case.is_compressed or len(changes) == len(oracle)
    for row, (op, before, after) in enumerate(oracle):
        assert op == changes.op[row]
        if after is not None:
            _compare(changes, changes.after, row, after)
        if before is not None:
            assert changes.before is not None
            assert changes.before_kind[row] == BEFORE_FULL
            _compare(changes, changes.before, row, before)
    _compare_selected(changes, selected)


def _play(connection: Any, table: str, case: Case) -> None:
    columns = ", ".join(f"c{i} {kind} NULL" for i, kind in enumerate(case.column_types))
    places = ", ".join("ST_GeomFromText(%s)" if kind == "geometry" else "%s" for kind in case.column_types)
    assigned = ", ".join(f"c{i} = VALUES(c{i})" for i in range(len(case.column_types)))
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'")
        cursor.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC")
        for key, row in case.steps:
            if row is None:
                cursor.execute(f"DELETE FROM {table} WHERE id = %s", [key])
            else:
                upsert = f"INSERT INTO {table} VALUES (%s, {places}) ON DUPLICATE KEY UPDATE {assigned}"
                cursor.execute(upsert, [key, *row])


def _select(connection: Any, table: str, case: Case) -> dict[int, list[Any]]:
    """The table as the server sees it, by key; in its text, or bytes."""
    shown = [_shown(f"c{i}", kind) for i, kind in enumerate(case.column_types)]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id, {', '.join(shown)} FROM {table}")
        return {row[0]: list(row[1:]) for row in cursor.fetchall()}


def _shown(name: str, kind: str) -> str:
    if kind.startswith("bit"):
        return f"CAST({name} + 0 AS char)"
    if kind == "geometry":
        return f"HEX(ST_AsWKB({name}))"
    if "bin" in kind or "blob" in kind:
        return f"HEX({name})"
    return f"{name} * 1e0" if kind in ("float", "double") else f"CAST({name} AS char CHARACTER SET utf8mb4)"


def _compare_selected(changes: Changes, selected: dict[int, list[Any]]) -> None:
    """Whose last image is what the table holds now."""
    last: dict[int, int] = {}
    for row, op in enumerate(changes.op):
        image = changes.before if op == DELETE else changes.after
        assert image is not None
        last[image.column(0)[row].as_py()] = row
    kept = {key: row for key, row in last.items() if changes.op[row] != DELETE}
    assert kept.keys() == selected.keys()
    for key, row in kept.items():
        for column, expected, found in zip(
            changes.schema.columns[1:], selected[key], changes.after.columns[1:], strict=True
        ):
            assert _as_text(column, found[row]) == expected, (column, expected, found[row])


def _as_text(column: Column, found: pa.Scalar) -> Any:
    value = found.as_py()
    kind = types.kind_of(column)
    if value is None:
        # Timestamps are compared in UTC, and none of the values is a zero date.
        return None
    if isinstance(value, bytes):
        return value.hex().upper()
    if kind is Kind.BOOL:
        return str(int(value))
    if kind is Kind.YEAR:
        return f"{value:04d}"
    if isinstance(value, dt.datetime):
        return f"{value:%H:%M:%S.%f}"[: 9 + column.modifier if column.modifier else 8].join(
            [f"{value.year:04d}-{value.month:02d}-{value.day:02d} ", ""]
        )
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value if isinstance(value, float) else str(value)


def _oracle_rows(server: EmbeddedMariaDB, start: tuple[str, int], table: str) -> list[tuple[int, Any, Any]]:
    reader = BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": server.port, "user": "weir", "password": server.password},
        server_id=4711,
        # set up as one, it goes by GTID and reads the whole history, where others have left what it cannot read
        is_mariadb=False,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_tables=[table],
        log_file=start[0],
        log_pos=start[1],
        resume_stream=True,
    )
    rows: list[tuple[int, Any, Any]] = []
    try:
        for event in reader:
            for row in event.rows:
                if isinstance(event, WriteRowsEvent):
                    rows.append((INSERT, None, row["values"]))
                elif isinstance(event, UpdateRowsEvent):
                    rows.append((UPDATE, row["before_values"], row["after_values"]))
                else:
                    rows.append((DELETE, row["values"], None))
    finally:
        reader.close()
    return rows


def _compare(changes: Changes, image: pa.RecordBatch, row: int, oracle: dict[str, Any]) -> None:
    for column in changes.schema.columns:
        found, expected = image.column(column.name)[row].as_py(), oracle[column.name]
        if _is_misread(column, found):
            continue
        assert _comparable(column, found) == _comparable_oracle(column, expected), (column, expected, found)


def _is_misread(column: Column, found: Any) -> bool:
    """Where the oracle is wrong, or says it its own way, and only the SELECT can tell: it reads members of enums as
    UTF-8 whatever they are, takes fractions of times below zero for those of times above, and makes objects of MySQL's
    JSON.
    """
    kind = types.kind_of(column)
    if kind is Kind.JSON:
        return True
    if kind is Kind.ENUM:
        return not charsets.charset_of(column.collation).startswith("utf8")
    return kind is Kind.TIME and found is not None and found.startswith("-") and column.modifier > 0


def _comparable(column: Column, found: Any) -> Any:
    kind = types.kind_of(column)
    if kind is Kind.BINARY and found is not None:
        return found.rstrip(b"\0")
    if kind is Kind.SET:
        return found or ""
    if isinstance(found, dt.datetime):
        return found.replace(tzinfo=None)
    if isinstance(found, float):
        return repr(found)
    return int(found) if isinstance(found, bool | Decimal) and kind is not Kind.DECIMAL else found


_WIDE = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf32": "utf-32-be"}


def _comparable_oracle(column: Column, value: Any) -> Any:
    kind = types.kind_of(column)
    if value is None:
        # It does not tell an empty set from NULL.
        return "" if kind is Kind.SET else None
    match kind:
        case Kind.BOOL | Kind.BITS:
            return int(value, 2)
        case Kind.YEAR:
            return 0 if value == 1900 else value
        case Kind.TIME:
            micros = value // dt.timedelta(microseconds=1)
            text = _time_text(micros)
            return text if column.modifier == 6 else text[: -6 + column.modifier].rstrip(".")
        case Kind.SET:
            return ",".join(member for member in column.members if member in value)
        case Kind.GEOMETRY:
            return value[4:]
        case Kind.BINARY | Kind.BLOB if not value:
            # Its empty bytes are a string.
            return b""
        case Kind.BINARY:
            return value.rstrip(b"\0")
        case Kind.DECIMAL if types.arrow_type(column) == pa.string():
            return f"{value:f}"
        case Kind.FLOAT | Kind.DOUBLE:
            return repr(value)
        case Kind.TEXT | Kind.TEXT_SINGLE | Kind.TEXT_CODEC if isinstance(value, bytes):
            # It leaves text of character sets without a codec of the same name as it is.
            return value.decode(_WIDE[charsets.charset_of(column.collation)])
        case _:
            return value
