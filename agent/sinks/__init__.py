"""Sinks by their scheme. A sink is a module of its own that knows ``agent.ports`` and no other sink."""

import importlib
from typing import Protocol, cast

from agent.errors import SinkUriError
from agent.ports.sink import Sink
from agent.sinks.uri import SinkUri, parse_sink_uri
from reactor.records.changefeed import SinkMode

#: scheme → module and class; imported when asked for, so that nobody pays for a sink they do not use
_SINKS = {
    "delta+file": ("agent.sinks.delta.sink", "DeltaSink"),
    "delta+s3": ("agent.sinks.delta.sink", "DeltaSink"),
    "blackhole": ("agent.sinks.blackhole", "BlackholeSink"),
}


class _SinkClass(Protocol):
    def __call__(self, uri: SinkUri, *, changefeed: str, mode: SinkMode) -> Sink: ...


def open_sink(uri: str, *, changefeed: str, mode: SinkMode) -> Sink:
    """The sink that ``uri`` names. Opening reaches for nothing yet: see ``Sink.check``.

    :raises SinkUriError: malformed, or a scheme that there is no sink for.
    """
    parsed = parse_sink_uri(uri)
    if parsed.scheme not in _SINKS:
        raise SinkUriError(f"there is no sink for {parsed.scheme}://; there are {', '.join(sorted(_SINKS))}")
    module, name = _SINKS[parsed.scheme]
    sink = cast("_SinkClass", getattr(importlib.import_module(module), name))
    return sink(parsed, changefeed=changefeed, mode=mode)
