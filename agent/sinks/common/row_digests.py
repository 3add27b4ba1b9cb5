"""Row digests: digests of rows for comparisons, a part of all digests at a time (``agent.kernels.key_digest``)."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from agent.kernels.key_digest import Digests, key_digests
from agent.rows.unify import Mask

#: digests in memory at a time, at 16 bytes
KEYS_MAX: Final = 16 << 20


class Part:
    """One of several equal parts of the digests."""

    def __init__(self, number: int, of: int) -> None:
        self._low = np.uint64(number * (1 << 64) // of)
        self._high = np.uint64((number + 1) * (1 << 64) // of - 1)

    def mask(self, digests: Digests) -> Mask:
        first = digests[:, 0]
        return (first >= self._low) & (first <= self._high)

    def of(self, digests: Digests) -> Digests:
        return digests[self.mask(digests)]


def contains(keys: Digests, wanted: Digests) -> Mask:
    """``keys`` are sorted by their first halves; that two of them share one is as unlikely as that two keys are one."""
    if not len(keys):
        return np.zeros(len(wanted), np.bool_)
    at = np.minimum(np.searchsorted(keys[:, 0], wanted[:, 0]), len(keys) - 1)
    found: Mask = (keys[at] == wanted).all(axis=1)
    return found


def row_digests(rows: pa.Table, columns: Sequence[str], secret: bytes) -> Digests:
    """Return digests of the rows' values in ``columns``."""
    arrays = [_comparable(rows.column(name)) for name in columns]
    if not arrays:
        return np.zeros((rows.num_rows, 2), np.uint64)
    return key_digests(pa.table(arrays, names=list(columns)).combine_chunks(), secret)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """A list is compared as a text: copies are rare, and so are columns with lists."""
    if not pa.types.is_list(column.type):
        return column
    return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())
