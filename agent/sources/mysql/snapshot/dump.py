"""Dumping MySQL and MariaDB: chunks by key, consistent with the place in the binlog where sync will start.

While a dump runs, a session holds the definitions of its tables (``consistency.hold_definitions``): they cannot be
altered or truncated until it ends, as with mysqldump. Rows are read in one of two ways, for all tables alike.

**Without locks**, where every table is upserted by a key and row events carry full images. ``start_ts`` is a settled
place, L1, and every chunk is read at a moment of its own after it, by a Spark task. So the rows are of many moments.
Replay from L1 mends that: every change carries its key and its whole new row, so for each key the last change in
(L1, L2] leaves it as it was at L2, where L2 is the end of the binlog after the last chunk was read: whatever a chunk
has seen was committed before. Keys without a change in between are the same at every moment. This holds once a flush
reaches L2, not before: hence ``consistent_ts``. A chunk boundary is a key, and no update moves a row over it without
being a delete and an insert in the log; a row that moved from a chunk read later to one read earlier is in neither, and
the log alone brings it.

**Exactly**, for anything else. A changelog or a table without key would show the changes of (L1, L2] twice. With
``binlog_row_image`` MINIMAL or NOBLOB an update leaves columns out, so the log does not have all of a row that moved.
All rows are then read at one place, by sessions that were opened there (``consistency.open_readers``); they are this
capture's and cannot be shared, so its own threads read.

A run that is lost continues at the place of a new view, L2, as long as the server still has the binlog from L1 on:

- a table that is complete stays as it is;
- a table that is upserted by a key, with full images, keeps its finished chunks: the same argument holds, also if it
  was truncated in between, since replay empties it there and fills it again from the log;
- any other table is read again from the start, at L2, and so is one whose definition has changed.
"""

import queue
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

import structlog

from agent.errors import SourceError, SourceUnreachableError
from agent.filter.events import filter_snapshot
from agent.ports.executor import Executor
from agent.ports.sink import Sink, StagedFile
from agent.ports.snapshot import DoneChunks, DumpOrder, Plan, TablePlan, is_complete
from agent.rows.schema import TableSchema, ZeroDates
from agent.sources.mysql.binlog.prepared_before import names_before, with_prepared
from agent.sources.mysql.position import consistency
from agent.sources.mysql.position.consistency import Place, Readers, Table
from agent.sources.mysql.position.positions import SourcePosition, first_epoch, split_file_name, unpack
from agent.sources.mysql.server.catalog import read_schemas
from agent.sources.mysql.server.connection import Connection, connect
from agent.sources.mysql.server.identity import read_identity
from agent.sources.mysql.server.uri import Target, parse_uri
from agent.sources.mysql.snapshot import rows as snapshot
from agent.sources.mysql.snapshot.chunks import Chunk, ChunkPlan
from agent.sources.mysql.snapshot.dump_plan import Planner, needs_exact_rows
from reactor.ids import Ts
from reactor.records.changefeed import FilterConfig, TableRecord

_FULL: Final = "FULL"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """What one Spark task is given. ``ts`` goes into rows that carry their commit's position (changelog)."""

    source: Target
    schema: TableSchema
    chunk: Chunk
    chunk_id: str
    ts: Ts
    filter: FilterConfig
    open_sink: Callable[[], Sink]


def stage_chunk(task: ChunkTask) -> tuple[StagedFile, ...]:
    """Runs on an executor. :raises WeirError: source or sink failed; nothing of the chunk counts."""
    batches = snapshot.read_chunk(task.source, task.schema, task.chunk)
    schema, rows = filter_snapshot(task.filter, task.schema, batches)
    return tuple(task.open_sink().writer().stage(schema, task.chunk_id, rows, task.ts))


