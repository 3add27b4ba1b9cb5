"""Shipping: our packages and those of the plugins as one archive, for executors on other machines.

The archive has metadata of its own with the entry points of what is in it, so plugins are found there as they are here.
"""

import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Final

import structlog

from agent.ports.plugin import Plugin, sinks, sources

_log = structlog.get_logger()
_OWN: Final = ("reactor", "agent")
_METADATA: Final = "weir_shipped-0.dist-info"


def write_archive(archive: Path) -> None:
    """Plugins that cannot be used here are left out; what the others import must be installed there, beside what they
    ``ship``."""
    plugins: list[tuple[EntryPoint, Plugin]] = [*sinks().importable(), *sources().importable()]
    packages = dict.fromkeys(_OWN)
    for entry, plugin in plugins:
        packages |= dict.fromkeys((entry.module.partition(".")[0], *plugin.ship))
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for package in packages:
            for path, name in _files(package):
                zipped.write(path, name)
        zipped.writestr(f"{_METADATA}/METADATA", "Metadata-Version: 2.1\nName: weir-shipped\nVersion: 0\n")
        zipped.writestr(f"{_METADATA}/entry_points.txt", "\n".join(_entry_points([entry for entry, _ in plugins])))


def _entry_points(entries: Iterable[EntryPoint]) -> Iterator[str]:
    for group, members in groupby(entries, lambda entry: entry.group):
        yield f"[{group}]"
        yield from (f"{entry.name} = {entry.value}" for entry in members)


def _files(package: str) -> Iterator[tuple[Path, Path]]:
    """A package's files, or a module's one, and their names in the archive."""
    spec = find_spec(package)
    if spec is None:
        _log.warning("a package that a plugin ships is not installed here", package=package)
        return
    if not spec.submodule_search_locations and spec.origin:
        yield Path(spec.origin), Path(Path(spec.origin).name)
    for root in map(Path, spec.submodule_search_locations or ()):
        for path in sorted(root.rglob("*.py")):
            yield path, path.relative_to(root.parent)
