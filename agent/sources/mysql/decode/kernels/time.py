"""Second pass, dates and times.

``fixed.calendar_loop`` describes the treatment of dates that no calendar has (a zero in it, or the 31st of February).
Under the rule *string* the columns are built from *packed* values, which keep such dates: year * 13 + month, day (5
bits), hour (5), minute (6), second (6), as both servers store a datetime, times 10^6 plus microseconds.
"""

from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.civil import date_exists, days_from_civil
from agent.kernels.fixed import GOOD, NULL, calendar_loop
from agent.kernels.jit import DATA, OFFSETS, OUT, PAIR, POSITIONS, inlined, kernel
from agent.sources.mysql.decode.kernels.numbers import read_big_endian
from agent.sources.mysql.decode.wire import read_u24, read_u32, read_u64

#: kinds for ``decode_packed``
DATE, DATETIME, DATETIME_OLD, TIMESTAMP, TIMESTAMP_OLD = 0, 1, 2, 3, 4
#: means NULL among packed values and times
NONE: Final = -(2**63)

_MICROS = 1_000_000
_DAY_S = 86_400
_DATETIME_BYTES, _DATETIME_OFFSET = 5, 0x8000000000
_TIME_BYTES, _TIME_OFFSET = 3, 0x800000
#: what one unit of a fraction of 0, 1, 2, 3 bytes counts in microseconds
_FRACTION_UNITS = np.array([0, 10_000, 100, 1], np.int64)
_POWERS = np.array([10**k for k in range(7)], np.int64)
_ZERO, _MINUS, _POINT, _COLON, _SPACE = 48, 45, 46, 58, 32
_VALUES: Final = types.int64[::1]
#: the longest texts: 9999-12-31 23:59:59.999999 and -838:59:59.999999
DATE_TEXT_BYTES, TIME_TEXT_BYTES = 26, 17


@kernel(types.int64(DATA, types.int64, types.int64))
def _fraction(data: Any, at: int, count: int) -> int:
    return np.int64(read_big_endian(data, at, count)) * _FRACTION_UNITS[count]  # type: ignore[no-any-return]


@kernel(PAIR(types.int64))
def _to_unix(packed: int) -> tuple[int, int]:
    """Return the Unix seconds of a packed datetime without its microseconds, and whether that date exists."""
    months, day = packed >> 22, (packed >> 17) & 31
    year, month = months // 13, months % 13
    if not date_exists(year, month, day):
        return 0, 0
    seconds = ((packed >> 12) & 31) * 3600 + ((packed >> 6) & 63) * 60 + (packed & 63)
    return days_from_civil(year, month, day) * _DAY_S + seconds, 1


@kernel(types.int64(DATA, types.int64))
def _packed_date(data: Any, at: int) -> int:
    word = read_u24(data, at)
    return ((word >> 9) * 13 + ((word >> 5) & 15)) << 22 | (word & 31) << 17  # type: ignore[no-any-return]


@kernel(types.int64(DATA, types.int64))
def _packed_old(data: Any, at: int) -> int:
    """Return the packed value of the decimal number YYYYMMDDhhmmss."""
    number = np.int64(read_u64(data, at))
    day, time = number // _MICROS, number % _MICROS
    months = day // 10_000 * 13 + day // 100 % 100
    seconds = time // 10_000 << 12 | time // 100 % 100 << 6 | time % 100
    return months << 22 | day % 100 << 17 | seconds  # type: ignore[return-value]


@kernel(types.int64(types.int64, types.int64))
def _packed_unix(seconds: int, micros: int) -> int:
    """Return the packed value of Unix seconds; second 0 without a fraction is the zero date of a timestamp."""
    if seconds == 0 and micros == 0:
        return 0
    days, time = seconds // _DAY_S, seconds % _DAY_S
    # Years begin in March here, so that a leap day is a year's last.
    shifted = days + 719_468
    era = shifted // 146_097
    of_era = shifted - era * 146_097
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    day_of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_index = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_index + 2) // 5 + 1
    month = month_index + 3 if month_index < 10 else month_index - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    clock = time // 3600 << 12 | time // 60 % 60 << 6 | time % 60
    return (year * 13 + month) << 22 | day << 17 | clock


@inlined
def _date(data: Any, at: int, _: int) -> tuple[int, int]:
    word = read_u24(data, at)
    year, month, day = word >> 9, (word >> 5) & 15, word & 31
    if not date_exists(year, month, day):
        return 0, 0
    return days_from_civil(year, month, day), 1


@inlined
def _datetime(data: Any, at: int, fraction_bytes: int) -> tuple[int, int]:
    """Return microseconds; ``fraction_bytes`` is -1 for the old form."""
    if fraction_bytes < 0:
        seconds, exists = _to_unix(_packed_old(data, at))
        return seconds * _MICROS, exists
    seconds, exists = _to_unix(np.int64(read_big_endian(data, at, _DATETIME_BYTES)) - _DATETIME_OFFSET)
    return seconds * _MICROS + _fraction(data, at + _DATETIME_BYTES, fraction_bytes), exists


decode_date = calendar_loop(_date, types.int32)
decode_datetime = calendar_loop(_datetime, types.int64)


