"""Constant expressions of a default: evaluates those with the same value for every row and every server. Pure.

Supported are addition, subtraction and multiplication of integers and exact decimals, concatenation of texts, and some
functions (``functions``). All else is unknown, e.g. division, whose number of digits depends on settings.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final

from sqlglot import exp

from agent.rows.schema import Column
from agent.sources.mysql.ddl.expressions.functions import NotConstantError, Value, call, document
from agent.sources.mysql.decode import charsets, types
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.retyping.numbers import EXACT, real_text

_UTF8MB4: Final = 45
_TEXT_BYTES: Final = 65_532
#: servers compute results with more digits in different ways
_DIGITS_MAX: Final = 30
_INT64: Final = 1 << 63
_OPERATIONS: Final[Mapping[type[exp.Expr], Callable[[Decimal, Decimal], Decimal]]] = {
    exp.Add: EXACT.add,
    exp.Sub: EXACT.subtract,
    exp.Mul: EXACT.multiply,
}
_PLAIN_MOMENTS: Final = {
    exp.DataType.Type.DATE: re.compile(r"\d{4}-\d\d-\d\d$"),
    exp.DataType.Type.TIME: re.compile(r"\d\d:\d\d:\d\d$"),
    exp.DataType.Type.TIMESTAMPTZ: re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"),
    exp.DataType.Type.TIMESTAMP: re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"),
}
_SAME_PLACE: Final = {
    exp.DataType.Type.DATE: (FieldType.DATE, FieldType.DATETIME2, FieldType.TIMESTAMP2),
    exp.DataType.Type.TIME: (FieldType.TIME2,),
    exp.DataType.Type.TIMESTAMPTZ: (FieldType.DATE, FieldType.DATETIME2, FieldType.TIMESTAMP2),
    exp.DataType.Type.TIMESTAMP: (FieldType.DATE, FieldType.DATETIME2, FieldType.TIMESTAMP2),
}


def value_of(node: exp.Expr, column: Column) -> Value:
    """Return the value of a default of ``column``.

    :raises NotConstantError: it is unknown.
    """
    match node:
        case exp.Paren():
            return value_of(node.this, column)
        case exp.Null():
            return None
        case exp.Boolean():
            return int(bool(node.this))
        case exp.Literal() if node.is_string:
            return str(node.this)
        case exp.Literal():
            return _number(str(node.this))
        case exp.National():
            return str(node.this)
        case exp.BitString():
            bits = str(node.this)
            return int(bits, 2).to_bytes((len(bits) + 7) // 8)
        case exp.HexString():
            return bytes.fromhex(_even(str(node.this)))
        case exp.Introducer():
            return _introduced(node, column)
        case exp.Neg():
            return _negated(value_of(node.this, column))
        case exp.Add() | exp.Sub() | exp.Mul():
            return _computed(node, column)
        case exp.Concat() if not isinstance(node, exp.ConcatWs):  # which the parser derives from it
            return "".join(_text(value_of(item, column)) for item in node.expressions)
        case exp.Upper() | exp.Lower():
            return _cased(node, column)
        case exp.Cast() if node.args["to"].this is exp.DataType.Type.JSON:
            return document(value_of(node.this, column))
        case exp.Cast():
            return _moment(node, column)
    return call(node, lambda argument: value_of(argument, column))


def source_of(value: Value) -> Column:
    """Return a column whose type fits the value."""
    match value:
        case bool() | int():
            return Column("", int(FieldType.LONGLONG), 0, is_unsigned=value >= _INT64)
        case Decimal():
            _, digits, exponent = value.as_tuple()
            scale = max(-int(exponent), 0)
            return Column("", int(FieldType.DECIMAL), max(len(digits), scale + 1) << 8 | scale)
        case float():
            return Column("", int(FieldType.DOUBLE), 8)
        case bytes():
            return Column("", int(FieldType.VARCHAR), _TEXT_BYTES, collation=charsets.BINARY_COLLATION)
    return Column("", int(FieldType.VARCHAR), _TEXT_BYTES, collation=_UTF8MB4)


def number_of_bytes(data: bytes) -> int:
    """Return the number that ``x'41'`` or ``b'1000001'`` is in numeric context."""
    if len(data) > 8:
        raise NotConstantError
    return int.from_bytes(data)


def _number(text: str) -> int | Decimal | float:
    if "e" in text.lower():
        return float(text)
    number = EXACT.create_decimal(text)
    if "." in text:
        return number
    if number >= 2 * _INT64:
        raise NotConstantError
    return int(number)


def _even(digits: str) -> str:
    return f"0{digits}" if len(digits) % 2 else digits


def _introduced(node: exp.Introducer, column: Column) -> Value:
    """Return a text, or its bytes, with a character set introducer."""
    charset = node.name.lower().removeprefix("_")
    value = value_of(node.expression, column)
    if charset == "binary":
        if column.type_id not in types.CHARACTER_TYPES:
            raise NotConstantError  # servers differ in how they convert it to a number
        return value.encode() if isinstance(value, str) else value
    if isinstance(value, str):
        if not value.isascii():
            raise NotConstantError  # its bytes depend on the statement's character set
        return value
    if not isinstance(value, bytes) or not value.isascii() or charset not in charsets.UTF8 | {"latin1"}:
        raise NotConstantError  # some servers keep the notation of other types
    return value.decode("ascii")


def _negated(value: Value) -> Value:
    if isinstance(value, (str, bytes)) or value is None:
        raise NotConstantError
    return -value


def _computed(node: exp.Binary, column: Column) -> Value:
    values = [value_of(side, column) for side in (node.this, node.expression)]
    if not all(isinstance(value, (int, Decimal)) for value in values):
        raise NotConstantError
    first, second = (Decimal(value) for value in values if isinstance(value, (int, Decimal)))
    found = _OPERATIONS[type(node)](first, second)
    if len(found.as_tuple().digits) > _DIGITS_MAX:
        raise NotConstantError
    if all(isinstance(value, int) for value in values):
        if not -_INT64 <= int(found) < _INT64:
            raise NotConstantError
        return int(found)
    return found


def _text(value: Value) -> str:
    match value:
        case str():
            return value
        case int():
            return str(value)
        case Decimal():
            return f"{value:f}"
        case float():
            one, other = (real_text(value, source_of(value), is_mariadb=is_mariadb) for is_mariadb in (True, False))
            if one != other:
                raise NotConstantError
            return one
    raise NotConstantError


def _cased(node: exp.Upper | exp.Lower, column: Column) -> str:
    value = value_of(node.this, column)
    if not isinstance(value, str) or not value.isascii():
        raise NotConstantError
    return value.upper() if isinstance(node, exp.Upper) else value.lower()


def _moment(node: exp.Cast, column: Column) -> str:
    """``DATE '2024-02-29'``."""
    kind, text = node.args["to"].this, node.this
    is_literal = isinstance(text, exp.Literal) and text.is_string
    pattern = _PLAIN_MOMENTS.get(kind)
    if not is_literal or pattern is None or not pattern.match(str(text.this)):
        raise NotConstantError
    is_text = column.type_id in types.CHARACTER_TYPES and not types.is_binary(column)
    if column.type_id not in _SAME_PLACE[kind] and not is_text:
        raise NotConstantError
    return str(text.this)
