"""Keys: two rows of the source are two rows of the sink, and one row stays one, however its key is written.

For every type of a real server that can be a key, rows come and go under every spelling that the type takes; a row
whose key is equal to another's takes its place, and is then written as the newer one was. What folding the stream comes
to must be what the table then holds. A value that the sink's type cannot tell from another one must be refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from agent.errors import DecodeError
from agent.rows.fold import key_codes, net_changes
from agent.rows.schema import TableSchema
from agent.sources.postgres.decode import types
from agent.sources.postgres.server.connection import Connection, connect
from agent.sources.postgres.snapshot.chunks import WHOLE_TABLE
from agent.sources.postgres.snapshot.rows import copy_rows, session
from agent.sources.registry import decode
from capture.embedded import EmbeddedPostgres
from tests import pgoutput
from tests.integration.agent.sources.postgres.value_spellings import SPELLINGS, literal

_MORE: tuple[str, ...] = (
    "1.5",
    "1.500",
    "24:00:00",
    "1 day",
    "24:00",
    "30 days",
    "A",
    "a  ",
    "0.0",
    "{1.0}",
    "{1.00}",
    "9999-12-31",
)
_MORE += (
    "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "A0EEBC999C0B4EF8BB6D6BB9BD380A11",
    "{12345678-1234-5678-1234-56781234567a}",
)
_MORE += ("10", "11", "110")
_MORE_ENDS = ("0001-01-01", "9999-12-31 23:59:59.999999", "23:59:59.999999", "294276-12-31 23:59:59", "infinity")
#: whose own text is that of other objects, which change their names
_NAMES = {"regproc", "regprocedure", "regoper", "regoperator", "regclass", "regtype", "regconfig", "regdictionary"}
_NAMES |= {"regnamespace", "regrole", "regcollation"}
#: types with values that are bent, and those values
_BENT = {
    "date": {"infinity", "-infinity", "Infinity"},
    "timestamp without time zone": {"infinity", "-infinity", "Infinity", "294276-12-31 23:59:59"},
    "timestamp with time zone": {"infinity", "-infinity", "Infinity", "294276-12-31 23:59:59"},
    "time without time zone": {"24:00:00", "24:00"},
    "numeric(12,2)": {"NaN"},
    "d_numeric": {"NaN"},
}
_TYPES_SQL = """
SELECT DISTINCT format_type(t.oid, NULL) FROM pg_type t JOIN pg_opclass o
    ON o.opcdefault AND o.opcmethod = (SELECT oid FROM pg_am WHERE amname = 'btree') AND (o.opcintype = t.oid
       OR typcategory = 'A' AND opcintype = 'anyarray'::regtype AND EXISTS
          (SELECT FROM pg_opclass e WHERE e.opcintype = typelem AND e.opcdefault AND e.opcmethod = o.opcmethod)
       OR typtype = 'r' AND opcintype = 'anyrange'::regtype OR typtype = 'm' AND opcintype = 'anymultirange'::regtype)
 WHERE t.typtype <> 'p' AND format_type(t.oid, NULL) NOT LIKE '%"%'
"""
_EXTRA = (
    "varchar",
    "char(5)",
    "numeric(12,2)",
    "cidr",
    "any_case",
    "mood",
    "d_inet",
    "d_numeric",
    "host",
    "regclass",
)
_MADE = """
CREATE TYPE mood AS ENUM ('a', 'A', 'sad');
CREATE DOMAIN d_inet AS inet;
CREATE DOMAIN d_numeric AS numeric(9,3);
CREATE TYPE host AS (at inet, name char(3));
CREATE TYPE any_case;
CREATE FUNCTION any_case_in(cstring) RETURNS any_case AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION any_case_out(any_case) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION any_case_send(any_case) RETURNS bytea AS 'textsend' LANGUAGE internal IMMUTABLE STRICT;
CREATE TYPE any_case (input = any_case_in, output = any_case_out, send = any_case_send, like = text, collatable = true);
CREATE CAST (any_case AS text) WITHOUT FUNCTION;
CREATE FUNCTION any_case_cmp(any_case, any_case) RETURNS int LANGUAGE sql IMMUTABLE STRICT
    AS $$ SELECT bttextcmp(lower($1::text), lower($2::text)) $$;
