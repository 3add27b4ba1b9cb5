"""Rewrite: writes the rows of a Delta table again with other columns (``agent.sinks.common.conversion``)."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable

from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks.common import conversion
from agent.sinks.delta.table import files, partitions
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table import schema as delta_schema
from agent.sinks.delta.table.files import DataFile
from agent.sinks.delta.table.place import TablePlace

#: bytes of rows per file of a rewritten table
_FILE_BYTES = 128 << 20


def is_in_place(stored: pa.Schema, moves: Sequence[ColumnMove]) -> bool:
    """Return whether stored data stays unchanged."""
    kept = {move.name: move for move in moves if move.origin is not None}
    is_same = all(move.origin == name and _has_type(stored, name, move.type) for name, move in kept.items())
    is_same = is_same and not any(move.convert for move in kept.values())
    is_free = not any(move.name in stored.names or conversion.is_filled(move) for move in moves if move.origin is None)
    return is_same and is_free and set(stored.names) == set(kept)


def _has_type(stored: pa.Schema, name: str, arrow: pa.DataType) -> bool:
    return bool(delta_schema.plain_type(stored.field(name).type) == delta_schema.plain_type(arrow))


def divided_by(table: DeltaTable, moves: Sequence[ColumnMove]) -> tuple[str, ...]:
    """Return the columns that divide the table afterwards: those that did. One that is gone, or has a type by which
    Delta does not divide, is left out."""
    fit = {move.origin: move.name for move in moves if partitions.is_fit(delta_schema.plain_type(move.type))}
    return tuple(fit[name] for name in delta_table.partitions(table) if name in fit)


def rewritten(
    place: TablePlace, rows: Iterable[pa.Table], change: SchemaChange, divided_by: Sequence[str]
) -> Iterator[DataFile]:
    """Yield the table's rows under its new schema, in files of a moderate size."""
    names = (f"schema-{int(change.ts):x}-{number}-{uuid4().hex[:8]}.parquet" for number in count())
    return files.write_files(place, names.__next__, rows, bytes_max=_FILE_BYTES, partitions=divided_by)


def converted_rows(table: DeltaTable, moves: Sequence[ColumnMove], change: SchemaChange) -> Iterator[pa.Table]:
    """Yield all rows of the table, converted."""
    columns = conversion.origins_of(pa.schema(table.schema().to_arrow()), moves)
    reader = pa.RecordBatchReader.from_stream(table.scan(columns=columns))
    return (conversion.converted_rows(batch, moves, change, forms=delta_schema.FORMS) for batch in reader)
