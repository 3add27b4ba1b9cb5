"""Preflight: checks source, sink and filter before a changefeed is created, or continued; creates nothing."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agent.errors import (
    SinkConfigError,
    SinkFencedError,
    SinkPassingError,
    SourceConfigError,
    StatementRefusedError,
    TableHeldError,
    TableNameError,
)
from agent.feeds.runtime import Feed
from agent.filter import events
from agent.filter.events import rules_for
from agent.ports.sink import LaysOut, Sink
from agent.ports.source import Identity, Position, Scope, Signal, Source
from agent.sinks import capabilities_of, notices_of, open_sink
from agent.sinks.common.layouts import check_layouts, is_laid_out
from agent.sources import open_source
from agent.sources.registry import arrow_schema, check_settings
from capture.api.port import ChangefeedSpec
from capture.errors import ConfigError
from capture.security.reach import LookUp
from capture.security.secrets import resolve
from owner.scheduler.spans import even_spans
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import ChangefeedConfig, FilterConfig, Mode, SinkMode, UnitRecord
from reactor.records.log_head import LogHead
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.table import TableRecord

_NO_TABLE = "the filter takes in none of the source's tables, only such as are created later; is [filter] rules right?"
#: of tables that will be held
_NAMED = 10


def check_first(spec: ChangefeedSpec, cluster_id: str, look_up: LookUp) -> tuple[str, ...]:
    """Return warnings for the user about this changefeed, line by line.

    :raises WeirError: source or sink refuse this changefeed.
    """
    if spec.mode is Mode.LOAD_SYNC:
        raise ConfigError(
            "mode load-sync begins with a dump that is there, and a new changefeed has none; use mode all, or mode "
            "dump and, when it has finished, changefeed update --mode load-sync"
        )
    sink_uri, source_uri = resolve(spec.sink_uri, look_up), resolve(spec.source_uri, look_up)
    owner, layouts = f"{cluster_id}/{spec.changefeed_id}", spec.config.layout
    sink = open_sink(sink_uri, changefeed=owner, mode=spec.sink_mode, layouts=layouts)
    scope = Scope(cluster_id, spec.changefeed_id, spec.sink_mode, spec.config)
    check_settings(source_uri, spec.config)
    source = open_source(source_uri, scope)
    check_sink_terms(sink_uri, spec.sink_mode, spec.config)
    _check_bounds(spec, takes_changes=sink.capabilities.takes_changes)
    events.check_words(spec.config.filter)
    found = source.check()
    if spec.config.signal_table:
        read_signals(source, spec.config, 1)
    if spec.start_ts:
        source.check_start(Ts(spec.start_ts))
    elif spec.target_ts:
        _check_target(source, Ts(spec.target_ts))
    _check_filter(source, found.tables, spec.config.filter)
    _check_layouts(source, sink, found.tables, spec.config)
    sink.check(found.tables)
    if spec.mode in (Mode.ALL, Mode.FULL):
        _check_not_loaded(sink, found.tables)
    nothing = () if found.tables else (_NO_TABLE,)
    return (*nothing, *_unfit(sink, found.tables), *notices_of(sink_uri, spec.sink_mode))


def read_signals(source: Source, config: ChangefeedConfig, limit: int) -> list[Signal]:
    """:raises SourceConfigError: the signal table cannot be read."""
    schema, _, name = config.signal_table.partition(".")
    try:
        return source.signals((schema, name), limit)
    except StatementRefusedError as error:
        raise SourceConfigError(
            f"signal-table {config.signal_table} cannot be read ({error}); it needs columns id, kind and data, and the "
            "source's user SELECT on it"
        ) from error


def check_sink_terms(uri: str, mode: SinkMode, config: ChangefeedConfig) -> None:
    """:raises WeirError: the sink does not support this mode, or tables that are split."""
    known = capabilities_of(uri)
    if mode not in known.modes:
        raise SinkConfigError(f"this sink does not write in mode {mode}; use --sink-mode {' or '.join(known.modes)}")
    check_layouts(config.layout)
    if config.layout and not known.lays_out:
        raise SinkConfigError("this sink's tables have no layout of their own; leave [[layout]] out")
    if config.split_large_tables:
        refuse_split(uri)
    if "resync" in (config.on_lost_position, config.on_unknown_values):
        refuse_resync(uri)


def refuse_split(uri: str) -> None:
    """:raises SinkConfigError: each of the sink's tables can be written by one capture only."""
    if not capabilities_of(uri).splits:
        raise SinkConfigError("this sink's tables cannot be split; leave split-large-tables out, and tables whole")


def refuse_resync(uri: str, overwrite_ts: Ts | None = None) -> None:
    """:raises SinkConfigError: no copy can be put in the place of one of the sink's tables.
    :raises ConfigError: a position is asked for, and copies have their own."""
    if overwrite_ts is not None:
        raise ConfigError("a new position is the source's own: leave --overwrite-checkpoint-ts or --resync out")
    if not capabilities_of(uri).replaces:
        raise SinkConfigError("this sink's tables cannot be copied again; create another changefeed for a new snapshot")


