"""Repair: finds the rows of a table that differ from the source's, key by key, and makes them equal in the sink.

Ranges of keys are found as in a comparison (``agent.feeds.diff``), and all their differing rows are read: what of one
key is missing at the sink, is there with other values, or is there alone. With a condition only the keys that match it
on either side are read (``agent.feeds.selection``). Source and sink are at the snapshot's Ts.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import TABLE_READ_ERRORS, SinkUriError
from agent.feeds import diff
from agent.feeds.diff import Pushed, Rows
from agent.feeds.selection import TooManyRowsError, matching_sides
from agent.filter.events import rules_for
from agent.ports.sink import ReadsBack, Repairs, RowRepair, Sink
from agent.ports.source import ComparisonSnapshot
from agent.rows.changes import BEFORE_FULL, BEFORE_NONE, DELETE, INSERT, UPDATE, Changes
from agent.rows.fold import key_codes
from agent.rows.later_changes import later_seq
from agent.rows.schema import TableSchema
from reactor.ids import TableSpan
from reactor.records.changefeed import FilterConfig
from reactor.records.tables.table import TableRecord

#: rows of differing keys, of both sides, that are in memory at a time
_ROWS_MAX = 200_000

#: what becomes of a key's row
INSERTED, UPDATED, DELETED = "inserted", "updated", "deleted"
_WHAT = {INSERT: INSERTED, UPDATE: UPDATED, DELETE: DELETED}


@dataclass(frozen=True, slots=True)
class RepairedKey:
    """``columns``: those whose values differ, of a row that is on both sides."""

    key: dict[str, str]
    what: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableRepair:
    """``refused``: why the table is left as it is."""

    table: str
    keys: tuple[RepairedKey, ...] = ()
    refused: str = ""


def repair_table(
    snapshot: ComparisonSnapshot,
    sink: Sink,
    table: TableRecord,
    spans: Sequence[TableSpan],
    filter: FilterConfig,
    pushed: Pushed,
    *,
    is_trial: bool,
    where: str = "",
) -> TableRepair:
    """Make a table's rows those of the source; with ``is_trial`` only say which would be made so. ``where``: only those
    whose keys match it on either side.

    :raises SourceError: the source cannot be read, or the snapshot is gone.
    :raises SinkError: the sink is past the snapshot, or cannot be written.
    """
    name = f"{table.schema_name}.{table.name}"
    if not isinstance(sink, ReadsBack) or not isinstance(sink, Repairs):
        raise SinkUriError("rows of this sink's tables cannot be repaired")
    resync = f"copy it again: weir table resync --table {name}"
    if not table.key:
        return TableRepair(name, refused=f"it has no key to tell rows apart; {resync}")
    rules = rules_for(filter, table.schema_name, table.name)
    if rules.leaves_rows:
        return TableRepair(name, refused="its filter leaves rows in the sink that the source does not have")
    try:
        schema = snapshot.schema(table)
        selected = rules.select(schema)
        sides: Iterable[tuple[Rows, Rows]]
        if where:
            sides = [matching_sides(snapshot, sink, table, schema, filter, where, rows_max=_ROWS_MAX)]
        else:
            sides = diff.differing_sides(snapshot, sink, table, schema, filter, pushed)
        parts = [
            part for source, stored in sides if (part := _changes(selected, source, stored, table.key)) is not None
        ]
    except TooManyRowsError:
        return TableRepair(name, refused=f"more than {_ROWS_MAX:,} rows match; narrow the condition, or {resync}")
    except (*TABLE_READ_ERRORS, _UnfitError) as error:
        return TableRepair(name, refused=f"{error}; {resync}" if isinstance(error, _UnfitError) else str(error))
    if not parts:
        return TableRepair(name)
    if sum(len(part) for part in parts) > _ROWS_MAX:
        return TableRepair(name, refused=f"more than {_ROWS_MAX:,} keys differ; {resync}")
    changes = _joined(parts, int(snapshot.ts))
    if not is_trial:
        sink.repair(RowRepair(table, tuple(spans), snapshot.ts, changes))
    return TableRepair(name, tuple(_named(changes, table.key)))


class _UnfitError(Exception):
    """The rows of a table cannot be repaired."""


def _changes(schema: TableSchema, source: Rows, stored: Rows, key: Sequence[str]) -> Changes | None:
    """What makes ``stored`` equal to ``source``; None where they are equal.

    :raises _UnfitError: too many rows differ, or a key is there twice.
    """
    ours, theirs = diff.differing_rows(source, stored, key, rows_max=_ROWS_MAX)
    if ours is None or theirs is None:
        raise _UnfitError(f"rows of more than {_ROWS_MAX:,} keys may differ")
    both = pa.concat_tables([side for side in (ours[0], theirs[0]) if side.num_columns] or [pa.table({})])
    if not both.num_rows:
        return None
    both = both.combine_chunks()
    split, row = ours[0].num_rows, np.concatenate([ours[1], theirs[1]])
    code = key_codes(both.select(list(key)))
    count = int(code.max()) + 1
    in_source, in_sink = (np.bincount(part, minlength=count) for part in (code[:split], code[split:]))
    if (in_source > 1).any() or (in_sink > 1).any():
        raise _UnfitError("a key of it is there more than once")
    ours_at, theirs_at = np.full(count, -1), np.full(count, -1)
    ours_at[code[:split]] = np.arange(split)
    theirs_at[code[split:]] = np.arange(split, len(code))
    is_equal = (in_source == in_sink) & (row[ours_at] == row[theirs_at])
    (wrong,) = np.nonzero(~is_equal)
    if not len(wrong):
        return None
    op = np.where(in_sink[wrong] == 0, INSERT, np.where(in_source[wrong] == 0, DELETE, UPDATE)).astype(np.int8)
    after, before = (_rows_at(both, at[wrong]) for at in (ours_at, theirs_at))
    zeros = np.zeros(len(wrong), np.int64)
    kind = np.where(op == INSERT, BEFORE_NONE, BEFORE_FULL).astype(np.int8)
    return Changes(schema, op, zeros, zeros, after, before, kind)


def _rows_at(rows: pa.Table, at: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """NULLs where there is no row."""
    taken = rows.take(pa.array(at, mask=at < 0)).combine_chunks()
    [batch, *_] = taken.to_batches() or [pa.RecordBatch.from_pylist([], rows.schema)]
    return batch


def _joined(parts: Sequence[Changes], ts: int) -> Changes:
    count = sum(len(part) for part in parts)
    befores = [part.before for part in parts if part.before is not None]
    return Changes(
        parts[0].schema,
        np.concatenate([part.op for part in parts]),
        np.full(count, ts, np.int64),
        later_seq(int(time.time() * 1000)) + np.arange(count, dtype=np.int64),
        pa.Table.from_batches([part.after for part in parts]).combine_chunks().to_batches()[0],
        pa.Table.from_batches(befores).combine_chunks().to_batches()[0],
        np.concatenate([part.before_kind for part in parts]),
    )


def _named(changes: Changes, key: Sequence[str]) -> "list[RepairedKey]":
    assert changes.before is not None
    is_delete = changes.op == DELETE
    keys = [
        pc.if_else(pa.array(is_delete), changes.before.column(name), changes.after.column(name)).to_pylist()
        for name in key
    ]
    differs = {
        name: _differs(changes.after.column(name), changes.before.column(name)) for name in changes.after.schema.names
    }
    found = []
    for place, values in enumerate(zip(*keys, strict=True)):
        what = _WHAT[int(changes.op[place])]
        columns = tuple(name for name, mask in differs.items() if mask[place]) if what == UPDATED else ()
        found.append(RepairedKey({name: str(value) for name, value in zip(key, values, strict=True)}, what, columns))
    return found


def _differs(ours: pa.Array, theirs: pa.Array) -> npt.NDArray[np.bool_]:
    if pa.types.is_floating(ours.type):
        ours, theirs = _bits(ours), _bits(theirs)
    differs = pc.fill_null(pc.not_equal(ours, theirs), True).to_numpy(zero_copy_only=False)
    is_null = (pc.is_null(column).to_numpy(zero_copy_only=False) for column in (ours, theirs))
    found: npt.NDArray[np.bool_] = differs & ~np.logical_and(*is_null)
    return found


def _bits(floats: pa.Array) -> pa.Array:
    """Return what is the same of any two NaN, and of the two zeros is not."""
    is_nan = pc.fill_null(pc.is_nan(floats), False)
    plain = pc.if_else(is_nan, pa.scalar(float("nan"), floats.type), floats)
    return plain.view(pa.int64() if floats.type.bit_width == 64 else pa.int32())
