"""Column builders: convert the positions of a column's values to an Arrow array, in binary or in text form.

``BINARY`` and ``TEXT`` list the builder of each kind of type. Text and binary are the same bytes for strings. A stream
that was reopened in the other mode may have both forms in one batch; such a column is built once per form and merged.

``decode`` and ``snapshot`` determine where values are, and which row is bad.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import RESYNC
from agent.kernels.columns import BadValueError, Texts, allocate, array, check
from agent.kernels.fixed import NULL, Kernel
from agent.kernels.jit import Bytes, Ints
from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.decode import exact, kernels_bytes, kernels_fixed, kernels_numeric, kernels_text, types
from agent.sources.postgres.decode.types import Kind

Builder = Callable[[Bytes, Ints, pa.DataType], pa.Array]

_TEXT_FORM = ord("t")
#: no lengths: each value is preceded by its own
_NO_LENGTHS: Final = np.empty(0, np.int64)


class BentKeyError(BadValueError):
    """A value is valid for its column's type, but as part of a key it could be confused with another one."""


def bent_key(schema: TableSchema, column: Column, error: BentKeyError, where: str) -> str:
    """Return the error line with its cure."""
    return (
        f"{schema.qualified_name}: key column {column.name} cannot be read: {error.reason} (infinity, 24:00, NaN, the "
        f"name of an object), {where}; change it at the source, and then {RESYNC}; or leave the table out by a filter "
        f"rule !{schema.qualified_name}"
    )


