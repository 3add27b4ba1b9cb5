"""``weir sinks`` and ``weir sources``: lists the installed plugins, and why one cannot be used.

Every capture of a cluster needs the packages of the sinks and sources that its changefeeds name.
"""

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from agent.errors import PluginError
from agent.ports import plugin as plugins
from agent.ports.plugin import Found, Plugin, SinkPlugin, SourcePlugin
from capture.terminal import console


class OptionView(BaseModel):
    name: str
    default: str
    what: str = ""


class PluginView(BaseModel):
    """``problem``: why it cannot be used here; then only its names are known."""

    schemes: tuple[str, ...]
    package: str
    summary: str = ""
    options: tuple[OptionView, ...] = ()
    problem: str = ""


class SinkView(PluginView):
    """``guarantee`` and the following fields: see ``agent.ports.sink.Capabilities``."""

    guarantee: str = ""
    modes: tuple[str, ...] = ()
    can: tuple[str, ...] = ()


def show_sinks(*, json: bool) -> None:
    views = [_sink(found) for found in plugins.sinks().found()]
    if json:
        return console.print_json(views)
    rows = [
        (view.schemes, view.guarantee, (*view.modes, *view.can), _options(view, "?"), view.problem or view.summary)
        for view in views
    ]
    console.print_table(("scheme", "guarantee", "modes, and what it can", "options of the URI", "what it is"), rows)
    return None


def show_sources(*, json: bool) -> None:
    views = list(_sources(plugins.sources().found()))
    if json:
        return console.print_json(views)
    rows = [(view.schemes, _options(view, ""), view.problem or view.summary) for view in views]
    console.print_table(("scheme", "settings below [source]", "what it is"), rows)
    return None


def _sink(found: Found[SinkPlugin]) -> SinkView:
    try:
        plugin = found.plugin
    except PluginError as error:
        return SinkView(schemes=(found.entry.name,), package=found.package, problem=str(error))
    capabilities = plugin.capabilities
    return SinkView(
        schemes=plugin.schemes,
        package=found.package,
        summary=plugin.summary,
        options=tuple(_described(plugin.options)),
        guarantee=capabilities.guarantee,
        modes=tuple(sorted(capabilities.modes)),
        can=capabilities.words,
    )


def _sources(group: Sequence[Found[SourcePlugin]]) -> Iterator[PluginView]:
    """Combine several names of one source into one line."""
    seen: list[Plugin] = []
    for found in group:
        try:
            plugin = found.plugin
        except PluginError as error:
            yield PluginView(schemes=(found.entry.name,), package=found.package, problem=str(error))
            continue
        if plugin not in seen:
            seen.append(plugin)
            options = tuple(_described(plugin.settings, "-"))
            yield PluginView(schemes=plugin.schemes, package=found.package, summary=plugin.summary, options=options)


def _described(model: type[BaseModel], joint: str = "_") -> Iterator[OptionView]:
    for name, field in model.model_fields.items():
        yield OptionView(name=name.replace("_", joint), default=str(field.default), what=field.description or "")


def _options(view: PluginView, mark: str) -> tuple[str, ...]:
    return tuple(f"{mark}{one.name}={one.default or '…'}: {one.what}".rstrip(": ") for one in view.options)
