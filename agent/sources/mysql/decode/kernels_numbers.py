"""Second pass, numbers: from positions to an Arrow value buffer, one kernel per width and sign.

All fill ``values`` from row ``first`` on; rows without a value become 0. Widths need no check here: ``locate`` has made
sure that a value's bytes are there.
"""

from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.decimal128 import WORDS
from agent.kernels.jit import DATA, kernel
from agent.sources.mysql.decode.wire import read_u16, read_u24, read_u32, read_u64

POSITIONS: Final = types.int64[::1]
#: what every such kernel returns when all rows are good: bad ones are numbered from 0
GOOD: Final = -1

_YEAR_ZERO = 1900


def _signature(value: Any) -> Any:
    return types.int64(DATA, POSITIONS, value[::1], types.int64)


@kernel(_signature(types.int8))
def decode_int8(data: Any, positions: Any, values: Any, first: int) -> int:
    for row in range(positions.size):
        at = positions[row]
        values[first + row] = np.int8(data[at]) if at >= 0 else 0
    return GOOD


@kernel(_signature(types.int16))
def decode_uint8(data: Any, positions: Any, values: Any, first: int) -> int:
    for row in range(positions.size):
        at = positions[row]
        values[first + row] = data[at] if at >= 0 else 0
    return GOOD


@kernel(_signature(types.int16))
def decode_int16(data: Any, positions: Any, values: Any, first: int) -> int:
    for row in range(positions.size):
        at = positions[row]
        values[first + row] = np.int16(read_u16(data, at)) if at >= 0 else 0
    return GOOD


@kernel(_signature(types.int32))
def decode_uint16(data: Any, positions: Any, values: Any, first: int) -> int:
    for row in range(positions.size):
        at = positions[row]
        values[first + row] = read_u16(data, at) if at >= 0 else 0
    return GOOD


@kernel(_signature(types.int32))
def decode_int24(data: Any, positions: Any, values: Any, first: int) -> int:
    for row in range(positions.size):
        at = positions[row]
        values[first + row] = (read_u24(data, at) ^ 0x800000) - 0x800000 if at >= 0 else 0
    return GOOD


@kernel(_signature(types.int32))
def decode_uint24(data: Any, positions: Any, values: Any, first: int) -> int:
    for row in range(positions.size):
        at = positions[row]
        values[first + row] = read_u24(data, at) if at >= 0 else 0
    return GOOD


@kernel(_signature(types.int32))
def decode_int32(data: Any, positions: Any, values: Any, first: int) -> int:
    """int, and float seen as its bits."""
    for row in range(positions.size):
        at = positions[row]
        values[first + row] = np.int32(read_u32(data, at)) if at >= 0 else 0
    return GOOD


@kernel(_signature(types.int64))
def decode_uint32(data: Any, positions: Any, values: Any, first: int) -> int:
    for row in range(positions.size):
        at = positions[row]
        values[first + row] = read_u32(data, at) if at >= 0 else 0
    return GOOD


@kernel(_signature(types.int64))
def decode_int64(data: Any, positions: Any, values: Any, first: int) -> int:
    """bigint, and double seen as its bits."""
    for row in range(positions.size):
        at = positions[row]
        values[first + row] = np.int64(read_u64(data, at)) if at >= 0 else 0
    return GOOD


@kernel(types.int64(DATA, POSITIONS, WORDS, types.int64))
def decode_uint64(data: Any, positions: Any, words: Any, first: int) -> int:
    """bigint unsigned as decimal128(20, 0)."""
    for row in range(positions.size):
        at = positions[row]
        words[first + row, 0] = read_u64(data, at) if at >= 0 else np.uint64(0)
        words[first + row, 1] = np.uint64(0)
    return GOOD


@kernel(_signature(types.int16))
def decode_year(data: Any, positions: Any, values: Any, first: int) -> int:
    """The year 0000 is stored as 0, and no other comes before 1901."""
    for row in range(positions.size):
        at = positions[row]
        year = np.int64(data[at]) if at >= 0 else 0
        values[first + row] = year + _YEAR_ZERO if year else 0
    return GOOD


@kernel(types.int64(DATA, POSITIONS, types.uint8[::1], types.int64))
def decode_bool(data: Any, positions: Any, bitmap: Any, first: int) -> int:
    """bit(1). The bitmap comes filled with zeros; ``first`` is a multiple of 8."""
    for row in range(positions.size):
        at = positions[row]
        if at >= 0 and data[at]:
            bitmap[(first + row) >> 3] |= 1 << (row & 7)
    return GOOD


@kernel(types.uint64(DATA, types.int64, types.int64))
def read_big_endian(data: Any, at: int, count: int) -> Any:
    word = np.uint64(0)
    for i in range(count):
        word = (word << np.uint64(8)) | np.uint64(data[at + i])
    return word


@kernel(types.int64(DATA, POSITIONS, types.int64[::1], types.int64, types.int64))
def decode_bits(data: Any, positions: Any, values: Any, first: int, width: int) -> int:
    """bit(2) to bit(63)."""
    for row in range(positions.size):
        at = positions[row]
        values[first + row] = np.int64(read_big_endian(data, at, width)) if at >= 0 else 0
    return GOOD


@kernel(types.int64(DATA, POSITIONS, WORDS, types.int64))
def decode_bits64(data: Any, positions: Any, words: Any, first: int) -> int:
    for row in range(positions.size):
        at = positions[row]
        words[first + row, 0] = read_big_endian(data, at, 8) if at >= 0 else np.uint64(0)
        words[first + row, 1] = np.uint64(0)
    return GOOD


@kernel(types.int64(DATA, POSITIONS, types.int32[::1], types.int64, types.int64, types.int64))
def decode_member(data: Any, positions: Any, values: Any, first: int, width: int, members: int) -> int:
    """An enum's number, 1 to ``members``; 0 is the empty text of a value that was refused. Bad is any other."""
    for row in range(positions.size):
        at = positions[row]
        number = np.int64(data[at]) if at >= 0 else np.int64(0)
        if at >= 0 and width == 2:
            number = read_u16(data, at)
        if number > members:
            return row
        values[first + row] = number
    return GOOD


@kernel(types.int64(DATA, POSITIONS, types.uint64[::1], types.int64, types.int64, types.int64))
def decode_member_set(data: Any, positions: Any, values: Any, first: int, width: int, members: int) -> int:
    """A set's bits. Bad is a bit that no member has."""
    for row in range(positions.size):
        at = positions[row]
        bits = np.uint64(0)
        if at >= 0:
            for i in range(width):
                bits |= np.uint64(data[at + i]) << np.uint64(8 * i)
        if members < 64 and bits >> np.uint64(members):
            return row
        values[first + row] = bits
    return GOOD


@kernel(types.int64(POSITIONS, types.uint8[::1], types.int64))
def fill_validity(positions: Any, bitmap: Any, first: int) -> int:
    """Set the bits of all rows from ``first`` on, a multiple of 8; returns how many are NULL."""
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
