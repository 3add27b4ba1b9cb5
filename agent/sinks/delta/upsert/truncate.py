"""Truncation: removes the rows in one span's key range from a Delta table, and keeps the rest.

Each span truncates for itself, at its own pace, as with every other change: so no span waits for another, and none
sees rows of the others that are newer or older. The price is that the table is read through, and what the other spans
hold is rewritten, once for each span; a TRUNCATE is rare, and soon there is less to write.
"""

from collections.abc import Iterator, Sequence
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from agent.ports.sink import FlushTask
from agent.rows.spans import in_span
from agent.sinks.delta.table import files
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table import schema as delta_schema
from agent.sinks.delta.table.files import TRUNCATION, DataFile
from agent.sinks.delta.table.place import TablePlace
from reactor.ids import TableSpan


def in_front(table: DeltaTable, place: TablePlace, task: FlushTask, source: pa.Schema) -> list[DataFile]:
    """What comes before the span's new rows: what the table holds goes, but for the rows of other spans, where it has
    any: they are in a file of their own. ``source``: the types that keys are hashed in."""
    if task.span.is_whole_table:
        return [TRUNCATION]
    plain = delta_table.plain_schema(table.schema())
    name = f"rest-{task.from_ts:x}-{task.to_ts:x}-{uuid4().hex[:8]}.parquet"
    file = files.write_file(place, name, _rest(table, plain, source, task.span, task.table.key), plain)
    return [TRUNCATION] if file is None else [TRUNCATION, file]


def _rest(
    table: DeltaTable, plain: pa.Schema, source: pa.Schema, span: TableSpan, key: Sequence[str]
) -> Iterator[pa.Table]:
    keys = pa.schema([pa.field(name, source.field(name).type) for name in key])
    for batch in pa.RecordBatchReader.from_stream(table.scan(columns=plain.names)):
        rows = pa.RecordBatch.from_arrays([batch.column(item.name).cast(item.type) for item in plain], schema=plain)
        hashed = delta_schema.source_keys(rows, keys)
        mine = pa.array(in_span(hashed, span, key=key))
        yield pa.Table.from_batches([rows.filter(pc.invert(mine))])
