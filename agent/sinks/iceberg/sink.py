"""Iceberg sink: a table for each source table in an Iceberg catalog, written without a JVM.

pyiceberg opens catalogs and reads and writes metadata; data files, position deletes and commits are ours. How both
write modes are exactly-once:

- *changelog*, and tables without a key: executors write files that no snapshot names yet; the capture commits those of
  all tasks of a table in one step with the spans' records (``append``).
- *upsert*: the executor folds the changes to one row per key and commits them together with the record
  (``upsert.merge``).

A result without error that is not ``committed`` after ``commit`` had nothing to write, and its record has not changed.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from agent.errors import TableNameError
from agent.ports.checksums import ALL_KEYS, KeyRange
from agent.ports.sink import (
    FlushResult,
    FlushTask,
    Maintained,
    RowRepair,
    SinkScope,
    SinkUri,
    SpanRepartition,
    StagedFile,
    TableCopy,
    Visible,
)
from agent.ports.table_files import TableFiles
from agent.rows.changes import Changes
from agent.rows.schema import TableSchema
from agent.rows.schema_change import SchemaChange
from agent.sinks.common import layouts
from agent.sinks.common.commits import Work, commit_results, table_by_table
from agent.sinks.common.layouts import Wanted
from agent.sinks.common.row_marks import Marks
from agent.sinks.common.span_records import RETIRED, refuse_retired
from agent.sinks.iceberg import append, load, read, row_repair
from agent.sinks.iceberg.alter import leaving, repartition, replacement
from agent.sinks.iceberg.alter.alter import Alterer
from agent.sinks.iceberg.options import CAPABILITIES, IcebergOptions
from agent.sinks.iceberg.table.catalogs.lake import Lake, TablePlace
from agent.sinks.iceberg.table.files import TableFile
from agent.sinks.iceberg.table.schema import FORMS
from agent.sinks.iceberg.table.state import State, TableOwner, check_history
from agent.sinks.iceberg.upkeep import upkeep
from agent.sinks.iceberg.upsert import merge
from reactor.ids import TableSpan, Ts
from reactor.records.tables.table import TableRecord


class IcebergSink:
    """``agent.ports.sink.Sink`` over Iceberg tables."""

    capabilities = CAPABILITIES

    def __init__(self, uri: SinkUri, scope: SinkScope) -> None:
        options = IcebergOptions.model_validate(uri.options)
        self._retention_s = options.retention_seconds
        self._lake = Lake.of(uri)
        self._owner = TableOwner(scope.changefeed, scope.mode, Marks.of(options, scope.mode))
        self._layouts = scope.layouts

    def writer(self) -> "IcebergSink":
        return self

    def place(self, table: TableRecord) -> TablePlace:
        """Return the table's place in the catalog.

        :raises TableNameError: the catalog cannot have it.
        """
        for _, reason in self._lake.unfit([table]):
            raise TableNameError(reason)
        return self._lake.place(table)

    def _wanted(self, table: TableRecord) -> Wanted:
        found = layouts.wanted(self._layouts, table.schema_name, table.name)
        return load.wanted_of(self._owner, found)

    def check_layout(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema) -> None:
        load.check_layout(self._owner, self._wanted(table), arrow, table=schema.qualified_name)

    def check(self, tables: Sequence[TableRecord]) -> None:
        self._lake.check()
        unfit = self.unfit(tables)
        for record in tables:
            if record.table_id not in unfit:
                place = self.place(record)
                table = place.open()
                if table is not None:
                    self._owner.refuse_foreign(table, place)

    def unfit(self, tables: Sequence[TableRecord]) -> dict[int, str]:
        return {table.table_id: reason for table, reason in self._lake.unfit(tables)}

    def committed_ts(self, table: TableRecord, span: TableSpan) -> Ts | None:
        place = self.place(table)
        opened = place.open()
        if opened is None and place.lake.is_away():
            raise place.lake.away_error()
        if opened is None:
            return None
        recorded = State.of(opened).recorded_ts(span)
        refuse_retired(recorded, table, span)
        if recorded is not None:
            check_history(opened, place)
        return recorded

    def visible(self, table: TableRecord, spans: Sequence[TableSpan]) -> Visible:
        """Version and records are of one version of the table."""
        opened = self.place(table).opened()
        recorded = (State.of(opened).recorded_ts(span) for span in spans)
        known = (ts for ts in recorded if ts is not None and ts != RETIRED)
        return Visible(str(opened.metadata.current_snapshot_id or ""), max(known, default=Ts(0)))

    def stage(self, table: TableRecord, chunk_id: str, batches: Iterator[pa.RecordBatch], ts: Ts) -> list[StagedFile]:
        return load.stage(self.place(table), self._owner, self._wanted(table), chunk_id, batches, ts)

    def load(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema, files: Sequence[StagedFile]) -> None:
        load.load(self.place(table), self._owner, self._wanted(table), table, schema, arrow, _parsed(files))

    def replace(self, copy: TableCopy) -> None:
        replacement.replace(self.place(copy.table), self._owner, self._wanted(copy.table), copy, _parsed(copy.files))

    def repartition(self, table: TableRecord, order: SpanRepartition) -> Ts:
        return repartition.repartition(self.place(table), table, order)

    def maintain(self, table: TableRecord) -> Maintained:
        return upkeep.maintain(self.place(table), retention_s=self._retention_s)

    def files(self, table: TableRecord) -> TableFiles:
        return upkeep.files(self.place(table))

    def mark_left(self, table: TableRecord, ts: Ts, *, time: float) -> None:
        leaving.mark_left(self.place(table), self._owner, table.table_id, ts, time)

    def repair(self, order: RowRepair) -> None:
        row_repair.repair(self.place(order.table), self._owner, order)

    def alter(self, changes: Sequence[SchemaChange]) -> None:
        Alterer(self._lake, self._owner, self._wanted).alter(changes)

    def read_rows(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
        return self.read_range(table, schema, arrow, ALL_KEYS)

    @property
    def is_read_by_ranges(self) -> bool:
        return not self._owner.is_changelog

    def read_range(
        self, table: TableRecord, schema: TableSchema, arrow: pa.Schema, keys: KeyRange
    ) -> Iterator[pa.RecordBatch]:
        return read.read_rows(self.place(table), schema, arrow, key=table.key, keys=keys)

    def as_stored(self, rows: pa.RecordBatch) -> pa.Table:
        return FORMS.table(rows)

    def write(self, task: FlushTask, changes: Iterable[Changes]) -> FlushResult:
        place = self.place(task.table)
        if task.table.key and not self._owner.is_changelog:
            return merge.write(place, task, changes, marks=self._owner.marks)
        return append.write(place, task, changes, self._owner)

    def commit(self, tasks: Sequence[FlushTask], results: Sequence[FlushResult]) -> list[FlushResult]:
        def settle(table: TableRecord, work: list[Work]) -> list[FlushResult]:
            place = self.place(table)
            settled = commit_results(work, partial(append.commit_work, place))
            if any(result.committed for result in settled):
                upkeep.begin_if_due(place, retention_s=self._retention_s)
            return settled

        return table_by_table(tasks, results, settle)


def _parsed(files: Sequence[StagedFile]) -> list[TableFile]:
    return [TableFile.from_json(file.stats) for file in files]
