"""Row hashes as databases compute them: PostgreSQL's hash functions and CRC-32, over whole Arrow columns.

A comparison sums such hashes on both sides and reads the rows only where the sums differ (``agent.feeds.diff``).

- ``hash_bytes``, ``hash_words``: what ``hash_record_extended`` of PostgreSQL computes of a bytea and of an int4,
  which is lookup3 by Jenkins, over the bytes, or over one word.
- ``combine``, ``finish``: how it joins its columns, and ``hashint8extended`` with its own argument as the seed, without
  which sums would not see two rows that have exchanged the values of a column.
- ``crc_squares``: the square of a row's CRC-32. Sums of CRCs themselves have the same weakness.

Sums wrap at 64 bits.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import types

from agent.kernels.jit import DATA, inlined, kernel

Hashes = npt.NDArray[np.uint64]

_HASHES: Final = types.uint64[::1]
_OFFSETS: Final = types.Array(types.int64, 1, "C", readonly=True)
_WORDS: Final = types.Array(types.int32, 1, "C", readonly=True)
_TRIPLE: Final = types.UniTuple(types.uint64, 3)  # type: ignore[no-untyped-call]

_INITIAL: Final = np.uint64(0x9E3779B9 + 3923095)
_LOW: Final = np.uint64(0xFFFFFFFF)


@inlined
def _turn(x: Any, bits: Any) -> Any:
    return ((x << np.uint64(bits)) | (x >> np.uint64(32 - bits))) & _LOW


@kernel(_TRIPLE(types.uint64, types.uint64, types.uint64))
def _mix(a: Any, b: Any, c: Any) -> Any:
    a = ((a - c) & _LOW) ^ _turn(c, 4)
    c = (c + b) & _LOW
    b = ((b - a) & _LOW) ^ _turn(a, 6)
    a = (a + c) & _LOW
    c = ((c - b) & _LOW) ^ _turn(b, 8)
    b = (b + a) & _LOW
    a = ((a - c) & _LOW) ^ _turn(c, 16)
    c = (c + b) & _LOW
    b = ((b - a) & _LOW) ^ _turn(a, 19)
    a = (a + c) & _LOW
    c = ((c - b) & _LOW) ^ _turn(b, 4)
    b = (b + a) & _LOW
    return a, b, c


@kernel(types.uint64(types.uint64, types.uint64, types.uint64))
def _final(a: Any, b: Any, c: Any) -> Any:
    c = ((c ^ b) - _turn(b, 14)) & _LOW
    a = ((a ^ c) - _turn(c, 11)) & _LOW
    b = ((b ^ a) - _turn(a, 25)) & _LOW
    c = ((c ^ b) - _turn(b, 16)) & _LOW
    a = ((a ^ c) - _turn(c, 4)) & _LOW
    b = ((b ^ a) - _turn(a, 14)) & _LOW
    c = ((c ^ b) - _turn(b, 24)) & _LOW
    return (b << np.uint64(32)) | c


@kernel(types.uint64(types.uint64, types.uint64))
def _hash_word(word: Any, seed: Any) -> Any:
    a = b = c = _INITIAL + np.uint64(4)
    a, b, c = a & _LOW, b & _LOW, c & _LOW
    if seed:
        a, b, c = _mix((a + (seed >> np.uint64(32))) & _LOW, (b + (seed & _LOW)) & _LOW, c)
    return _final((a + word) & _LOW, b, c)


@kernel(types.void(_HASHES, _WORDS))
def _hash_words(hashes: Any, words: Any) -> None:
    for row in range(hashes.size):
        hashes[row] = _hash_word(np.uint64(words[row]) & _LOW, np.uint64(0))


@kernel(types.void(_HASHES, DATA, _OFFSETS))
def _hash_bytes(hashes: Any, data: Any, offsets: Any) -> None:
    for row in range(hashes.size):
        at, end = offsets[row], offsets[row + 1]
        a = b = c = (_INITIAL + np.uint64(end - at)) & _LOW
        while end - at >= 12:
            first = second = third = np.uint64(0)
            for i in range(4):
                shift = np.uint64(8 * i)
                first |= np.uint64(data[at + i]) << shift
                second |= np.uint64(data[at + 4 + i]) << shift
                third |= np.uint64(data[at + 8 + i]) << shift
            a, b, c = _mix((a + first) & _LOW, (b + second) & _LOW, (c + third) & _LOW)
            at += 12
        first = second = third = np.uint64(0)
        for i in range(end - at):
            value = np.uint64(data[at + i])
            if i < 4:
                first |= value << np.uint64(8 * i)
            elif i < 8:
                second |= value << np.uint64(8 * (i - 4))
            else:
                third |= value << np.uint64(8 * (i - 7))  # its lowest byte is the length's
        hashes[row] = _final((a + first) & _LOW, (b + second) & _LOW, (c + third) & _LOW)


@kernel(types.void(_HASHES))
def _finish(hashes: Any) -> None:
    for row in range(hashes.size):
        h = hashes[row]
        low, high = h & _LOW, h >> np.uint64(32)
        folded = low ^ (high if h >> np.uint64(63) == np.uint64(0) else high ^ _LOW)
        hashes[row] = _hash_word(folded, h)


def _crc_table() -> npt.NDArray[np.uint32]:
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
        tables[0, byte] = value
    for step in range(1, 8):
        before = tables[step - 1]
        tables[step] = (before >> 8) ^ tables[0, before & 0xFF]
    return tables


_CRC: Final = _crc_table()


@kernel(types.void(_HASHES, DATA, _OFFSETS))
def _crc_squares(hashes: Any, data: Any, offsets: Any) -> None:
    for row in range(hashes.size):
        at, end = offsets[row], offsets[row + 1]
        crc = np.uint32(0xFFFFFFFF)
        while end - at >= 8:
            crc ^= (
                np.uint32(data[at])
                | (np.uint32(data[at + 1]) << np.uint32(8))
                | (np.uint32(data[at + 2]) << np.uint32(16))
                | (np.uint32(data[at + 3]) << np.uint32(24))
            )
            crc = (
                _CRC[7, crc & np.uint32(0xFF)]
                ^ _CRC[6, (crc >> np.uint32(8)) & np.uint32(0xFF)]
                ^ _CRC[5, (crc >> np.uint32(16)) & np.uint32(0xFF)]
                ^ _CRC[4, crc >> np.uint32(24)]
                ^ _CRC[3, data[at + 4]]
                ^ _CRC[2, data[at + 5]]
                ^ _CRC[1, data[at + 6]]
                ^ _CRC[0, data[at + 7]]
            )
            at += 8
        while at < end:
            crc = _CRC[0, (crc ^ np.uint32(data[at])) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
            at += 1
        value = np.uint64(crc ^ np.uint32(0xFFFFFFFF))
        hashes[row] = value * value


def hash_words(column: pa.Array) -> Hashes:
    """Return the hashes of int32 values; 0 for NULL."""
    hashes = np.empty(len(column), np.uint64)
    _hash_words(hashes, column.fill_null(0).to_numpy())
    return _without_nulls(column, hashes)


def hash_bytes(column: pa.Array) -> Hashes:
    """Return the hashes of strings or bytes; 0 for NULL."""
    hashes = np.empty(len(column), np.uint64)
    _hash_bytes(hashes, *_bytes_of(column))
    return _without_nulls(column, hashes)


def combine(hashes: Hashes, column: Hashes) -> Hashes:
    """Add a column's hashes to those of the columns before it."""
    joined: Hashes = hashes * np.uint64(31) + column
    return joined


def finish(hashes: Hashes) -> Hashes:
    """Finish the hashes, in place."""
    _finish(hashes)
    return hashes


def crc_squares(rows: pa.Array) -> Hashes:
    """Return the squared CRC-32 of strings or bytes without NULLs."""
    hashes = np.empty(len(rows), np.uint64)
    _crc_squares(hashes, *_bytes_of(rows))
    return hashes


def _without_nulls(column: pa.Array, hashes: Hashes) -> Hashes:
    if column.null_count:
        hashes[~column.is_valid().to_numpy(zero_copy_only=False)] = 0
    return hashes


def _bytes_of(column: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int64 if is_large else np.int32)[column.offset : column.offset + len(column) + 1]
    return np.frombuffer(data or b"", np.uint8), places.astype(np.int64)
