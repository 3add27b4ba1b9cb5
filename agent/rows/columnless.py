"""Columnless rows: batches of a table without columns, which PostgreSQL allows; they have nothing but their number."""

import pyarrow as pa


def columnless(count: int) -> pa.RecordBatch:
    """Return ``count`` rows without columns. A batch that is made of no arrays has no rows."""
    return pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])).take(pa.repeat(0, count)))
