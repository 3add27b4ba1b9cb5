"""Delta reader: reads a Delta table of ours back in the source's columns, for comparisons.

An upserted table is read directly, in batches. A changelog is folded to its current rows, with the same fold as for an
upsert, so it is in memory as a whole.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from agent.ports.checksums import ALL_KEYS, KeyRange
from agent.rows.schema import TableSchema
from agent.sinks.common import folded
from agent.sinks.common.row_marks import DELETED, FILTERED, is_of_source
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table import schema as delta_schema
from agent.sinks.delta.table.errors import storage_errors
from agent.sinks.delta.table.place import TableOwner, TablePlace, former_keys
from reactor.records.changefeed import SinkMode


def read_rows(
    place: TablePlace, schema: TableSchema, arrow: pa.Schema, *, key: Sequence[str], keys: KeyRange = ALL_KEYS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table with the columns of ``arrow`` (a column that the table lacks is NULL).

    :raises TableHeldError: there is no table, its log cannot be folded, or one of its files is missing or damaged.
    """
    table = place.opened()
    wanted = delta_schema.delta_schema(arrow)
    owner = TableOwner.of(table)
    with storage_errors(place, "read"):
        if owner is not None and owner.mode == SinkMode.CHANGELOG:
            yield from _inside(_folded(table, schema, wanted, key), keys).to_batches()
        else:
            yield from _scanned(table, wanted, keys)


def _scanned(table: DeltaTable, wanted: pa.Schema, keys: KeyRange = ALL_KEYS) -> Iterator[pa.RecordBatch]:
    stored = set(delta_table.arrow_schema(table).names)
    predicate = " AND ".join(keys.conditions('"' + keys.column.replace('"', '""') + '"')) or None
    names = [name for name in wanted.names if name in stored]
    owner = TableOwner.of(table)
    is_upserted = owner is None or owner.mode is SinkMode.UPSERT
    marks = [name for name in FILTERED if name in stored and is_upserted == (name == DELETED)]
    scan = table.scan(columns=[*names, *marks], predicate=predicate)
    for batch in pa.RecordBatchReader.from_stream(scan):
        columns = [
            batch.column(item.name).cast(item.type) if item.name in stored else pa.nulls(batch.num_rows, item.type)
            for item in wanted
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=wanted)
        yield rows.filter(is_of_source(batch)) if marks else rows


def _inside(rows: pa.Table, keys: KeyRange) -> pa.Table:
    if keys.low is not None:
        rows = rows.filter(pc.greater_equal(rows.column(keys.column), keys.low))
    return rows if keys.high is None else rows.filter(pc.less(rows.column(keys.column), keys.high))


def _folded(table: DeltaTable, schema: TableSchema, wanted: pa.Schema, key: Sequence[str]) -> pa.Table:
    former, stored = former_keys(table), delta_table.arrow_schema(table)
    gone = [stored.field(name) for name in former.columns if name not in wanted.names and name in stored.names]
    ours = pa.schema([*wanted, *gone, *delta_schema.CHANGELOG_FIELDS])
    rows = pa.Table.from_batches(list(_scanned(table, ours)), ours)
    return folded.current_rows(rows, schema, wanted, key=key, former=former)
