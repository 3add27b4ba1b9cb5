"""Second pass, values of variable width: copied into Arrow's offsets and data, or written out as text."""

from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.fixed import GOOD
from agent.kernels.jit import DATA, OFFSETS, OUT, POSITIONS, READ_OFFSETS, kernel
from agent.sources.mysql.decode.wire import read_u16, read_u24, read_u32

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
UUID_TEXT_BYTES: Final = 36
_HYPHEN = 45


@kernel(types.int64(DATA, types.int64, types.int64, types.int64))
def value_length(data: Any, at: int, prefix: int, fixed: int) -> int:
    """Return the length of the value at ``at``: ``fixed``, or what the ``prefix`` bytes before it say."""
    if prefix == 1:
        return data[at - 1]  # type: ignore[no-any-return]
    if prefix == 2:
        return read_u16(data, at - 2)  # type: ignore[no-any-return]
    if prefix == 0:
        return fixed
    return read_u24(data, at - 3) if prefix == 3 else read_u32(data, at - 4)  # type: ignore[no-any-return]


@kernel(types.int64(DATA, POSITIONS, types.int64, types.int64, OFFSETS, types.int64, OUT))
def copy_values(data: Any, positions: Any, prefix: int, skip: int, offsets: Any, first: int, out: Any) -> int:
    """Copy values without their first ``skip`` bytes. ``offsets[first]`` is where ``out`` continues.

    An empty value stays empty; any other one that is shorter than ``skip`` is bad.
    """
    total = np.int64(offsets[first])
    for row in range(positions.size):
        at = positions[row]
        if at >= 0:
            length = value_length(data, at, prefix, 0)
            if length > 0:
                length -= skip
            if length < 0:
                return row
            source, target = np.uint64(at + skip), np.uint64(total)
            for i in range(np.uint64(length)):
                out[target + i] = data[source + i]
            total += length
        offsets[first + row + 1] = total
    return GOOD


@kernel(types.int64(DATA, POSITIONS, types.int64, types.int64, OFFSETS, types.int64, OUT))
def copy_padded(data: Any, positions: Any, prefix: int, width: int, offsets: Any, first: int, out: Any) -> int:
    """Copy values of ``width`` bytes; the log may leave out trailing zeros. A longer value is bad."""
    total = np.int64(offsets[first])
    for row in range(positions.size):
        at = positions[row]
        if at >= 0:
            length = value_length(data, at, prefix, width)
            if length > width:
                return row
            for i in range(width):
                out[total + i] = data[at + i] if i < length else 0
            total += width
        offsets[first + row + 1] = total
    return GOOD


@kernel(types.int64(DATA, READ_OFFSETS, DATA, READ_OFFSETS, OFFSETS, OUT))
def translate(data: Any, offsets: Any, characters: Any, starts: Any, out_offsets: Any, out: Any) -> int:
    """Translate text of one byte per character into UTF-8; byte ``b`` becomes ``characters[starts[b]:starts[b + 1]]``.

    Return the bytes written.
    """
    total = 0
    for row in range(offsets.size - 1):
        out_offsets[row] = total
        for at in range(offsets[row], offsets[row + 1]):
            byte = data[at]
            for i in range(starts[byte], starts[byte + 1]):
                out[total] = characters[i]
                total += 1
    out_offsets[offsets.size - 1] = total
    return total


@kernel(types.int64(DATA, READ_OFFSETS, OFFSETS, OUT))
def write_uuids(data: Any, offsets: Any, out_offsets: Any, out: Any) -> int:
    """Write values of 16 bytes, or NULLs, as lower-case text. Return the bytes written."""
    total = 0
    for row in range(offsets.size - 1):
        out_offsets[row] = total
        for i in range(offsets[row + 1] - offsets[row]):
            if i == 4 or i == 6 or i == 8 or i == 10:
                out[total] = _HYPHEN
                total += 1
            byte = data[offsets[row] + i]
            out[total] = _HEX[byte >> 4]
            out[total + 1] = _HEX[byte & 15]
            total += 2
    out_offsets[offsets.size - 1] = total
    return total
