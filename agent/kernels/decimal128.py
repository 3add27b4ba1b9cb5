"""Decimal arithmetic of the decoding kernels: a value times 10^scale as a 128-bit integer, Arrow's decimal128.

The intermediate sum is four 32-bit limbs, least significant first.
"""

from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.jit import kernel

WORDS: Final = types.uint64[:, ::1]
_MASK = np.uint64(0xFFFFFFFF)
#: limbs of 10^precision, the exclusive upper bound of a value
_LIMITS = np.array([[10**k >> 32 * i & 0xFFFFFFFF for i in range(4)] for k in range(39)], np.uint64)


@kernel(types.boolean(types.uint64[::1], types.uint64, types.uint64))
def multiply_add(limbs: Any, factor: int, addend: int) -> bool:
    """Compute ``limbs = limbs * factor + addend`` (both below 2^32); return False if it overflows 128 bits."""
    carry = np.uint64(addend)
    for i in range(4):
        carry += limbs[i] * np.uint64(factor)
        limbs[i] = carry & _MASK
        carry >>= np.uint64(32)
    return bool(carry == np.uint64(0))


@kernel(types.boolean(types.uint64[::1], types.int64))
def is_below_power(limbs: Any, precision: int) -> bool:
    """Return whether the limbs are less than 10^precision."""
    for i in range(3, -1, -1):
        if limbs[i] != _LIMITS[precision, i]:
            return bool(limbs[i] < _LIMITS[precision, i])
    return False


@kernel(types.void(types.uint64[::1], types.boolean, WORDS, types.int64))
def store(limbs: Any, is_negative: bool, words: Any, row: int) -> None:
    """Write the limbs as a two's complement 128-bit integer, low word first."""
    low = limbs[0] | limbs[1] << np.uint64(32)
    high = limbs[2] | limbs[3] << np.uint64(32)
    if is_negative:
        low = ~low + np.uint64(1)
        high = ~high + np.uint64(1 if low == np.uint64(0) else 0)
    words[row, 0] = low
    words[row, 1] = high
