"""Sinks by the scheme of their URIs. A sink is a plugin (``agent.ports.plugin``) that knows no other sink."""

from urllib.parse import urlsplit

from pydantic import ValidationError

from agent.errors import PluginError, SinkUriError
from agent.ports import plugin as plugins
from agent.ports.capabilities import Capabilities
from agent.ports.plugin import SinkPlugin
from agent.ports.sink import Sink, SinkScope, SinkUri
from agent.sinks.uri import parse_sink_uri
from reactor.records.changefeed import SinkMode


def open_sink(uri: str, *, changefeed: str, mode: SinkMode) -> Sink:
    """The sink that ``uri`` names. Opening reaches for nothing yet: see ``Sink.check``.

    :raises SinkUriError: malformed, an option that is wrong, or a scheme that there is no sink for.
    """
    parsed = parse_sink_uri(uri)
    plugin = _plugin(parsed.scheme)
    _check_options(plugin, parsed)
    return plugin.open(parsed, SinkScope(changefeed, mode))


def capabilities_of(uri: str) -> Capabilities:
    """Those of the sink that ``uri`` names, which may be masked.

    :raises SinkUriError: there is no such sink.
    """
    return _plugin(urlsplit(uri).scheme).capabilities


def _plugin(scheme: str) -> SinkPlugin:
    installed = plugins.sinks()
    try:
        plugin = installed.get(scheme.partition("+")[0])
    except PluginError as error:
        raise SinkUriError(f"the sink for {scheme}:// cannot be used: {error}") from error
    if plugin is None or scheme not in plugin.schemes:
        raise SinkUriError(f"there is no sink for {scheme}://; there are {', '.join(installed.schemes())}")
    return plugin


def _check_options(plugin: SinkPlugin, uri: SinkUri) -> None:
    """Values may be secrets, so no text repeats one."""
    try:
        plugin.options.model_validate(uri.options)
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)[0]
        name = ".".join(map(str, wrong["loc"]))
        if wrong["type"] == "extra_forbidden":
            known = sorted(plugin.options.model_fields)
            rest = f"knows {', '.join(known)}" if known else "has none"
            raise SinkUriError(f"unknown option {name!r}: {uri.scheme}:// {rest}") from None
        reason = wrong["msg"][:1].lower() + wrong["msg"][1:]
        raise SinkUriError(f"option {name} of {uri.scheme}:// is wrong: {reason}; correct it") from None
