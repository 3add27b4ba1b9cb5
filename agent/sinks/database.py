"""Database sinks: a base for sinks whose tables, rows and positions are in one SQL database with transactions.

A table is named ``schema.table``. Rows and the position that they belong to are written in one transaction, and only
from the position before, so each change is there exactly once, whoever writes. Snapshots are staged as Arrow files
beside the database, which executors and captures must reach. A table whose columns change is held.

A subclass has to open transactions, name its types, and list a table's columns (``examples/weir-sqlite``).
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
import pyarrow as pa

from agent.errors import (
    NEW_SNAPSHOT,
    LeftOutValueError,
    SinkConfigError,
    SinkFencedError,
    TableForeignError,
    TableHeldError,
)
from agent.ports.capabilities import Capabilities, Guarantee
from agent.ports.sink import FlushResult, FlushTask, SinkScope, SinkUri, StagedFile, Visible
from agent.rows.changes import Changes
from agent.rows.fold import NetChanges, net_changes
from agent.rows.schema import TableSchema
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord

CAPABILITIES: Final = Capabilities(
    guarantee=Guarantee.EXACTLY_ONCE, modes=frozenset({SinkMode.UPSERT}), reads_back=True
)
_POSITIONS: Final = "weir_positions"
_READ_ROWS: Final = 10_000

#: a cursor of DB-API 2.0
Cursor = Any
Row = tuple[object, ...]


class DatabaseSink(ABC):
    """``agent.ports.sink``'s ``Sink``, ``Writer`` and ``ReadsBack``. ``location``: of the URI."""

    capabilities = CAPABILITIES
    #: the database's types: of integers, doubles, bytes and texts, which all other values become
    types: ClassVar[Mapping[pa.DataType, str]]
    #: the placeholder of a parameter
    mark: ClassVar[str] = "?"

    def __init__(self, uri: SinkUri, scope: SinkScope) -> None:
        self.location = uri.location
        self._changefeed = scope.changefeed

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Cursor]:
        """Return a transaction that is committed at the end of the context, and rolled back by an error.

        Writers wait for each other: the second one sees what the first one has committed.

        :raises SinkPassingError: the database cannot be reached or written.
        """

    @abstractmethod
    def columns(self, db: Cursor, title: str) -> set[str]:
        """Return the names of a table's columns; none if there is no table."""

    @property
    @abstractmethod
    def staging(self) -> Path:
        """The directory for staged files."""

    def title(self, table: TableRecord) -> str:
        """Return the table's name here. A name with a ``.`` has a location, in which it is encoded."""
        return table.path.replace("/", ".") if table.location else f"{table.schema_name}.{table.name}"

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def stored(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Return a column as one of ``types``; lists and structs become JSON."""
        kind = column.type
        if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind != pa.uint64()):
            return column.cast(pa.int64())
        if pa.types.is_floating(kind):
            return column.cast(pa.float64())
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
            return column.cast(pa.binary())
        try:
            return column.cast(pa.string())
        except pa.ArrowNotImplementedError:
            texts = [None if value is None else json.dumps(value, default=str) for value in column.to_pylist()]
            return pa.array(texts, pa.string())

    def check(self, tables: Sequence[TableRecord]) -> None:
        if keyless := [table for table in tables if not table.key]:
            title = self.title(keyless[0])
            raise SinkConfigError(f"{title} has no key, by which rows are replaced; leave it out by a filter")
        with self._recording() as db:
            for table in tables:
                if self.columns(db, self.title(table)) and self._recorded(db, TableSpan(table.table_id)) is None:
                    raise TableForeignError(
                        f"{self.location} has a table {self.title(table)} of others; use another database"
                    )

    def unfit(self, tables: Sequence[TableRecord]) -> dict[int, str]:
        """Names that differ by case alone are one name."""
        first: dict[str, TableRecord] = {}
        alike = [table for table in tables if first.setdefault(self.title(table).lower(), table) is not table]
        return {
            table.table_id: f"{self.title(table)} is another table's name here, but for its case" for table in alike
        }

    def committed_ts(self, table: TableRecord, span: TableSpan) -> Ts | None:
        with self._recording() as db:
            return self._recorded(db, span)

    def visible(self, table: TableRecord, spans: Sequence[TableSpan]) -> Visible:
        return Visible("", max((self.committed_ts(table, span) or Ts(0) for span in spans), default=Ts(0)))

    def writer(self) -> Self:
        return self

    def stage(self, table: TableRecord, chunk_id: str, batches: Iterator[pa.RecordBatch], ts: Ts) -> list[StagedFile]:
        first = next(batches, None)
        if first is None:
            return []
        place = self.staging / f"{table.table_id}-{ts:x}-{chunk_id.replace('/', '_')}.arrow"
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished, rows = place.with_suffix(f".{os.urandom(4).hex()}"), first.num_rows
        with pa.OSFile(str(unfinished), "wb") as file, pa.ipc.new_file(file, first.schema) as staged:
            staged.write_batch(first)
            for batch in batches:
                staged.write_batch(batch)
                rows += batch.num_rows
        unfinished.rename(place)
        return [StagedFile(str(place), rows, place.stat().st_size)]

    def load(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema, files: Sequence[StagedFile]) -> None:
        span, title = TableSpan(table.table_id), self.title(table)
        with self._recording() as db:
            recorded = self._recorded(db, span)
            if recorded is None and not self.columns(db, title):
                columns = [f"{self.quoted(item.name)} {self.types[item.type]}" for item in self._schema(arrow)]
                key = f"PRIMARY KEY ({self._list(table.key)})"
                db.execute(f"CREATE TABLE {self.quoted(title)} ({', '.join([*columns, key])})")
                for staged in files:
                    with pa.memory_map(staged.path) as file, pa.ipc.open_file(file) as reader:
                        for at in range(reader.num_record_batches):
                            self._insert(db, title, arrow.names, self._values(reader.get_batch(at)))
                self._record(db, span, table.start_ts)
            elif recorded != table.start_ts:
                raise TableForeignError(f"{self.location} has another table {title}; drop it, or use another database")
        for staged in files:
            Path(staged.path).unlink(missing_ok=True)

    def write(self, task: FlushTask, changes: Iterable[Changes]) -> FlushResult:
        parts, title = list(changes), self.title(task.table)
        net = net_changes(parts, key=task.table.key)
        with self._recording() as db:
            recorded = self._recorded(db, task.span)
            if recorded == task.to_ts:
                return task.result(committed=True)
            if recorded is None or recorded < task.from_ts:
                raise TableForeignError(f"{title} was removed or set back in {self.location}; {NEW_SNAPSHOT}")
            if recorded > task.from_ts:
                raise SinkFencedError(
                    f"{title} is at {recorded}, not at {task.from_ts}: this writer is stale and stops"
                )
            self._apply(db, task.table, net)
            self._record(db, task.span, task.to_ts)
        newest = max((part.commit_time for part in parts), default=0.0)
        rows, size = sum(map(len, parts)), sum(part.after.nbytes for part in parts)
        return task.result(committed=True, rows=rows, bytes=size, commit_time=newest)

    def commit(self, tasks: Sequence[FlushTask], results: Sequence[FlushResult]) -> list[FlushResult]:
        return list(results)  # ``write`` has done both

    def read_rows(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
        wanted, title = self._schema(arrow), self.title(table)
        with self.transaction() as db:
            there = self.columns(db, title)
            if not there:
                raise TableHeldError(f"there is no table {title} in {self.location}")
            columns = ", ".join(self.quoted(name) if name in there else "NULL" for name in wanted.names)
            db.execute(f"SELECT {columns} FROM {self.quoted(title)}")
            while some := db.fetchmany(_READ_ROWS):
                pairs = zip(zip(*some, strict=True), wanted, strict=True)
                yield pa.RecordBatch.from_arrays([pa.array(column, item.type) for column, item in pairs], schema=wanted)

    def as_stored(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        return pa.table([self.stored(column) for column in rows.columns], names=rows.schema.names)

    @contextmanager
    def _recording(self) -> Iterator[Cursor]:
        """A transaction in which positions can be read and written."""
        with self.transaction() as db:
            db.execute(
                f"CREATE TABLE IF NOT EXISTS {_POSITIONS} (changefeed VARCHAR(250) NOT NULL, "
                "span VARCHAR(250) NOT NULL, ts BIGINT NOT NULL, PRIMARY KEY (changefeed, span))"
            )
            yield db

    def _recorded(self, db: Cursor, span: TableSpan) -> Ts | None:
        where = f"changefeed = {self.mark} AND span = {self.mark}"
        db.execute(f"SELECT ts FROM {_POSITIONS} WHERE {where}", (self._changefeed, str(span)))
        found = db.fetchone()
        return None if found is None else Ts(found[0])

    def _record(self, db: Cursor, span: TableSpan, ts: Ts) -> None:
        where = f"changefeed = {self.mark} AND span = {self.mark}"
        db.execute(f"DELETE FROM {_POSITIONS} WHERE {where}", (self._changefeed, str(span)))
        marks = ", ".join([self.mark] * 3)
        db.execute(
            f"INSERT INTO {_POSITIONS} (changefeed, span, ts) VALUES ({marks})", (self._changefeed, str(span), int(ts))
        )

    def _apply(self, db: Cursor, table: TableRecord, net: NetChanges) -> None:
        title, names = self.title(table), net.upserts.schema.names
        if names and set(names) != self.columns(db, title):
            raise TableHeldError(f"the columns of {title} are not those that this sink has; {NEW_SNAPSHOT}")
        if net.is_truncated:
            db.execute(f"DELETE FROM {self.quoted(title)}")
        rows = self._whole_rows(db, table, net)
        self._delete(db, table, net.deletes)
        self._delete(db, table, net.upserts.select(list(table.key)) if names else net.upserts)
        self._insert(db, title, names, rows)

    def _whole_rows(self, db: Cursor, table: TableRecord, net: NetChanges) -> list[Row]:
        """Return the rows to write, with the values that updates have left out."""
        rows, title = self._values(net.upserts), self.title(table)
        if not net.kept:
            return rows
        names = net.upserts.schema.names
        origins = self._values(net.upserts.select(list(table.key)) if net.origin is None else net.origin)
        query = f"SELECT {self._list(names)} FROM {self.quoted(title)} WHERE {self._where(table.key)}"
        for at in np.flatnonzero(np.logical_or.reduce(list(net.kept.values()))):
            db.execute(query, origins[at])
            before = db.fetchone()
            is_needed = before is None and net.needed is not None and net.needed[at]
            if is_needed or (net.lost is not None and net.lost[at]):
                raise LeftOutValueError(
                    f"an update of {title} left out a value of a row that is not there; {NEW_SNAPSHOT}"
                )
            kept = [before is not None and name in net.kept and net.kept[name][at] for name in names]
            rows[at] = tuple(before[i] if kept[i] else value for i, value in enumerate(rows[at]))
        return rows

    def _delete(self, db: Cursor, table: TableRecord, keys: pa.Table) -> None:
        if keys.num_rows:
            where = self._where(table.key)
            db.executemany(f"DELETE FROM {self.quoted(self.title(table))} WHERE {where}", self._values(keys))

    def _insert(self, db: Cursor, title: str, names: Sequence[str], rows: Sequence[Row]) -> None:
        if rows:
            marks = ", ".join([self.mark] * len(names))
            db.executemany(f"INSERT INTO {self.quoted(title)} ({self._list(names)}) VALUES ({marks})", rows)

    def _values(self, rows: pa.Table | pa.RecordBatch) -> list[Row]:
        return list(zip(*(self.stored(column).to_pylist() for column in rows.columns), strict=True))

    def _schema(self, arrow: pa.Schema) -> pa.Schema:
        """Return the columns as they are stored."""
        return pa.schema([(item.name, self.stored(pa.array([], item.type)).type) for item in arrow])

    def _list(self, names: Sequence[str]) -> str:
        return ", ".join(map(self.quoted, names))

    def _where(self, key: Sequence[str]) -> str:
        return " AND ".join(f"{self.quoted(name)} = {self.mark}" for name in key)
