"""Dumping PostgreSQL: a slot, the snapshot that is exported with it, and chunks read under that by Spark tasks.

A first run creates the permanent slot with its exported snapshot and plans chunks under it. While it reads, a session
under the same snapshot keeps the tables locked against rewrites, as pg_dump does.

A chunk that fails is tried again under the same snapshot while the exporting connection lives. When the run itself is
lost, so is the snapshot, and the next run exports a new one, at L2, through a temporary slot (the permanent slot, at
L1, keeps the changes since). Then, table by table:

- a table that is complete stays as it is: its rows are those of its own ``start_ts``;
- an upsert table that is divided by its integer key keeps its finished chunks, and the others are read at L2. Its rows
  are then of two moments. Replay from L1 mends that: every change carries its key and its whole new row, so for each
  key the last change in (L1, L2] leaves it as it was at L2, whatever moment the loaded row was of; keys without a
  change in between are the same in both. This holds once a flush reaches L2, not before: hence ``consistent_ts``. A
  chunk boundary is a key, and no update moves a row over it without being a delete and an insert in the log. A row that
  moves from a chunk read later to one read earlier is in neither: the log alone has it, so the log must have all of it.
  Hence a table that holds large values (TOAST), which updates leave out, is read again as below, unless its replica
  identity is FULL.
- any other table is read again from the start, at L2. A changelog or a table without a key would show changes of
  (L1, L2] twice. A plan by blocks is of no use under another snapshot: an update moves the row to another block, so it
  may lie in no chunk or in two, and where it lies in none and changed no more after L2, nothing would bring it back.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import structlog

from agent.filter.events import filter_snapshot
from agent.ports.executor import Executor
from agent.ports.sink import Sink, StagedFile
from agent.ports.snapshot import DoneChunks, DumpOrder, Plan, TablePlan
from agent.rows.schema import TableSchema
from agent.sources.postgres.publication.prover import first_proof
from agent.sources.postgres.server.connection import Connection, connect
from agent.sources.postgres.server.terms import AllTerms, read_terms
from agent.sources.postgres.server.uri import Target, parse_uri
from agent.sources.postgres.snapshot import rows as snapshot
from agent.sources.postgres.snapshot.chunks import Chunk, ChunkPlan
from agent.sources.postgres.snapshot.dump_plan import plan_tables
from agent.sources.postgres.snapshot.export import ExportedSnapshot, create_slot, drop_slot, slot_position
from reactor.ids import Ts
from reactor.records.changefeed import FilterConfig, TableRecord

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """What one Spark task is given. ``ts`` goes into rows that carry their commit's position (changelog)."""

    source: Target
    snapshot: str
    schema: TableSchema
    chunk: Chunk
    chunk_id: str
    ts: Ts
    filter: FilterConfig
    key: tuple[str, ...]
    open_sink: Callable[[], Sink]
    rows: str


def stage_chunk(task: ChunkTask) -> tuple[StagedFile, ...]:
    """Runs on an executor. :raises WeirError: source or sink failed; nothing of the chunk counts."""
    batches = snapshot.read_chunk(task.source, task.snapshot, task.schema, task.chunk, task.key, rows=task.rows)
    schema, rows = filter_snapshot(task.filter, task.schema, batches)
    return tuple(task.open_sink().writer().stage(schema, task.chunk_id, rows, task.ts))


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
        is_resumed = self._prepare_slot(previous, order.epoch)
        known = previous if is_resumed else None
        with (
            self._export(order.epoch, is_resumed=is_resumed) as export,
            snapshot.session(self._target, export.snapshot) as guard,
        ):
            tables = [table.table_id for table in order.tables]
            position = known.position if known else first_proof(guard, self._publications, tables)
            terms = read_terms(guard, self._publications)
            plan = plan_tables(order, guard, start_ts=export.start_ts, previous=known, done=done, terms=terms)
            plan = replace(plan, position=position)
            yield PostgresDump(order, plan, export, guard, executor, terms)

    def settle(self, tables: Sequence[TableRecord]) -> tuple[TableRecord, ...]:
        """The plan says it all."""
        return tuple(tables)

    def _prepare_slot(self, previous: Plan | None, epoch: int) -> bool:
        """True when the slot is where the plan says; any other slot of that name is a crash's, and is dropped."""
        slot = self._slot
        with connect(self._target) as connection:
            is_resumed = previous is not None and slot_position(connection, slot) == previous.start_ts + 1
            if not is_resumed:
                drop_slot(connection, slot)
        _log.info("dump starts", slot=slot, is_resumed=is_resumed, epoch=epoch)
        return is_resumed

    def _export(self, epoch: int, *, is_resumed: bool) -> ExportedSnapshot:
        if not is_resumed:
            return create_slot(self._target, self._slot)
        # A slot's name has 63 characters at most.
        return create_slot(self._target, f"{self._slot[:44]}_dump_{epoch}", is_temporary=True)


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

    def stage(self, table: TablePlan, number: int, chunk_id: str) -> tuple[StagedFile, ...]:
        assert isinstance(table.chunks, ChunkPlan), "planned here"
        task = ChunkTask(
            source=self._guard.target,
            snapshot=self._export.snapshot,
            schema=table.schema,
            chunk=table.chunks.chunk(number),
            chunk_id=chunk_id,
            ts=table.record.start_ts,
            filter=self._order.filter,
            key=table.record.key,
            open_sink=self._order.open_sink,
            rows=self._terms.of(table.record.table_id).rows,
        )
        name = f"dump {table.schema.qualified_name} {number + 1}/{table.chunks.count}"
        [files] = self._executor.map(stage_chunk, [task], description=name)
        return files

    def verify(self) -> None:
        """The tables were locked for as long as they were read: see ``dump_plan``."""
        self._guard.query("SELECT 1")

    def is_alive(self) -> bool:
        return self._export.is_alive()
