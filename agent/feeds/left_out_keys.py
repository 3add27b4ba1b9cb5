"""Left-out keys: which rows of a table have to be read from the source, so that a held table can continue.

An update that left values out takes them from the sink's row. If the sink lacks the row, the table is held. The row
that the source has at a later Ts P can stand in for it: what the log changes up to P is changed again on top of it,
and all else is as it was. So at P the row is the source's, whatever happened in between. That is true of a key

* whose first change behind the sink's position is such an update: the log has no insert that would meet the row;
* that no update moves to another key up to P: it would take values of the row that has the key later.

All other rows are left to a copy of the whole table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.rows.changes import DELETE, TRUNCATE, UPDATE, Changes
from agent.rows.fold import key_codes
from agent.rows.spans import fill_from_before, key_changes

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KeyLog:
    """The keys of changes, in log order; of a change that moved a row the new one. ``moved``: keys that rows had before
    they were moved. ``leaves_out``: True for updates of a row under its own key that left values out."""

    keys: pa.Table
    leaves_out: Mask
    moved: pa.Table

    def wanted(self) -> pa.Table:
        """Return the keys of the rows to read, each once."""
        count = self.keys.num_rows
        codes = key_codes(pa.concat_tables([self.keys, self.moved]).combine_chunks())
        _, first = np.unique(codes[:count], return_index=True)
        is_wanted = self.leaves_out[first] & ~np.isin(codes[first], codes[count:])
        return self.keys.take(pa.array(np.sort(first[is_wanted])))


def key_log(parts: Iterable[Changes], key: Sequence[str], *, changes_max: int) -> KeyLog | None:
    """Read the keys of all changes of a range.

    Return None if a source row cannot stand in: the table was truncated in the range, its keys have another type in
    between, or there are more than ``changes_max`` changes.
    """
    keys, moved, masks = list[pa.RecordBatch](), list[pa.RecordBatch](), list[Mask]()
    count = 0
    for part in parts:
        count += len(part)
        if count > changes_max or (part.op == TRUNCATE).any():
            return None
        if not len(part):
            continue
        part = fill_from_before(part)
        is_moved = key_changes(part, key)
        keys.append(_keys(part, key))
        if part.before is not None:
            moved.append(_images(part.before, key).filter(pa.array(is_moved)))
        masks.append(_leaves_out(part) & ~is_moved)
    if not keys or any(batch.schema != keys[0].schema for batch in (*keys, *moved)):
        return None
    tables = (pa.Table.from_batches(batches, keys[0].schema) for batches in (keys, moved))
    return KeyLog(next(tables), np.concatenate(masks), next(tables))


def _keys(part: Changes, key: Sequence[str]) -> pa.RecordBatch:
    """A delete's key is in its before image."""
    after = _images(part.after, key)
    is_delete = part.op == DELETE
    if part.before is None or not is_delete.any():
        return after
    both = pa.Table.from_batches([after, _images(part.before, key)]).combine_chunks()
    [batch] = both.take(pa.array(np.arange(len(part)) + len(part) * is_delete)).combine_chunks().to_batches()
    return batch


def _images(images: pa.RecordBatch, key: Sequence[str]) -> pa.RecordBatch:
    picked = images.select(list(key))
    return pa.RecordBatch.from_arrays(picked.columns, schema=plain(picked.schema))


def plain(schema: pa.Schema) -> pa.Schema:
    """Return names and types alone: whether a column may be NULL is not always known."""
    return pa.schema([(item.name, item.type) for item in schema])


def _leaves_out(part: Changes) -> Mask:
    found = np.zeros(len(part), np.bool_)
    for flags in part.unchanged.values():
        found |= flags
    found &= part.op == UPDATE
    return found
