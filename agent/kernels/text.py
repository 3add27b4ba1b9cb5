"""Text kernels: parse numbers and booleans written as ASCII into Arrow values, for every source that sends text.

``kernels_for`` builds them for one protocol, given a plain function (``jit.inlined``) that returns a value's length. A
value starts at ``starts[row]`` (``NULL`` if missing); ``lengths`` is passed to that function only. Each kernel returns
the first row whose text is not of the type, or ``GOOD``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.decimal128 import WORDS, is_below_power, multiply_add, store
from agent.kernels.fixed import GOOD, NULL, Kernel
from agent.kernels.jit import BITMAP, DATA, OFFSETS, OUT, POSITIONS, kernel

_LENGTHS: Final = types.int64[::1]
_INPUT: Final = (DATA, POSITIONS, _LENGTHS)
#: more than 2 GiB of one column in one batch; below ``GOOD`` by more than a batch has rows
TOO_LARGE: Final = -(2**40)

_I32_MAX = 2**31 - 1
_I64_MAX = 2**63 - 1
_MINUS, _POINT, _N, _I = ord("-"), ord("."), ord("N"), ord("I")
#: the largest sum of digits that can take one more without overflow
_SAFE = 10**17
#: the number of digits that always fit into 64 bits
_SHORT = 17
_POWERS = np.array([10**k for k in range(19)], np.int64)


@kernel(types.boolean(DATA, types.int64, types.int64, types.int64, types.int64, WORDS, types.int64))
def _parse_wide(data: Any, at: int, end: int, scale: int, precision: int, words: Any, row: int) -> bool:
    """Parse one decimal of any size, with limbs."""
    limbs = np.zeros(4, np.uint64)
    is_negative = data[at] == _MINUS
    at += 1 if is_negative else 0
    missing, seen_point, fits = scale, False, at < end
    while at < end:
        character = data[at]
        at += 1
        if character == _POINT and not seen_point:
            seen_point = True
            continue
        if character < 48 or character > 57:
            return False
        missing -= 1 if seen_point else 0
        if missing < 0:
            fits &= character == 48  # more zeros than the scale has
        else:
            fits &= multiply_add(limbs, np.uint64(10), np.uint64(character - 48))
    for _ in range(missing):
        fits &= multiply_add(limbs, np.uint64(10), np.uint64(0))
    if not fits or not is_below_power(limbs, precision):
        return False
    store(limbs, is_negative, words, row)
    return True


@kernel(types.void(DATA, POSITIONS, types.int64, OFFSETS, OUT))
def copy_values(data: Any, starts: Any, skip: int, offsets: Any, out: Any) -> None:
    for row in range(starts.size):
        # unsigned, so that LLVM recognises a plain copy
        source, target = np.uint64(starts[row] + skip), np.uint64(offsets[row])
        for i in range(np.uint64(offsets[row + 1] - offsets[row])):
            out[target + i] = data[source + i]


Function = Callable[..., Any]
#: ``length_of(data, lengths, row, at)``: the value's length in bytes
LengthOf = Callable[[Any, Any, int, int], int]


@dataclass(frozen=True, slots=True)
class TextKernels:
    """The kernels of one protocol. All take ``data, starts, lengths`` first, and the buffers they fill last."""

    integers: Kernel
    flags: Kernel
    decimals: Kernel
    offsets: Kernel


def _integers(length_of: LengthOf) -> Function:
    def parse_integers(data: Any, starts: Any, lengths: Any, low: int, high: int, values: Any) -> int:
        """Parse integers within ``[low, high]``."""
        for row in range(starts.size):
            at = starts[row]
            if at < 0:
                values[row] = 0
                continue
            end = at + length_of(data, lengths, row, at)
            is_negative = at < end and data[np.uint64(at)] == _MINUS
            at += 1 if is_negative else 0
            if at >= end or end - at > 19:
                return row
            # Summed upward without a sign: 19 digits never overflow 64 bits.
            total = np.uint64(0)
            while at < end:
                digit = data[np.uint64(at)] - np.uint8(48)
                if digit > 9:
                    return row
                total = total * np.uint64(10) + np.uint64(digit)
                at += 1
            if total > np.uint64(_I64_MAX) + np.uint64(1 if is_negative else 0):
                return row
            value = np.int64(~total + np.uint64(1)) if is_negative else np.int64(total)
            if value < low or value > high:
                return row
            values[row] = value
        return GOOD

    return parse_integers


def _flags(length_of: LengthOf) -> Function:
    def parse_flags(data: Any, starts: Any, lengths: Any, false: int, true: int, bitmap: Any) -> int:
        """Parse one of two characters each into a zeroed bitmap."""
        for row in range(starts.size):
            at = starts[row]
            if at >= 0:
                if length_of(data, lengths, row, at) != 1 or (data[at] != false and data[at] != true):
                    return row
                if data[at] == true:
                    bitmap[row >> 3] |= 1 << (row & 7)
        return GOOD

    return parse_flags


def _decimals(length_of: LengthOf) -> Function:
    def parse_decimals(data: Any, starts: Any, lengths: Any, precision: int, scale: int, words: Any) -> int:
        """Parse decimals of ``scale`` fractional digits into 128-bit integers. NaN and the infinities become NULL."""
        for row in range(starts.size):
            at = starts[row]
            if at < 0:
                continue
            length = length_of(data, lengths, row, at)
            end = at + length
            is_negative = length > 0 and data[at] == _MINUS
            at += 1 if is_negative else 0
            if at >= end:
                return row
            if data[at] == _N or data[at] == _I:
                starts[row] = NULL
                continue
            total: Any = 0
            missing, seen_point, is_short = scale, False, length <= _SHORT
            while at < end and is_short:
                character = data[np.uint64(at)]
                at += 1
                if character == _POINT and not seen_point:
                    seen_point = True
                    continue
                if character < 48 or character > 57:
                    return row
                missing -= 1 if seen_point else 0
                is_short = missing >= 0
                total = total * 10 + np.int64(character - np.uint8(48))
            if not is_short or missing > 18 or (missing > 0 and total > _SAFE // _POWERS[missing - 1]):
                if not _parse_wide(data, starts[row], end, scale, precision, words, row):
                    return row
                continue
            total *= _POWERS[missing]
            if precision < 19 and total >= _POWERS[min(precision, 18)]:
                return row
            words[row, 0] = np.uint64(-total if is_negative else total)
            words[row, 1] = np.uint64(-1 if is_negative and total else 0)
        return GOOD

    return parse_decimals


def _offsets(length_of: LengthOf) -> Function:
    def sum_lengths(data: Any, starts: Any, lengths: Any, skip: int, offsets: Any) -> int:
        """Fill ``offsets`` for values without their first ``skip`` bytes; an empty one stays empty. Return the first
        row that is shorter, or ``TOO_LARGE``."""
        total = 0
        offsets[0] = 0
        for row in range(starts.size):
            at = starts[row]
            if at >= 0:
                length = length_of(data, lengths, row, at)
                if length > 0:
                    length -= skip
                if length < 0:
                    return row
                total += length
                if total > _I32_MAX:
                    return TOO_LARGE
            offsets[row + 1] = total
        return GOOD

    return sum_lengths


def kernels_for(length_of: LengthOf) -> TextKernels:
    """Return the kernels of one protocol."""
    return TextKernels(
        kernel(types.int64(*_INPUT, types.int64, types.int64, types.int64[::1]))(_integers(length_of)),
        kernel(types.int64(*_INPUT, types.int64, types.int64, BITMAP))(_flags(length_of)),
        kernel(types.int64(*_INPUT, types.int64, types.int64, WORDS))(_decimals(length_of)),
        kernel(types.int64(*_INPUT, types.int64, OFFSETS))(_offsets(length_of)),
    )
