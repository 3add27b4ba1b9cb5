"""Key hash: maps a row's key to a 64-bit position in its table's key space, which decides which span owns the row.

The hash is of the decoded Arrow values, so it does not depend on how the source sent them. It is part of stored state
(spans in etcd and in sinks), so it must never change:

- ``mix`` is the finaliser of splitmix64; a row starts with h = 0, and every key column, in order, updates h.
- bool, integers, dates, times, timestamps: h = mix(h ^ value), the value sign-extended to 64 bits; so a column that
  grows from int to bigint keeps its rows' positions.
- floats: the bits of the float64, with -0.0 as 0.0 and one NaN. decimal128: its low word, then its high word.
- strings and bytes: every 8 bytes as a little-endian word (the last one zero-padded), then the length.
- NULL: h = mix(h ^ 0x9E3779B97F4A7C15).

All rows of a table without a key have position 0.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import types

from agent.kernels.jit import DATA, kernel

Hashes = npt.NDArray[np.uint64]

_NULL_WORD = np.uint64(0x9E3779B97F4A7C15)
_HASHES = types.uint64[::1]
_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_VALID = types.Array(types.boolean, 1, "C", readonly=True)
_OFFSETS = types.Array(types.int64, 1, "C", readonly=True)


@kernel(types.uint64(types.uint64))
def mix(x: Any) -> Any:
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel(types.void(_HASHES, _WORDS, _VALID))
def _mix_words(hashes: Any, words: Any, valid: Any) -> None:
    for row in range(hashes.size):
        hashes[row] = mix(hashes[row] ^ (words[row] if valid[row] else _NULL_WORD))


@kernel(types.void(_HASHES, DATA, _OFFSETS, _VALID))
def _mix_bytes(hashes: Any, data: Any, offsets: Any, valid: Any) -> None:
    for row in range(hashes.size):
        h = hashes[row]
        if not valid[row]:
            hashes[row] = mix(h ^ _NULL_WORD)
            continue
        word, filled = np.uint64(0), 0
        for at in range(offsets[row], offsets[row + 1]):
            word |= np.uint64(data[at]) << np.uint64(8 * filled)
            filled += 1
            if filled == 8:
                h = mix(h ^ word)
                word, filled = np.uint64(0), 0
        if filled:
            h = mix(h ^ word)
        hashes[row] = mix(h ^ np.uint64(offsets[row + 1] - offsets[row]))


def comparable(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return key values normalised for comparison, row by row: 0.0 and -0.0 are one key, as in every source."""
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column


def key_hash(batch: pa.RecordBatch, key: Sequence[str]) -> Hashes:
    """Return the hash of every row's key; zeros if there is no key."""
    hashes = np.zeros(batch.num_rows, np.uint64)
    for name in key:
        array = batch.column(name)
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
            _mix_bytes(hashes, *bytes_of(array), valid)
        else:
            for words in words_of(array):
                _mix_words(hashes, words, valid)
    return hashes


def bytes_of(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the data of texts or bytes, and their offsets in it."""
    _, offsets, data = array.buffers()
    first = array.offset
    used = np.frombuffer(offsets, np.int32)[first : first + len(array) + 1] if len(array) else np.zeros(1, np.int32)
    return np.frombuffer(data or b"", np.uint8), used.astype(np.int64)


def words_of(array: pa.Array) -> list[npt.NDArray[np.uint64]]:
    """Return the words of values of a fixed width; of NULL any."""
    kind = array.type
    if pa.types.is_decimal128(kind):
        pairs = np.frombuffer(array.buffers()[1], np.uint64)[2 * array.offset : 2 * (array.offset + len(array))]
        return [np.ascontiguousarray(pairs[0::2]), np.ascontiguousarray(pairs[1::2])]
    if pa.types.is_floating(kind):
        values = array.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0  # -0.0 + 0.0 is 0.0
        return [np.where(np.isnan(values), np.nan, values).view(np.uint64)]
    if pa.types.is_date32(kind):
        array = array.cast(pa.int32())
    integers = array.cast(pa.int64()) if not pa.types.is_boolean(array.type) else array.cast(pa.int8()).cast(pa.int64())
    return [integers.fill_null(0).to_numpy().view(np.uint64)]
