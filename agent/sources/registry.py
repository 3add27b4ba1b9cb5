"""Dialect registry: how a table's events are decoded, and which Arrow types it has, by the table's dialect.

The dialects' modules are imported when a table of theirs comes: their kernels take a while to load.
"""

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from agent.ports.snapshot import Chunks
from agent.rows.changes import Changes
from agent.rows.schema import Dialect, TableSchema
from agent.rows.schema_change import Conversion


def decode(schema: TableSchema, batch: pa.RecordBatch, key: Collection[str] = ()) -> Changes:
    """A batch of the change log as row changes, in their order. ``key``: columns that tell rows apart.

    :raises DecodeError: an event that is not what the schema says, named by table, column and position in the log; or
        a key value that its column's Arrow type cannot tell from another one.
    """
    match schema.dialect:
        case Dialect.POSTGRESQL:
            from agent.sources.postgres.decode import decode as postgres

            return postgres.decode(schema, batch, key)
        case Dialect.MYSQL:
            from agent.sources.mysql.decode import decode as mysql

            return mysql.decode(schema, batch)


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """The Arrow types of the table's columns."""
    match schema.dialect:
        case Dialect.POSTGRESQL:
            from agent.sources.postgres.decode import types as postgres

            return postgres.arrow_schema(schema)
        case Dialect.MYSQL:
            from agent.sources.mysql.decode import types as mysql

            return mysql.arrow_schema(schema)


def fill_value(schema: TableSchema, name: str, text: str) -> pa.Scalar:
    """What existing rows hold in the new column ``name``, given in text by the source.

    :raises DecodeError: it is no value of the column.
    """
    match schema.dialect:
        case Dialect.POSTGRESQL:
            from agent.sources.postgres.decode import fills as postgres

            return postgres.fill_value(schema, name, text)
        case Dialect.MYSQL:
            from agent.sources.mysql.values import fills as mysql

            return mysql.fill_value(schema, name, text)


def conversions(
    before: TableSchema, after: TableSchema, origins: Mapping[str, str], context: Mapping[str, str]
) -> dict[str, Conversion]:
    """What the source has made of the values of columns that stay: by new name. ``origins``: new name → old name.

    ``context``: that of the ``TableChange``. A column that is not in the answer is cast by whoever holds its values.
    """
    match after.dialect:
        case Dialect.POSTGRESQL:
            from agent.sources.postgres.retyping import retyping as postgres

            return postgres.conversions(before, after, origins, context)
        case Dialect.MYSQL:
            from agent.sources.mysql.retyping import retyping as mysql

            return mysql.conversions(before, after, origins, context)


def read_chunks(dialect: Dialect, fields: dict[str, Any]) -> Chunks:
    """A chunk plan as ``Chunks.to_fields`` wrote it."""
    match dialect:
        case Dialect.POSTGRESQL:
            from agent.sources.postgres.snapshot.chunks import ChunkPlan

            return ChunkPlan.from_fields(fields)
        case Dialect.MYSQL:
            from agent.sources.mysql.snapshot.chunks import ChunkPlan as MysqlChunkPlan

            return MysqlChunkPlan.from_fields(fields)
