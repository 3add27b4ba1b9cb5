"""Dumps of MySQL and MariaDB: chunks by key, consistent with the binlog position at which sync will start.

During a dump, a session holds the definitions of its tables (``consistency.hold_definitions``): they cannot be altered
or truncated until it ends, as with mysqldump. A statement that waits for that makes all later readers of its table
wait, those of chunks too. So a chunk waits for a moment only; then the run ends, the statement is executed, and the
next run reads the table as it is by then. Rows are read in one of two ways, for all tables alike.

**Without locks**, if every table is upserted by a key and row events have full images. ``start_ts`` is a settled place,
L1, and a Spark task reads each chunk at some later moment. So the rows are of many moments. Replay from L1 makes them
consistent: every change has its key and its whole new row, so for each key the last change in (L1, L2] gives its state
at L2, where L2 is the end of the binlog after the last chunk was read: everything visible in a chunk was committed
before. Keys without a change in between are the same at every moment. This holds once a flush reaches L2, not before:
hence ``consistent_ts``. A chunk boundary is a key, and an update that moves a row across it is a delete and an insert
in the log; a row that moved from a chunk read later to one read earlier is in neither, and comes from the log alone.

**Exactly**, for anything else. A changelog or a table without key would show the changes of (L1, L2] twice. With
``binlog_row_image`` MINIMAL or NOBLOB an update omits columns, so the log lacks parts of a row that moved. All rows are
then read at one place, by sessions that were opened there (``consistency.open_readers``). Sessions belong to this
capture and cannot be shared, so its own threads read.

A dump that is interrupted continues at the place of a new view, L2, if the server still has the binlog from L1 on:

- a complete table stays as it is;
- a table that is upserted by a key, with full images, keeps its finished chunks: the same argument holds, even if it
  was truncated in between, since replay empties it and fills it again from the log;
- any other table, and any whose definition has changed, is read again from the start, at L2.
"""

import queue
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

import pyarrow as pa
import structlog

from agent.errors import SourceError, SourceUnreachableError, TableHeldError
from agent.filter.events import filter_snapshot
from agent.pacing import Pace, paced
from agent.ports.executor import Executor
from agent.ports.sink import Sink, StagedFile
from agent.ports.snapshot import (
    ChunkToStage,
    DoneChunks,
    DumpOrder,
    Plan,
    Staged,
    TablePlan,
    described,
    is_complete,
    is_undivided,
    stage_each,
)
from agent.rows.schema import TableSchema, ZeroDates
from agent.sources.mysql.binlog.prepared_before import names_before, with_prepared
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.position import consistency
from agent.sources.mysql.position.consistency import Place, Readers, Table
from agent.sources.mysql.position.positions import SourcePosition, first_epoch, split_file_name, unpack
from agent.sources.mysql.position.resume import epoch_of
from agent.sources.mysql.server.cascades import unlogged_cascades
from agent.sources.mysql.server.catalog import read_schemas
from agent.sources.mysql.server.connection import Connection, connect
from agent.sources.mysql.server.identity import read_identity
from agent.sources.mysql.server.tables import find_keys
from agent.sources.mysql.server.uri import Target, parse_uri
from agent.sources.mysql.snapshot import rows as snapshot
from agent.sources.mysql.snapshot.chunks import Chunk, ChunkPlan
from agent.sources.mysql.snapshot.dump_plan import Planner, needs_exact_rows
from reactor.ids import Ts
from reactor.records.changefeed import FilterConfig
from reactor.records.tables.table import TableRecord

_FULL: Final = "FULL"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """One chunk of a Spark task. ``ts``: stored in rows that have their commit's position (changelog)."""

    source: Target
    table: TableRecord
    schema: TableSchema
    chunk: Chunk
    chunk_id: str
    ts: Ts
    filter: FilterConfig
    open_sink: Callable[[], Sink]


def stage_chunk(task: ChunkTask, pace: Pace) -> tuple[StagedFile, ...]:
    """Stage a chunk on the capture.

    :raises WeirError: source or sink failed; no part of the chunk counts.
    """
    return _stage(task, paced(snapshot.read_chunk(task.source, task.schema, task.chunk), pace))


def stage_chunks(tasks: Sequence[ChunkTask]) -> list[Staged]:
    """Stage chunks on an executor, one after another, over one connection as long as it is intact."""
    with closing(snapshot.ChunkReader(tasks[0].source)) as reader:
        return stage_each(tasks, lambda task: _stage(task, reader.read(task.schema, task.chunk)))


def _stage(task: ChunkTask, batches: Iterator[pa.RecordBatch]) -> tuple[StagedFile, ...]:
    rows = filter_snapshot(task.filter, task.schema, batches)
    return tuple(task.open_sink().writer().stage(task.table, task.chunk_id, rows, task.ts))


