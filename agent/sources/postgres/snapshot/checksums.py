"""Checksums in PostgreSQL: sums of row hashes by key range, under an exported snapshot.

A row is hashed by ``hash_record_extended`` over its columns' binary forms, which is what COPY sends, so a column is
read as the stream and snapshots read it. Types without such a form go by their text. The server's functions are tried
once a session on known values: where they compute anything else than ours (another byte order, a version that is
unknown here), rows are compared.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from agent.ports.checksums import ChecksumSession, KeyRange, NoChecksums, RangeSum
from agent.rows.row_forms import Form, RowForm, RowHash
from agent.rows.row_hashes import row_hashes
from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.decode import types
from agent.sources.postgres.decode.types import Kind
from agent.sources.postgres.server.catalog import rows_of
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.sql import identifier, output_text
from agent.sources.postgres.snapshot.rewritten import refuse_rewritten
from agent.sources.postgres.snapshot.sessions import SnapshotSessions

_TIMEOUT_S: Final = 3600.0
#: columns of one ROW(…)
_COLUMNS_MAX: Final = 1_600
_SESSIONS: Final = 2
#: hash_record_extended
_RECORD_HASH_VERSION: Final = 14
_WRAP: Final = 1 << 64

#: form and expression of each kind; others go by their text
_FORMS: Final[dict[Kind, tuple[Form, str]]] = {
    Kind.BOOL: (Form.WORD, "{0}::int4"),
    Kind.INT2: (Form.WORD, "{0}::int4"),
    Kind.INT4: (Form.WORD, "{0}::int4"),
    # hashes of int8 have 32 bits
    Kind.INT8: (Form.LONG, "pg_catalog.int8send({0})"),
    Kind.FLOAT4: (Form.FLOAT, "pg_catalog.float4send({0})"),
    Kind.FLOAT8: (Form.FLOAT, "pg_catalog.float8send({0})"),
    Kind.DATE: (Form.DATE_WORD, "{0}::date"),
    Kind.TIMESTAMP: (Form.MOMENT_LONG, "pg_catalog.timestamp_send({0})"),
    Kind.TIMESTAMPTZ: (Form.MOMENT_LONG, "pg_catalog.timestamptz_send({0})"),
    Kind.BYTEA: (Form.BYTES, "{0}"),
}
#: texts by the functions that COPY calls: a cast of bpchar loses blanks
_SENDS: Final = {25: "textsend", 1043: "varcharsend", 1042: "bpcharsend", 19: "namesend", 114: "json_send"}
_PROBE: Final = (
    "SELECT pg_catalog.hashint8extended(h, h) FROM (SELECT pg_catalog.hash_record_extended("
    "ROW(-7::int4, pg_catalog.int8send(-5), NULL::bytea, date '1999-12-30', pg_catalog.textsend('Jenkins, lookup3')), "
    "0) h) AS probe"
)
_PROBED: Final = (
    (Form.WORD, pa.array([-7], pa.int32())),
    (Form.LONG, pa.array([-5], pa.int64())),
    (Form.BYTES, pa.array([None], pa.binary())),
    (Form.DATE_WORD, pa.array([10_955], pa.date32())),
    (Form.BYTES, pa.array(["Jenkins, lookup3"])),
)


@dataclass(frozen=True, slots=True)
class PostgresChecksums:
    """``agent.ports.checksums.SourceChecksums``. ``rows``: the publication's condition."""

    pool: SnapshotSessions
    schema: TableSchema
    form: RowForm
    rows: str
    sessions: int = _SESSIONS

    @contextmanager
    def open(self) -> Iterator[ChecksumSession]:
        with self.pool.use() as connection:
            yield _Session(connection, rows_of(connection, self.schema), _row(self.schema), self.rows)
            refuse_rewritten(connection, self.schema.table_id)


@dataclass(frozen=True, slots=True)
class _Session:
    connection: Connection
    table: str
    row: str
    rows: str

    def has_more_rows(self, count: int) -> bool:
        beginning = f"SELECT FROM {self.table} WHERE {self.rows} LIMIT {count + 1}"
        [(found,)] = self.connection.query(f"SELECT count(*) FROM ({beginning}) AS beginning", timeout_s=_TIMEOUT_S)
        return int(found or 0) > count

    def bounds(self, column: str) -> tuple[int, int] | None:
        name = identifier(column)
        sql = f"SELECT min({name}), max({name}) FROM {self.table} WHERE {self.rows}"
        [(low, high)] = self.connection.query(sql, timeout_s=_TIMEOUT_S)
        return None if low is None or high is None else (int(low), int(high))

    def sum(self, keys: KeyRange) -> RangeSum:
        condition = " AND ".join([*keys.conditions(identifier(keys.column)), f"({self.rows})"])
        hashes = f"SELECT {self.row} AS h FROM {self.table} WHERE {condition} OFFSET 0"
        sql = f"SELECT count(*), sum(pg_catalog.hashint8extended(h, h)) FROM ({hashes}) AS hashed"
        [(count, total)] = self.connection.query(sql, timeout_s=_TIMEOUT_S)
        return RangeSum(int(count or 0), int(total or 0) % _WRAP)


def checksums(
    connection: Connection, pool: SnapshotSessions, schema: TableSchema, rows: str
) -> PostgresChecksums | NoChecksums:
    """Return the checksums of a table's selected columns, or why there are none."""
    [[encoding]] = connection.query("SHOW server_encoding")
    if encoding != "UTF8":
        return NoChecksums(f"its database is encoded in {encoding}")
    if not 0 < len(schema.columns) <= _COLUMNS_MAX:
        return NoChecksums(f"it has {len(schema.columns)} columns")
    for column in schema.columns:
        if types.kind_of(column) is Kind.TIME:
            return NoChecksums(f"column {column.name} is a {column.type_name or 'time'}")
    if not _knows_hashes(connection):
        return NoChecksums("its server computes hashes that are not known here")
    form = RowForm(RowHash.RECORD, tuple((column.name, _form(column)[0]) for column in schema.columns))
    return PostgresChecksums(pool, schema, form, rows)


def _form(column: Column) -> tuple[Form, str]:
    name = identifier(column.name)
    kind = types.kind_of(column)
    if kind in _FORMS:
        form, expression = _FORMS[kind]
        return form, expression.format(name)
    if send := _SENDS.get(column.type_id):
        return Form.BYTES, f"pg_catalog.{send}({name})"
    text = f"{name}::text" if types.is_known(column) else output_text(name)
    return Form.BYTES, f"pg_catalog.textsend({text})"


def _row(schema: TableSchema) -> str:
    values = ", ".join(_form(column)[1] for column in schema.columns)
    return f"pg_catalog.hash_record_extended(ROW({values}), 0)"


def _knows_hashes(connection: Connection) -> bool:
    if connection.server_version < _RECORD_HASH_VERSION:
        return False
    [[found]] = connection.query(_PROBE)
    names = [str(place) for place in range(len(_PROBED))]
    batch = pa.RecordBatch.from_arrays([values for _, values in _PROBED], names=names)
    form = RowForm(RowHash.RECORD, tuple((name, form) for name, (form, _) in zip(names, _PROBED, strict=True)))
    [ours] = row_hashes(form, batch).view(np.int64)
    return int(found or 0) == int(ours)
