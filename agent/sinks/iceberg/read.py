"""Iceberg reader: reads an Iceberg table of ours back in the source's columns, for comparisons.

An upserted table is read directly, file by file. A changelog is folded to its current rows (``common.folded``), so it
is in memory as a whole.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType

from agent.ports.checksums import ALL_KEYS, KeyRange
from agent.rows.schema import TableSchema
from agent.sinks.common import changelog, folded, row_marks
from agent.sinks.common.keys.former_keys import FormerKeys
from agent.sinks.iceberg.table import rows
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.deletes import positions
from agent.sinks.iceberg.table.deletes.positions import NONE
from agent.sinks.iceberg.table.metadata import manifests
from agent.sinks.iceberg.table.schema import FORMS
from agent.sinks.iceberg.table.state import State, TableOwner


def read_rows(
    place: TablePlace, schema: TableSchema, arrow: pa.Schema, *, key: Sequence[str], keys: KeyRange = ALL_KEYS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table with the columns of ``arrow`` (a column that the table lacks is NULL).

    :raises TableHeldError: there is no table, or one of its files is missing or damaged.
    """
    table = place.opened()
    wanted = FORMS.schema(arrow)
    owner = TableOwner.of(table)
    if owner is None or not owner.is_changelog:
        columns = iceberg_schema.arrow_schema(table.schema())
        marks = [columns.field(name) for name in row_marks.FILTERED if name in columns.names]
        for piece in scanned(table, pa.schema([*wanted, *marks]), keys):
            yield from row_marks.source_state(piece).to_batches()
        return
    former, stored = FormerKeys.from_text(State.of(table).former_keys), iceberg_schema.arrow_schema(table.schema())
    gone = [stored.field(name) for name in former.columns if name not in wanted.names and name in stored.names]
    ours = pa.schema([*wanted, *gone, *changelog.CHANGELOG_FIELDS])
    found = pa.concat_tables([ours.empty_table(), *scanned(table, ours)])
    current = folded.current_rows(found, schema, wanted, key=key, former=former)
    yield from _inside(current, keys).to_batches()


def scanned(table: Table, wanted: pa.Schema, keys: KeyRange = ALL_KEYS) -> Iterator[pa.Table]:
    """Yield the rows of the current snapshot."""
    known = iceberg_schema.arrow_schema(table.schema())
    schema = rows.chosen(table.schema(), [name for name in wanted.names if name in known.names])
    live = manifests.live(table)
    gone = positions.deleted(table, live.deletes)
    for item in live.data:
        if _may_hold(item.file, schema, keys):
            for piece in rows.live_rows(table.io, item.path, schema, gone.get(item.path, NONE)):
                yield _inside(_shaped(piece, wanted), keys)


def _may_hold(file: DataFile, schema: Schema, keys: KeyRange) -> bool:
    field = next((item for item in schema.fields if item.name == keys.column), None)
    if field is None or not isinstance(field.field_type, (IntegerType, LongType)):
        return True
    low, high = ((bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds))
    if low is None or high is None:
        return True
    least, most = (int.from_bytes(bound, "little", signed=True) for bound in (low, high))
    return (keys.low is None or most >= keys.low) and (keys.high is None or least < keys.high)


def _inside(found: pa.Table, keys: KeyRange) -> pa.Table:
    if not keys.column:
        return found
    column = found.column(keys.column)
    inside = column.is_valid()
    if keys.low is not None:
        inside = pc.and_(inside, pc.greater_equal(column, pa.scalar(keys.low, column.type)))
    if keys.high is not None:
        inside = pc.and_(inside, pc.less(column, pa.scalar(keys.high, column.type)))
    return found.filter(inside)


def _shaped(found: pa.Table, wanted: pa.Schema) -> pa.Table:
    columns = [
        found.column(item.name).cast(item.type) if item.name in found.schema.names else pa.nulls(len(found), item.type)
        for item in wanted
    ]
    return pa.table(columns, schema=wanted)
