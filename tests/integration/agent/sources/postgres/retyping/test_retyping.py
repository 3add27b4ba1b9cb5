"""Columns that get another type, against a real server: every pair of types that it converts without an expression.

What the server makes of each value (of the many spellings) is what ``retyping`` makes of it, or that is refused. The
session that changes the type has settings of its own, which nobody can know.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.errors import DecodeError, SourceError
from agent.rows.schema import Column, TableSchema
from agent.rows.schema_change import Exact, Refused
from agent.sinks.delta.table.schema import delta_column
from agent.sources.postgres.decode import types
from agent.sources.postgres.retyping.json import as_jsonb
from agent.sources.postgres.retyping.retyping import conversion
from agent.sources.postgres.server.connection import Connection, connect
from agent.sources.postgres.snapshot.chunks import WHOLE_TABLE
from agent.sources.postgres.snapshot.rows import copy_rows
from capture.embedded import EmbeddedPostgres
from tests import pgoutput
from tests.integration.agent.sources.postgres.value_spellings import SPELLINGS, literal

_TYPES = (
    *("smallint", "integer", "bigint", "real", "double precision", "boolean", "bytea", "uuid", "inet", "cidr"),
    *("numeric(12,2)", "numeric(14,4)", "numeric(3,5)", "numeric(38,0)", "numeric(50,5)", "numeric(5,-3)", "numeric"),
    *(
        "text",
        "varchar",
        "varchar(3)",
        "varchar(40)",
        "char(2)",
        "char(9)",
        "bpchar",
        "name",
        '"char"',
        "mood",
        "moods",
    ),
    *("date", "timestamp", "timestamp(2)", "timestamptz", "timestamptz(0)", "time", "time(1)", "timetz", "interval"),
    *("interval(0)", "json", "jsonb", "integer[]", "bigint[]", "text[]", "varchar[]", "varchar(2)[]", "mood[]", "oid"),
    *("xid", "money", "bit(3)", "varbit", "macaddr", "point", "int4range", "host", "d_text", "d_numeric", "regclass"),
    *(
        "tsvector",
        "pg_lsn",
        "macaddr8",
        "numrange",
        "float8[]",
        "tid",
        "varbit(5)",
        "varbit(8)",
        "bit(5)",
        "timetz(2)",
        "timetz(4)",
    ),
)
_VALUES = (
    *SPELLINGS,
    *(
        "12",
        "123.456",
        "-123.455",
        "0.005",
        "-0.005",
        "2.5",
        "3.5",
        "-2.5",
        "1e-5",
        "99999.99999",
        "1e15",
        "1e20",
        "ab ",
    ),
    *("0.1", "16777217", "123456789.123456789", "32767", "2147483647", "9223372036854775807", "ab  c", "abc", "é☺ü"),
    *("true", "yes", "infinity", "9999-12-31", "9999-12-31 23:59:59.999999", "1999-12-31 23:59:59.995"),
    *(
        "1960-01-01 00:00:00.005",
        "2000-01-01 00:00:00.015",
        "23:59:59.96",
        "12:34:56.789",
        "0.05",
        "294276-12-31",
        "x y",
    ),
    *(
        '{"b": 1e5, "a": "\\u00e9\\n", "bb": [1.50, -0, 1E-3], "b": true}',
        '"a\\/\\u0001"',
        "[]",
        "{ }",
        " 12 ",
        "12345678",
    ),
    *(
        "00000000-0000-0000-0000-00000000000a",
        "1.2.3.0/24",
        "fe80::1/64",
        "{a,b}",
        "{x}",
        "10101",
        "{1.5}",
        "3 days 04:05",
    ),
)
_MADE = """
CREATE TYPE mood AS ENUM ('sad', 'a');
CREATE TYPE moods AS ENUM ('sad', 'a', 'true');
CREATE TYPE host AS (at inet, name char(3));
CREATE DOMAIN d_text AS varchar(9);
CREATE DOMAIN d_numeric AS numeric(9,3);
"""
_HOSTILE = (
    "SET timezone = 'Asia/Tokyo'; SET datestyle = 'German'; SET intervalstyle = 'iso_8601'; "
    "SET extra_float_digits = 0; SET bytea_output = 'escape'"
)
#: types that become more than themselves, at least these pairs in a way that is known
_KNOWN = {
    ("char(9)", "text"), ("json", "jsonb"), ("date", "timestamp"), ("integer", "bigint"), ("integer", "text"),
    ("varchar(40)", "varchar(3)"), ("numeric(14,4)", "numeric(12,2)"), ("mood", "text"), ("timestamp", "timestamp(2)"),
    ("real", "double precision"), ("double precision", "numeric"), ("numeric(12,2)", "integer"), ("uuid", "text"),
    ("text", "char(9)"), ("bigint", "numeric"), ("boolean", "text"), ("inet", "text"), ("jsonb", "json"),
}  # fmt: skip


@dataclass(frozen=True)
class Side:
    """One type's column, in a table of its own."""

    name: str
    table: str
    schema: TableSchema

    @property
    def column(self) -> Column:
        return self.schema.columns[1]


@pytest.fixture(scope="module")
def bed(postgres: EmbeddedPostgres) -> Iterator[tuple[Connection, list[Side]]]:
    postgres.create_database("retyping")
    uri, dsn = postgres.uri("retyping"), postgres.dsn("retyping")
    with connect(uri) as connection:
        connection.query(_MADE)
        for number, name in enumerate(_TYPES):
            for letter in "ab":
                connection.query(f"CREATE TABLE {letter}{number} (id int, v {name})")
        sides = [
            Side(name, str(number), pgoutput.read_schema(uri, pgoutput.table_id(dsn, f"a{number}")))
            for number, name in enumerate(_TYPES)
        ]
        for side in sides:
            _fill(connection, f"a{side.table}", side.name)
        yield connection, sides


