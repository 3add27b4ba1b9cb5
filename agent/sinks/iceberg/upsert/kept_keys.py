"""Kept keys: the key columns of small data files, with their hashes, in the memory of the process that searches them.

A data file never changes. Each flush searches the small files of the flushes before it, and opening one costs more than
all else that a flush of few keys does to it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.kernels.key_hash import key_hash
from agent.sinks.common.keys.kept import KeptByBytes
from agent.sinks.iceberg.table.deletes.positions import Positions

Hashes = npt.NDArray[np.uint64]
#: rows and bytes of a file whose keys are kept
_ROWS_MAX: Final = 50_000
_FILE_BYTES_MAX: Final = 4 << 20
#: bytes of keys that are kept, over all tables
_BYTES_MAX: Final = 48 << 20


@dataclass(frozen=True, slots=True, eq=False)
class FileKeys:
    """``rows``: the key columns of a file. ``hashes``: of its rows, rising, and ``places``: where these rows are."""

    rows: pa.Table
    hashes: Hashes
    places: Positions

    @classmethod
    def of(cls, parts: Iterable[pa.Table], schema: pa.Schema) -> Self:
        rows = pa.concat_tables([schema.empty_table(), *parts]).combine_chunks()
        hashes = hashes_of(rows)
        places = np.argsort(hashes, kind="stable")
        return cls(rows, hashes[places], places)

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes + self.hashes.nbytes + self.places.nbytes)

    def alike(self, wanted: Hashes) -> tuple[Positions, Positions]:
        """Return the rows that have one of these hashes, which rise and differ, and which of them; in the order of the
        file."""
        rows, which = self._each_wanted(wanted) if len(wanted) < len(self.hashes) else self._each_row(wanted)
        places = self.places[rows]
        order = np.argsort(places)
        return places[order], which[order]

    def _each_wanted(self, wanted: Hashes) -> tuple[Positions, Positions]:
        first, last = np.searchsorted(self.hashes, wanted, "left"), np.searchsorted(self.hashes, wanted, "right")
        counts = last - first
        which = np.repeat(np.arange(len(wanted)), counts)
        within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        return first[which] + within, which

    def _each_row(self, wanted: Hashes) -> tuple[Positions, Positions]:
        if not len(wanted):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        at = np.minimum(np.searchsorted(wanted, self.hashes), len(wanted) - 1)
        (rows,) = np.nonzero(wanted[at] == self.hashes)
        return rows, at[rows]


#: keys by the name of a file and of the columns that are its keys
kept: Final = KeptByBytes[FileKeys](_BYTES_MAX)


def is_kept(rows: int, file_bytes: int) -> bool:
    """Return whether the keys of such a file are kept."""
    return rows <= _ROWS_MAX and file_bytes <= _FILE_BYTES_MAX


def hashes_of(table: pa.Table, names: Sequence[str] | None = None) -> Any:
    """Return the hashes of rows. ``names``: of the key's columns, if there are others."""
    columns = list(names or table.schema.names)
    parts = [key_hash(batch, columns) for batch in table.combine_chunks().to_batches()]
    return np.concatenate([np.zeros(0, np.uint64), *parts])
