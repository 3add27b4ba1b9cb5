"""Copies of tables: stages all rows of one table again while its changefeed flows, and replaces the table by them.

A copy is a dump of one table: the same chunks, Spark tasks and manifest, at a position at which every earlier commit is
visible. Two things differ: the change log already exists and contains what comes after, so nothing is created at the
source; and the copy has its own manifest, by its number. A capture that continues a lost copy finds finished chunks
there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from anyio import to_thread

from agent.errors import CopyLostError, LogError, SinkUriError, SourceConfigError
from agent.feeds.runtime import Feed
from agent.filter.events import rules_for
from agent.ports.executor import Executor
from agent.ports.sink import Replaces, StagedFile, TableCopy
from agent.ports.snapshot import DumpOrder
from agent.rows.schema import TableSchema
from agent.sources.registry import arrow_schema
from agent.units.dump import DumpProgress, DumpUnit
from agent.units.manifest import Manifest, read_manifest
from reactor import failpoints
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


async def copy(
    feed: Feed, executor: Executor, order: CopyOrder, on_progress: Callable[[DumpProgress], None]
) -> tuple[TableRecord, int]:
    """Copy the table; return its record with ``start_ts``, and the number of rows. ``on_progress`` is called on a
    thread.

    :raises WeirError: it cannot continue; finished chunks are kept for the next run.
    """
    source = feed.open_source()
    found = await to_thread.run_sync(_find, feed, order.table, abandon_on_cancel=True)
    manifest = feed.manifest(source_name(order.table.table_id, order.number))
    unit = DumpUnit(
        source.dumper,
        DumpOrder(
            tables=(found.with_(location=order.table.location),),
            sink_mode=feed.sink_mode,
            open_sink=feed.open_sink,
            epoch=order.epoch,
            chunk_rows=feed.config.dump_chunk_rows,
            filter=feed.config.filter,
            log=order.log,
            parallel=_PARALLEL,
            pace=feed.pace(order.rows_per_second),
        ),
        manifest,
        executor,
        on_progress=on_progress,
    )
    done = await unit.run()
    await to_thread.run_sync(_refuse_partial, manifest, abandon_on_cancel=True)
    failpoints.reach(Point.COPY_STAGED)
    [table] = done.tables
    return table.with_(table_id=order.table.table_id), done.rows_done


def _refuse_partial(manifest: Manifest) -> None:
    """:raises SourceConfigError: the table cannot be copied; the next run starts over."""
    if refused := manifest.read_refused():
        manifest.directory.remove(manifest.directory.names())
        raise SourceConfigError(f"the table cannot be copied: {next(iter(refused.values()))}")


def _find(feed: Feed, wanted: TableRecord) -> TableRecord:
    """Return the table's current record at the source; problems of other tables do not matter.

    :raises SourceConfigError: there is no such table, or it has been renamed, and another may have its name.
    :raises TableIneligibleError: it cannot be replicated as it is.
    """
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (wanted.schema_name, wanted.name))
    alone = feed.config.with_(filter=feed.config.filter.with_(rules=(quoted,)))
    source = replace(feed, config=alone).open_source()
    report = source.discover()
    for table in report.tables:
        is_it = table.table_id == wanted.table_id or not source.numbers_tables
        if is_it and (table.schema_name, table.name) == (wanted.schema_name, wanted.name):
            report.refuse_unfit([table])
            return table
    name = f"{wanted.schema_name}.{wanted.name}"
    raise SourceConfigError(
        f"there is no table {name} at the source to copy: it was dropped, or has another name whose change waits; see "
        "`weir tables`, and give it its name again or cancel this (weir table resync --cancel)"
    )


def place(feed: Feed, table: TableRecord, spans: tuple[TableSpan, ...], number: int, *, cut: int = 0) -> None:
    """Replace the table by a finished copy; idempotent. ``cut``: the number of the repartition that made the spans.

    :raises CopyLostError: the copy is gone, or incomplete.
    :raises SinkError: the sink refuses it.
    """
    sink = feed.open_sink()
    if not isinstance(sink, Replaces):
        raise SinkUriError(f"this sink cannot put a copy in the place of {table.schema_name}.{table.name}")
    manifest = feed.manifest(source_name(table.table_id, number))
    schema, files = _read(manifest)
    failpoints.reach(Point.COPY_BEFORE_SINK)
    selected = rules_for(feed.config.filter, table.schema_name, table.name).select(schema)
    sink.replace(TableCopy(table, spans, selected, arrow_schema(selected), files, cut))
    failpoints.reach(Point.COPY_AFTER_SINK)


def _read(manifest: Manifest) -> tuple[TableSchema, tuple[StagedFile, ...]]:
    try:
        [(_, schema, files)] = read_manifest(manifest.uri)
    except LogError as error:
        raise CopyLostError(f"{error}; the table is copied again") from error
    return schema, tuple(files)
