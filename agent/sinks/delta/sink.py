"""Delta sink: a table for each source table at ``{directory}/{schema}/{table}``, written with delta-rs, without a JVM.

How both write modes are exactly-once:

- *changelog*, and tables without a key: executors write files that are not visible yet (``table.files``); the capture
  commits those of all tasks of a table in one step with the spans' records (``table.commit``).
- *upsert*: the executor folds the changes to one row per key and commits them together with the record
  (``upsert.merge``).

A result without error that is not ``committed`` after ``commit`` had nothing to write, and its record has not changed.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from uuid import uuid4

import pyarrow as pa
from deltalake import Schema

from agent.errors import RESYNC, CopyLostError, SinkUriError, TableForeignError, TableHeldError
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
from agent.rows.unify import after_truncate
from agent.sinks.common import changelog, layouts
from agent.sinks.common.commits import Work, commit_results, table_by_table
from agent.sinks.common.flush_rows import RowCounts, refuse_unless_inserts
from agent.sinks.common.forms import missing_fields
from agent.sinks.common.row_marks import Marks
from agent.sinks.common.span_records import RETIRED, refuse_retired
from agent.sinks.delta import read, row_repair
from agent.sinks.delta.alter import creation, dropping, repartition, replacement
from agent.sinks.delta.alter.alter import Alterer
from agent.sinks.delta.alter.creation import NewTable
from agent.sinks.delta.alter.replacement import Replacement
from agent.sinks.delta.options import CAPABILITIES, DeltaOptions
from agent.sinks.delta.table import change_feed, history, partitions
from agent.sinks.delta.table import commit as delta_commit
from agent.sinks.delta.table import files as delta_files
from agent.sinks.delta.table import log as delta_log
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table import schema as delta_schema
from agent.sinks.delta.table.errors import away_error
from agent.sinks.delta.table.files import TRUNCATION, DataFile
from agent.sinks.delta.table.lake import Lake
from agent.sinks.delta.table.layout import Layout
from agent.sinks.delta.table.log import TableLog
from agent.sinks.delta.table.mapping import NO_MAPPING, ColumnNames
from agent.sinks.delta.table.place import TableOwner, TablePlace
from agent.sinks.delta.upkeep import upkeep
from agent.sinks.delta.upsert import history as versions
from agent.sinks.delta.upsert import merge
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord

_STAGED = "snapshot-"


class DeltaSink:
    """``agent.ports.sink.Sink`` over Delta tables."""

    def __init__(self, uri: SinkUri, scope: SinkScope) -> None:
        options = DeltaOptions.model_validate(uri.options)
        self._retention_s = options.retention_s
        options.refuse_feed(scope.mode)
        self._has_feed = options.has_feed
        self._takes_vectors = options.takes_vectors
        self._maps_columns = options.maps_columns
        if uri.is_local and options.storage:
            known = ", ".join(sorted(DeltaOptions.model_fields))
            raise SinkUriError(f"unknown option {min(options.storage)!r}: {uri.scheme}:// knows {known}")
        self._options = options.storage
        self._lake = Lake(uri.location, uri.is_local, options.storage)
        self._owner = TableOwner(scope.changefeed, scope.mode, Marks.of(options, scope.mode))
        self._layouts = scope.layouts
        if scope.mode is SinkMode.HISTORY:
            options.refuse_history()
            self._takes_vectors = True

    capabilities = CAPABILITIES

    def writer(self) -> "DeltaSink":
        return self

    @property
    def _is_changelog(self) -> bool:
        return self._owner.mode == SinkMode.CHANGELOG

    def place(self, table: TableRecord) -> TablePlace:
        """Return the table's location.

        :raises TableNameError: it has no recorded location, and its name is not possible as a directory.
        """
        return self._lake.place(table)

    def _partitions(self, table: TableRecord, columns: pa.Schema) -> tuple[str, ...]:
        """Return the columns that divide a new table with these columns.

        :raises TableHeldError: it cannot have the layout that is wanted.
        """
        wanted = layouts.wanted(self._layouts, table.schema_name, table.name)
        return partitions.wanted_columns(wanted, columns, table=f"{table.schema_name}.{table.name}")

    def check_layout(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema) -> None:
        self._partitions(table, self._columns(arrow, table))

    def _columns(self, arrow: pa.Schema, table: TableRecord) -> pa.Schema:
        if self._has_feed:
            change_feed.refuse_reserved(arrow.names, table=f"{table.schema_name}.{table.name}")
        return delta_schema.delta_schema(arrow, is_changelog=self._is_changelog, marks=self._owner.marks)

    def check(self, tables: Sequence[TableRecord]) -> None:
        self._lake.check()
        unfit = {table.table_id for table, _ in self._lake.unfit(tables)}
        for record in tables:
            if record.table_id not in unfit:
                self._check_table(self.place(record))

    def unfit(self, tables: Sequence[TableRecord]) -> dict[int, str]:
        return {table.table_id: reason for table, reason in self._lake.unfit(tables)}

    def _check_table(self, place: TablePlace) -> None:
        table = place.open()
        if table is not None:
            self._owner.refuse_foreign(table, place)
            return
        foreign = [name for name in place.file_names() if not name.startswith(_STAGED)]
        if foreign:
            raise TableForeignError(
                f"{place} is not empty (it holds {min(foreign)}); empty it or choose another directory"
            )

    def committed_ts(self, table: TableRecord, span: TableSpan) -> Ts | None:
        place = self.place(table)
        with delta_log.borrowed(place) as log:  # a sixth of delta-rs's time, of thousands of tables at a start
            if log is not None:
                place.mark()
                recorded = delta_table.committed_ts(log, self._owner.changefeed, span)
                refuse_retired(recorded, table, span)
                return recorded
        opened = place.open()
        if opened is None and place.is_away():
            raise away_error(place)
        if opened is None:
            return None
        recorded = delta_table.committed_ts(opened, self._owner.changefeed, span)
        refuse_retired(recorded, table, span)
        if recorded is not None:
            history.check(place, opened)
        return recorded

    def visible(self, table: TableRecord, spans: Sequence[TableSpan]) -> Visible:
        """Version and records are of one snapshot of the table's log."""
        opened = self.place(table).opened()
        recorded = (delta_table.committed_ts(opened, self._owner.changefeed, span) for span in spans)
        known = (ts for ts in recorded if ts is not None and ts != RETIRED)
        return Visible(str(opened.version()), max(known, default=Ts(0)))

    def repartition(self, table: TableRecord, order: SpanRepartition) -> Ts:
        return repartition.repartition(self.place(table), self._owner.changefeed, table, order)

    def stage(self, table: TableRecord, chunk_id: str, batches: Iterator[pa.RecordBatch], ts: Ts) -> list[StagedFile]:
        """No name is ever used again, also by a task that stages a chunk once more: the table may name the file by
        then, and what is known of a file is kept by its name."""
        place = self.place(table)
        label = f"{_STAGED}{ts:x}-{re.sub('[^A-Za-z0-9_-]', '_', chunk_id)}"
        tables = (self._staged_rows(batch, ts) for batch in batches)
        first = next(tables, None)
        if first is None:
            return []
        delta_schema.refuse_alike(first.schema.names, table=f"{table.schema_name}.{table.name}")
        divided_by = self._partitions(table, first.schema)

        def name() -> str:
            return f"{label}-{uuid4().hex[:8]}.parquet"

        place.make()
        layout = Layout(divided_by, self._staged_names(place, first.schema))
        files = delta_files.write_files(place, name, chain([first], tables), layout=layout)
        return [StagedFile(f"{place}/{file.path}", file.rows, file.bytes, file.to_json()) for file in files]

    def _staged_names(self, place: TablePlace, columns: pa.Schema) -> ColumnNames:
        """Return the names of columns in staged files: those that a table which is there has in its own, so that they
        need not be written again when they take its place."""
        table = place.open() if self._maps_columns else None
        return NO_MAPPING if table is None else delta_table.names_for(table, columns)

    def _staged_rows(self, batch: pa.RecordBatch, ts: Ts) -> pa.Table:
        return (
            changelog.snapshot_rows(batch, ts, forms=delta_schema.FORMS)
            if self._is_changelog
            else self._owner.marks.snapshot_rows(delta_schema.delta_table(batch), ts)
        )

    def load(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema, files: Sequence[StagedFile]) -> None:
        place, span = self.place(table), TableSpan(table.table_id)
        if self._is_loaded(place, table, span):
            return
        columns, staged, divided_by = self._staged(place, table, schema, arrow, files)
        place.make()
        changefeed = self._owner.changefeed
        names = (delta_table.record_id(changefeed, span), dropping.placed_record_id(changefeed))
        record = delta_table.first_properties(dict.fromkeys(names, int(table.start_ts)))
        creation.create(place, self._new_table(columns, divided_by), staged, record)
        self._is_loaded(place, table, span)

    def _staged(
        self,
        place: TablePlace,
        table: TableRecord,
        schema: TableSchema,
        arrow: pa.Schema,
        files: Sequence[StagedFile],
    ) -> tuple[pa.Schema, list[DataFile], tuple[str, ...]]:
        """Return the columns of a table that takes staged files over, the files, and the columns that divide it."""
        delta_schema.refuse_alike(arrow.names, table=schema.qualified_name)
        staged = [DataFile.from_json(file.stats) for file in files]
        columns = self._columns(arrow, table)
        for text in dict.fromkeys(file.schema for file in staged):
            found = delta_table.plain_schema(Schema.from_json(text))
            missing = missing_fields(columns, found, table=schema.qualified_name)
            columns = pa.schema([*columns, *missing])
        _refuse_lost(place, staged)
        divided_by = self._partitions(table, columns)
        return columns, staged, divided_by

    def replace(self, copy: TableCopy) -> None:
        place = self.place(copy.table)
        table = place.open()
        if table is None and copy.files and place.is_away():  # no file: it may be the sink's first table
            raise away_error(place)
        there = set(place.file_names())
        if any(file.path.rsplit("/", 1)[-1] not in there for file in copy.files):
            raise CopyLostError(f"rows that were staged in {place} were removed; they are copied again")
        columns, staged, divided_by = self._staged(place, copy.table, copy.schema, copy.arrow, copy.files)
        order = Replacement(self._owner, copy, columns, staged, divided_by)
        if table is None:
            place.make()
            first = delta_table.first_properties(order.records())
            creation.create(place, self._new_table(columns, divided_by), staged, first)
        replacement.replace(place, order)

    def _is_loaded(self, place: TablePlace, table: TableRecord, span: TableSpan) -> bool:
        opened = place.open()
        if opened is None:
            return False
        self._owner.refuse_foreign(opened, place)
        recorded = delta_table.committed_ts(opened, self._owner.changefeed, span)
        if recorded is None:
            raise TableForeignError(
                f"{place} holds another table of changefeed {self._owner.changefeed!r}, which has or had this name; "
                "this one begins when that one is renamed or dropped, or when what lies there is moved away"
            )
        if recorded != table.start_ts:
            position = "is split" if recorded == RETIRED else f"is at {recorded}"
            raise TableForeignError(
                f"{place} holds a table that an earlier changefeed {self._owner.changefeed!r} loaded (it {position}, "
                f"this one starts at {table.start_ts}); remove it or choose another sink directory"
            )
        return True

    def _new_table(self, columns: pa.Schema, divided_by: Sequence[str]) -> NewTable:
        properties = upkeep.table_properties(
            self._retention_s,
            takes_vectors=self._takes_vectors and not self._is_changelog,
            has_feed=self._has_feed,
        )
        return NewTable(self._owner, columns, divided_by, properties, self._maps_columns)

    def maintain(self, table: TableRecord) -> Maintained:
        return upkeep.maintain(self.place(table))

    def files(self, table: TableRecord) -> TableFiles:
        return upkeep.files(self.place(table))

    def mark_left(self, table: TableRecord, ts: Ts, *, time: float) -> None:
        dropping.mark_left(self.place(table), self._owner, table.table_id, ts, time)

    def repair(self, order: RowRepair) -> None:
        row_repair.repair(self.place(order.table), self._owner, order)

    def alter(self, changes: Sequence[SchemaChange]) -> None:
        alterer = Alterer(self._lake, self._owner, self.load, self._partitions, maps_columns=self._maps_columns)
        alterer.alter(changes)

    def read_rows(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
        return self.read_range(table, schema, arrow, ALL_KEYS)

    @property
    def is_read_by_ranges(self) -> bool:
        return not self._is_changelog

    def read_range(
        self, table: TableRecord, schema: TableSchema, arrow: pa.Schema, keys: KeyRange
    ) -> Iterator[pa.RecordBatch]:
        return read.read_rows(self.place(table), schema, arrow, key=table.key, keys=keys)

    def as_stored(self, rows: pa.RecordBatch) -> pa.Table:
        return delta_schema.delta_table(rows)

    def write(self, task: FlushTask, changes: Iterable[Changes]) -> FlushResult:
        place = self.place(task.table)
        if task.table.key and self._owner.mode is SinkMode.HISTORY:
            return versions.write(place, task, changes, self._owner.marks)
        if task.table.key and not self._is_changelog:
            return merge.write(place, task, changes, marks=self._owner.marks)
        with delta_log.borrowed(place) as log:
            opened = log or place.opened()
            if delta_table.is_written(opened, task):
                return task.result(committed=True)
            layout = opened.layout if isinstance(opened, TableLog) else delta_table.layout(opened)
        return self._write_files(place, task, changes, layout)

    def _write_files(
        self, place: TablePlace, task: FlushTask, changes: Iterable[Changes], layout: Layout
    ) -> FlushResult:
        """Write this task's rows as files for ``commit``, one per schema of the changes and partition."""
        counts = RowCounts()
        parts, files = counts.counted(changes), []
        if not self._is_changelog:
            rest, is_truncate = after_truncate(list(parts))
            if is_truncate:
                self._owner.marks.refuse_truncate(f"{task.table.schema_name}.{task.table.name}")
                files.append(TRUNCATION)
            refuse_unless_inserts(rest)
            parts = iter(rest)
        for _, group in groupby(parts, lambda part: part.after.schema):
            tables: Iterator[pa.Table] = (self._rows(part, task) for part in group)
            files += delta_files.write_files(place, partial(_changes_name, task), tables, layout=layout)
        return task.result(
            rows=counts.rows,
            bytes=sum(file.bytes for file in files),
            files=tuple(file.to_json() for file in files),
            commit_time=counts.commit_time,
        )

    def _rows(self, part: Changes, task: FlushTask) -> pa.Table:
        if self._is_changelog:
            return changelog.changelog_rows(part, task.span, key=task.table.key, forms=delta_schema.FORMS)
        return self._owner.marks.appended_rows(part, delta_schema.FORMS)

    def commit(self, tasks: Sequence[FlushTask], results: Sequence[FlushResult]) -> list[FlushResult]:
        def settle(table: TableRecord, work: list[Work]) -> list[FlushResult]:
            place = self.place(table)
            settled = commit_results(work, partial(delta_commit.commit_work, place))
            if any(result.committed for result in settled):  # keep what an operator may need to repair it
                upkeep.begin_if_due(place, retention_s=self._retention_s)
            return settled

        return table_by_table(tasks, results, settle)


def _changes_name(task: FlushTask) -> str:
    return f"changes-{task.from_ts:x}-{task.to_ts:x}-{task.part}-{uuid4().hex[:8]}.parquet"


def _refuse_lost(place: TablePlace, files: Sequence[DataFile]) -> None:
    """:raises SinkError: a staged file no longer exists."""
    if not place.is_local or all(os.path.exists(place.path_of(file.path)) for file in files):
        return
    if place.is_away():
        raise away_error(place)
    raise TableHeldError(f"rows that were staged in {place} were removed; {RESYNC}")
