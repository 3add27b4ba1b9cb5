"""Net changes: reduce a range of row changes to one row per key (compaction by key), for upserted tables.

Three things make this more than "the last change wins":

- *A key-changing update* is a delete of the old key followed by an upsert of the new one.
- *Unchanged* (a large value that an update left out) is a third state beside NULL. The value is the one that the row
  had before: if an earlier change of the row in this range has it, also under an earlier key, it is taken from there;
  otherwise only the sink has it (``kept``), under the row's own key or the key it had before this range (``origin``).
- *TRUNCATE* voids everything before it, in this range and in the sink.

A column that an older schema of the same range lacks is unknown in its rows in the same way.

Where deleted rows are kept (``keeps_deleted``), a deleted key is an upsert too, with the last values that its row had.

Everything here works on whole columns. Each change becomes one event, a key-changing update two; events are grouped by
key code; ``prev`` leads from an update to the event that its row comes from. Pointer doubling finds the nearest event
that knows a column in log2(length of the longest chain) steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.kernels.key_hash import comparable
from agent.rows.changes import DELETE, INSERT, Changes
from agent.rows.unify import Mask, Rows, after_truncate

Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class NetChanges:
    """``upserts``: whole rows, one per key. ``deletes``: key columns, one per key. No key is in both.

    ``kept[column]``: True where the sink keeps the value it has stored for that row of ``upserts``. ``origin``: for
    each row of ``upserts``, the key under which the sink stores that value; None if it is always the row's own key.
    ``is_truncated``: the sink's rows are removed first. ``is_insert_only``: no key of the range existed before.

    ``needed``: True for rows of ``upserts`` that lack values which only the sink has; None if there are none. If the
    sink lacks the row, the values are unknown. ``lost``: rows of ``needed`` that the sink cannot have, because an
    earlier change of this range removed their key.

    ``deleted``: True for rows of ``upserts`` that are deleted and kept, None if deleted rows are not kept; ``deletes``
    is empty then. What the source did not send of a deleted row is ``kept``, and not ``needed``: it is NULL if the sink
    lacks the row.
    """

    upserts: pa.Table
    deletes: pa.Table
    kept: dict[str, Mask] = field(default_factory=dict)
    origin: pa.Table | None = None
    is_truncated: bool = False
    is_insert_only: bool = False
    needed: Mask | None = None
    lost: Mask | None = None
    deleted: Mask | None = None

    def __len__(self) -> int:
        return int(self.upserts.num_rows + self.deletes.num_rows)


def net_changes(parts: Sequence[Changes], *, key: Sequence[str], keeps_deleted: bool = False) -> NetChanges:
    """Fold ``parts`` (in log order) to one row per key. ``keeps_deleted``: deleted rows become upserts.

    :raises TableHeldError: a column changed its type within the range, and its values cannot be converted.
    """
    assert key, "a table without a key has no net changes"
    parts, is_truncated = after_truncate(parts)
    if not parts:
        return NetChanges(pa.table({}), pa.table({}), is_truncated=is_truncated, is_insert_only=True)
    if keeps_deleted:
        parts = [_with_unknown_deletes(part, key) for part in parts]
    rows = Rows.of_parts(parts, key)
    events = Events.of(rows, key)
    last = events.last_of_key()
    stays = last[~events.is_delete[last]]
    gone = last[events.is_delete[last]]
    final = resolve(rows, events, stays)
    first_op = rows.op[events.row[events.first_of_key()]]
    net = NetChanges(
        upserts=final.rows,
        deletes=events.keys.take(events.key_at[gone]),
        kept=final.kept,
        origin=final.origin,
        needed=final.needed,
        lost=final.needed if is_truncated else final.lost,
        is_truncated=is_truncated,
        is_insert_only=bool((first_op == INSERT).all()),
    )
    return _with_deleted(net, _last_values(rows, events, gone, key), key) if keeps_deleted else net


@dataclass(frozen=True, slots=True)
class Events:
    """One event per change in log order; each key-changing update is preceded by an event that deletes its old key.

    ``key_at``: index of the event's key in ``keys``; ``code``: equal for equal keys; ``order``: events by key, then in
    log order.
    """

    row: Indexes
    is_delete: Mask
    is_twin: Mask
    keys: pa.Table
    key_at: Indexes
    code: Indexes
    order: Indexes

    @classmethod
    def of(cls, rows: Rows, key: Sequence[str]) -> "Events":
        count = len(rows.op)
        (moved,) = np.nonzero(rows.moved)
        main = np.arange(count) + np.cumsum(rows.moved)
        twin = main[moved] - 1
        total = count + len(moved)
        row, key_at = np.empty(total, np.int64), np.empty(total, np.int64)
        row[main], row[twin] = np.arange(count), moved
        key_at[main], key_at[twin] = np.arange(count), count + np.arange(len(moved))
        is_twin = np.zeros(total, np.bool_)
        is_twin[twin] = True
        keys = _event_keys(rows, moved, key)
        code = key_codes(keys)[key_at]
        is_delete = is_twin | (rows.op[row] == DELETE)
        return cls(row, is_delete, is_twin, keys, key_at, code, np.argsort(code, kind="stable"))

    def last_of_key(self) -> Indexes:
        code = self.code[self.order]
        last: Indexes = self.order[np.append(code[1:] != code[:-1], True)]
        return last

    def first_of_key(self) -> Indexes:
        code = self.code[self.order]
        first: Indexes = self.order[np.append(True, code[1:] != code[:-1])]
        return first

    def before_on_key(self) -> Indexes:
        """Return, for each event, the previous event of the same key, or -1."""
        before = np.full(len(self.row), -1, np.int64)
        same = self.code[self.order][1:] == self.code[self.order][:-1]
        before[self.order[1:][same]] = self.order[:-1][same]
        return before


@dataclass(frozen=True, slots=True)
class Resolved:
    """The final rows, as in ``NetChanges``."""

    rows: pa.Table
    kept: dict[str, Mask] = field(default_factory=dict)
    origin: pa.Table | None = None
    needed: Mask | None = None
    lost: Mask | None = None


def resolve(rows: Rows, events: Events, stays: Indexes) -> Resolved:
    """Take each column from the nearest event that knows it, going back along the row's own history."""
    final = rows.after.take(events.row[stays])
    if not rows.unknown:
        return Resolved(final)
    back, root_code_at, follows_delete = _history(rows, events)
    kept: dict[str, Mask] = {}
    root = stays.copy()
    needed, gone = np.zeros((2, len(stays)), np.bool_)
    for name, unknown in rows.unknown.items():
        known = ~unknown[events.row]
        source = _nearest(known, back)[stays]
        column = rows.after.column(name).take(events.row[source])
        final = final.set_column(final.schema.get_field_index(name), final.schema.field(name), column)
        lost = ~known[source]
        if lost.any():
            kept[name] = lost
            root = np.where(lost, source, root)
            if name in rows.left_out:
                left_out = lost & rows.left_out[name][events.row[source]]
                needed |= left_out
                gone |= left_out & follows_delete[source]
    at = root_code_at[root]
    is_moved = events.code[at] != events.code[stays]
    origin = events.keys.take(events.key_at[at]) if kept and is_moved.any() else None
    return Resolved(final, kept, origin, needed if needed.any() else None, gone if gone.any() else None)


