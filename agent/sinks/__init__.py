"""Sinks: opened by the scheme of their URIs. A sink is a plugin (``agent.ports.plugin``) independent of other sinks."""

from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from pydantic import ValidationError

from agent.errors import PluginError, SinkUriError
from agent.ports import plugin as plugins
from agent.ports.capabilities import Capabilities
from agent.ports.plugin import SinkPlugin
from agent.ports.sink import Sink, SinkScope, SinkUri
from agent.ports.table_reader import TableReader
from agent.sinks.uri import parse_given_uri, parse_named_uri, parse_sink_uri
from reactor.records.base import NEEDS
from reactor.records.changefeed import SinkMode
from reactor.records.sink_settings import TableLayout


def open_sink(uri: str, *, changefeed: str, mode: SinkMode, layouts: tuple[TableLayout, ...] = ()) -> Sink:
    """Return the sink that ``uri`` names. Opening does not access it yet: see ``Sink.check``.

    :raises SinkUriError: the URI is malformed, an option is invalid, or there is no sink for its scheme.
    """
    parsed = parse_sink_uri(uri)
    plugin = _plugin(parsed.scheme)
    _check_options(plugin, parsed)
    return plugin.open(parsed, SinkScope(changefeed, mode, layouts))


def open_table(uri: str, location: str, storage_options: Mapping[str, str] | None = None) -> TableReader:
    """Return the reader of the table at ``location`` below the sink that a server's ``uri`` names: what is hidden
    there, and what is on this machine, come from ``storage_options``, or from where the storage finds it by itself.

    :raises SinkUriError: as for ``open_sink``; or the sink's tables cannot be read.
    """
    parsed = parse_named_uri(uri)
    parsed = replace(parsed, options={**parsed.options, **(storage_options or {})})
    plugin = _plugin(parsed.scheme)
    _check_options(plugin, parsed)
    if plugin.open_table is None:
        raise SinkUriError(f"tables of a {parsed.scheme}:// sink cannot be read back; use the sink's own tools")
    return plugin.open_table(parsed, location)


def notices_of(uri: str, mode: SinkMode) -> tuple[str, ...]:
    """Return what the user of a new changefeed should know about the sink that ``uri`` names, line by line.

    :raises SinkUriError: as for ``open_sink``.
    """
    parsed = parse_sink_uri(uri)
    plugin = _plugin(parsed.scheme)
    return plugin.notices(parsed, mode) if plugin.notices is not None else ()


def formats_of(uri: str) -> dict[str, int]:
    """Return the options of the sink that ``uri`` names which need a format of the cluster: name → the format. A value
    may be a reference. A sink that cannot be used here has none: it is refused when it is opened.

    :raises SinkUriError: not a URI.
    """
    parsed = parse_given_uri(uri)
    needed: dict[str, int] = {}
    try:
        plugin = plugins.sinks().get(parsed.scheme.partition("+")[0])
    except PluginError:
        plugin = None
    for name, field in plugin.options.model_fields.items() if plugin else ():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and NEEDS in extra and parsed.options.get(name, field.default) != field.default:
            needed[name] = int(str(extra[NEEDS]))
    return needed


def capabilities_of(uri: str) -> Capabilities:
    """Return the capabilities of the sink that ``uri`` names, which may be masked.

    :raises SinkUriError: no sink has this scheme.
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
    """Values may be secrets, so no error repeats one."""
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
