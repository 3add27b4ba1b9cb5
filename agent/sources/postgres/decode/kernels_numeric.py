"""Second pass, numeric: exact into decimal128, or into PostgreSQL's own text if no decimal128 holds it.

The binary form is a count of base-10000 digits, the weight of the first one, a sign, the display scale, the digits. A
decimal column holds the value times 10^scale as a 128-bit integer: values of up to 18 digits are summed in 64 bits,
wider ones in four 32-bit limbs. ``NaN`` and the infinities have no decimal: the row becomes NULL in a decimal column,
and keeps its name in a text column.
"""

from typing import Any

import numpy as np
from numba import types

from agent.kernels.decimal128 import WORDS, is_below_power, multiply_add, store
from agent.kernels.fixed import GOOD, NULL
from agent.kernels.jit import DATA, OFFSETS, OUT, POSITIONS, kernel
from agent.kernels.text import TOO_LARGE
from agent.sources.postgres.decode.wire import read_i16, value_length

_HEADER_BYTES = 8
_POSITIVE, _NEGATIVE, _NAN, _PLUS_INFINITY, _MINUS_INFINITY = 0x0000, 0x4000, 0xC000, 0xD000, 0xF000
_I32_MAX = 2**31 - 1
_POWERS = np.array([10**k for k in range(19)], np.int64)
_NAN_BYTES = 3
_NAMES = np.frombuffer(b"NaN-Infinity", np.uint8)


@kernel(types.int64(DATA, types.int64))
def _digit_count(data: Any, at: int) -> int:
    """Return the count of base-10000 digits, which is unsigned: the largest numbers have 32,768."""
    return read_i16(data, at) & 0xFFFF  # type: ignore[no-any-return]


