"""Second pass, numbers: one kernel per width and sign, each a loop of ``agent.kernels.fixed`` over a reading function.

Widths need no check here: ``locate`` has checked that a value's bytes are complete.
"""

from typing import Any

import numpy as np
from numba import types

from agent.kernels.fixed import GOOD, bit_loop, loop, word_loop
from agent.kernels.jit import DATA, POSITIONS, inlined, kernel
from agent.sources.mysql.decode.wire import read_u16, read_u24, read_u32, read_u64

_YEAR_ZERO = 1900


@inlined
def _byte(data: Any, at: int) -> Any:
    return data[at]


@inlined
def _u16(data: Any, at: int) -> Any:
    return read_u16(data, at)


@inlined
def _u24(data: Any, at: int) -> Any:
    return read_u24(data, at)


@inlined
def _i24(data: Any, at: int) -> Any:
    return (read_u24(data, at) ^ 0x800000) - 0x800000


@inlined
def _u32(data: Any, at: int) -> Any:
    return read_u32(data, at)


@inlined
def _u64(data: Any, at: int) -> Any:
    return read_u64(data, at)


@inlined
def _year(data: Any, at: int) -> Any:
    """Return the year; the year 0000 is stored as 0, and all others are after 1900."""
    year = np.int64(data[at])
    return year + _YEAR_ZERO if year else year


@inlined
def _is_one(data: Any, at: int) -> bool:
    return bool(data[at] != 0)


@kernel(types.uint64(DATA, types.int64, types.int64))
def read_big_endian(data: Any, at: int, count: int) -> Any:
    word = np.uint64(0)
    for i in range(count):
        word = (word << np.uint64(8)) | np.uint64(data[at + i])
    return word


@inlined
def _bits64(data: Any, at: int) -> Any:
    return read_big_endian(data, at, 8)


# A number of as many bytes as are stored takes its sign from them.
decode_int8 = loop(_byte, types.int8)
decode_uint8 = loop(_byte, types.int16)
decode_int16 = loop(_u16, types.int16)
decode_uint16 = loop(_u16, types.int32)
decode_int24 = loop(_i24, types.int32)
decode_uint24 = loop(_u24, types.int32)
#: int, and float seen as its bits
decode_int32 = loop(_u32, types.int32)
decode_uint32 = loop(_u32, types.int64)
#: bigint, and double seen as its bits
decode_int64 = loop(_u64, types.int64)
#: bigint unsigned as decimal128(20, 0)
decode_uint64 = word_loop(_u64)
decode_year = loop(_year, types.int16)
#: bit(1)
decode_bool = bit_loop(_is_one)
decode_bits64 = word_loop(_bits64)


@kernel(types.int64(DATA, POSITIONS, types.int64[::1], types.int64, types.int64))
def decode_bits(data: Any, positions: Any, values: Any, first: int, width: int) -> int:
    """Decode bit(2) to bit(63)."""
    for row in range(positions.size):
        at = positions[row]
        values[first + row] = np.int64(read_big_endian(data, at, width)) if at >= 0 else 0
    return GOOD


@kernel(types.int64(DATA, POSITIONS, types.int32[::1], types.int64, types.int64, types.int64))
def decode_member(data: Any, positions: Any, values: Any, first: int, width: int, members: int) -> int:
    """Decode an enum's number, 1 to ``members``; 0 is the empty text of a rejected value. Any other number is bad."""
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
    """Decode a set's bits. A bit without a member is bad."""
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
