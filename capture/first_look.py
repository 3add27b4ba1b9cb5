"""What is looked at before a changefeed is created: everything that can be found out before anything is made."""

from collections.abc import Sequence

from agent import event_filter
from agent.errors import SinkConfigError, SinkFencedError
from agent.ports import Sink
from agent.sinks import open_sink
from agent.sources import open_source
from agent.sources.source import Scope, Source
from capture.cluster import ChangefeedSpec
from capture.errors import ConfigError
from capture.secrets import resolve
from reactor.ids import TableSpan
from reactor.records import FilterConfig, Mode, TableRecord


def check_first(spec: ChangefeedSpec, cluster_id: str) -> None:
    """:raises WeirError: source or sink say why this changefeed cannot be."""
    if spec.mode is Mode.LOAD_SYNC:
        raise ConfigError(
            "mode load-sync begins with a dump that is there, and a new changefeed has none; use mode all, or mode "
            "dump and, when it has finished, changefeed update --mode load-sync"
        )
    sink = open_sink(resolve(spec.sink_uri), changefeed=f"{cluster_id}/{spec.changefeed_id}", mode=spec.sink_mode)
    scope = Scope(cluster_id, spec.changefeed_id, spec.sink_mode, spec.config)
    source = open_source(resolve(spec.source_uri), scope)
    found = source.check()
    _check_filter(source, found.tables, spec.config.filter)
    sink.check(found.tables)
    if spec.mode in (Mode.ALL, Mode.FULL):
        _check_not_loaded(sink, found.tables)


def _check_filter(source: Source, tables: Sequence[TableRecord], filter: FilterConfig) -> None:
    if filter.event_filters or filter.column_selectors:
        schemas = source.read_schemas([table.table_id for table in tables])
        for table in tables:
            event_filter.check(filter, schemas[table.table_id], key=table.key)


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
        return sink.recorded_ts(table, TableSpan(table.table_id)) is not None
    except SinkFencedError:  # it was split
        return True
