"""Rows of data files: reads some columns of an Iceberg data file by their ids, with their positions.

A file has the columns' names and types of its time: a column that was added later is NULL, one that was widened is
cast.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema

from agent.errors import TableHeldError
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.deletes.positions import Positions
from agent.sinks.iceberg.table.errors import storage_errors

_ID: Final = b"PARQUET:field_id"
_BATCH_ROWS: Final = 131_072
_BATCH_BYTES: Final = 16 << 20


class DataRows:
    """An open data file. ``schema``: the table's columns that are asked for."""

    def __init__(self, parquet: pq.ParquetFile, path: str, schema: Schema) -> None:
        self._parquet = parquet
        self._columns = iceberg_schema.arrow_schema(schema)
        names = _names_by_id(parquet.schema_arrow)
        if not names and len(parquet.schema_arrow):
            raise TableHeldError(f"the columns of {path} have no ids, so it is not known which are whose")
        self._names = [names.get(field.field_id) for field in schema.fields]

    @property
    def _stored(self) -> list[str]:
        return [name for name in self._names if name is not None]

    def groups(self) -> Iterator[tuple[int, int, int]]:
        """Yield each row group, and the range of its rows."""
        begin = 0
        for group in range(self._parquet.num_row_groups):
            end = begin + self._parquet.metadata.row_group(group).num_rows
            yield group, begin, end
            begin = end

    def group(self, number: int) -> pa.Table:
        """Return the rows of a row group."""
        return self._shaped(self._parquet.read_row_group(number, columns=self._stored, use_threads=False))

    def batches(self, is_asked: Callable[[Any], bool] = lambda _: True) -> Iterator[tuple[int, pa.Table]]:
        """Yield the position of the first row, and rows. ``is_asked``: whether a row group (its metadata) is read."""
        for group, begin, _ in self.groups():
            metadata = self._parquet.metadata.row_group(group)
            if not is_asked(metadata):
                continue
            at, size = begin, max(metadata.total_byte_size // max(metadata.num_rows, 1), 1)
            rows = min(_BATCH_ROWS, max(_BATCH_BYTES // size, 1_000))
            for batch in self._parquet.iter_batches(rows, [group], columns=self._stored, use_threads=False):
                yield at, self._shaped(pa.Table.from_batches([batch]))
                at += batch.num_rows

    def name_of(self, at: int) -> str | None:
        """Return the file's name of a column that is asked for."""
        return self._names[at]

    def taken(self, places: Positions) -> Iterator[tuple[slice, pa.Table]]:
        """Yield the rows at these increasing positions, a row group at a time, and which of ``places`` they are."""
        first = 0
        for group, begin, end in self.groups():
            last = int(np.searchsorted(places, end))
            if last > first:
                yield slice(first, last), self.group(group).take(pa.array(places[first:last] - begin))
            first = last

    def _shaped(self, rows: pa.Table) -> pa.Table:
        columns = [
            pa.nulls(rows.num_rows, item.type) if name is None else rows.column(name).cast(item.type)
            for name, item in zip(self._names, self._columns, strict=True)
        ]
        return pa.table(columns, schema=self._columns)


@contextmanager
def opened(io: FileIO, path: str, schema: Schema) -> Iterator[DataRows]:
    """Open a data file.

    :raises SinkError: the file is missing or damaged.
    """
    with (
        storage_errors(path, "read"),
        io.new_input(path).open() as stream,
        pq.ParquetFile(stream, pre_buffer=False) as parquet,
    ):
        yield DataRows(parquet, path, schema)


def live_rows(io: FileIO, path: str, schema: Schema, gone: Positions) -> Iterator[pa.Table]:
    """Yield the rows of a data file that are not deleted. ``gone``: in increasing order."""
    with opened(io, path, schema) as file:
        for begin, rows in file.batches():
            stays = np.ones(rows.num_rows, np.bool_)
            low, high = np.searchsorted(gone, (begin, begin + rows.num_rows))
            stays[gone[low:high] - begin] = False
            yield rows if stays.all() else rows.filter(pa.array(stays))


def chosen(schema: Schema, names: Sequence[str]) -> Schema:
    """Return some of the columns, in this order."""
    return Schema(*(schema.find_field(name) for name in names), schema_id=schema.schema_id)


def _names_by_id(schema: pa.Schema) -> dict[int, str]:
    found = {}
    for item in schema:
        if item.metadata and _ID in item.metadata:
            found[int(item.metadata[_ID])] = item.name
    return found