class MysqlDumper:
    """``agent.ports.source.Dumper``."""

    def __init__(self, uri: str, *, zero_dates: ZeroDates = ZeroDates.NULL) -> None:
        self._target = parse_uri(uri)
        self._zero_dates = zero_dates

    @contextmanager
    def open(
        self, order: DumpOrder, previous: Plan | None, done: DoneChunks, executor: Executor
    ) -> "Iterator[MysqlDump]":
        known = self._known(previous)
        records = _unfinished(order, known, done)
        names = [(record.schema_name, record.name) for record in records]
        with ExitStack() as stack:
            guard = stack.enter_context(consistency.open_reader(self._target))
            consistency.hold_definitions(guard, names)
            has_full_images = _row_image(guard) == _FULL
            is_exact = any(
                needs_exact_rows(record, order.sink_mode, has_full_images=has_full_images) for record in records
            )
            prepared = names_before(guard) if known is None else frozenset()
            place, readers = self._view(stack, order, names, is_exact=is_exact)
            planner = Planner(
                order,
                # Now that they are held: before, they were anybody's to alter.
                read_schemas(guard, names, zero_dates=self._zero_dates),
                self._position(guard, known, place, prepared),
                known,
                done,
                is_exact=is_exact,
                has_full_images=has_full_images,
            )
            plan = planner.plan(readers.connections[0] if readers else guard)
            _log.info("dump starts", at=str(place.binlog), is_exact=is_exact, is_resumed=known is not None)
            yield MysqlDump(order, plan, guard, executor, readers)

    def settle(self, tables: Sequence[TableRecord]) -> tuple[TableRecord, ...]:
        """Now that all is read: the place by which the rows of several moments are mended."""
        if not any(table.consistent_ts for table in tables):
            return tuple(tables)
        with connect(self._target) as connection:
            place = consistency.current_place(connection)
        return tuple(
            table.with_(consistent_ts=place.ts(unpack(table.start_ts)[0])) if table.consistent_ts else table
            for table in tables
        )

    def _known(self, previous: Plan | None) -> Plan | None:
        """The earlier plan, if this is its server, and it still has its binlog from the plan's start on."""
        if previous is None:
            return None
        at = SourcePosition.from_json(previous.position)
        with connect(self._target) as connection:
            server = read_identity(connection).system_id
            end = consistency.current_place(connection).binlog
            files = {row[0] for row in connection.query("SHOW BINARY LOGS")}
        base, number = split_file_name(end.file)
        is_same = (at.epoch.server, at.epoch.base) == (server, base)
        is_past = (at.file_number, at.position) <= (number, end.position)
        return previous if is_same and is_past and at.binlog.file in files else None

    def _view(
        self, stack: ExitStack, order: DumpOrder, names: Sequence[Table], *, is_exact: bool
    ) -> tuple[Place, Readers | None]:
        if not is_exact:
            return consistency.settled_place(self._target, names), None
        readers = stack.enter_context(consistency.open_readers(self._target, order.parallel, names))
        return readers.place, readers

    def _position(
        self, connection: Connection, known: Plan | None, place: Place, prepared: Collection[str]
    ) -> SourcePosition:
        """The place in the epoch of the plan that continues, else in the first one."""
        first = first_epoch(read_identity(connection).system_id, place.binlog, place.gtid)
        if known is not None:
            return replace(first, epochs=SourcePosition.from_json(known.position).epochs)
        return with_prepared(connection, first, prepared, lambda: connect(self._target))


def _unfinished(order: DumpOrder, known: Plan | None, done: DoneChunks) -> list[TableRecord]:
    finished = {table.record.table_id for table in known.tables if is_complete(table, done)} if known else set()
    return [record for record in order.tables if record.table_id not in finished]


def _row_image(connection: Connection) -> str:
    [(image,)] = connection.query("SELECT @@global.binlog_row_image")
    return str(image).upper()


class MysqlDump:
    """``agent.ports.snapshot.DumpSession``. ``guard`` holds the tables' definitions; without ``readers`` every chunk
    is read by a Spark task of its own."""

    def __init__(
        self, order: DumpOrder, plan: Plan, guard: Connection, executor: Executor, readers: Readers | None
    ) -> None:
        self._order = order
        self._guard = guard
        self._executor = executor
        self._pool = _ReaderPool(guard.target, readers.connections) if readers else None
        self.plan = plan

    def stage(self, table: TablePlan, number: int, chunk_id: str) -> tuple[StagedFile, ...]:
        assert isinstance(table.chunks, ChunkPlan), "planned here"
        chunk, ts = table.chunks.chunk(number), table.record.start_ts
        if self._pool is not None:
            with self._pool.reader() as reader:
                batches = snapshot.select_rows(reader, table.schema, chunk)
                schema, rows = filter_snapshot(self._order.filter, table.schema, batches)
                return tuple(self._order.open_sink().writer().stage(schema, chunk_id, rows, ts))
        order = self._order
        task = ChunkTask(self._guard.target, table.schema, chunk, chunk_id, ts, order.filter, order.open_sink)
        name = f"dump {table.schema.qualified_name} {number + 1}/{table.chunks.count}"
        [files] = self._executor.map(stage_chunk, [task], description=name)
        return files

    def verify(self) -> None:
        """The definitions were held for as long as chunks were read."""
        self._guard.query("SELECT 1")

    def is_alive(self) -> bool:
        try:
            self.verify()
        except SourceError:
            return False
        return self._pool is None or self._pool.is_alive


class _ReaderPool:
    """Sessions for whoever reads next. One that failed is lost, and with the last one the state they all saw."""

    def __init__(self, target: Target, connections: Sequence[Connection]) -> None:
        self._target = target
        self._free: queue.SimpleQueue[Connection | None] = queue.SimpleQueue()
        for connection in connections:
            self._free.put(connection)
        self._alive = len(connections)
        self._counting = threading.Lock()

    @property
    def is_alive(self) -> bool:
        return self._alive > 0

    @contextmanager
    def reader(self) -> Iterator[Connection]:
        """:raises SourceUnreachableError: no session is left."""
        connection = self._free.get()
        if connection is None:
            self._free.put(None)  # for who waits behind us
            raise SourceUnreachableError(
                f"the dump's sessions with {self._target} were lost; it continues with new ones by itself"
            )
        try:
            yield connection
        except BaseException:
            self._lose(connection)
            raise
        self._free.put(connection)

    def _lose(self, connection: Connection) -> None:
        """In the middle of a result it is of no use any more."""
        connection.close()
        with self._counting:
            self._alive -= 1
        if not self._alive:
            self._free.put(None)
