"""Date conversions: converts dates and times to other types, by the server's rules.

Fewer fractional digits are rounded half away from the year 2000. The limits of the types stand for infinity and other
values that they cannot represent (``docs/types.md``), and also for themselves: if that makes a difference, the result
is unknown. Conversions between timestamps with and without a time zone depend on the session's time zone, which is
unknown too.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import DecodeError
from agent.rows.schema import Column
from agent.sources.postgres.decode.kernels_fixed import (
    DATE_MAX,
    DATE_MIN,
    EPOCH_US,
    TIME_MAX_US,
    TIMESTAMP_MAX_US,
    TIMESTAMP_MIN_US,
)
from agent.sources.postgres.decode.types import arrow_type

_DAY_US: Final = 86_400_000_000
_DIGITS_MAX: Final = 6
_AMBIGUOUS: Final = "{} also means infinity at the sink, or another value that the sink cannot hold"

Numbers = npt.NDArray[np.int64]


def digits_of(column: Column) -> int:
    """Return the number of fractional second digits of a column."""
    return column.modifier if 0 <= column.modifier < _DIGITS_MAX else _DIGITS_MAX


def date_to_timestamp(values: pa.Array, after: Column) -> pa.Array:
    days = _numbers(values)
    _refuse_ends(values, days, DATE_MIN, DATE_MAX)
    if (np.abs(days) > TIMESTAMP_MAX_US * 20 // _DAY_US).any():
        raise DecodeError("a date after the year 200000 has no moment at the sink")
    return _array(days * _DAY_US, values, after)


def timestamp_to_timestamp(values: pa.Array, after: Column) -> pa.Array:
    """Convert between two timestamps with, or two without, a time zone."""
    moments = _numbers(values)
    _refuse_ends(values, moments, TIMESTAMP_MIN_US, TIMESTAMP_MAX_US)
    return _array(_rounded(moments - EPOCH_US, digits_of(after)) + EPOCH_US, values, after)


def timestamp_to_date(values: pa.Array, after: Column) -> pa.Array:
    moments = _numbers(values)
    _refuse_ends(values, moments, TIMESTAMP_MIN_US, TIMESTAMP_MAX_US)
    days = (moments // _DAY_US).astype(np.int32)
    return pa.array(days, pa.int32(), mask=_nulls(values)).cast(arrow_type(after))


def timestamp_to_time(values: pa.Array, after: Column) -> pa.Array:
    moments = _numbers(values)
    _refuse_ends(values, moments, TIMESTAMP_MIN_US, TIMESTAMP_MAX_US)
    return _time(_rounded(moments % _DAY_US, digits_of(after)), values)


def time_to_time(values: pa.Array, after: Column) -> pa.Array:
    values = as_time(values)
    times = _numbers(values)
    if digits_of(after) == _DIGITS_MAX:
        return values
    return _time(_rounded(times, digits_of(after)), values)


def time_text(values: pa.Array) -> pa.Array:
    """Format like the server."""
    values = as_time(values)
    _refuse_ends(values, _numbers(values), -1, TIME_MAX_US)
    texts = values.cast(pa.string())
    return pc.replace_substring_regex(pc.replace_substring_regex(texts, r"(\.\d*?)0+$", r"\1"), r"\.$", "")


def as_time(values: pa.Array) -> pa.Array:
    """Return times as a time array, since a sink may store them as text."""
    if pa.types.is_time(values.type):
        return values
    moments = pc.binary_join_element_wise(pa.scalar("1970-01-01 "), values.cast(pa.string()), "")
    return moments.cast(pa.timestamp("us")).cast(pa.time64("us"))


def _time(times: Numbers, values: pa.Array) -> pa.Array:
    """Build the array; a time that is rounded to 24:00 is stored like 24:00."""
    return pa.array(np.minimum(times, TIME_MAX_US), pa.int64(), mask=_nulls(values)).cast(pa.time64("us"))


def _array(moments: Numbers, values: pa.Array, after: Column) -> pa.Array:
    return pa.array(moments, pa.int64(), mask=_nulls(values)).cast(arrow_type(after))


def _rounded(moments: Numbers, digits: int) -> Numbers:
    """Round half away from 0."""
    unit = 10 ** (_DIGITS_MAX - digits)
    found: Numbers = np.sign(moments) * ((np.abs(moments) + unit // 2) // unit * unit)
    return found


def _refuse_ends(values: pa.Array, numbers: Numbers, low: int, high: int) -> None:
    (at,) = np.nonzero(np.isin(numbers, (low, high)) & ~_nulls(values))
    if len(at):
        raise DecodeError(_AMBIGUOUS.format(values[int(at[0])].cast(pa.string())))


def _numbers(values: pa.Array) -> Numbers:
    width = pa.int32() if pa.types.is_date32(values.type) else pa.int64()
    found: Numbers = values.cast(width).fill_null(0).to_numpy().astype(np.int64)
    return found


def _nulls(values: pa.Array) -> Any:
    return values.is_null().to_numpy(zero_copy_only=False)
