"""Folded changelog: the current rows of a changelog table, with the same fold as for an upsert.

The changelog is in memory as a whole.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import TableHeldError
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, BEFORE_NONE, DELETE, INSERT, TRUNCATE, UPDATE, Changes
from agent.rows.fold import net_changes
from agent.rows.schema import TableSchema
from agent.rows.unify import after_truncate
from agent.sinks.common import changelog

_OF_KIND = {"insert": INSERT, "update_postimage": UPDATE, "delete": DELETE, "truncate": TRUNCATE, "update_preimage": 0}
_ORDER = [(name, "ascending") for name in (changelog.COMMIT_VERSION, changelog.COMMIT_SEQ, "place")]


def current_rows(rows: pa.Table, schema: TableSchema, wanted: pa.Schema, *, key: Sequence[str]) -> pa.Table:
    """Return the rows that a changelog's ``rows`` result in. They have the columns ``wanted`` and those of a changelog.

    :raises TableHeldError: rows without a key were updated or deleted.
    """
    is_old = pc.is_in(rows.column(changelog.CHANGE_TYPE), value_set=pa.array(["update_preimage", "delete"]))
    # one change may be two rows with the same position: the old one comes first
    ordered = rows.append_column("place", pc.if_else(is_old, 0, 1)).sort_by(_ORDER)
    changes = _changes(ordered, schema, wanted)
    if key:
        upserts = net_changes([changes], key=key).upserts if len(changes) else wanted.empty_table()
        # without rows, as after a truncate, there are no columns either
        return upserts.select(wanted.names) if len(upserts) else wanted.empty_table()
    [*rest], _ = after_truncate([changes])
    if any((part.op != INSERT).any() for part in rest):
        raise TableHeldError(
            f"the changelog of {schema.qualified_name} cannot be compared: rows without a key were updated or deleted"
        )
    return pa.Table.from_batches([part.after for part in rest], wanted)


def _changes(rows: pa.Table, schema: TableSchema, wanted: pa.Schema) -> Changes:
    """Return the changes from which these rows were written (the inverse of ``changelog.changelog_rows``)."""
    rows = rows.combine_chunks()
    op = np.array([_OF_KIND[name] for name in _kinds(rows).dictionary.to_pylist()], np.int8)[_kinds(rows).indices]
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
