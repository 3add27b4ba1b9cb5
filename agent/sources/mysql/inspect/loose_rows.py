"""Loose rows: converts row events that a sink has to refuse into a form that ``decode`` accepts, for inspection. Pure.

- An enum or set with unknown members is shown as its number.
- Text in an unknown character set is shown as bytes.
- An insert without all columns is shown with the logged ones.
- A partial update of a JSON document that is not in the log is shown as a list of changes.
"""

from dataclasses import replace

from agent.rows.schema import Column, TableSchema
from agent.sources.mysql.decode import charsets, types, wire
from agent.sources.mysql.decode.json import partial
from agent.sources.mysql.decode.rewrite import inflated
from agent.sources.mysql.decode.row_parts import bit, bitmaps_at, count_at
from agent.sources.mysql.decode.types import CHARACTER_TYPES, FieldType

_INTEGERS = {1: FieldType.TINY, 2: FieldType.SHORT, 3: FieldType.INT24, 4: FieldType.LONG, 8: FieldType.LONGLONG}
_INSERTS = frozenset({wire.WRITE_V1, wire.WRITE_V2})
_COMPRESSED = frozenset(range(wire.WRITE_COMPRESSED_V1, wire.DELETE_COMPRESSED + 1))


def readable(schema: TableSchema, event: bytes) -> tuple[TableSchema, bytes]:
    """Return the table's schema and the event in a form that ``decode`` accepts; ``event`` begins with its type.

    :raises ValueError: it is damaged. (Also LookupError, zlib.error.)
    """
    if event[0] in _COMPRESSED:
        event = inflated(event)
    if event[0] == wire.PARTIAL_UPDATE:
        event = partial.whole_update(schema, event, lists_changes=True)
    schema = replace(schema, columns=tuple(map(_column, schema.columns)))
    return _without_gaps(schema, event) if event[0] in _INSERTS else (schema, event)


def _column(column: Column) -> Column:
    if column.type_id in (FieldType.ENUM, FieldType.SET) and not column.members:
        return replace(column, type_id=_INTEGERS[types.wire_width(column)], is_unsigned=True, modifier=0)
    if (
        column.type_id in CHARACTER_TYPES
        and not types.is_binary(column)
        and not charsets.is_readable(charsets.charset_of(column.collation))
    ):
        return replace(column, type_id=_as_bytes(column), collation=charsets.BINARY_COLLATION)
    return column


def _as_bytes(column: Column) -> int:
    """Return the binary type with the same layout; one of fixed length is not padded with zeros."""
    return FieldType.VARCHAR if column.type_id == FieldType.STRING else column.type_id


def _without_gaps(schema: TableSchema, event: bytes) -> tuple[TableSchema, bytes]:
    count, at = bitmaps_at(event, event[0])
    bitmap = event[at : at + (count + 7) // 8]
    there = tuple(column for number, column in enumerate(schema.columns) if bit(bitmap, number))
    if count != len(schema.columns) or len(there) == count or not there:
        return schema, event
    head, rows = event[: count_at(event, event[0])], event[at + len(bitmap) :]
    count_bytes = bytes([len(there)]) if len(there) < 0xFB else b"\xfc" + len(there).to_bytes(2, "little")
    return replace(schema, columns=there), head + count_bytes + b"\xff" * ((len(there) + 7) // 8) + rows