def _with_unknown_deletes(part: Changes, key: Sequence[str]) -> Changes:
    """Let deletes be changes that leave all values out: a full before image then supplies them."""
    is_delete = part.op == DELETE
    if not is_delete.any():
        return part
    names = [name for name in part.after.schema.names if name not in key]
    return replace(part, unchanged={name: part.unchanged.get(name, False) | is_delete for name in names})


def _last_values(rows: Rows, events: Events, gone: Indexes, key: Sequence[str]) -> Resolved:
    """Return the rows that were deleted by the events ``gone``, as they were before."""
    before = events.before_on_key()[gone]
    is_known = (before >= 0) & ~events.is_delete[before]
    found = resolve(rows, events, before[is_known])
    own = gone[~is_known]  # only the sink has these, and what the source sent of the old row
    values, keys = rows.after.take(events.row[own]), events.keys.take(events.key_at[own])
    for name in key:
        values = values.set_column(values.schema.get_field_index(name), values.schema.field(name), keys.column(name))
    none = np.zeros(len(rows.op), np.bool_)
    names = [name for name in values.schema.names if name not in key]
    kept = {name: rows.unknown.get(name, none)[events.row[own]] | events.is_twin[own] for name in names}
    return _joined(found, Resolved(values, {name: mask for name, mask in kept.items() if mask.any()}), key)


