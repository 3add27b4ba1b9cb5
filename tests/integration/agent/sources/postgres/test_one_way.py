"""One way to read a value: for every type of a real server, snapshot, stream and ``diff`` have the same bytes.

The types are all of ``pg_type`` that a column may have, and what users make of them: domains, enums, composites, ranges
and arrays, a base type of their own, and casts to text that write something else than the output function. Each gets
every one of the spellings below that it takes. The database's settings are hostile.
"""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from agent.log import segment
from agent.rows.changes import DELETE, INSERT
from agent.rows.schema import LOG_BATCH, TableSchema
from agent.sources.postgres.decode import types
from agent.sources.postgres.decode.fills import fill_value
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from agent.sources.postgres.snapshot.chunks import WHOLE_TABLE
from agent.sources.postgres.snapshot.rows import read_chunk
from agent.sources.postgres.stream.catalog_lookup import look_up
from agent.sources.registry import decode
from capture.embedded import EmbeddedPostgres
from tests.integration.agent.sources.postgres.sync_rig import SyncRig, drop_slots, make_rig
from tests.integration.agent.sources.postgres.value_spellings import SPELLINGS, literal

_MADE = """
CREATE SCHEMA own;
CREATE TABLE own.t (id int);
CREATE TYPE own.mood AS ENUM ('sad', 'my type', 'a');
CREATE DOMAIN own.address AS inet;
CREATE DOMAIN own.address2 AS own.address;
CREATE DOMAIN own.code AS char(6);
CREATE DOMAIN own.moods AS own.mood[];
CREATE TYPE own.host AS (at inet, name own.code, mood own.mood);
CREATE TYPE own.hosts AS (list own.host[], one own.address2);
CREATE DOMAIN own.some_host AS own.host;
CREATE TYPE own.addresses AS RANGE (subtype = inet);
CREATE TYPE own.number;
CREATE FUNCTION own.number_in(cstring) RETURNS own.number AS 'int4in' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION own.number_out(own.number) RETURNS cstring AS 'int4out' LANGUAGE internal IMMUTABLE STRICT;
CREATE TYPE own.number (input = own.number_in, output = own.number_out, like = int4);
"""
#: of types that have none by themselves, or whose own is not what the output function writes
_CASTS = ("own.number", "own.mood", "own.host", "point", "interval", "jsonb", "int4range", "bit", "int8", "float8")
_TYPES_SQL = """
SELECT format_type(oid, NULL) FROM pg_type t
 WHERE typisdefined AND typtype <> 'p' AND (typtype <> 'c' OR typnamespace = 'own'::regnamespace)
   AND (typelem = 0 OR typsubscript = 'raw_array_subscript_handler'::regproc OR typelem IN
        (SELECT oid FROM pg_type WHERE typtype <> 'p' AND (typtype <> 'c' OR typnamespace = 'own'::regnamespace)))
   AND typname NOT IN ('t', '_t')
 ORDER BY oid
"""
_HOSTILE = {
    "datestyle": "German, DMY",
    "intervalstyle": "iso_8601",
    "timezone": "Asia/Tokyo",
    "extra_float_digits": "0",
    "bytea_output": "escape",
    "search_path": "own, public",
    "quote_all_identifiers": "on",
}
#: servers may be built without XML; nobody can write the others
_WITHOUT_VALUES = {
    "xml",
    "xml[]",
    "gtsvector",
    "gtsvector[]",
    "pg_node_tree",
    "pg_ndistinct",
    "pg_dependencies",
    "pg_mcv_list",
} | {f"pg_brin_{name}_summary" for name in ("bloom", "minmax_multi")}


@pytest.fixture(scope="module")
def rig(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncRig]:
    rig = make_rig(postgres, tmp_path_factory.mktemp("one_way"), _schema_sql(postgres), ["vals"], binary=False)
    for name, value in _HOSTILE.items():
        rig.execute(f"ALTER DATABASE {rig.name} SET {name} = {value if name == 'search_path' else repr(value)}")
    yield rig
    drop_slots(rig)


def _schema_sql(postgres: EmbeddedPostgres) -> str:
    """Everything, in one table with a column for each type."""
    casts = "".join(
        f"CREATE FUNCTION own.said(v {name}) RETURNS text AS $$ SELECT 'said' $$ LANGUAGE sql IMMUTABLE;"
        f"CREATE CAST ({name} AS text) WITH FUNCTION own.said({name});"
        for name in _CASTS
    )
    postgres.create_database("one_way_types")
    with connect(postgres.uri("one_way_types")) as connection:
        connection.query(_MADE)
        names = [str(row[0]) for row in connection.query(_TYPES_SQL)]
    columns = ", ".join(f"c{number} {name}" for number, name in enumerate(names))
    return f"{_MADE}{casts} CREATE TABLE vals (id int PRIMARY KEY, {columns}); ALTER TABLE vals REPLICA IDENTITY FULL"


