"""Delta plugin: tables of a Delta Lake, in directories or buckets."""

from agent.ports.plugin import SinkPlugin
from agent.ports.sink import Sink, SinkScope, SinkUri
from agent.sinks.delta.options import CAPABILITIES, DeltaOptions


def _open(uri: SinkUri, scope: SinkScope) -> Sink:
    from agent.sinks.delta.sink import DeltaSink

    return DeltaSink(uri, scope)


PLUGIN = SinkPlugin(
    summary="Delta tables, one for each source table",
    schemes=("delta+file", "delta+s3"),
    open=_open,
    capabilities=CAPABILITIES,
    options=DeltaOptions,
    preload=("deltalake", "agent.sinks.delta.sink"),
)
