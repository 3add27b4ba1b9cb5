"""Row groups: the pieces in which rows are written to Parquet, and the columns that a dictionary makes smaller."""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

ROWS_MAX: Final = 131_072
BYTES_MAX: Final = 16 << 20
_SAMPLE_ROWS: Final = 1_000
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


def repetitive(table: pa.Table) -> list[str]:
    """Return the columns that benefit from a dictionary, which is wasted if nearly every value is different."""
    sample = table.slice(0, _SAMPLE_ROWS)
    counted = [item.name for item in table.schema if _is_counted(item.type)]
    return [name for name in counted if 2 * pc.count_distinct(sample.column(name)).as_py() <= sample.num_rows]


def _is_counted(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(arrow) or pa.types.is_decimal(arrow) or arrow in _TEXTS)
