"""Text conversions: converts a column's bytes to text if they are not text yet (character sets, members, JSON, …).

Each converts a finished array of raw values. None of it is on the hot path: a column of pure ASCII is passed through
whatever its character set.
"""

import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.kernels.columns import BadValueError, allocate, check_utf8, is_ascii
from agent.sources.mysql.decode import addresses, charsets, decimals
from agent.sources.mysql.decode.decimals import Groups
from agent.sources.mysql.decode.inflating import inflate
from agent.sources.mysql.decode.json import binary, kernels
from agent.sources.mysql.decode.kernels import bytes as kernels_bytes

_OFFSET_MAX = 2**31 - 1
_NO_CHARACTER = "a text of the key with a code that its character set has no character for; repair it at the source"
_NO_DOCUMENT = "its bytes are not a JSON document"
#: character sets in which a byte below 128 is not the ASCII character
_NOT_ASCII: Final = frozenset({"swe7", "ucs2", "utf16", "utf16le", "utf32"})

# A compressed value begins with a byte: the method in the upper four bits, then a bit for a missing zlib header, and in
# the lowest three bits the number of length bytes.
_METHOD_BITS, _DEFLATE, _RAW, _LENGTH_BYTES = 4, 8, 0x08, 0x07


def _buffers(values: pa.Array) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    _, offsets, data = values.buffers()
    return np.frombuffer(offsets, np.int32)[: len(values) + 1], np.frombuffer(data or b"", np.uint8)


def _with_text(values: pa.Array, offsets: npt.NDArray[Any], out: npt.NDArray[Any]) -> pa.Array:
    """Return a text array, NULL where ``values`` are."""
    buffers = [values.buffers()[0], pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.string(), len(values), buffers, values.null_count)


def utf8(values: pa.Array) -> pa.Array:
    """Check that bytes are UTF-8."""
    texts = values.view(pa.string())
    if not is_ascii(_buffers(values)[1]):
        check_utf8(texts, "text that is not UTF-8, whatever its column says; repair it at the source")
    return texts


