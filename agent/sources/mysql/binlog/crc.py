"""CRC-32 (zlib's) for the kernels, sixteen bytes a step.

zlib itself is faster, but each call would leave the kernel; this one reads 1.5 GB a second and more. The caller passes
the tables: numba would compile a global of this size into every kernel that uses it.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import types

from agent.kernels.jit import DATA, kernel

TABLES: Final = types.Array(types.uint32, 2, "C", readonly=True)
_POLYNOMIAL = 0xEDB88320
_STEP: Final = 16


def make_tables() -> npt.NDArray[np.uint32]:
    """Return the tables: ``tables[k, b]`` is the effect of byte ``b`` on the remainder if ``k`` more bytes of the step
    follow."""
    tables = np.zeros((_STEP, 256), np.uint32)
    value = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        value = np.where(value & 1, (value >> 1) ^ np.uint32(_POLYNOMIAL), value >> 1).astype(np.uint32)
    tables[0] = value
    for k in range(1, _STEP):
        tables[k] = (tables[k - 1] >> 8) ^ tables[0][tables[k - 1] & 0xFF]
    return tables


@kernel(types.uint32(DATA, types.uint64))
def _word(data: Any, p: Any) -> Any:
    return (
        np.uint32(data[p])
        | (np.uint32(data[p + np.uint64(1)]) << np.uint32(8))
        | (np.uint32(data[p + np.uint64(2)]) << np.uint32(16))
        | (np.uint32(data[p + np.uint64(3)]) << np.uint32(24))
    )


@kernel(types.uint32(TABLES, types.uint32, types.int64))
def _fold(tables: Any, word: Any, after: int) -> Any:
    """Return the effect of the four bytes of ``word`` if ``after`` bytes of the step follow."""
    k = np.uint64(after)
    return (
        tables[k + np.uint64(3), np.uint64(word & np.uint32(0xFF))]
        ^ tables[k + np.uint64(2), np.uint64((word >> np.uint32(8)) & np.uint32(0xFF))]
        ^ tables[k + np.uint64(1), np.uint64((word >> np.uint32(16)) & np.uint32(0xFF))]
        ^ tables[k, np.uint64(word >> np.uint32(24))]
    )


@kernel(types.int64(TABLES, DATA, types.int64, types.int64))
def crc32(tables: Any, data: Any, start: int, end: int) -> int:
    """Return the checksum of ``data[start:end]``."""
    crc = np.uint32(0xFFFFFFFF)
    p, stop = np.uint64(start), np.uint64(end)
    while p + np.uint64(16) <= stop:
        crc = (
            _fold(tables, crc ^ _word(data, p), 12)
            ^ _fold(tables, _word(data, p + np.uint64(4)), 8)
            ^ _fold(tables, _word(data, p + np.uint64(8)), 4)
            ^ _fold(tables, _word(data, p + np.uint64(12)), 0)
        )
        p += np.uint64(16)
    while p < stop:
        crc = tables[np.uint64(0), np.uint64((crc ^ np.uint32(data[p])) & np.uint32(0xFF))] ^ (crc >> np.uint32(8))
        p += np.uint64(1)
    return np.int64(crc ^ np.uint32(0xFFFFFFFF))  # type: ignore[return-value]
