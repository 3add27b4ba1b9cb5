"""Column builders by type: chooses the builder of a column.

``locate`` finds the values, and ``decode`` adds the row to an error.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.kernels.columns import BadValueError
from agent.kernels.fixed import Kernel
from agent.rows.schema import Column, ZeroDates
from agent.sources.mysql.decode import charsets, conversions, decimals, types
from agent.sources.mysql.decode.builders import Bits, Builder, Converted, Fixed, KeyDates, Text, Values
from agent.sources.mysql.decode.kernels import numbers as kernels_numbers
from agent.sources.mysql.decode.kernels import time as kernels_time
from agent.sources.mysql.decode.types import FieldType, Kind

#: size of the SRID before the well-known binary form
_SRID_BYTES = 4
_UUID_BYTES, _INET4_BYTES, _INET6_BYTES = 16, 4, 16
_NO_MEMBERS = "the members of an enum or set are not known; set binlog_row_metadata=FULL on the server"
_BAD_DATE = "a date that no calendar has; repair it, or set zero-dates below [source] to null or string"
_BAD_KEY = (
    "a date of the key that no calendar has, and that is not the zero date; repair it, or create a changefeed with "
    "zero-dates = string"
)
#: the date and time of day 0 in the newer format
_ZERO_DATETIME = (0x80_0000_0000).to_bytes(5)


@dataclass(frozen=True, slots=True)
class _Room:
    """Capacity for a column: rows, and bytes of values of variable length."""

    rows: int
    size: int
    zero_dates: ZeroDates


_Maker = Callable[[Column, pa.DataType, _Room], Builder]


def builder(column: Column, rows: int, size: int, *, zero_dates: ZeroDates) -> Builder:
    """Return a builder for ``rows`` values of ``column``, of ``size`` bytes in all if they have variable length.

    :raises BadValueError: the column is not supported.
    """
    try:
        kind, arrow = types.kind_of(column), types.arrow_type(column, zero_dates=zero_dates)
    except ValueError as error:
        raise BadValueError(0, str(error)) from None
    room = _Room(rows, size, zero_dates)
    if kind in types.CALENDAR and zero_dates is ZeroDates.STRING:
        return _date_text(column, arrow, room)
    return _MAKERS[kind](column, arrow, room)


def _fixed(kernel: Kernel, dtype: npt.DTypeLike) -> _Maker:
    return lambda _, arrow, room: Fixed(arrow, room.rows, kernel, dtype)


def _bits(column: Column, arrow: pa.DataType, room: _Room) -> Builder:
    if pa.types.is_decimal(arrow):
        return Fixed(arrow, room.rows, kernels_numbers.decode_bits64, np.uint64)
    return Fixed(arrow, room.rows, kernels_numbers.decode_bits, np.int64, types.wire_width(column))


def _decimal(column: Column, arrow: pa.DataType, room: _Room) -> Builder:
    groups = decimals.Groups.of(*types.decimal_bounds(column.modifier))
    if pa.types.is_decimal(arrow):
        return Fixed(
            arrow, room.rows, decimals.decode_decimal, np.uint64, groups.digits, groups.bytes, groups.precision
        )
    width = types.wire_width(column)
    raw = Values(pa.binary(), room.rows, room.rows * width, prefix=0, width=width)
    return Converted(raw, conversions.decimal_text(groups))


def _fraction_bytes(column: Column) -> int:
    """Return the bytes of the fraction; -1 for formats of before MySQL 5.6."""
    is_old = column.type_id in (FieldType.TIME, FieldType.DATETIME, FieldType.TIMESTAMP)
    return -1 if is_old else (column.modifier + 1) // 2


def _date(column: Column, arrow: pa.DataType, room: _Room) -> Builder:
    is_strict = room.zero_dates is ZeroDates.STRICT
    dates = Fixed(arrow, room.rows, kernels_time.decode_date, np.int32, is_strict, 0, reason=_BAD_DATE)
    return KeyDates(dates, bytes(3), _BAD_KEY) if column.is_key else dates


def _datetime(column: Column, arrow: pa.DataType, room: _Room) -> Builder:
    moments, fraction_bytes = _moment(kernels_time.decode_datetime)(column, arrow, room), _fraction_bytes(column)
    assert isinstance(moments, Fixed)
    zero = bytes(8) if fraction_bytes < 0 else _ZERO_DATETIME + bytes(fraction_bytes)
    return KeyDates(moments, zero, _BAD_KEY) if column.is_key else moments


def _moment(kernel: Kernel) -> _Maker:
    def make(column: Column, arrow: pa.DataType, room: _Room) -> Builder:
        is_strict = room.zero_dates is ZeroDates.STRICT
        return Fixed(arrow, room.rows, kernel, np.int64, is_strict, _fraction_bytes(column), reason=_BAD_DATE)

    return make


_PACKED: Final[Mapping[Kind, int]] = {
    Kind.DATE: kernels_time.DATE,
    Kind.DATETIME: kernels_time.DATETIME,
    Kind.DATETIME_OLD: kernels_time.DATETIME_OLD,
    Kind.TIMESTAMP: kernels_time.TIMESTAMP,
    Kind.TIMESTAMP_OLD: kernels_time.TIMESTAMP_OLD,
}


def _date_text(column: Column, _: pa.DataType, room: _Room) -> Builder:
    kind = types.kind_of(column)
    packed = Fixed(
        pa.int64(), room.rows, kernels_time.decode_packed, np.int64, _PACKED[kind], max(_fraction_bytes(column), 0)
    )
    has_time = kind is not Kind.DATE
    longest = kernels_time.DATE_TEXT_BYTES
    return Text(packed, room.rows, kernels_time.write_dates, longest, has_time, column.modifier if has_time else 0)


def _time(column: Column, _: pa.DataType, room: _Room) -> Builder:
    micros = Fixed(pa.int64(), room.rows, kernels_time.decode_time, np.int64, _fraction_bytes(column))
    return Text(micros, room.rows, kernels_time.write_times, kernels_time.TIME_TEXT_BYTES, column.modifier)


def _values(column: Column, room: _Room, *, skip: int = 0) -> Values:
    return Values(pa.binary(), room.rows, room.size, prefix=-types.wire_width(column), skip=skip)


def _padded(column: Column, room: _Room, width: int) -> Values:
    return Values(pa.binary(), room.rows, room.rows * width, prefix=-types.wire_width(column), width=width)


def _converted(convert: Callable[[pa.Array], pa.Array]) -> _Maker:
    return lambda column, _, room: Converted(_values(column, room), convert)


def _padded_and(convert: Callable[[pa.Array], pa.Array], width: int) -> _Maker:
    return lambda column, _, room: Converted(_padded(column, room, width), convert)


def _text(column: Column, *_: Any) -> Callable[[pa.Array], pa.Array]:
    charset = charsets.charset_of(column.collation)
    if charset in charsets.UTF8:
        return conversions.utf8
    if not charsets.has_gaps(charset):
        return conversions.from_codec(charset)
    is_single = charsets.is_single_byte(charset)
    convert = conversions.from_single_byte(charset) if is_single else conversions.from_codec(charset)
    return conversions.apart(convert) if column.is_key else convert


def _any_text(column: Column, _: pa.DataType, room: _Room) -> Builder:
    return Converted(_values(column, room), _text(column))


def _compressed(column: Column, _: pa.DataType, room: _Room) -> Builder:
    plain = Converted(_values(column, room), conversions.decompressed)
    return plain if types.is_binary(column) else Converted(plain, _text(column))


def _enum(column: Column, _: pa.DataType, room: _Room) -> Builder:
    _require_members(column)
    arguments = (types.wire_width(column), len(column.members))
    numbers = Fixed(pa.int32(), room.rows, kernels_numbers.decode_member, np.int32, *arguments)
    return Converted(numbers, conversions.from_members(column.members))


def _set(column: Column, _: pa.DataType, room: _Room) -> Builder:
    _require_members(column)
    arguments = (types.wire_width(column), len(column.members))
    bits = Fixed(pa.uint64(), room.rows, kernels_numbers.decode_member_set, np.uint64, *arguments)
    return Converted(bits, conversions.from_member_bits(column.members))


def _require_members(column: Column) -> None:
    if not column.members:
        raise BadValueError(0, _NO_MEMBERS)


_MAKERS: Final[Mapping[Kind, _Maker]] = {
    Kind.INT8: _fixed(kernels_numbers.decode_int8, np.int8),
    Kind.UINT8: _fixed(kernels_numbers.decode_uint8, np.int16),
    Kind.INT16: _fixed(kernels_numbers.decode_int16, np.int16),
    Kind.UINT16: _fixed(kernels_numbers.decode_uint16, np.int32),
    Kind.INT24: _fixed(kernels_numbers.decode_int24, np.int32),
    Kind.UINT24: _fixed(kernels_numbers.decode_uint24, np.int32),
    Kind.INT32: _fixed(kernels_numbers.decode_int32, np.int32),
    Kind.UINT32: _fixed(kernels_numbers.decode_uint32, np.int64),
    Kind.INT64: _fixed(kernels_numbers.decode_int64, np.int64),
    Kind.UINT64: _fixed(kernels_numbers.decode_uint64, np.uint64),
    Kind.FLOAT: _fixed(kernels_numbers.decode_int32, np.int32),
    Kind.DOUBLE: _fixed(kernels_numbers.decode_int64, np.int64),
    Kind.DECIMAL: _decimal,
    Kind.BOOL: lambda _, __, room: Bits(room.rows, kernels_numbers.decode_bool),
    Kind.BITS: _bits,
    Kind.YEAR: _fixed(kernels_numbers.decode_year, np.int16),
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIME_OLD: _time,
    Kind.DATETIME: _datetime,
    Kind.DATETIME_OLD: _datetime,
    Kind.TIMESTAMP: _moment(kernels_time.decode_timestamp),
    Kind.TIMESTAMP_OLD: _moment(kernels_time.decode_timestamp),
    Kind.TEXT: _any_text,
    Kind.TEXT_SINGLE: _any_text,
    Kind.TEXT_CODEC: _any_text,
    Kind.BINARY: lambda column, _, room: _padded(column, room, column.modifier),
    Kind.BLOB: lambda column, _, room: _values(column, room),
    Kind.COMPRESSED: _compressed,
    Kind.ENUM: _enum,
    Kind.SET: _set,
    Kind.JSON: _converted(conversions.json),
    Kind.GEOMETRY: lambda column, _, room: _values(column, room, skip=_SRID_BYTES),
    Kind.UUID: _padded_and(conversions.uuid_text, _UUID_BYTES),
    Kind.INET4: _padded_and(conversions.inet4_text, _INET4_BYTES),
    Kind.INET6: _padded_and(conversions.inet6_text, _INET6_BYTES),
}
