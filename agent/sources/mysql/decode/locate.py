"""First pass of decoding: finds every value of every row.

An event of the change log is a type byte and the body of a rows event, which may hold many rows, each of one image or
two (before, after). ``measure`` walks over all of them once, so that the columns can be allocated at their full size;
``locate_rows`` then returns positions block by block, small enough that a block's rows are still in the processor's
cache when the columns are filled from them. Both check every length against the available bytes, so the kernels of the
second pass may trust positions and lengths.

A column that an after image leaves out (``binlog_row_image`` MINIMAL or NOBLOB) has the value of the before image, or
is *unchanged* if that lacks it too. An insert that leaves one out cannot be decoded: the column's default is not in the
log.
"""

from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.fixed import NULL
from agent.kernels.jit import DATA, PAIR, kernel
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, BEFORE_NONE, DELETE, INSERT, TRUNCATE, UPDATE
from agent.sources.mysql.decode.wire import (
    DELETE_V1,
    DELETE_V2,
    TRUNCATED,
    UPDATE_V1,
    UPDATE_V2,
    WRITE_V1,
    WRITE_V2,
    read_lenenc,
    read_u16,
    read_u24,
    read_u32,
)

#: the position of a value that an image leaves out; ``fixed.NULL`` is that of NULL
_ABSENT = -2

#: what ``measure`` found out
HAS_BEFORE, HAS_GAPS, GAP_IN_INSERT, FLAGS = 0, 1, 2, 3

# What an opened event says: the operation, and where the bitmaps of its images' columns lie (-1 where all are there).
_OP, _BEFORE, _AFTER, _HEAD_CELLS = 0, 1, 2, 3
_ALL_THERE = -1
#: table id and flags
_FIXED_BYTES = 8
#: the largest number that a length-encoded integer holds in one byte
_ONE_BYTE_LENGTH = 250

#: where ``locate_rows`` continues: event, offset in it (0: at its beginning), row in it
CURSOR_CELLS: Final = 3

INTS: Final = types.int64[::1]
MATRIX: Final = types.int64[:, ::1]
_BYTES: Final = types.int8[::1]
_READ: Final = types.Array(types.int64, 1, "C", readonly=True)


@kernel(types.boolean(DATA, types.int64, types.int64))
def _all_set(data: Any, at: int, bits: int) -> bool:
    count = 0
    for bit in range(bits):
        count += data[at + (bit >> 3)] >> (bit & 7) & 1
    return count == bits


@kernel(types.int64(DATA, types.int64, types.int64, types.int64, INTS))
def _open_event(data: Any, at: int, end: int, columns: int, head: Any) -> int:
    """Fill ``head``; return the offset of the first row, or -1 if the event is not one of this table."""
    kind = data[at]
    if kind == WRITE_V1 or kind == WRITE_V2:  # noqa: SIM109 - numba compiles it to two compares
        head[_OP] = INSERT
    elif kind == UPDATE_V1 or kind == UPDATE_V2:  # noqa: SIM109 - numba compiles it to two compares
        head[_OP] = UPDATE
    elif kind == DELETE_V1 or kind == DELETE_V2:  # noqa: SIM109 - numba compiles it to two compares
        head[_OP] = DELETE
    else:
        return -1
    at += 1 + _FIXED_BYTES
    if at + 2 > end:
        return -1
    if kind >= WRITE_V2:
        at += max(2, read_u16(data, at))
    bitmap_bytes = (columns + 7) >> 3
    if at + 1 + bitmap_bytes > end or (data[at] > _ONE_BYTE_LENGTH and at + 9 > end):
        return -1
    count, at = read_lenenc(data, at)
    bitmaps = 2 if head[_OP] == UPDATE else 1
    if count != columns or at + bitmaps * bitmap_bytes > end:
        return -1
    head[_BEFORE] = head[_AFTER] = _ALL_THERE if _all_set(data, at, columns) else at
    at += bitmap_bytes
    if head[_OP] == UPDATE:
        head[_AFTER] = _ALL_THERE if _all_set(data, at, columns) else at
        at += bitmap_bytes
    return at


@kernel(types.int64(DATA, types.int64, types.int64))
def _length_at(data: Any, at: int, width: int) -> int:
    """Return the length stored in ``-width`` bytes at ``at``."""
    if width == -1:
        return data[at]  # type: ignore[no-any-return]
    if width == -2:
        return read_u16(data, at)  # type: ignore[no-any-return]
    return read_u24(data, at) if width == -3 else read_u32(data, at)  # type: ignore[no-any-return]


@kernel(types.int64(DATA, types.int64, types.int64, types.int64, types.int64, INTS, MATRIX, INTS, INTS))
def _locate_image(
    data: Any, at: int, end: int, present: int, row: int, widths: Any, positions: Any, nulls: Any, sizes: Any
) -> int:
    """Return the offset behind the image, or -1 if it is malformed."""
    columns = widths.size
    bits = columns
    if present != _ALL_THERE:
        bits = 0
        for column in range(columns):
            bits += data[present + (column >> 3)] >> (column & 7) & 1
    nulls_at, counted = at, 0
    at += (bits + 7) >> 3
    if at > end:
        return -1
    for column in range(columns):
        if present != _ALL_THERE and not data[present + (column >> 3)] >> (column & 7) & 1:
            positions[column, row] = _ABSENT
            nulls[column] += 1
            continue
        if data[nulls_at + (counted >> 3)] >> (counted & 7) & 1:
            positions[column, row] = NULL
            nulls[column] += 1
        else:
            width = widths[column]
            if width < 0:
                if at - width > end:
                    return -1
                length = _length_at(data, at, width)
                sizes[column] += length
                at -= width
                positions[column, row] = at
                at += length
            else:
                positions[column, row] = at
                at += width
        counted += 1
    return at if at <= end else -1


