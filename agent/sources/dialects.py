"""What a table's dialect decides outside its source: how its events are decoded, and which Arrow types it has.

The dialects' modules are imported when a table of theirs comes: their kernels take a while to load.
"""

from typing import Any

import pyarrow as pa

from agent.ports import Changes
from agent.schema import Dialect, TableSchema
from agent.sources.dumping import Chunks


def decode(schema: TableSchema, batch: pa.RecordBatch) -> Changes:
    """A batch of the change log as row changes, in their order.

    :raises DecodeError: an event that is not what the schema says, named by table, column and position in the log.
    """
    match schema.dialect:
        case Dialect.POSTGRESQL:
            from agent.sources.postgres import decode as postgres

            return postgres.decode(schema, batch)
        case Dialect.MYSQL:
            raise NotImplementedError


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """The Arrow types of the table's columns."""
    match schema.dialect:
        case Dialect.POSTGRESQL:
            from agent.sources.postgres import types as postgres

            return postgres.arrow_schema(schema)
        case Dialect.MYSQL:
            raise NotImplementedError


def read_chunks(dialect: Dialect, fields: dict[str, Any]) -> Chunks:
    """A chunk plan as ``Chunks.to_fields`` wrote it."""
    match dialect:
        case Dialect.POSTGRESQL:
            from agent.sources.postgres.chunks import ChunkPlan

            return ChunkPlan.from_fields(fields)
        case Dialect.MYSQL:
            raise NotImplementedError
