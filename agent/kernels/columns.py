"""Columns: make Arrow arrays of the buffers that kernels fill, for every source.

Also ``Texts``: a column whose values are sent as text, whatever the protocol; it uses the kernels of ``text``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.kernels.fixed import fill_validity
from agent.kernels.jit import Bytes, Ints
from agent.kernels.text import TOO_LARGE, TextKernels, copy_values

_ASCII_MAX = 127
NOT_OF_ITS_TYPE: Final = "its bytes are not a value of the column's type"
TOO_MUCH: Final = "more than 2 GiB of one column in one batch; make the log's segments smaller"


class BadValueError(Exception):
    """A value that cannot be decoded; ``row`` is its row in the current batch."""

    def __init__(self, row: int, reason: str = NOT_OF_ITS_TYPE) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


def allocate(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Allocate an uninitialised array from Arrow's memory pool."""
    size = np.dtype(dtype).itemsize
    return np.frombuffer(pa.allocate_buffer(max(count, 1) * size), dtype, max(count, 1))[:count]


def check(row: int, reason: str = NOT_OF_ITS_TYPE) -> None:
    """Check a kernel's result.

    :raises BadValueError: the kernel returned a bad row.
    """
    if row == TOO_LARGE:
        raise BadValueError(0, TOO_MUCH)
    if row >= 0:
        raise BadValueError(row, reason)


def array(arrow: pa.DataType, positions: Ints, *buffers: Any) -> pa.Array:
    """Return an Arrow array of ``buffers``; rows with a negative position are NULL."""
    bitmap = np.empty((len(positions) + 7) // 8, np.uint8)
    nulls = fill_validity(positions, bitmap, 0)
    validity = pa.py_buffer(bitmap) if nulls else None
    return pa.Array.from_buffers(arrow, len(positions), [validity, *map(pa.py_buffer, buffers)], nulls)


def is_ascii(data: Bytes) -> bool:
    return not data.size or bool(data.max() <= _ASCII_MAX)


def check_utf8(values: pa.Array, reason: str) -> None:
    """:raises BadValueError: a value is not UTF-8; ``row`` is the first such row."""
    check_each(values, lambda part: part.validate(full=True), reason)


def check_each(values: pa.Array, run: Callable[[pa.Array], object], reason: str) -> None:
    """Call ``run`` on the array; if it fails, bisect to the first offending row.

    :raises BadValueError: with that row.
    """
    try:
        run(values)
    except pa.ArrowInvalid:
        start, rows = 0, len(values)
        while rows > 1:
            half = rows // 2
            try:
                run(values.slice(start, half))
                start, rows = start + half, rows - half
            except pa.ArrowInvalid:
                rows = half
        raise BadValueError(start, reason) from None


@dataclass(frozen=True, slots=True)
class Texts:
    """The positions of one column's values, written as text. Methods may overwrite ``starts``.

    Each method returns the decoded array. :raises BadValueError: a value is not of the type.
    """

    kernels: TextKernels
    data: Bytes
    starts: Ints
    lengths: Ints

    def integers(self, arrow: pa.DataType) -> pa.Array:
        dtype = arrow.to_pandas_dtype()
        bounds, wide = np.iinfo(dtype), allocate(len(self.starts), np.int64)
        low, high = int(bounds.min), int(bounds.max)
        check(self.kernels.integers(self.data, self.starts, self.lengths, low, high, wide))
        return array(arrow, self.starts, wide.astype(dtype, copy=False))

    def decimals(self, arrow: pa.DataType) -> pa.Array:
        words = np.zeros((len(self.starts), 2), np.uint64)
        check(self.kernels.decimals(self.data, self.starts, self.lengths, arrow.precision, arrow.scale, words))
        return array(arrow, self.starts, words)

    def flags(self, false: str, true: str) -> pa.Array:
        bitmap = np.zeros((len(self.starts) + 7) // 8, np.uint8)
        check(self.kernels.flags(self.data, self.starts, self.lengths, ord(false), ord(true), bitmap))
        return array(pa.bool_(), self.starts, bitmap)

    def strings(self, arrow: pa.DataType, *, skip: int = 0, cure: str = "") -> pa.Array:
        """Return the bytes as they are, without the first ``skip`` bytes of each value; ``cure``: advice for text that
        is not UTF-8."""
        offsets = allocate(len(self.starts) + 1, np.int32)
        check(self.kernels.offsets(self.data, self.starts, self.lengths, skip, offsets))
        out = allocate(int(offsets[-1]), np.uint8)
        copy_values(self.data, self.starts, skip, offsets, out)
        values = array(arrow, self.starts, offsets, out)
        if pa.types.is_string(arrow) and not is_ascii(out):
            check_utf8(values, "text that is not UTF-8" + cure)
        return values

    def floats(self, arrow: pa.DataType) -> pa.Array:
        """Parse with Arrow."""
        texts = self.strings(pa.string())
        check_each(texts, lambda part: part.cast(arrow), "its text is not a number")
        return texts.cast(arrow)
