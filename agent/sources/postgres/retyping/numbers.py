"""Number conversions: converts numbers to other types, by the server's rules.

Integers convert to any number; decimals are rounded half away from zero, floats half to even. A float converts to a
``numeric`` by its first 15 digits (``real``: 6). ``NaN`` is not a decimal (``docs/types.md``), so a NULL in a decimal
column may be either, and can only be converted to a decimal.
"""

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal

import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import DecodeError
from agent.rows.schema import Column
from agent.sources.postgres.decode.types import arrow_type, numeric_precision

#: precision that exceeds any numeric
_EXACT = Context(prec=200_000, rounding=ROUND_HALF_UP)
_DIGITS = {"float": 6, "double": 15}


def mapped(values: pa.Array, function: Callable[[object], object], arrow: pa.DataType) -> pa.Array:
    """Apply ``function`` to each distinct value that is not NULL."""
    encoded = values.dictionary_encode()
    found = pa.array([function(value) for value in encoded.dictionary.to_pylist()], arrow)
    return found.take(encoded.indices)


def whole_to_float(values: pa.Array, after: Column) -> pa.Array:
    return values.cast(arrow_type(after), safe=False)


def whole_to_numeric(values: pa.Array, after: Column) -> pa.Array:
    arrow = arrow_type(after)
    if pa.types.is_string(arrow):
        return mapped(values, lambda value: _text(Decimal(str(value)), after), arrow)
    return mapped(values, lambda value: _rounded(Decimal(str(value)), after), arrow)


def numeric_to_whole(values: pa.Array, after: Column) -> pa.Array:
    arrow = arrow_type(after)
    return mapped(values, lambda value: int(_to_scale(Decimal(str(value)), 0)), arrow)


def numeric_to_float(values: pa.Array, after: Column) -> pa.Array:
    refuse_nan(values)
    return mapped(values, str, pa.string()).cast(arrow_type(after))


def numeric_to_numeric(values: pa.Array, after: Column) -> pa.Array:
    arrow = arrow_type(after)
    if not pa.types.is_string(arrow):
        return mapped(values, lambda value: _rounded(Decimal(str(value)), after), arrow)
    refuse_nan(values)
    return mapped(values, lambda value: _text(Decimal(str(value)), after), arrow)


def float_to_whole(values: pa.Array, after: Column) -> pa.Array:
    return pc.round(values, 0, "half_to_even").cast(arrow_type(after))


def float_to_float(values: pa.Array, after: Column) -> pa.Array:
    return values.cast(arrow_type(after), safe=False)


def float_to_numeric(values: pa.Array, after: Column) -> pa.Array:
    arrow, digits = arrow_type(after), _DIGITS[str(values.type)]
    to = _text if pa.types.is_string(arrow) else _rounded
    return mapped(values, lambda value: to(Decimal(f"{value:.{digits}g}"), after), arrow)


def numeric_text(values: pa.Array) -> pa.Array:
    """Format the values of a ``numeric`` column like the server."""
    refuse_nan(values)
    if pa.types.is_string(values.type):
        return values
    return mapped(values, lambda value: f"{value:f}", pa.string())


def refuse_nan(values: pa.Array) -> None:
    """:raises DecodeError: a NULL of a decimal column may be NaN at the source, and here that would count."""
    if pa.types.is_decimal(values.type) and values.null_count:
        raise DecodeError("a NULL of it may be NaN at the source, which a decimal cannot hold and the new type can")


def _rounded(value: Decimal, after: Column) -> Decimal | None:
    """Round to the values of a decimal column; NULL for NaN."""
    bounds = numeric_precision(after.modifier)
    assert bounds is not None, "a decimal has a scale"
    return _to_scale(value, bounds[1]) if value.is_finite() else None


def _text(value: Decimal, after: Column) -> str:
    if not value.is_finite():
        return "NaN" if value.is_nan() else "Infinity" if value > 0 else "-Infinity"
    if (bounds := numeric_precision(after.modifier)) is not None:
        value = _to_scale(value, bounds[1])
    text = f"{value:f}"
    return text[1:] if value == 0 and text.startswith("-") else text


def _to_scale(value: Decimal, scale: int) -> Decimal:
    found = value.quantize(Decimal(1).scaleb(-scale, _EXACT), context=_EXACT)
    return found.quantize(Decimal(1), context=_EXACT) if scale < 0 else found
