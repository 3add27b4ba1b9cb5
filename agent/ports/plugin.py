"""Plugins: finds the packages that bring sinks and sources, by the entry points ``weir.sinks`` and ``weir.sources``.

An entry point's name is the URI scheme that it opens (for a sink, the part before a ``+``). Its module is imported when
a URI of that scheme is used: unused plugins cost nothing, and a plugin that fails to import harms no other. Built-in
sinks and sources are plugins too.

A source checkout reads its own entry points from ``pyproject.toml``, because the metadata of an editable install is
only as new as the last ``pip install``.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pydantic import BaseModel

from agent.errors import PluginError
from agent.ports.capabilities import Capabilities

if TYPE_CHECKING:  # these modules import more than listing the plugins needs
    from agent.ports.dialect import Dialect
    from agent.ports.log_files import LogFiles
    from agent.ports.sink import Sink, SinkScope, SinkUri
    from agent.ports.source import Scope, Source
    from agent.ports.table_reader import TableReader
    from reactor.records.changefeed import SinkMode

SINKS: Final = "weir.sinks"
SOURCES: Final = "weir.sources"
_OWN: Final = "weir-cdc"
_PYPROJECT: Final = Path(__file__).parents[2] / "pyproject.toml"


class NoOptions(BaseModel, extra="forbid"):
    """The options of a sink or source whose URI takes none."""


class NoSettings(BaseModel):
    """The settings of a source that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """``summary``: one line for people. ``preload``: modules that Spark's daemon imports before it forks workers,
    ``learned``: those that it imports once a worker has needed them (``agent.spark.learning``); importing them must
    start no thread. ``ship``: packages that remote executors need besides the plugin's own."""

    summary: str
    schemes: tuple[str, ...]
    preload: tuple[str, ...] = ()
    learned: tuple[str, ...] = ()
    ship: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlugin(Plugin):
    """``options``: the URI's options, validated before ``open``, which imports the heavy modules. ``open_table``: reads
    a table by its location below the sink's; None: this sink's tables cannot be read back. ``notices``: what a new
    changefeed's user should know about these options, line by line."""

    open: "Callable[[SinkUri, SinkScope], Sink]"
    capabilities: Capabilities
    options: type[BaseModel] = NoOptions
    open_table: "Callable[[SinkUri, str], TableReader] | None" = None
    notices: "Callable[[SinkUri, SinkMode], tuple[str, ...]] | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlugin(Plugin):
    """``settings``: the options below [source] in a changefeed's configuration. ``dialect``: the name under which table
    schemas store which source decodes them (``TableSchema.dialect``); it must be an entry point of this plugin, and
    ``reader`` does the decoding. ``log_files``: the files of the source's own log that ``log inspect`` reads."""

    dialect: str
    open: "Callable[[str, Scope], Source]"
    settings: type[BaseModel] = NoSettings
    reader: "Callable[[], Dialect]"
    log_files: "LogFiles | None" = None


P = TypeVar("P", bound=Plugin)


@dataclass(frozen=True)
class Found(Generic[P]):
    """An entry point and its package. ``problem``: why it cannot be used, empty if that is not known."""

    entry: EntryPoint
    kind: type[P]
    package: str
    problem: str = ""

    @cached_property
    def plugin(self) -> P:
        """The plugin, imported on first use.

        :raises PluginError: the plugin cannot be used; the error names it and the reason.
        """
        if self.problem:
            raise PluginError(self.problem)
        try:
            plugin = self.entry.load()
        except Exception as error:  # a plugin may fail in any way, and must not break the others
            reason = str(error).splitlines()[0] if str(error) else "no reason given"
            raise PluginError(
                f"{self.entry.name!r} of package {self.package} does not import ({type(error).__name__}: {reason}); "
                "install what it needs on every capture"
            ) from error
        if not isinstance(plugin, self.kind):
            raise PluginError(
                f"{self.entry.name!r} of package {self.package} is no {self.kind.__name__}, but "
                f"{type(plugin).__name__}; name its plugin in the entry point"
            )
        return plugin


class Plugins(Generic[P]):
    """The plugins of one entry point group, by name."""

    def __init__(self, found: Mapping[str, Found[P]], rivals: tuple[Found[P], ...] = ()) -> None:
        self._found = found
        self._rivals = rivals

    def get(self, name: str) -> P | None:
        """:raises PluginError: the plugin exists and cannot be used."""
        found = self._found.get(name)
        return found.plugin if found is not None else None

    def found(self) -> tuple[Found[P], ...]:
        """All plugins, including those that cannot be used."""
        return (*self._found.values(), *self._rivals)

    def importable(self) -> Iterator[tuple[EntryPoint, P]]:
        """Import all plugins, and yield those that can be used."""
        for found in self.found():
            try:
                yield found.entry, found.plugin
            except PluginError:
                continue

    def usable(self) -> list[P]:
        """Return the plugins that can be used, each once even if it has several names."""
        return list({id(plugin): plugin for _, plugin in self.importable()}.values())

    def schemes(self) -> tuple[str, ...]:
        return tuple(sorted(scheme for plugin in self.usable() for scheme in plugin.schemes))


@cache
def sinks() -> Plugins[SinkPlugin]:
    return load(SINKS, SinkPlugin)


@cache
def sources() -> Plugins[SourcePlugin]:
    return load(SOURCES, SourcePlugin)


def load(group: str, kind: type[P]) -> Plugins[P]:
    """Find the installed plugins without importing them. If two entry points have one name, Weir's own wins, then the
    package whose name sorts first."""
    declared = _declared(group)
    others = [entry for entry in entry_points(group=group) if not (declared and _package(entry) == _OWN)]
    others.sort(key=lambda entry: (_package(entry) != _OWN, _package(entry)))
    found: dict[str, Found[P]] = {}
    rivals: list[Found[P]] = []
    for entry in (*declared, *others):
        package = _package(entry)
        if (first := found.get(entry.name)) is None:
            found[entry.name] = Found(entry, kind, package)
        elif first.entry.value != entry.value:
            problem = f"{entry.name!r} of package {package} is not used: package {first.package} has that name too"
            rivals.append(Found(entry, kind, package, problem))
    return Plugins(found, tuple(rivals))


def _package(entry: EntryPoint) -> str:
    return _OWN if entry.dist is None else entry.dist.name


def _declared(group: str) -> list[EntryPoint]:
    """Return the entry points of the source checkout that this module is in; none if Weir is installed."""
    return [EntryPoint(name, value, group) for name, value in _checkout().get(group, {}).items()]


@cache
def _checkout() -> Mapping[str, Mapping[str, str]]:
    try:
        project = tomllib.loads(_PYPROJECT.read_text())["project"]
    except (OSError, ValueError, KeyError):
        return {}
    declared: Mapping[str, Mapping[str, str]] = project.get("entry-points", {})
    return declared if project.get("name") == _OWN else {}
