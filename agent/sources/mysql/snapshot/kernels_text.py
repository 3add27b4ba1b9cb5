"""Text result sets: kernels that find the values of each row, and parse their text into Arrow's values.

The session fixes the spelling (time zone UTC, no SQL mode, text in utf8mb4), and the ``SELECT`` does the rest
(``rows_text``): numbers, dates and times come as ASCII in one form only.

The first pass, ``locate_rows``, fills ``starts`` and ``lengths``, a line for each column, as ``agent.kernels.text``
expects them. The kernels of the second pass here parse dates and times; ``fixed.calendar_loop`` describes the treatment
of dates that no calendar has (a zero month or day, the 30th of February).
"""

from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.civil import date_exists, days_from_civil
from agent.kernels.fixed import GOOD, NULL
from agent.kernels.jit import DATA, OUT, PAIR, POSITIONS, inlined, kernel
from agent.kernels.text import kernels_for

#: what ``locate_rows`` came to
MORE: Final = 0
FULL: Final = 1
OTHER_PACKET: Final = 2
MALFORMED: Final = 3

_LINE: Final = types.int64[::1]
_MATRIX: Final = types.int64[:, ::1]
_LOCATED: Final = types.UniTuple(types.int64, 3)  # type: ignore[no-untyped-call]

_HEADER_BYTES = 4
_PACKET_MAX = 0xFFFFFF
_EOF_MAX = 9
_DAY_US = 86_400_000_000
_MINUS, _POINT, _COLON, _SPACE = ord("-"), ord("."), ord(":"), ord(" ")
_POWERS = np.array([10**k for k in range(7)], np.int64)


@kernel(types.int64(DATA, types.int64, types.int64))
def read_uint(data: Any, at: int, size: int) -> int:
    """Return a little-endian integer of ``size`` bytes."""
    value = np.uint64(0)
    for i in range(size):
        value |= np.uint64(data[np.uint64(at + i)]) << np.uint64(8 * i)
    return np.int64(value)  # type: ignore[return-value]


@kernel(PAIR(OUT, types.int64, types.int64))
def join_packets(data: Any, start: int, end: int) -> tuple[int, int]:
    """Return the end of the packet at ``start``, and the start of the next one; (-1, -1) if it is not complete.

    A message that is larger than one packet is moved together in place.
    """
    at, target = start, start + _HEADER_BYTES
    is_whole = False
    while not is_whole:
        if at + _HEADER_BYTES > end:
            return -1, -1
        size = read_uint(data, at, 3)
        if at + _HEADER_BYTES + size > end:
            return -1, -1
        is_whole = size < _PACKET_MAX
        at += _HEADER_BYTES + size
    following, at = at, start
    while at < following:
        size = read_uint(data, at, 3)
        at += _HEADER_BYTES
        if at != target:
            for i in range(size):
                data[target + i] = data[at + i]
        at += size
        target += size
    return target, following


@kernel(_LOCATED(OUT, types.int64, types.int64, types.int64, _MATRIX, _MATRIX))
def locate_rows(data: Any, start: int, end: int, row: int, starts: Any, lengths: Any) -> tuple[int, int, int]:
    """Walk the packets in ``data[start:end]``, filling the matrices from ``row`` on.

    Return the next free row, the offset of the first packet that was not taken, and why the walk ended there: ``MORE``
    bytes are needed, the matrices are ``FULL``, the packet is no row (``OTHER_PACKET``), or it is ``MALFORMED``.
    """
    columns, capacity = starts.shape
    while end - start >= _HEADER_BYTES:
        if row == capacity:
            return row, start, FULL
        size = read_uint(data, start, 3)
        packet_end = start + _HEADER_BYTES + size
        following = packet_end
        if packet_end > end:
            break
        at = start + _HEADER_BYTES
        if size == 0:
            return row, start, MALFORMED
        if data[at] == 0xFF or (data[at] == 0xFE and size < _EOF_MAX):
            return row, start, OTHER_PACKET
        if size == _PACKET_MAX:
            packet_end, following = join_packets(data, start, end)
            if packet_end < 0:
                break
        for column in range(columns):
            if at >= packet_end:
                return row, start, MALFORMED
            first = data[np.uint64(at)]
            at += 1
            length: Any = np.int64(first)
            if first >= 0xFB:
                if first == 0xFB:
                    starts[column, row] = NULL
                    continue
                width = 2 if first == 0xFC else (3 if first == 0xFD else 8)
                if at + width > packet_end:
                    return row, start, MALFORMED
                length = read_uint(data, at, width)
                at += width
            if length < 0 or length > packet_end - at:
                return row, start, MALFORMED
            starts[column, row] = at
            lengths[column, row] = length
            at += length
        if at != packet_end:
            return row, start, MALFORMED
        row += 1
        start = following
    return row, start, MORE


