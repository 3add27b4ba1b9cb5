"""Second pass, text form of the types of fixed width: what a stream in text mode sends (see ``types.is_known``).

The session's settings fix the spelling: DateStyle ISO, time zone UTC, extra_float_digits 3. Numbers with a decimal
point are left to Arrow's own casts, except decimals, which must be exact. Each kernel returns -1, or the first row
whose text is not of the type. Special values become what they become in the binary form.
"""

from typing import Any

import numpy as np
from numba import types

from agent.kernels.civil import days_from_civil
from agent.kernels.decimal128 import WORDS, is_below_power, multiply_add, store
from agent.kernels.jit import DATA, kernel
from agent.sources.postgres.decode.kernels_fixed import (
    DATE_MAX,
    DATE_MIN,
    TIME_MAX_US,
    TIMESTAMP_MAX_US,
    TIMESTAMP_MIN_US,
)
from agent.sources.postgres.decode.wire import NULL, PAIR, POSITIONS, value_length

_DAY_US = 86_400_000_000
_MINUS, _PLUS, _POINT, _COLON, _SPACE = ord("-"), ord("+"), ord("."), ord(":"), ord(" ")
_B, _I, _N, _T, _F = ord("B"), ord("i"), ord("N"), ord("t"), ord("f")
_CAPITAL_I = ord("I")
#: Arrow's last microsecond, as a day and a time of day: past it counts as infinity
_LAST_DAY, _LAST_DAY_US = divmod(2**63 - 1, _DAY_US)
_I64_MIN = -(2**63)


@kernel(types.int64(DATA, POSITIONS, types.uint8[::1]))
def parse_bool(data: Any, positions: Any, bitmap: Any) -> int:
    for row in range(positions.size):
        at = positions[row]
        if at >= 0:
            if value_length(data, at) != 1 or (data[at] != _T and data[at] != _F):
                return row
            if data[at] == _T:
                bitmap[row >> 3] |= 1 << (row & 7)
    return -1


@kernel(types.int64(DATA, POSITIONS, types.int64, types.int64, types.int64[::1]))
def parse_integers(data: Any, positions: Any, low: int, high: int, values: Any) -> int:
    """Integers within ``[low, high]``."""
    for row in range(positions.size):
        at = positions[row]
        if at < 0:
            continue
        end = at + value_length(data, at)
        is_negative = at < end and data[at] == _MINUS
        at += 1 if is_negative else 0
        if at >= end or end - at > 19:
            return row
        total = 0
        while at < end:
            digit = data[at] - 48
            # Summed downward, because the smallest int8 has no positive twin.
            if digit < 0 or digit > 9 or total < (_I64_MIN + digit) // 10 + (1 if (_I64_MIN + digit) % 10 else 0):
                return row
            total = total * 10 - digit
            at += 1
        if not is_negative:
            if total == _I64_MIN:
                return row
            total = -total
        if total < low or total > high:
            return row
        values[row] = total
    return -1


@kernel(types.int64(DATA, POSITIONS, types.int64, types.int64, WORDS))
def parse_decimals(data: Any, positions: Any, precision: int, scale: int, words: Any) -> int:
    limbs = np.zeros(4, np.uint64)
    for row in range(positions.size):
        at = positions[row]
        if at < 0:
            continue
        end = at + value_length(data, at)
        is_negative = at < end and data[at] == _MINUS
        at += 1 if is_negative else 0
        if at >= end:
            return row
        if data[at] == _N or data[at] == _CAPITAL_I:
            positions[row] = NULL
            continue
        limbs[:] = np.uint64(0)
        missing, seen_point, fits = scale, False, True
        while at < end:
            character = data[at]
            at += 1
            if character == _POINT and not seen_point:
                seen_point = True
                continue
            if character < 48 or character > 57:
                return row
            if seen_point:
                missing -= 1
                if missing < 0:
                    if character != 48:
                        return row
                    continue
            fits &= multiply_add(limbs, np.uint64(10), np.uint64(character - 48))
        for _ in range(missing):
            fits &= multiply_add(limbs, np.uint64(10), np.uint64(0))
        if not fits or not is_below_power(limbs, precision):
            return row
        store(limbs, is_negative, words, row)
    return -1


@kernel(PAIR(DATA, types.int64, types.int64))
def _number(data: Any, at: int, end: int) -> tuple[int, int]:
    """The digits at ``at``: their value and the offset behind them; the offset is -1 when there are none."""
    total, start = 0, at
    while at < end and 48 <= data[at] <= 57 and at - start < 9:
        total = total * 10 + (data[at] - 48)
        at += 1
    return total, at if at > start else -1