@kernel(PAIR(DATA, _READ, INTS, INTS, INTS, INTS))
def measure(data: Any, offsets: Any, widths: Any, after_sizes: Any, before_sizes: Any, flags: Any) -> tuple[int, int]:
    """Return the number of rows, and -1 or the first malformed event.

    ``sizes`` starts with zeros and gets, for each column, the total bytes of the values that have a length of their
    own.
    """
    head = np.empty(_HEAD_CELLS, np.int64)
    scratch, nulls = np.empty((widths.size, 1), np.int64), np.zeros(widths.size, np.int64)
    rows = 0
    for event in range(offsets.size - 1):
        at, end = offsets[event], offsets[event + 1]
        if end - at == 1 and data[at] == TRUNCATED:
            rows += 1
            continue
        at = _open_event(data, at, end, widths.size, head) if end > at else -1
        if at < 0:
            return rows, event
        has_before, has_after = head[_OP] != INSERT, head[_OP] != DELETE
        if has_before:
            flags[HAS_BEFORE] = 1
        if has_after and head[_AFTER] != _ALL_THERE:
            flags[HAS_GAPS] = 1
            if not has_before and flags[GAP_IN_INSERT] == 0:
                flags[GAP_IN_INSERT] = event + 1
        while at < end:
            start = at
            if has_before:
                at = _locate_image(data, at, end, head[_BEFORE], 0, widths, scratch, nulls, before_sizes)
            if has_after and at >= 0:
                at = _locate_image(data, at, end, head[_AFTER], 0, widths, scratch, nulls, after_sizes)
            # A row of no bytes would never end: a table of no columns, say.
            if at <= start:
                return rows, event
            rows += 1
    return rows, -1


@kernel(types.void(types.int64, types.int64, MATRIX, INTS))
def _fill_null(row: int, columns: int, positions: Any, nulls: Any) -> None:
    for column in range(columns):
        positions[column, row] = NULL
        nulls[column] += 1


@kernel(types.void(types.int64, types.int64, MATRIX, MATRIX, INTS, types.uint8[:, ::1]))
def _fill_gaps(row: int, out_row: int, after: Any, before: Any, nulls: Any, unchanged: Any) -> None:
    """Take values that the after image leaves out from the before image."""
    for column in range(after.shape[0]):
        if after[column, row] == _ABSENT:
            after[column, row] = before[column, row]
            if before[column, row] >= 0:
                nulls[column] -= 1
            elif before[column, row] == _ABSENT:
                unchanged[column, out_row] = 1


@kernel(
    types.int64(
        DATA, _READ, _READ, _READ, INTS, INTS, types.int64, types.int64, _BYTES, _BYTES, INTS, INTS,
        MATRIX, MATRIX, INTS, INTS, INTS, types.uint8[:, ::1],
    )
)  # fmt: skip
def locate_rows(
    data: Any, offsets: Any, commit_ts: Any, seq: Any, widths: Any, cursor: Any, first: int, limit: int,
    op: Any, before_kind: Any, row_ts: Any, row_seq: Any,
    after: Any, before: Any, after_nulls: Any, before_nulls: Any, sizes: Any, unchanged: Any,
) -> int:  # fmt: skip
    """Locate up to ``limit`` rows from ``cursor`` on, and advance it; return their number. ``measure`` has found no
    fault.

    ``op``, ``before_kind``, ``row_ts``, ``row_seq`` and ``unchanged`` are of the whole batch and filled from row
    ``first`` on; the position matrices are the block's. ``before`` has no cells if no event has a before image.
    """
    head = np.empty(_HEAD_CELLS, np.int64)
    row, columns = 0, widths.size
    while row < limit and cursor[0] < offsets.size - 1:
        event = cursor[0]
        at, end = offsets[event], offsets[event + 1]
        if data[at] == TRUNCATED:
            head[_OP], at, end = TRUNCATE, 0, 1
        else:
            at = _open_event(data, at, end, columns, head)
            if cursor[1] > 0:
                at = cursor[1]
        has_before, has_after = head[_OP] == UPDATE or head[_OP] == DELETE, head[_OP] == UPDATE or head[_OP] == INSERT
        kind = BEFORE_NONE
        if has_before:
            kind = BEFORE_FULL if head[_BEFORE] == _ALL_THERE else BEFORE_KEY
        while at < end and row < limit:
            if has_before:
                at = _locate_image(data, at, end, head[_BEFORE], row, widths, before, before_nulls, sizes)
            elif before.size > 0:
                _fill_null(row, columns, before, before_nulls)
            if has_after:
                at = _locate_image(data, at, end, head[_AFTER], row, widths, after, after_nulls, sizes)
                if head[_AFTER] != _ALL_THERE:
                    _fill_gaps(row, first + row, after, before, after_nulls, unchanged)
            else:
                _fill_null(row, columns, after, after_nulls)
                if head[_OP] == TRUNCATE:
                    at = end
            op[first + row] = head[_OP]
            before_kind[first + row] = kind
            row_ts[first + row] = commit_ts[event]
            row_seq[first + row] = seq[event] + cursor[2]
            cursor[2] += 1
            row += 1
        if at >= end:
            cursor[0], cursor[1], cursor[2] = event + 1, 0, 0
        else:
            cursor[1] = at
    return row
