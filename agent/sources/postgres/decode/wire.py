"""Big-endian reads for the kernels, and the types of their signatures.

Offsets are unsigned inside the reads: numba then leaves out its negative-index handling and LLVM turns four byte loads
into one swapped word.

The four bytes before a value's position are its length.
"""

from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.jit import DATA, kernel

#: PostgreSQL counts microseconds from 2000: what has to be added for Unix microseconds
CLOCK_EPOCH: Final = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000

#: the position of a value that an update left out; ``fixed.NULL`` is that of NULL
UNCHANGED: Final = -2


@kernel(types.int64(DATA, types.int64))
def read_i16(data: Any, at: int) -> int:
    p = np.uint64(at)
    word = (np.uint16(data[p]) << np.uint16(8)) | np.uint16(data[p + np.uint64(1)])
    return np.int64(np.int16(word))  # type: ignore[return-value]


@kernel(types.int64(DATA, types.int64))
def read_i32(data: Any, at: int) -> int:
    p = np.uint64(at)
    word = (
        (np.uint32(data[p]) << np.uint32(24))
        | (np.uint32(data[p + np.uint64(1)]) << np.uint32(16))
        | (np.uint32(data[p + np.uint64(2)]) << np.uint32(8))
        | np.uint32(data[p + np.uint64(3)])
    )
    return np.int64(np.int32(word))  # type: ignore[return-value]


@kernel(types.int64(DATA, types.int64))
def read_i64(data: Any, at: int) -> int:
    p = np.uint64(at)
    word = np.uint64(0)
    for i in range(8):
        word = (word << np.uint64(8)) | np.uint64(data[p + np.uint64(i)])
    return np.int64(word)  # type: ignore[return-value]


@kernel(types.int64(DATA, types.int64))
def value_length(data: Any, at: int) -> int:
    """Return the length of the value at position ``at``."""
    return read_i32(data, at - 4)  # type: ignore[no-any-return]
