"""Iceberg columns: turn a source's columns into those of an Iceberg table, which have numbers (field ids).

Iceberg has no integers of 8 or 16 bits, and none without a sign: they become the next larger type, and an unsigned one
of 64 bits ``decimal(20, 0)``. Half floats become ``float``. All other types of ``agent.rows.changes.Changes`` have
their own. Data files name columns by their ids, so a rename, a drop, a new order and a wider type change metadata only.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from agent.errors import TableHeldError
from agent.sinks.common import changelog
from agent.sinks.common.forms import Column, Forms, plain_type
from agent.sinks.common.row_marks import NO_MARKS, Marks

_SMALL_INTEGERS = (pa.int8(), pa.int16(), pa.uint8(), pa.uint16())
_OF_ARROW: dict[pa.DataType, IcebergType] = {
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.date32(): DateType(),
    pa.time64("us"): TimeType(),
    pa.timestamp("us"): TimestampType(),
    pa.timestamp("us", "UTC"): TimestamptzType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
}
_UINT64 = pa.decimal128(20, 0)


def stored_type(arrow: pa.DataType) -> pa.DataType:
    """Return the stored Arrow type of a source column of type ``arrow``."""
    if arrow in _SMALL_INTEGERS:
        return pa.int32()
    if arrow == pa.uint32():
        return pa.int64()
    if arrow == pa.uint64():
        return _UINT64
    if arrow == pa.float16():
        return pa.float32()
    if pa.types.is_time(arrow):
        return pa.time64("us")
    if pa.types.is_timestamp(arrow):
        return pa.timestamp("us", "UTC" if arrow.tz else None)
    if pa.types.is_fixed_size_binary(arrow):
        return pa.binary()
    return plain_type(arrow)


def stored_column(column: Column) -> Column:
    """Convert a source column to its stored type."""
    wanted = stored_type(column.type)
    if wanted == column.type:
        return column
    return pc.cast(column, wanted)


FORMS = Forms(stored_type, stored_column)


def stored_schema(arrow: pa.Schema, *, is_changelog: bool, marks: Marks = NO_MARKS) -> pa.Schema:
    """Return the stored columns of a source table.

    :raises TableHeldError: a source column has the name of one that the sink adds.
    """
    stored = FORMS.schema(arrow)
    return changelog.changelog_schema(stored) if is_changelog else marks.schema(stored)


def source_keys(stored: pa.RecordBatch, keys: pa.Schema) -> pa.RecordBatch:
    """Convert key columns of stored rows to the source's types (``keys``), for hashing."""
    columns = [stored.column(item.name).cast(item.type) for item in keys]
    return pa.RecordBatch.from_arrays(columns, schema=keys)


def refuse_alike(names: Sequence[str], *, table: str) -> None:
    """:raises TableHeldError: two names differ only in case, which many of Iceberg's readers ignore."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise TableHeldError(
                f"columns {other} and {name} of {table} are one to readers for which case does not count; "
                "rename one, or leave it out by a column selector"
            )


class Ids:
    """Numbers for new columns."""

    def __init__(self, last: int) -> None:
        self._last = last

    def next(self) -> int:
        self._last += 1
        return self._last

    def field(self, name: str, arrow: pa.DataType) -> NestedField:
        """:raises TableHeldError: Iceberg has no such type."""
        return NestedField(self.next(), name, self._type(name, arrow), required=False)

    def _type(self, name: str, arrow: pa.DataType) -> IcebergType:
        arrow = plain_type(arrow)
        if pa.types.is_decimal(arrow):
            return DecimalType(arrow.precision, arrow.scale)
        if pa.types.is_list(arrow):
            return ListType(self.next(), self._type(name, arrow.value_type), element_required=False)
        found = _OF_ARROW.get(arrow)
        if found is None:
            raise TableHeldError(f"column {name} is {arrow}, which Iceberg has no type for; leave it out by a selector")
        return found


def new_schema(columns: pa.Schema, *, known: Schema | None = None, last_id: int = 0, schema_id: int = 0) -> Schema:
    """Return an Iceberg schema with these columns. One that ``known`` has under this name and type keeps its id; others
    get ids above ``last_id``."""
    ids, have = Ids(last_id), {} if known is None else {field.name: field for field in known.fields}
    fields = []
    for item in columns:
        field = have.get(item.name)
        is_same = field is not None and arrow_type(field) == plain_type(item.type)
        fields.append(field if field is not None and is_same else ids.field(item.name, item.type))
    return Schema(*fields, schema_id=schema_id)


def arrow_type(field: NestedField) -> pa.DataType:
    return arrow_schema(Schema(field)).field(0).type


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the columns in the types that ``FORMS`` makes."""
    arrow = schema_to_pyarrow(schema, include_field_ids=False)
    return pa.schema([pa.field(item.name, plain_type(item.type)) for item in arrow])


def file_schema(schema: Schema) -> pa.Schema:
    """Return the columns of a data file, with their ids."""
    return schema_to_pyarrow(schema)


def fingerprint(schema: Schema) -> str:
    """Return a short text that differs if the columns, their ids or types do."""
    text = "\n".join(f"{field.field_id} {field.name!r} {field.field_type}" for field in schema.fields)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def with_columns(schema: Schema, wanted: Iterable[pa.Field], *, last_id: int) -> Schema:
    """Return ``schema`` with further columns at its end."""
    ids = Ids(last_id)
    return Schema(*schema.fields, *(ids.field(item.name, item.type) for item in wanted), schema_id=schema.schema_id)


def is_widened(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether Iceberg reads files with ``old`` as ``new``, so that metadata alone changes."""
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(old.scale == new.scale and old.precision <= new.precision)
    return old == new or (old, new) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))
