"""MySQL's and MariaDB's types: how a column's values lie in a row event, and the Arrow type it becomes (the table is
``docs/types.md``).

A ``Column`` holds the binlog's field type, with enum and set distinguished from char and the old spellings of varchar
and date replaced (``FieldType``), and as ``modifier``:

- decimal: ``precision << 8 | scale``; bit: its number of bits
- char, varchar: the longest value in bytes; enum, set: the bytes of a value (1, 2; up to 8)
- text, blob, json, geometry, vector: the bytes of the length before a value (1 to 4)
- time, datetime, timestamp: digits of the fraction; float 4, double 8; all others 0

MariaDB's uuid, inet4 and inet6 look like binary(16) and binary(4) in the log. Only the catalog knows better, and says
so in ``type_name``.
"""

from collections.abc import Container, Mapping
from enum import Enum, IntEnum, auto
from typing import Final

import pyarrow as pa

from agent.rows.schema import Column, TableSchema, ZeroDates, with_source_type
from agent.sources.mysql.decode import charsets


class FieldType(IntEnum):
    """Field types as both servers number them in a table map."""

    DECIMAL_OLD = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    DECIMAL = 246
    ENUM = 247
    SET = 248
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


class Kind(Enum):
    """The forms of values in a row, each with a builder."""

    INT8 = auto()
    UINT8 = auto()
    INT16 = auto()
    UINT16 = auto()
    INT24 = auto()
    UINT24 = auto()
    INT32 = auto()
    UINT32 = auto()
    INT64 = auto()
    UINT64 = auto()
    FLOAT = auto()
    DOUBLE = auto()
    DECIMAL = auto()
    BOOL = auto()
    BITS = auto()
    YEAR = auto()
    DATE = auto()
    TIME = auto()
    TIME_OLD = auto()
    DATETIME = auto()
    DATETIME_OLD = auto()
    TIMESTAMP = auto()
    TIMESTAMP_OLD = auto()
    #: text that is UTF-8 already
    TEXT = auto()
    #: text of one byte per character
    TEXT_SINGLE = auto()
    #: text of any other character set
    TEXT_CODEC = auto()
    #: binary(n), whose trailing zeros the log leaves out
    BINARY = auto()
    BLOB = auto()
    COMPRESSED = auto()
    ENUM = auto()
    SET = auto()
    JSON = auto()
    GEOMETRY = auto()
    UUID = auto()
    INET4 = auto()
    INET6 = auto()


_INTEGERS: Final[Mapping[int, tuple[Kind, Kind]]] = {
    FieldType.TINY: (Kind.INT8, Kind.UINT8),
    FieldType.SHORT: (Kind.INT16, Kind.UINT16),
    FieldType.INT24: (Kind.INT24, Kind.UINT24),
    FieldType.LONG: (Kind.INT32, Kind.UINT32),
    FieldType.LONGLONG: (Kind.INT64, Kind.UINT64),
}
_KINDS: Final[Mapping[int, Kind]] = {
    FieldType.FLOAT: Kind.FLOAT,
    FieldType.DOUBLE: Kind.DOUBLE,
    FieldType.DECIMAL: Kind.DECIMAL,
    FieldType.YEAR: Kind.YEAR,
    FieldType.DATE: Kind.DATE,
    FieldType.TIME: Kind.TIME_OLD,
    FieldType.TIME2: Kind.TIME,
    FieldType.DATETIME: Kind.DATETIME_OLD,
    FieldType.DATETIME2: Kind.DATETIME,
    FieldType.TIMESTAMP: Kind.TIMESTAMP_OLD,
    FieldType.TIMESTAMP2: Kind.TIMESTAMP,
    FieldType.ENUM: Kind.ENUM,
    FieldType.SET: Kind.SET,
    FieldType.JSON: Kind.JSON,
    FieldType.GEOMETRY: Kind.GEOMETRY,
    FieldType.VECTOR: Kind.BLOB,
    FieldType.BLOB_COMPRESSED: Kind.COMPRESSED,
    FieldType.VARCHAR_COMPRESSED: Kind.COMPRESSED,
}
_STRINGS: Final = frozenset({FieldType.STRING, FieldType.VARCHAR, FieldType.BLOB})
#: field types that a table map gives a collation for (MariaDB: geometry too)
CHARACTER_TYPES: Final = _STRINGS | {FieldType.BLOB_COMPRESSED, FieldType.VARCHAR_COMPRESSED, FieldType.VECTOR}
#: field types that a table map gives a sign for
NUMERIC_TYPES: Final = frozenset(
    {*_INTEGERS, FieldType.DECIMAL_OLD, FieldType.DECIMAL, FieldType.FLOAT, FieldType.DOUBLE, FieldType.YEAR}
)
_NAMED: Final[Mapping[str, Kind]] = {"uuid": Kind.UUID, "inet4": Kind.INET4, "inet6": Kind.INET6}