"""
#: as citext has it, which not every server brings
_OPERATORS = "".join(
    f"CREATE FUNCTION any_case_{number}(any_case, any_case) RETURNS bool LANGUAGE sql IMMUTABLE STRICT"
    f" AS 'SELECT any_case_cmp($1, $2) {operator} 0';"
    f"CREATE OPERATOR {operator} (leftarg = any_case, rightarg = any_case, function = any_case_{number});"
    for number, operator in enumerate(("<", "<=", "=", ">=", ">"))
)
_OPERATORS += (
    "CREATE OPERATOR CLASS any_case_ops DEFAULT FOR TYPE any_case USING btree AS OPERATOR 1 <, OPERATOR 2 <=, "
    "OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 any_case_cmp(any_case, any_case)"
)


Events = dict[int, list[pgoutput.Event]]


@dataclass(frozen=True)
class Bed:
    uri: str
    dsn: str
    name: str

    def connect(self) -> Connection:
        return connect(self.uri)


@pytest.fixture(scope="module")
def bed(postgres: EmbeddedPostgres) -> Iterator[Bed]:
    name = "key_values"
    postgres.create_database(name)
    bed = Bed(postgres.uri(name), postgres.dsn(name), name)
    with bed.connect() as connection:
        connection.query(_MADE + _OPERATORS)
        connection.query("CREATE PUBLICATION p FOR ALL TABLES")
    pgoutput.create_slot(bed.dsn, name)
    yield bed
    with bed.connect() as connection:
        connection.query(f"SELECT pg_drop_replication_slot('{name}')")


def _play(connection: Connection, table: str, kind: str, spellings: list[str]) -> None:
    """Rows under every spelling; equal keys are written again; some go, and some of these come again."""
    texts = ", ".join(map(literal, spellings))
    connection.query(f"CREATE TABLE {table} (k {kind} PRIMARY KEY, v int)")
    connection.query(
        f"""
        DO $do$
        DECLARE spelling text; n int := 0; round int;
        BEGIN
          FOR round IN 1..2 LOOP
            FOREACH spelling IN ARRAY ARRAY[{texts}] LOOP
              n := n + 1;
              BEGIN
                INSERT INTO {table} VALUES (spelling::{kind}, n)
                    ON CONFLICT (k) DO UPDATE SET k = EXCLUDED.k, v = EXCLUDED.v;
              EXCEPTION WHEN OTHERS THEN NULL;
              END;
            END LOOP;
            DELETE FROM {table} WHERE (v + round) % 3 = 0;
          END LOOP;
        END $do$
        """
    )


def _check(bed: Bed, events: dict[bool, Events], table: str) -> int:
    """What the stream comes to is what the table holds; how many rows that are."""
    table_id = pgoutput.table_id(bed.dsn, table)
    schema = pgoutput.read_schema(bed.uri, table_id)
    with session(bed.uri, None) as connection:
        batches = list(copy_rows(connection, schema, WHOLE_TABLE, ["k"]))
    read = pa.Table.from_batches(batches, types.arrow_schema(schema))
    for is_binary in _forms(schema):
        net = net_changes([decode(schema, pgoutput.as_batch(events[is_binary][table_id]), ["k"])], key=["k"])
        assert _rows(net.upserts) == _rows(read)
    if read.num_rows:
        assert int(key_codes(read.select(["k"])).max()) + 1 == read.num_rows
    return int(read.num_rows)


def _forms(schema: TableSchema) -> tuple[bool, ...]:
    return (False, True) if all(map(types.is_known, schema.columns)) else (False,)


def _events(bed: Bed) -> dict[bool, Events]:
    """What has happened since this was last asked, by form and table."""
    as_binary = pgoutput.read_events(bed.dsn, bed.name, "p", is_binary=True)
    return {True: as_binary, False: pgoutput.read_events(bed.dsn, bed.name, "p", is_binary=False, consume=True)}


def _rows(table: pa.Table) -> list[tuple[str, int]]:
    column = table.column("k").combine_chunks()
    if pa.types.is_date32(column.type) or pa.types.is_timestamp(column.type):
        column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    return sorted(zip(map(repr, column.to_pylist()), table.column("v").to_pylist(), strict=True))


def test_folding_the_stream_comes_to_the_table_for_every_type_of_key(bed: Bed) -> None:
    with bed.connect() as connection:
        kinds = sorted({str(row[0]) for row in connection.query(_TYPES_SQL)} | set(_EXTRA) - {"regclass"})
        for number, kind in enumerate(kinds):
            left_out = _BENT.get(kind, set())
            spellings = [text for text in (*SPELLINGS, *_MORE, *_MORE_ENDS) if text not in left_out]
            _play(connection, f"t{number}", kind, spellings)
    events = _events(bed)
    rows = {kind: _check(bed, events, f"t{number}") for number, kind in enumerate(kinds) if kind not in _NAMES}
    assert {kind for kind, count in rows.items() if not count} <= {"xml"}, "every type has had rows"


def test_a_key_value_that_could_be_taken_for_another_is_refused(bed: Bed) -> None:
    """So are names of objects, which change without a word of the rows."""
    cases = [*((kind, text) for kind, texts in _BENT.items() for text in sorted(texts)), ("regclass", "pg_class")]
    with bed.connect() as connection:
        for number, (kind, text) in enumerate(cases):
            connection.query(f"CREATE TABLE refused{number} (k {kind} PRIMARY KEY, v int)")
            connection.query(f"INSERT INTO refused{number} VALUES ('{text}', 1)")
    events = _events(bed)
    for number in range(len(cases)):
        _refuses(bed, events, f"refused{number}")


def _refuses(bed: Bed, events: dict[bool, Events], table: str) -> None:
    table_id = pgoutput.table_id(bed.dsn, table)
    schema = pgoutput.read_schema(bed.uri, table_id)
    for is_binary in _forms(schema):
        batch = pgoutput.as_batch(events[is_binary][table_id])
        with pytest.raises(DecodeError, match=rf"public\.{table}: key column k cannot be read"):
            decode(schema, batch, ["k"])
        assert len(decode(schema, batch)) == 1, "it is no key there"
    with session(bed.uri, None) as connection, pytest.raises(DecodeError, match="key column k cannot be read"):
        list(copy_rows(connection, schema, WHOLE_TABLE, ["k"]))
