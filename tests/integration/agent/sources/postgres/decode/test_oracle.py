"""The decoder against psycopg's own decoding of the same bytes: random tables, random changes, both wire forms.

PostgreSQL produces the messages. ``tests.pgoutput`` takes them apart without the kernels, psycopg's loaders decode each
value, and every value of every image must be the same.
"""

import datetime as dt
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import psycopg
import psycopg.adapt
import psycopg.pq
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.abc import Transformer

from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, BEFORE_NONE, DELETE, INSERT, UPDATE, Changes
from agent.rows.schema import Column
from agent.sources.postgres.decode import types
from agent.sources.postgres.decode.decode import decode
from capture.embedded import EmbeddedPostgres
from tests import pgoutput

_UTC = dt.UTC
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=30)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text("abcäöü \"\\'", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=5,
)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda n: Decimal(f"{n}E-{scale}"))


#: column types and their values
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int2": st.integers(-(2**15), 2**15 - 1),
    "int4": st.integers(-(2**31), 2**31 - 1),
    "int8": st.integers(-(2**63), 2**63 - 1),
    "float4": st.floats(width=32, allow_nan=False),
    "float8": st.floats(allow_nan=False),
    "numeric(12,2)": _decimals(12, 2),
    "numeric(18,0)": _decimals(18, 0),
    "numeric(19,19)": _decimals(19, 19),
    "numeric(38,10)": _decimals(38, 10),
    "numeric(38,38)": _decimals(38, 38),
    "numeric": st.decimals(-(10**60), 10**60, allow_nan=False)
    | st.sampled_from([Decimal(text) for text in ("NaN", "Infinity", "-Infinity", "1E-300", "-1E300", "0.00")]),
    "numeric(50,5)": _decimals(50, 5),
    "numeric(5,-3)": st.integers(-99999, 99999).map(lambda n: Decimal(n * 1000)),
    "text": _TEXT,
    "varchar(40)": _TEXT,
    "char(9)": st.text("abc é", max_size=9),
    "name": st.text("abcdef", max_size=20),
    "bytea": st.binary(max_size=40),
    "date": st.dates(),
    "time": st.times(),
    "timestamp": st.datetimes(),
    "timestamptz": st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30)).map(lambda t: t.replace(tzinfo=_UTC)),
    "uuid": st.uuids(),
    "json": _JSON,
    "jsonb": _JSON,
    "mood": st.sampled_from(["sad", "ok", "happy ☺"]),
    "cents": _decimals(9, 3),
    "int4[]": st.lists(st.integers(-5, 5), max_size=4),
    "interval": st.timedeltas(dt.timedelta(-900), dt.timedelta(900)),
}
#: only in text form
OTHER = {"int4[]", "interval"}


@dataclass(frozen=True)
class Case:
    """A table's column types and what is done to it: key, and a row (insert, update) or None (delete)."""

    column_types: list[str]
    identity: str
    steps: list[tuple[int, list[Any] | None]]


@st.composite
def cases(draw: Callable[..., Any], names: list[str]) -> Case:
    column_types = draw(st.lists(st.sampled_from(names), min_size=1, max_size=8))
    row = st.tuples(*(st.none() | TYPES[name] for name in column_types)).map(list)
    steps = draw(st.lists(st.tuples(st.integers(0, 5), st.none() | row), min_size=1, max_size=12))
    return Case(column_types, draw(st.sampled_from(["DEFAULT", "FULL"])), steps)


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres) -> str:
    postgres.create_database("oracle")
    postgres.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy ☺')", database="oracle")
    postgres.execute("CREATE DOMAIN cents AS numeric(9,3)", database="oracle")
    postgres.execute("CREATE PUBLICATION p FOR ALL TABLES", database="oracle")
    pgoutput.create_slot(postgres.dsn("oracle"), "oracle")
    return "oracle"


_SETTINGS = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@_SETTINGS
@given(case=cases(sorted(set(TYPES) - OTHER)))
def test_binary_values_are_what_psycopg_reads(postgres: EmbeddedPostgres, database: str, case: Case) -> None:
    _check(postgres, database, case, is_binary=True)


@_SETTINGS
@given(case=cases(sorted(TYPES)))
def test_text_values_are_what_psycopg_reads(postgres: EmbeddedPostgres, database: str, case: Case) -> None:
    _check(postgres, database, case, is_binary=False)


