"""Column builders: ``fill`` adds values block by block, ``finish`` returns the Arrow array.

A builder is created for a known number of rows and, for values of variable length, of bytes. Its memory comes from
Arrow's pool, which reuses pages between batches. A validity bitmap is created with the first NULL.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.kernels.columns import NOT_OF_ITS_TYPE, TOO_MUCH, BadValueError, allocate
from agent.kernels.fixed import GOOD, Kernel, fill_validity
from agent.kernels.jit import Bytes, Ints
from agent.sources.mysql.decode.kernels import bytes as kernels_bytes

_OFFSET_MAX: Final = 2**31 - 1


class Builder(Protocol):
    def fill(self, data: Bytes, positions: Ints, first: int, nulls: int) -> None:
        """Fill the rows from ``first`` (a multiple of 8) on; ``nulls`` is the count of NULLs. ``positions`` may change.

        :raises BadValueError: a value is not of the column's type.
        """
        ...

    def finish(self) -> pa.Array:
        """Return the array.

        :raises BadValueError: a value is not of the column's type.
        """
        ...


class _Validity:
    """The validity bitmap: which rows have a value."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._bitmap: Bytes | None = None
        self.nulls = 0

    def note(self, positions: Ints, first: int, nulls: int) -> None:
        if nulls:
            if self._bitmap is None:
                self._bitmap = np.full((self._rows + 7) // 8, 0xFF, np.uint8)
            self.nulls += fill_validity(positions, self._bitmap, first)

    def array(self, arrow: pa.DataType, *buffers: npt.NDArray[Any]) -> pa.Array:
        validity = None if self._bitmap is None else pa.py_buffer(self._bitmap)
        return pa.Array.from_buffers(arrow, self._rows, [validity, *map(pa.py_buffer, buffers)], self.nulls)


class Fixed:
    """Values of fixed width. ``arguments`` are passed to the kernel after the row; a decimal takes two words."""

    def __init__(
        self,
        arrow: pa.DataType,
        rows: int,
        kernel: Kernel,
        dtype: npt.DTypeLike,
        *arguments: Any,
        reason: str = NOT_OF_ITS_TYPE,
    ) -> None:
        self._arrow = arrow
        self._kernel, self._arguments, self._reason = kernel, arguments, reason
        words = 2 if pa.types.is_decimal(arrow) else 1
        values = allocate(rows * words, dtype)
        self.values: npt.NDArray[Any] = values.reshape(rows, 2) if words == 2 else values
        self.validity = _Validity(rows)

    def fill(self, data: Bytes, positions: Ints, first: int, nulls: int) -> None:
        result = self._kernel(data, positions, self.values, first, *self._arguments)
        if result >= 0:
            raise BadValueError(first + result, self._reason)
        self.validity.note(positions, first, nulls + GOOD - result)

    def finish(self) -> pa.Array:
        return self.validity.array(self._arrow, self.values)


class Bits:
    """Booleans."""

    def __init__(self, rows: int, kernel: Kernel) -> None:
        self._kernel = kernel
        self._bitmap = np.zeros((rows + 7) // 8, np.uint8)
        self._validity = _Validity(rows)

    def fill(self, data: Bytes, positions: Ints, first: int, nulls: int) -> None:
        self._kernel(data, positions, self._bitmap, first)
        self._validity.note(positions, first, nulls)

    def finish(self) -> pa.Array:
        return self._validity.array(pa.bool_(), self._bitmap)


class Values:
    """Values of variable length, at most ``size`` bytes in all, without the first ``skip`` of each.

    With ``width``, all values have this length, and zeros are appended where the log omits them.
    """

    def __init__(
        self, arrow: pa.DataType, rows: int, size: int, *, prefix: int, skip: int = 0, width: int | None = None
    ) -> None:
        if size > _OFFSET_MAX:
            raise BadValueError(0, TOO_MUCH)
        self._arrow = arrow
        self._arguments = (prefix, skip if width is None else width)
        self._kernel: Kernel = kernels_bytes.copy_values if width is None else kernels_bytes.copy_padded
        self._offsets = allocate(rows + 1, np.int32)
        self._offsets[0] = 0
        self._out = allocate(size, np.uint8)
        self._validity = _Validity(rows)

    def fill(self, data: Bytes, positions: Ints, first: int, nulls: int) -> None:
        bad = self._kernel(data, positions, *self._arguments, self._offsets, first, self._out)
        if bad >= 0:
            raise BadValueError(first + bad)
        self._validity.note(positions, first, nulls)

    def finish(self) -> pa.Array:
        return self._validity.array(self._arrow, self._offsets, self._out[: self._offsets[-1]])


class Text:
    """Formats the values of ``inner`` as text by ``write(values, …, offsets, out)``."""

    def __init__(self, inner: Fixed, rows: int, write: Kernel, longest_bytes: int, *arguments: Any) -> None:
        self._inner, self._rows, self._write = inner, rows, write
        self._longest_bytes, self._arguments = longest_bytes, arguments

    def fill(self, data: Bytes, positions: Ints, first: int, nulls: int) -> None:
        self._inner.fill(data, positions, first, nulls)

    def finish(self) -> pa.Array:
        offsets = allocate(self._rows + 1, np.int32)
        out = allocate(self._rows * self._longest_bytes, np.uint8)
        size = self._write(self._inner.values, *self._arguments, offsets, out)
        return self._inner.validity.array(pa.string(), offsets, out[:size])


class Converted:
    """Converts the array of ``inner`` by ``convert``."""

    def __init__(self, inner: Builder, convert: Callable[[pa.Array], pa.Array]) -> None:
        self._inner, self._convert = inner, convert

    def fill(self, data: Bytes, positions: Ints, first: int, nulls: int) -> None:
        self._inner.fill(data, positions, first, nulls)

    def finish(self) -> pa.Array:
        return self._convert(self._inner.finish())


class KeyDates:
    """Dates of a key: those that no calendar has become NULL, which can stand for one value only, ``zero``."""

    def __init__(self, inner: Fixed, zero: bytes, reason: str) -> None:
        self._inner, self._zero, self._reason = inner, zero, reason

    def fill(self, data: Bytes, positions: Ints, first: int, nulls: int) -> None:
        before = positions.copy()
        self._inner.fill(data, positions, first, nulls)
        for row in np.flatnonzero((before >= 0) & (positions < 0)):
            at = before[row]
            if data[at : at + len(self._zero)].tobytes() != self._zero:
                raise BadValueError(first + int(row), self._reason)

    def finish(self) -> pa.Array:
        return self._inner.finish()
