"""Shipping: packs our packages and those of plugins into one archive for remote executors.

The archive has metadata with the entry points of its packages, so plugins are found there as here. It also contains
compiled kernels and bytecode, so that an executor with the same Python and processor compiles nothing; on another
processor, kernels are compiled once per machine and user (``agent.kernels.store``).

One archive is made per state of the code, and kept in a directory that lives as long as executors may request it: Spark
sends a file when an executor starts, which may be days after the session did.
"""

import hashlib
import os
import py_compile
import tempfile
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Final

import structlog

from agent.kernels import store
from agent.kernels.jit import ensure_compiled
from agent.ports.plugin import Plugin, sinks, sources

_log = structlog.get_logger()
_OWN: Final = ("reactor", "agent")
_METADATA: Final = "weir_shipped-0.dist-info"
_KERNELS: Final = "agent/kernels"
_PREFIX: Final = "weir-packages-"
#: the earliest date of the zip format: equal contents make equal archives
_DATE: Final = (1980, 1, 1, 0, 0, 0)


def archive_in(directory: Path) -> Path:
    """Return the archive of the current code, made if missing; archives of other states are removed."""
    ensure_compiled()
    packages, entries = _shipped()
    members = {str(name): path for package in packages for path, name in _files(package)}
    entry_points = "\n".join(_entry_points(entries))
    kernels = _kernels()
    digest = hashlib.sha256(entry_points.encode() + store.described().encode())
    for name, path in sorted((members | kernels).items()):
        digest.update(f"{name}\0".encode() + (path.read_bytes() if name in members else b""))
    archive = directory / f"{_PREFIX}{digest.hexdigest()[:16]}.zip"
    if not archive.exists():
        directory.mkdir(parents=True, exist_ok=True)
        new = directory / f"{_PREFIX}{uuid.uuid4().hex}.new"
        _write(new, members, kernels, entry_points)
        new.replace(archive)
        _forget_others(archive)
    return archive


def _shipped() -> tuple[list[str], list[EntryPoint]]:
    """Return packages and entry points to ship. Plugins that do not import here are omitted. Apart from the packages
    that a plugin declares in ``ship``, its dependencies must be installed on the executors."""
    plugins: list[tuple[EntryPoint, Plugin]] = [*sinks().importable(), *sources().importable()]
    packages = dict.fromkeys(_OWN)
    for entry, plugin in plugins:
        packages |= dict.fromkeys((entry.module.partition(".")[0], *plugin.ship))
    return list(packages), [entry for entry, _ in plugins]


def _write(archive: Path, members: dict[str, Path], kernels: dict[str, Path], entry_points: str) -> None:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as zipped:
        for name, path in (members | kernels).items():
            _add(zipped, name, path.read_bytes())
            if name in members and name.endswith(".py"):
                _add(zipped, f"{name}c", _compiled(path))
        _add(zipped, f"{_KERNELS}/{store.SHIPPED}", store.described().encode())
        _add(zipped, f"{_METADATA}/METADATA", b"Metadata-Version: 2.1\nName: weir-shipped\nVersion: 0\n")
        _add(zipped, f"{_METADATA}/entry_points.txt", entry_points.encode())


def _add(zipped: zipfile.ZipFile, name: str, content: bytes) -> None:
    zipped.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED)


def _compiled(source: Path) -> bytes:
    """Return the bytecode for this Python version; other versions read the source."""
    with tempfile.TemporaryDirectory() as directory:
        made = os.path.join(directory, "compiled")
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(source), made, doraise=True, invalidation_mode=mode)
        return Path(made).read_bytes()


def _kernels() -> dict[str, Path]:
    home = store.home()
    if home is None:
        return {}
    return {
        f"{_KERNELS}/{store.COMPILED}/{path.relative_to(home)}": path
        for path in sorted(home.rglob("*"))
        if path.suffix in (".nbi", ".nbc") or path.name.startswith("complete-")
    }


def _forget_others(archive: Path) -> None:
    for other in archive.parent.glob(f"{_PREFIX}*"):
        if other != archive:
            other.unlink(missing_ok=True)


def _entry_points(entries: Iterable[EntryPoint]) -> Iterator[str]:
    for group, members in groupby(entries, lambda entry: entry.group):
        yield f"[{group}]"
        yield from (f"{entry.name} = {entry.value}" for entry in members)


def _files(package: str) -> Iterator[tuple[Path, Path]]:
    """Yield the files of a package (or a single module) with their names in the archive."""
    spec = find_spec(package)
    if spec is None:
        _log.warning("a package that a plugin ships is not installed here", package=package)
        return
    if not spec.submodule_search_locations and spec.origin:
        yield Path(spec.origin), Path(Path(spec.origin).name)
    for root in map(Path, spec.submodule_search_locations or ()):
        for path in sorted(root.rglob("*.py")):
            yield path, path.relative_to(root.parent)