def _unfit(sink: Sink, tables: Sequence[TableRecord]) -> tuple[str, ...]:
    """Return a line for each table that the sink will hold because of its name; beyond a few only their number."""
    lines = list(sink.unfit(tables).values())
    left = len(lines) - _NAMED
    shown = (f"this table will be held: {line}" for line in lines[:_NAMED])
    return (
        *shown,
        *([f"{left} more tables will be held for their names; `weir tables` shows them"] if left > 0 else []),
    )


def _check_bounds(spec: ChangefeedSpec, *, takes_changes: bool) -> None:
    """:raises ConfigError: a start or a sink that the mode cannot use, or a target before the start."""
    if spec.mode is not Mode.INCREMENTAL and not takes_changes:
        raise ConfigError(f"sink none has no tables to copy into, so it has no mode {spec.mode}; use mode incremental")
    if spec.start_ts and spec.mode is not Mode.INCREMENTAL:
        raise ConfigError(
            f"mode {spec.mode} begins with a snapshot, which has its own position, so it cannot start at "
            f"{spec.start_ts}; leave --start-ts out, or use mode incremental"
        )
    if spec.start_ts and spec.target_ts and spec.target_ts < spec.start_ts:
        raise ConfigError(
            f"target Ts {spec.target_ts} is before start Ts {spec.start_ts}; give a target at the start or after it"
        )


def _check_target(source: Source, target_ts: Ts) -> None:
    """:raises SourceConfigError: the current position is past the target."""
    if target_ts < (now_ts := source.current_ts()):
        raise SourceConfigError(
            f"target Ts {target_ts} has passed: the source is at {now_ts}, where the changefeed would begin; give a "
            "greater one"
        )


def _check_filter(source: Source, tables: Sequence[TableRecord], filter: FilterConfig) -> None:
    if filter.event_filters or filter.column_selectors:
        schemas = source.read_schemas(tables)
        for table in tables:
            if schema := schemas.get(table.table_id):
                events.check(filter, schema, arrow_schema(schema), key=table.key)


def _check_layouts(source: Source, sink: Sink, tables: Sequence[TableRecord], config: ChangefeedConfig) -> None:
    if not config.layout or not isinstance(sink, LaysOut):
        return
    laid_out = [table for table in tables if is_laid_out(config.layout, table.schema_name, table.name)]
    schemas = source.read_schemas(laid_out)
    for table in laid_out:
        if table.table_id not in schemas:  # it is gone
            continue
        schema = rules_for(config.filter, table.schema_name, table.name).select(schemas[table.table_id])
        try:
            sink.check_layout(table, schema, arrow_schema(schema))
        except TableHeldError as error:  # which it would be
            raise SinkConfigError(str(error)) from error


def _check_not_loaded(sink: Sink, tables: Sequence[TableRecord]) -> None:
    """Report a target table that exists before the snapshot is taken, not afterwards."""
    for table in tables:
        if _is_loaded(sink, table):
            raise SinkConfigError(
                f"the sink still holds {table.schema_name}.{table.name} of an earlier changefeed of this name; "
                "remove that changefeed's tables, or choose another sink directory"
            )


def _is_loaded(sink: Sink, table: TableRecord) -> bool:
    try:
        return sink.committed_ts(table, TableSpan(table.table_id)) is not None
    except SinkFencedError:  # it was split
        return True
    except (SinkPassingError, TableNameError):  # nothing was ever written there
        return False


class SinkRecord(NamedTuple):
    """``ts``: that of a table's slowest span at the sink. ``back_ts``: if the table was set back there, the lowest that
    is behind what was written."""

    ts: Ts
    back_ts: Ts | None = None


def recorded(feed: Feed, unit: UnitRecord, partitionings: Mapping[int, TablePartitioning]) -> tuple[SinkRecord, ...]:
    """Return the record of each table; none if the sink keeps none."""
    sink = feed.open_sink()
    sink.check(unit.tables)
    if not sink.capabilities.keeps_record:
        return ()
    furthest = feed.furthest("main", "")
    furthest.load()
    found = []
    for table in unit.tables:
        spans = even_spans(
            table.table_id, partitionings[table.table_id].spans if table.table_id in partitionings else 1
        )
        recorded = {span: sink.committed_ts(table, span) for span in spans}
        known = {span: ts for span, ts in recorded.items() if ts is not None}
        if len(known) < len(spans):
            raise SinkConfigError(
                f"the sink holds no table {table.schema_name}.{table.name} of changefeed {feed.id}; bring it there "
                "with its history, or create another changefeed for a new snapshot"
            )
        found.append(SinkRecord(min(known.values()), furthest.set_back_to(known)))
    return tuple(found)


def check_source_again(feed: Feed, unit: UnitRecord, head: LogHead) -> None:
    """:raises WeirError: the source cannot be reached, or the log cannot continue on it."""
    at = Position(head.resolved_ts, head.position) if head.resolved_ts else Position(unit.start_ts, unit.start_position)
    feed.open_source().check_identity(Identity(unit.system_id, unit.timeline), at)
