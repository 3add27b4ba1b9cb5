"""Vanished rows: the rows of a table that a copy of its source lacks, for tables that keep deleted rows.

Rows are matched by digests of their keys (``agent.kernels.key_digest``). Memory holds some millions of digests at a
time, so a large table is read several times, once for each part of the digests.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.kernels.key_digest import key_digests, new_secret
from agent.sinks.common.row_digests import KEYS_MAX, Part, contains
from agent.sinks.common.row_marks import Marks, is_live


def vanished(
    stored: Callable[[], Iterable[pa.Table]],
    copied: Callable[[Sequence[str]], Iterable[pa.Table]],
    columns: pa.Schema,
    marks: Marks,
    *,
    key: Sequence[str],
    copied_rows: int,
) -> Iterator[pa.Table]:
    """Yield the rows of ``stored`` whose key no row of the copy has, marked as deleted, with the copy's ``columns``.

    ``copied``: yields some columns of the copy, which has ``copied_rows``. A value that does not fit into its column
    any more is NULL. There are no such rows if the table had other key columns.
    """
    assert marks.soft_delete, "otherwise they are removed"
    secret, parts = new_secret(), -(-copied_rows // KEYS_MAX) or 1
    for part in range(parts):
        among = Part(part, parts)
        found = (among.of(key_digests(each.combine_chunks(), secret)) for each in copied(key))
        keys = np.concatenate([np.zeros((0, 2), np.uint64), *found])
        keys = keys[np.argsort(keys[:, 0])]
        for rows in stored():
            shaped = _shaped(rows, columns, key)
            if shaped is None:
                return
            digests = key_digests(shaped.select(list(key)).combine_chunks(), secret)
            mine = among.mask(digests)
            mine[mine] = ~contains(keys, digests[mine])
            yield from _marked(shaped.filter(pa.array(mine)), marks)


def _marked(rows: pa.Table, marks: Marks) -> Iterator[pa.Table]:
    """Rows that were deleted before stay as they are."""
    if not rows.num_rows:
        return
    live = is_live(rows)
    yield rows.filter(pc.invert(live))
    yield marks.deleted(rows.filter(live))


def _shaped(rows: pa.Table, columns: pa.Schema, key: Sequence[str]) -> pa.Table | None:
    """Return rows with the copy's columns, or None if their keys are not comparable with its."""
    arrays = []
    for item in columns:
        column = rows.column(item.name) if item.name in rows.schema.names else pa.nulls(rows.num_rows, item.type)
        try:
            column = column.cast(item.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            column = None
        if item.name in key and (column is None or item.name not in rows.schema.names):
            return None
        arrays.append(pa.nulls(rows.num_rows, item.type) if column is None else column)
    return pa.table(arrays, schema=columns)
