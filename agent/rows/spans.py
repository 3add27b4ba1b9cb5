"""Span filter: keeps the rows of a batch that belong to a table span, and finds updates that moved a row's key.

A row belongs to the span that its key hashes into. An update that changes the key concerns two keys: where they lie in
two spans, each sees its own half, the old key's span a delete and the new key's an insert.

That insert may have ``unchanged`` columns, whose values are only in the old key's row at the sink: another span's,
which is somewhere else in time. A changelog says so (``_unchanged``); a table that shall equal its source cannot do it.
So all spans of such a table, also those that the row has nothing to do with, stop in front of it
(``incomplete_moves``): then the table can be joined in front of it, and one span does what several cannot.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.kernels.key_hash import key_hash
from agent.rows.changes import BEFORE_FULL, BEFORE_NONE, DELETE, INSERT, TRUNCATE, UPDATE, Changes
from reactor.ids import KEY_SPACE, TableSpan

Mask = npt.NDArray[np.bool_]


def key_changes(changes: Changes, key: Sequence[str]) -> Mask:
    """True for updates whose key is not what it was; ``changes.before`` then has the old key."""
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
    """True for updates that changed the key and left out values that no image has."""
    left_out = np.zeros(len(changes), np.bool_)
    for flags in changes.unchanged.values():
        left_out |= flags
    if not left_out.any():
        return left_out
    left_out &= key_changes(changes, key) & (changes.before_kind != BEFORE_FULL)
    return left_out


def in_span(keys: pa.RecordBatch, span: TableSpan, *, key: Sequence[str]) -> Mask:
    """True for rows whose key lies in ``span``."""
    return _within(key_hash(keys, key), span)


def keep_span(changes: Changes, span: TableSpan, *, key: Sequence[str]) -> Changes:
    """The changes that concern ``span``, in their order; a TRUNCATE concerns every span."""
    if span.is_whole_table:
        return changes
    new_in = in_span(changes.after, span, key=key)
    old_in = new_in if changes.before is None else in_span(changes.before, span, key=key)
    moved = key_changes(changes, key)
    keep = np.where(changes.op == DELETE, old_in, new_in) | (moved & old_in) | (changes.op == TRUNCATE)
    return _split_moves(changes, moved & ~old_in, moved & ~new_in).where(keep)


def by_span(changes: Changes, spans: Sequence[TableSpan], *, key: Sequence[str]) -> Iterator[tuple[int, Changes]]:
    """``keep_span`` for each of ``spans``, which follow upon one another, at about the price of one: which of them,
    and its changes; spans without any are left out. ``changes`` lie within them, and there is no TRUNCATE."""
    starts = np.array([span.start for span in spans], np.uint64)
    new = old = np.searchsorted(starts, key_hash(changes.after, key), side="right") - 1
    if changes.before is not None:
        old = np.searchsorted(starts, key_hash(changes.before, key), side="right") - 1
    at = np.where(changes.op == DELETE, old, new)
    crosses = key_changes(changes, key) & (old != new)
    if crosses.any():
        source = np.repeat(np.arange(len(changes)), 1 + crosses)
        leaves = crosses[source] & np.append(source[1:] == source[:-1], False)  # the first of two
        at = np.where(leaves, old[source], at[source])
        changes = _split_moves(changes.take(source), crosses[source] & ~leaves, leaves)
    order = np.argsort(at, kind="stable")
    ends = np.searchsorted(at[order], np.arange(len(spans)), side="right")
    for number, (begin, end) in enumerate(pairwise([0, *ends.tolist()])):
        if end > begin:
            yield number, changes.take(order[begin:end])


def fill_from_before(part: Changes, rows: Mask | None = None) -> Changes:
    """A full before image says what an unchanged column holds. ``rows``: those to fill, all when None."""
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


def _within(hashes: npt.NDArray[np.uint64], span: TableSpan) -> Mask:
    inside = hashes >= np.uint64(span.start)
    return inside if span.end == KEY_SPACE else inside & (hashes < np.uint64(span.end))


def _split_moves(changes: Changes, arrives: Mask, leaves: Mask) -> Changes:
    """Updates from another span become inserts, updates to another span become deletes."""
    if not arrives.any() and not leaves.any():
        return changes
    changes = fill_from_before(changes, arrives)  # an insert has no image of before
    op = np.where(arrives, INSERT, np.where(leaves, DELETE, changes.op)).astype(np.int8)
    before_kind = np.where(arrives, BEFORE_NONE, changes.before_kind).astype(np.int8)
    gone = pa.array(leaves)
    columns = [pc.if_else(gone, pa.scalar(None, column.type), column) for column in changes.after.columns]
    after = pa.RecordBatch.from_arrays(columns, schema=changes.after.schema)
    unchanged = {name: mask & ~leaves for name, mask in changes.unchanged.items()}
    return replace(changes, op=op, before_kind=before_kind, after=after, unchanged=unchanged)