@kernel(types.boolean(DATA, types.int64, types.int64, types.int64, types.uint64[::1]))
def _sum_digits(data: Any, at: int, digits: int, exponent: int, limbs: Any) -> bool:
    """Sum the digits into the limbs, scaled so that the last one counts 10^exponent; return False if that is not
    exact."""
    limbs[:] = np.uint64(0)
    fits = True
    for i in range(digits):
        digit = read_i16(data, at + 2 * i)
        if digit < 0 or digit > 9999:
            return False
        if i == digits - 1 and exponent < 0:
            drop = _POWERS[min(-exponent, 4)]
            if digit % drop != 0 or exponent < -3:
                return False
            fits &= multiply_add(limbs, np.uint64(10_000 // drop), np.uint64(digit // drop))
        else:
            fits &= multiply_add(limbs, np.uint64(10_000), np.uint64(digit))
    while exponent > 0:
        step = min(exponent, 9)
        fits &= multiply_add(limbs, np.uint64(_POWERS[step]), np.uint64(0))
        exponent -= step
    return fits


@kernel(types.int64(DATA, types.int64, types.int64, types.int64))
def _sum_small(data: Any, at: int, digits: int, exponent: int) -> int:
    """As ``_sum_digits``, for values below 10^18; return -1 if not exact."""
    total = 0
    for i in range(digits):
        digit = read_i16(data, at + 2 * i)
        if digit < 0 or digit > 9999:
            return -1
        total = total * 10_000 + digit
    if exponent >= 0:
        return total * _POWERS[exponent]  # type: ignore[no-any-return]
    drop = _POWERS[min(-exponent, 4)]
    return total // drop if total % drop == 0 and exponent >= -3 else -1


@kernel(types.int64(DATA, POSITIONS, types.int64, types.int64, WORDS))
def decode_decimal(data: Any, positions: Any, precision: int, scale: int, words: Any) -> int:
    """Fill 128-bit integers; NaN and infinities become NULL. Return -1, or the first row that does not fit."""
    limbs = np.zeros(4, np.uint64)
    for row in range(positions.size):
        at = positions[row]
        if at < 0:
            continue
        length = value_length(data, at)
        digits = _digit_count(data, at) if length >= _HEADER_BYTES else -1
        if digits < 0 or length != _HEADER_BYTES + 2 * digits:
            return row
        sign = read_i16(data, at + 4) & 0xFFFF
        if sign != _POSITIVE and sign != _NEGATIVE:
            if sign != _NAN and sign != _PLUS_INFINITY and sign != _MINUS_INFINITY:
                return row
            positions[row] = NULL
            continue
        weight = read_i16(data, at + 2)
        exponent = 4 * (weight - digits + 1) + scale if digits else 0
        if digits <= 4 and 4 * (weight + 1) + scale <= 18 and exponent > -4:
            value = _sum_small(data, at + _HEADER_BYTES, digits, exponent)
            if value < 0 or (precision < 19 and value >= _POWERS[min(precision, 18)]):
                return row
            words[row, 0] = np.uint64(-value if sign == _NEGATIVE else value)
            words[row, 1] = np.uint64(-1 if sign == _NEGATIVE and value else 0)
            continue
        if exponent > 38 or digits > 12:
            return row
        if not _sum_digits(data, at + _HEADER_BYTES, digits, exponent, limbs) or not is_below_power(limbs, precision):
            return row
        store(limbs, sign == _NEGATIVE, words, row)
    return -1


@kernel(types.boolean(types.int64))
def _is_sign(sign: int) -> bool:
    return bool(sign in (_POSITIVE, _NEGATIVE, _NAN, _PLUS_INFINITY, _MINUS_INFINITY))


@kernel(types.int64(types.int64))
def _width(digit: int) -> int:
    """Return the number of decimal digits of a number in 0..9999; 0 has one."""
    if digit >= 100:
        return 4 if digit >= 1000 else 3
    return 2 if digit >= 10 else 1


@kernel(types.int64(DATA, types.int64))
def _text_length(data: Any, at: int) -> int:
    sign = read_i16(data, at + 4) & 0xFFFF
    if sign == _NAN:
        return 3
    if sign == _PLUS_INFINITY or sign == _MINUS_INFINITY:  # noqa: SIM109
        return 8 if sign == _PLUS_INFINITY else 9
    digits, weight, scale = _digit_count(data, at), read_i16(data, at + 2), read_i16(data, at + 6)
    whole = 1
    if weight >= 0 and digits > 0:
        whole = 4 * weight + _width(read_i16(data, at + _HEADER_BYTES))
    return (1 if sign == _NEGATIVE else 0) + whole + (scale + 1 if scale > 0 else 0)


@kernel(types.int64(DATA, POSITIONS, OFFSETS))
def numeric_text_offsets(data: Any, positions: Any, offsets: Any) -> int:
    total = 0
    offsets[0] = 0
    for row in range(positions.size):
        at = positions[row]
        if at >= 0:
            length = value_length(data, at)
            digits = _digit_count(data, at) if length >= _HEADER_BYTES else -1
            if digits < 0 or length != _HEADER_BYTES + 2 * digits or not _is_sign(read_i16(data, at + 4) & 0xFFFF):
                return row
            total += _text_length(data, at)
            if total > _I32_MAX:
                return TOO_LARGE
        offsets[row + 1] = total
    return -1


@kernel(types.int64(DATA, types.int64, types.int64, types.int64, types.int64))
def _digit(data: Any, at: int, digits: int, weight: int, group: int) -> int:
    """Return the base-10000 digit that counts 10000^group; 0 outside the digits that were sent."""
    index = weight - group
    return read_i16(data, at + _HEADER_BYTES + 2 * index) if 0 <= index < digits else 0


@kernel(types.void(DATA, types.int64, OUT, types.int64, types.int64))
def _write_text(data: Any, at: int, out: Any, start: int, end: int) -> None:
    sign = read_i16(data, at + 4) & 0xFFFF
    if sign != _POSITIVE and sign != _NEGATIVE:
        name = 0 if sign == _NAN else (_NAN_BYTES + 1 if sign == _PLUS_INFINITY else _NAN_BYTES)
        for i in range(end - start):
            out[start + i] = _NAMES[name + i]
        return
    digits, weight, scale = _digit_count(data, at), read_i16(data, at + 2), read_i16(data, at + 6)
    if sign == _NEGATIVE:
        out[start] = 45
    point = end - scale - 1 if scale > 0 else end
    # Whole part from the right, four digits at a time; then the fraction from the left.
    place, group = point - 1, 0
    first = start + 1 if sign == _NEGATIVE else start
    while place >= first:
        digit = _digit(data, at, digits, weight, group)
        for _ in range(min(4, place - first + 1)):
            out[place] = 48 + digit % 10
            digit //= 10
            place -= 1
        group += 1
    if scale > 0:
        out[point] = 46
        for i in range(scale):
            digit = _digit(data, at, digits, weight, -1 - i // 4)
            out[point + 1 + i] = 48 + digit // _POWERS[3 - i % 4] % 10


@kernel(types.int64(DATA, POSITIONS, OFFSETS, OUT))
def copy_numeric_text(data: Any, positions: Any, offsets: Any, out: Any) -> int:
    for row in range(positions.size):
        if positions[row] >= 0:
            _write_text(data, positions[row], out, offsets[row], offsets[row + 1])
    return GOOD
