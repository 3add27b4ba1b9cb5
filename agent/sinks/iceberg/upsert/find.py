"""Find: the positions of the rows that have some keys, without reading the table.

The statistics of the files come first: a file is opened if one of the keys is between the bounds of its key columns,
and a row group of it is read likewise, from the key columns alone. So the cost grows with the files that may hold a
key, and a key that rises (a serial number, a time) has few. The keys of small files are kept in memory
(``kept_keys``); a large file is searched in its key index instead (``agent.sinks.common.keys.key_index``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import PrimitiveType

from agent.sinks.common.keys.key_bounds import KeyBounds
from agent.sinks.common.keys.key_index import IndexedFile, IndexSearch
from agent.sinks.common.left_out import equal, match
from agent.sinks.iceberg.table import rows
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.deletes import positions
from agent.sinks.iceberg.table.deletes.positions import Positions
from agent.sinks.iceberg.table.metadata.manifests import LiveFile
from agent.sinks.iceberg.upsert.kept_keys import FileKeys, hashes_of, is_kept, kept


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Rows of one data file: at which ``places`` (they rise), and which of the wanted keys they have."""

    path: str
    places: Positions
    which: Positions


class KeySearch:
    """Finds rows by key. ``keys``: unique keys in stored types."""

    def __init__(self, table: Table, keys: pa.Table) -> None:
        self._io = table.io
        self._names = keys.schema.names
        self._schema: Schema = rows.chosen(table.schema(), self._names)
        self._keys = keys.combine_chunks()
        hashes = hashes_of(self._keys)
        self._order = np.argsort(hashes)
        self._hashes = hashes[self._order]
        self._unique, self._first = np.unique(self._hashes, return_index=True)
        self._is_unique = len(self._unique) == len(self._hashes)
        self._bounds = KeyBounds(self._keys)
        self._indexes = IndexSearch(self._keys)

    def run(self, files: Sequence[LiveFile], gone: dict[str, Positions]) -> Iterator[Found]:
        """Yield the live rows of each file that has some. ``gone``: deleted positions by file."""
        for item in files:
            if not self._may_hold(item.file):
                continue
            found = self._in_any(item.file)
            if item.path in gone:
                is_live = ~positions.among(found.places, gone[item.path])
                found = Found(item.path, found.places[is_live], found.which[is_live])
            if len(found.places):
                yield found

    def _may_hold(self, file: DataFile) -> bool:
        for field in self._schema.fields:
            low, high = (file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id)
            numbers = self._bounds.numbers(field.name)
            if low is None or high is None or numbers is None:
                continue
            if pa.types.is_integer(numbers.type):  # shorter in a file from before the column was widened
                bounds: list[Any] = [int.from_bytes(bound, "little", signed=True) for bound in (low, high)]
            else:
                assert isinstance(field.field_type, PrimitiveType), "keys have no parts"
                bounds = [from_bytes(field.field_type, bound) for bound in (low, high)]
            if not self._bounds.has_between(field.name, *bounds):
                return False
        return True

    def _in_any(self, file: DataFile) -> Found:
        if self._indexes.is_worth(file.record_count):
            return self._indexed(file)
        if is_kept(file.record_count, file.file_size_in_bytes):
            return self._in_kept(file)
        return self._in_file(str(file.file_path))

    def _indexed(self, file: DataFile) -> Found:
        path, ids = str(file.file_path), [field.field_id for field in self._schema.fields]
        indexed = IndexedFile(f"{path}:{file.file_size_in_bytes}:{ids}", file.record_count, lambda: self._read(path))
        return Found(path, *self._indexes.run(indexed))

    def _read(self, path: str) -> Iterator[pa.Table]:
        with rows.opened(self._io, path, self._schema) as file:
            for _, batch in file.batches():
                yield batch

    def _in_kept(self, file: DataFile) -> Found:
        path, columns = str(file.file_path), [(field.field_id, str(field.field_type)) for field in self._schema.fields]
        name = (path, file.file_size_in_bytes, *columns)
        found = kept.get(name, lambda: FileKeys.of(self._read(path), iceberg_schema.arrow_schema(self._schema)))
        places, at = found.alike(self._unique)
        if not len(places):
            return Found(path, places, at)
        number = self._matched(found.rows.take(pa.array(places)), self._order[self._first[at]])
        is_found = number >= 0
        return Found(path, places[is_found], number[is_found])

    def _in_file(self, path: str) -> Found:
        places, which = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        with rows.opened(self._io, path, self._schema) as file:
            column = file.name_of(0)
            for begin, batch in file.batches(lambda group: self._may_group(group, column)):
                hashes = hashes_of(batch, self._names)
                at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
                (alike,) = np.nonzero(self._hashes[at] == hashes)
                if not len(alike):
                    continue
                number = self._matched(batch.take(pa.array(alike)), self._order[at[alike]])
                is_found = number >= 0
                places.append(begin + alike[is_found])
                which.append(number[is_found])
        return Found(path, np.concatenate(places), np.concatenate(which))

    def _matched(self, found: pa.Table, number: Positions) -> Positions:
        """Return which of the keys each of ``found`` is, or -1. ``number``: a key with the same hash."""
        if not self._is_unique:
            return match(self._keys, found)
        return np.where(equal(self._keys.take(pa.array(number)), found), number, -1)

    def _may_group(self, group: Any, column: str | None) -> bool:
        if column is None or not pa.types.is_integer(self._keys.column(0).type):
            return True
        for at in range(group.num_columns):
            chunk = group.column(at)
            if chunk.path_in_schema == column:
                known = chunk.statistics
                if known is None or not known.has_min_max:
                    return True
                return self._bounds.has_between(self._names[0], known.min, known.max)
        return True
