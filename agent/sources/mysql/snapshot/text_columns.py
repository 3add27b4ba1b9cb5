"""Text columns: turn the places of a column's values in a result set into an Arrow array.

The Arrow type alone decides how: a ``SELECT`` (``rows_text``) asks for every column in the one spelling that its type
has here. Leaves to ``rows_text`` where values lie and the naming of the row that is bad.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.kernels.jit import Bytes, Ints
from agent.sources.mysql.snapshot import kernels_text

_ASCII_MAX = 127


class BadTextError(Exception):
    """A value's text is not of its column's type; ``row`` is in the batch at hand."""

    def __init__(self, row: int, reason: str = "its text is not a value of the column's type") -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Values:
    """Where one column's values lie. ``lengths`` are this call's to use up."""

    data: Bytes
    starts: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.starts)

    def array(self, arrow: pa.DataType, *buffers: Any) -> pa.Array:
        """The array of ``buffers``, valid where there is a value."""
        bitmap = np.zeros((len(self) + 7) // 8, np.uint8)
        nulls = kernels_text.fill_validity(self.lengths, bitmap)
        validity = pa.py_buffer(bitmap) if nulls else None
        return pa.Array.from_buffers(arrow, len(self), [validity, *map(pa.py_buffer, buffers)], nulls)


def build(arrow: pa.DataType, values: Values, *, skip: int = 0, is_strict: bool = False) -> pa.Array:
    """The Arrow array; ``skip`` leaves out the first bytes of each value.

    ``is_strict``: a date that no calendar has is an error, not NULL.

    :raises BadTextError: a value that is not of the type.
    """
    if pa.types.is_integer(arrow):
        return _integers(arrow, values)
    if pa.types.is_string(arrow) or pa.types.is_binary(arrow):
        return _bytes(arrow, values, skip)
    if pa.types.is_decimal(arrow):
        words = np.zeros((len(values), 2), np.uint64)
        return _filled(kernels_text.parse_decimals, arrow, values, words, arrow.precision, arrow.scale)
    if pa.types.is_floating(arrow):
        return _floats(arrow, values)
    if pa.types.is_boolean(arrow):
        return _filled(kernels_text.parse_flags, arrow, values, np.zeros((len(values) + 7) // 8, np.uint8))
    if pa.types.is_date32(arrow):
        return _calendar(kernels_text.parse_dates, arrow, values, np.int32, is_strict=is_strict)
    if pa.types.is_timestamp(arrow):
        return _calendar(kernels_text.parse_timestamps, arrow, values, np.int64, is_strict=is_strict)
    raise AssertionError(f"no MySQL column becomes {arrow}")


def _checked(row: int) -> None:
    if row == kernels_text.TOO_LARGE:
        raise BadTextError(0, "more than 2 GiB of one column in one batch")
    if row >= 0:
        raise BadTextError(row)


def _filled(
    kernel: Callable[..., int], arrow: pa.DataType, values: Values, out: npt.NDArray[Any], *bounds: int
) -> pa.Array:
    _checked(kernel(values.data, values.starts, values.lengths, *bounds, out))
    return values.array(arrow, out)


def _integers(arrow: pa.DataType, values: Values) -> pa.Array:
    dtype = arrow.to_pandas_dtype()
    bounds, wide = np.iinfo(dtype), np.zeros(len(values), np.int64)
    low, high = int(bounds.min), int(bounds.max)
    _checked(kernels_text.parse_integers(values.data, values.starts, values.lengths, low, high, wide))
    return values.array(arrow, wide.astype(dtype, copy=False))


def _calendar(
    kernel: Callable[..., int], arrow: pa.DataType, values: Values, dtype: npt.DTypeLike, *, is_strict: bool
) -> pa.Array:
    out = np.zeros(len(values), dtype)
    _checked(kernel(values.data, values.starts, values.lengths, out))
    if is_strict and (is_zero := values.lengths == kernels_text.ZERO).any():
        raise BadTextError(int(np.argmax(is_zero)), "a date that no calendar has")
    return values.array(arrow, out)


def _bytes(arrow: pa.DataType, values: Values, skip: int) -> pa.Array:
    offsets = np.zeros(len(values) + 1, np.int32)
    _checked(kernels_text.sum_lengths(values.lengths, skip, offsets))
    out = np.empty(offsets[-1], np.uint8)
    kernels_text.copy_values(values.data, values.starts, skip, offsets, out)
    array = values.array(arrow, offsets, out)
    if pa.types.is_string(arrow) and out.size and out.max() > _ASCII_MAX:
        _check_each(array, lambda part: part.validate(full=True), "text that is not UTF-8")
    return array


def _floats(arrow: pa.DataType, values: Values) -> pa.Array:
    texts = _bytes(pa.string(), values, 0)
    # By way of float64: that is what the server sends, and what is exact.
    _check_each(texts, lambda part: part.cast(pa.float64()), "its text is not a number")
    return texts.cast(pa.float64()).cast(arrow, safe=False)


def _check_each(values: pa.Array, check: Callable[[pa.Array], object], reason: str) -> None:
    """Run ``check`` over the array; where it fails, halve its way to the row that is to blame."""
    try:
        check(values)
    except pa.ArrowInvalid:
        start, rows = 0, len(values)
        while rows > 1:
            half = rows // 2
            try:
                check(values.slice(start, half))
                start, rows = start + half, rows - half
            except pa.ArrowInvalid:
                rows = half
        raise BadTextError(start, reason) from None
