"""Copy by table: kernels that group an arena's row events by table; the same for every source.

Each line of ``rows`` describes one event: see ``row_cells``.
"""

from typing import Final

import numpy as np
from numba import types

from agent.kernels.jit import DATA, Bytes, Ints, kernel
from agent.kernels.row_cells import COMMIT_TIME, COMMIT_TS, LENGTH, OFFSET, SEQ, SLOT

_INTS: Final = types.int64[::1]
_ROWS: Final = types.int64[:, ::1]
_OUT: Final = types.uint8[::1]


@kernel(types.void(_ROWS, _INTS, _INTS))
def measure(rows: Ints, counts: Ints, sizes: Ints) -> None:
    """Count the events and bytes of each slot."""
    for i in range(len(rows)):
        slot = rows[i, SLOT]
        counts[slot] += 1
        sizes[slot] += rows[i, LENGTH]


@kernel(types.void(DATA, _ROWS, _INTS, _INTS, _INTS, _OUT, types.int64[:, ::1]))
def gather(
    data: Bytes, rows: Ints, next_row: Ints, next_byte: Ints, slot_byte: Ints, out: Bytes, columns: Ints
) -> None:
    """Copy every event behind the previous one of its slot.

    ``next_row`` and ``next_byte`` are the slots' write positions, and are advanced. ``columns`` receives, per row: the
    end of the event relative to its slot's first byte, commit Ts, ordinal, commit time.
    """
    for i in range(len(rows)):
        # unsigned, so that LLVM recognises a plain copy: eight times faster
        source, length, slot = np.uint64(rows[i, OFFSET]), np.uint64(rows[i, LENGTH]), rows[i, SLOT]
        target = np.uint64(next_byte[slot])
        for k in range(length):
            out[target + k] = data[source + k]
        next_byte[slot] = np.int64(target + length)
        row = next_row[slot]
        next_row[slot] = row + 1
        columns[0, row] = next_byte[slot] - slot_byte[slot]
        columns[1, row] = rows[i, COMMIT_TS]
        columns[2, row] = rows[i, SEQ]
        columns[3, row] = rows[i, COMMIT_TIME]
