"""Parquet files of a Delta table: written beside its log, described for it, and invisible until a commit names them.

A file is described by the JSON of ``DataFile``, which is sent in ``FlushResult.files`` and ``StagedFile.stats`` from
the executor that wrote it to the capture that commits it. Locally a file appears under its name only when it is
complete and on disk; on object stores puts are atomic anyway.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import date, datetime, timedelta
from functools import partial
from itertools import chain, groupby
from typing import Any, Final
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema
from deltalake.transaction import AddAction

from agent import host_cache
from agent.sinks.common import row_groups
from agent.sinks.common.history.columns import VALID_TO
from agent.sinks.delta.table import disk
from agent.sinks.delta.table import partitions as delta_partitions
from agent.sinks.delta.table.errors import storage_error
from agent.sinks.delta.table.layout import PLAIN, FileLayout, Layout
from agent.sinks.delta.table.mapping import names_of_file
from agent.sinks.delta.table.partitions import Partition
from agent.sinks.delta.table.place import TablePlace

#: number of columns with statistics, as Delta's default; longer texts than this have none
_STATS_COLUMNS_MAX = 32
_STATS_TEXT_MAX = 64
#: in memory of rows that wait for those of their partitions' files
_WAITING_BYTES: Final = 128 << 20
#: with which the names of our data files begin
PREFIXES = ("changes-", "rows-", "rest-", "compact-", "snapshot-", "schema-")


@dataclass(frozen=True, slots=True)
class DataFile:
    """``path``: relative to the table. ``stats``: Delta's own JSON. ``schema``: Delta's JSON of its columns, with their
    names in the file.

    ``is_truncate``: the table's earlier content is removed before this file; such a "file" may have no path and no
    rows. ``partition``: has the columns by which the table divides rows, none if it does not.
    """

    path: str
    rows: int
    bytes: int
    stats: str
    schema: str
    is_truncate: bool = False
    partition: Partition = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "DataFile":
        return cls(**json.loads(text))

    @property
    def layout(self) -> FileLayout:
        return FileLayout(self.partition, names_of_file(self.schema))

    def fits(self, layout: Layout) -> bool:
        """Return whether it is as a table with this layout has its files."""
        return {*self.partition} == {*layout.partitions} and layout.names.has_file(self.schema)

    def add(self, *, is_change: bool = True) -> dict[str, Any]:
        """Return the file as an action of the table's log. ``is_change``: it has rows that the table did not have."""
        fields: dict[str, Any] = {
            "path": self.path,
            "partitionValues": dict(self.layout.values),
            "size": self.bytes,
        }
        fields |= {"modificationTime": int(time.time() * 1000), "dataChange": is_change, "stats": self.stats}
        return {"add": fields}

    def add_action(self) -> AddAction:
        return AddAction(self.path, self.bytes, dict(self.partition), int(time.time() * 1000), True, self.stats)


#: precedes a TRUNCATE's new rows
TRUNCATION = DataFile("", 0, 0, "", "", is_truncate=True)


def write_file(
    place: TablePlace, name: str, tables: Iterable[pa.Table], schema: pa.Schema, layout: FileLayout
) -> DataFile | None:
    """Write one Parquet file, whose rows are all of one partition; return None (and write no file) if there are no
    rows.

    :raises SinkError: the storage fails.
    """
    groups = row_groups.row_groups(tables)
    first = next(groups, None)
    if first is None:
        return None
    metadata: list[Any] = []
    stored = layout.names.in_file(schema)
    repetitive = [layout.names.physical(item) for item in row_groups.repetitive(first)]
    try:
        with _opened(place, name) as file:
            with _writing(file, stored, repetitive, metadata) as writer:
                writer.write_table(first.rename_columns(stored.names), row_group_size=row_groups.ROWS_MAX)
                del first  # free what is written while the next is made
                for table in groups:
                    writer.write_table(table.rename_columns(stored.names), row_group_size=row_groups.ROWS_MAX)
                    del table
            size = file.tell()
    except OSError as error:
        raise storage_error(place, f"write {name} in", error) from error
    stats, columns = json.dumps(_stats(metadata[0], schema, layout)), layout.names.described(schema)
    return DataFile(name, metadata[0].num_rows, size, stats, columns, partition=layout.partition)


@contextmanager
def _writing(file: Any, schema: pa.Schema, repetitive: list[str], metadata: list[Any]) -> Iterator[pq.ParquetWriter]:
    """Yield a writer that is always closed. An error of closing must not hide the original one."""
    writer = pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=repetitive,
        metadata_collector=metadata,
        store_schema=False,
    )
    try:
        yield writer
        writer.close()
    except BaseException:
        with suppress(Exception):
            writer.close()
        writer.is_open = False  # otherwise it would try again when it is collected
        raise


def write_files(
    place: TablePlace,
    name: Callable[[], str],
    tables: Iterable[pa.Table],
    *,
    bytes_max: float = math.inf,
    layout: Layout = PLAIN,
) -> Iterator[DataFile]:
    """Write as many files as needed, each with one schema and about ``bytes_max`` in memory. Rows that wait for their
    partitions' files take so much together.

    :raises TableHeldError: a value cannot be that of a partition.
    :raises SinkError: the storage fails.
    """
    for schema, group in groupby(tables, key=lambda table: table.schema):
        if layout.partitions:
            pieces = (item for table in group for item in delta_partitions.divided(table, layout.partitions))
            for values, rows in row_groups.gathered(pieces, min(bytes_max, _WAITING_BYTES)):
                file = write_file(place, name(), rows, schema, layout.file(values))
                if file is not None:
                    yield file
            continue
        for first in group:
            some = _up_to(bytes_max, chain([first], group))  # noqa: B031  # what it leaves is the next file's
            file = write_file(place, name(), some, schema, layout.file())
            if file is not None:
                yield file


