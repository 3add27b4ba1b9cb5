"""Snapshot reads against psycopg's, over all types and all ways to cut a table."""

import os
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from agent.errors import SourceError, TableGoneError
from agent.rows.schema import TableSchema
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from agent.sources.postgres.snapshot import rows as snapshot
from agent.sources.postgres.snapshot.chunks import WHOLE_TABLE, PlanKind, plan_chunks
from agent.sources.postgres.snapshot.export import create_slot
from capture.embedded import EmbeddedPostgres
from tests import pgoutput

_COLUMNS = (
    "id bigint, b bool, i2 int2, i4 int4, f4 float4, f8 float8, n numeric(12,2), w numeric(38,10), x numeric, t text, "
    "v varchar(30), c char(6), d date, tm time, ts timestamp, tz timestamptz, u uuid, y bytea, j json, jb jsonb, "
    "m mood, a int[], iv interval, g int GENERATED ALWAYS AS (i4 * 2) STORED"
)
_ROWS = """
SELECT n, n % 2 = 0, n % 100, nullif(n % 5, 0) * n, n / 4.0, n / 3.0::float8, (n % 9999) / 100.0, n * 1e-10, n / 8.0,
       CASE WHEN n % 7 <> 0 THEN repeat('é', n % 50) END, 'v' || n, 'c', date '2000-01-01' + n,
       time '00:00' + n * interval '1 us', timestamp '1960-01-01' + n * interval '1 hour',
       timestamptz '1960-01-01' + n * interval '1 hour',
       md5(n::text)::uuid, decode(md5(n::text), 'hex'), '{"n": 1}', jsonb_build_object('n', n),
       CASE WHEN n % 3 = 0 THEN 'ok'::mood END, ARRAY[n, NULL], n * interval '1 minute'
  FROM generate_series(1, 3000) n
"""


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres) -> str:
    name = f"snap_{uuid.uuid4().hex[:8]}"
    postgres.create_database(name)
    with psycopg.connect(postgres.dsn(name), autocommit=True) as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        connection.execute(f'CREATE TABLE "All Types" ({_COLUMNS})')
        connection.execute(f'INSERT INTO "All Types" {_ROWS}')
        connection.execute('CREATE TABLE heir () INHERITS ("All Types")')
        connection.execute("INSERT INTO heir (id) VALUES (-1)")
        connection.execute('ALTER TABLE "All Types" ADD PRIMARY KEY (id)')
        connection.execute("CREATE TABLE empty (id int)")
        connection.execute("ANALYZE")
    return name


@pytest.fixture(scope="module")
def schema(postgres: EmbeddedPostgres, database: str) -> TableSchema:
    return pgoutput.read_schema(postgres.uri(database), pgoutput.table_id(postgres.dsn(database), '"All Types"'))


def _rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["id"])


def test_rows_are_what_psycopg_reads(postgres: EmbeddedPostgres, database: str, schema: TableSchema) -> None:
    cast = {"u", "j", "jb", "x", "a", "iv"}
    names = ", ".join(f"{c.name}::text" if c.name in cast else c.name for c in schema.columns)
    assert "g" not in [column.name for column in schema.columns]
    with psycopg.connect(postgres.dsn(database), row_factory=psycopg.rows.dict_row) as connection:
        expected = connection.execute(f'SELECT {names} FROM ONLY "All Types" ORDER BY id').fetchall()
    found = _rows(snapshot.read_chunk(postgres.uri(database), None, schema, WHOLE_TABLE))
    assert len(found) == 3000
    assert found == expected


@pytest.mark.parametrize(("key", "kind"), [(["id"], PlanKind.KEYS), ([], PlanKind.BLOCKS)])
def test_chunks_together_are_the_table(
    postgres: EmbeddedPostgres, database: str, schema: TableSchema, key: list[str], kind: PlanKind
) -> None:
    uri = postgres.uri(database)
    with snapshot.session(uri, None) as connection:
        version = connection.server_version
        [plan] = plan_chunks(connection, [(schema, key)], chunk_rows=400, server_version=version).values()
        assert plan.kind is kind
        assert plan.count == 8
        rows = [
            row
            for number in range(plan.count)
            for row in _rows(snapshot.copy_rows(connection, schema, plan.chunk(number)))
        ]
    assert sorted(row["id"] for row in rows) == list(range(1, 3001))


@pytest.mark.parametrize("key", [[], ["id", "day"]])
def test_chunks_of_partitions_together_are_the_table(postgres: EmbeddedPostgres, database: str, key: list[str]) -> None:
    """Partitions of different lengths: one has no rows, one another order of columns, and one partitions of its own."""
    uri, root = postgres.uri(database), f"parts_{len(key)}"
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        connection.execute(
            f"CREATE TABLE {root} (id uuid, day int, pad text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);"
            f"CREATE TABLE {root}_1 PARTITION OF {root} FOR VALUES FROM (0) TO (10);"
            f"CREATE TABLE {root}_2 (pad text, day int NOT NULL, id uuid NOT NULL);"
            f"ALTER TABLE {root} ATTACH PARTITION {root}_2 FOR VALUES FROM (10) TO (100);"
            f"CREATE TABLE {root}_3 PARTITION OF {root} FOR VALUES FROM (100) TO (200);"
            f"CREATE TABLE {root}_4 PARTITION OF {root} DEFAULT PARTITION BY LIST (day);"
            f"CREATE TABLE {root}_5 PARTITION OF {root}_4 DEFAULT;"
            f"INSERT INTO {root} SELECT gen_random_uuid(), n, repeat('x', 100) FROM generate_series(0, 99) n;"
            f"INSERT INTO {root} SELECT gen_random_uuid(), n, repeat('x', 100) FROM generate_series(200, 2999) n"
        )
        [(count,)] = connection.execute(f"SELECT count(DISTINCT id) FROM {root}").fetchall()
    schema = pgoutput.read_schema(uri, pgoutput.table_id(postgres.dsn(database), root))
    with snapshot.session(uri, None) as connection:
        version = connection.server_version
        [plan] = plan_chunks(connection, [(schema, key)], chunk_rows=400, server_version=version).values()
        chunks = [_rows(snapshot.copy_rows(connection, schema, plan.chunk(at))) for at in range(plan.count)]
    assert (plan.kind, plan.count) == (PlanKind.BLOCKS, 8)
    assert all(chunks)
    ids = [row["id"] for rows in chunks for row in rows]
    assert len(ids) == len(set(ids)) == count


