"""Span filter: keeps the rows of a batch that belong to a table span, and finds updates that change a row's key.

A row belongs to the span that its key hashes into. An update that changes the key affects two keys. If they are in two
spans, each span sees its half: the old key's span a delete, the new key's an insert.

Such an insert may have ``unchanged`` columns, whose values are only in the sink's row of the old key. That row belongs
to another span, which may be at another Ts. A changelog can record this (``_unchanged``); a table that must equal its
source cannot. So all spans of such a table, even unaffected ones, stop before this change (``incomplete_moves``). The
table is then joined into one span at that position, and the one span applies it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.rows.changes import BEFORE_FULL, BEFORE_NONE, DELETE, INSERT, TRUNCATE, UPDATE, Changes
from reactor.ids import KEY_SPACE, TableSpan

Mask = npt.NDArray[np.bool_]


def key_changes(changes: Changes, key: Sequence[str]) -> Mask:
    """Return a mask of the updates that changed the key; ``changes.before`` holds the old keys."""
    changed = np.zeros(len(changes), np.bool_)
    if changes.before is None:
        return changed
    for name in key:
        old, new = changes.before.column(name), changes.after.column(name)
        differs = pc.fill_null(pc.not_equal(old, new), pc.xor(old.is_null(), new.is_null()))
        changed |= differs.to_numpy(zero_copy_only=False)
    changed &= (changes.op == UPDATE) & (changes.before_kind != BEFORE_NONE)
    return changed


def incomplete_moves(changes: Changes, *, key: Sequence[str]) -> Mask:
    """Return a mask of the updates that changed the key and left out values that no image contains."""
    left_out = np.zeros(len(changes), np.bool_)
    for flags in changes.unchanged.values():
        left_out |= flags
    if not left_out.any():
        return left_out
    left_out &= key_changes(changes, key) & (changes.before_kind != BEFORE_FULL)
    return left_out


def in_span(keys: pa.RecordBatch, span: TableSpan, *, key: Sequence[str]) -> Mask:
    """Return a mask of the rows whose key is in ``span``."""
    return _within(_key_hash(keys, key), span)


def keep_span(changes: Changes, span: TableSpan, *, key: Sequence[str]) -> Changes:
    """Return the changes that concern ``span``, in order; a TRUNCATE concerns every span."""
    if span.is_whole_table:
        return changes
    new_in = in_span(changes.after, span, key=key)
    old_in = new_in if changes.before is None else in_span(changes.before, span, key=key)
    moved = key_changes(changes, key)
    keep = np.where(changes.op == DELETE, old_in, new_in) | (moved & old_in) | (changes.op == TRUNCATE)
    return _split_moves(changes, moved & ~old_in, moved & ~new_in).where(keep)


def by_span(changes: Changes, spans: Sequence[TableSpan], *, key: Sequence[str]) -> Iterator[tuple[int, Changes]]:
    """Yield the index of each of the contiguous ``spans`` with its changes, like ``keep_span`` but at about the cost of
    one span; spans without changes are omitted. ``changes`` must lie within the spans and contain no TRUNCATE."""
    starts = np.array([span.start for span in spans], np.uint64)
    new = old = np.searchsorted(starts, _key_hash(changes.after, key), side="right") - 1
    if changes.before is not None:
        old = np.searchsorted(starts, _key_hash(changes.before, key), side="right") - 1
    at = np.where(changes.op == DELETE, old, new)
    crosses = key_changes(changes, key) & (old != new)
    if crosses.any():
        source = np.repeat(np.arange(len(changes)), 1 + crosses)
        leaves = crosses[source] & np.append(source[1:] == source[:-1], False)  # the first of the two copies
        at = np.where(leaves, old[source], at[source])
        changes = _split_moves(changes.take(source), crosses[source] & ~leaves, leaves)
    order = np.argsort(at, kind="stable")
    ends = np.searchsorted(at[order], np.arange(len(spans)), side="right")
    for number, (begin, end) in enumerate(pairwise([0, *ends.tolist()])):
        if end > begin:
            yield number, changes.take(order[begin:end])


def fill_from_before(part: Changes, rows: Mask | None = None) -> Changes:
    """Fill unchanged columns from full before images. ``rows``: the rows to fill, or None for all."""
    if not part.unchanged or part.before is None:
        return part
    full = part.before_kind == BEFORE_FULL
    if rows is not None:
        full &= rows
    after, unchanged = part.after, {}
    for name, mask in part.unchanged.items():
        is_in_before = mask & full
        if is_in_before.any():
            column = pc.if_else(pa.array(is_in_before), part.before.column(name), after.column(name))
            after = after.set_column(after.schema.get_field_index(name), after.schema.field(name), column)
        if (mask & ~full).any():
            unchanged[name] = mask & ~full
    return replace(part, after=after, unchanged=unchanged)


def _key_hash(rows: pa.RecordBatch, key: Sequence[str]) -> npt.NDArray[np.uint64]:
    from agent.kernels.key_hash import key_hash  # takes a while to load, and whole tables do not need it

    return key_hash(rows, key)


def _within(hashes: npt.NDArray[np.uint64], span: TableSpan) -> Mask:
    inside = hashes >= np.uint64(span.start)
    return inside if span.end == KEY_SPACE else inside & (hashes < np.uint64(span.end))


def _split_moves(changes: Changes, arrives: Mask, leaves: Mask) -> Changes:
    """Turn updates from another span into inserts, and updates to another span into deletes."""
    if not arrives.any() and not leaves.any():
        return changes
    changes = fill_from_before(changes, arrives)  # an insert has no before image
    op = np.where(arrives, INSERT, np.where(leaves, DELETE, changes.op)).astype(np.int8)
    before_kind = np.where(arrives, BEFORE_NONE, changes.before_kind).astype(np.int8)
    gone = pa.array(leaves)
    columns = [pc.if_else(gone, pa.scalar(None, column.type), column) for column in changes.after.columns]
    after = pa.RecordBatch.from_arrays(columns, schema=changes.after.schema)
    unchanged = {name: mask & ~leaves for name, mask in changes.unchanged.items()}
    return replace(changes, op=op, before_kind=before_kind, after=after, unchanged=unchanged)
