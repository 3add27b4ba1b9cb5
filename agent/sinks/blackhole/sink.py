"""Blackhole sink: counts changes and discards them, for measuring everything in front of a sink.

It records nothing, so ``committed_ts`` is None ("no record": the span's checkpoint in etcd is the only position), any
``from_ts`` is accepted, and a change that is delivered twice is discarded twice.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from agent.ports.capabilities import Capabilities
from agent.ports.sink import FlushResult, FlushTask, SpanRepartition, StagedFile, Visible
from agent.rows.changes import Changes
from agent.rows.schema import TableSchema
from agent.rows.schema_change import SchemaChange
from reactor.ids import TableSpan, Ts
from reactor.records.tables.table import TableRecord


class BlackholeSink:
    """``agent.ports.sink.Sink`` without storage."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities

    def writer(self) -> "BlackholeSink":
        return self

    def check(self, tables: Sequence[TableRecord]) -> None:
        """Always succeeds."""

    def unfit(self, tables: Sequence[TableRecord]) -> dict[int, str]:
        return {}

    def committed_ts(self, table: TableRecord, span: TableSpan) -> Ts | None:
        return None

    def visible(self, table: TableRecord, spans: Sequence[TableSpan]) -> Visible:
        return Visible("", Ts(0))

    def repartition(self, table: TableRecord, order: SpanRepartition) -> Ts:
        return order.ts

    def stage(self, table: TableRecord, chunk_id: str, batches: Iterator[pa.RecordBatch], ts: Ts) -> list[StagedFile]:
        rows = sum(batch.num_rows for batch in batches)
        return [StagedFile(f"blackhole:{chunk_id}", rows, 0)] if rows else []

    def load(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema, files: Sequence[StagedFile]) -> None:
        """Does nothing: no rows were stored."""

    def alter(self, changes: Sequence[SchemaChange]) -> None:
        """Does nothing: there are no tables."""

    def write(self, task: FlushTask, changes: Iterable[Changes]) -> FlushResult:
        rows, bytes_, commit_time = 0, 0, 0.0
        for part in changes:
            rows += len(part)
            bytes_ += part.after.nbytes
            commit_time = max(commit_time, part.commit_time)
        return task.result(rows=rows, bytes=bytes_, commit_time=commit_time)

    def commit(self, tasks: Sequence[FlushTask], results: Sequence[FlushResult]) -> list[FlushResult]:
        return [result if result.error else replace(result, committed=True) for result in results]
