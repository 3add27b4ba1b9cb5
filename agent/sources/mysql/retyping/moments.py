"""Dates and times: rounding, time zones and text form, as the server converts them. Vectorised. Pure.

A moment is a naive Arrow timestamp, in the session's time zone if the column is a ``timestamp``; a TIME value is a
number of microseconds. Dates that no calendar has are handled separately, in ``retyping``.
"""

from datetime import tzinfo
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.rows.schema import Column
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.retyping.numbers import UnfitError

MICROS: Final = 1_000_000
MOMENT: Final = pa.timestamp("us")
DAY_US: Final = 86_400 * MICROS
_LONGEST_US: Final = (838 * 3600 + 59 * 60 + 59) * MICROS
#: a ``timestamp`` is after 0 and before this; newer servers support more
_STAMP_END_US: Final = (1 << 31) * MICROS
Micros = npt.NDArray[np.int64]


def digits_of(column: Column) -> int:
    return column.modifier if column.type_id != FieldType.DATE else 0


def micros(values: pa.Array) -> Micros:
    """Return microseconds, 0 for NULL."""
    return np.asarray(pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False), np.int64)


def array(values: Micros, like: pa.Array, arrow: pa.DataType = MOMENT) -> pa.Array:
    """Return an Arrow array, NULL where ``like`` is."""
    return pa.array(values, pa.int64(), mask=~np.asarray(like.is_valid())).cast(arrow)


def fewer_digits(values: Micros, digits: int, *, is_rounded: bool) -> Micros:
    """Reduce to this number of fractional digits. Rounding and truncation both apply to the absolute value."""
    unit = 10 ** (6 - digits)
    size = np.abs(values)
    cut = size // unit * unit
    if is_rounded and unit > 1:
        cut = np.where(size - cut >= unit // 2, cut + unit, cut)
    return np.asarray(np.sign(values) * cut, np.int64)


def fewer_digits_of_moments(values: Micros, digits: int, *, is_rounded: bool) -> Micros:
    """The same for moments, whose fraction increases with time also before 1970."""
    unit = 10 ** (6 - digits)
    cut = values // unit * unit
    if is_rounded and unit > 1:
        cut = np.where(values - cut >= unit // 2, cut + unit, cut)
    return np.asarray(cut, np.int64)


def local(values: pa.Array, zone: tzinfo) -> pa.Array:
    """Convert moments in UTC to local time in a time zone."""
    return pc.local_timestamp(values.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us", zone_name(zone))))


def in_utc(values: pa.Array, zone: tzinfo) -> pa.Array:
    """Convert local times to moments in UTC.

    :raises UnfitError: a local time is ambiguous or does not exist.
    """
    name = zone_name(zone)
    early, late = (
        pc.assume_timezone(values, name, ambiguous=which, nonexistent=which).cast(pa.timestamp("us", "UTC"))
        for which in ("earliest", "latest")
    )
    if not early.equals(late):
        raise UnfitError(f"a moment that the clocks of {name} showed twice, or never")
    return early


def zone_name(zone: tzinfo) -> str:
    """Return the time zone's name for Arrow."""
    key = getattr(zone, "key", None)
    if key is not None:
        return str(key)
    offset = zone.utcoffset(None)
    assert offset is not None, "a fixed time zone has an offset"
    minutes = round(offset.total_seconds() / 60)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


def is_stamp(values: Micros) -> npt.NDArray[np.bool_]:
    """Return whether a ``timestamp`` can hold the values."""
    return (values >= MICROS) & (values < _STAMP_END_US)


def is_beyond_stamps(values: Micros) -> bool:
    return bool((values >= _STAMP_END_US).any())


def print_moments(values: pa.Array, column: Column) -> pa.Array:
    """Format moments as the server does for the column."""
    if column.type_id == FieldType.DATE:
        return pc.strftime(values, "%Y-%m-%d")
    whole = pc.strftime(values.cast(pa.timestamp("s"), safe=False), "%Y-%m-%d %H:%M:%S")
    return pc.binary_join_element_wise(whole, _fraction(np.mod(micros(values), MICROS), digits_of(column)), "")


def _fraction(part: Micros, digits: int) -> pa.Array:
    if not digits:
        return pa.array(np.full(len(part), ""))
    text = pa.array(part // 10 ** (6 - digits)).cast(pa.string())
    return pc.binary_join_element_wise(".", pc.utf8_lpad(text, digits, "0"), "")


def print_times(values: Micros, digits: int, like: pa.Array) -> pa.Array:
    size = np.abs(values)
    seconds = size // MICROS
    parts = [pa.array(part).cast(pa.string()) for part in (seconds // 3600, seconds // 60 % 60, seconds % 60)]
    clock = pc.binary_join_element_wise(*(pc.utf8_lpad(part, 2, "0") for part in parts), ":")
    sign = pa.array(np.where(values < 0, "-", ""))
    text = pc.binary_join_element_wise(sign, clock, _fraction(size % MICROS, digits), "")
    return pc.if_else(like.is_valid(), text, None)


def parse_times(values: pa.Array) -> Micros:
    """Parse texts in the format of ``print_times``."""
    parts = pc.extract_regex(values, r"^(?P<sign>-?)(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)(?:\.(?P<f>\d*))?$")
    hours, minutes, seconds = (_number(parts, name) for name in "hms")
    fraction = pc.utf8_rpad(pc.fill_null(pc.struct_field(parts, "f"), ""), 6, "0")
    size = ((hours * 60 + minutes) * 60 + seconds) * MICROS + _whole(fraction)
    return np.where(pc.fill_null(pc.equal(pc.struct_field(parts, "sign"), "-"), False), -size, size)


def _number(parts: pa.Array, name: str) -> Micros:
    return _whole(pc.fill_null(pc.struct_field(parts, name), "0"))


def _whole(values: Any) -> Micros:
    return np.asarray(values.cast(pa.int64()), np.int64)


def within(values: Micros, *, is_rounded: bool) -> Micros:
    """Check the range of TIME values.

    :raises UnfitError: a value exceeds the range of some servers.
    """
    longest = _LONGEST_US if is_rounded else _LONGEST_US + MICROS - 1
    if (np.abs(values) > longest).any():
        raise UnfitError("a time beyond 838:59:59")
    return values


def number_of_moments(values: pa.Array, column: Column) -> tuple[Micros, Micros]:
    """Return YYYYMMDD or YYYYMMDDhhmmss, and the microseconds."""
    date = micros(pc.year(values)) * 10_000 + micros(pc.month(values)) * 100 + micros(pc.day(values))
    if column.type_id == FieldType.DATE:
        return date, np.zeros(len(date), np.int64)
    clock = micros(pc.hour(values)) * 10_000 + micros(pc.minute(values)) * 100 + micros(pc.second(values))
    return date * MICROS + clock, np.mod(micros(values), MICROS)


def number_of_times(values: Micros) -> tuple[Micros, Micros]:
    """Return hhmmss and microseconds, without sign."""
    size = np.abs(values)
    seconds = size // MICROS
    return seconds // 3600 * 10_000 + seconds // 60 % 60 * 100 + seconds % 60, size % MICROS


def clock_of(values: pa.Array) -> Micros:
    """Return the time of day in microseconds."""
    return np.mod(micros(values), DAY_US)
