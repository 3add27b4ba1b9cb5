"""Load unit: creates the sink's tables from what a dump has staged, one commit each.

It writes no rows: the sink takes over the staged files in place and records each table's ``start_ts``. Tables that are
already loaded are skipped, so running the unit again resumes it. Without a dump (mode ``incremental``),
``create_empty`` creates the tables empty in the same way. Creating a table mostly waits for its storage, so several
are created at a time where the sink allows it.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import anyio
import structlog
from anyio import CapacityLimiter, to_thread

from agent.filter.events import rules_for
from agent.ports.sink import Sink, StagedFile
from agent.rows.schema import TableSchema
from agent.sources.registry import arrow_schema
from agent.units.manifest import read_manifest
from reactor import failpoints
from reactor.failpoints import Point
from reactor.records.changefeed import NO_FILTER, FilterConfig
from reactor.records.tables.table import TableRecord

_log = structlog.get_logger()


class LoadUnit:
    """``on_progress`` receives loaded and total rows, on the event loop."""

    def __init__(
        self,
        manifest: str,
        sink: Sink,
        filter: FilterConfig = NO_FILTER,
        *,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._manifest = manifest
        self._sink = sink
        self._filter = filter
        self._on_progress = on_progress

    async def run(self) -> None:
        """Load every table of the dump.

        :raises LogError: the dump's manifest cannot be read, or the dump is not finished.
        :raises SinkError: the sink refuses a table; those that are loaded stay so.
        """
        tables = await to_thread.run_sync(lambda: list(read_manifest(self._manifest)))
        unfit = _unfit(self._sink, [record for record, _, _ in tables])
        progress = _Progress(sum(file.rows for _, _, files in tables for file in files), self._on_progress)
        waiting = iter([table for table in tables if table[0].table_id not in unfit])
        failures: list[Exception] = []
        at_once = self._sink.capabilities.loads_at_once
        limiter = CapacityLimiter(at_once)

        async def load_next() -> None:
            for record, schema, files in waiting:
                work = partial(_load, self._sink, record, schema, files, self._filter)
                try:
                    await to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
                except Exception as error:  # raised below: the task group would wrap it
                    failures.append(error)
                if failures:
                    return
                failpoints.reach(Point.LOAD_LOADED)
                _log.info("table loaded", table=schema.qualified_name, files=len(files), start_ts=record.start_ts)
                progress.add(files)

        async with anyio.create_task_group() as tasks:
            for _ in range(at_once):
                tasks.start_soon(load_next)
        if failures:
            raise failures[0]


class _Progress:
    """Loaded rows, of ``total``."""

    def __init__(self, total: int, report: Callable[[int, int], None] | None) -> None:
        self._total = total
        self._report = report
        self._done = 0

    def add(self, files: Sequence[StagedFile]) -> None:
        self._done += sum(file.rows for file in files)
        if self._report is not None:
            self._report(self._done, self._total)


def create_empty(
    sink: Sink, tables: Iterable[tuple[TableRecord, TableSchema]], filter: FilterConfig = NO_FILTER
) -> None:
    """Create tables without rows, each recorded at its ``start_ts``; existing ones stay.

    :raises SinkError: the sink refuses a table.
    """
    wanted = list(tables)
    unfit = _unfit(sink, [record for record, _ in wanted])
    fit = [(record, schema) for record, schema in wanted if record.table_id not in unfit]
    with ThreadPoolExecutor(sink.capabilities.loads_at_once, thread_name_prefix="weir-load") as threads:
        made = [threads.submit(_load, sink, record, schema, [], filter) for record, schema in fit]
        try:
            for one in made:
                one.result()
        finally:
            threads.shutdown(cancel_futures=True)


def _unfit(sink: Sink, tables: Sequence[TableRecord]) -> dict[int, str]:
    """Return the tables that are not loaded, with the reason. The sink refuses to open them for writing, which holds
    them."""
    found = sink.unfit(tables)
    for reason in found.values():
        _log.warning("a table is not loaded", reason=reason)
    return found


def _load(sink: Sink, record: TableRecord, schema: TableSchema, files: list[StagedFile], filter: FilterConfig) -> None:
    selected = rules_for(filter, record.schema_name, record.name).select(schema)
    sink.load(record, selected, arrow_schema(selected), files)