def _check(postgres: EmbeddedPostgres, database: str, case: Case, *, is_binary: bool) -> None:
    table = f"t_{uuid.uuid4().hex[:12]}"
    dsn = postgres.dsn(database)
    _play(dsn, table, case)
    table_id = pgoutput.table_id(dsn, table)
    schema = pgoutput.read_schema(postgres.uri(database), table_id)
    events = pgoutput.read_events(dsn, "oracle", "p", is_binary=is_binary, consume=True).get(table_id, [])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(table)))
        changes = decode(schema, pgoutput.as_batch(events))
        changes.after.validate(full=True)
        for row, event in enumerate(events):
            _compare(psycopg.adapt.Transformer(connection), changes, row, pgoutput.parse(event.body))


def _play(dsn: str, table: str, case: Case) -> None:
    name = sql.Identifier(table)
    with psycopg.connect(dsn) as connection:
        connection.execute("SET timezone = 'UTC'")
        columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(case.column_types))
        connection.execute(sql.SQL(f"CREATE TABLE {{}} (id int PRIMARY KEY, {columns})").format(name))
        connection.execute(sql.SQL(f"ALTER TABLE {{}} REPLICA IDENTITY {case.identity}").format(name))
    casts = ", ".join(f"%s::text::{kind}" for kind in case.column_types)
    assigned = ", ".join(f"c{i} = EXCLUDED.c{i}" for i in range(len(case.column_types)))
    upsert = f"INSERT INTO {{}} VALUES (%s, {casts}) ON CONFLICT (id) DO UPDATE SET {assigned}"
    with psycopg.connect(dsn) as connection:
        for key, row in case.steps:
            if row is None:
                connection.execute(sql.SQL("DELETE FROM {} WHERE id = %s").format(name), [key])
            else:
                values = [_spelled(kind, value) for kind, value in zip(case.column_types, row, strict=True)]
                connection.execute(sql.SQL(upsert).format(name), [key, *values])


def _spelled(kind: str, value: Any) -> str | None:
    """The value in PostgreSQL's own text form."""
    if value is None:
        return None
    if kind in ("json", "jsonb"):
        return json.dumps(value)
    if kind == "bytea":
        return "\\x" + str(value.hex())
    if kind == "int4[]":
        return "{" + ",".join(map(str, value)) + "}"
    if kind == "interval":
        return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"
    if isinstance(value, dt.datetime):
        # strftime does not pad years below 1000
        return value.isoformat(" ")
    return str(value)


def _compare(loaders: Transformer, changes: Changes, row: int, plain: pgoutput.PlainRow) -> None:
    assert {"I": INSERT, "U": UPDATE, "D": DELETE}[plain.op] == changes.op[row]
    assert {"": BEFORE_NONE, "K": BEFORE_KEY, "O": BEFORE_FULL}[plain.old_kind] == changes.before_kind[row]
    nothing: list[pgoutput.Value] = [None] * len(changes.schema.columns)
    _compare_image(loaders, changes, changes.after, row, plain.new or nothing)
    if changes.before is not None:
        _compare_image(loaders, changes, changes.before, row, plain.old or nothing)


def _compare_image(
    loaders: Transformer,
    changes: Changes,
    image: pa.RecordBatch,
    row: int,
    plain: list[pgoutput.Value],
) -> None:
    for column, value in zip(changes.schema.columns, plain, strict=True):
        found = image.column(column.name)[row]
        expected = None if value is None else _load(loaders, column, value)
        if isinstance(expected, Decimal) and pa.types.is_decimal(found.type) and not expected.is_finite():
            expected = None
        assert _comparable(found) == _comparable_oracle(column, expected), (column, value, found)


def _load(loaders: Transformer, column: Column, value: pgoutput.Value) -> Any:
    assert isinstance(value, tuple)
    is_binary, data = value
    if column.type_id in (114, 3802):
        return (data[1:] if is_binary and column.type_id == 3802 else data).decode()
    if types.kind_of(column) is types.Kind.OTHER or column.type_id == types.ENUM_OID:
        return data.decode()
    form = psycopg.pq.Format.BINARY if is_binary else psycopg.pq.Format.TEXT
    return loaders.get_loader(column.type_id, form).load(data)


def _comparable(found: pa.Scalar) -> Any:
    value = found.as_py()
    return repr(value) if isinstance(value, float) else value


def _comparable_oracle(column: Column, value: Any) -> Any:
    if isinstance(value, float):
        # A float4's text is the shortest that tells it from other float4s: psycopg reads it as a float8.
        return repr(float(np.float32(value)) if column.type_id == 700 else value)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, Decimal) and types.arrow_type(column) == pa.string():
        return f"{value:f}" if value.is_finite() else {"NaN": "NaN"}.get(str(value), str(value))
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(_UTC)
    return value
