"""Find: the positions of the rows that have some keys, without reading the table.

The statistics of the files come first: a file is opened if one of the keys is between the bounds of its key columns,
and a row group of it is read likewise, from the key columns alone. So the cost grows with the files that may hold a
key, and a key that rises (a serial number, a time) has few. Integer keys are looked up in an index of the file instead
(``index``), if it is large.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import PrimitiveType

from agent.kernels.key_hash import key_hash
from agent.sinks.common.left_out import equal, match
from agent.sinks.iceberg.table import positions, rows
from agent.sinks.iceberg.table.manifests import LiveFile
from agent.sinks.iceberg.table.positions import Positions
from agent.sinks.iceberg.upsert import index


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
        hashes = _hashes(self._keys, self._names)
        self._order = np.argsort(hashes)
        self._hashes = hashes[self._order]
        self._is_unique = bool((self._hashes[1:] != self._hashes[:-1]).all())
        self._numbers = [_comparable(self._keys.column(name)) for name in self._names]

    def run(self, files: Sequence[LiveFile], gone: dict[str, Positions]) -> Iterator[Found]:
        """Yield the live rows of each file that has some. ``gone``: deleted positions by file."""
        for item in files:
            if not self._may_hold(item.file):
                continue
            is_indexed = index.is_worth(item.file, self._schema, self._keys)
            found = self._indexed(item.file) if is_indexed else self._in_file(item.path)
            if item.path in gone:
                is_live = ~positions.among(found.places, gone[item.path])
                found = Found(item.path, found.places[is_live], found.which[is_live])
            if len(found.places):
                yield found

    def _may_hold(self, file: DataFile) -> bool:
        for field, numbers in zip(self._schema.fields, self._numbers, strict=True):
            low, high = (file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id)
            if low is None or high is None or numbers is None:
                continue
            if pa.types.is_integer(numbers.type):  # shorter in a file from before the column was widened
                bounds: list[Any] = [int.from_bytes(bound, "little", signed=True) for bound in (low, high)]
            else:
                assert isinstance(field.field_type, PrimitiveType), "keys have no parts"
                bounds = [from_bytes(field.field_type, bound) for bound in (low, high)]
            if not _has_between(numbers, *bounds):
                return False
        return True

    def _indexed(self, file: DataFile) -> Found:
        numbers = self._keys.column(0).cast(pa.int64()).to_numpy()
        order = np.argsort(numbers)
        places, which = index.search(self._io, file, self._schema, numbers[order])
        return Found(str(file.file_path), places, order[which])

    def _in_file(self, path: str) -> Found:
        places, which = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        with rows.opened(self._io, path, self._schema) as file:
            column = file.name_of(0)
            for begin, batch in file.batches(lambda group: self._may_group(group, column)):
                hashes = _hashes(batch, self._names)
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
        numbers = self._numbers[0]
        if column is None or numbers is None or not pa.types.is_integer(self._keys.column(0).type):
            return True
        for at in range(group.num_columns):
            chunk = group.column(at)
            if chunk.path_in_schema == column:
                known = chunk.statistics
                return known is None or not known.has_min_max or _has_between(numbers, known.min, known.max)
        return True


def _hashes(table: pa.Table, names: Sequence[str]) -> Any:
    parts = [key_hash(batch, list(names)) for batch in table.combine_chunks().to_batches()]
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _comparable(column: pa.ChunkedArray) -> pa.Array | None:
    """Return the values of a key column as bounds are, sorted; None if its type has no bounds."""
    array = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    if pa.types.is_date(array.type):
        array = array.cast(pa.int32())
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int64())
    if not (pa.types.is_integer(array.type) or pa.types.is_decimal(array.type) or pa.types.is_string(array.type)):
        return None
    if array.null_count:
        return None
    return array.take(pc.sort_indices(array))


def _has_between(numbers: pa.Array, least: Any, most: Any) -> bool:
    """Return whether one of the sorted ``numbers`` is between the bounds."""
    if pa.types.is_integer(numbers.type):
        values = numbers.to_numpy()
        return bool(np.searchsorted(values, least) < np.searchsorted(values, most, side="right"))
    inside = pc.and_(pc.greater_equal(numbers, least), pc.less_equal(numbers, most))
    return bool(pc.any(inside).as_py())
