"""Stored values: read from Delta data files what an update left out (``agent.sinks.common.left_out``)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from agent.rows.fold import NetChanges
from agent.sinks.common.left_out import IncompleteRows, match
from agent.sinks.delta.table.deletion_vectors import Positions
from agent.sinks.delta.table.layout import FileLayout
from agent.sinks.delta.table.schema import FORMS
from reactor.records.tables.table import TableRecord


@dataclass(frozen=True, slots=True, eq=False)
class ReplacedRows:
    """Rows of one data file that go: at which ``places`` (they rise), and with which ``keys``. ``layout``: the
    file's."""

    path: str
    places: Positions
    keys: pa.Table
    layout: FileLayout = field(default_factory=FileLayout)

    def values(self, at: Positions, columns: pa.Schema) -> Iterator[tuple[Positions, pa.Table]]:
        """``columns`` of the rows numbered ``at`` (they rise), a row group at a time, with the numbers that it has; a
        column that the file lacks is as in its partition, or NULL."""
        begin = first = 0
        places = self.places[at]
        with pq.ParquetFile(self.path) as parquet:
            names = self.layout.columns_in(parquet.schema_arrow.names, columns.names)
            for group in range(parquet.num_row_groups):
                end = begin + parquet.metadata.row_group(group).num_rows
                last = int(np.searchsorted(places, end))
                if last > first:
                    rows = parquet.read_row_group(group, columns=names, use_threads=False)
                    # converted first: texts that delta-rs has written are views, which cannot be taken
                    found = pa.table([self.layout.column(rows, item) for item in columns], schema=columns)
                    yield at[first:last], found.take(pa.array(places[first:last] - begin))
                begin, first = end, last


def fill(
    upserts: pa.Table,
    net: NetChanges,
    replaced: Iterable[ReplacedRows],
    table: TableRecord,
    *,
    versions_of: Sequence[str] = (),
) -> pa.Table:
    """``upserts`` (those of ``net``, as they are written) with what the table holds of what they leave out.

    :raises LeftOutValueError: the table lacks a row.
    """
    incomplete = IncompleteRows.of(upserts, net, versions_of=versions_of)
    wanted = incomplete.stored_keys(net, table.key, forms=FORMS)

    def found() -> Iterator[tuple[Positions, pa.Table]]:
        for item in replaced:
            which = match(wanted, item.keys)
            for at, values in item.values(np.flatnonzero(which >= 0), incomplete.columns):
                yield which[at], values

    return incomplete.filled(found(), table)
