"""Copies of tables: stages all rows of one table again while its changefeed flows, and replaces the table by them.

A copy is a dump of one table: the same chunks, Spark tasks and manifest, at a position at which every earlier commit is
visible. Two things differ: the change log already exists and contains what comes after, so nothing is created at the
source; and the copy has its own manifest, by its number. A capture that continues a lost copy finds finished chunks
there.

Small tables are copied together: under one snapshot, by one Spark job for dozens of them. What fails then because of
one table alone, or was begun before, is copied table by table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from anyio import to_thread

from agent.errors import (
    CopyLostError,
    LogError,
    OpenTransactionsError,
    SinkUriError,
    SourceConfigError,
    SourceError,
    SourceUnreachableError,
)
from agent.feeds.runtime import Feed
from agent.filter.events import rules_for
from agent.filter.tables import rule_of
from agent.ports.executor import Executor
from agent.ports.sink import Replaces, StagedFile, TableCopy
from agent.ports.snapshot import DumpOrder, Plan, is_of_table
from agent.ports.source import SourceReport
from agent.rows.schema import TableSchema
from agent.sources.registry import arrow_schema
from agent.units import manifest_group
from agent.units.dump import DumpProgress, DumpUnit
from agent.units.manifest import Manifest
from agent.units.manifest_group import ManifestGroup
from reactor import failpoints
from reactor.errors import WeirError
from reactor.failpoints import Point
from reactor.ids import TableSpan
from reactor.records.tables.table import TableRecord

#: chunks read concurrently: the same executors also flush other tables
_PARALLEL = 2


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """The content of ``owner.questions.CopyTable``."""

    table: TableRecord
    number: int
    epoch: int
    log: str
    rows_per_second: int | None = None


def source_name(table_id: int, number: int) -> str:
    """Return the name of a copy's manifest among those of its changefeed."""
    return f"copy-{table_id}-{number}"


#: a table's record with ``start_ts``, and the number of its rows
Copied = tuple[TableRecord, int]


async def copy(feed: Feed, executor: Executor, order: CopyOrder, on_progress: Callable[[DumpProgress], None]) -> Copied:
    """Copy the table. ``on_progress`` is called on a thread.

    :raises WeirError: it cannot continue; finished chunks are kept for the next run.
    """
    source = feed.open_source()
    found = await to_thread.run_sync(_find, feed, order.table, abandon_on_cancel=True)
    manifest = _manifest(feed, order)
    unit = DumpUnit(source.dumper, _dump_order(feed, [(order, found)]), manifest, executor, on_progress=on_progress)
    done = await unit.run()
    await to_thread.run_sync(_refuse_partial, manifest, abandon_on_cancel=True)
    [table] = done.tables
    return _staged(order, table, done.rows_done)


async def copy_together(
    feed: Feed, executor: Executor, orders: Sequence[CopyOrder], on_progress: Callable[[DumpProgress], None]
) -> list[Copied | WeirError]:
    """Copy small tables; return for each its copy, or why there is none. ``on_progress`` is called on a thread, and
    tells what all of them wait for.

    :raises WeirError: none can be copied now.
    """
    found = await to_thread.run_sync(_find_new, feed, orders, abandon_on_cancel=True)
    copies: dict[int, Copied | WeirError] = {}
    if len(found) > 1:
        try:
            copies = await _copy_new(feed, executor, found, on_progress)
        except WeirError as error:
            if not _may_be_of_one(error):
                raise
    results: list[Copied | WeirError] = []
    for order in orders:
        try:
            result = copies.get(order.table.table_id) or await copy(feed, executor, order, lambda _: None)
        except WeirError as error:
            result = error
        results.append(result)
    return results


async def _copy_new(
    feed: Feed,
    executor: Executor,
    found: Sequence[tuple[CopyOrder, TableRecord]],
    on_progress: Callable[[DumpProgress], None],
) -> dict[int, Copied | WeirError]:
    """Return the copies by table. ``found``: orders that were never begun, and their tables at the source."""
    manifests = {table.table_id: _manifest(feed, order) for order, table in found}
    group = ManifestGroup(manifests)
    unit = DumpUnit(feed.open_source().dumper, _dump_order(feed, found), group, executor, on_progress=on_progress)
    done = await unit.run()
    tables = {table.table_id: table for table in done.tables}
    copies: dict[int, Copied | WeirError] = {}
    for order, table in found:
        chunks = group.done[table.table_id]
        assert chunks, "a dump ends when every chunk is read"
        if reason := next((chunk.refused for chunk in chunks if chunk.refused), ""):
            await to_thread.run_sync(_clear, manifests[table.table_id], abandon_on_cancel=True)
            copies[order.table.table_id] = _refused(reason)
        else:
            rows = sum(file.rows for chunk in chunks for file in chunk.files)
            copies[order.table.table_id] = _staged(order, tables[table.table_id], rows)
    return copies


def _staged(order: CopyOrder, table: TableRecord, rows: int) -> Copied:
    failpoints.reach(Point.COPY_STAGED)
    return table.with_(table_id=order.table.table_id), rows


def measure(feed: Feed, tables: Sequence[TableRecord]) -> dict[int, int]:
    """Return how many rows the source estimates, by table; without those that are gone, or cannot be copied now."""
    return {id: table.rows_estimated for id, table in _find_fit(feed, tables).items()}


