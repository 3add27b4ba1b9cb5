"""Dumps of PostgreSQL: a slot, the snapshot that is exported with it, and chunks that Spark tasks read under it.

The first run creates the permanent slot with its exported snapshot, and plans chunks under it. During the dump, a
session under the same snapshot locks the tables against rewrites, as pg_dump does. A statement that waits for that lock
makes all later readers of its table wait, those of chunks too. So a chunk waits for its lock for a moment only; then
the run ends, the statement is executed, and the next run reads the table as it is by then.

A chunk that fails is retried under the same snapshot while the exporting connection exists. If the run itself is
interrupted, the snapshot is lost, and the next run exports a new one, at L2, through a temporary slot (the permanent
slot, at L1, keeps the changes since). Then, table by table:

- a complete table stays as it is: its rows are those of its own ``start_ts``;
- an upsert table that is divided by its integer key keeps its finished chunks, and the others are read at L2. Its rows
  are then of two moments. Replay from L1 makes them consistent: every change has its key and its whole new row, so for
  each key the last change in (L1, L2] gives its state at L2, whatever moment the loaded row was of; keys without a
  change in between are the same in both. This holds once a flush reaches L2, not before: hence ``consistent_ts``. A
  chunk boundary is a key, and an update that moves a row across it is a delete and an insert in the log. A row that
  moves from a chunk read later to one read earlier is in neither: it comes from the log alone, which must then have all
  of it. Hence a table with large values (TOAST), which updates omit, is read again as below, unless its replica
  identity is FULL.
- any other table is read again from the start, at L2. A changelog or a table without a key would show changes of
  (L1, L2] twice. A plan by blocks is invalid under another snapshot: an update moves the row to another block, so it
  may be in no chunk or in two; and if it is in none and does not change after L2, it would stay missing.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

import pyarrow as pa
import structlog

from agent.errors import SourceUnreachableError, TableLockedError
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
    Wait,
    described,
    is_undivided,
    stage_each,
)
from agent.rows.schema import TableSchema
from agent.sources.postgres.publication.prover import first_proof
from agent.sources.postgres.publication.slots import drop_slot
from agent.sources.postgres.server import table_locks
from agent.sources.postgres.server.connection import Connection, catalog_session
from agent.sources.postgres.server.identity import primary_timeline
from agent.sources.postgres.server.terms import AllTerms, read_terms
from agent.sources.postgres.server.uri import Target, parse_uri
from agent.sources.postgres.snapshot import rows as snapshot
from agent.sources.postgres.snapshot.chunks import Chunk, ChunkPlan
from agent.sources.postgres.snapshot.dump_plan import plan_tables
from agent.sources.postgres.snapshot.export import ExportedSnapshot, create_slot, slot_position
from reactor.records.changefeed import FilterConfig
from reactor.records.tables.table import TableRecord

#: how long a statement that changes a table keeps a chunk waiting, before the run ends for it
_YIELD_MS = 3_000

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """One chunk of a Spark task."""

    source: Target
    snapshot: str
    table: TableRecord
    schema: TableSchema
    chunk: Chunk
    chunk_id: str
    filter: FilterConfig
    open_sink: Callable[[], Sink]
    rows: str


def stage_chunk(task: ChunkTask, pace: Pace) -> tuple[StagedFile, ...]:
    """Runs on the capture.

    :raises WeirError: source or sink failed; nothing of the chunk counts.
    """
    batches = snapshot.read_chunk(
        task.source, task.snapshot, task.schema, task.chunk, task.table.key, rows=task.rows, lock_timeout_ms=_YIELD_MS
    )
    return _stage(task, paced(batches, pace))


def stage_chunks(tasks: Sequence[ChunkTask]) -> list[Staged]:
    """Runs on an executor: as ``stage_chunk`` one after another, over one connection as long as it is intact."""
    with closing(snapshot.ChunkReader(tasks[0].source, tasks[0].snapshot, lock_timeout_ms=_YIELD_MS)) as reader:

        def stage(task: ChunkTask) -> tuple[StagedFile, ...]:
            return _stage(task, reader.read(task.schema, task.chunk, task.table.key, rows=task.rows))

        return stage_each(tasks, stage)


def _stage(task: ChunkTask, batches: Iterator[pa.RecordBatch]) -> tuple[StagedFile, ...]:
    rows = filter_snapshot(task.filter, task.schema, batches)
    return tuple(task.open_sink().writer().stage(task.table, task.chunk_id, rows, task.table.start_ts))


class PostgresDumper:
    """``agent.ports.source.Dumper``. The tables of an order are published already: what changes between the slot's
    start and a later publication would be in neither snapshot nor stream."""

    def __init__(self, uri: str, slot: str, publications: Sequence[str] = ()) -> None:
        self._target = parse_uri(uri)
        self._slot = slot
        self._publications = publications

    @contextmanager
    def open(
        self, order: DumpOrder, previous: Plan | None, done: DoneChunks, executor: Executor
    ) -> "Iterator[PostgresDump]":
        is_beside = order.log is not None  # the log keeps what comes after an earlier run's snapshot
        timeline = self._timeline()
        if previous is not None and timeline and previous.timeline not in (0, timeline):
            previous = None  # its rows may have what the promoted server never had
        is_resumed = previous is not None if is_beside else self._prepare_slot(previous, order.epoch)
        known = previous if is_resumed else None
        with (
            self._export(order.wait, timeline, is_beside=is_resumed or is_beside) as export,
            snapshot.session(self._target, export.snapshot, lock_timeout_ms=table_locks.LOCK_WAIT_MS) as guard,
        ):
            terms = read_terms(guard, self._publications)
            try:
                plan = plan_tables(order, guard, start_ts=export.start_ts, previous=known, done=done, terms=terms)
            except TableLockedError as error:
                names = [(table.schema_name, table.name) for table in order.tables]
                raise table_locks.named(error, self._target, names, table_locks.READING) from error
            if known or is_beside:
                position = known.position if known else ""
            else:
                ids = [table.record.table_id for table in plan.tables]
                position = first_proof(guard, self._publications, ids, timeline=export.timeline)
            plan = replace(plan, position=position, timeline=export.timeline)
            yield PostgresDump(order, plan, export, guard, executor, terms)

    def settle(self, plan: Plan) -> tuple[TableRecord, ...]:
        """The plan has everything."""
        return tuple(table.record for table in plan.tables)

    def _prepare_slot(self, previous: Plan | None, epoch: int) -> bool:
        """Return True if the slot is at the plan's position; any other slot of that name is a leftover, and is
        dropped."""
        slot = self._slot
        with catalog_session(self._target) as connection:
            is_resumed = previous is not None and slot_position(connection, slot) == previous.start_ts + 1
            if not is_resumed:
                drop_slot(connection, slot)
        _log.info("dump starts", slot=slot, is_resumed=is_resumed, epoch=epoch)
        return is_resumed

    def _timeline(self) -> int:
        with catalog_session(self._target) as connection:
            return primary_timeline(connection)

    def _export(self, wait: Wait, timeline: int, *, is_beside: bool) -> ExportedSnapshot:
        """:raises SourceUnreachableError: the server is not on the timeline."""
        if not is_beside:
            export = create_slot(self._target, self._slot, wait)
        else:  # slot names have up to 63 characters; the slot of an earlier run may take a moment to end
            slot = f"{self._slot[:44]}_dump_{uuid4().hex[:12]}"
            export = create_slot(self._target, slot, wait, is_temporary=True)
        if timeline not in (0, export.timeline):
            export.close()
            raise SourceUnreachableError(
                f"another server was promoted behind {self._target} as the dump began; try again"
            )
        return export


class PostgresDump:
    """``agent.ports.snapshot.DumpSession``. ``guard`` is the session that holds the tables' locks."""

    def __init__(
        self,
        order: DumpOrder,
        plan: Plan,
        export: ExportedSnapshot,
        guard: Connection,
        executor: Executor,
        terms: AllTerms,
    ) -> None:
        self._order = order
        self._export = export
        self._guard = guard
        self._executor = executor
        self._terms = terms
        self.plan = plan

    def is_paced(self, table: TablePlan) -> bool:
        return is_undivided(self._order, table)

    def stage(self, chunks: Sequence[ChunkToStage]) -> list[Staged]:
        tasks = [self._task(chunk) for chunk in chunks]
        if self.is_paced(chunks[0].table):  # a task that waits would keep its core from other tables
            assert self._order.pace is not None
            return [stage_chunk(task, self._order.pace) for task in tasks]
        [staged] = self._executor.map(stage_chunks, [tasks], description=described(chunks))
        return staged

    def _task(self, chunk: ChunkToStage) -> ChunkTask:
        table = chunk.table
        assert isinstance(table.chunks, ChunkPlan), "planned here"
        return ChunkTask(
            source=self._guard.target,
            snapshot=self._export.snapshot,
            table=table.record,
            schema=table.schema,
            chunk=table.chunks.chunk(chunk.number),
            chunk_id=chunk.id,
            filter=self._order.filter,
            open_sink=self._order.open_sink,
            rows=self._terms.of(table.record.table_id).rows,
        )

    def verify(self) -> None:
        """Check that the tables were locked while they were read: see ``dump_plan``."""
        self._guard.query("SELECT 1")

    def is_alive(self) -> bool:
        return self._export.is_alive()