#: Arrow's widest exact decimal is decimal128
DECIMAL_PRECISION_MAX: Final = 38
_UINT64 = pa.decimal128(20, 0)
_BIGGEST_BITS = 64

_ARROW: Final[Mapping[Kind, pa.DataType]] = {
    Kind.INT8: pa.int8(),
    Kind.UINT8: pa.int16(),
    Kind.INT16: pa.int16(),
    Kind.UINT16: pa.int32(),
    Kind.INT24: pa.int32(),
    Kind.UINT24: pa.int32(),
    Kind.INT32: pa.int32(),
    Kind.UINT32: pa.int64(),
    Kind.INT64: pa.int64(),
    Kind.UINT64: _UINT64,
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.BOOL: pa.bool_(),
    Kind.BITS: pa.int64(),
    Kind.YEAR: pa.int16(),
    Kind.DATE: pa.date32(),
    Kind.DATETIME: pa.timestamp("us"),
    Kind.DATETIME_OLD: pa.timestamp("us"),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Kind.TIMESTAMP_OLD: pa.timestamp("us", tz="UTC"),
    Kind.BINARY: pa.binary(),
    Kind.BLOB: pa.binary(),
    Kind.GEOMETRY: pa.binary(),
}
#: kinds that the rule for zero dates is about
CALENDAR: Final = frozenset(
    {Kind.DATE, Kind.DATETIME, Kind.DATETIME_OLD, Kind.TIMESTAMP, Kind.TIMESTAMP_OLD},
)


def kind_of(column: Column) -> Kind:
    """:raises ValueError: a type that row events of today's servers do not have."""
    if sizes := _INTEGERS.get(column.type_id):
        return sizes[column.is_unsigned]
    if column.type_id in _STRINGS:
        return _kind_of_string(column)
    if column.type_id == FieldType.BIT:
        return Kind.BOOL if column.modifier == 1 else Kind.BITS
    if kind := _KINDS.get(column.type_id):
        return kind
    raise ValueError(f"type {column.type_id} is not one that Weir reads; leave the table out by a filter rule")


def _kind_of_string(column: Column) -> Kind:
    if is_binary(column):
        if kind := _NAMED.get(column.type_name):
            return kind
        return Kind.BINARY if column.type_id == FieldType.STRING else Kind.BLOB
    charset = charsets.charset_of(column.collation)
    if charset in charsets.UTF8:
        return Kind.TEXT
    return Kind.TEXT_SINGLE if charsets.is_single_byte(charset) else Kind.TEXT_CODEC


def is_binary(column: Column) -> bool:
    return column.collation == charsets.BINARY_COLLATION


def decimal_bounds(modifier: int) -> tuple[int, int]:
    """Precision and scale."""
    return modifier >> 8, modifier & 0xFF


def arrow_type(column: Column, *, zero_dates: ZeroDates = ZeroDates.NULL) -> pa.DataType:
    """What the column becomes. A decimal that no decimal128 holds becomes its text."""
    kind = kind_of(column)
    if kind is Kind.DECIMAL:
        precision, scale = decimal_bounds(column.modifier)
        return pa.decimal128(precision, scale) if precision <= DECIMAL_PRECISION_MAX else pa.string()
    if kind is Kind.BITS and column.modifier == _BIGGEST_BITS:
        return _UINT64
    if kind is Kind.COMPRESSED:
        return pa.binary() if is_binary(column) else pa.string()
    if kind in CALENDAR and zero_dates is ZeroDates.STRING:
        return pa.string()
    return _ARROW.get(kind, pa.string())


