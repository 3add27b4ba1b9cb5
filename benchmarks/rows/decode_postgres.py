"""decode-postgres: pgoutput row events of 10 mixed columns with NULLs into Arrow, against psycopg's own decoding.

The server produces the events (a real slot, ``binary 'true'`` and text form). Only decoding is measured, in rows per
CPU-second of this process. The peer decodes the same rows in binary form, also from memory, with psycopg's compiled
loaders, into Python tuples.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
import psycopg
import psycopg.adapt
import psycopg.pq
import pyarrow as pa

from agent.rows.schema import TableSchema
from agent.sources.postgres.decode.decode import decode
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect
from capture.embedded import EmbeddedPostgres

_DISTINCT_ROWS_MAX = 200_000
_BATCH_ROWS = 50_000
_TABLE = """CREATE TABLE mixed (
    id int4 PRIMARY KEY, big int8, note text, label varchar(40), price numeric(12,2), at timestamptz, day date,
    flag bool, ratio float8, ref uuid)"""
_INSERT = """INSERT INTO mixed SELECT n, CASE WHEN n % 10 <> 0 THEN n::int8 * 7919 END,
    CASE WHEN n % 7 <> 0 THEN 'some text value ' || n END, CASE WHEN n % 11 <> 0 THEN 'label ' || n % 1000 END,
    CASE WHEN n % 5 <> 0 THEN (n % 1000000) / 100.0 END, timestamptz '2024-01-01' + n * interval '1 second',
    CASE WHEN n % 13 <> 0 THEN date '2020-01-01' + n % 3000 END, n % 2 = 0,
    CASE WHEN n % 17 <> 0 THEN n / 3.0::float8 END, CASE WHEN n % 19 <> 0 THEN md5(n::text)::uuid END
  FROM generate_series(1, %s) n"""


def run(rows: int = 1_000_000) -> dict[str, object]:
    """Rows beyond the first 200,000 are the same events decoded again."""
    distinct = min(rows, _DISTINCT_ROWS_MAX)
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as directory:
        Path(directory).chmod(0o755)
        with EmbeddedPostgres(Path(directory) / "postgres", unsafe_no_fsync=True) as postgres:
            schema = _prepare(postgres, distinct)
            batches = {is_binary: _read_events(postgres, is_binary=is_binary) for is_binary in (True, False)}
            peer = _peer_rate(postgres, distinct)
    ours, text = (_rate(schema, batches[is_binary], rows) for is_binary in (True, False))
    return {
        "what": f"{rows} rows of 10 mixed columns with NULLs, pgoutput to Arrow, from memory",
        "rows_per_cpu_second": round(ours),
        "rows_per_cpu_second_text_form": round(text),
        "bytes_per_row": round(sum(batch.column("event").nbytes for batch in batches[True]) / distinct),
        "peer": "psycopg (compiled): the same rows, binary form, from memory to Python tuples",
        "peer_rows_per_cpu_second": round(peer),
        "ratio": round(ours / peer, 1),
    }


def _prepare(postgres: EmbeddedPostgres, rows: int) -> TableSchema:
    with psycopg.connect(postgres.dsn(), autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(_TABLE)
        connection.execute("CREATE PUBLICATION bench FOR TABLE mixed")
        connection.execute("SELECT pg_create_logical_replication_slot('bench', 'pgoutput')")
        connection.execute(_INSERT.replace("%", "%%").replace("%%s", "%s"), [rows])
    with connect(postgres.uri()) as source:
        table_id = int(source.query("SELECT 'mixed'::regclass::oid")[0][0] or 0)
        return read_schemas(source, [table_id])[table_id]


def _read_events(postgres: EmbeddedPostgres, *, is_binary: bool) -> list[pa.RecordBatch]:
    """Return the row events as batches of the change log."""
    sql = (
        "SELECT data FROM pg_logical_slot_peek_binary_changes('bench', NULL, NULL, 'proto_version', '1', "
        "'publication_names', 'bench', 'binary', %s)"
    )
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        messages = connection.execute(sql, [str(is_binary).lower()], binary=True)
        events = pa.array([data for (data,) in messages if data[:1] in b"IUD"], pa.large_binary())
    ordinals = pa.array(np.arange(len(events)))
    whole = pa.record_batch([ordinals, ordinals, events], names=["commit_ts", "seq", "event"])
    return [whole.slice(start, _BATCH_ROWS) for start in range(0, len(events), _BATCH_ROWS)]


def _rate(schema: TableSchema, batches: list[pa.RecordBatch], rows: int) -> float:
    decode(schema, batches[0])
    done, started = 0, time.process_time()
    while done < rows:
        for batch in batches:
            done += len(decode(schema, batch))
    return done / (time.process_time() - started)


def _peer_rate(postgres: EmbeddedPostgres, rows: int) -> float:
    with psycopg.connect(postgres.dsn()) as connection:
        result = connection.pgconn.exec_params(b"SELECT * FROM mixed", None, result_format=psycopg.pq.Format.BINARY)
        loaders = psycopg.adapt.Transformer(connection)
        loaders.set_pgresult(result)
        started = time.process_time()
        for start in range(0, rows, _BATCH_ROWS):
            loaded = loaders.load_rows(start, min(start + _BATCH_ROWS, rows), tuple)
            assert len(loaded[0]) == result.nfields
        return rows / (time.process_time() - started)
