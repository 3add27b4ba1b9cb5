"""The dump unit: every row of every table, staged where load takes it over, consistent with where sync will start.

A first run creates the permanent slot with its exported snapshot, plans chunks under it, and has Spark tasks read
them: one small job per chunk, ``parallel`` at a time, so that progress shows chunk by chunk and a slow chunk holds up
nobody. What is finished goes into the manifest (``agent.units.manifest``) within a second.

While it reads, a session under the same snapshot keeps the tables locked against rewrites, as pg_dump does.

A chunk that fails is tried again under the same snapshot while the exporting connection lives. When the run itself is
lost, so is the snapshot, and the next run exports a new one, at L2, through a temporary slot (the permanent slot, at
L1, keeps the changes since). Then, table by table:

- a table that is complete stays as it is: its rows are those of its own ``start_ts``;
- an upsert table that is cut by its integer key keeps its finished chunks, and the others are read at L2. Its rows are
  then of two moments. Replay from L1 mends that: every change carries its key and its whole new row, so for each key
  the last change in (L1, L2] leaves it as it was at L2, whatever moment the loaded row was of; keys without a change
  in between are the same in both. This holds once a flush reaches L2, not before: hence ``consistent_ts``. A chunk
  boundary is a key, and no update moves a row over it without being a delete and an insert in the log.
  A row that moves from a chunk read later to one read earlier is in neither: the log alone has it, so the log must have
  all of it. Hence a table that holds large values (TOAST), which updates leave out, is read again as below, unless its
  replica identity is FULL.
- any other table is read again from the start, at L2. A changelog or a table without a key would show changes of
  (L1, L2] twice. A plan by blocks is of no use under another snapshot: an update moves the row to another block, so it
  may lie in no chunk or in two, and where it lies in none and changed no more after L2, nothing would bring it back.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import anyio
import anyio.to_thread
import structlog

from agent.ports import Executor
from agent.sources.postgres.connection import connect
from agent.sources.postgres.export import ExportedSnapshot, create_slot, drop_slot, slot_position
from agent.sources.postgres.snapshot import session
from agent.sources.postgres.uri import parse_uri
from agent.units.chunk_run import ChunkRun
from agent.units.dump_plan import DumpOrder, is_complete, plan_tables
from agent.units.manifest import DoneChunks, Manifest, Plan
from reactor.errors import WeirError
from reactor.ids import Ts
from reactor.records import TableRecord

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class DumpProgress:
    """How far a dump is; ``rows_total`` is an estimate until the end. The fields are those of ``UnitRecord``."""

    tables: tuple[TableRecord, ...]
    start_ts: Ts
    rows_done: int
    rows_total: int
    bytes_done: int
    manifest: str


class DumpUnit:
    """One run of the unit. ``on_progress`` is called from the unit's own thread."""

    def __init__(
        self,
        order: DumpOrder,
        manifest: Manifest,
        executor: Executor,
        *,
        on_progress: Callable[[DumpProgress], None] = lambda _: None,
    ) -> None:
        self._order = order
        self._target = parse_uri(order.source)
        self._manifest = manifest
        self._executor = executor
        self._on_progress = on_progress
        self._stopped = threading.Event()

    async def run(self) -> DumpProgress:
        """Dump to the end. When cancelled, the chunks being read are waited for, and then nothing runs any more.

        :raises WeirError: it cannot go on; what is finished is kept for the next run.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stop_on_cancel)
            try:
                return await anyio.to_thread.run_sync(self.run_blocking)
            except WeirError as error:
                failure = error  # raised below: the group would wrap it
            finally:
                tasks.cancel_scope.cancel()
        raise failure

    async def _stop_on_cancel(self) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            self._stopped.set()

    def run_blocking(self) -> DumpProgress:
        """As ``run``, in the caller's thread."""
        previous = self._manifest.read_plan()
        done = self._manifest.read_done(previous) if previous else {}
        if previous and all(is_complete(table, done) for table in previous.tables):
            return self._progress(previous, done)
        # Names in the manifest carry the epoch: they are never used twice, even if an order is.
        order = replace(self._order, epoch=max(self._order.epoch, previous.epoch + 1 if previous else 0))
        is_resumed = self._prepare_slot(previous)
        known = previous if is_resumed else None
        with self._export(order, is_resumed=is_resumed) as export, session(self._target, export.snapshot) as guard:
            plan = plan_tables(order, guard, start_ts=export.start_ts, previous=known, done=done)
            self._manifest.write_plan(plan)
            done = self._manifest.read_done(plan)
            self._on_progress(self._progress(plan, done))
            run = ChunkRun(order, plan, export, self._manifest, self._executor, guard=guard)
            run.run(done, stopped=self._stopped, on_done=lambda: self._on_progress(self._progress(plan, done)))
        return self._progress(plan, done)

    def _prepare_slot(self, previous: Plan | None) -> bool:
        """True when the slot stands where the plan says; any other slot of that name is a crash's, and is dropped."""
        slot = self._order.slot
        with connect(self._target) as connection:
            is_resumed = previous is not None and slot_position(connection, slot) == previous.start_ts + 1
            if not is_resumed:
                drop_slot(connection, slot)
        _log.info("dump starts", slot=slot, is_resumed=is_resumed, epoch=self._order.epoch)
        return is_resumed

    def _export(self, order: DumpOrder, *, is_resumed: bool) -> ExportedSnapshot:
        if not is_resumed:
            return create_slot(self._target, order.slot)
        # A slot's name has 63 characters at most.
        name = f"{order.slot[:44]}_dump_{order.epoch}"
        return create_slot(self._target, name, is_temporary=True)

    def _progress(self, plan: Plan, done: DoneChunks) -> DumpProgress:
        files = [file for chunk in done.values() for file in chunk.files]
        rows = sum(file.rows for file in files)
        is_finished = all(is_complete(table, done) for table in plan.tables)
        estimate = sum(table.chunks.rows for table in plan.tables)
        return DumpProgress(
            tables=tuple(table.record for table in plan.tables),
            start_ts=plan.start_ts,
            rows_done=rows,
            rows_total=rows if is_finished else max(rows, estimate),
            bytes_done=sum(file.bytes for file in files),
            manifest=self._manifest.uri,
        )