def _dump_order(feed: Feed, found: Sequence[tuple[CopyOrder, TableRecord]]) -> DumpOrder:
    last, _ = found[-1]
    return DumpOrder(
        tables=tuple(table.with_(location=order.table.location) for order, table in found),
        sink_mode=feed.sink_mode,
        open_sink=feed.open_sink,
        epoch=max(order.epoch for order, _ in found),
        chunk_rows=feed.config.dump_chunk_rows,
        filter=feed.config.filter,
        log=last.log,
        parallel=_PARALLEL,
        pace=feed.pace(last.rows_per_second),
    )


def _manifest(feed: Feed, order: CopyOrder) -> Manifest:
    return feed.manifest(source_name(order.table.table_id, order.number))


def _refuse_partial(manifest: Manifest) -> None:
    """:raises SourceConfigError: the table cannot be copied; the next run starts over."""
    if refused := manifest.read_refused():
        _clear(manifest)
        raise _refused(next(iter(refused.values())))


def _refused(reason: str) -> SourceConfigError:
    return SourceConfigError(f"the table cannot be copied: {reason}")


def _clear(manifest: Manifest) -> None:
    manifest.directory.remove(manifest.directory.names())


def _find(feed: Feed, wanted: TableRecord) -> TableRecord:
    """Return the table's current record at the source; problems of other tables do not matter.

    :raises SourceConfigError: there is no such table, or it has been renamed, and another may have its name.
    :raises TableIneligibleError: it cannot be replicated as it is.
    """
    report, found = _discover(feed, [wanted])
    if wanted.table_id not in found:
        name = f"{wanted.schema_name}.{wanted.name}"
        raise SourceConfigError(
            f"there is no table {name} at the source to copy: it was dropped, or has another name whose change waits; "
            "see `weir tables`, and give it its name again or cancel this (weir table resync --cancel)"
        )
    table = found[wanted.table_id]
    report.refuse_unfit([table])
    return table


def _find_new(feed: Feed, orders: Sequence[CopyOrder]) -> list[tuple[CopyOrder, TableRecord]]:
    """Return orders that no run has begun, with their tables; without tables that are gone, or unfit."""
    are_new = manifest_group.are_new([_manifest(feed, order) for order in orders])
    new = [order for order, is_new in zip(orders, are_new, strict=True) if is_new]
    tables = _find_fit(feed, [order.table for order in new])
    return [(order, tables[order.table.table_id]) for order in new if order.table.table_id in tables]


def _find_fit(feed: Feed, tables: Sequence[TableRecord]) -> dict[int, TableRecord]:
    """Return current records of these tables, by their ids; without those that are gone, or that the source refuses. It
    refuses all of them for one (a missing privilege, a publication that lacks it): they are halved until that is alone.

    :raises SourceError: the source cannot be asked now.
    """
    if not tables:
        return {}
    try:
        report, found = _discover(feed, tables)
    except SourceError as error:
        if not _may_be_of_one(error):
            raise
        middle = len(tables) // 2
        return _find_fit(feed, tables[:middle]) | _find_fit(feed, tables[middle:]) if middle else {}
    return {id: table for id, table in found.items() if table.table_id not in report.unfit}


def _may_be_of_one(error: WeirError) -> bool:
    """Return whether the cause may be one of several tables."""
    is_of_all = error.code in (SourceUnreachableError.code, OpenTransactionsError.code)
    return is_of_table(error) or (isinstance(error, SourceError) and not is_of_all)


def _discover(feed: Feed, tables: Sequence[TableRecord]) -> tuple[SourceReport, dict[int, TableRecord]]:
    """Return what the source reports of these names, and by the ids of ``tables`` those that are the same there."""
    rules = tuple(rule_of(table.schema_name, table.name) for table in tables)
    source = replace(feed, config=feed.config.with_(filter=feed.config.filter.with_(rules=rules))).open_source()
    report = source.discover()
    there = {(table.schema_name, table.name): table for table in report.tables}
    found = {wanted.table_id: there.get((wanted.schema_name, wanted.name)) for wanted in tables}
    is_same = {id for id, table in found.items() if table and (table.table_id == id or not source.numbers_tables)}
    return report, {id: table for id, table in found.items() if table is not None and id in is_same}


def place(
    feed: Feed, table: TableRecord, spans: tuple[TableSpan, ...], number: int, *, timeline: int, cut: int = 0
) -> None:
    """Replace the table by a finished copy; idempotent. ``timeline``: of the server whose log the table has followed up
    to the copy, 0 if an earlier version reads it. ``cut``: the number of the repartition that made the spans.

    :raises CopyLostError: the copy is gone, or incomplete, or of another timeline.
    :raises SinkError: the sink refuses it.
    """
    sink = feed.open_sink()
    if not isinstance(sink, Replaces):
        raise SinkUriError(f"this sink cannot put a copy in the place of {table.schema_name}.{table.name}")
    manifest = feed.manifest(source_name(table.table_id, number))
    plan, schema, files = _read(manifest)
    if timeline and plan.timeline not in (0, timeline):
        raise CopyLostError(
            f"another server has taken the place of the one that {table.schema_name}.{table.name} was copied from, and "
            "may lack rows of the copy; the table is copied again"
        )
    failpoints.reach(Point.COPY_BEFORE_SINK)
    selected = rules_for(feed.config.filter, table.schema_name, table.name).select(schema)
    sink.replace(TableCopy(table, spans, selected, arrow_schema(selected), files, cut, number))
    failpoints.reach(Point.COPY_AFTER_SINK)


def _read(manifest: Manifest) -> tuple[Plan, TableSchema, tuple[StagedFile, ...]]:
    try:
        plan = manifest.require_plan()
        [(_, schema, files)] = manifest.staged(plan)
    except LogError as error:
        raise CopyLostError(f"{error}; the table is copied again") from error
    return plan, schema, tuple(files)