def arrow_schema(schema: TableSchema) -> pa.Schema:
    """The table's Arrow schema: every field nullable, with the source's type name in its metadata."""
    return pa.schema([_field(column, schema.zero_dates) for column in schema.columns])


def _field(column: Column, zero_dates: ZeroDates) -> pa.Field:
    field = pa.field(column.name, arrow_type(column, zero_dates=zero_dates))
    return with_source_type(field, column.type_name or str(column.type_id))


_FIXED_WIDTHS: Final[Mapping[int, int]] = {
    FieldType.TINY: 1,
    FieldType.SHORT: 2,
    FieldType.INT24: 3,
    FieldType.LONG: 4,
    FieldType.LONGLONG: 8,
    FieldType.FLOAT: 4,
    FieldType.DOUBLE: 8,
    FieldType.YEAR: 1,
    FieldType.DATE: 3,
    FieldType.TIME: 3,
    FieldType.DATETIME: 8,
    FieldType.TIMESTAMP: 4,
}
_FRACTION_AFTER: Final[Mapping[int, int]] = {FieldType.TIME2: 3, FieldType.DATETIME2: 5, FieldType.TIMESTAMP2: 4}
_LONGEST_WITH_ONE_BYTE = 255
#: bytes that hold so many decimal digits, 0 to 9
DIGIT_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_GROUP_DIGITS = 9


_LENGTH_BYTES: Final = range(1, 5)
_FRACTION_DIGITS: Final = range(7)
#: what servers write; the kernels rely on it
_MODIFIERS: Final[Mapping[int, Container[int]]] = {
    **dict.fromkeys((FieldType.BLOB, FieldType.BLOB_COMPRESSED, FieldType.JSON, FieldType.GEOMETRY), _LENGTH_BYTES),
    **dict.fromkeys((FieldType.TIME2, FieldType.DATETIME2, FieldType.TIMESTAMP2), _FRACTION_DIGITS),
    FieldType.VECTOR: _LENGTH_BYTES,
    FieldType.ENUM: (1, 2),
    FieldType.SET: (1, 2, 3, 4, 8),
    FieldType.BIT: range(1, _BIGGEST_BITS + 1),
}
_PRECISION_MAX: Final = 65


def check_layout(column: Column) -> None:
    """:raises ValueError: a modifier that no server gives the column's type, of damaged bytes."""
    kind, modifier = column.type_id, column.modifier
    is_sound = kind not in _MODIFIERS or modifier in _MODIFIERS[kind]
    if kind == FieldType.DECIMAL:
        precision, scale = decimal_bounds(modifier)
        is_sound = 1 <= precision <= _PRECISION_MAX and scale <= precision
    if not is_sound:
        raise ValueError(f"column {column.name} of type {kind} has the impossible modifier {modifier}")


def wire_width(column: Column) -> int:
    """Bytes of a value in a row; for a value with its length before it, that length's bytes, negative."""
    kind, modifier = column.type_id, column.modifier
    if width := _FIXED_WIDTHS.get(kind):
        return width
    if kind in _FRACTION_AFTER:
        return _FRACTION_AFTER[FieldType(kind)] + (modifier + 1) // 2
    match kind:
        case FieldType.DECIMAL:
            return decimal_width(*decimal_bounds(modifier))
        case FieldType.BIT:
            return (modifier + 7) // 8
        case FieldType.ENUM | FieldType.SET:
            return modifier
        case FieldType.STRING | FieldType.VARCHAR | FieldType.VARCHAR_COMPRESSED:
            return -1 if modifier <= _LONGEST_WITH_ONE_BYTE else -2
        case _:
            return -modifier


def decimal_width(precision: int, scale: int) -> int:
    whole, fraction = divmod(precision - scale, _GROUP_DIGITS), divmod(scale, _GROUP_DIGITS)
    return 4 * (whole[0] + fraction[0]) + DIGIT_BYTES[whole[1]] + DIGIT_BYTES[fraction[1]]
