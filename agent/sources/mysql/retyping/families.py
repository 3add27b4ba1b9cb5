"""Type families: groups column types that convert alike, and finds type changes that keep all values. Pure."""

import re
from enum import Enum, auto
from typing import Final

from agent.rows.schema import Column
from agent.sources.mysql.decode import types
from agent.sources.mysql.decode.types import FieldType, Kind
from agent.sources.mysql.retyping import numbers, texts


class Family(Enum):
    """Group of types that convert alike."""

    WHOLE = auto()
    BIT = auto()
    YEAR = auto()
    DECIMAL = auto()
    REAL = auto()
    DATE = auto()
    MOMENT = auto()
    TIME = auto()
    TEXT = auto()
    BYTES = auto()
    MEMBERS = auto()
    JSON = auto()
    #: types without conversions: geometry, vector, uuid, inet4, inet6
    OPAQUE = auto()


_FAMILIES: Final = {
    Kind.FLOAT: Family.REAL,
    Kind.DOUBLE: Family.REAL,
    Kind.DECIMAL: Family.DECIMAL,
    Kind.BOOL: Family.BIT,
    Kind.BITS: Family.BIT,
    Kind.YEAR: Family.YEAR,
    Kind.DATE: Family.DATE,
    Kind.TIME: Family.TIME,
    Kind.DATETIME: Family.MOMENT,
    Kind.TIMESTAMP: Family.MOMENT,
    Kind.TEXT: Family.TEXT,
    Kind.TEXT_SINGLE: Family.TEXT,
    Kind.TEXT_CODEC: Family.TEXT,
    Kind.BINARY: Family.BYTES,
    Kind.BLOB: Family.BYTES,
    Kind.ENUM: Family.MEMBERS,
    Kind.SET: Family.MEMBERS,
    Kind.JSON: Family.JSON,
}
NUMBERS: Final = frozenset({Family.WHOLE, Family.BIT, Family.YEAR, Family.DECIMAL, Family.REAL})
CALENDAR: Final = frozenset({Family.DATE, Family.MOMENT})
TEMPORAL: Final = frozenset({*CALENDAR, Family.TIME})


def family_of(column: Column) -> Family:
    """Return the type's family.

    :raises ValueError: an unsupported type.
    """
    kind = types.kind_of(column)
    if kind is Kind.COMPRESSED:
        return Family.BYTES if types.is_binary(column) else Family.TEXT
    if column.type_id == FieldType.VECTOR or kind in (Kind.TIME_OLD, Kind.DATETIME_OLD, Kind.TIMESTAMP_OLD):
        return Family.OPAQUE
    if kind in _FAMILIES:
        return _FAMILIES[kind]
    return Family.OPAQUE if kind in (Kind.GEOMETRY, Kind.UUID, Kind.INET4, Kind.INET6) else Family.WHOLE


def is_same(before: Column, after: Column) -> bool:
    """Return whether every value stays the same."""
    old, new = family_of(before), family_of(after)
    if old is not new:
        return False
    match old:
        case Family.WHOLE | Family.BIT:
            (low, high), (new_low, new_high) = numbers.bounds(before), numbers.bounds(after)
            is_within = new_low <= low and high <= new_high
            return is_within and types.arrow_type(before) == types.arrow_type(after)
        case Family.DECIMAL:
            return before.modifier == after.modifier and (before.is_unsigned or not after.is_unsigned)
        case Family.REAL:
            is_signed_alike = before.is_unsigned or not after.is_unsigned
            places = (numbers.printed_places(column) for column in (before, after))
            return before.type_id == after.type_id and is_signed_alike and len(set(places)) == 1
        case Family.TEXT:
            return _is_wider_text(before, after)
        case Family.BYTES:
            is_padded = Kind.BINARY in (types.kind_of(before), types.kind_of(after))
            sizes = texts.length_max(before), texts.length_max(after)
            return (
                sizes[0] == sizes[1]
                if is_padded and before.type_id == after.type_id
                else (not is_padded and sizes[0] <= sizes[1])
            )
        case Family.MEMBERS:
            is_prefix = after.members[: len(before.members)] == before.members
            return before.type_id == after.type_id and is_prefix
        case Family.OPAQUE if before.type_id == FieldType.VECTOR == after.type_id:
            old_length, new_length = vector_length(before), vector_length(after)
            if old_length is None or new_length is None:
                return before.type_name == after.type_name
            return old_length <= new_length
        case Family.OPAQUE:
            return before.type_id == after.type_id and types.kind_of(before) == types.kind_of(after)
        case Family.YEAR | Family.JSON | Family.DATE:
            return True
    return before.type_id == after.type_id and before.modifier == after.modifier


def vector_length(column: Column) -> int | None:
    """Return the largest number of elements; None if an older version wrote the column's record."""
    found = re.fullmatch(r"vector\((\d+)\)", column.type_name)
    return int(found[1]) if found else None


def _is_wider_text(before: Column, after: Column) -> bool:
    is_char = FieldType.STRING in (before.type_id, after.type_id)
    if is_char and before.type_id != after.type_id:
        return False
    is_complete = texts.is_complete(after) or _charset(before) == _charset(after)
    if not is_complete and _charset(before) == "ascii":
        is_complete = texts.is_ascii_alike(after)
    shorts = [texts.is_short(column) for column in (before, after)]
    sizes = [texts.length_max(column) for column in (before, after)]
    if shorts == [True, False]:  # a length in characters, and one in bytes
        sizes[0] *= texts.width(after)
    is_larger = sizes[0] <= sizes[1] and (shorts != [False, True])
    if shorts == [False, False] and _charset(before) != _charset(after):
        is_larger = sizes[0] * texts.width(after) <= sizes[1]
    return is_complete and is_larger


def _charset(column: Column) -> str:
    return texts.charset(column)
