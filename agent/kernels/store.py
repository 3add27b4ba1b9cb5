"""Kernel store: the directory of compiled kernels, one per state of the code they are made from.

A kernel contains the code it calls and the constants it names, which numba's cache does not notice: it checks only the
kernel's own file. So the store's path contains a digest of all files that kernels are made from. File times and paths
do not count: what one machine has compiled, another may use if its processor, Python and numba are of the same kind
(numba compares these).

- The store is beside the package; or in the user's cache if the package is read-only; or in a private temporary
  directory if the user has no home (or where ``NUMBA_CACHE_DIR`` says).
- A package shipped to an executor (``agent.spark.shipping``) may be an archive whose files cannot be listed. It
  contains the digest, the names of its kernel modules, and the compiled kernels that the store there starts with.
"""

import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final, Self

import numba
from numba.core.caching import _CacheLocator

_PACKAGE: Final = Path(__file__).parents[1]
#: a kernel, or a call that builds some from plain functions (``fixed``, ``text``)
_MAKES: Final = re.compile(rb"^(@|[a-z_0-9]+ = )([a-z]+_)*(kernel|loop)\(| = kernels_for\(", re.MULTILINE)
_IMPORTS: Final = re.compile(rb"^from agent\.([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)
#: a shipped package has this file beside this module
SHIPPED: Final = "shipped.json"
COMPILED: Final = "compiled"
_numba: Final[Any] = numba.config  # numba creates these attributes at run time


class InStore(_CacheLocator):
    """Numba's cache locator: tells it where a function's machine code is kept. Numba gets it by its import path."""

    def __init__(self, module: str, line: int) -> None:
        self._module = module
        self._line = line

    def get_cache_path(self) -> str:
        place = home()
        assert place is not None  # numba does not ask otherwise
        return str(place / self._module)

    def get_source_stamp(self) -> str:
        return digest()

    def get_disambiguator(self) -> str:
        return str(self._line)

    @classmethod
    def from_function(cls, function: Any, _: str) -> Self:
        return cls(function.__module__, function.__code__.co_firstlineno)


@cache
def digest() -> str:
    """Return the digest of all files that kernels are made from."""
    shipped = _shipped()
    if shipped is not None:
        return str(shipped["digest"])
    return hashlib.sha256(b"".join(file.read_bytes() for file in _inputs())).hexdigest()[:16]


@cache
def modules() -> tuple[str, ...]:
    """Return the names of the modules that define kernels."""
    shipped = _shipped()
    if shipped is not None:
        return tuple(shipped["modules"])
    return tuple(".".join(("agent", *file.relative_to(_PACKAGE).with_suffix("").parts)) for file in _kernel_files())


def described() -> str:
    """Return the content of ``SHIPPED``."""
    return json.dumps({"digest": digest(), "modules": modules()})


@cache
def home() -> Path | None:
    """Return the store's directory, which is writable or complete; None if there is no such place."""
    for base in _bases():
        try:
            place = base.expanduser() / f"kernels-{digest()}"
            _make(place)
            if _can_be_written(place) or complete_marker(place).exists():  # complete, for example in a container image
                return place
        except (OSError, RuntimeError):  # a user without a home directory
            continue
    warnings.warn("every process compiles all kernels: NUMBA_CACHE_DIR can name a place to keep them", stacklevel=2)
    return None


def _can_be_written(place: Path) -> bool:
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError:
        return False
    return True


def forget_older(place: Path) -> None:
    """Remove the stores of earlier states beside the package. Elsewhere they may belong to other installations."""
    if place.is_relative_to(_PACKAGE):
        for other in place.parent.glob("kernels-*"):
            if other != place:
                shutil.rmtree(other, ignore_errors=True)


def complete_marker(place: Path) -> Path:
    """Return the file that marks a complete set of kernels for this Python and processor."""
    kind = f"{sys.version_info[:2]} {numba.__version__} {_processor()}"
    return place / f"complete-{hashlib.sha256(kind.encode()).hexdigest()[:8]}"


def _processor() -> str:
    from numba.core.registry import cpu_target

    return str(cpu_target.target_context.codegen().magic_tuple())


def _bases() -> Iterator[Path]:
    if _numba.CACHE_DIR:
        yield Path(_numba.CACHE_DIR)
        return
    if _shipped() is None:
        yield _PACKAGE / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "weir")
    own = Path(tempfile.gettempdir(), f"weir-{os.getuid()}")
    if _is_ours(own):
        yield own


def _is_ours(directory: Path) -> bool:
    """Return whether only this user can write the directory: it holds code that is executed."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _make(place: Path) -> None:
    """Create the store atomically, with the kernels that the package contains."""
    if place.is_dir():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    new = place.with_name(f"{place.name}.{uuid.uuid4().hex[:8]}")
    new.mkdir()
    try:
        if _shipped() is not None:
            _copy(resources.files("agent.kernels") / COMPILED, new)
        new.rename(place)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        if not place.is_dir():
            raise


def _copy(found: Traversable, to: Path) -> None:
    for item in found.iterdir() if found.is_dir() else ():
        if item.is_dir():
            (to / item.name).mkdir()
            _copy(item, to / item.name)
        else:
            (to / item.name).write_bytes(item.read_bytes())


@cache
def _shipped() -> dict[str, Any] | None:
    file = resources.files("agent.kernels") / SHIPPED
    return json.loads(file.read_text()) if file.is_file() else None


@cache
def _kernel_files() -> tuple[Path, ...]:
    return tuple(sorted(file for file in _PACKAGE.rglob("*.py") if _MAKES.search(file.read_bytes())))


def _inputs() -> Iterator[Path]:
    """Return all files that kernels are made from: their own, and those they import constants from."""
    found = {*_kernel_files(), Path(__file__).with_name("jit.py")}
    for file in _kernel_files():
        for package, names in _IMPORTS.findall(file.read_bytes()):
            place = _PACKAGE.joinpath(*package.decode().split("."))
            found.add(place.with_suffix(".py"))
            found |= {place / f"{name}.py" for name in re.findall(r"\w+", names.decode())}
    return (file for file in sorted(found) if file.exists())
