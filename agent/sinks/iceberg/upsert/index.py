"""Key index: at which positions of a data file integer keys are, in the host's cache of objects.

A data file never changes, so its index is made once, from its key column alone, and cannot be stale. It is a file of
the sorted keys and their positions, of which a search reads some pages: its cost grows with the keys that are searched,
and not with the rows. It is exact: keys are compared themselves, and not hashes of them.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from agent import host_cache
from agent.sinks.iceberg.table import rows
from agent.sinks.iceberg.table.positions import Positions

Keys = npt.NDArray[np.int64]
#: rows of a file that is read instead
_ROWS_MIN: Final = 50_000
#: fewer rows than this per key are read too
_ROWS_PER_KEY: Final = 8
#: positions take four bytes
_ROWS_MAX: Final = 1 << 32


def is_worth(file: DataFile, schema: Schema, keys: pa.Table) -> bool:
    """Return whether these keys are found in the index of ``file`` sooner than in the file. ``schema``: the table's key
    columns."""
    column = keys.column(0)
    if keys.num_columns > 1 or not pa.types.is_integer(column.type) or column.null_count:
        return False
    if (file.null_value_counts or {}).get(schema.fields[0].field_id) != 0:
        return False
    least: int = max(_ROWS_MIN, _ROWS_PER_KEY * keys.num_rows)
    return bool(least <= file.record_count < _ROWS_MAX)


def search(io: FileIO, file: DataFile, schema: Schema, keys: Keys) -> tuple[Positions, Positions]:
    """Return where the file has some of the sorted ``keys``, in increasing order, and which of them. ``schema``: the
    table's key column."""
    known, at = _opened(io, file, schema)
    first, last = np.searchsorted(known, keys), np.searchsorted(known, keys, side="right")
    counts = last - first
    which = np.repeat(np.arange(len(keys)), counts)
    # the n-th row of a key is n after its first
    found = np.repeat(first - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(counts.sum())
    places = at[found].astype(np.int64)
    order = np.argsort(places)
    return places[order], which[order]


def _opened(io: FileIO, file: DataFile, schema: Schema) -> tuple[Keys, npt.NDArray[np.uint32]]:
    count = file.record_count
    name = f"keys-1:{schema.fields[0].field_id}:{count}:{file.file_size_in_bytes}:{file.file_path}"
    path = host_cache.fetch_path(name, lambda: _made(io, file, schema))
    try:
        content: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError):  # it was evicted just now, or is empty
        content = np.zeros(0, np.uint8)
    if len(content) != 12 * count:
        made = _made(io, file, schema)
        host_cache.put(name, made)
        content = np.frombuffer(made, np.uint8)
    return content[: 8 * count].view(np.int64), content[8 * count :].view(np.uint32)


def _made(io: FileIO, file: DataFile, schema: Schema) -> bytes:
    keys = np.concatenate([np.zeros(0, np.int64), *_read(io, str(file.file_path), schema)])
    assert len(keys) == file.record_count, f"{file.file_path} has {len(keys)} rows, its manifest says otherwise"
    if (keys[1:] >= keys[:-1]).all():
        return keys.tobytes() + np.arange(len(keys), dtype=np.uint32).tobytes()
    order = np.argsort(keys, kind="stable")
    return keys[order].tobytes() + order.astype(np.uint32).tobytes()


def _read(io: FileIO, path: str, schema: Schema) -> Iterator[Keys]:
    with rows.opened(io, path, schema) as file:
        for _, batch in file.batches():
            yield batch.column(0).cast(pa.int64()).to_numpy()
