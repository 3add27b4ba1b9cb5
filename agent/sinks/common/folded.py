"""Folded changelog: the current rows of a changelog table, with the same fold as for an upsert; changes from before the
table got another key by the key that it had then.

The changelog is in memory as a whole.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import TableHeldError
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, BEFORE_NONE, DELETE, INSERT, TRUNCATE, UPDATE, Changes
from agent.rows.columnless import columnless
from agent.rows.fold import net_changes
from agent.rows.schema import TableSchema
from agent.rows.unify import after_truncate
from agent.sinks.common import changelog
from agent.sinks.common.keys.former_keys import FormerKeys
from reactor.ids import Ts

_OF_KIND = {"insert": INSERT, "update_postimage": UPDATE, "delete": DELETE, "truncate": TRUNCATE, "update_preimage": 0}
NO_KEYS: Final = FormerKeys()
_OURS = frozenset(item.name for item in changelog.CHANGELOG_FIELDS)
_ORDER = [(name, "ascending") for name in (changelog.COMMIT_VERSION, changelog.COMMIT_SEQ, "place")]


def current_rows(
    rows: pa.Table, schema: TableSchema, wanted: pa.Schema, *, key: Sequence[str], former: FormerKeys = NO_KEYS
) -> pa.Table:
    """Return the rows that a changelog's ``rows`` result in, with the columns ``wanted``. ``rows`` have these, those of
    the ``former`` keys, and a changelog's.

    :raises TableHeldError: rows without a key were updated or deleted, and it is not known which.
    """
    whole = pa.schema([item for item in rows.schema if item.name not in _OURS])
    for one in former.keys:
        is_early = pc.less(rows.column(changelog.COMMIT_VERSION), one.until_ts)
        early = _folded(rows.filter(is_early), schema, whole, key=one.columns)
        rows = pa.concat_tables([_inserts(early, rows.schema, Ts(one.until_ts - 1)), rows.filter(pc.invert(is_early))])
    return _folded(rows, schema, wanted, key=key)


def _inserts(rows: pa.Table, columns: pa.Schema, ts: Ts) -> pa.Table:
    """Return rows as a changelog has them that were all inserted at ``ts``."""
    count = rows.num_rows
    known = {
        changelog.CHANGE_TYPE: pa.repeat("insert", count),
        changelog.COMMIT_VERSION: pa.repeat(pa.scalar(int(ts), pa.int64()), count),
        changelog.COMMIT_SEQ: pa.repeat(pa.scalar(0, pa.int64()), count),
    }
    values = [
        rows.column(item.name)
        if item.name not in _OURS
        else known[item.name].cast(item.type)
        if item.name in known
        else pa.nulls(count, item.type)
        for item in columns
    ]
    return pa.table(values, schema=columns)


def _folded(rows: pa.Table, schema: TableSchema, wanted: pa.Schema, *, key: Sequence[str]) -> pa.Table:
    is_old = pc.is_in(rows.column(changelog.CHANGE_TYPE), value_set=pa.array(["update_preimage", "delete"]))
    # one change may be two rows with the same position: the old one comes first
    ordered = rows.append_column("place", pc.if_else(is_old, 0, 1)).sort_by(_ORDER)
    if not wanted.names:
        return pa.Table.from_batches([columnless(_number(_ops(ordered), schema))])
    changes = _changes(ordered, schema, wanted)
    if key:
        upserts = net_changes([changes], key=key).upserts if len(changes) else wanted.empty_table()
        # without rows, as after a truncate, there are no columns either
        return upserts.select(wanted.names) if len(upserts) else wanted.empty_table()
    [*rest], _ = after_truncate([changes])
    return _counted(rest, schema, wanted)


def _number(op: npt.NDArray[np.int8], schema: TableSchema) -> int:
    """Return how many rows these changes leave, in log order; a row that changed its key is deleted and inserted.

    :raises TableHeldError: more rows were deleted than there were.
    """
    (truncates,) = np.nonzero(op == TRUNCATE)
    rest = op[truncates[-1] + 1 :] if len(truncates) else op
    number = int((rest == INSERT).sum() - (rest == DELETE).sum())
    if number < 0:
        raise _uncountable(schema)
    return number


def _uncountable(schema: TableSchema) -> TableHeldError:
    return TableHeldError(
        f"the changelog of {schema.qualified_name} cannot be compared: rows without a key were updated or deleted, "
        "and their old rows are not whole"
    )


def _counted(parts: Sequence[Changes], schema: TableSchema, wanted: pa.Schema) -> pa.Table:
    """Return the rows of a table without a key, each as often as it was written and not taken away since.

    :raises TableHeldError: a row was taken away that is not there, so old rows are not whole.
    """
    names = [f"{at}" for at in range(len(wanted))]
    images = [(part.after.filter(pa.array(np.isin(part.op, (INSERT, UPDATE)))), 1) for part in parts]
    images += [(part.before.filter(pa.array(part.op != INSERT)), -1) for part in parts if part.before is not None]
    counted = [
        pa.Table.from_batches([image])
        .rename_columns(names)
        .append_column("count", pa.array([by] * len(image), pa.int64()))
        for image, by in images
    ]
    if not counted:
        return pa.Table.from_batches([part.after for part in parts], wanted)
    sums = pa.concat_tables(counted).group_by(names, use_threads=False).aggregate([("count", "sum")])
    count = sums.column("count_sum").to_numpy()
    is_partial = any(((part.op == UPDATE) & (part.before_kind != BEFORE_FULL)).any() for part in parts)
    is_partial |= any(mask.any() for part in parts for mask in part.unchanged.values())
    if is_partial or (count < 0).any():
        raise _uncountable(schema)
    rows = sums.select(names).take(pa.array(np.repeat(np.arange(len(count)), count)))
    return pa.Table.from_arrays([column.combine_chunks() for column in rows.columns], schema=wanted)


def _changes(rows: pa.Table, schema: TableSchema, wanted: pa.Schema) -> Changes:
    """Return the changes from which these rows were written (the inverse of ``changelog.changelog_rows``)."""
    rows = rows.combine_chunks()
    op = _ops(rows)
    version, seq = (rows.column(name).to_numpy() for name in (changelog.COMMIT_VERSION, changelog.COMMIT_SEQ))
    follows = np.append((version[1:] == version[:-1]) & (seq[1:] == seq[:-1]), False)
    is_preimage = op == 0
    is_half = follows & (op == DELETE) & np.append(op[1:] == INSERT, False)
    (main,) = np.nonzero(~(is_preimage | is_half))
    has_old = np.append(False, (is_preimage | is_half)[:-1])[main]
    own_op = op[main]
    old = np.where(has_old, main - 1, main)
    images = rows.select(wanted.names)
    is_full = has_old & is_preimage[old]
    before_kind = np.where(is_full, BEFORE_FULL, np.where(has_old | (own_op == DELETE), BEFORE_KEY, BEFORE_NONE))
    return Changes(
        schema=schema,
        op=np.where(has_old, UPDATE, own_op).astype(np.int8),
        commit_ts=version[main],
        seq=seq[main],
        after=_batch(images.take(pa.array(main)), wanted),
        before=_batch(images.take(pa.array(old)), wanted),
        before_kind=before_kind.astype(np.int8),
        unchanged=_unchanged(rows.column(changelog.UNCHANGED).take(pa.array(main)), wanted),
    )


def _ops(rows: pa.Table) -> npt.NDArray[np.int8]:
    kinds = _kinds(rows)
    by_code = np.array([_OF_KIND[name] for name in kinds.dictionary.to_pylist()], np.int8)
    ops: npt.NDArray[np.int8] = by_code[kinds.indices]
    return ops


def _kinds(rows: pa.Table) -> Any:
    encoded = rows.column(changelog.CHANGE_TYPE).combine_chunks().dictionary_encode()
    return encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded


def _batch(table: pa.Table, wanted: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type) for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _unchanged(names: pa.ChunkedArray, wanted: pa.Schema) -> dict[str, Any]:
    lists = pa.concat_arrays(names.chunks) if names.num_chunks else pa.array([], names.type)
    row, name = pc.list_parent_indices(lists).to_numpy(), pc.list_flatten(lists)
    masks = {}
    for column in pc.unique(name).to_pylist():
        if column in wanted.names:
            masks[column] = np.zeros(len(lists), np.bool_)
            masks[column][row[pc.equal(name, column).to_numpy(zero_copy_only=False)]] = True
    return masks