def _fill(rig: SyncRig) -> None:
    """A row for each spelling, with what takes it; and one of composites of nothing but NULLs."""
    spellings = ", ".join(map(literal, SPELLINGS))
    rig.execute(
        f"""
        DO $do$
        DECLARE text_of text; col record; n int := 0;
        BEGIN
          FOREACH text_of IN ARRAY ARRAY[{spellings}] LOOP
            n := n + 1;
            INSERT INTO vals (id) VALUES (n);
            FOR col IN SELECT attname, format_type(atttypid, atttypmod) AS type FROM pg_attribute
                        WHERE attrelid = 'public.vals'::regclass AND attnum > 1 LOOP
              BEGIN
                EXECUTE format('UPDATE public.vals SET %I = %L::%s WHERE id = %s', col.attname, text_of, col.type, n);
              EXCEPTION WHEN OTHERS THEN NULL;
              END;
            END LOOP;
          END LOOP;
        END $do$;
        """
    )
    with connect(rig.uri) as connection:
        names = connection.query(
            "SELECT attname, format_type(atttypid, -1) FROM pg_attribute WHERE attrelid = 'public.vals'::regclass "
            "AND atttypid IN (700, 701)"
        )
    assert len(names) == 2
    for name, kind in names:  # a NaN that no text makes: with a sign
        rig.execute(f"UPDATE vals SET {name} = 'Infinity'::{kind} - 'Infinity'::{kind} WHERE id = 1")


async def test_snapshot_stream_and_diff_read_every_type_in_one_way(rig: SyncRig) -> None:
    _fill(rig)
    table_id = rig.tables[0].table_id
    with connect(rig.uri) as connection:
        schema = read_schemas(connection, [table_id])[table_id]
    rows = read_chunk(rig.uri, None, schema, WHOLE_TABLE)
    read = pa.Table.from_batches(rows, types.arrow_schema(schema)).sort_by("id")
    rig.execute("BEGIN; CREATE TEMP TABLE kept AS TABLE vals; DELETE FROM vals; INSERT INTO vals TABLE kept; COMMIT")
    async with rig.running():
        await rig.wait_resolved()
    names = sorted(name for name in rig.directory.names() if name.endswith(".arrow"))
    paths = (rig.directory.path_of(name) for name in names)
    batches = [batch for path in paths for _, batch, _ in segment.read_batches(path)]
    changes = decode(schema, pa.Table.from_batches(batches, LOG_BATCH).combine_chunks().to_batches()[0])
    assert changes.before is not None
    for op, image in ((DELETE, changes.before), (INSERT, changes.after)):
        at = (changes.op == op).nonzero()[0][-read.num_rows :]
        streamed = pa.Table.from_batches([image.take(pa.array(at))]).sort_by("id")
        assert not _unlike(schema, streamed, read)
    empty = {column.type_name for column in schema.columns if read.column(column.name).null_count == read.num_rows}
    assert empty <= _WITHOUT_VALUES, "every other type takes some of the spellings"


def test_the_default_of_a_new_column_is_what_old_rows_are_read_with(rig: SyncRig) -> None:
    """The catalog keeps it as an array, whose text some types write with another delimiter."""
    spellings = ", ".join(map(literal, SPELLINGS))
    rig.execute(
        f"""
        CREATE TABLE public.filled (id int PRIMARY KEY); INSERT INTO public.filled VALUES (1);
        DO $do$
        DECLARE text_of text; col record; n int := 0; at_type int; file oid;
        BEGIN
          FOR col IN SELECT format_type(atttypid, -1) AS type FROM pg_attribute
                      WHERE attrelid = 'public.vals'::regclass AND attnum > 1 LOOP
            at_type := n;
            FOREACH text_of IN ARRAY ARRAY[{spellings}] LOOP
              EXIT WHEN n >= at_type + 3;
              BEGIN
                EXECUTE format('SELECT %L::%s', text_of, col.type);
                file := pg_relation_filenode('public.filled');
                EXECUTE format('ALTER TABLE public.filled ADD d%s %s DEFAULT %L', n, col.type, text_of);
                IF file <> pg_relation_filenode('public.filled') THEN
                  RAISE 'the rows have it themselves';
                END IF;
                n := n + 1;
              EXCEPTION WHEN OTHERS THEN NULL;
              END;
            END LOOP;
          END LOOP;
        END $do$;
        """
    )
    with connect(rig.uri) as connection:
        [[oid]] = connection.query("SELECT 'public.filled'::regclass::oid::int8")
        schema = read_schemas(connection, [int(str(oid))])[int(str(oid))]
        fills = look_up(connection, schema.table_id).fills
    [row] = read_chunk(rig.uri, None, schema, WHOLE_TABLE)
    assert len(fills) > 200
    wrong = [
        (column.type_name, fills[column.name], str(read))
        for column in schema.columns
        if column.name in fills
        and not _bits(read := row.column(column.name)).equals(
            _bits(pa.array([fill_value(schema, column.name, fills[column.name])]).cast(read.type))
        )
    ]
    assert not wrong


def _unlike(schema: TableSchema, streamed: pa.Table, read: pa.Table) -> list[tuple[str, str, str]]:
    """Columns whose values are not the same bit for bit: their type, and the first pair."""
    found = []
    for column in schema.columns:
        one, other = (_bits(table.column(column.name).combine_chunks()) for table in (streamed, read))
        if not one.equals(other):
            pairs = zip(one.cast(pa.string()).to_pylist(), other.cast(pa.string()).to_pylist(), strict=True)
            found.append((column.type_name, *next(pair for pair in pairs if pair[0] != pair[1])))
    return found


def _bits(values: pa.Array) -> pa.Array:
    if pa.types.is_floating(values.type):
        return values.view(pa.int32() if values.type == pa.float32() else pa.int64())
    return values
