"""Preflight: checks source, sink and filter before a changefeed is created; makes nothing."""

from collections.abc import Sequence

from agent.errors import SinkConfigError, SinkFencedError, SinkPassingError, SourceConfigError, TableNameError
from agent.filter import events
from agent.ports.sink import Sink
from agent.ports.source import Scope, Source
from agent.sinks import capabilities_of, open_sink
from agent.sources import open_source
from agent.sources.registry import check_settings
from capture.api.port import ChangefeedSpec
from capture.errors import ConfigError
from capture.security.secrets import resolve
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import ChangefeedConfig, FilterConfig, Mode, SinkMode, TableRecord

#: of tables that will be held
_NAMED = 10


def check_first(spec: ChangefeedSpec, cluster_id: str) -> tuple[str, ...]:
    """What a user should know of this changefeed, line by line.

    :raises WeirError: source or sink say why this changefeed cannot be.
    """
    if spec.mode is Mode.LOAD_SYNC:
        raise ConfigError(
            "mode load-sync begins with a dump that is there, and a new changefeed has none; use mode all, or mode "
            "dump and, when it has finished, changefeed update --mode load-sync"
        )
    sink = open_sink(resolve(spec.sink_uri), changefeed=f"{cluster_id}/{spec.changefeed_id}", mode=spec.sink_mode)
    scope = Scope(cluster_id, spec.changefeed_id, spec.sink_mode, spec.config)
    source_uri = resolve(spec.source_uri)
    check_settings(source_uri, spec.config)
    source = open_source(source_uri, scope)
    check_sink_terms(resolve(spec.sink_uri), spec.sink_mode, spec.config)
    _check_bounds(spec)
    events.check_words(spec.config.filter)
    found = source.check()
    if spec.start_ts:
        source.check_start(Ts(spec.start_ts))
    elif spec.target_ts:
        _check_target(source, Ts(spec.target_ts))
    _check_filter(source, found.tables, spec.config.filter)
    sink.check(found.tables)
    if spec.mode in (Mode.ALL, Mode.FULL):
        _check_not_loaded(sink, found.tables)
    return _unfit(sink, found.tables)


def check_sink_terms(uri: str, mode: SinkMode, config: ChangefeedConfig) -> None:
    """:raises WeirError: the sink is none for this mode, or for tables that are split."""
    known = capabilities_of(uri)
    if mode not in known.modes:
        raise SinkConfigError(f"this sink does not write in mode {mode}; use --sink-mode {' or '.join(known.modes)}")
    if config.split_large_tables:
        refuse_split(uri)


def refuse_split(uri: str) -> None:
    """:raises SinkConfigError: the sink's tables are written by one capture each."""
    if not capabilities_of(uri).splits:
        raise SinkConfigError("this sink's tables cannot be split; leave split-large-tables out, and tables whole")


def _unfit(sink: Sink, tables: Sequence[TableRecord]) -> tuple[str, ...]:
    """A line for each table that the sink will hold because of its name; past a few only their number."""
    lines = list(sink.unfit(tables).values())
    left = len(lines) - _NAMED
    shown = (f"this table will be held: {line}" for line in lines[:_NAMED])
    return (
        *shown,
        *([f"{left} more tables will be held for their names; `weir tables` shows them"] if left > 0 else []),
    )


def _check_bounds(spec: ChangefeedSpec) -> None:
    """:raises ConfigError: a start that the mode has no use for, or a target in front of the start."""
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
    """:raises SourceConfigError: what begins now is past its target."""
    if target_ts < (now_ts := source.current_ts()):
        raise SourceConfigError(
            f"target Ts {target_ts} has passed: the source is at {now_ts}, where the changefeed would begin; give a "
            "greater one"
        )


def _check_filter(source: Source, tables: Sequence[TableRecord], filter: FilterConfig) -> None:
    if filter.event_filters or filter.column_selectors:
        schemas = source.read_schemas([table.table_id for table in tables])
        for table in tables:
            events.check(filter, schemas[table.table_id], key=table.key)


def _check_not_loaded(sink: Sink, tables: Sequence[TableRecord]) -> None:
    """A snapshot is not loaded where one of the same name was: said now, not when all of it has been read."""
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
