"""Kernel compiler: compiles and caches numba's kernels, and names the types that their signatures share.

Every kernel is compiled for exactly the signatures it names, when its module is imported, and kept, so that a fresh
process (a Spark worker, say) loads machine code and compiles nothing.

- Compiling all of them takes some ten seconds, and 160 MB that a process never gives back. So the first process that
  misses one has them all compiled by a process that then ends; others that come meanwhile wait for the same one.
- A kernel holds the code of those it calls and the constants it names, which numba does not notice: it looks at the
  kernel's own file. So what is kept lies under a digest of all the files that kernels are made from.
- It lies beside the package, or in the user's cache where the package is not ours to write (or where
  ``NUMBA_CACHE_DIR`` says). Where neither can be written, every process compiles for itself.
"""

import fcntl
import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
from numba import config, njit, types
from numba.extending import register_jitable

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])

#: read-only bytes; a writable array is accepted too
DATA: Final = types.Array(types.uint8, 1, "C", readonly=True)
OUT: Final = types.uint8[::1]
BITMAP: Final = OUT
#: where values begin in ``DATA``
POSITIONS: Final = types.int64[::1]
#: of an Arrow array that is being made, and of a finished one
OFFSETS: Final = types.int32[::1]
READ_OFFSETS: Final = types.Array(types.int32, 1, "C", readonly=True)
PAIR: Final = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]

_PACKAGE: Final = Path(__file__).parents[1]
#: a kernel, or a call that makes some of plain functions (``fixed``, ``text``)
_MAKES: Final = re.compile(rb"^(@|[a-z_0-9]+ = )([a-z]+_)*(kernel|loop)\(| = kernels_for\(", re.MULTILINE)
_IMPORTS: Final = re.compile(rb"^from agent\.([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)
_numba: Final[Any] = config  # its names are made at run time
_COMPILE: Final = "from agent.kernels.jit import compile_all; compile_all()"
_compiles_here = False


def kernel(*signatures: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``njit`` as all our kernels want it: kept, without the GIL, for the given signatures only."""

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        home = _home()
        before, _numba.CACHE_DIR = _numba.CACHE_DIR, str(home or "")
        try:
            made = njit(list(signatures), cache=home is not None, nogil=True)(function)
        finally:
            _numba.CACHE_DIR = before
        if home is not None and not _numba.DISABLE_JIT and made.stats.cache_misses:
            _compile_elsewhere()
        return made

    return make


def inlined(function: F) -> F:
    """A plain function for kernels to call, also those that are given it: only as such does a kernel made of it have
    the same name in the cache of every process."""
    return register_jitable(inline="always")(function)  # by numba: LLVM leaves some of them a call of their own


def compile_all() -> None:
    """Compile what is not kept yet, here. One process at a time: the next one finds all of it."""
    global _compiles_here
    _compiles_here = True
    home = _home()
    assert home is not None  # who has nowhere to keep them does not ask
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _forget_older(home)
        for file in _kernel_files():
            importlib.import_module(".".join(("agent", *file.relative_to(_PACKAGE).with_suffix("").parts)))


def _compile_elsewhere() -> None:
    """Once a process. If it fails, whatever the reason, kernels are compiled where they are imported."""
    global _compiles_here
    if _compiles_here or not sys.executable:
        return
    _compiles_here = True
    path = os.pathsep.join(filter(None, (str(_PACKAGE.parent), os.environ.get("PYTHONPATH"))))
    subprocess.run(
        [sys.executable, "-c", _COMPILE],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # Spark's daemon talks to its JVM there
        check=False,
    )


def _forget_older(home: Path) -> None:
    """Beside the package lie only those of its earlier states; elsewhere they may be another installation's."""
    if home.is_relative_to(_PACKAGE):
        for other in home.parent.glob("kernels-*"):
            if other != home:
                shutil.rmtree(other, ignore_errors=True)


@cache
def _home() -> Path | None:
    """The directory of what is kept, which can be written; None where there is no such place."""
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in _inputs())).hexdigest()[:16]
    user = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "weir")
    for base in [Path(_numba.CACHE_DIR)] if _numba.CACHE_DIR else [_PACKAGE / "__pycache__", user]:
        try:
            home = base.expanduser() / f"kernels-{digest}"
            home.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=home).close()
        except (OSError, RuntimeError):  # the latter: a user without a home
            continue
        return home
    warnings.warn("every process compiles all kernels: NUMBA_CACHE_DIR can name a place to keep them", stacklevel=2)
    return None


@cache
def _kernel_files() -> tuple[Path, ...]:
    return tuple(sorted(file for file in _PACKAGE.rglob("*.py") if _MAKES.search(file.read_bytes())))


def _inputs() -> Iterator[Path]:
    """All files that kernels are made from: their own, and those they import constants from."""
    found = {*_kernel_files(), Path(__file__)}
    for file in _kernel_files():
        for package, names in _IMPORTS.findall(file.read_bytes()):
            place = _PACKAGE.joinpath(*package.decode().split("."))
            found.add(place.with_suffix(".py"))
            found |= {place / f"{name}.py" for name in re.findall(r"\w+", names.decode())}
    return (file for file in sorted(found) if file.exists())
