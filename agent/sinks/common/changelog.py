"""Changelog: appends every change as a row, without folding.

A changelog table has five columns beside the source's:

=====================  ==============================================================================================
``_change_type``       insert, update_preimage, update_postimage, delete (Spark's names), or truncate (all else NULL)
``_commit_version``    the Ts of the transaction
``_commit_timestamp``  when it was committed, as exactly as the log knows; NULL for rows of the first snapshot
``_commit_seq``        the change's place within its transaction
``_unchanged``         names of columns that an update left out: NULL there means "as it was", not NULL
=====================  ==============================================================================================

An update has an ``update_preimage`` row before its ``update_postimage`` only if the source sent the whole old row
(PostgreSQL: REPLICA IDENTITY FULL): a partial preimage could not be distinguished from one with NULLs. If only the old
key was sent, because the update changed it, there is a ``delete`` of the old key and an ``insert`` of the new row, both
with the update's Ts and seq. A delete has what was sent: the whole row, or its key. TRUNCATE is a row without values,
written only by the span that begins at 0.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.errors import TableHeldError
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, DELETE, INSERT, TRUNCATE, UPDATE, Changes
from agent.rows.spans import fill_from_before, key_changes
from agent.rows.unify import Mask
from agent.sinks.common.forms import Forms
from reactor.ids import TableSpan, Ts

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
COMMIT_SEQ = "_commit_seq"
UNCHANGED = "_unchanged"

CHANGELOG_FIELDS = (
    pa.field(CHANGE_TYPE, pa.string()),
    pa.field(COMMIT_VERSION, pa.int64()),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC")),
    pa.field(COMMIT_SEQ, pa.int64()),
    pa.field(UNCHANGED, pa.list_(pa.string())),
)

_INSERT, _PREIMAGE, _POSTIMAGE, _DELETE, _TRUNCATE = range(5)
_NAMES = ("insert", "update_preimage", "update_postimage", "delete", "truncate")
_TYPE_OF_OP = np.zeros(5, np.int64)
_TYPE_OF_OP[[INSERT, UPDATE, DELETE, TRUNCATE]] = [_INSERT, _POSTIMAGE, _DELETE, _TRUNCATE]

_MOMENT = pa.timestamp("us", "UTC")

Indexes = npt.NDArray[np.int64]


def changelog_schema(stored: pa.Schema) -> pa.Schema:
    """Return a changelog's columns; ``stored``: those of the source, as they are stored.

    :raises TableHeldError: a source column has the name of a changelog column.
    """
    ours = {item.name for item in CHANGELOG_FIELDS}
    for name in stored.names:
        if name in ours:
            raise TableHeldError(f"source column {name} has the name of a changelog column; rename it, or use upsert")
    return pa.schema([*stored, *CHANGELOG_FIELDS])


def changelog_rows(changes: Changes, span: TableSpan, *, key: Sequence[str], forms: Forms) -> pa.Table:
    """Return the rows to append for ``changes``, in log order."""
    changes = fill_from_before(changes)
    moved = key_changes(changes, key) & (changes.before_kind == BEFORE_KEY)
    source, kind = _plan(changes, moved, speaks_for_table=span.start == 0)
    change = source % max(len(changes), 1)
    data = forms.table(_images(changes, source))
    count = len(source)
    columns = [
        *data.columns,
        pa.array(_NAMES).take(pa.array(kind)),
        pa.array(changes.commit_ts[change]),
        _same_time(changes.commit_time, count)
        if changes.commit_times is None
        else _times(changes.commit_times[change]),
        pa.array(changes.seq[change]),
        _unchanged(changes, change, is_after=source < len(changes)),
    ]
    return pa.table(columns, schema=changelog_schema(forms.schema(changes.after.schema)))


def snapshot_rows(batch: pa.RecordBatch | pa.Table, ts: Ts, *, forms: Forms) -> pa.Table:
    """Return the rows of a snapshot as inserts at its Ts; their insertion times are not known."""
    data = forms.table(batch)
    count = batch.num_rows
    columns = [
        *data.columns,
        pa.repeat(pa.scalar("insert"), count),
        pa.repeat(pa.scalar(int(ts), pa.int64()), count),
        _same_time(0.0, count),
        pa.repeat(pa.scalar(0, pa.int64()), count),
        pa.nulls(count, pa.list_(pa.string())),
    ]
    return pa.table(columns, schema=changelog_schema(forms.schema(batch.schema)))


def truncate_row(columns: pa.Schema, ts: Ts, seq: int = -1) -> pa.Table:
    """Return the row that precedes a copy of the whole table at ``ts`` and voids all earlier rows. ``columns``: of the
    changelog."""
    known = {
        CHANGE_TYPE: pa.array(["truncate"]),
        COMMIT_VERSION: pa.array([int(ts)], pa.int64()),
        COMMIT_SEQ: pa.array([seq], pa.int64()),
    }
    values = [known[item.name] if item.name in known else pa.nulls(1, item.type) for item in columns]
    return pa.table(values, schema=columns)


def numbered(rows: pa.Table, seq: int) -> pa.Table:
    """Return rows of a changelog at another place of their transaction."""
    at = rows.schema.get_field_index(COMMIT_SEQ)
    return rows.set_column(at, rows.schema.field(at), pa.repeat(pa.scalar(seq, pa.int64()), rows.num_rows))


def _plan(changes: Changes, moved: Mask, *, speaks_for_table: bool) -> tuple[Indexes, Indexes]:
    """Return, for each row to write, the index of its image (rows of ``after``, then rows of ``before``), and its
    change type."""
    count = len(changes)
    has_preimage = moved | ((changes.op == UPDATE) & (changes.before_kind == BEFORE_FULL))
    main = np.arange(count) + np.cumsum(has_preimage)
    source, kind = np.empty(count + has_preimage.sum(), np.int64), np.empty(count + has_preimage.sum(), np.int64)
    is_old = (changes.op == DELETE) & (changes.before is not None)
    source[main] = np.arange(count) + np.where(is_old, count, 0)
    kind[main] = np.where(moved, _INSERT, _TYPE_OF_OP[changes.op])
    (preimages,) = np.nonzero(has_preimage)
    source[main[preimages] - 1] = count + preimages
    kind[main[preimages] - 1] = np.where(moved[preimages], _DELETE, _PREIMAGE)
    if speaks_for_table or not (changes.op == TRUNCATE).any():
        return source, kind
    return source[kind != _TRUNCATE], kind[kind != _TRUNCATE]


def _images(changes: Changes, source: Indexes) -> pa.Table:
    after = pa.Table.from_batches([changes.after])
    if len(source) == len(changes) and (source < len(changes)).all():
        return after
    if changes.before is None:
        return after.take(pa.array(source))
    before = pa.Table.from_batches([changes.before]).cast(after.schema)
    return pa.concat_tables([after, before]).combine_chunks().take(pa.array(source))


def _same_time(commit_time: float, count: int) -> pa.Array:
    moment = pa.scalar(round(commit_time * 1_000_000) if commit_time else None, _MOMENT)
    return pa.repeat(moment, count)


def _times(commit_times: npt.NDArray[np.float64]) -> pa.Array:
    micros = np.rint(commit_times * 1_000_000).astype(np.int64)
    return pa.array(micros, mask=commit_times == 0).cast(_MOMENT)


def _unchanged(changes: Changes, change: Indexes, *, is_after: Mask) -> pa.Array:
    """Return, per row, the names of the columns that are not known; NULL if all are known."""
    if not changes.unchanged:
        return pa.nulls(len(change), pa.list_(pa.string()))
    masks = np.stack(list(changes.unchanged.values()), axis=1)[change] & is_after[:, None]
    offsets = np.concatenate([[0], np.cumsum(masks.sum(axis=1))]).astype(np.int32)
    names = pa.array(list(changes.unchanged), pa.string()).take(pa.array(np.nonzero(masks)[1]))
    is_known = pa.array(~masks.any(axis=1))
    return pa.ListArray.from_arrays(pa.array(offsets), names, mask=is_known)
