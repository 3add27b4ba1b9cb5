"""First pass of decoding: finds every value of every row.

``locate_events`` walks pgoutput messages (I, U, D, T of protocol version 1), ``locate_copy_rows`` walks COPY BINARY
messages. Both check every length against the available bytes, so the kernels of the second pass may trust positions and
lengths. Positions are column-major: the second pass reads one column at a time.

A large value that an update left out (TOAST) is taken from the old row if the source sent it; otherwise it stays
``UNCHANGED``.
"""

from typing import Any, Final

from numba import types

from agent.kernels.fixed import NULL
from agent.kernels.jit import DATA, PAIR, kernel
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, BEFORE_NONE, DELETE, INSERT, TRUNCATE, UPDATE
from agent.sources.postgres.decode.wire import UNCHANGED, read_i16, read_i32

#: second index of the counts: how many values of a column came in which form
COUNT_UNCHANGED: Final = 0
COUNT_TEXT: Final = 1
COUNT_BINARY: Final = 2

_I, _U, _D, _T = ord("I"), ord("U"), ord("D"), ord("T")
_NEW, _KEY, _OLD = ord("N"), ord("K"), ord("O")
_IS_NULL, _IS_UNCHANGED, _IS_TEXT, _IS_BINARY = ord("n"), ord("u"), ord("t"), ord("b")
_COPY_DATA = ord("d")
#: "PGCOPY\n\377\r\n\0", flags, length of the header's extension
_COPY_HEADER_BYTES = 19
#: a COPY BINARY message that is malformed
COPY_MALFORMED: Final = -1

_MATRIX: Final = types.int64[:, ::1]
_BYTES: Final = types.int8[::1]
_OFFSETS: Final = types.Array(types.int64, 1, "C", readonly=True)


@kernel(types.int64(DATA, types.int64, types.int64, types.int64, _MATRIX, _MATRIX))
def _locate_tuple(data: Any, at: int, end: int, row: int, positions: Any, counts: Any) -> int:
    """Return the offset behind the tuple, or -1 if it is malformed."""
    columns = positions.shape[0]
    if at + 2 > end or read_i16(data, at) != columns:
        return -1
    at += 2
    for column in range(columns):
        if at >= end:
            return -1
        form = data[at]
        at += 1
        if form == _IS_NULL:
            positions[column, row] = NULL
        elif form == _IS_UNCHANGED:
            positions[column, row] = UNCHANGED
            counts[column, COUNT_UNCHANGED] += 1
        elif form == _IS_TEXT or form == _IS_BINARY:  # noqa: SIM109 - numba compiles it to two compares
            if at + 4 > end:
                return -1
            length = read_i32(data, at)
            at += 4
            if length < 0 or length > end - at:
                return -1
            positions[column, row] = at
            counts[column, COUNT_TEXT if form == _IS_TEXT else COUNT_BINARY] += 1
            at += length
        else:
            return -1
    return at


@kernel(types.void(types.int64, _MATRIX, _MATRIX, _MATRIX, _MATRIX, DATA))
def _fill_unchanged(row: int, new: Any, old: Any, new_counts: Any, old_counts: Any, data: Any) -> None:
    for column in range(new.shape[0]):
        at = old[column, row]
        if new[column, row] == UNCHANGED and at >= 0:
            new[column, row] = at
            new_counts[column, COUNT_UNCHANGED] -= 1
            new_counts[column, COUNT_TEXT if data[at - 5] == _IS_TEXT else COUNT_BINARY] += 1


@kernel(types.int64(DATA, _OFFSETS, _BYTES, _BYTES, _MATRIX, _MATRIX, _MATRIX, _MATRIX))
def locate_events(
    data: Any, offsets: Any, op: Any, before_kind: Any, new: Any, old: Any, new_counts: Any, old_counts: Any
) -> int:
    """Fill ``op``, ``before_kind`` and the position matrices, which start filled with NULL.

    Return -1, or the row of the first malformed message.
    """
    for row in range(offsets.size - 1):
        at, end = offsets[row], offsets[row + 1]
        if end - at < 6:
            return row
        message = data[at]
        before_kind[row] = BEFORE_NONE
        if message == _T:
            op[row] = TRUNCATE
            continue
        at += 5
        if message == _U or message == _D:  # noqa: SIM109 - numba compiles it to two compares
            part = data[at]
            if part == _KEY or part == _OLD:  # noqa: SIM109 - numba compiles it to two compares
                before_kind[row] = BEFORE_KEY if part == _KEY else BEFORE_FULL
                at = _locate_tuple(data, at + 1, end, row, old, old_counts)
                if at < 0:
                    return row
        if message == _I or message == _U:  # noqa: SIM109 - numba compiles it to two compares
            op[row] = INSERT if message == _I else UPDATE
            if at >= end or data[at] != _NEW:
                return row
            at = _locate_tuple(data, at + 1, end, row, new, new_counts)
            if before_kind[row] != BEFORE_NONE:
                _fill_unchanged(row, new, old, new_counts, old_counts, data)
        elif message == _D and before_kind[row] != BEFORE_NONE:
            op[row] = DELETE
        else:
            return row
        if at != end:
            return row
    return -1


@kernel(PAIR(DATA, types.int64, types.int64, types.int64, _MATRIX))
def locate_copy_rows(data: Any, start: int, end: int, row: int, positions: Any) -> tuple[int, int]:
    """Walk whole CopyData messages in ``data[start:end]``, filling ``positions`` from ``row`` on.

    Return the next free row and the offset of the first message that was not taken: an incomplete one, another kind
    than CopyData, or the first one behind a full matrix. The offset is ``COPY_MALFORMED`` if a row does not end where
    its message does (the server sends each row in one message).
    """
    columns, capacity = positions.shape
    while end - start >= 5 and data[start] == _COPY_DATA and row < capacity:
        message_end = start + 1 + read_i32(data, start + 1)
        if message_end > end:
            break
        at = start + 5
        if message_end - at >= _COPY_HEADER_BYTES and data[at] == 80 and data[at + 1] == 71 and data[at + 2] == 67:
            at += _COPY_HEADER_BYTES + read_i32(data, at + _COPY_HEADER_BYTES - 4)
        if message_end - at >= 2:
            fields = read_i16(data, at)
            at += 2
            if fields >= 0:
                if fields != columns:
                    return row, COPY_MALFORMED
                for column in range(columns):
                    if at + 4 > message_end:
                        return row, COPY_MALFORMED
                    length = read_i32(data, at)
                    at += 4
                    positions[column, row] = at if length >= 0 else NULL
                    at += max(length, 0)
                row += 1
        if at != message_end:
            return row, COPY_MALFORMED
        start = message_end
    return row, start
