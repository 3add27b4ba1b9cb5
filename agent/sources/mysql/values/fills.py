"""Fill values: converts a default in a statement to the Arrow value that existing rows get.

The text comes from ``agent.sources.mysql.ddl.expressions.defaults``. It is converted as by the server: numbers are
rounded, members match in any case, dates are accepted in all notations; the ``zero-dates`` setting applies to invalid
dates.
"""

import socket
from datetime import UTC, date, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from agent.errors import RESYNC, DecodeError
from agent.rows.schema import Column, TableSchema, ZeroDates
from agent.sources.mysql.decode import addresses
from agent.sources.mysql.decode.types import FieldType, arrow_schema
from agent.sources.mysql.values import moments

#: precision for any decimal of a server
_EXACT: Final = Context(prec=100)


def fill_value(schema: TableSchema, name: str, text: str) -> pa.Scalar:
    """Return the value of ``text`` in the column ``name``.

    :raises DecodeError: it is not valid for the column.
    """
    arrow = arrow_schema(schema).field(name).type
    column = next(column for column in schema.columns if column.name == name)
    try:
        if pa.types.is_binary(arrow):
            return pa.scalar(bytes.fromhex(text), arrow)
        return pa.scalar(_value(column, arrow, text, schema.zero_dates), arrow)
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        ValueError,
        OSError,
        InvalidOperation,
    ) as error:
        raise DecodeError(
            f"default {text[:60]!r} of column {name} of {schema.qualified_name} is no {arrow}; {RESYNC}"
        ) from error


def _value(column: Column, arrow: pa.DataType, text: str, zero_dates: ZeroDates) -> Any:
    match column.type_id:
        case FieldType.DATE | FieldType.DATETIME2 | FieldType.TIMESTAMP2:
            return _date(column, text, zero_dates)
        case FieldType.TIME2:
            return _time(column, text)
        case FieldType.YEAR:
            return moments.year_of(int(text)) if int(text) else 0
        case FieldType.ENUM | FieldType.SET:
            return _members(column, text)
        case FieldType.DECIMAL:
            rounded = Decimal(text).quantize(Decimal(1).scaleb(-(column.modifier & 0xFF)), ROUND_HALF_UP, _EXACT)
            return f"{rounded:f}" if arrow == pa.string() else rounded
        case FieldType.FLOAT | FieldType.DOUBLE:
            return float(text)
        case FieldType.STRING if arrow == pa.string():
            return _named(column, text.rstrip(" "))
    if arrow == pa.bool_():
        return text not in ("", "0")
    if pa.types.is_integer(arrow) or pa.types.is_decimal(arrow):
        return int(Decimal(text).quantize(Decimal(1), ROUND_HALF_UP))
    return text


def _date(column: Column, text: str, zero_dates: ZeroDates) -> Any:
    parts = moments.parse(text)
    if parts is None:
        raise ValueError("no date")
    is_date = column.type_id == FieldType.DATE
    if zero_dates is ZeroDates.STRING:
        year, month, day, hours, minutes, seconds, micros = parts
        spelt = f"{year:04}-{month:02}-{day:02}"
        return spelt if is_date else f"{spelt} {_clock(hours, minutes, seconds, micros, digits=column.modifier)}"
    moment = moments.moment_of(parts)
    if moment is None and zero_dates is ZeroDates.STRICT:
        raise ValueError("a date that no calendar has")
    if moment is None or is_date:
        return moment and date(*parts[:3])
    return moment.replace(tzinfo=UTC) if column.type_id == FieldType.TIMESTAMP2 else moment


def _time(column: Column, text: str) -> str:
    length = moments.parse_time(text)
    if length is None:
        raise ValueError("no time")
    seconds, micros = divmod(abs(length) // timedelta(microseconds=1), 1_000_000)
    sign = "-" if length < timedelta(0) else ""
    return sign + _clock(seconds // 3600, seconds // 60 % 60, seconds % 60, micros, digits=column.modifier)


def _clock(hours: int, minutes: int, seconds: int, micros: int, *, digits: int) -> str:
    fraction = f".{micros:06}"[: digits + 1] if digits else ""
    return f"{hours:02}:{minutes:02}:{seconds:02}{fraction}"


def _members(column: Column, text: str) -> str:
    """Return the members spelled as in the column, those of a set in its order. Some differ in their case alone."""
    parts = {*text.split(",")} if column.type_id == FieldType.SET else {text}
    if parts <= {*column.members}:
        return ",".join(member for member in column.members if member in parts)
    wanted = (
        {part.strip().casefold() for part in text.split(",")} if column.type_id == FieldType.SET else {text.casefold()}
    )
    found = [member for member in column.members if member.casefold() in wanted]
    return ",".join(found) if found else text


def _named(column: Column, text: str) -> str:
    match column.type_name:
        case "uuid":
            return str(UUID(text))
        case "inet4":
            return addresses.inet4(socket.inet_pton(socket.AF_INET, text))
        case "inet6":
            return addresses.inet6(socket.inet_pton(socket.AF_INET6, text))
    return text
