"""Result sets in the text protocol: where the values of each row lie, and their text turned into Arrow's own values.

The session fixes the spelling (time zone UTC, no SQL mode, text in utf8mb4) and the ``SELECT`` does the rest
(``rows_text``): numbers, dates and times come as ASCII in one form only.

The first pass, ``locate_rows``, fills ``starts`` and ``lengths``, a line for each column; a length of ``NULL`` stands
for no value. The kernels of the second pass each take one such line, and return -1 or the first row whose text is not
of the type. Dates that no calendar has (a zero month or day, the 30th of February) get the length ``ZERO``.
"""

from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.civil import days_from_civil
from agent.kernels.decimal128 import WORDS, is_below_power, multiply_add, store
from agent.kernels.jit import DATA, kernel

NULL: Final = -1
ZERO: Final = -2
#: more than 2 GiB of one column in one batch
TOO_LARGE: Final = -2

#: what ``locate_rows`` came to
MORE: Final = 0
FULL: Final = 1
OTHER_PACKET: Final = 2
MALFORMED: Final = 3

OUT: Final = types.uint8[::1]
LINE: Final = types.int64[::1]
MATRIX: Final = types.int64[:, ::1]
_PAIR: Final = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]
_LOCATED: Final = types.UniTuple(types.int64, 3)  # type: ignore[no-untyped-call]

_HEADER_BYTES = 4
_PACKET_MAX = 0xFFFFFF
_EOF_MAX = 9
_I32_MAX = 2**31 - 1
_I64_MAX = 2**63 - 1
_DAY_US = 86_400_000_000
_MINUS, _POINT, _COLON, _SPACE = ord("-"), ord("."), ord(":"), ord(" ")
#: the largest sum of digits that one more cannot overflow
_SAFE = 10**17
_POWERS = np.array([10**k for k in range(19)], np.int64)
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)


@kernel(types.int64(DATA, types.int64, types.int64))
def read_uint(data: Any, at: int, size: int) -> int:
    """A little-endian integer of ``size`` bytes."""
    value = np.uint64(0)
    for i in range(size):
        value |= np.uint64(data[np.uint64(at + i)]) << np.uint64(8 * i)
    return np.int64(value)  # type: ignore[return-value]


@kernel(_PAIR(OUT, types.int64, types.int64))
def join_packets(data: Any, start: int, end: int) -> tuple[int, int]:
    """The end of the packet at ``start``, and where the next one begins; (-1, -1) when it is not all there.

    What is sent in several packets, because it is larger than one may be, is moved together in place.
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


@kernel(_LOCATED(OUT, types.int64, types.int64, types.int64, MATRIX, MATRIX))
def locate_rows(data: Any, start: int, end: int, row: int, starts: Any, lengths: Any) -> tuple[int, int, int]:
    """Walk the packets in ``data[start:end]``, filling the matrices from ``row`` on.

    Returns the next free row, the offset of the first packet that was not taken, and why the walk ended there:
    ``MORE`` bytes are needed, the matrices are ``FULL``, it is no row (``OTHER_PACKET``), or it is ``MALFORMED``.
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
                    lengths[column, row] = NULL
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


@kernel(types.int64(LINE, OUT))
def fill_validity(lengths: Any, bitmap: Any) -> int:
    """Set a bit for every value; returns how many there are not."""
    nulls = 0
    for row in range(lengths.size):
        if lengths[row] >= 0:
            bitmap[row >> 3] |= 1 << (row & 7)
        else:
            nulls += 1
    return nulls


@kernel(types.int64(LINE, types.int64, types.int32[::1]))
def sum_lengths(lengths: Any, skip: int, offsets: Any) -> int:
    """Offsets of values whose first ``skip`` bytes are left out. Returns -1, ``TOO_LARGE``, or the row too short."""
    total = 0
    offsets[0] = 0
    for row in range(lengths.size):
        if lengths[row] >= 0:
            if lengths[row] < skip:
                return row
            total += lengths[row] - skip
            if total > _I32_MAX:
                return TOO_LARGE
        offsets[row + 1] = total
    return -1


@kernel(types.void(DATA, LINE, types.int64, types.int32[::1], OUT))
def copy_values(data: Any, starts: Any, skip: int, offsets: Any, out: Any) -> None:
    for row in range(starts.size):
        # unsigned, so that LLVM sees a plain copy
        target, length = np.uint64(offsets[row]), np.uint64(offsets[row + 1] - offsets[row])
        source = np.uint64(starts[row] + skip)
        for i in range(length):
            out[target + np.uint64(i)] = data[source + np.uint64(i)]


@kernel(types.int64(DATA, LINE, LINE, types.int64, types.int64, LINE))
def parse_integers(data: Any, starts: Any, lengths: Any, low: int, high: int, values: Any) -> int:
    """Integers within ``[low, high]``."""
    for row in range(starts.size):
        length = lengths[row]
        if length < 0:
            continue
        at = starts[row]
        end = at + length
        is_negative = length > 0 and data[np.uint64(at)] == _MINUS
        at += 1 if is_negative else 0
        if at >= end or end - at > 19:
            return row
        # Summed upward without a sign: 19 digits never overflow 64 bits.
        total = np.uint64(0)
        while at < end:
            digit = data[np.uint64(at)] - np.uint8(48)
            if digit > 9:
                return row
            total = total * np.uint64(10) + np.uint64(digit)
            at += 1
        if total > np.uint64(_I64_MAX) + np.uint64(1 if is_negative else 0):
            return row
        value = np.int64(~total + np.uint64(1)) if is_negative else np.int64(total)
        if value < low or value > high:
            return row
        values[row] = value
    return -1


