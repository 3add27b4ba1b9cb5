"""Implicit default: the value of a NOT NULL column without a default in existing rows. Pure."""

from typing import Final

from agent.rows.schema import Column
from agent.sources.mysql.decode import types
from agent.sources.mysql.decode.types import FieldType

ZERO: Final = {
    FieldType.DATE: "0000-00-00",
    FieldType.DATETIME2: "0000-00-00 00:00:00",
    FieldType.TIMESTAMP2: "0000-00-00 00:00:00",
    FieldType.TIME2: "00:00:00",
    FieldType.JSON: "null",
}
NAMED_ZERO: Final = {"uuid": "00000000-0000-0000-0000-000000000000", "inet6": "::", "inet4": "0.0.0.0"}
BYTES: Final = types.CHARACTER_TYPES - {FieldType.VECTOR}


def implicit_text(column: Column) -> str | None:
    """Return zero, the empty text or the first member, as text that ``fills`` reads; None if unknown."""
    if column.type_id in ZERO:
        return ZERO[FieldType(column.type_id)]
    if column.members:
        return column.members[0] if column.type_id == FieldType.ENUM else ""
    if column.type_id == FieldType.GEOMETRY:
        return None
    if column.type_name in NAMED_ZERO:
        return NAMED_ZERO[column.type_name]
    if column.type_id == FieldType.VECTOR:
        return ""
    if column.type_id in BYTES:
        is_padded = column.type_id == FieldType.STRING and types.is_binary(column)
        return "00" * column.modifier if is_padded else ""
    return "0"
