"""SQLite sink: tables of one database file that equal their source tables, for applications that read them offline.

``sqlite+file:///data/shop.db``. A table is named ``schema.table``. Rows and the position they belong to are written in
one transaction, so each change is there exactly once. Executors and captures must be on the machine of the file. Values
that SQLite has no type for are text; a NaN is NULL. A table whose columns change is held.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent.errors import (
    NEW_SNAPSHOT,
    LeftOutValueError,
    SinkConfigError,
    SinkFencedError,
    SinkPassingError,
    TableForeignError,
    TableHeldError,
)
from agent.ports.capabilities import Capabilities, Guarantee
from agent.ports.plugin import SinkPlugin
from agent.ports.sink import FlushResult, FlushTask, SinkScope, SinkUri, StagedFile, Visible
from agent.rows.changes import Changes
from agent.rows.fold import NetChanges, net_changes
from agent.rows.schema import TableSchema
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import SinkMode, TableRecord

CAPABILITIES = Capabilities(guarantee=Guarantee.EXACTLY_ONCE, modes=frozenset({SinkMode.UPSERT}), reads_back=True)
_LOCK_S = 30.0
_READ_ROWS = 10_000
_RECORDS = """CREATE TABLE IF NOT EXISTS weir_positions (
    changefeed TEXT, span TEXT, ts INTEGER NOT NULL, PRIMARY KEY (changefeed, span))"""


class SqliteSink:
    """``agent.ports.sink``'s ``Sink``, ``Writer`` and ``ReadsBack``."""

    capabilities = CAPABILITIES

    def __init__(self, uri: SinkUri, scope: SinkScope) -> None:
        self._path = Path(uri.location)
        self._changefeed = scope.changefeed

    def writer(self) -> "SqliteSink":
        return self

    def check(self, tables: Sequence[TableRecord]) -> None:
        if keyless := [table for table in tables if not table.key]:
            raise SinkConfigError(
                f"{_title(keyless[0])} has no key, by which rows are replaced; leave it out by a filter"
            )
        with self._transaction() as db:
            for table in tables:
                if _columns(db, table) and self._recorded(db, TableSpan(table.table_id)) is None:
                    raise TableForeignError(f"{self._path} has a table {_title(table)} of others; use another file")

    def unfit(self, tables: Sequence[TableRecord]) -> dict[int, str]:
        first: dict[str, TableRecord] = {}
        alike = [table for table in tables if first.setdefault(_title(table).lower(), table) is not table]
        own = [table for table in tables if _title(table).lower().startswith("sqlite_")]
        return {table.table_id: f"SQLite takes {_title(table)} for another table's name" for table in (*alike, *own)}

    def committed_ts(self, table: TableRecord, span: TableSpan) -> Ts | None:
        if not self._path.exists():
            return None
        with self._transaction() as db:
            return self._recorded(db, span)

    def visible(self, table: TableRecord, spans: Sequence[TableSpan]) -> Visible:
        return Visible("", max((self.committed_ts(table, span) or Ts(0) for span in spans), default=Ts(0)))

    def stage(self, table: TableRecord, chunk_id: str, batches: Iterator[pa.RecordBatch], ts: Ts) -> list[StagedFile]:
        first = next(batches, None)
        if first is None:
            return []
        place = Path(f"{self._path}.staged", f"{table.table_id}-{ts:x}-{chunk_id.replace('/', '_')}.arrow")
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
        span, title = TableSpan(table.table_id), _title(table)
        with self._transaction() as db:
            recorded = self._recorded(db, span)
            if recorded is None and not _columns(db, table):
                kinds = {pa.int64(): "INTEGER", pa.float64(): "REAL", pa.binary(): "BLOB"}
                columns = [f"{_quoted(item.name)} {kinds.get(item.type, 'TEXT')}" for item in _empty(arrow).schema]
                db.execute(f"CREATE TABLE {_quoted(title)} ({', '.join(columns)}, PRIMARY KEY ({_list(table.key)}))")
                for staged in files:
                    with pa.memory_map(staged.path) as file, pa.ipc.open_file(file) as reader:
                        for at in range(reader.num_record_batches):
                            _insert(db, title, arrow.names, _values(reader.get_batch(at)))
                self._record(db, span, table.start_ts)
            elif recorded != table.start_ts:
                raise TableForeignError(f"{self._path} has another table {title}; drop it, or use another file")
        for staged in files:
            Path(staged.path).unlink(missing_ok=True)

    def write(self, task: FlushTask, changes: Iterable[Changes]) -> FlushResult:
        parts, title = list(changes), _title(task.table)
        net = net_changes(parts, key=task.table.key)
        with self._transaction() as db:
            recorded = self._recorded(db, task.span)
            if recorded == task.to_ts:
                return FlushResult(task.span, task.from_ts, task.to_ts, committed=True)
            if recorded is None or recorded < task.from_ts:
                raise TableForeignError(f"{title} was removed or set back in {self._path}; {NEW_SNAPSHOT}")
            if recorded > task.from_ts:
                raise SinkFencedError(
                    f"{title} is at {recorded}, not at {task.from_ts}: this writer is stale and stops"
                )
            _apply(db, task.table, net)
            self._record(db, task.span, task.to_ts)
        newest = max((part.commit_time for part in parts), default=0.0)
        rows, size = sum(map(len, parts)), sum(part.after.nbytes for part in parts)
        return FlushResult(task.span, task.from_ts, task.to_ts, True, rows, size, commit_time=newest)

    def commit(self, tasks: Sequence[FlushTask], results: Sequence[FlushResult]) -> list[FlushResult]:
        return list(results)  # ``write`` has done both

    def read_rows(self, table: TableRecord, schema: TableSchema, arrow: pa.Schema) -> Iterator[pa.RecordBatch]:
        wanted = _empty(arrow).schema
        with self._transaction() as db:
            stored = _columns(db, table)
            if not stored:
                raise TableHeldError(f"there is no table {_title(table)} in {self._path}")
            columns = ", ".join(_quoted(name) if name in stored else "NULL" for name in wanted.names)
            rows = db.execute(f"SELECT {columns} FROM {_quoted(_title(table))}")
            while some := rows.fetchmany(_READ_ROWS):
                arrays = [
                    pa.array(column, item.type) for column, item in zip(zip(*some, strict=True), wanted, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=wanted)

    def as_stored(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        return pa.table([_stored(column) for column in rows.columns], names=rows.schema.names)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One writer at a time: another one waits, and then sees what this one has done."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=_LOCK_S, isolation_level=None)) as db:
                db.execute("BEGIN IMMEDIATE")
                db.execute(_RECORDS)
                yield db
                db.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            raise SinkPassingError(
                f"cannot use {self._path} ({error}); see what it lacks, it is tried again"
            ) from error

    def _recorded(self, db: sqlite3.Connection, span: TableSpan) -> Ts | None:
        where = (self._changefeed, str(span))
        found = db.execute("SELECT ts FROM weir_positions WHERE changefeed = ? AND span = ?", where).fetchone()
        return None if found is None else Ts(found[0])

    def _record(self, db: sqlite3.Connection, span: TableSpan, ts: Ts) -> None:
        db.execute("INSERT OR REPLACE INTO weir_positions VALUES (?, ?, ?)", (self._changefeed, str(span), int(ts)))


def _apply(db: sqlite3.Connection, table: TableRecord, net: NetChanges) -> None:
    title, names = _title(table), net.upserts.schema.names
    if names and set(names) != _columns(db, table):
        raise TableHeldError(f"the columns of {title} are not those that this sink has; {NEW_SNAPSHOT}")
    if net.is_truncated:
        db.execute(f"DELETE FROM {_quoted(title)}")
    rows = _whole_rows(db, table, net)
    db.executemany(f"DELETE FROM {_quoted(title)} WHERE {_is(table.key)}", _values(net.deletes))
    _insert(db, title, names, rows)


def _whole_rows(db: sqlite3.Connection, table: TableRecord, net: NetChanges) -> list[tuple[object, ...]]:
    """The rows to write, with the values that only the database has."""
    rows = _values(net.upserts)
    if not net.kept:
        return rows
    names, title = net.upserts.schema.names, _title(table)
    origins = _values(net.upserts.select(list(table.key)) if net.origin is None else net.origin)
    query = f"SELECT {_list(names)} FROM {_quoted(title)} WHERE {_is(table.key)}"
    for at in np.flatnonzero(np.logical_or.reduce(list(net.kept.values()))):
        before = db.execute(query, origins[at]).fetchone()
        if (net.lost is not None and net.lost[at]) or (before is None and net.needed is not None and net.needed[at]):
            raise LeftOutValueError(f"an update of {title} left out a value of a row that is not there; {NEW_SNAPSHOT}")
        kept = [before is not None and name in net.kept and net.kept[name][at] for name in names]
        rows[at] = tuple(before[i] if kept[i] else value for i, value in enumerate(rows[at]))
    return rows


def _insert(db: sqlite3.Connection, title: str, names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> None:
    marks = ", ".join("?" * len(names))
    if rows:
        db.executemany(f"INSERT OR REPLACE INTO {_quoted(title)} ({_list(names)}) VALUES ({marks})", rows)


def _columns(db: sqlite3.Connection, table: TableRecord) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", (_title(table),))}


def _values(rows: pa.Table | pa.RecordBatch) -> list[tuple[object, ...]]:
    return list(zip(*(_stored(column).to_pylist() for column in rows.columns), strict=True))


def _stored(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """A column in one of the types that SQLite has."""
    kind = column.type
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind != pa.uint64()):
        return column.cast(pa.int64())
    if pa.types.is_floating(kind):
        doubles = column.cast(pa.float64())
        return pc.if_else(pc.is_nan(doubles), None, doubles)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    try:
        return column.cast(pa.string())
    except pa.ArrowNotImplementedError:  # lists and structs become JSON
        texts = [None if value is None else json.dumps(value, default=str) for value in column.to_pylist()]
        return pa.array(texts, pa.string())


def _empty(arrow: pa.Schema) -> pa.Table:
    return pa.table([_stored(pa.array([], item.type)) for item in arrow], names=arrow.names)


def _title(table: TableRecord) -> str:
    """Not that of another table: a name with a ``.`` has a location, in which it is encoded."""
    return table.path.replace("/", ".") if table.location else f"{table.schema_name}.{table.name}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(_quoted, names))


def _is(key: Sequence[str]) -> str:
    return " AND ".join(f"{_quoted(name)} IS ?" for name in key)


PLUGIN = SinkPlugin(
    summary="tables of one SQLite database file",
    schemes=("sqlite+file",),
    open=SqliteSink,
    capabilities=CAPABILITIES,
)
