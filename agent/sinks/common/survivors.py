"""Survivor comparison: compares a table's converted values with rows that the source has not changed since.

Rows are matched by the hash of their key and compared by the hash of the row, as the sink represents it. In a changelog
the last image of a key counts.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import RESYNC, UnknownValuesError
from agent.kernels.key_hash import key_hash
from agent.rows.schema_change import SchemaChange
from agent.rows.survivors import Survivors
from agent.sinks.common import changelog
from agent.sinks.common.forms import Forms

Hashes = npt.NDArray[np.uint64]

_IMAGES: Final = ("insert", "update_postimage")
_PLACE: Final = (changelog.COMMIT_VERSION, changelog.COMMIT_SEQ)


class Comparison:
    """Compares one table: call ``note`` with its converted rows, then ``verdict``."""

    def __init__(self, survivors: Survivors, *, is_changelog: bool, forms: Forms) -> None:
        self._survivors = survivors
        self._is_changelog = is_changelog
        rows = forms.table(survivors.rows).combine_chunks()
        keys = _hashes(rows, survivors.key)
        pairs = np.unique(np.stack([keys, _hashes(rows, survivors.names)]), axis=1)  # some may have been read twice
        self._keys, self._rows = np.ascontiguousarray(pairs[0]), np.ascontiguousarray(pairs[1])
        self._found: list[pa.Table] = []
        self._has_rows = False

    def note(self, rows: pa.Table) -> pa.Table:
        """Record the rows that can be compared; return ``rows``."""
        self._has_rows = self._has_rows or rows.num_rows > 0
        is_asked = np.isin(_hashes(rows, self._survivors.key), self._keys)
        if is_asked.any():
            names = list(self._survivors.names)
            if self._is_changelog:
                names += [changelog.CHANGE_TYPE, *_PLACE, changelog.UNCHANGED]
            kept = rows.select([name for name in names if name in rows.schema.names])
            self._found.append(kept.filter(pa.array(is_asked)))
        return rows

    def verdict(self, change: SchemaChange) -> None:
        """:raises UnknownValuesError: the source's values differ."""
        found = self._images()
        keys = _hashes(found, self._survivors.key) if found is not None else np.zeros(0, np.uint64)
        if found is None or not len(keys):
            if self._has_rows and not self._survivors.is_key_kept:
                raise _held(change, self._survivors.columns)
            return
        ours = _hashes(found, self._survivors.names)
        begin, end = (np.searchsorted(self._keys, keys, side) for side in ("left", "right"))
        is_single = end - begin == 1
        if (self._rows[begin[is_single]] != ours[is_single]).any():
            raise _held(change, self._survivors.columns)
        missing = np.isin(self._keys, keys, invert=True).sum()
        if not self._survivors.is_key_kept and missing > len(self._keys) // 2:
            raise _held(change, self._survivors.columns)

    def _images(self) -> pa.Table | None:
        """Return, for each key, the row that the sink has, if it is known."""
        if not self._found:
            return None
        found = pa.concat_tables(self._found).combine_chunks()
        if not self._is_changelog:
            return found
        # at one position the old image comes first
        is_new = pc.is_in(found.column(changelog.CHANGE_TYPE).cast(pa.string()), value_set=pa.array(_IMAGES))
        order = [(name, "ascending") for name in (*_PLACE, "is_new")]
        found = found.append_column("is_new", pc.cast(is_new, pa.int8())).sort_by(order).combine_chunks()
        keys = _hashes(found, self._survivors.key)
        _, from_end = np.unique(keys[::-1], return_index=True)
        last = found.take(pa.array(np.sort(len(keys) - 1 - from_end)))
        is_whole = pc.equal(last.column("is_new"), 1)
        if changelog.UNCHANGED in last.schema.names:
            left_out = pc.fill_null(pc.list_value_length(last.column(changelog.UNCHANGED)), 0)
            is_whole = pc.and_(is_whole, pc.equal(left_out, 0))
        return last.filter(is_whole)


def _hashes(rows: pa.Table, names: Sequence[str]) -> Hashes:
    parts = [key_hash(batch, list(names)) for batch in rows.select(list(dict.fromkeys(names))).to_batches()]
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _held(change: SchemaChange, columns: Sequence[str]) -> UnknownValuesError:
    return UnknownValuesError(
        f"table {change.name} has other values in {', '.join(columns)} at the source than the new type alone makes of "
        "them, as after ALTER COLUMN … TYPE … USING, and the log does not have them; "
        f"{RESYNC}"
    )
