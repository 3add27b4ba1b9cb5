"""Forms: a sink's representation of source columns, for code that all sinks share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from agent.errors import RESYNC, TableHeldError
from agent.rows.columnless import columnless

#: ``pa.Array`` or ``pa.ChunkedArray``
Column = Any


@dataclass(frozen=True, slots=True)
class Forms:
    """``type``: the stored type of a source type; ``column``: a source column as it is stored."""

    type: Callable[[pa.DataType], pa.DataType]
    column: Callable[[Column], Column]

    def schema(self, arrow: pa.Schema) -> pa.Schema:
        """Return the stored columns of a source table; every column is nullable."""
        return pa.schema([pa.field(item.name, self.type(item.type)) for item in arrow])

    def table(self, data: pa.Table | pa.RecordBatch) -> pa.Table:
        """Convert every column of ``data`` to its stored type."""
        columns = [self.column(column) for column in data.columns]
        if not columns:
            return pa.Table.from_batches([columnless(data.num_rows)])
        return pa.table(
            columns, schema=pa.schema([pa.field(n, c.type) for n, c in zip(data.schema.names, columns, strict=True)])
        )


def plain_type(arrow: pa.DataType) -> pa.DataType:
    """Return one type for types that differ only in layout."""
    if pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        return pa.string()
    if pa.types.is_large_binary(arrow) or pa.types.is_binary_view(arrow):
        return pa.binary()
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return pa.list_(plain_type(arrow.value_type))
    return arrow


def missing_fields(stored: pa.Schema, wanted: pa.Schema, *, table: str) -> list[pa.Field]:
    """Return the columns of ``wanted`` that the table lacks.

    :raises TableHeldError: a column is stored with another type.
    """
    missing = []
    for item in wanted:
        at = stored.get_field_index(item.name)
        if at < 0:
            missing.append(item)
        elif plain_type(stored.field(at).type) != plain_type(item.type):
            raise TableHeldError(
                f"column {item.name} of {table} is {stored.field(at).type} in the sink and {item.type} in the source; "
                f"{RESYNC}"
            )
    return missing
