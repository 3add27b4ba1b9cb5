"""Find: the rows of a Delta table that have some keys, without reading the table.

The statistics of the files come first: a file is searched if one of the keys is between the bounds of its key columns.
A large file is searched in its key index (``agent.sinks.common.keys.key_index``), others in their key columns, which
are cached in memory. On an object store only the key columns of a large file are fetched, once for its index.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent.kernels.key_hash import comparable
from agent.rows.fold import key_codes
from agent.sinks.common.keys.kept import KeptByBytes
from agent.sinks.common.keys.key_bounds import KeyBounds
from agent.sinks.common.keys.key_index import IndexedFile, IndexSearch
from agent.sinks.delta.table import files as delta_files
from agent.sinks.delta.table.deletion_vectors import Positions
from agent.sinks.delta.table.live_file import LiveFile
from agent.sinks.delta.table.place import TablePlace

_KEYS_BYTES_MAX: Final = 48 << 20
_BATCH_ROWS: Final = 131_072
#: a file on an object store from this size on is not downloaded for its keys
_RANGED_BYTES: Final = 4 << 20
#: texts of other writers may be cut in statistics
_FOREIGN_TEXT_MAX: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Rows of one file: at which ``places`` (they rise), with which ``keys``; ``rows``: of the file, deleted ones
    included."""

    places: Positions
    keys: pa.Table
    rows: int


class KeySearch:
    """Finds rows by key. ``wanted``: unique keys in stored types."""

    def __init__(self, place: TablePlace, wanted: pa.Table) -> None:
        self._place = place
        self._wanted = wanted
        self._bounds = KeyBounds(wanted)
        self._indexes = IndexSearch(wanted)

    def run(self, file: LiveFile) -> Found:
        """Return the rows of ``file``, deleted ones among them."""
        if not self._wanted.num_rows or (file.rows and not self._may_hold(file)):
            return Found(np.empty(0, np.int64), self._wanted.slice(0, 0), file.rows)
        if self._indexes.is_worth(file.rows):
            indexed = IndexedFile(
                _identity(self._place, file, self._wanted.schema), file.rows, lambda: self._read(file)
            )
            places, which = self._indexes.run(indexed)
            return Found(places, self._wanted.take(pa.array(which)), file.rows)
        stored = _key_columns(self._place, file, self._wanted.schema)
        places = places_of(stored, self._wanted)
        return Found(places, stored.take(pa.array(places)), stored.num_rows)

    def _may_hold(self, file: LiveFile) -> bool:
        for field in self._wanted.schema:
            least, most = file.bounds(field.name)
            is_text = pa.types.is_string(field.type) and isinstance(least, str) and isinstance(most, str)
            if is_text and not (_is_ours(file) or max(len(least), len(most)) < _FOREIGN_TEXT_MAX):
                continue
            is_integer = pa.types.is_integer(field.type) and isinstance(least, int) and isinstance(most, int)
            if (is_text or is_integer) and not self._bounds.has_between(field.name, least, most):
                return False
        return True

    def _read(self, file: LiveFile) -> Iterator[pa.Table]:
        return read_keys(self._place, file, self._wanted.schema)


def _is_ours(file: LiveFile) -> bool:
    return file.path.startswith(delta_files.PREFIXES)


def places_of(stored: pa.Table, wanted: pa.Table) -> Positions:
    """Return the positions of the wanted keys among a file's key columns."""
    found = np.ones(stored.num_rows, np.bool_)
    for name in wanted.schema.names:
        ours, theirs = comparable(stored.column(name)), comparable(wanted.column(name))
        found &= pc.is_in(ours, value_set=theirs).to_numpy()
    at = np.flatnonzero(found)
    if len(wanted.schema) == 1 or not len(at):
        return at
    # each part of these keys is wanted; check whole keys
    codes = key_codes(pa.concat_tables([wanted, stored.take(pa.array(at))]))
    return at[np.isin(codes[wanted.num_rows :], codes[: wanted.num_rows])]


def read_keys(place: TablePlace, file: LiveFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the key columns of a file, from its first row on."""
    with _opened(place, file) as parquet:
        names = file.layout.columns_in(parquet.schema_arrow.names, schema.names)
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
            yield pa.table([file.layout.column(batch, item) for item in schema], schema=schema)


@contextmanager
def _opened(place: TablePlace, file: LiveFile) -> Iterator[Any]:
    path = place.cached_path(file.path)
    if path is None and file.size >= _RANGED_BYTES:
        with pq.ParquetFile(place.store.open(unquote(file.path), file.size), pre_buffer=True) as parquet:
            yield parquet
        return
    with pq.ParquetFile(path or place.path_of(file.path)) as parquet:
        yield parquet


def _identity(place: TablePlace, file: LiveFile, schema: pa.Schema) -> str:
    """Name the key columns of a file. A local file of another table may have its path later."""
    columns = [file.names.physical(name) for name in schema.names]
    name = f"{place}/{file.path}:{file.size}:{columns!r}"
    if not place.is_local:
        return name
    found = os.stat(place.path_of(file.path))
    return f"{name}:{found.st_ino}:{found.st_mtime_ns}:{found.st_size}"


#: key columns by file
_kept: Final = KeptByBytes[pa.Table](_KEYS_BYTES_MAX)


def _key_columns(place: TablePlace, file: LiveFile, schema: pa.Schema) -> pa.Table:
    def read() -> pa.Table:
        return pa.concat_tables([schema.empty_table(), *read_keys(place, file, schema)]).combine_chunks()

    return _kept.get((_identity(place, file, schema), schema), read)
