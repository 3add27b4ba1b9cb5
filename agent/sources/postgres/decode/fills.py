"""Fill values: turn a text from the catalog into the Arrow value that the stream's decoder would make of it."""

import struct

import pyarrow as pa

from agent.rows.schema import LOG_BATCH, TableSchema
from agent.sources.postgres.decode.decode import decode


def fill_value(schema: TableSchema, name: str, text: str) -> pa.Scalar:
    """Return the value of ``text`` in the column ``name``.

    :raises DecodeError: it is not a value of the column.
    """
    value = text.encode()
    values = [
        b"t" + struct.pack("!i", len(value)) + value if column.name == name else b"n" for column in schema.columns
    ]
    event = b"I" + struct.pack("!IcH", schema.table_id, b"N", len(values)) + b"".join(values)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([0]), pa.array([0]), pa.array([event], pa.large_binary())], schema=LOG_BATCH
    )
    return decode(schema, batch).after.column(name)[0]
