"""Blackhole plugin: a sink that counts changes and discards them."""

from agent.ports.capabilities import Capabilities, Guarantee
from agent.ports.plugin import SinkPlugin
from agent.ports.sink import Sink, SinkScope, SinkUri


def _open(uri: SinkUri, scope: SinkScope) -> Sink:
    from agent.sinks.blackhole.sink import BlackholeSink

    return BlackholeSink(CAPABILITIES)


CAPABILITIES = Capabilities(guarantee=Guarantee.NONE, alters=True, splits=True)

PLUGIN = SinkPlugin(
    summary="nothing is kept; for measuring what is in front of a sink",
    schemes=("blackhole",),
    open=_open,
    capabilities=CAPABILITIES,
)
