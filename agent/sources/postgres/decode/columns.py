"""Column builders: turn the positions of a column's values into an Arrow array, in binary or in text form.

``BINARY`` and ``TEXT`` say which builder each kind of type has. Text and binary are the same bytes for strings. A
stream that was reopened in the other mode may leave both forms in one batch; such a column is built once for each form
and put together.

Where values lie, and which row is bad, is for ``decode`` and ``snapshot`` to say.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.decode import exact, kernels_bytes, kernels_fixed, kernels_numeric, kernels_text, types
from agent.sources.postgres.decode.types import Kind
from agent.sources.postgres.decode.wire import NULL

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Builder = Callable[[Bytes, Positions, pa.DataType], pa.Array]

_TEXT_FORM = ord("t")
_ASCII_MAX = 127


class BadValueError(Exception):
    """A value's bytes are not of its column's type; ``row`` is in the batch at hand."""

    def __init__(self, row: int, reason: str = "its bytes are not a value of the column's type") -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


class BentKeyError(BadValueError):
    """A value is one of its column's type, but as a part of a key it could be taken for another one."""


def bent_key(schema: TableSchema, column: Column, error: BentKeyError, where: str) -> str:
    """The line that says so, and what helps."""
    return (
        f"{schema.qualified_name}: key column {column.name} cannot be read: {error.reason} (infinity, 24:00, NaN, the "
        f"name of an object), {where}; change it at the source and create the changefeed again, or leave the table out "
        f"by a filter rule !{schema.qualified_name}"
    )


def build(
    column: Column, data: Bytes, positions: Positions, *, texts: int, binaries: int, is_key: bool = False
) -> pa.Array:
    """The column's Arrow array. ``positions`` may be changed: it is this call's to use up.

    ``texts`` and ``binaries`` say how many values came in which form. ``is_key``: rows are distinguished by them.

    :raises BadValueError: a value that is not of the column's type, or one in a binary form that Weir does not read.
    :raises BentKeyError: a key value that the column's Arrow type cannot tell from another one.
    """
    arrow = types.arrow_type(column)
    if not texts and not binaries:
        return pa.nulls(len(positions), arrow)
    if texts and binaries:
        return _build_mixed(column, data, positions, texts=texts, binaries=binaries, is_key=is_key)
    kind = types.kind_of(column)
    if binaries and kind is Kind.OTHER:
        raise BadValueError(int(np.argmax(positions >= 0)), "a type that Weir reads as text came in its binary form")
    builder = (TEXT if texts else BINARY)[kind]
    if not is_key:
        return builder(data, positions, arrow)
    values = builder(data, positions.copy(), arrow)
    if (row := exact.first_bent(column, values, data, positions, is_text=bool(texts))) >= 0:
        raise BentKeyError(row, f"the sink's {arrow} cannot distinguish its value from another one")
    return values


def _build_mixed(
    column: Column, data: Bytes, positions: Positions, *, texts: int, binaries: int, is_key: bool
) -> pa.Array:
    has_value = positions >= 0
    is_text = has_value & (data[np.where(has_value, positions - 5, 0)] == _TEXT_FORM)
    from_text = build(column, data, np.where(is_text, positions, NULL), texts=texts, binaries=0, is_key=is_key)
    from_binary = build(column, data, np.where(is_text, NULL, positions), texts=0, binaries=binaries, is_key=is_key)
    return pc.coalesce(from_text, from_binary)


def _checked(row: int) -> None:
    if row == kernels_bytes.TOO_LARGE:
        raise BadValueError(0, "more than 2 GiB of one column in one batch; make the log's segments smaller")
    if row >= 0:
        raise BadValueError(row)


