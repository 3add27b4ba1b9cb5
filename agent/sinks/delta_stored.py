"""Values that only the table has: what an update left out is looked up in the row that it replaces, and only there.

PostgreSQL leaves out large values that an update has not changed, MySQL and MariaDB (``binlog_row_image=MINIMAL``) all
columns that it has not.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent.changes import NetChanges, key_codes
from agent.sinks import delta_schema
from agent.sinks.delta_vectors import Positions


@dataclass(frozen=True, slots=True, eq=False)
class ReplacedRows:
    """Rows of one data file that go: at which ``places`` (they rise), and with which ``keys``."""

    path: str
    places: Positions
    keys: pa.Table


def fill(upserts: pa.Table, net: NetChanges, replaced: Iterable[ReplacedRows], *, key: Sequence[str]) -> pa.Table:
    """``upserts`` (those of ``net``, as they are written) with what the table holds of what they leave out; NULL where
    it holds no such row."""
    (waiting,) = np.nonzero(np.logical_or.reduce(list(net.kept.values())))
    stored_keys = upserts.select(list(key)) if net.origin is None else delta_schema.delta_table(net.origin)
    wanted = stored_keys.take(pa.array(waiting))
    values = pa.schema([upserts.schema.field(name) for name in net.kept])
    pieces, rows = [values.empty_table()], [np.empty(0, np.int64)]
    for item in replaced:
        match = _match(wanted, item.keys)
        pieces.append(_read(item.path, item.places[match >= 0], values))
        rows.append(waiting[match[match >= 0]])
    return _replaced(upserts, net, pa.concat_tables(pieces), np.concatenate(rows))


def _match(wanted: pa.Table, keys: pa.Table) -> Positions:
    """For each of ``keys``, which row of ``wanted`` it is, or -1."""
    codes = key_codes(pa.concat_tables([wanted, keys.cast(wanted.schema)]))
    row = np.full(int(codes.max(initial=0)) + 1, -1, np.int64)
    row[codes[: wanted.num_rows]] = np.arange(wanted.num_rows)
    return row[codes[wanted.num_rows :]]


def _read(path: str, places: Positions, values: pa.Schema) -> pa.Table:
    """Columns of the rows at ``places``, from the row groups that have any; a column that the file lacks is NULL."""
    found, begin = [values.empty_table()], 0
    with pq.ParquetFile(path) as parquet:
        names = [name for name in values.names if name in parquet.schema_arrow.names]
        for group in range(parquet.num_row_groups):
            end = begin + parquet.metadata.row_group(group).num_rows
            at = places[slice(*np.searchsorted(places, (begin, end)))] - begin
            if len(at):
                rows = parquet.read_row_group(group, columns=names, use_threads=False).take(pa.array(at))
                columns = [
                    rows.column(item.name).cast(item.type) if item.name in names else pa.nulls(len(at), item.type)
                    for item in values
                ]
                found.append(pa.table(columns, schema=values))
            begin = end
    return pa.concat_tables(found)


def _replaced(upserts: pa.Table, net: NetChanges, values: pa.Table, rows: Positions) -> pa.Table:
    """``values`` of ``rows``, in the columns that each leaves out."""
    source = np.full(upserts.num_rows, -1, np.int64)
    source[rows] = np.arange(len(rows))
    at = pa.array(source, mask=source < 0)
    for name, is_left_out in net.kept.items():
        stored = values.column(name).combine_chunks().take(at)
        column = pc.if_else(pa.array(is_left_out), stored, upserts.column(name))
        upserts = upserts.set_column(upserts.schema.get_field_index(name), upserts.schema.field(name), column)
    return upserts