@kernel(types.int64(DATA, POSITIONS, _VALUES, types.int64, types.boolean, types.int64))
def decode_timestamp(data: Any, positions: Any, values: Any, first: int, is_strict: bool, fraction_bytes: int) -> int:
    """Decode as ``calendar_loop``, but faster. ``fraction_bytes`` is -1 for the old form. Only second 0 is the zero
    date."""
    result = GOOD
    for row in range(positions.size):
        at, micros = positions[row], 0
        if at >= 0:
            if fraction_bytes < 0:
                micros = read_u32(data, at) * _MICROS
            else:
                seconds = np.int64(read_big_endian(data, at, 4))
                micros = seconds * _MICROS + _fraction(data, at + 4, fraction_bytes)
            if micros == 0:
                if is_strict:
                    return row
                positions[row] = NULL
                result -= 1
        values[first + row] = micros
    return result


@kernel(types.int64(DATA, POSITIONS, _VALUES, types.int64, types.int64, types.int64))
def decode_packed(data: Any, positions: Any, values: Any, first: int, kind: int, fraction_bytes: int) -> int:
    """Decode any of the kinds above, with dates that no calendar has."""
    for row in range(positions.size):
        at = positions[row]
        if at < 0:
            values[first + row] = NONE
            continue
        micros = 0
        if kind == DATE:
            packed = _packed_date(data, at)
        elif kind == DATETIME_OLD:
            packed = _packed_old(data, at)
        elif kind == TIMESTAMP_OLD:
            packed = _packed_unix(read_u32(data, at), 0)
        elif kind == DATETIME:
            packed = np.int64(read_big_endian(data, at, _DATETIME_BYTES)) - _DATETIME_OFFSET
            micros = _fraction(data, at + _DATETIME_BYTES, fraction_bytes)
        else:
            micros = _fraction(data, at + 4, fraction_bytes)
            packed = _packed_unix(np.int64(read_big_endian(data, at, 4)), micros)
        values[first + row] = packed * _MICROS + micros
    return GOOD


@kernel(types.int64(DATA, POSITIONS, _VALUES, types.int64, types.int64))
def decode_time(data: Any, positions: Any, values: Any, first: int, fraction_bytes: int) -> int:
    """Decode signed microseconds; ``fraction_bytes`` is -1 for the old form, hhmmss as a decimal number."""
    for row in range(positions.size):
        at = positions[row]
        if at < 0:
            values[first + row] = NONE
        elif fraction_bytes < 0:
            number = (read_u24(data, at) ^ 0x800000) - 0x800000
            clock = abs(number)
            seconds = clock // 10_000 * 3600 + clock // 100 % 100 * 60 + clock % 100
            values[first + row] = (-seconds if number < 0 else seconds) * _MICROS
        else:
            # Whole and fraction are one two's complement number.
            shift = 8 * fraction_bytes
            word = np.int64(read_big_endian(data, at, _TIME_BYTES + fraction_bytes)) - (_TIME_OFFSET << shift)
            size = abs(word)
            clock = size >> shift
            seconds = ((clock >> 12) & 1023) * 3600 + ((clock >> 6) & 63) * 60 + (clock & 63)
            micros = seconds * _MICROS + (size & ((1 << shift) - 1)) * _FRACTION_UNITS[fraction_bytes]
            values[first + row] = -micros if word < 0 else micros
    return GOOD


@kernel(types.int64(OUT, types.int64, types.int64, types.int64))
def _write(out: Any, at: int, number: int, digits: int) -> int:
    """Write ``number`` with leading zeros; return the offset behind it."""
    for i in range(digits - 1, -1, -1):
        out[at + i] = _ZERO + number % 10
        number //= 10
    return at + digits


@kernel(types.int64(OUT, types.int64, types.int64, types.int64))
def _write_fraction(out: Any, at: int, micros: int, digits: int) -> int:
    if digits == 0:
        return at
    out[at] = _POINT
    return _write(out, at + 1, micros // _POWERS[6 - digits], digits)  # type: ignore[no-any-return]


@kernel(types.int64(_VALUES, types.boolean, types.int64, OFFSETS, OUT))
def write_dates(values: Any, has_time: bool, digits: int, offsets: Any, out: Any) -> int:
    """Write packed values as text, with ``digits`` of the fraction. Return the bytes written."""
    at = 0
    for row in range(values.size):
        offsets[row] = at
        if values[row] != NONE:
            packed, micros = values[row] // _MICROS, values[row] % _MICROS
            at = _write(out, at, (packed >> 22) // 13, 4)
            out[at] = _MINUS
            at = _write(out, at + 1, (packed >> 22) % 13, 2)
            out[at] = _MINUS
            at = _write(out, at + 1, (packed >> 17) & 31, 2)
            if has_time:
                out[at] = _SPACE
                at = _write(out, at + 1, (packed >> 12) & 31, 2)
                out[at] = _COLON
                at = _write(out, at + 1, (packed >> 6) & 63, 2)
                out[at] = _COLON
                at = _write_fraction(out, _write(out, at + 1, packed & 63, 2), micros, digits)
    offsets[values.size] = at
    return at


@kernel(types.int64(_VALUES, types.int64, OFFSETS, OUT))
def write_times(values: Any, digits: int, offsets: Any, out: Any) -> int:
    """Write times as text, ``[-]hh:mm:ss[.ffffff]`` with up to three digits of hours. Return the bytes written."""
    at = 0
    for row in range(values.size):
        offsets[row] = at
        if values[row] != NONE:
            if values[row] < 0:
                out[at] = _MINUS
                at += 1
            seconds, micros = abs(values[row]) // _MICROS, abs(values[row]) % _MICROS
            at = _write(out, at, seconds // 3600, 3 if seconds >= 360_000 else 2)
            out[at] = _COLON
            at = _write(out, at + 1, seconds // 60 % 60, 2)
            out[at] = _COLON
            at = _write_fraction(out, _write(out, at + 1, seconds % 60, 2), micros, digits)
    offsets[values.size] = at
    return at