class MysqlDumper:
    """``agent.ports.source.Dumper``."""

    def __init__(self, uri: str, *, zero_dates: ZeroDates = ZeroDates.NULL, accepts_cascades: bool = False) -> None:
        self._target = parse_uri(uri)
        self._zero_dates = zero_dates
        self._accepts_cascades = accepts_cascades

    @contextmanager
    def open(
        self, order: DumpOrder, previous: Plan | None, done: DoneChunks, executor: Executor
    ) -> "Iterator[MysqlDump]":
        known = self._known(previous)
        with ExitStack() as stack:
            guard = stack.enter_context(consistency.open_reader(self._target))
            gone = consistency.hold_definitions(guard, _names(_unfinished(order, known, done)))
            order = order.without([table_id(*name) for name in gone])
            records = _unfinished(order, known, done)
            names = _names(records)
            # now that they are held: before, they could be altered
            schemas = read_schemas(guard, names, zero_dates=self._zero_dates)
            order = order.with_keys(find_keys(guard, _keyed_otherwise(records, schemas)))
            has_full_images = _row_image(guard) == _FULL
            is_exact = any(
                needs_exact_rows(record, order.sink_mode, has_full_images=has_full_images)
                for record in _unfinished(order, known, done)
            )
            prepared = names_before(guard) if known is None and order.log is None else frozenset()
            place, readers = self._view(stack, order, names, is_exact=is_exact)
            planner = Planner(
                order,
                schemas,
                self._position(guard, order, known, place, prepared),
                known,
                done,
                is_exact=is_exact,
                has_full_images=has_full_images,
            )
            plan = planner.plan(readers.connections[0] if readers else guard)
            _log.info("dump starts", at=str(place.binlog), is_exact=is_exact, is_resumed=known is not None)
            yield MysqlDump(order, plan, guard, executor, readers, self._cascading(guard, names))

    def _cascading(self, guard: Connection, names: Sequence[Table]) -> frozenset[Table]:
        """Tables that got foreign keys with unlogged actions since the changefeed was created. Later ones are in the
        binlog: the definitions are held."""
        return frozenset() if self._accepts_cascades else frozenset(unlogged_cascades(guard, names))

    def settle(self, plan: Plan) -> tuple[TableRecord, ...] | None:
        """Set the place up to which replay makes rows of several moments consistent, after all are read; a place of
        another server says nothing of them."""
        tables = [table.record for table in plan.tables]
        if not any(table.consistent_ts for table in tables):
            return tuple(tables)
        with connect(self._target) as connection:
            place = consistency.current_place(connection)
            if not _is_of_server(plan, connection, place):
                return None
        return tuple(
            table.with_(consistent_ts=place.ts(unpack(table.start_ts)[0])) if table.consistent_ts else table
            for table in tables
        )

    def _known(self, previous: Plan | None) -> Plan | None:
        """Return the earlier plan if it is of this server, which still has its binlog from the plan's start on."""
        if previous is None:
            return None
        at = SourcePosition.from_json(previous.position)
        with connect(self._target) as connection:
            place = consistency.current_place(connection)
            is_same = _is_of_server(previous, connection, place)
            files = {row[0] for row in connection.query("SHOW BINARY LOGS")}
        is_past = (at.file_number, at.position) <= (split_file_name(place.binlog.file)[1], place.binlog.position)
        return previous if is_same and is_past and at.binlog.file in files else None

    def _view(
        self, stack: ExitStack, order: DumpOrder, names: Sequence[Table], *, is_exact: bool
    ) -> tuple[Place, Readers | None]:
        if not is_exact:
            return consistency.settled_place(self._target, names), None
        readers = stack.enter_context(consistency.open_readers(self._target, order.parallel, names))
        return readers.place, readers

    def _position(
        self, connection: Connection, order: DumpOrder, known: Plan | None, place: Place, prepared: Collection[str]
    ) -> SourcePosition:
        """Return the place in an epoch: that of the continued plan, else that of the existing log, else the first.

        :raises SourceUnreachableError: the log has not continued on this server yet.
        """
        first = first_epoch(read_identity(connection).system_id, place.binlog, place.gtid)
        if known is not None:
            return replace(first, epochs=SourcePosition.from_json(known.position).epochs)
        if order.log is not None:
            epoch_of(connection, order.log)
            return replace(first, epochs=SourcePosition.from_json(order.log).epochs)
        return with_prepared(connection, first, prepared, lambda: connect(self._target))


