"""Row hashes of Arrow batches, as a source's own SQL computes them (see ``agent.ports.checksums``)."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.kernels import row_hash
from agent.kernels.row_hash import Hashes
from agent.rows.row_forms import Form, RowForm, RowHash

#: of PostgreSQL's epoch since Unix'
_DAYS: Final = 10_957
_MICROSECONDS: Final = _DAYS * 86_400_000_000


def row_hashes(form: RowForm, batch: pa.RecordBatch) -> Hashes:
    """Of each row."""
    columns = [(batch.column(name), each) for name, each in form.columns]
    if form.hash is RowHash.CRC_SQUARE:
        return row_hash.crc_squares(_row_texts(columns))
    hashes = np.zeros(batch.num_rows, np.uint64)
    for column, each in columns:
        hashes = row_hash.combine(hashes, _hash(column, each))
    return row_hash.finish(hashes)


def _hash(column: pa.Array, form: Form) -> Hashes:
    match form:
        case Form.WORD:
            return row_hash.hash_words(_integers(column).cast(pa.int32()))
        case Form.DATE_WORD:
            return row_hash.hash_words(pc.subtract(column.cast(pa.int32()), pa.scalar(_DAYS, pa.int32())))
        case Form.LONG:
            return row_hash.hash_bytes(_big_endian(column.cast(pa.int64()), ">i8"))
        case Form.MOMENT_LONG:
            return row_hash.hash_bytes(_big_endian(pc.subtract(_microseconds(column), _MICROSECONDS), ">i8"))
        case Form.FLOAT:
            return row_hash.hash_bytes(_big_endian(column, ">f4" if column.type == pa.float32() else ">f8"))
        case _:
            return row_hash.hash_bytes(_text(column))


def _row_texts(columns: list[tuple[pa.Array, Form]]) -> pa.Array:
    """The values with a bar between them, before each sized one its length."""
    parts: list[Any] = []
    for column, form in columns:
        text = _text(column)
        if form is Form.SIZED:
            parts.append(_or_empty(pc.binary_length(text).cast(pa.string()).cast(pa.binary())))
        parts.append(_or_empty(text.cast(pa.binary())))
    bar = pa.scalar(b"|", pa.binary())
    return pc.binary_join_element_wise(*parts, bar) if len(parts) > 1 else parts[0]


def _or_empty(texts: pa.Array) -> pa.Array:
    return texts.fill_null(b"") if texts.null_count else texts


def _text(column: pa.Array) -> pa.Array:
    """The value's text as databases write it; strings and bytes as they are."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(pa.string())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us")).cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return column
    return column.cast(pa.string())


def _integers(column: pa.Array) -> pa.Array:
    return column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column


def _microseconds(column: pa.Array) -> pa.Array:
    return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())


def _big_endian(column: pa.Array, layout: str) -> pa.Array:
    """Each number as a binary of its bytes."""
    numbers = column.fill_null(0).to_numpy().astype(layout)
    offsets = np.arange(0, numbers.nbytes + 1, numbers.itemsize, dtype=np.int32)
    buffers = [column.is_valid().buffers()[1] if column.null_count else None, pa.py_buffer(offsets)]
    return pa.Array.from_buffers(pa.binary(), len(column), [*buffers, pa.py_buffer(numbers.tobytes())])
