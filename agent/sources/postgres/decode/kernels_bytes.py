"""Second pass, types of variable width: strings, bytes, uuid and hexadecimal bytea, into Arrow offsets and data.

Always two steps: ``*_offsets`` sums the lengths (and finds out whether 32-bit offsets hold them), ``copy_*`` fills
the data (``agent.kernels.text`` has the one for plain copies). Text is copied as it is: the session's client encoding
is UTF-8.
"""

from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.fixed import GOOD
from agent.kernels.jit import DATA, OFFSETS, OUT, POSITIONS, inlined, kernel
from agent.kernels.text import TOO_LARGE, kernels_for
from agent.sources.postgres.decode.wire import value_length

_I32_MAX = 2**31 - 1
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
UUID_TEXT_BYTES: Final = 36


@inlined
def _length_before(data: Any, _: Any, __: int, at: int) -> int:
    return value_length(data, at)  # type: ignore[no-any-return]


#: of values as they come: text, and bytes that are copied as they are
TEXT: Final = kernels_for(_length_before)


@kernel(types.int64(DATA, POSITIONS))
def check_jsonb_version(data: Any, positions: Any) -> int:
    """Return ``GOOD``, or the first row that is not version 1 of jsonb."""
    for row in range(positions.size):
        at = positions[row]
        if at >= 0 and (value_length(data, at) < 1 or data[at] != 1):
            return row
    return GOOD


@kernel(types.int64(DATA, POSITIONS, OFFSETS))
def uuid_offsets(data: Any, positions: Any, offsets: Any) -> int:
    total = 0
    offsets[0] = 0
    for row in range(positions.size):
        at = positions[row]
        if at >= 0:
            if value_length(data, at) != 16:
                return row
            total += UUID_TEXT_BYTES
            if total > _I32_MAX:
                return TOO_LARGE
        offsets[row + 1] = total
    return GOOD


@kernel(types.int64(DATA, POSITIONS, OFFSETS, OUT))
def copy_uuids(data: Any, positions: Any, offsets: Any, out: Any) -> int:
    for row in range(positions.size):
        if positions[row] >= 0:
            source, target = np.uint64(positions[row]), np.uint64(offsets[row])
            for i in range(16):
                if i == 4 or i == 6 or i == 8 or i == 10:
                    out[target] = 45
                    target += np.uint64(1)
                byte = data[source + np.uint64(i)]
                out[target] = _HEX[byte >> 4]
                out[target + np.uint64(1)] = _HEX[byte & 15]
                target += np.uint64(2)
    return GOOD


@kernel(types.int64(DATA, POSITIONS, OFFSETS))
def hex_offsets(data: Any, positions: Any, offsets: Any) -> int:
    """Fill ``offsets`` for bytea's text form ``\\xdeadbeef``."""
    total = 0
    offsets[0] = 0
    for row in range(positions.size):
        at = positions[row]
        if at >= 0:
            length = value_length(data, at)
            if length < 2 or length % 2 != 0 or data[at] != 92 or data[at + 1] != 120:
                return row
            total += length // 2 - 1
            if total > _I32_MAX:
                return TOO_LARGE
        offsets[row + 1] = total
    return GOOD


@kernel(types.int64(types.uint8))
def _nibble(character: int) -> int:
    if 48 <= character <= 57:
        return character - 48
    if 97 <= character <= 102:
        return character - 87
    return -1


@kernel(types.int64(DATA, POSITIONS, OFFSETS, OUT))
def copy_hex(data: Any, positions: Any, offsets: Any, out: Any) -> int:
    for row in range(positions.size):
        source = positions[row] + 2
        for target in range(offsets[row], offsets[row + 1]):
            high, low = _nibble(data[source]), _nibble(data[source + 1])
            if high < 0 or low < 0:
                return row
            out[target] = high << 4 | low
            source += 2
    return GOOD
