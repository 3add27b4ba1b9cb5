"""Row groups: the pieces in which rows are written to Parquet, and the columns that a dictionary makes smaller."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

ROWS_MAX: Final = 131_072
BYTES_MAX: Final = 16 << 20
_SAMPLE_ROWS: Final = 1_000
K = TypeVar("K")
_TEXTS: Final = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join small pieces, so that row groups are worthwhile."""
    waiting: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        if table.num_rows:
            waiting.append(table)
            rows, size = rows + table.num_rows, size + table.nbytes
        del table
        if rows >= ROWS_MAX or size >= BYTES_MAX:
            group, waiting, rows, size = pa.concat_tables(waiting), [], 0, 0
            yield group
            del group
    if waiting:
        yield pa.concat_tables(waiting)


def parts(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the row groups of rows that are in memory."""
    rows = min(ROWS_MAX, max(BYTES_MAX * table.num_rows // max(table.nbytes, 1), 1_000))
    for begin in range(0, table.num_rows, rows):
        yield table.slice(begin, rows)


def divided(rows: pa.Table, keys: Sequence[pa.Array]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows that are equal by all ``keys`` (a value for each row) together, in their order, with the position
    of the first of them."""
    codes = np.zeros(rows.num_rows, np.int64)
    for key in keys:
        found = key.dictionary_encode(null_encoding="encode")
        numbers = found.indices.to_numpy(zero_copy_only=False)
        # numbered from the start, so that they never outgrow 64 bits
        _, codes = np.unique(codes * max(len(found.dictionary), 1) + numbers, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    bounds = [0, *(np.flatnonzero(np.diff(codes[order])) + 1).tolist(), rows.num_rows]
    for begin, end in pairwise(bounds):
        piece = rows if end - begin == rows.num_rows else rows.take(pa.array(order[begin:end]))
        yield int(order[begin]), piece


def gathered(pieces: Iterable[tuple[K, pa.Table]], bytes_max: float) -> Iterator[tuple[K, list[pa.Table]]]:
    """Yield the rows of one key after another, as one file each. A key comes again if the rows that wait would take
    more than ``bytes_max``: the one that has most of them goes first."""
    waiting: dict[K, list[pa.Table]] = {}
    sizes: dict[K, int] = {}
    size = 0
    for key, piece in pieces:
        waiting.setdefault(key, []).append(piece)
        sizes[key] = sizes.get(key, 0) + piece.nbytes
        size += piece.nbytes
        while size > bytes_max:
            most = max(sizes, key=lambda key: sizes[key])
            size -= sizes.pop(most)
            yield most, waiting.pop(most)
    for key in list(sizes):
        yield key, waiting.pop(key)


def repetitive(table: pa.Table) -> list[str]:
    """Return the columns that benefit from a dictionary, which is wasted if nearly every value is different."""
    sample = table.slice(0, _SAMPLE_ROWS)
    counted = [item.name for item in table.schema if _is_counted(item.type)]
    return [name for name in counted if 2 * pc.count_distinct(sample.column(name)).as_py() <= sample.num_rows]


def _is_counted(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(arrow) or pa.types.is_decimal(arrow) or arrow in _TEXTS)
