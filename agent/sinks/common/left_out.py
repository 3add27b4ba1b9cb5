"""Left-out values: completes the rows of updates that left values out, with what the replaced row has.

PostgreSQL leaves out large values that an update has not changed, MySQL and MariaDB (``binlog_row_image=MINIMAL``) all
columns that it has not. A table that lacks the row (a filter ignored its insert, mode ``incremental`` began later, the
row was lost) cannot get it right: it is held, as NULL would be a value that the source never had.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import RESYNC, LeftOutValueError
from agent.ports.sink import FlushTask
from agent.rows.fold import NetChanges, key_codes
from agent.rows.unify import Mask
from agent.sinks.common.forms import Forms
from agent.sinks.common.row_marks import DELETED
from reactor.records.tables.table import TableRecord

Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class IncompleteRows:
    """Upserts as they are written. ``rows``: numbers of the rows that lack a value of a column in ``kept``. ``needed``:
    rows whose missing values are in the table alone. ``same``: for each row, the one of ``rows`` whose values it takes:
    a row that got another key and its deleted row, which stays, are one row of the table."""

    upserts: pa.Table
    kept: dict[str, Mask]
    rows: Indexes
    needed: Mask | None
    same: Indexes

    @classmethod
    def of(cls, upserts: pa.Table, net: NetChanges, *, versions_of: Sequence[str] = ()) -> Self:
        """``upserts``: a row for each of ``net.upserts``. ``versions_of``: the key, if it may have several rows."""
        (rows,) = np.nonzero(np.logical_or.reduce(list(net.kept.values())))
        same = np.arange(upserts.num_rows)
        shared = net.origin if net.deleted is not None else None
        if versions_of:
            shared = net.upserts.select(list(versions_of)) if net.origin is None else net.origin
        if shared is not None:
            codes = key_codes(shared.take(pa.array(rows)))
            _, first, which = np.unique(codes, return_index=True, return_inverse=True)
            same[rows] = rows[first][which]
            rows = rows[np.sort(first)]
        return cls(upserts, net.kept, rows, net.needed, same)

    @property
    def columns(self) -> pa.Schema:
        """What is read of the table's rows."""
        marks = [DELETED] if DELETED in self.upserts.schema.names else []
        return pa.schema([self.upserts.schema.field(name) for name in (*self.kept, *marks)])

    def stored_keys(self, net: NetChanges, key: Sequence[str], *, forms: Forms) -> pa.Table:
        """Under which keys the table has ``rows``."""
        keys = self.upserts.select(list(key)) if net.origin is None else forms.table(net.origin)
        return keys.take(pa.array(self.rows))

    def filled(self, found: Iterable[tuple[Indexes, pa.Table]], table: TableRecord) -> pa.Table:
        """Whole rows. ``found``: which of ``rows``, and the table's values of ``columns``.

        :raises LeftOutValueError: the table lacks a row.
        """
        rows, pieces = [np.empty(0, np.int64)], [self.columns.empty_table()]
        for at, values in found:
            rows.append(self.rows[at])
            pieces.append(values)
        source = np.full(self.upserts.num_rows, -1, np.int64)
        source[np.concatenate(rows)] = np.arange(sum(map(len, rows)))
        source = source[self.same]
        values, at = pa.concat_tables(pieces), pa.array(source, mask=source < 0)
        if self.needed is not None:
            is_missing = source < 0
            if DELETED in values.schema.names:  # the row of that key was another
                is_missing |= np.asarray(pc.fill_null(values.column(DELETED).combine_chunks().take(at), False))
            refuse_missing(self.upserts, self.kept, self.needed & is_missing, table)
        upserts = self.upserts
        for name, is_left_out in self.kept.items():
            stored = values.column(name).combine_chunks().take(at)
            column = pc.if_else(pa.array(is_left_out), stored, upserts.column(name))
            upserts = upserts.set_column(upserts.schema.get_field_index(name), upserts.schema.field(name), column)
        return upserts


def match(wanted: pa.Table, keys: pa.Table) -> Indexes:
    """For each of ``keys``, which row of ``wanted`` it is, or -1."""
    codes = key_codes(pa.concat_tables([wanted, keys.cast(wanted.schema)]))
    row = np.full(int(codes.max(initial=0)) + 1, -1, np.int64)
    row[codes[: wanted.num_rows]] = np.arange(wanted.num_rows)
    return row[codes[wanted.num_rows :]]


def equal(left: pa.Table, right: pa.Table) -> Mask:
    """Compare row by row."""
    equal = np.ones(left.num_rows, np.bool_)
    for ours, theirs in zip(left.columns, right.columns, strict=True):
        same = pc.fill_null(pc.equal(ours, theirs), pc.and_(ours.is_null(), theirs.is_null()))
        if pa.types.is_floating(ours.type):
            same = pc.or_(same, pc.and_(pc.is_nan(ours), pc.is_nan(theirs)))
        equal &= same.to_numpy()
    return equal


def refuse_lost(net: NetChanges, task: FlushTask) -> None:
    """:raises LeftOutValueError: an update left values out that the table cannot have, or that cannot be distinguished
    from those of another row: while a snapshot was read in several goes, a key may have been two rows'."""
    if net.lost is not None:
        refuse_missing(net.upserts, net.kept, net.lost, task.table)
    if net.needed is not None and net.origin is not None and task.from_ts < task.table.consistent_ts:
        both = key_codes(pa.concat_tables([net.origin, net.upserts.select(net.origin.schema.names)]))
        is_moved = both[: len(net.needed)] != both[len(net.needed) :]
        refuse_missing(net.upserts, net.kept, net.needed & is_moved, task.table)


def refuse_missing(upserts: pa.Table, kept: Mapping[str, Mask], is_missing: Mask, table: TableRecord) -> None:
    """:raises LeftOutValueError: if there are any."""
    (at,) = np.nonzero(is_missing)
    if not len(at):
        return
    [key] = upserts.select(list(table.key)).slice(at[0], 1).to_pylist()
    name = f"{table.schema_name}.{table.name}"
    columns = ", ".join(column for column, mask in kept.items() if mask[at[0]])
    row = ", ".join(f"{column}={value!r}" for column, value in key.items())[:200]
    raise LeftOutValueError(
        f"an update of {name} left out {columns}, and the sink has no row of {row} to take it from (an event filter, "
        f"mode incremental or an earlier loss has kept it away); {RESYNC}; let the source log whole rows to prevent it "
        "(REPLICA IDENTITY FULL, binlog_row_image=FULL)"
    )
