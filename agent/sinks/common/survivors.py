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
from agent.sinks.common.row_marks import DELETED, is_live

Hashes = npt.NDArray[np.uint64]

_IMAGES: Final = ("insert", "update_postimage")
_PLACE: Final = (changelog.COMMIT_VERSION, changelog.COMMIT_SEQ)
#: columns of ours, with names that no table's column has: whether a change is a new image, and the hash of its key
_IS_NEW: Final = "\0is_new"
_KEY: Final = "\0key"


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
        self._sink_keys: list[pa.Table] = []
        self._has_rows = False
        #: keys that the source has by now; None if that is not judged
        self._all_keys: Hashes | None = None
        if survivors.all_keys is not None:
            self._all_keys = _hashes(forms.table(survivors.all_keys).combine_chunks(), survivors.key)

    def note(self, rows: pa.Table) -> pa.Table:
        """Record the rows that can be compared; return ``rows``."""
        self._has_rows = self._has_rows or rows.num_rows > 0
        hashes = _hashes(rows, self._survivors.key)
        if self._all_keys is not None:
            self._note_keys(rows, hashes)
        is_asked = np.isin(hashes, self._keys)
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
        missing = int(np.isin(self._keys, keys, invert=True).sum())
        if self._survivors.moves_key:
            self._refuse_other_keys(missing, change)
        elif not self._survivors.is_key_kept and self._has_rows and (not len(keys) or missing > len(self._keys) // 2):
            raise _held(change, self._survivors.columns)
        if found is None or not len(keys):
            return
        ours = _hashes(found, self._survivors.names)
        begin, end = (np.searchsorted(self._keys, keys, side) for side in ("left", "right"))
        is_single = end - begin == 1
        if (self._rows[begin[is_single]] != ours[is_single]).any():
            raise _held(change, self._survivors.columns)

    def _refuse_other_keys(self, missing: int, change: SchemaChange) -> None:
        """Judge a key that got another type. ``missing``: rows of the source that the sink lacks, as one that began
        later may; it has no rows that the source lacks, unless they were deleted since.

        :raises UnknownValuesError: rows have other keys at the source than their type alone makes of them.
        """
        is_bare = not len(self._keys)
        if self._all_keys is None:
            is_held = missing > 0 or (is_bare and self._has_rows)
        else:
            is_held = (missing > 0 or is_bare) and bool(np.isin(self._live_keys(), self._all_keys, invert=True).any())
        if is_held:
            raise _held(change, self._survivors.columns)

    def _note_keys(self, rows: pa.Table, hashes: Hashes) -> None:
        places = (changelog.CHANGE_TYPE, *_PLACE) if self._is_changelog else ()
        noted = pa.table({_KEY: hashes, **{name: rows.column(name) for name in places}})
        self._sink_keys.append(noted.filter(is_live(rows)) if DELETED in rows.schema.names else noted)

    def _live_keys(self) -> Hashes:
        """Return the keys of the rows that the sink has."""
        if not self._sink_keys:
            return np.zeros(0, np.uint64)
        noted = pa.concat_tables(self._sink_keys)
        if self._is_changelog:
            noted = _in_order(noted)
            kinds = noted.column(changelog.CHANGE_TYPE).cast(pa.string())
            truncates = np.flatnonzero(pc.equal(kinds, "truncate").to_numpy())
            noted = noted.slice(truncates[-1] + 1 if len(truncates) else 0)
            noted = noted.take(_last_of_each(noted.column(_KEY).to_numpy()))
            noted = noted.filter(pc.equal(noted.column(_IS_NEW), 1))
        keys: Hashes = noted.column(_KEY).to_numpy()
        return keys

    def _images(self) -> pa.Table | None:
        """Return, for each key, the row that the sink has, if it is known."""
        if not self._found:
            return None
        found = pa.concat_tables(self._found).combine_chunks()
        if not self._is_changelog:
            return found
        found = _in_order(found)
        last = found.take(_last_of_each(_hashes(found, self._survivors.key)))
        is_whole = pc.equal(last.column(_IS_NEW), 1)
        if changelog.UNCHANGED in last.schema.names:
            left_out = pc.fill_null(pc.list_value_length(last.column(changelog.UNCHANGED)), 0)
            is_whole = pc.and_(is_whole, pc.equal(left_out, 0))
        return last.filter(is_whole)


def _in_order(changes: pa.Table) -> pa.Table:
    """Return the changes in the order of the log, with whether each is a new image: the old one comes first."""
    is_new = pc.is_in(changes.column(changelog.CHANGE_TYPE).cast(pa.string()), value_set=pa.array(_IMAGES))
    order = [(name, "ascending") for name in (*_PLACE, _IS_NEW)]
    return changes.append_column(_IS_NEW, pc.cast(is_new, pa.int8())).sort_by(order).combine_chunks()


def _last_of_each(keys: Hashes) -> pa.Array:
    """Return the place at which each key comes last, in order."""
    _, from_end = np.unique(keys[::-1], return_index=True)
    return pa.array(np.sort(len(keys) - 1 - from_end))


def _hashes(rows: pa.Table, names: Sequence[str]) -> Hashes:
    parts = [key_hash(batch, list(names)) for batch in rows.select(list(dict.fromkeys(names))).to_batches()]
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _held(change: SchemaChange, columns: Sequence[str]) -> UnknownValuesError:
    return UnknownValuesError(
        f"table {change.name} has other values in {', '.join(columns)} at the source than the new type alone makes of "
        "them, as after ALTER COLUMN … TYPE … USING, and the log does not have them; "
        f"{RESYNC}"
    )
