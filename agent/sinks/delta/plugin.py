"""Delta plugin: Delta Lake tables in directories or buckets."""

from agent.ports.plugin import SinkPlugin
from agent.ports.sink import Sink, SinkScope, SinkUri
from agent.ports.table_reader import TableReader
from agent.sinks.delta.options import CAPABILITIES, DeltaOptions
from reactor.records.changefeed import SinkMode


def _open(uri: SinkUri, scope: SinkScope) -> Sink:
    from agent.sinks.delta.sink import DeltaSink

    return DeltaSink(uri, scope)


def _open_table(uri: SinkUri, location: str) -> TableReader:
    from agent.sinks.delta.table_reader import DeltaTableReader

    return DeltaTableReader(uri, location)


def _notices(uri: SinkUri, mode: SinkMode) -> tuple[str, ...]:
    return DeltaOptions.model_validate(uri.options).notices(mode)


PLUGIN = SinkPlugin(
    summary="Delta tables, one for each source table",
    schemes=("delta+file", "delta+s3", "delta+az", "delta+abfss", "delta+gs"),
    open=_open,
    open_table=_open_table,
    capabilities=CAPABILITIES,
    options=DeltaOptions,
    notices=_notices,
    preload=("deltalake", "agent.sinks.delta.sink"),
)
