"""Roaring bitmaps: the positions of deleted rows as Delta and Iceberg store them in deletion vectors.

A magic number, then a 64-bit roaring bitmap in its portable form
(https://github.com/RoaringBitmap/RoaringFormatSpec): the number of 32-bit bitmaps, and each with its high half.
"""

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]

_MAGIC: Final = 1681511377
_NO_RUNS, _WITH_RUNS = 12346, 12347
#: a container of more rows is a bitmap
_ARRAY_MAX: Final = 4096
_OFFSETS_MIN: Final = 4
_CONTAINER_MAX: Final = 1 << 16
#: a run of a few bytes can describe millions of positions, and a position takes eight bytes of memory
_POSITIONS_MAX: Final = 1 << 27


def encode(positions: Positions) -> bytes:
    """Return the bitmap of strictly increasing positions."""
    if len(positions) == 0:
        return struct.pack("<IQ", _MAGIC, 0)
    assert positions[-1] < 1 << 32, "a data file has fewer rows"
    keys, starts, counts = np.unique(positions >> 16, return_index=True, return_counts=True)
    low = (positions & 0xFFFF).astype("<u2")
    bodies = [_container(low[start : start + count]) for start, count in zip(starts, counts, strict=True)]
    heads = np.stack([keys, counts - 1], axis=1).astype("<u2").tobytes()
    first = 8 + len(heads) + 4 * len(keys)
    offsets = first + np.cumsum([0, *(len(body) for body in bodies[:-1])])
    roaring = struct.pack("<II", _NO_RUNS, len(keys)) + heads + offsets.astype("<u4").tobytes() + b"".join(bodies)
    return struct.pack("<IQI", _MAGIC, 1, 0) + roaring


def decode(data: bytes) -> Positions | None:
    """Return the positions; None if it is of another form.

    :raises struct.error, ValueError: it ends too early, or has more positions than a data file has rows.
    """
    magic, count = struct.unpack_from("<IQ", data)
    if magic != _MAGIC:
        return None
    at, total, found = 12, 0, list[Positions]()
    for _ in range(count):
        (high,) = struct.unpack_from("<I", data, at)
        low, at = _read_bitmap(data, at + 4)
        total += len(low)
        _check_count(total)
        found.append(low + (high << 32))
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _container(low: npt.NDArray[np.uint16]) -> bytes:
    if len(low) <= _ARRAY_MAX:
        return low.tobytes()
    bits = np.zeros(1 << 16, np.uint8)
    bits[low] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _read_bitmap(data: bytes, begin: int) -> tuple[Positions, int]:
    """Read one 32-bit roaring bitmap; return its values and its end."""
    (cookie,) = struct.unpack_from("<I", data, begin)
    if cookie & 0xFFFF == _WITH_RUNS:
        count, at = (cookie >> 16) + 1, begin + 4
        flags = np.frombuffer(data, np.uint8, (count + 7) // 8, at)
        is_run, at = np.unpackbits(flags, bitorder="little")[:count].astype(bool), at + len(flags)
    else:
        (count,), at = struct.unpack_from("<I", data, begin + 4), begin + 8
        is_run = np.zeros(count, np.bool_)
    heads = np.frombuffer(data, "<u2", 2 * count, at).reshape(count, 2).astype(np.int64)
    at += 4 * count
    if not is_run.any() or count >= _OFFSETS_MIN:
        at += 4 * count
    found, total = [], 0
    for (key, last), has_runs in zip(heads.tolist(), is_run, strict=True):
        low, at = _read_runs(data, at) if has_runs else _read_container(data, at, last + 1)
        total += len(low)
        _check_count(total)
        found.append(low + (key << 16))
    return np.concatenate(found) if found else np.empty(0, np.int64), at


def _check_count(count: int) -> None:
    if count > _POSITIONS_MAX:
        raise ValueError("it has too many positions")


def _read_container(data: bytes, at: int, count: int) -> tuple[Positions, int]:
    if count <= _ARRAY_MAX:
        return np.frombuffer(data, "<u2", count, at).astype(np.int64), at + 2 * count
    bits = np.unpackbits(np.frombuffer(data, np.uint8, 8192, at), bitorder="little")
    return np.flatnonzero(bits).astype(np.int64), at + 8192


def _read_runs(data: bytes, at: int) -> tuple[Positions, int]:
    (count,) = struct.unpack_from("<H", data, at)
    runs = np.frombuffer(data, "<u2", 2 * count, at + 2).reshape(count, 2).astype(np.int64)
    if runs[:, 1].sum() + count > _CONTAINER_MAX:
        raise ValueError("runs overlap")
    found = [np.arange(start, start + length + 1) for start, length in runs]
    return np.concatenate(found) if found else np.empty(0, np.int64), at + 2 + 4 * count