@kernel(types.int64(DATA, LINE, LINE, OUT))
def parse_flags(data: Any, starts: Any, lengths: Any, bitmap: Any) -> int:
    """``0`` and ``1``, into bits."""
    for row in range(starts.size):
        if lengths[row] >= 0:
            character = data[starts[row]] if lengths[row] == 1 else 0
            if character != 48 and character != 49:
                return row
            if character == 49:
                bitmap[row >> 3] |= 1 << (row & 7)
    return -1


@kernel(types.boolean(DATA, types.int64, types.int64, types.int64, types.int64, WORDS, types.int64))
def _parse_wide(data: Any, at: int, end: int, scale: int, precision: int, words: Any, row: int) -> bool:
    """One decimal of any size, through limbs."""
    limbs = np.zeros(4, np.uint64)
    is_negative = data[at] == _MINUS
    at += 1 if is_negative else 0
    missing, seen_point, fits = scale, False, True
    while at < end:
        character = data[at]
        at += 1
        if character == _POINT and not seen_point:
            seen_point = True
            continue
        if character < 48 or character > 57:
            return False
        missing -= 1 if seen_point else 0
        fits &= missing >= 0 and multiply_add(limbs, np.uint64(10), np.uint64(character - 48))
    for _ in range(missing):
        fits &= multiply_add(limbs, np.uint64(10), np.uint64(0))
    if not fits or not is_below_power(limbs, precision):
        return False
    store(limbs, is_negative, words, row)
    return True


@kernel(types.int64(DATA, LINE, LINE, types.int64, types.int64, WORDS))
def parse_decimals(data: Any, starts: Any, lengths: Any, precision: int, scale: int, words: Any) -> int:
    """Decimals of ``scale`` digits behind the point, into 128-bit integers."""
    for row in range(starts.size):
        length = lengths[row]
        if length < 0:
            continue
        at = starts[row]
        end = at + length
        if length > 17:
            if not _parse_wide(data, at, end, scale, precision, words, row):
                return row
            continue
        is_negative = length > 0 and data[at] == _MINUS
        at += 1 if is_negative else 0
        if at >= end:
            return row
        total: Any = 0
        missing, seen_point = scale, False
        while at < end:
            character = data[np.uint64(at)]
            at += 1
            if character == _POINT and not seen_point:
                seen_point = True
                continue
            if character < 48 or character > 57:
                return row
            missing -= 1 if seen_point else 0
            total = total * 10 + np.int64(character - np.uint8(48))
        if missing < 0:
            return row
        if missing > 0:
            if missing > 18 or total > _SAFE // _POWERS[missing - 1]:
                if not _parse_wide(data, starts[row], end, scale, precision, words, row):
                    return row
                continue
            total *= _POWERS[missing]
        if precision < 19 and total >= _POWERS[min(precision, 18)]:
            return row
        words[row, 0] = np.uint64(-total if is_negative else total)
        words[row, 1] = np.uint64(-1 if is_negative and total else 0)
    return -1


@kernel(types.int64(DATA, types.int64, types.int64))
def _digits(data: Any, at: int, count: int) -> int:
    """A number of exactly ``count`` digits; -1 when that is not what is there."""
    total: Any = 0
    for i in range(count):
        digit = data[np.uint64(at + i)] - np.uint8(48)
        if digit > 9:
            return -1
        total = total * 10 + np.int64(digit)
    return total  # type: ignore[no-any-return]


@kernel(_PAIR(DATA, types.int64))
def _date(data: Any, at: int) -> tuple[int, int]:
    """``YYYY-MM-DD``: days, and -1; or 0, and ``ZERO`` for a day that there is not, 0 for what is no date."""
    year, month, day = _digits(data, at, 4), _digits(data, at + 5, 2), _digits(data, at + 8, 2)
    if year < 0 or month < 0 or day < 0 or data[at + 4] != _MINUS or data[at + 7] != _MINUS or month > 12:
        return 0, 0
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if month == 0 or day == 0 or day > _MONTH_DAYS[month] + (1 if is_leap and month == 2 else 0):
        return 0, ZERO
    return days_from_civil(year, month, day), -1


@kernel(types.int64(DATA, LINE, LINE, types.int32[::1]))
def parse_dates(data: Any, starts: Any, lengths: Any, values: Any) -> int:
    """Days since 1970; ``lengths`` becomes ``ZERO`` where there is no such day."""
    for row in range(starts.size):
        if lengths[row] < 0:
            continue
        if lengths[row] != 10:
            return row
        days, outcome = _date(data, starts[row])
        if outcome == 0:
            return row
        values[row] = days
        if outcome == ZERO:
            lengths[row] = ZERO
    return -1


@kernel(types.int64(DATA, types.int64, types.int64))
def _time_of_day(data: Any, at: int, end: int) -> int:
    """``HH:MM:SS[.ffffff]`` in microseconds; -1 when it is none."""
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


@kernel(types.int64(DATA, LINE, LINE, LINE))
def parse_timestamps(data: Any, starts: Any, lengths: Any, values: Any) -> int:
    """Microseconds since 1970 of ``YYYY-MM-DD HH:MM:SS[.ffffff]``; ``ZERO`` as in ``parse_dates``."""
    for row in range(starts.size):
        length, at = lengths[row], starts[row]
        if length < 0:
            continue
        if length < 19 or length > 26 or data[at + 10] != _SPACE:
            return row
        days, outcome = _date(data, at)
        micros = _time_of_day(data, at + 11, at + length)
        if outcome == 0 or micros < 0:
            return row
        values[row] = days * _DAY_US + micros
        if outcome == ZERO:
            lengths[row] = ZERO
    return -1