def _array(arrow: pa.DataType, positions: Positions, *buffers: Any) -> pa.Array:
    bitmap = np.zeros((len(positions) + 7) // 8, np.uint8)
    nulls = kernels_fixed.fill_validity(positions, bitmap)
    validity = pa.py_buffer(bitmap) if nulls else None
    return pa.Array.from_buffers(arrow, len(positions), [validity, *map(pa.py_buffer, buffers)], nulls)


def _fixed(kernel: Callable[[Bytes, Positions, Any], int], dtype: npt.DTypeLike) -> Builder:
    def build_fixed(data: Bytes, positions: Positions, arrow: pa.DataType) -> pa.Array:
        values = np.zeros(len(positions), dtype)
        _checked(kernel(data, positions, values))
        return _array(arrow, positions, values)

    return build_fixed


def _floats(kernel: Callable[[Bytes, Positions, Any], int], bits: npt.DTypeLike, dtype: npt.DTypeLike) -> Builder:
    """All NaNs become one, which is what their text says of them: a server compares them as equal."""

    def build_floats(data: Bytes, positions: Positions, arrow: pa.DataType) -> pa.Array:
        words = np.zeros(len(positions), bits)
        _checked(kernel(data, positions, words))
        values = words.view(dtype)
        values[np.isnan(values)] = np.nan
        return _array(arrow, positions, values)

    return build_floats


def _bits(kernel: Callable[[Bytes, Positions, Any], int]) -> Builder:
    def build_bits(data: Bytes, positions: Positions, arrow: pa.DataType) -> pa.Array:
        bitmap = np.zeros((len(positions) + 7) // 8, np.uint8)
        _checked(kernel(data, positions, bitmap))
        return _array(arrow, positions, bitmap)

    return build_bits


def _integers(dtype: type[np.signedinteger[Any]]) -> Builder:
    bounds = np.iinfo(dtype)

    def build_integers(data: Bytes, positions: Positions, arrow: pa.DataType) -> pa.Array:
        values = np.zeros(len(positions), np.int64)
        _checked(kernels_text.parse_integers(data, positions, int(bounds.min), int(bounds.max), values))
        return _array(arrow, positions, values.astype(dtype))

    return build_integers


def _decimals(kernel: Callable[[Bytes, Positions, int, int, Any], int], as_text: Builder) -> Builder:
    def build_decimals(data: Bytes, positions: Positions, arrow: pa.DataType) -> pa.Array:
        if not pa.types.is_decimal(arrow):
            return as_text(data, positions, arrow)
        words = np.zeros((len(positions), 2), np.uint64)
        _checked(kernel(data, positions, arrow.precision, arrow.scale, words))
        return _array(arrow, positions, words)

    return build_decimals


def _build_values(data: Bytes, positions: Positions, arrow: pa.DataType, skip: int = 0) -> pa.Array:
    offsets = np.zeros(len(positions) + 1, np.int32)
    _checked(kernels_bytes.value_offsets(data, positions, offsets, skip))
    out = np.empty(offsets[-1], np.uint8)
    kernels_bytes.copy_values(data, positions, offsets, skip, out)
    values = _array(arrow, positions, offsets, out)
    if pa.types.is_string(arrow) and out.size and out.max() > _ASCII_MAX:
        _check_each(
            values, lambda part: part.validate(full=True), "text that is not UTF-8; set the database's encoding"
        )
    return values


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
        raise BadValueError(start, reason) from None


def _build_jsonb(data: Bytes, positions: Positions, arrow: pa.DataType) -> pa.Array:
    _checked(kernels_bytes.check_jsonb_version(data, positions))
    return _build_values(data, positions, arrow, 1)


def _build_uuid(data: Bytes, positions: Positions, arrow: pa.DataType) -> pa.Array:
    offsets = np.zeros(len(positions) + 1, np.int32)
    _checked(kernels_bytes.uuid_offsets(data, positions, offsets))
    out = np.empty(offsets[-1], np.uint8)
    kernels_bytes.copy_uuids(data, positions, offsets, out)
    return _array(arrow, positions, offsets, out)


def _build_hex(data: Bytes, positions: Positions, arrow: pa.DataType) -> pa.Array:
    offsets = np.zeros(len(positions) + 1, np.int32)
    _checked(kernels_bytes.hex_offsets(data, positions, offsets))
    out = np.empty(offsets[-1], np.uint8)
    _checked(kernels_bytes.copy_hex(data, positions, offsets, out))
    return _array(arrow, positions, offsets, out)


def _build_numeric_text(data: Bytes, positions: Positions, arrow: pa.DataType) -> pa.Array:
    offsets = np.zeros(len(positions) + 1, np.int32)
    _checked(kernels_numeric.numeric_text_offsets(data, positions, offsets))
    out = np.empty(offsets[-1], np.uint8)
    kernels_numeric.copy_numeric_text(data, positions, offsets, out)
    return _array(arrow, positions, offsets, out)


def _build_floats(data: Bytes, positions: Positions, arrow: pa.DataType) -> pa.Array:
    texts = _build_values(data, positions, pa.string())
    _check_each(texts, lambda part: part.cast(arrow), "its text is not a number")
    return texts.cast(arrow)


BINARY: Final[Mapping[Kind, Builder]] = {
    Kind.BOOL: _bits(kernels_fixed.decode_bool),
    Kind.INT2: _fixed(kernels_fixed.decode_int2, np.int16),
    Kind.INT4: _fixed(kernels_fixed.decode_int4, np.int32),
    Kind.INT8: _fixed(kernels_fixed.decode_int8, np.int64),
    Kind.FLOAT4: _floats(kernels_fixed.decode_int4, np.int32, np.float32),
    Kind.FLOAT8: _floats(kernels_fixed.decode_int8, np.int64, np.float64),
    Kind.NUMERIC: _decimals(kernels_numeric.decode_decimal, _build_numeric_text),
    Kind.TEXT: _build_values,
    Kind.BYTEA: _build_values,
    Kind.DATE: _fixed(kernels_fixed.decode_date, np.int32),
    Kind.TIME: _fixed(kernels_fixed.decode_time, np.int64),
    Kind.TIMESTAMP: _fixed(kernels_fixed.decode_timestamp, np.int64),
    Kind.TIMESTAMPTZ: _fixed(kernels_fixed.decode_timestamp, np.int64),
    Kind.UUID: _build_uuid,
    Kind.JSONB: _build_jsonb,
}

TEXT: Final[Mapping[Kind, Builder]] = {
    Kind.BOOL: _bits(kernels_text.parse_bool),
    Kind.INT2: _integers(np.int16),
    Kind.INT4: _integers(np.int32),
    Kind.INT8: _integers(np.int64),
    Kind.FLOAT4: _build_floats,
    Kind.FLOAT8: _build_floats,
    Kind.NUMERIC: _decimals(kernels_text.parse_decimals, _build_values),
    Kind.TEXT: _build_values,
    Kind.BYTEA: _build_hex,
    Kind.DATE: _fixed(kernels_text.parse_dates, np.int32),
    Kind.TIME: _fixed(kernels_text.parse_times, np.int64),
    Kind.TIMESTAMP: _fixed(kernels_text.parse_timestamps, np.int64),
    Kind.TIMESTAMPTZ: _fixed(kernels_text.parse_timestamps, np.int64),
    Kind.UUID: _build_values,
    Kind.JSONB: _build_values,
    Kind.OTHER: _build_values,
}