@kernel(types.int64(DATA, types.int64, types.int64))
def _digits(data: Any, at: int, count: int) -> int:
    """Return a number of exactly ``count`` digits; -1 if the bytes are something else."""
    total: Any = 0
    for i in range(count):
        digit = data[np.uint64(at + i)] - np.uint8(48)
        if digit > 9:
            return -1
        total = total * 10 + np.int64(digit)
    return total  # type: ignore[no-any-return]


@kernel(PAIR(DATA, types.int64))
def _date(data: Any, at: int) -> tuple[int, int]:
    """Parse ``YYYY-MM-DD``; return days since 1970 and 1; 0 for a day that does not exist, -1 for other text."""
    year, month, day = _digits(data, at, 4), _digits(data, at + 5, 2), _digits(data, at + 8, 2)
    if year < 0 or month < 0 or day < 0 or data[at + 4] != _MINUS or data[at + 7] != _MINUS or month > 12:
        return 0, -1
    if not date_exists(year, month, day):
        return 0, 0
    return days_from_civil(year, month, day), 1


@kernel(types.int64(DATA, types.int64, types.int64))
def _time_of_day(data: Any, at: int, end: int) -> int:
    """Parse ``HH:MM:SS[.ffffff]`` into microseconds; return -1 for other text."""
    hours, minutes, seconds = _digits(data, at, 2), _digits(data, at + 3, 2), _digits(data, at + 6, 2)
    if hours < 0 or minutes < 0 or seconds < 0 or data[at + 2] != _COLON or data[at + 5] != _COLON:
        return -1
    if hours > 23 or minutes > 59 or seconds > 59:
        return -1
    micros: Any = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
    at += 8
    if at < end:
        count = end - at - 1
        fraction = _digits(data, at + 1, count) if data[at] == _POINT and 1 <= count <= 6 else -1
        if fraction < 0:
            return -1
        micros += fraction * _POWERS[6 - count]
    return micros  # type: ignore[no-any-return]


@kernel(types.int64(DATA, POSITIONS, _LINE, types.boolean, types.int32[::1]))
def parse_dates(data: Any, starts: Any, lengths: Any, is_strict: bool, values: Any) -> int:
    """Parse dates into days since 1970."""
    result = GOOD
    for row in range(starts.size):
        at, days = starts[row], 0
        if at >= 0:
            days, exists = _date(data, at) if lengths[row] == 10 else (0, -1)
            if exists < 0 or (is_strict and exists == 0):
                return row
            if exists == 0:
                starts[row] = NULL
                result -= 1
        values[row] = days
    return result


@kernel(types.int64(DATA, POSITIONS, _LINE, types.boolean, types.int64[::1]))
def parse_timestamps(data: Any, starts: Any, lengths: Any, is_strict: bool, values: Any) -> int:
    """Parse ``YYYY-MM-DD HH:MM:SS[.ffffff]`` into microseconds since 1970."""
    result = GOOD
    for row in range(starts.size):
        at, length, micros = starts[row], lengths[row], 0
        if at >= 0:
            if length < 19 or length > 26 or data[at + 10] != _SPACE:
                return row
            days, exists = _date(data, at)
            time = _time_of_day(data, at + 11, at + length)
            if time < 0 or exists < 0 or (is_strict and exists == 0):
                return row
            micros = days * _DAY_US + time
            if exists == 0:
                starts[row] = NULL
                result -= 1
        values[row] = micros
    return result


@inlined
def _length_beside(_: Any, lengths: Any, row: int, __: int) -> int:
    return lengths[row]  # type: ignore[no-any-return]


TEXT: Final = kernels_for(_length_beside)
