"""Positions: which rows of a table's data files are deleted, as its position deletes and deletion vectors say.

A position delete names a row by its file and its place in it. Every reader of format version 2 knows them. A table of
version 3 gets deletion vectors (``vectors``).
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import FileFormat
from pyiceberg.table import Table

from agent.errors import RESYNC, TableForeignError
from agent.sinks.iceberg.table.deletes import vectors
from agent.sinks.iceberg.table.errors import storage_errors
from agent.sinks.iceberg.table.files import DELETES, TableFile, Vector
from agent.sinks.iceberg.table.metadata.manifests import FileKey, Live, LiveFile

Positions = npt.NDArray[np.int64]
ByPath = tuple[tuple[str, Positions], ...]
NONE: Final = np.empty(0, np.int64)
#: bytes of positions that are kept in memory, over all tables
_KEPT_BYTES: Final = 32 << 20


class _Kept:
    """Positions of files that were read or written; such a file never changes."""

    def __init__(self) -> None:
        self._by_file: OrderedDict[FileKey, ByPath] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def find(self, file: FileKey) -> ByPath | None:
        with self._lock:
            known = self._by_file.get(file)
            if known is not None:
                self._by_file.move_to_end(file)
            return known

    def keep(self, file: FileKey, known: ByPath) -> None:
        with self._lock:
            if file not in self._by_file and _size(known) <= _KEPT_BYTES:
                self._by_file[file] = known
                self._bytes += _size(known)
            while self._bytes > _KEPT_BYTES:
                _, gone = self._by_file.popitem(last=False)
                self._bytes -= _size(gone)


def _size(found: ByPath) -> int:
    return sum(places.nbytes + len(path) for path, places in found)


_kept: Final = _Kept()


def keep(file: TableFile, positions: Mapping[str, Positions]) -> None:
    """Keep deletes that were written just now: the next commit begins with them. ``positions``: by data file."""
    at = 0 if file.vector is None else file.vector.offset
    _kept.keep((file.path, at), tuple(positions.items()))


def deleted(table: Table, files: Iterable[LiveFile]) -> dict[str, Positions]:
    """Return the deleted positions by data file, in increasing order; ``files``: position deletes, and deletion
    vectors."""
    wanted = list(files)
    known = {item.key: found for item in wanted if (found := _kept.find(item.key)) is not None}
    for item, read in _read(table, [item for item in wanted if item.key not in known]):
        known[item.key] = read
        _kept.keep(item.key, read)
    parts: dict[str, list[Positions]] = {}
    for item in wanted:
        for path, places in known[item.key]:
            parts.setdefault(path, []).append(places)
    return {path: rising(places) for path, places in parts.items()}


def _read(table: Table, files: Iterable[LiveFile]) -> Iterator[tuple[LiveFile, ByPath]]:
    """Read deletes; the vectors of one Puffin file together, since each access to an object store costs a request."""
    in_file: dict[str, dict[Vector, LiveFile]] = {}
    for item in files:
        if item.vector is not None:
            in_file.setdefault(item.path, {})[item.vector] = item
        elif item.file.file_format == FileFormat.PARQUET:
            yield item, _read_deletes(table, item)
        else:
            raise TableForeignError(
                f"others have written deletes of {item.file.file_format.value} into {'.'.join(table.name())}; {RESYNC}"
            )
    for path, items in in_file.items():
        for vector, places in vectors.read(table.io, path, list(items)):
            yield items[vector], ((vector.about, places),)


def _read_deletes(table: Table, item: LiveFile) -> ByPath:
    with storage_errors(item.path, "read"), table.io.new_input(item.path).open() as stream:
        rows = pq.read_table(stream, columns=["file_path", "pos"], read_dictionary=["file_path"], use_threads=False)
    return tuple(by_path(rows))


def by_path(rows: pa.Table) -> Iterable[tuple[str, Positions]]:
    """Yield each data file's positions. ``file_path`` is a dictionary."""
    paths = rows.column("file_path").unify_dictionaries().combine_chunks()
    chunk = paths.chunk(0) if isinstance(paths, pa.ChunkedArray) else paths
    if not len(chunk):
        return
    codes, places = chunk.indices.to_numpy(), rows.column("pos").to_numpy()
    order = np.argsort(codes, kind="stable")
    names = chunk.dictionary.to_pylist()
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    for at, name in enumerate(names):
        mine = order[bounds[at] : bounds[at + 1]]
        if len(mine):
            yield name, places[mine]


def table_of(positions: Mapping[str, Positions]) -> pa.Table:
    """Return position deletes as they are written, sorted by file and position."""
    paths = sorted(path for path, places in positions.items() if len(places))
    counts = [len(positions[path]) for path in paths]
    places = np.concatenate([np.sort(positions[path]) for path in paths]) if paths else NONE
    names = pa.array(paths, pa.string()).take(pa.array(np.repeat(np.arange(len(paths)), counts)))
    return pa.table([names, pa.array(places)], schema=DELETES)


def applied(live: Live, positions: Mapping[str, Positions]) -> dict[str, Positions]:
    """Return the deleted positions of data files that the table has."""
    paths = {item.path for item in live.data}
    return {path: places for path, places in positions.items() if path in paths}


def union(some: Positions, others: Positions) -> Positions:
    """Return the positions of both, which rise."""
    if not len(some) or not len(others):
        return some if len(some) else others
    return rising([some, others])


def without(some: Positions, others: Positions) -> Positions:
    """Return those of ``some`` that are not among ``others``, which rise."""
    return some[~among(some, others)]


def among(some: Positions, others: Positions) -> npt.NDArray[np.bool_]:
    """Return which of ``some`` are among ``others``, which rise."""
    if not len(others):
        return np.zeros(len(some), np.bool_)
    nearest: Positions = others[np.minimum(np.searchsorted(others, some), len(others) - 1)]
    return np.equal(nearest, some)


def rising(parts: list[Positions]) -> Positions:
    """Return the positions of all parts, each once, in increasing order. Numpy's own sets go through hashes."""
    found = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts), kind="stable")
    if len(parts) == 1 and not (found[1:] > found[:-1]).all():
        found = np.sort(found)
    is_first = np.ones(len(found), np.bool_)
    is_first[1:] = found[1:] != found[:-1]
    return found if is_first.all() else found[is_first]