def _joined(first: Resolved, second: Resolved, key: Sequence[str]) -> Resolved:
    counts = first.rows.num_rows, second.rows.num_rows
    kept = {}
    for name in dict.fromkeys((*first.kept, *second.kept)):
        masks = [part.kept.get(name) for part in (first, second)]
        kept[name] = padded(masks, counts)
    origin = None
    if first.origin is not None or second.origin is not None:
        keys = [part.rows.select(list(key)) if part.origin is None else part.origin for part in (first, second)]
        origin = pa.concat_tables([keys[0], keys[1].cast(keys[0].schema)])
    return Resolved(pa.concat_tables([first.rows, second.rows]), kept, origin)


def padded(masks: Sequence[Mask | None], counts: Sequence[int]) -> Mask:
    filled = [np.zeros(count, np.bool_) if mask is None else mask for mask, count in zip(masks, counts, strict=True)]
    return np.concatenate(filled)


def _with_deleted(net: NetChanges, deleted: Resolved, key: Sequence[str]) -> NetChanges:
    """Return ``net`` with the deleted rows behind its others. It is no longer ``is_insert_only``: the sink may have a
    deleted row of any key."""
    counts = net.upserts.num_rows, deleted.rows.num_rows
    whole = _joined(Resolved(net.upserts, net.kept, net.origin), deleted, key)
    return replace(
        net,
        upserts=whole.rows,
        deletes=net.deletes.slice(0, 0),
        kept=whole.kept,
        origin=whole.origin,
        is_insert_only=False,
        needed=None if net.needed is None else padded([net.needed, None], counts),
        lost=None if net.lost is None else padded([net.lost, None], counts),
        deleted=padded([None, np.ones(counts[1], np.bool_)], counts),
    )


def _history(rows: Rows, events: Events) -> tuple[Indexes, Indexes, Mask]:
    """Return, for each event: the event its row comes from (-1: none in this range), the event with the key that the
    row had before, and whether another row had that key earlier in this range."""
    at = np.arange(len(events.row))
    arrives = np.append(False, events.is_twin[:-1])  # a key-changing update directly follows its twin
    held = np.where(arrives, at - 1, at)
    back = events.before_on_key()[held]
    begins = (rows.op[events.row] == INSERT) | events.is_delete | ((back >= 0) & events.is_delete[back])
    return np.where(begins, -1, back), held, begins & (back >= 0)


def _nearest(known: Mask, back: Indexes) -> Indexes:
    """Return, for each event, the event itself or the nearest one along ``back`` that is known, or the end of its
    history."""
    at = np.arange(len(known))
    goal = np.where(known | (back < 0), at, back)
    while not np.array_equal(further := goal[goal], goal):
        goal = further
    return goal


def _event_keys(rows: Rows, moved: Indexes, key: Sequence[str]) -> pa.Table:
    """Return the key of each change (a delete's is in its before image), then the old keys of the moved rows."""
    after = rows.after.select(list(key))
    if rows.before_keys is None:
        return after
    is_delete = pa.array(rows.op == DELETE)
    columns = [
        pa.chunked_array(
            [
                *_chunks(pc.if_else(is_delete, rows.before_keys.column(name), after.column(name))),
                *_chunks(rows.before_keys.column(name).take(moved)),
            ],
            type=after.schema.field(name).type,
        )
        for name in key
    ]
    return pa.table(columns, names=list(key))


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return list(column.chunks) if isinstance(column, pa.ChunkedArray) else [column]


def key_codes(keys: pa.Table) -> Indexes:
    """Return a code per row, equal for equal keys: 0 … number of keys - 1."""
    code: Indexes | None = None
    for column in keys.columns:
        indexes = comparable(column.combine_chunks()).dictionary_encode(null_encoding="encode")
        merged = indexes.combine_chunks() if isinstance(indexes, pa.ChunkedArray) else indexes
        each = merged.indices.to_numpy().astype(np.int64)
        if code is not None:
            each = code * (int(each.max(initial=0)) + 1) + each
        code = pa.array(each).dictionary_encode().indices.to_numpy().astype(np.int64)
    assert code is not None
    return code