@lru_cache(maxsize=64)
def _characters(charset: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return the UTF-8 bytes of all 256 characters, and the offset of each."""
    encoded = [character.encode() for character in charsets.table(charset)]
    starts = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(character) for character in encoded], out=starts[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), starts


def from_single_byte(charset: str) -> Callable[[pa.Array], pa.Array]:
    def convert(values: pa.Array) -> pa.Array:
        offsets, data = _buffers(values)
        if charset not in _NOT_ASCII and is_ascii(data):
            return values.view(pa.string())
        characters, starts = _characters(charset)
        out_offsets = allocate(len(values) + 1, np.int32)
        out = allocate(len(data) * int(np.diff(starts).max()), np.uint8)
        size = kernels_bytes.translate(data, offsets, characters, starts, out_offsets, out)
        return _with_text(values, out_offsets, out[:size])

    return convert


def apart(convert: Callable[[pa.Array], pa.Array]) -> Callable[[pa.Array], pa.Array]:
    """Return ``convert`` for texts of a key, refusing codes without a character: different keys would become one."""

    def checked(values: pa.Array) -> pa.Array:
        texts = convert(values)
        marks = pc.greater(pc.count_substring(texts, "?"), pc.count_substring(values, b"?"))
        lost = pc.fill_null(pc.or_(marks, pc.match_substring(texts, "\ufffd")), False)
        if pc.any(lost).as_py():
            raise BadValueError(pc.index(lost, True).as_py(), _NO_CHARACTER)
        return texts

    return checked


def from_codec(charset: str) -> Callable[[pa.Array], pa.Array]:
    named = f"the character set {charset}" if charset else "a character set that is not known"
    unreadable = f"text in {named} that Weir cannot read; convert the column to utf8mb4"

    def convert(values: pa.Array) -> pa.Array:
        if charset not in _NOT_ASCII and is_ascii(_buffers(values)[1]):
            return values.view(pa.string())
        if not charsets.is_readable(charset):
            raise BadValueError(0, unreadable)
        return _each(values, lambda value: charsets.to_text(charset, value), unreadable)

    return convert


def _each(values: pa.Array, read: Callable[[bytes], Any], reason: str, arrow: pa.DataType | None = None) -> pa.Array:
    """Convert value by value."""
    result: list[Any] = []
    for row, value in enumerate(values.to_pylist()):
        try:
            result.append(None if value is None else read(value))
        except (ValueError, IndexError, OSError, zlib.error) as error:
            raise BadValueError(row, f"{reason} ({error})" if str(error) else reason) from None
    return pa.array(result, arrow or pa.string())


def from_members(members: tuple[str, ...]) -> Callable[[pa.Array], pa.Array]:
    """Return the conversion of enum numbers; 0 is the empty text."""
    dictionary = pa.array(["", *members], pa.string())
    return lambda numbers: pa.DictionaryArray.from_arrays(numbers, dictionary).dictionary_decode()


def from_member_bits(members: tuple[str, ...]) -> Callable[[pa.Array], pa.Array]:
    """Return the conversion of set bits; only few of the possible combinations occur."""

    def convert(bits: pa.Array) -> pa.Array:
        masks, numbers = np.unique(np.frombuffer(bits.buffers()[1], np.uint64)[: len(bits)], return_inverse=True)
        names = [",".join(member for i, member in enumerate(members) if int(mask) >> i & 1) for mask in masks]
        indexes = pa.Array.from_buffers(
            pa.int64(), len(bits), [bits.buffers()[0], pa.py_buffer(numbers.astype(np.int64))], bits.null_count
        )
        return pa.DictionaryArray.from_arrays(indexes, pa.array(names, pa.string())).dictionary_decode()

    return convert


def decimal_text(groups: Groups) -> Callable[[pa.Array], pa.Array]:
    def convert(values: pa.Array) -> pa.Array:
        offsets, data = _buffers(values)
        out_offsets = allocate(len(values) + 1, np.int32)
        out = allocate(len(values) * groups.text_bytes, np.uint8)
        size = decimals.write_decimals(data, offsets, groups.digits, groups.bytes, groups.scale, out_offsets, out)
        return _with_text(values, out_offsets, out[:size])

    return convert


def uuid_text(values: pa.Array) -> pa.Array:
    offsets, data = _buffers(values)
    out_offsets = allocate(len(values) + 1, np.int32)
    out = allocate(len(values) * kernels_bytes.UUID_TEXT_BYTES, np.uint8)
    size = kernels_bytes.write_uuids(data, offsets, out_offsets, out)
    return _with_text(values, out_offsets, out[:size])


def inet4_text(values: pa.Array) -> pa.Array:
    return _each(values, addresses.inet4, "an inet4 that is none")


def inet6_text(values: pa.Array) -> pa.Array:
    return _each(values, addresses.inet6, "an inet6 that is none")


def json(values: pa.Array) -> pa.Array:
    offsets, data = _buffers(values)
    out_offsets, is_left = allocate(len(values) + 1, np.int32), np.zeros(len(values), np.bool_)
    room = len(data) * kernels.GROWTH + len(values) * kernels.SLACK_BYTES
    if room > _OFFSET_MAX:
        return _each(values, binary.to_text, _NO_DOCUMENT)
    out = allocate(room, np.uint8)
    size = kernels.write_documents(data, offsets, out_offsets, out, is_left)
    texts = _with_text(values, out_offsets, out[:size])
    if not is_ascii(out[:size]):
        check_utf8(texts, _NO_DOCUMENT)
    rest = np.where(is_left, values.is_valid().to_numpy(zero_copy_only=False), False)
    if not rest.any():
        return texts
    others = _each(pc.if_else(pa.array(rest), values, None), binary.to_text, _NO_DOCUMENT)
    return pc.if_else(pa.array(rest), others, texts)


def decompressed(values: pa.Array) -> pa.Array:
    """Decompress values of MariaDB's compressed columns."""
    return _each(values, _decompress, "a compressed value that is damaged", pa.binary())


def _decompress(value: bytes) -> bytes:
    if not value:
        return b""
    header = value[0]
    if header == 0:
        return value[1:]
    if header >> _METHOD_BITS != _DEFLATE:
        raise ValueError(f"compression method {header >> _METHOD_BITS}")
    start = 1 + (header & _LENGTH_BYTES)
    return inflate(value[start:], int.from_bytes(value[1:start]), is_raw=bool(header & _RAW))
