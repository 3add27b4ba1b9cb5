"""Comparison of a sink's rows with the source's, as texts."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

Row = tuple[str, ...]


def differences(
    there: Iterable[pa.Table], here: Iterable[pa.RecordBatch], columns: Sequence[str]
) -> tuple[list[Row], list[Row]]:
    """Return the rows that only the source has, and those that only the sink has. ``there``: the source's rows, as the
    sink stores them."""
    source = Counter(row for table in there for row in _rows(table, columns))
    sink = Counter(row for batch in here for row in _rows(pa.Table.from_batches([batch]), columns))
    return sorted((source - sink).elements()), sorted((sink - source).elements())


def _rows(table: pa.Table, columns: Sequence[str]) -> Iterator[Row]:
    """Yield rows as texts; times as numbers, since Python has none before the year 1."""
    texts = []
    for name in columns:
        column = pa.concat_arrays(table.column(name).chunks) if table.num_rows else pa.array([])
        if pa.types.is_date32(column.type):
            column = column.view(pa.int32())
        elif pa.types.is_temporal(column.type):
            column = column.view(pa.int64())
        texts.append([repr(value) for value in column.to_pylist()])
    yield from zip(*texts, strict=True)
