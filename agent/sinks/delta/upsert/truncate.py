"""Truncation: removes the rows in one span's key range from a Delta table, and keeps the rest.

Each span truncates for itself, at its own pace, as with every other change: so no span waits for another, and none
sees rows of the others that are newer or older. The price is that the table is read through, and what the other spans
hold is rewritten, once for each span; a TRUNCATE is rare, and soon there is less to write. Where deleted rows are kept,
the span's own are rewritten too, marked as deleted.
"""

from collections.abc import Iterator, Sequence
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from agent.ports.sink import FlushTask
from agent.rows.spans import in_span
from agent.sinks.common import left_out
from agent.sinks.common.row_marks import Marks, is_live
from agent.sinks.delta.table import files
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table import schema as delta_schema
from agent.sinks.delta.table.files import TRUNCATION, DataFile
from agent.sinks.delta.table.place import TablePlace


def in_front(
    table: DeltaTable, place: TablePlace, task: FlushTask, source: pa.Schema, marks: Marks, upserts: pa.Table
) -> list[DataFile]:
    """Return the changes that go before the span's new rows (``upserts``): they remove all that the table holds, but
    for the rows of other spans, and for those that are kept as deleted ones, in a file of their own. ``source``: the
    types that keys are hashed in."""
    if task.span.is_whole_table and not marks.soft_delete:
        return [TRUNCATION]
    plain = delta_table.plain_schema(table.schema())
    rest = _rest(table, plain, source, task, marks, upserts)

    def name() -> str:
        return f"rest-{task.from_ts:x}-{task.to_ts:x}-{uuid4().hex[:8]}.parquet"

    return [TRUNCATION, *files.write_files(place, name, rest, layout=delta_table.layout(table))]


def _rest(
    table: DeltaTable, plain: pa.Schema, source: pa.Schema, task: FlushTask, marks: Marks, upserts: pa.Table
) -> Iterator[pa.Table]:
    span, key = task.span, task.table.key
    keys = pa.schema([pa.field(name, source.field(name).type) for name in key])
    for batch in pa.RecordBatchReader.from_stream(table.scan(columns=plain.names)):
        rows = pa.RecordBatch.from_arrays([batch.column(item.name).cast(item.type) for item in plain], schema=plain)
        hashed = delta_schema.source_keys(rows, keys)
        mine = pa.array(in_span(hashed, span, key=key))
        yield pa.Table.from_batches([rows.filter(pc.invert(mine))])
        if marks.soft_delete:
            yield from _deleted(pa.Table.from_batches([rows.filter(mine)]), marks, upserts, key)


def _deleted(rows: pa.Table, marks: Marks, upserts: pa.Table, key: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows that no new row replaces, marked as deleted."""
    if upserts.num_rows:
        names = list(key)
        rows = rows.filter(pa.array(left_out.match(upserts.select(names), rows.select(names)) < 0))
    live = is_live(rows)
    yield rows.filter(pc.invert(live))
    yield marks.deleted(rows.filter(live))
