"""None plugin: the sink of a changefeed that only readers of changes read. Nothing is copied, decoded or written."""

from dataclasses import replace

from agent.ports.plugin import SinkPlugin
from agent.ports.sink import Sink, SinkScope, SinkUri
from agent.sinks.blackhole.plugin import CAPABILITIES


def _open(uri: SinkUri, scope: SinkScope) -> Sink:
    from agent.sinks.blackhole.sink import BlackholeSink

    return BlackholeSink(NOTHING)


NOTHING = replace(CAPABILITIES, takes_changes=False)

PLUGIN = SinkPlugin(
    summary="for changefeeds that are only read: by feed.changes in Python, and Spark's weir source",
    schemes=("none",),
    open=_open,
    capabilities=NOTHING,
)
