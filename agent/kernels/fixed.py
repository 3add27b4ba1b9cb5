"""Fixed-width kernels: loops that fill an Arrow buffer with a column's values, for every type of every source.

A *position* is the offset of a value's first byte, or negative for NULL. A loop is built from plain functions
(``jit.inlined``) that read one value and check its bytes. It fills ``values`` from row ``first`` on, stores 0 for NULL,
and returns the first bad row, or ``GOOD``.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.decimal128 import WORDS
from agent.kernels.jit import BITMAP, DATA, POSITIONS, Bytes, Ints, inlined, kernel

#: what a kernel returns if all rows are good; bad rows are numbered from 0
GOOD: Final = -1
#: the position of a missing value
NULL: Final = -1

#: returns the first bad row, or ``GOOD`` minus the number of rows it has set to NULL
Kernel = Callable[..., int]
_Read = Callable[[Any, int], Any]
_Check = Callable[[Any, int], bool]


@inlined
def _is_any(data: Any, at: int) -> bool:
    """Accept any value: the first pass has checked that its bytes are complete."""
    return True


def loop(read: _Read, stored: Any, is_good: _Check = _is_any) -> Kernel:
    """Return a kernel that reads values of the numba type ``stored``."""

    def fill(data: Any, positions: Any, values: Any, first: int) -> int:
        rest = values[first:]
        for row in range(positions.size):
            at = positions[row]
            if at < 0:
                rest[row] = 0
            elif is_good(data, at):
                rest[row] = read(data, at)
            else:
                return row
        return GOOD

    return kernel(types.int64(DATA, POSITIONS, stored[::1], types.int64))(fill)


def bit_loop(read: _Check, is_good: _Check = _is_any) -> Kernel:
    """Return a kernel that reads booleans into a zeroed bitmap; ``first`` is a multiple of 8."""

    def fill(data: Any, positions: Any, bitmap: Any, first: int) -> int:
        rest = bitmap[first >> 3 :]
        for row in range(positions.size):
            at = positions[row]
            if at >= 0:
                if not is_good(data, at):
                    return row
                if read(data, at):
                    rest[row >> 3] |= 1 << (row & 7)
        return GOOD

    return kernel(types.int64(DATA, POSITIONS, BITMAP, types.int64))(fill)


def word_loop(read: _Read) -> Kernel:
    """Return a kernel that reads unsigned 64-bit integers into decimals of scale 0."""

    def fill(data: Any, positions: Any, words: Any, first: int) -> int:
        rest = words[first:]
        for row in range(positions.size):
            at = positions[row]
            rest[row, 0] = read(data, at) if at >= 0 else np.uint64(0)  # one type, or both become floats
            rest[row, 1] = np.uint64(0)
        return GOOD

    return kernel(types.int64(DATA, POSITIONS, WORDS, types.int64))(fill)


def calendar_loop(read: Callable[[Any, int, int], tuple[int, int]], stored: Any) -> Kernel:
    """Return a kernel for dates and times: ``read`` gets the column's argument, and reports whether the date exists.

    If the date does not exist, the row is bad under the rule *strict*. Otherwise it becomes NULL: its position is
    cleared, and the kernel returns ``GOOD`` minus the number of such rows.
    """

    def fill(data: Any, positions: Any, values: Any, first: int, is_strict: bool, argument: int) -> int:
        result, rest = GOOD, values[first:]
        for row in range(positions.size):
            at = positions[row]
            if at < 0:
                rest[row] = 0
                continue
            value, exists = read(data, at, argument)
            if exists:
                rest[row] = value
            elif is_strict:
                return row
            else:
                rest[row] = 0
                positions[row] = NULL
                result -= 1
        return result

    return kernel(types.int64(DATA, POSITIONS, stored[::1], types.int64, types.boolean, types.int64))(fill)


@kernel(types.int64(POSITIONS, BITMAP, types.int64))
def fill_validity(positions: Ints, bitmap: Bytes, first: int) -> int:
    """Set the validity bits of all rows from ``first`` on, a multiple of 8; return the number of NULLs."""
    nulls, rows = 0, positions.size
    for byte in range((rows + 7) >> 3):
        bits = 0
        for bit in range(min(8, rows - byte * 8)):
            if positions[byte * 8 + bit] >= 0:
                bits |= 1 << bit
            else:
                nulls += 1
        bitmap[(first >> 3) + byte] = bits
    return nulls