def _fill(connection: Connection, table: str, kind: str) -> None:
    texts = ", ".join(map(literal, dict.fromkeys(_VALUES)))
    connection.query(
        f"""
        INSERT INTO {table} VALUES (0, NULL);
        DO $do$
        DECLARE spelling text; n int := 0;
        BEGIN
          FOREACH spelling IN ARRAY ARRAY[{texts}] LOOP
            n := n + 1;
            BEGIN
              EXECUTE format('INSERT INTO {table} VALUES (%s, %L)', n, spelling);
            EXCEPTION WHEN OTHERS THEN NULL;
            END;
          END LOOP;
        END $do$
        """
    )


def _assign(connection: Connection, before: Side, after: Side) -> bool:
    """Let the server convert all values that it converts, by themselves, as ALTER TABLE does; False where it does none
    without an expression."""
    source, target = f"a{before.table}", f"b{after.table}"
    connection.query(f"TRUNCATE {target}")
    try:
        connection.query(
            f"PREPARE one AS INSERT INTO {target} SELECT id, v FROM {source} WHERE id = $1; DEALLOCATE one"
        )
    except SourceError:
        return False
    connection.query(
        f"""{_HOSTILE};
        DO $do$
        DECLARE n int;
        BEGIN
          FOR n IN SELECT id FROM {source} LOOP
            BEGIN
              INSERT INTO {target} SELECT id, v FROM {source} WHERE id = n;
            EXCEPTION WHEN OTHERS THEN NULL;
            END;
          END LOOP;
        END $do$; RESET ALL"""
    )
    return True


def _read(connection: Connection, schema: TableSchema, table: str) -> pa.Table:
    named = replace(schema, name=table)
    rows = pa.Table.from_batches(copy_rows(connection, named, WHOLE_TABLE), types.arrow_schema(schema))
    return rows.replace_schema_metadata(None).sort_by("id").combine_chunks()


@pytest.mark.matrix
def test_values_become_what_the_server_makes_of_them_or_are_refused(bed: tuple[Connection, list[Side]]) -> None:
    connection, sides = bed
    held = {side.name: _read(connection, side.schema, f"a{side.table}") for side in sides}
    wrong: list[tuple[str, ...]] = []
    known, refused = set(), set()
    for before, after in product(sides, sides):
        if before is after or not _assign(connection, before, after):
            continue
        found = conversion(before.column, after.column)
        if isinstance(found, Refused):
            refused.add((before.name, after.name))
            continue
        made = _read(connection, after.schema, f"b{after.table}")
        wrong += _differences(before, after, found, held[before.name], made)
        known.add((before.name, after.name))
    assert not wrong, f"{len(wrong)} of {len(known)}: {wrong[:32]}"
    assert known >= _KNOWN
    assert len(known) > 200


def _differences(
    before: Side, after: Side, found: Exact | None, held: pa.Table, made: pa.Table
) -> Iterator[tuple[str, ...]]:
    """Values that became others than at the server: from what, to what, and what it should be."""
    places = pc.index_in(made.column("id"), value_set=held.column("id").combine_chunks())
    old, new = _one(held.column("v").take(places)), _one(made.column("v"))
    # a sink may hold a value in another form
    forms = [old] if found is None or delta_column(old).type == old.type else [old, delta_column(old)]
    for values in forms:
        got = _converted(found, values, new.type)
        if isinstance(got, pa.Array) and _bits(got).equals(_bits(new)):
            continue
        for row in range(len(values)):
            value, expected = values.slice(row, 1), new.slice(row, 1)
            got = _converted(found, value, new.type)
            if isinstance(got, pa.Array) and _bits(got).equals(_bits(expected)):
                continue
            if found is None or isinstance(got, pa.Array):
                yield before.name, after.name, _shown(value), _shown(got), _shown(expected)


def _converted(found: Exact | None, values: pa.Array, arrow: pa.DataType) -> pa.Array | str:
    """The error where it is refused."""
    try:
        return values.cast(arrow) if found is None else found.convert(values)
    except (DecodeError, pa.ArrowInvalid) as error:
        return str(error)


def _one(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _bits(values: pa.Array) -> pa.Array:
    values = pa.concat_arrays([values])
    if pa.types.is_floating(values.type):
        return values.view(pa.int32() if values.type == pa.float32() else pa.int64())
    return values


def _shown(values: pa.Array | str) -> str:
    if isinstance(values, str):
        return values
    return str(values.cast(pa.string()) if not pa.types.is_binary(values.type) else values)[-60:]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('aé☺"\\\n', max_size=3), inner, max_size=4),
    max_leaves=8,
)
_NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,12})?([eE][-+]?[0-9]{1,2})?", fullmatch=True)


@pytest.mark.matrix
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=st.lists(st.builds(json.dumps, _JSON, ensure_ascii=st.booleans()) | _NUMBERS, min_size=1, max_size=20))
def test_a_document_is_written_as_jsonb_does(bed: tuple[Connection, list[Side]], documents: list[str]) -> None:
    connection, _ = bed
    wanted = [text for text in documents if "\\u0000" not in text]  # jsonb refuses it
    values = ", ".join(f"({literal(text)}::json::jsonb)" for text in [*wanted, "[]"])
    rows = connection.query(f"SELECT v FROM (VALUES {values}) t(v)")
    assert as_jsonb(pa.array([*wanted, "[]"])).to_pylist() == [row[0] for row in rows]
