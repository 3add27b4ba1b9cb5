"""Delta reader: reads a Delta table of ours back in the source's columns, for comparisons.

An upserted table is read directly, in batches. A changelog is folded to its current rows, with the same fold as for an
upsert, so it is in memory as a whole.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from agent.errors import TableHeldError
from agent.ports.checksums import ALL_KEYS, KeyRange
from agent.rows.changes import BEFORE_FULL, BEFORE_KEY, BEFORE_NONE, DELETE, INSERT, TRUNCATE, UPDATE, Changes
from agent.rows.fold import net_changes
from agent.rows.schema import TableSchema
from agent.rows.unify import after_truncate
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table import schema as delta_schema
from agent.sinks.delta.table.errors import storage_errors
from agent.sinks.delta.table.place import TableOwner, TablePlace
from reactor.records.changefeed import SinkMode

_OF_KIND = {"insert": INSERT, "update_postimage": UPDATE, "delete": DELETE, "truncate": TRUNCATE, "update_preimage": 0}
_ORDER = [(name, "ascending") for name in (delta_schema.COMMIT_VERSION, delta_schema.COMMIT_SEQ, "place")]


def read_rows(
    place: TablePlace, schema: TableSchema, arrow: pa.Schema, *, key: Sequence[str], keys: KeyRange = ALL_KEYS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table with the columns of ``arrow`` (a column that the table lacks is NULL).

    :raises TableHeldError: there is no table, its log cannot be folded, or one of its files is missing or damaged.
    """
    table = place.opened()
    wanted = delta_schema.delta_schema(arrow)
    owner = TableOwner.of(table)
    with storage_errors(place, "read"):
        if owner is not None and owner.mode == SinkMode.CHANGELOG:
            yield from _inside(_folded(table, schema, wanted, key), keys).to_batches()
        else:
            yield from _scanned(table, wanted, keys)


def _scanned(table: DeltaTable, wanted: pa.Schema, keys: KeyRange = ALL_KEYS) -> Iterator[pa.RecordBatch]:
    stored = set(delta_table.arrow_schema(table).names)
    predicate = " AND ".join(keys.conditions('"' + keys.column.replace('"', '""') + '"')) or None
    scan = table.scan(columns=[name for name in wanted.names if name in stored], predicate=predicate)
    for batch in pa.RecordBatchReader.from_stream(scan):
        columns = [
            batch.column(item.name).cast(item.type) if item.name in stored else pa.nulls(batch.num_rows, item.type)
            for item in wanted
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def _inside(rows: pa.Table, keys: KeyRange) -> pa.Table:
    if keys.low is not None:
        rows = rows.filter(pc.greater_equal(rows.column(keys.column), keys.low))
    return rows if keys.high is None else rows.filter(pc.less(rows.column(keys.column), keys.high))


def _folded(table: DeltaTable, schema: TableSchema, wanted: pa.Schema, key: Sequence[str]) -> pa.Table:
    ours = pa.schema([*wanted, *delta_schema.CHANGELOG_FIELDS])
    rows = pa.Table.from_batches(list(_scanned(table, ours)), ours)
    is_old = pc.is_in(rows.column(delta_schema.CHANGE_TYPE), value_set=pa.array(["update_preimage", "delete"]))
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
    version, seq = (rows.column(name).to_numpy() for name in (delta_schema.COMMIT_VERSION, delta_schema.COMMIT_SEQ))
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
        unchanged=_unchanged(rows.column(delta_schema.UNCHANGED).take(pa.array(main)), wanted),
    )


def _kinds(rows: pa.Table) -> Any:
    encoded = rows.column(delta_schema.CHANGE_TYPE).combine_chunks().dictionary_encode()
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
