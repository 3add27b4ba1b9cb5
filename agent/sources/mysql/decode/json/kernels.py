"""JSON kernels: turn common binary JSON straight into text (objects, arrays, strings, integers, short doubles).

A document with other contents (other doubles, a value of an SQL type) or a malformed one is marked and left to
``binary``, which decodes the whole format and reports what is wrong.
"""

from typing import Any, Final

import numpy as np
from numba import types

from agent.kernels.jit import DATA, OFFSETS, OUT, READ_OFFSETS, kernel
from agent.sources.mysql.decode.wire import read_u16, read_u32, read_u64

#: room for a text: what a document's bytes can become (``\\u001f``), and what is written before a look at the limit
GROWTH: Final = 6
SLACK_BYTES: Final = 64

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = 0, 1, 2, 3, 4
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = 5, 6, 7, 8, 9, 10, 11, 12
#: doubles are written with up to so many decimals
_DECIMALS_MAX = 9
_POWERS = np.array([10.0**k for k in range(_DECIMALS_MAX + 1)], np.float64)
#: any decimal of fifteen digits is the only one, and so the shortest, that reads back as its double
_EXACT = 1e15
#: the longest scalar that is written without a further look
_SCALAR_BYTES = 32
_DEPTH_MAX = 100
# A container that is being written: where it begins, the size of its offsets, whether it is an object, how many values
# it has, which is the next, where its entries begin and where it ends.
_AT, _SIZE, _IS_OBJECT, _COUNT, _NEXT, _VALUES, _STOP, _FRAME_CELLS = 0, 1, 2, 3, 4, 5, 6, 7
_FRAME: Final = types.int64[::1]
_LITERALS = np.frombuffer(b"null truefalse", np.uint8).copy()
_LITERAL_LENGTHS = np.array([4, 4, 5], np.int64)
_LITERAL_STARTS = np.array([0, 5, 9], np.int64)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
#: the letter that means a control character behind a backslash, or 0
_SHORT = np.zeros(32, np.uint8)
for _character, _letter in zip(b"\b\t\n\f\r", b"btnfr", strict=True):
    _SHORT[_character] = _letter
_QUOTE, _BACKSLASH, _MINUS, _ZERO, _COMMA, _COLON, _SPACE, _POINT = 34, 92, 45, 48, 44, 58, 32, 46
_WAY_OUT = -1
#: the quotes of a string, and what may come behind a key
_AROUND = 4


@kernel(types.int64(DATA, types.int64, types.int64, OUT, types.int64, types.int64))
def _write_string(data: Any, at: int, length: int, out: Any, to: int, limit: int) -> int:
    if to + GROWTH * length + _AROUND > limit:
        return _WAY_OUT
    out[to] = _QUOTE
    to += 1
    for i in range(at, at + length):
        byte = data[i]
        if byte == _QUOTE or byte == _BACKSLASH:  # noqa: SIM109 - numba compiles it to two compares
            out[to], out[to + 1] = _BACKSLASH, byte
            to += 2
        elif byte >= _SPACE:
            out[to] = byte
            to += 1
        elif _SHORT[byte]:
            out[to], out[to + 1] = _BACKSLASH, _SHORT[byte]
            to += 2
        else:
            out[to], out[to + 1], out[to + 2], out[to + 3] = _BACKSLASH, 117, _ZERO, _ZERO
            out[to + 4], out[to + 5] = _HEX[byte >> 4], _HEX[byte & 15]
            to += 6
    out[to] = _QUOTE
    return to + 1


@kernel(types.int64(types.uint64, types.int64, OUT, types.int64))
def _write_digits(number: Any, digits_min: int, out: Any, to: int) -> int:
    digits, rest = 1, number // np.uint64(10)
    while rest:
        digits += 1
        rest //= np.uint64(10)
    digits = max(digits, digits_min)
    for i in range(digits - 1, -1, -1):
        out[to + i] = _ZERO + number % np.uint64(10)
        number //= np.uint64(10)
    return to + digits


