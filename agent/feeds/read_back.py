"""Read back: writes the source's rows of left-out updates, which the sink lacks, so that a held table can continue.

The rows are those of a snapshot at P, and each span is written in one commit that is refused if the span has moved
since its log was read. The spans' records stay where they are: the table continues there, and from P on its rows are
the source's. Until then it has rows of several moments, as a table has whose copy is in its place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import structlog

from agent.feeds.left_out_keys import key_log, plain
from agent.filter.events import rules_for
from agent.flush.task import read_changes
from agent.ports.sink import FeedContext, FlushTask, Repairs, RowRepair, Sink
from agent.ports.source import ComparisonSnapshot, ReadsSome
from agent.rows.batches import SegmentRef
from agent.rows.changes import BEFORE_NONE, UPDATE, Changes
from agent.rows.schema import TableSchema
from agent.rows.spans import keep_span
from agent.sources.registry import arrow_schema
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import FilterConfig, SinkMode
from reactor.records.tables.table import TableRecord

_log = structlog.get_logger()

#: rows of one span that are read
_ROWS_MAX = 200_000
#: changes of one span whose keys are in memory at a time
_CHANGES_MAX = 2_000_000


@dataclass(frozen=True, slots=True)
class HeldLog:
    """The log of a held table in ``(from_ts, ts]``, and the segments with its changes."""

    from_ts: Ts
    ts: Ts
    segments: tuple[SegmentRef, ...]


def read_back(
    snapshot: ComparisonSnapshot,
    sink: Sink,
    table: TableRecord,
    spans: Sequence[TableSpan],
    filter: FilterConfig,
    log: HeldLog,
) -> int:
    """Write the source's rows; return how many, 0 if none can stand in for what the sink lacks. The table has one
    schema from its position to the snapshot's Ts, which is ``log.ts``.

    :raises SourceError: the source cannot be read, or the snapshot is gone.
    :raises LogError: the log cannot be read.
    :raises SinkError: a span has moved, or cannot be written.
    """
    if not isinstance(sink, Repairs) or not isinstance(snapshot, ReadsSome):
        return _without(table, "source or sink have no single rows")
    schema = snapshot.schema(table)
    selected = rules_for(filter, table.schema_name, table.name).select(schema)
    columns = arrow_schema(selected)
    orders = []
    for span in spans:
        recorded = sink.committed_ts(table, span)
        if recorded is None:
            return _without(table, "the sink has no record of it")
        # below the log's begin there is nothing that the sink lacks, and it records no flush without rows
        keys = _wanted(table, span, filter, log, max(recorded, log.from_ts), columns)
        if keys is None or keys.num_rows > _ROWS_MAX:
            return _without(table, "there was a schema change or a truncate meanwhile, or there are too many changes")
        if keys.num_rows:
            read = [batch.select(columns.names) for batch in snapshot.read_keys(schema, keys)]
            for rows in pa.Table.from_batches(read, columns).combine_chunks().to_batches():
                changes = keep_span(stand_ins(selected, rows, recorded), span, key=table.key)
                orders.append(RowRepair(table, (span,), recorded, changes))
    for order in orders:
        if len(order.changes):
            sink.repair(order)
    return sum(len(order.changes) for order in orders)


def _without(table: TableRecord, reason: str) -> int:
    _log.info("rows cannot be read back", table=f"{table.schema_name}.{table.name}", reason=reason)
    return 0


def _wanted(
    table: TableRecord, span: TableSpan, filter: FilterConfig, log: HeldLog, from_ts: Ts, columns: pa.Schema
) -> pa.Table | None:
    """Return the keys to read; None if the log does not tell."""
    if from_ts >= log.ts:
        return pa.table({})
    feed = FeedContext("", "", SinkMode.UPSERT, filter)
    task = FlushTask(feed, span, table, log.segments, from_ts, log.ts)
    has_one_schema = True

    def parts() -> Iterator[Changes]:
        nonlocal has_one_schema
        for changes in read_changes(task):
            has_one_schema &= plain(changes.after.schema) == plain(columns)
            yield changes

    found = key_log(parts(), table.key, changes_max=_CHANGES_MAX)
    return found.wanted() if found is not None and has_one_schema else None


def stand_ins(schema: TableSchema, rows: pa.RecordBatch, ts: Ts) -> Changes:
    """Return rows as updates: the sink may have some of them."""
    count = rows.num_rows
    op, kind = np.full(count, UPDATE, np.int8), np.full(count, BEFORE_NONE, np.int8)
    return Changes(schema, op, np.full(count, ts, np.int64), np.arange(count, dtype=np.int64), rows, None, kind)