def fitted(place: TablePlace, files: Sequence[DataFile], layout: Layout) -> list[DataFile]:
    """Return files with the same rows that have this layout: those that have it stay."""
    found = [file for file in files if file.fits(layout)]
    for file in files:
        if file not in found:
            columns = pa.schema(Schema.from_json(file.schema).to_arrow())
            schema = pa.schema([pa.field(item.name, item.type) for item in columns])
            rows = read_file(place, file.path, schema, layout=file.layout)
            found += write_files(place, partial(_again, file.path), rows, layout=layout)
    return found


def _again(name: str) -> str:
    return f"{name.removesuffix('.parquet')}-{uuid4().hex[:8]}.parquet"


def _up_to(size: float, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    for table in tables:
        size -= table.nbytes
        yield table
        if size <= 0:
            return


def read_file(
    place: TablePlace,
    path: str,
    schema: pa.Schema,
    *,
    layout: FileLayout,
    without: npt.NDArray[np.int64] | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of a file, except those at the increasing positions ``without``, with the columns of ``schema``:
    one that the file lacks is as in its partition, or NULL. ``path``: as in the table's log."""
    gone = np.empty(0, np.int64) if without is None else without
    begin = 0
    with pq.ParquetFile(place.path_of(path)) as parquet:
        for batch in parquet.iter_batches(_batch_rows(parquet.metadata), use_threads=False):
            columns = [layout.column(batch, item) for item in schema]
            end = begin + batch.num_rows
            stays = np.ones(batch.num_rows, np.bool_)
            stays[gone[slice(*np.searchsorted(gone, (begin, end)))] - begin] = False
            yield pa.Table.from_arrays(columns, schema=schema).filter(pa.array(stays))
            begin = end


def _batch_rows(metadata: Any) -> int:
    """Return a number of rows that is about as large as one of our row groups."""
    size = sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
    return int(min(row_groups.ROWS_MAX, max(metadata.num_rows * row_groups.BYTES_MAX // max(size, 1), 1_000)))


@contextmanager
def _opened(place: TablePlace, name: str) -> Iterator[Any]:
    if not place.is_local:
        with _uploaded(place, name) as file:
            yield file
        return
    target = os.path.join(place.location, name)
    above = os.path.dirname(target)
    if above != place.location and not os.path.isdir(above):
        with suppress(FileExistsError):
            os.mkdir(above)
        disk.sync(place.location)
    scratch = f"{target}.{uuid4().hex[:8]}.tmp"  # after a crash the vacuum removes it
    try:
        with pa.OSFile(scratch, "wb") as file:
            yield file
        disk.sync(scratch)
        os.replace(scratch, target)
        disk.sync(above)
    except BaseException:
        if os.path.exists(scratch):
            os.unlink(scratch)
        raise


@contextmanager
def _uploaded(place: TablePlace, name: str) -> Iterator[Any]:
    """Write locally first: a small file is then one request, and it is cached for key lookups on this machine."""
    scratch = os.path.join(host_cache.directory(), f"new-{uuid4().hex}")
    try:
        with pa.OSFile(scratch, "wb") as file:
            yield file
        place.store.upload(name, scratch)
        if "/" in name:  # of a change feed: no flush reads it
            os.unlink(scratch)
        else:
            host_cache.move_in(f"{place}/{name}", scratch)
    except BaseException:
        with suppress(OSError):
            os.unlink(scratch)
        raise


def _stats(metadata: Any, schema: pa.Schema, layout: FileLayout) -> dict[str, Any]:
    """Return Delta's statistics, which are under the names that the file has."""
    types = {layout.names.physical(item.name): item.type for item in schema}
    always = layout.names.physical(VALID_TO)
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if index >= _STATS_COLUMNS_MAX and name != always:
            continue
        if name not in types:  # a part of a nested column
            continue
        chunks = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if any(chunk is None or not chunk.has_null_count for chunk in chunks):
            continue
        nulls[name] = sum(chunk.null_count for chunk in chunks)
        bounds = _bounds([chunk for chunk in chunks if chunk.num_values], types[name])
        if bounds is not None:
            least[name], most[name] = bounds
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _bounds(chunks: list[Any], arrow: pa.DataType) -> tuple[Any, Any] | None:
    """Return minimum and maximum in Delta's JSON form; None for types where they may be inexact."""
    has_bounds = pa.types.is_integer(arrow) or pa.types.is_date(arrow) or pa.types.is_timestamp(arrow)
    if not (has_bounds or pa.types.is_string(arrow)) or not chunks or not all(chunk.has_min_max for chunk in chunks):
        return None
    try:
        least, most = min(chunk.min for chunk in chunks), max(chunk.max for chunk in chunks)
        return _json_bound(least, is_upper=False), _json_bound(most, is_upper=True)
    except (ValueError, OverflowError):  # a date beyond Python's range, or a long text
        return None


def _json_bound(value: Any, *, is_upper: bool) -> Any:
    if isinstance(value, datetime):
        if is_upper and value.microsecond % 1000:
            value += timedelta(milliseconds=1)  # written in milliseconds, and must not be below the maximum
        text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return f"{text}Z" if value.tzinfo else text
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str) and len(value) > _STATS_TEXT_MAX:
        raise ValueError("too long")
    return value