@kernel(types.int64(DATA, types.int64, types.int64, types.int64, OUT, types.int64))
def _write_integer(data: Any, kind: int, at: int, end: int, out: Any, to: int) -> int:
    width = 2 if kind <= _UINT16 else 4 if kind <= _UINT32 else 8
    if at + width > end:
        return _WAY_OUT
    word = np.uint64(read_u16(data, at) if width == 2 else read_u32(data, at))
    if width == 8:
        word = read_u64(data, at)
    sign_bit = np.uint64(1) << np.uint64(8 * width - 1)
    if (kind == _INT16 or kind == _INT32 or kind == _INT64) and word & sign_bit:  # noqa: SIM109
        out[to] = _MINUS
        to += 1
        # Two's complement: what is left of the whole range.
        word = (~word + np.uint64(1)) & ((sign_bit << np.uint64(1)) - np.uint64(1))
    return _write_digits(word, 1, out, to)  # type: ignore[no-any-return]


@kernel(types.int64(DATA, types.int64, types.int64, OUT, types.int64))
def _write_double(data: Any, at: int, end: int, out: Any, to: int) -> int:
    if at + 8 > end:
        return _WAY_OUT
    value = np.uint64(read_u64(data, at)).view(np.float64)
    for decimals in range(_DECIMALS_MAX + 1):
        scaled = np.rint(abs(value) * _POWERS[decimals])
        if not scaled < _EXACT:
            return _WAY_OUT
        if scaled / _POWERS[decimals] == abs(value):
            if np.signbit(value):
                out[to] = _MINUS
                to += 1
            unit = np.uint64(_POWERS[decimals])
            to = _write_digits(np.uint64(scaled) // unit, 1, out, to)
            out[to] = _POINT
            return _write_digits(np.uint64(scaled) % unit, max(decimals, 1), out, to + 1)  # type: ignore[no-any-return]
    return _WAY_OUT


@kernel(types.int64(DATA, types.int64, types.int64, types.int64, OUT, types.int64, types.int64))
def _write_scalar(data: Any, kind: int, at: int, end: int, out: Any, to: int, limit: int) -> int:
    if to + _SCALAR_BYTES > limit or at >= end:
        return _WAY_OUT
    if kind == _LITERAL:
        which = data[at]
        if which > 2:
            return _WAY_OUT
        for i in range(_LITERAL_LENGTHS[which]):
            out[to + i] = _LITERALS[_LITERAL_STARTS[which] + i]
        return to + _LITERAL_LENGTHS[which]  # type: ignore[no-any-return]
    if _INT16 <= kind <= _UINT64:
        return _write_integer(data, kind, at, end, out, to)  # type: ignore[no-any-return]
    if kind == _DOUBLE:
        return _write_double(data, at, end, out, to)  # type: ignore[no-any-return]
    if kind != _STRING:
        return _WAY_OUT
    length, shift = np.int64(0), 0
    while at < end and shift < 35:
        byte = np.int64(data[at])
        length |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            is_there = at + length <= end
            return _write_string(data, at, length, out, to, limit) if is_there else _WAY_OUT
    return _WAY_OUT


@kernel(types.int64(DATA, types.int64, types.int64))
def _offset(data: Any, at: int, size: int) -> int:
    return read_u32(data, at) if size == 4 else read_u16(data, at)  # type: ignore[no-any-return]


@kernel(types.boolean(DATA, types.int64, types.int64, types.int64, _FRAME))
def _open(data: Any, kind: int, at: int, end: int, frame: Any) -> bool:
    """Fill the frame of a container; return False if it is not complete."""
    size = 4 if kind == _LARGE_OBJECT or kind == _LARGE_ARRAY else 2  # noqa: SIM109
    if at + 2 * size > end:
        return False
    frame[_AT], frame[_SIZE], frame[_IS_OBJECT], frame[_NEXT] = at, size, kind <= _LARGE_OBJECT, 0
    frame[_COUNT], frame[_STOP] = _offset(data, at, size), at + _offset(data, at + size, size)
    frame[_VALUES] = at + 2 * size + (frame[_COUNT] * (size + 2) if frame[_IS_OBJECT] else 0)
    return bool(frame[_STOP] <= end and frame[_VALUES] + frame[_COUNT] * (1 + size) <= frame[_STOP])


@kernel(types.int64(DATA, _FRAME, OUT, types.int64, types.int64))
def _write_key(data: Any, frame: Any, out: Any, to: int, limit: int) -> int:
    at, size = frame[_AT], frame[_SIZE]
    key = at + 2 * size + frame[_NEXT] * (size + 2)
    start, length = at + _offset(data, key, size), read_u16(data, key + size)
    if start + length > frame[_STOP]:
        return _WAY_OUT
    to = _write_string(data, start, length, out, to, limit)
    if to >= 0:
        out[to], out[to + 1] = _COLON, _SPACE
        to += 2
    return to


@kernel(types.int64(DATA, _FRAME, types.int64))
def _target(data: Any, frame: Any, entry: int) -> int:
    """Return the place of an entry's value: in the entry, or at its offset, which must be behind it; -1 if it is
    not."""
    kind, size = data[entry], frame[_SIZE]
    if kind in (_LITERAL, _INT16, _UINT16) or (size == 4 and kind in (_INT32, _UINT32)):
        return entry + 1
    target = frame[_AT] + _offset(data, entry + 1, size)
    return target if target > entry else _WAY_OUT


@kernel(types.int64(DATA, types.int64, types.int64, OUT, types.int64, types.int64, types.int64[:, ::1]))
def _write(data: Any, start: int, end: int, out: Any, to: int, limit: int, frames: Any) -> int:
    """Write the document at ``start``; return the end of its text, or -1. (numba cannot cache a kernel that calls
    itself.)"""
    kind, at, stop, depth = np.int64(data[start]), start + 1, end, 0
    while True:
        if kind > _LARGE_ARRAY:
            to = _write_scalar(data, kind, at, stop, out, to, limit)
            if to < 0:
                return _WAY_OUT
        elif depth < frames.shape[0] and _open(data, kind, at, stop, frames[depth]):
            out[to] = 123 if frames[depth, _IS_OBJECT] else 91
            to, depth = to + 1, depth + 1
        else:
            return _WAY_OUT
        while depth > 0 and frames[depth - 1, _NEXT] == frames[depth - 1, _COUNT] and to < limit:
            depth -= 1
            out[to] = 125 if frames[depth, _IS_OBJECT] else 93
            to += 1
        if depth == 0:
            return to
        if to + _SCALAR_BYTES > limit:
            return _WAY_OUT
        frame = frames[depth - 1]
        if frame[_NEXT] > 0:
            out[to], out[to + 1] = _COMMA, _SPACE
            to += 2
        if frame[_IS_OBJECT]:
            to = _write_key(data, frame, out, to, limit)
        entry = frame[_VALUES] + frame[_NEXT] * (1 + frame[_SIZE])
        kind, at, stop = np.int64(data[entry]), _target(data, frame, entry), frame[_STOP]
        if to < 0 or at < 0 or to + _SCALAR_BYTES > limit:
            return _WAY_OUT
        frame[_NEXT] += 1


@kernel(types.int64(DATA, READ_OFFSETS, OFFSETS, OUT, types.boolean[::1]))
def write_documents(data: Any, offsets: Any, out_offsets: Any, out: Any, is_left: Any) -> int:
    """Write documents as text; ``is_left`` marks those that are left to ``binary``, and empty ones.

    Return the bytes written; ``out`` has ``GROWTH`` times the data's bytes and ``SLACK_BYTES`` for each row.
    """
    frames = np.zeros((_DEPTH_MAX, _FRAME_CELLS), np.int64)
    total = 0
    for row in range(offsets.size - 1):
        out_offsets[row] = total
        at, end = offsets[row], offsets[row + 1]
        done = _WAY_OUT
        if end > at:
            done = _write(data, at, end, out, total, total + GROWTH * (end - at) + SLACK_BYTES, frames)
        is_left[row] = done < 0
        total = max(total, done)
    out_offsets[offsets.size - 1] = total
    return total
