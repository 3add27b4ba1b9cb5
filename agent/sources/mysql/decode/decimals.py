"""Decimals: exact into decimal128, or into the server's own text where that has no room (more than 38 digits).

On the wire a decimal is a row of groups of nine digits, four bytes each and the highest first; what is left over at
both ends takes fewer bytes. The first bit is inverted, and a negative number's bits all are, so that bytes sort as
numbers do. ``Groups`` is that layout, computed once per column.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.decimal128 import WORDS, is_below_power, multiply_add, store
from agent.kernels.fixed import GOOD
from agent.kernels.jit import DATA, OFFSETS, OUT, POSITIONS, READ_OFFSETS, Ints, kernel
from agent.sources.mysql.decode.kernels.numbers import read_big_endian
from agent.sources.mysql.decode.types import DIGIT_BYTES

_GROUP_DIGITS = 9
#: what 64 bits hold for sure
_SMALL_PRECISION = 18
_POWERS = np.array([10**k for k in range(_SMALL_PRECISION + 1)], np.int64)
_INTS: Final = types.int64[::1]
_ZERO, _MINUS, _POINT = 48, 45, 46
_SIGN_BIT = 0x80


@dataclass(frozen=True, slots=True)
class Groups:
    """``digits`` and ``bytes`` of each group, highest first."""

    digits: Ints
    bytes: Ints
    precision: int
    scale: int

    @classmethod
    def of(cls, precision: int, scale: int) -> "Groups":
        whole, rest = divmod(precision - scale, _GROUP_DIGITS)
        fraction, fraction_rest = divmod(scale, _GROUP_DIGITS)
        sizes = [rest, *[_GROUP_DIGITS] * (whole + fraction), fraction_rest]
        digits = [size for size in sizes if size]
        return cls(np.array(digits, np.int64), np.array([DIGIT_BYTES[n] for n in digits], np.int64), precision, scale)

    @property
    def text_bytes(self) -> int:
        """Return the length of the longest text: sign, a zero before the point, the point."""
        return self.precision + 3


@kernel(types.int64(DATA, types.int64, types.int64, types.boolean, types.int64))
def _group(data: Any, at: int, count: int, is_negative: bool, is_first: int) -> int:
    """Return one group's number; the first bit tells whether the value is negative."""
    word = np.int64(read_big_endian(data, at, count))
    if is_negative:
        word ^= (1 << 8 * count) - 1
    if is_first:
        word ^= 1 << (8 * count - 1)
    return word  # type: ignore[return-value]


@kernel(types.int64(DATA, POSITIONS, WORDS, types.int64, _INTS, _INTS, types.int64))
def decode_decimal(data: Any, positions: Any, words: Any, first: int, digits: Any, sizes: Any, precision: int) -> int:
    """Fill 128-bit integers from row ``first`` on. A value of more than ``precision`` digits is bad."""
    limbs = np.zeros(4, np.uint64)
    for row in range(positions.size):
        at = positions[row]
        if at < 0:
            words[first + row, 0] = words[first + row, 1] = np.uint64(0)
            continue
        is_negative = data[at] & _SIGN_BIT == 0
        if precision <= _SMALL_PRECISION:
            total = np.int64(0)
            for i in range(digits.size):
                number = _group(data, at, sizes[i], is_negative, i == 0)
                if number >= _POWERS[digits[i]]:
                    return row
                total = total * _POWERS[digits[i]] + number
                at += sizes[i]
            words[first + row, 0] = np.uint64(-total if is_negative else total)
            words[first + row, 1] = np.uint64(-1 if is_negative and total else 0)
            continue
        limbs[:] = np.uint64(0)
        fits = True
        for i in range(digits.size):
            number = _group(data, at, sizes[i], is_negative, i == 0)
            fits &= number < _POWERS[digits[i]]
            fits &= multiply_add(limbs, np.uint64(_POWERS[digits[i]]), np.uint64(number))
            at += sizes[i]
        if not fits or not is_below_power(limbs, precision):
            return row
        store(limbs, is_negative, words, first + row)
    return GOOD


@kernel(types.int64(DATA, READ_OFFSETS, _INTS, _INTS, types.int64, OFFSETS, OUT))
def write_decimals(data: Any, offsets: Any, digits: Any, sizes: Any, scale: int, out_offsets: Any, out: Any) -> int:
    """Write whole values (nothing for NULL) as text, with all digits of the fraction. Return the bytes written."""
    total = 0
    scratch = np.empty(128, np.uint8)
    for row in range(offsets.size - 1):
        out_offsets[row] = total
        at = offsets[row]
        if offsets[row + 1] == at:
            continue
        is_negative = data[at] & _SIGN_BIT == 0
        count = 0
        for i in range(digits.size):
            number = _group(data, at, sizes[i], is_negative, i == 0)
            for k in range(digits[i] - 1, -1, -1):
                scratch[count + k] = _ZERO + number % 10
                number //= 10
            count += digits[i]
            at += sizes[i]
        if is_negative:
            out[total] = _MINUS
            total += 1
        start = 0
        while start < count - scale and scratch[start] == _ZERO:
            start += 1
        if start == count - scale:
            out[total] = _ZERO
            total += 1
        for k in range(start, count):
            if k == count - scale:
                out[total] = _POINT
                total += 1
            out[total] = scratch[k]
            total += 1
    out_offsets[offsets.size - 1] = total
    return total