@pytest.mark.matrix
def test_batches_end_when_the_block_or_the_batch_is_full(
    postgres: EmbeddedPostgres, database: str, schema: TableSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _rows(snapshot.read_chunk(postgres.uri(database), None, schema, WHOLE_TABLE))
    # smaller than a row, so that the block must grow; and batches of a few rows
    monkeypatch.setattr(snapshot, "_BLOCK_BYTES", 64)
    monkeypatch.setattr(snapshot, "BATCH_ROWS", 7)
    batches = list(snapshot.read_chunk(postgres.uri(database), None, schema, WHOLE_TABLE))
    assert max(batch.num_rows for batch in batches) <= 7
    assert _rows(iter(batches)) == whole


def test_an_empty_table_has_no_batches(postgres: EmbeddedPostgres, database: str) -> None:
    empty = pgoutput.read_schema(postgres.uri(database), pgoutput.table_id(postgres.dsn(database), "empty"))
    assert list(snapshot.read_chunk(postgres.uri(database), None, empty, WHOLE_TABLE)) == []


def test_rows_without_columns_are_counted(postgres: EmbeddedPostgres, database: str) -> None:
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        connection.execute("CREATE TABLE bare ()")
        for _ in range(3):
            connection.execute("INSERT INTO bare DEFAULT VALUES")
    bare = pgoutput.read_schema(postgres.uri(database), pgoutput.table_id(postgres.dsn(database), "bare"))
    assert (bare.name, bare.columns) == ("bare", ())
    assert [batch.num_rows for batch in snapshot.read_chunk(postgres.uri(database), None, bare, WHOLE_TABLE)] == [3]


def test_a_connection_is_of_use_after_a_copy(postgres: EmbeddedPostgres, database: str, schema: TableSchema) -> None:
    with snapshot.session(postgres.uri(database), None) as connection:
        assert sum(batch.num_rows for batch in snapshot.copy_rows(connection, schema, WHOLE_TABLE)) == 3000
        assert connection.query("SELECT 1") == [("1",)]


def test_an_error_in_the_middle_of_a_copy_is_the_servers_own(postgres: EmbeddedPostgres, database: str) -> None:
    view = f"broken_{os.getpid()}"
    with psycopg.connect(postgres.dsn(database), autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {view} (id int, v int)")
        connection.execute(f"INSERT INTO {view} SELECT n, 2000 - n FROM generate_series(1, 3000) n")
    broken = pgoutput.read_schema(postgres.uri(database), pgoutput.table_id(postgres.dsn(database), view))
    with snapshot.session(postgres.uri(database), None) as connection:
        statement = snapshot.copy_statement(broken, WHOLE_TABLE, f"public.{view}").replace('"v"', '1 / "v"')
        connection.start_copy(statement)
        rows = snapshot._CopyRows(connection, broken)
        with pytest.raises(SourceError, match="division by zero"):
            list(rows.batches())


def test_all_sessions_under_an_exported_snapshot_see_its_moment(postgres: EmbeddedPostgres, database: str) -> None:
    uri, dsn = postgres.uri(database), postgres.dsn(database)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE moving (id int PRIMARY KEY)")
        connection.execute("INSERT INTO moving VALUES (1)")
        moving = pgoutput.read_schema(uri, pgoutput.table_id(dsn, "moving"))
        with create_slot(uri, f"snap_{os.getpid()}", is_temporary=True) as export:
            connection.execute("INSERT INTO moving VALUES (2)")
            assert _rows(snapshot.read_chunk(uri, export.snapshot, moving, WHOLE_TABLE)) == [{"id": 1}]
            assert len(_rows(snapshot.read_chunk(uri, None, moving, WHOLE_TABLE))) == 2
            assert export.is_alive()
        assert not export.is_alive()
        with pytest.raises(SourceError):
            list(snapshot.read_chunk(uri, export.snapshot, moving, WHOLE_TABLE))


def test_a_table_that_is_gone_is_named(postgres: EmbeddedPostgres, database: str) -> None:
    with connect(postgres.uri(database)) as connection, pytest.raises(TableGoneError, match="oid 1 is gone"):
        read_schemas(connection, [1])


def test_a_temporary_slot_is_gone_when_its_snapshot_is_closed(postgres: EmbeddedPostgres) -> None:
    """So that the next comparison can have one of the same name at once."""
    slots = "SELECT 1 FROM pg_catalog.pg_replication_slots WHERE slot_name = 'again_and_again'"
    with connect(postgres.uri()) as looking:
        for _ in range(20):
            with create_slot(postgres.uri(), "again_and_again", is_temporary=True):
                assert looking.query(slots) == [("1",)]
            assert looking.query(slots) == []
