"""Rewrite: writes the rows of a Delta table again with other columns (``agent.sinks.common.conversion``), unless a
mapping of its columns makes that needless (``is_by_names``)."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from uuid import uuid4

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from agent.kernels.key_digest import new_secret
from agent.rows.schema_change import ColumnMove, Mask, SchemaChange
from agent.sinks.common import changelog, conversion
from agent.sinks.delta.table import change_feed, files, partitions
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table import schema as delta_schema
from agent.sinks.delta.table.files import DataFile
from agent.sinks.delta.table.layout import Layout
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


def is_by_names(table: DeltaTable, stored: pa.Schema, moves: Sequence[ColumnMove]) -> bool:
    """Return whether the names of the columns in files, and new columns that are NULL in existing rows, are all of the
    change. A changelog's rows may name renamed columns themselves."""
    if not all(_is_by_name(stored, move) for move in moves) or len(divided_by(table, moves)) != len(
        delta_table.partitions(table)
    ):
        return False
    renamed = conversion.renames(moves)
    if not renamed or changelog.UNCHANGED not in stored.names:
        return True
    reader = pa.RecordBatchReader.from_stream(table.scan(columns=[changelog.UNCHANGED]))
    return not any(conversion.are_named(batch.column(0), renamed) for batch in reader)


def _is_by_name(stored: pa.Schema, move: ColumnMove) -> bool:
    if move.origin is None:
        return not conversion.is_filled(move)
    return move.convert is None and _has_type(stored, move.origin, move.type)


def layout_after(layout: Layout, stored: pa.Schema, moves: Sequence[ColumnMove], divided_by: Sequence[str]) -> Layout:
    """Return how the table's files lie afterwards. A column of another type has another name in them."""
    return layout.after([(move.name, move.origin if _is_by_name(stored, move) else None) for move in moves], divided_by)


def divided_by(table: DeltaTable, moves: Sequence[ColumnMove]) -> tuple[str, ...]:
    """Return the columns that divide the table afterwards: those that did. One that is gone, or has a type by which
    Delta does not divide, is left out."""
    fit = {move.origin: move.name for move in moves if partitions.is_fit(delta_schema.plain_type(move.type))}
    return tuple(fit[name] for name in delta_table.partitions(table) if name in fit)


def rewritten(place: TablePlace, rows: Iterable[pa.Table], change: SchemaChange, layout: Layout) -> Iterator[DataFile]:
    """Yield the table's rows under its new schema, in files of a moderate size."""
    names = (f"schema-{int(change.ts):x}-{number}-{uuid4().hex[:8]}.parquet" for number in count())
    return files.write_files(place, names.__next__, rows, bytes_max=_FILE_BYTES, layout=layout)


def converted_rows(table: DeltaTable, moves: Sequence[ColumnMove], change: SchemaChange) -> Iterator[pa.Table]:
    """Yield all rows of the table, converted."""
    columns = conversion.origins_of(delta_table.arrow_schema(table), moves)
    reader = pa.RecordBatchReader.from_stream(table.scan(columns=columns))
    return (conversion.converted_rows(batch, moves, change, forms=delta_schema.FORMS) for batch in reader)


def changed_rows(table: DeltaTable, moves: Sequence[ColumnMove], change: SchemaChange) -> Iterator[pa.Table]:
    """Yield the rows that have other values under a name, as a change feed has them: those that a renamed, dropped or
    new column is not NULL in, or whose values the source has converted. Another type of a column changes no row."""
    assert change.after is not None
    stored, secret, key = delta_table.arrow_schema(table), new_secret(), list(change.after.key)
    origins, columns = conversion.origins_of(stored, moves), conversion.columns_of(moves)
    retyped = {move.name for move in moves if move.origin == move.name and not _has_type(stored, move.name, move.type)}

    def pairs() -> Iterator[tuple[pa.Table, pa.Table]]:
        for batch in pa.RecordBatchReader.from_stream(table.scan(columns=stored.names)):
            after = conversion.converted_rows(batch.select(origins), moves, change, forms=delta_schema.FORMS)
            before = change_feed.as_they_were(batch, columns)
            for at, item in enumerate(batch.schema):
                if item.name in retyped:
                    before = before.set_column(at, columns.field(item.name), after.column(item.name))
            is_changed = pa.array(~change_feed.is_same(before, after, secret))
            yield before.filter(is_changed), after.filter(is_changed)

    def stays(before: pa.Table, after: pa.Table) -> Mask:
        if not {*key} <= {*before.schema.names}:
            return np.ones(before.num_rows, np.bool_)
        return change_feed.is_same(before.select(key), after.select(key), secret)

    yield from (change_feed.old_rows(before, stays(before, after)) for before, after in pairs())
    yield from (change_feed.new_rows(after, stays(before, after)) for before, after in pairs())