def _is_of_server(plan: Plan, connection: Connection, place: Place) -> bool:
    """Return whether the plan is of the server that is at ``place`` now."""
    epoch = SourcePosition.from_json(plan.position).epoch
    return (epoch.server, epoch.base) == (read_identity(connection).system_id, split_file_name(place.binlog.file)[0])


def _unfinished(order: DumpOrder, known: Plan | None, done: DoneChunks) -> list[TableRecord]:
    finished = {table.record.table_id for table in known.tables if is_complete(table, done)} if known else set()
    return [record for record in order.tables if record.table_id not in finished]


def _names(records: Sequence[TableRecord]) -> list[Table]:
    return [(record.schema_name, record.name) for record in records]


def _keyed_otherwise(records: Sequence[TableRecord], schemas: Mapping[int, TableSchema]) -> list[Table]:
    """Return the tables whose key has changed since they were found."""
    return [
        (record.schema_name, record.name) for record in records if set(record.key) != set(schemas[record.table_id].key)
    ]


def _row_image(connection: Connection) -> str:
    [(image,)] = connection.query("SELECT @@global.binlog_row_image")
    return str(image).upper()


class MysqlDump:
    """Implements ``agent.ports.snapshot.DumpSession``. ``guard`` holds the tables' definitions; without ``readers``, a
    Spark task reads each chunk."""

    def __init__(
        self,
        order: DumpOrder,
        plan: Plan,
        guard: Connection,
        executor: Executor,
        readers: Readers | None,
        cascading: Collection[Table] = (),
    ) -> None:
        self._order = order
        self._guard = guard
        self._executor = executor
        self._pool = _ReaderPool(guard.target, readers.connections) if readers else None
        self._cascading = cascading
        self.plan = plan

    def is_paced(self, table: TablePlan) -> bool:
        return self._pool is not None or is_undivided(self._order, table)

    def stage(self, chunks: Sequence[ChunkToStage]) -> list[Staged]:
        free = list(takewhile(lambda chunk: not self._is_cascading(chunk.table), chunks))
        return self._read(free) if free else [self._refusal()]

    def _read(self, chunks: Sequence[ChunkToStage]) -> list[Staged]:
        tasks = [self._task(chunk) for chunk in chunks]
        if self._pool is not None:
            return [self._stage_exactly(self._pool, task) for task in tasks]
        if self.is_paced(chunks[0].table):  # a task that waits would keep its core from other tables
            assert self._order.pace is not None
            return [stage_chunk(task, self._order.pace) for task in tasks]
        [staged] = self._executor.map(stage_chunks, [tasks], description=described(chunks))
        return staged

    def _stage_exactly(self, pool: "_ReaderPool", task: ChunkTask) -> tuple[StagedFile, ...]:
        with pool.reader() as reader, closing(snapshot.select_rows(reader, task.schema, task.chunk)) as batches:
            return _stage(task, paced(batches, self._order.pace) if self._order.pace else batches)

    def _task(self, chunk: ChunkToStage) -> ChunkTask:
        table, order = chunk.table, self._order
        assert isinstance(table.chunks, ChunkPlan), "planned here"
        rows = table.chunks.chunk(chunk.number)
        ts, target = table.record.start_ts, self._guard.target
        return ChunkTask(target, table.record, table.schema, rows, chunk.id, ts, order.filter, order.open_sink)

    def _is_cascading(self, table: TablePlan) -> bool:
        return (table.record.schema_name, table.record.name) in self._cascading

    def _refusal(self) -> TableHeldError:
        return TableHeldError(
            f"foreign keys change its rows by themselves (CASCADE, SET NULL), which {self._guard.target} does "
            "not log; give them no action, or leave the table out"
        )

    def verify(self) -> None:
        """Check that the definitions were held while chunks were read."""
        self._guard.query("SELECT 1")

    def is_alive(self) -> bool:
        try:
            self.verify()
        except SourceError:
            return False
        return self._pool is None or self._pool.is_alive


class _ReaderPool:
    """Sessions for concurrent readers. A session whose transaction ended is lost, and the common state with the last
    one; failures of the sink or of a value do not lose sessions."""

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
        """Borrow a session.

        :raises SourceUnreachableError: no session is left.
        """
        connection = self._free.get()
        if connection is None:
            self._free.put(None)  # wake the next waiting thread
            raise SourceUnreachableError(
                f"the dump's sessions with {self._target} were lost; it continues with new ones by itself"
            )
        try:
            yield connection
        except BaseException:
            if not connection.is_in_transaction():
                self._lose(connection)
                raise
            self._free.put(connection)
            raise
        self._free.put(connection)

    def _lose(self, connection: Connection) -> None:
        """Drop a session: it would read another state from now on."""
        connection.close()
        with self._counting:
            self._alive -= 1
        if not self._alive:
            self._free.put(None)