def build(column: Column, data: Bytes, positions: Ints, *, texts: int, binaries: int, is_key: bool = False) -> pa.Array:
    """Return the column's Arrow array. ``positions`` may be modified.

    ``texts`` and ``binaries``: number of values in each form. ``is_key``: the column identifies rows.

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


def _build_mixed(column: Column, data: Bytes, positions: Ints, *, texts: int, binaries: int, is_key: bool) -> pa.Array:
    has_value = positions >= 0
    is_text = has_value & (data[np.where(has_value, positions - 5, 0)] == _TEXT_FORM)
    from_text = build(column, data, np.where(is_text, positions, NULL), texts=texts, binaries=0, is_key=is_key)
    from_binary = build(column, data, np.where(is_text, NULL, positions), texts=0, binaries=binaries, is_key=is_key)
    return pc.coalesce(from_text, from_binary)


def _fixed(kernel: Kernel, dtype: npt.DTypeLike, *arguments: Any) -> Builder:
    def build_fixed(data: Bytes, positions: Ints, arrow: pa.DataType) -> pa.Array:
        values = allocate(len(positions), dtype)
        check(kernel(data, positions, values, 0, *arguments))
        return array(arrow, positions, values)

    return build_fixed


def _calendar(kernel: Kernel, dtype: npt.DTypeLike) -> Builder:
    """Return a builder for dates and times; invalid ones are errors."""
    return _fixed(kernel, dtype, True, 0)


def _floats(kernel: Kernel, bits: npt.DTypeLike, dtype: npt.DTypeLike) -> Builder:
    """Return a builder for floats; all NaNs become one, like their text: a server compares them as equal."""

    def build_floats(data: Bytes, positions: Ints, arrow: pa.DataType) -> pa.Array:
        words = allocate(len(positions), bits)
        check(kernel(data, positions, words, 0))
        values = words.view(dtype)
        values[np.isnan(values)] = np.nan
        return array(arrow, positions, values)

    return build_floats


def _build_bits(data: Bytes, positions: Ints, arrow: pa.DataType) -> pa.Array:
    bitmap = np.zeros((len(positions) + 7) // 8, np.uint8)
    check(kernels_fixed.decode_bool(data, positions, bitmap, 0))
    return array(arrow, positions, bitmap)


def _texts(build: Callable[[Texts, pa.DataType], pa.Array]) -> Builder:
    """Return a builder over the text kernels that the sources share."""

    def build_texts(data: Bytes, positions: Ints, arrow: pa.DataType) -> pa.Array:
        return build(Texts(kernels_bytes.TEXT, data, positions, _NO_LENGTHS), arrow)

    return build_texts


def _build_decimals(data: Bytes, positions: Ints, arrow: pa.DataType) -> pa.Array:
    if not pa.types.is_decimal(arrow):
        return _build_numeric_text(data, positions, arrow)
    words = np.zeros((len(positions), 2), np.uint64)
    check(kernels_numeric.decode_decimal(data, positions, arrow.precision, arrow.scale, words))
    return array(arrow, positions, words)


def _decimals_or_text(values: Texts, arrow: pa.DataType) -> pa.Array:
    return values.decimals(arrow) if pa.types.is_decimal(arrow) else values.strings(arrow)


def _strings(skip: int = 0) -> Builder:
    return _texts(
        lambda values, arrow: values.strings(arrow, skip=skip, cure="; set the database's encoding, or correct it")
    )


_build_values, _build_json = _strings(), _strings(skip=1)


def _build_jsonb(data: Bytes, positions: Ints, arrow: pa.DataType) -> pa.Array:
    check(kernels_bytes.check_jsonb_version(data, positions))
    return _build_json(data, positions, arrow)


def _converted(measure: Kernel, write: Kernel) -> Builder:
    """Return a builder for values whose bytes are converted."""

    def build_converted(data: Bytes, positions: Ints, arrow: pa.DataType) -> pa.Array:
        offsets = allocate(len(positions) + 1, np.int32)
        check(measure(data, positions, offsets))
        out = allocate(int(offsets[-1]), np.uint8)
        check(write(data, positions, offsets, out))
        return array(arrow, positions, offsets, out)

    return build_converted


_build_numeric_text = _converted(kernels_numeric.numeric_text_offsets, kernels_numeric.copy_numeric_text)

BINARY: Final[Mapping[Kind, Builder]] = {
    Kind.BOOL: _build_bits,
    Kind.INT2: _fixed(kernels_fixed.decode_int2, np.int16),
    Kind.INT4: _fixed(kernels_fixed.decode_int4, np.int32),
    Kind.INT8: _fixed(kernels_fixed.decode_int8, np.int64),
    Kind.FLOAT4: _floats(kernels_fixed.decode_int4, np.int32, np.float32),
    Kind.FLOAT8: _floats(kernels_fixed.decode_int8, np.int64, np.float64),
    Kind.NUMERIC: _build_decimals,
    Kind.TEXT: _build_values,
    Kind.BYTEA: _build_values,
    Kind.DATE: _fixed(kernels_fixed.decode_date, np.int32),
    Kind.TIME: _calendar(kernels_fixed.decode_time, np.int64),
    Kind.TIMESTAMP: _fixed(kernels_fixed.decode_timestamp, np.int64),
    Kind.TIMESTAMPTZ: _fixed(kernels_fixed.decode_timestamp, np.int64),
    Kind.UUID: _converted(kernels_bytes.uuid_offsets, kernels_bytes.copy_uuids),
    Kind.JSONB: _build_jsonb,
}

TEXT: Final[Mapping[Kind, Builder]] = {
    Kind.BOOL: _texts(lambda values, _: values.flags("f", "t")),
    Kind.INT2: _texts(Texts.integers),
    Kind.INT4: _texts(Texts.integers),
    Kind.INT8: _texts(Texts.integers),
    Kind.FLOAT4: _texts(Texts.floats),
    Kind.FLOAT8: _texts(Texts.floats),
    Kind.NUMERIC: _texts(_decimals_or_text),
    Kind.TEXT: _build_values,
    Kind.BYTEA: _converted(kernels_bytes.hex_offsets, kernels_bytes.copy_hex),
    Kind.DATE: _calendar(kernels_text.parse_dates, np.int32),
    Kind.TIME: _calendar(kernels_text.parse_times, np.int64),
    Kind.TIMESTAMP: _calendar(kernels_text.parse_timestamps, np.int64),
    Kind.TIMESTAMPTZ: _calendar(kernels_text.parse_timestamps, np.int64),
    Kind.UUID: _build_values,
    Kind.JSONB: _build_values,
    Kind.OTHER: _build_values,
}
