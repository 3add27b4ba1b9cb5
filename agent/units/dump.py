"""Dump unit: stages every row of every table for the load unit, consistent with the position where sync will start.

The source ensures a consistent view, and decides which results of a lost run are still valid. The unit hands out
chunks, ``parallel`` at a time, each as a small job, so that progress is visible per chunk and a slow chunk delays no
other. Finished chunks are recorded in the manifest (``agent.units.manifest``) within a second, and a run after a lost
one continues from there.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from agent.pacing import run_stoppable
from agent.ports.executor import Executor
from agent.ports.snapshot import DoneChunks, DumpOrder, Plan, is_complete
from agent.ports.source import BEGIN, Dumper, Position
from agent.units.chunk_run import ChunkRun
from agent.units.manifest_group import AnyManifest
from agent.units.waiting import Waiting
from reactor.records.changefeed import RunningError
from reactor.records.tables.table import TableRecord


@dataclass(frozen=True, slots=True)
class DumpProgress:
    """The progress of a dump; ``rows_total`` is an estimate until the end. Without tables: they are not known yet.
    ``timeline``: see ``Plan``."""

    tables: tuple[TableRecord, ...]
    start: Position
    rows_done: int
    rows_total: int
    bytes_done: int
    manifest: str
    #: what its beginning waits for
    trouble: RunningError | None = None
    timeline: int = 0


class DumpUnit:
    """One run of the unit. ``on_progress`` is called on the unit's own thread."""

    def __init__(
        self,
        dumper: Dumper,
        order: DumpOrder,
        manifest: AnyManifest,
        executor: Executor,
        *,
        on_progress: Callable[[DumpProgress], None] = lambda _: None,
    ) -> None:
        self._dumper = dumper
        self._order = order
        self._manifest = manifest
        self._executor = executor
        self._on_progress = on_progress
        #: those of earlier runs
        self._rows_before = 0
        #: of the monotonic clock
        self._report_at = 0.0
        self._stopped = order.pace.stopped if order.pace else threading.Event()

    async def run(self) -> DumpProgress:
        """Run the dump. When cancelled, wait for the chunks being read; then nothing runs any more.

        :raises WeirError: it cannot continue; finished chunks are kept for the next run.
        """
        return await run_stoppable(self.run_blocking, self._stopped)

    def run_blocking(self) -> DumpProgress:
        """Run in the caller's thread."""
        previous = self._manifest.read_plan()
        done = self._manifest.read_done(previous) if previous else {}
        while True:
            if previous is None or not all(is_complete(table, done) for table in previous.tables):
                previous, done = self._run(previous, done)
            if (tables := self._dumper.settle(previous)) is not None:
                return replace(self._progress(previous, done), tables=tables)
            done = {}

    def _run(self, previous: Plan | None, done: DoneChunks) -> tuple[Plan, DoneChunks]:
        # Names in the manifest contain the epoch, so they are never reused, even if an order is.
        epoch = max(self._order.epoch, previous.epoch + 1 if previous else 0)
        at = self._progress(previous, done) if previous else DumpProgress((), BEGIN, 0, 0, 0, self._manifest.uri)
        waiting = Waiting(lambda trouble: self._on_progress(replace(at, trouble=trouble)), self._stopped)
        order = replace(self._order, epoch=epoch, wait=waiting.wait)
        with self._dumper.open(order, previous, done, self._executor) as session:
            plan = session.plan
            self._manifest.write_plan(plan)
            done = self._manifest.read_done(plan)
            self._rows_before = sum(file.rows for chunk in done.values() for file in chunk.files)
            self._on_progress(self._progress(plan, done))
            run = ChunkRun(order, session, self._manifest)
            run.run(done, stopped=self._stopped, on_done=lambda: self._report(plan, done))
        self._on_progress(self._progress(plan, done))
        return plan, done

    def _report(self, plan: Plan, done: DoneChunks) -> None:
        """Adding up the chunks of thousands of tables takes longer than reading one of them: it may take a tenth of the
        time."""
        began = time.monotonic()
        if began >= self._report_at:
            self._on_progress(self._progress(plan, done))
            ended = time.monotonic()
            self._report_at = ended + 9 * (ended - began)

    def _rows_paid(self) -> int:
        """Where reading is limited, a chunk may take long: what is read of it counts as progress."""
        pace = self._order.pace
        return self._rows_before + pace.rows if pace and pace.is_limited else 0

    def _progress(self, plan: Plan, done: DoneChunks) -> DumpProgress:
        files = [file for chunk in done.values() for file in chunk.files]
        rows = sum(file.rows for file in files)
        shown = max(rows, self._rows_paid())
        is_finished = all(is_complete(table, done) for table in plan.tables)
        estimate = sum(table.chunks.rows for table in plan.tables)
        return DumpProgress(
            tables=tuple(table.record for table in plan.tables),
            start=Position(plan.start_ts, plan.position),
            rows_done=rows if is_finished else shown,
            rows_total=rows if is_finished else max(shown, estimate),
            bytes_done=sum(file.bytes for file in files),
            manifest=self._manifest.uri,
            timeline=plan.timeline,
        )