@kernel(PAIR(DATA, types.int64, types.int64, types.int64))
def _date(data: Any, at: int, end: int, is_bc: int) -> tuple[int, int]:
    """``YYYY-MM-DD``: days, and the offset behind them (-1 when malformed)."""
    year, at = _number(data, at, end)
    if at < 0 or at >= end or data[at] != _MINUS:
        return 0, -1
    month, at = _number(data, at + 1, end)
    if at < 0 or at >= end or data[at] != _MINUS or month < 1 or month > 12:
        return 0, -1
    day, at = _number(data, at + 1, end)
    if day < 1 or day > 31:
        return 0, -1
    return days_from_civil(1 - year if is_bc else year, month, day), at


@kernel(PAIR(DATA, types.int64, types.int64))
def _time(data: Any, at: int, end: int) -> tuple[int, int]:
    """``HH:MM:SS[.ffffff]``: microseconds, and the offset behind them (-1 when malformed)."""
    hours, at = _number(data, at, end)
    if at < 0 or at >= end or data[at] != _COLON or hours > 24:
        return 0, -1
    minutes, at = _number(data, at + 1, end)
    if at < 0 or at >= end or data[at] != _COLON or minutes > 59:
        return 0, -1
    seconds, at = _number(data, at + 1, end)
    if at < 0 or seconds > 60:
        return 0, -1
    micros = 0
    if at < end and data[at] == _POINT:
        start = at + 1
        micros, at = _number(data, start, end)
        if at < 0 or at - start > 6:
            return 0, -1
        for _ in range(6 - (at - start)):
            micros *= 10
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros, at


@kernel(PAIR(DATA, types.int64, types.int64))
def _zone(data: Any, at: int, end: int) -> tuple[int, int]:
    """``+HH[:MM[:SS]]`` or nothing: microseconds east of UTC, and the offset behind them."""
    if at >= end or (data[at] != _PLUS and data[at] != _MINUS):
        return 0, at
    sign = 1 if data[at] == _PLUS else -1
    total, unit = 0, 3600
    while unit > 0 and at < end and data[at] != _SPACE:
        part, at = _number(data, at + 1, end)
        if at < 0:
            return 0, -1
        total += part * unit
        unit //= 60
    return sign * total * 1_000_000, at


@kernel(types.boolean(DATA, types.int64, types.int64))
def _is_bc(data: Any, at: int, end: int) -> bool:
    return bool(end - at > 3 and data[end - 3] == _SPACE and data[end - 2] == _B)


@kernel(types.int64(DATA, POSITIONS, types.int32[::1]))
def parse_dates(data: Any, positions: Any, values: Any) -> int:
    for row in range(positions.size):
        at = positions[row]
        if at < 0:
            continue
        end = at + value_length(data, at)
        if end - at > 1 and data[at] == _I:
            values[row] = DATE_MAX
        elif end - at > 1 and data[at] == _MINUS and data[at + 1] == _I:
            values[row] = DATE_MIN
        else:
            is_bc = _is_bc(data, at, end)
            days, at = _date(data, at, end, is_bc)
            if at != end - (3 if is_bc else 0):
                return row
            values[row] = days
    return -1


@kernel(types.int64(DATA, POSITIONS, types.int64[::1]))
def parse_times(data: Any, positions: Any, values: Any) -> int:
    for row in range(positions.size):
        at = positions[row]
        if at >= 0:
            end = at + value_length(data, at)
            micros, at = _time(data, at, end)
            if at != end or micros > TIME_MAX_US + 1:
                return row
            values[row] = min(micros, TIME_MAX_US)
    return -1


@kernel(types.int64(DATA, POSITIONS, types.int64[::1]))
def parse_timestamps(data: Any, positions: Any, values: Any) -> int:
    """timestamp and timestamptz."""
    for row in range(positions.size):
        at = positions[row]
        if at < 0:
            continue
        end = at + value_length(data, at)
        if end - at > 1 and data[at] == _I:
            values[row] = TIMESTAMP_MAX_US
        elif end - at > 1 and data[at] == _MINUS and data[at + 1] == _I:
            values[row] = TIMESTAMP_MIN_US
        else:
            is_bc = _is_bc(data, at, end)
            days, at = _date(data, at, end, is_bc)
            if at < 0 or at >= end or data[at] != _SPACE:
                return row
            micros, at = _time(data, at + 1, end)
            if at < 0:
                return row
            east, at = _zone(data, at, end)
            if at != end - (3 if is_bc else 0):
                return row
            micros -= east
            is_past = days > _LAST_DAY or (days == _LAST_DAY and micros > _LAST_DAY_US)
            values[row] = TIMESTAMP_MAX_US if is_past else days * _DAY_US + micros
    return -1
