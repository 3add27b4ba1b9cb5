"""Numbers: rounding, bounds and parsing, as the server converts numbers to another column. By value. Pure.

A non-strict server never refuses a number: one out of range becomes the bound, and a text the number that it begins
with. A strict server refuses the statement instead, so that only lossless values reach this module.
"""

import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from agent.rows.schema import Column
from agent.sources.mysql.decode import types
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.values import moments

Number = int | float | Decimal
#: converts a value; raises ``UnfitError``
Store = Callable[[Any], Any]

_WIDTHS: Final = {
    FieldType.TINY: 8,
    FieldType.SHORT: 16,
    FieldType.INT24: 24,
    FieldType.LONG: 32,
    FieldType.LONGLONG: 64,
}
#: precision for any decimal of a server, including products
EXACT: Final = Context(prec=400, Emax=99_999, Emin=-99_999)
_NUMBER: Final = re.compile(r"[ \t\n\v\f\r]*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_WHOLE: Final = re.compile(r"[ \t\n\v\f\r]*([+-]?\d+)")
_YEAR: Final = re.compile(r"(\d{4}|\d{1,2})$")
#: beyond these exponents the result does not change
_EXPONENT_MAX: Final = 5_000
#: more digits than any column holds
_DIGITS_MAX: Final = 100
_HUGE: Final[int] = 10**_DIGITS_MAX
_INT64_BOUND: Final = 1 << 63
#: types that some servers read as a signed number
_BY_SIGNED: Final = (FieldType.DECIMAL, FieldType.FLOAT, FieldType.DOUBLE)
FIRST_YEAR, LAST_YEAR = 1901, 2155
#: the most characters for which MySQL does without an exponent
_FLOAT_WIDTH, _DOUBLE_WIDTH = 12, 24
_FLOAT_DIGITS, _DOUBLE_DIGITS = 6, 15


class UnfitError(ValueError):
    """The server's conversion of this value is not known for certain. The text has the reason."""


def bounds(column: Column) -> tuple[int, int]:
    """Return the minimum and maximum of an integer column."""
    if column.type_id == FieldType.BIT:
        return 0, (1 << column.modifier) - 1
    width = _WIDTHS[FieldType(column.type_id)]
    return (0, (1 << width) - 1) if column.is_unsigned else (-(1 << width - 1), (1 << width - 1) - 1)


def parsed(text: str) -> Decimal:
    """Return the number that a text begins with; 0 if there is none."""
    found = _NUMBER.match(text)
    if found is None:
        return Decimal(0)
    digits, _, exponent = found[1].lower().partition("e")
    if abs(int(exponent or 0)) > _EXPONENT_MAX:
        raise UnfitError("a number with so large an exponent")
    return EXACT.create_decimal(found[1]) if exponent else EXACT.create_decimal(digits)


def parsed_decimal(value: Decimal | str) -> Decimal:
    """Return a decimal, which is a text if it has more than 38 digits."""
    return EXACT.create_decimal(value) if isinstance(value, str) else value


def surely_read(column: Column, values: pa.Array) -> list[Any]:
    """Return the numbers of a column as the server reads them for a date or time: a FLOAT has six digits then.

    :raises UnfitError: a FLOAT has more.
    """
    numbers: list[Any] = values.to_pylist()
    if column.type_id == FieldType.FLOAT and any(abs(number or 0) >= 10**_FLOAT_DIGITS for number in numbers):
        raise UnfitError("a FLOAT of more than six digits")
    return numbers


def unbroken(number: Number | str) -> int:
    """Return a number that has no fraction.

    :raises UnfitError: it has one.
    """
    exact = Decimal(number) if isinstance(number, str) else number
    whole = int(exact)
    if whole != exact:
        raise UnfitError("a number with a fraction")
    return whole


def whole_text(column: Column) -> Store:
    found = re.search(r"\((\d+)\) .*zerofill", column.type_name)
    places = int(found[1]) if found else 0
    return lambda value: str(int(value)).rjust(places, "0")


def rounded(number: Number, *, source: Column) -> int:
    """Round to an integer: decimals half away from zero, floats half to even."""
    if isinstance(number, int):
        return number
    if isinstance(number, Decimal):
        if number.adjusted() > _DIGITS_MAX:
            return -_HUGE if number < 0 else _HUGE
        return int(number.quantize(Decimal(1), ROUND_HALF_UP, EXACT))
    if abs(number) >= _INT64_BOUND and source.type_id == FieldType.FLOAT:
        raise UnfitError("a FLOAT beyond 64 bits")
    return int(np.rint(number).item())


def whole(column: Column, source: Column) -> Store:
    """Return the conversion to an integer."""
    low, high = bounds(column)

    def store(number: Number) -> int:
        value = rounded(number, source=source)
        if high >= _INT64_BOUND and value >= _INT64_BOUND and source.type_id in _BY_SIGNED:
            raise UnfitError("a number beyond 63 bits")
        return min(max(value, low), high)

    return store


def bit(column: Column, source: Column) -> Store:
    """Return the conversion to BIT: a negative number has the bits of its 64-bit form."""
    _, high = bounds(column)

    def store(number: Number) -> int:
        value = rounded(number, source=source)
        if not -_INT64_BOUND <= value < _INT64_BOUND and source.type_id in _BY_SIGNED:
            raise UnfitError("a number beyond 63 bits")
        if value < 0 and source.type_id == FieldType.DECIMAL:
            raise UnfitError("a negative DECIMAL")
        return min(value % (2 * _INT64_BOUND) if value < 0 else value, high)

    return store


def whole_prefix(text: str) -> int:
    """Return the integer that a text begins with, as BIT reads it: no fraction, no exponent."""
    found = _WHOLE.match(text)
    if found is None:
        return 0
    number = int(found[1])
    if not -_INT64_BOUND <= number < _INT64_BOUND:
        raise UnfitError("a number beyond 63 bits")
    return number


def signed_bits(value: int | Decimal) -> int:
    """Return BIT as a number if servers that read it as signed agree."""
    number = int(value)
    if number >= _INT64_BOUND:
        raise UnfitError("a number beyond 63 bits")
    return number


def year(source: Column) -> Store:
    def store(number: Number) -> int:
        value = rounded(number, source=source)
        if isinstance(number, float) and value != number:
            raise UnfitError("a fraction of a year")
        if 1 <= value <= 99:
            return moments.year_of(value)
        return value if FIRST_YEAR <= value <= LAST_YEAR else 0

    return store


def year_of_text(text: str) -> int:
    text = text.rstrip(" ")
    if found := _YEAR.match(text):
        number = int(found[1])
        if len(found[1]) <= 2:
            return moments.year_of(number)
        return number if FIRST_YEAR <= number <= LAST_YEAR else 0
    if not text or _NUMBER.match(text) is None:
        return 0
    raise UnfitError("a text that is no year of two or four digits")


def decimal(column: Column) -> Store:
    precision, scale = types.decimal_bounds(column.modifier)
    unit = Decimal(1).scaleb(-scale)
    high = Decimal(10**precision - 1).scaleb(-scale, EXACT)
    low = Decimal(0) if column.is_unsigned else high.copy_negate()

    def store(number: Number) -> Decimal:
        exact = number if isinstance(number, Decimal) else EXACT.create_decimal(repr(number))
        found = exact.quantize(unit, ROUND_HALF_UP, EXACT) if exact.adjusted() <= precision else exact
        found = min(max(found, low), high)
        return found if found else abs(found)

    return store


def real(column: Column) -> Store:
    """Return the conversion to FLOAT or DOUBLE; one with (m,d) is rounded to d digits, half to even, in doubles."""
    is_float = column.type_id == FieldType.FLOAT
    largest = float(np.finfo(np.float32 if is_float else np.float64).max)
    limits = _limits(column)
    if limits is not None:
        largest = 10.0 ** (limits[0] - limits[1]) - 1.0 / 10.0 ** limits[1]

    def store(number: Number) -> float:
        try:
            value = float(number)
        except OverflowError:
            value = math.inf if number > 0 else -math.inf
        if column.is_unsigned and value < 0:
            return 0.0
        if limits is not None and math.isfinite(value):
            whole, unit = math.floor(value), 10.0 ** limits[1]
            value = whole + float(np.rint((value - whole) * unit)) / unit
        value = min(max(value, -largest), largest)
        return float(np.float32(value)) if is_float else value

    return store


def real_text(value: float, column: Column, *, is_mariadb: bool) -> str:
    """Format like the server: a FLOAT with six digits, a DOUBLE with the shortest digits that identify it. MySQL has
    room for few characters, and takes the exponent where a number has more."""
    if (places := printed_places(column)) is not None:
        return f"{value:.{places}f}"
    is_float = column.type_id == FieldType.FLOAT
    if is_float:
        mantissa, _, exponent = f"{value:.{_FLOAT_DIGITS - 1}e}".partition("e")
    else:
        mantissa, _, exponent = _scientific(value)
    sign, digits = "-" * mantissa.startswith("-"), mantissa.lstrip("-").replace(".", "").rstrip("0") or "0"
    text = sign + _laid_out(digits, int(exponent) + 1, value)
    is_long = not is_mariadb and len(text) > (_FLOAT_WIDTH if is_float else _DOUBLE_WIDTH)
    return sign + _with_exponent(digits, int(exponent) + 1) if is_long else text


def printed_places(column: Column) -> int | None:
    """Return the number of decimals, d, that a FLOAT(m,d) is rounded to and printed with; None if it has no (m,d)."""
    limits = _limits(column)
    return limits[1] if limits else None


def _limits(column: Column) -> tuple[int, int] | None:
    """Return (m,d) of a FLOAT(m,d)."""
    found = re.search(r"\((\d+),(\d+)\)", column.type_name) if column.type_id != FieldType.DECIMAL else None
    return (int(found[1]), int(found[2])) if found else None


def _scientific(value: float) -> tuple[str, str, str]:
    shortest = Decimal(repr(value))
    sign, digits, exponent = shortest.as_tuple()
    text = "".join(map(str, digits)) or "0"
    assert isinstance(exponent, int), "infinities cannot be stored"
    mantissa = ("-" if sign else "") + text
    return mantissa, "e", str(exponent + len(text) - 1 if any(digits) else 0)


def _laid_out(digits: str, point: int, value: float) -> str:
    """Lay out the digits; ``point``: number of digits before the decimal point."""
    if value == 0:
        return "0"
    if -_DOUBLE_DIGITS < point <= _DOUBLE_DIGITS:
        if point <= 0:
            return "0." + "0" * -point + digits
        if point >= len(digits):
            return digits + "0" * (point - len(digits))
        return f"{digits[:point]}.{digits[point:]}"
    return _with_exponent(digits, point)


def _with_exponent(digits: str, point: int) -> str:
    head = digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}"
    return f"{head}e{point - 1}"
