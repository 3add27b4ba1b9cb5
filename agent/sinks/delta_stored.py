"""Values that only the table has: what an update left out is looked up in the row that it replaces, and only there.

PostgreSQL leaves out large values that an update has not changed, MySQL and MariaDB (``binlog_row_image=MINIMAL``) all
columns that it has not.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent.change_rows import Mask
from agent.changes import NetChanges, key_codes
from agent.sinks import delta_schema
from agent.sinks.delta_vectors import Positions


@dataclass(frozen=True, slots=True, eq=False)
class ReplacedRows:
    """Rows of one data file that go: at which ``places`` (they rise), and with which ``keys``."""

    path: str
    places: Positions
    keys: pa.Table

    def values(self, at: Positions, columns: pa.Schema) -> Iterator[tuple[Positions, pa.Table]]:
        """``columns`` of the rows numbered ``at`` (they rise), a row group at a time, with the numbers that it has; a
        column that the file lacks is NULL."""
        begin = first = 0
        places = self.places[at]
        with pq.ParquetFile(self.path) as parquet:
            names = [name for name in columns.names if name in parquet.schema_arrow.names]
            for group in range(parquet.num_row_groups):
                end = begin + parquet.metadata.row_group(group).num_rows
                last = int(np.searchsorted(places, end))
                if last > first:
                    rows = parquet.read_row_group(group, columns=names, use_threads=False)
                    rows = rows.take(pa.array(places[first:last] - begin))
                    yield at[first:last], pa.table([_column(rows, item) for item in columns], schema=columns)
                begin, first = end, last


def _column(rows: pa.Table, wanted: pa.Field) -> pa.ChunkedArray | pa.Array:
    if wanted.name not in rows.schema.names:
        return pa.nulls(rows.num_rows, wanted.type)
    return rows.column(wanted.name).cast(wanted.type)


@dataclass(frozen=True, slots=True, eq=False)
class IncompleteRows:
    """Upserts as they are written, of which ``rows`` (their numbers) leave out a value of a column in ``kept``."""

    upserts: pa.Table
    kept: dict[str, Mask]
    rows: Positions

    @classmethod
    def of(cls, upserts: pa.Table, net: NetChanges) -> Self:
        """``upserts`` are those of ``net``."""
        (rows,) = np.nonzero(np.logical_or.reduce(list(net.kept.values())))
        return cls(upserts, net.kept, rows)

    @property
    def columns(self) -> pa.Schema:
        return pa.schema([self.upserts.schema.field(name) for name in self.kept])

    def stored_keys(self, net: NetChanges, key: Sequence[str]) -> pa.Table:
        """Under which keys the table has ``rows``."""
        keys = self.upserts.select(list(key)) if net.origin is None else delta_schema.delta_table(net.origin)
        return keys.take(pa.array(self.rows))

    def filled(self, found: Iterable[tuple[Positions, pa.Table]]) -> pa.Table:
        """Whole rows. ``found``: which of ``rows``, and the table's values of ``columns``; NULL where none are."""
        rows, pieces = [np.empty(0, np.int64)], [self.columns.empty_table()]
        for at, values in found:
            rows.append(self.rows[at])
            pieces.append(values)
        source = np.full(self.upserts.num_rows, -1, np.int64)
        source[np.concatenate(rows)] = np.arange(sum(map(len, rows)))
        values, at = pa.concat_tables(pieces), pa.array(source, mask=source < 0)
        upserts = self.upserts
        for name, is_left_out in self.kept.items():
            stored = values.column(name).combine_chunks().take(at)
            column = pc.if_else(pa.array(is_left_out), stored, upserts.column(name))
            upserts = upserts.set_column(upserts.schema.get_field_index(name), upserts.schema.field(name), column)
        return upserts


def fill(upserts: pa.Table, net: NetChanges, replaced: Iterable[ReplacedRows], *, key: Sequence[str]) -> pa.Table:
    """``upserts`` (those of ``net``, as they are written) with what the table holds of what they leave out; NULL where
    it holds no such row."""
    incomplete = IncompleteRows.of(upserts, net)
    wanted = incomplete.stored_keys(net, key)

    def found() -> Iterator[tuple[Positions, pa.Table]]:
        for item in replaced:
            which = match(wanted, item.keys)
            for at, values in item.values(np.flatnonzero(which >= 0), incomplete.columns):
                yield which[at], values

    return incomplete.filled(found())


def match(wanted: pa.Table, keys: pa.Table) -> Positions:
    """For each of ``keys``, which row of ``wanted`` it is, or -1."""
    codes = key_codes(pa.concat_tables([wanted, keys.cast(wanted.schema)]))
    row = np.full(int(codes.max(initial=0)) + 1, -1, np.int64)
    row[codes[: wanted.num_rows]] = np.arange(wanted.num_rows)
    return row[codes[wanted.num_rows :]]
