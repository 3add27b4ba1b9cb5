"""Kernel compiler: compiles and caches numba kernels, and names the types that their signatures share.

A kernel is compiled for exactly the signatures it declares, when its module is imported, and kept in the store
(``agent.kernels.store``), so that a new process (a Spark worker, for example) loads machine code and compiles nothing.

Compiling all kernels takes about ten seconds, and 160 MB that a process never returns. So the first process that misses
one starts a child that compiles them all and exits; processes that arrive meanwhile wait for it. Without a store, every
process compiles for itself.
"""

import fcntl
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import structlog
from numba import config, njit, types
from numba.extending import register_jitable

from agent.kernels import store

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
F = TypeVar("F", bound=Callable[..., Any])

#: read-only bytes; a writable array is accepted as well
DATA: Final = types.Array(types.uint8, 1, "C", readonly=True)
OUT: Final = types.uint8[::1]
BITMAP: Final = OUT
#: offsets of values in ``DATA``
POSITIONS: Final = types.int64[::1]
#: offsets of an Arrow array under construction, and of a finished one
OFFSETS: Final = types.int32[::1]
READ_OFFSETS: Final = types.Array(types.int32, 1, "C", readonly=True)
PAIR: Final = types.UniTuple(types.int64, 2)  # type: ignore[no-untyped-call]

_numba: Final[Any] = config  # numba creates these attributes at run time
_LOCATOR: Final = "agent.kernels.store.InStore"
_COMPILE: Final = "from agent.kernels.jit import compile_all; compile_all()"
_compiles_here = False
_made: Final[list[Any]] = []


def kernel(*signatures: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile with ``njit`` for the given signatures only: cached, and without the GIL."""

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        is_kept = store.home() is not None
        before, _numba.CACHE_LOCATOR_CLASSES = _numba.CACHE_LOCATOR_CLASSES, _LOCATOR
        try:
            made = njit(list(signatures), cache=is_kept, nogil=True)(function)
        finally:
            _numba.CACHE_LOCATOR_CLASSES = before
        _made.append(made)
        if is_kept and not _numba.DISABLE_JIT and made.stats.cache_misses:
            _compile_elsewhere()
        return made

    return make


def inlined(function: F) -> F:
    """Mark a plain function that kernels call or are built from. Only such functions give a kernel the same cache name
    in every process."""
    return register_jitable(inline="always")(function)  # inlined by numba: LLVM leaves some as calls


def compile_all() -> tuple[int, int]:
    """Compile the kernels missing from the store, in this process. Processes take turns; the next one finds all of
    them.

    Return the number of kernels, and how many were compiled now.
    """
    global _compiles_here
    _compiles_here = True
    home = store.home()
    assert home is not None  # callers check that there is a store
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        store.forget_older(home)
        for module in store.modules():
            importlib.import_module(module)
        store.complete_marker(home).touch()
    return len(_made), sum(1 for made in _made if made.stats.cache_misses)


def ensure_compiled() -> Path | None:
    """Let a child process compile all kernels unless the store is complete; return the store's directory."""
    home = store.home()
    if home is not None and not store.complete_marker(home).exists():
        _compile_elsewhere()
    return home


def _compile_elsewhere() -> None:
    """Run once per process. If it fails for any reason, kernels are compiled where they are imported."""
    global _compiles_here
    if _compiles_here or not sys.executable:
        return
    _compiles_here = True
    began, log = time.monotonic(), _log()
    log.info("compiling kernels, once after an installation", kept_in=str(store.home()))
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    subprocess.run(
        [sys.executable, "-c", _COMPILE],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # Spark's daemon talks to its JVM over stdout
        check=False,
    )
    log.info("kernels compiled", kept_in=str(store.home()), seconds=round(time.monotonic() - began, 1))


def _log() -> Any:
    """Of a command, whose stdout is its result, it goes to stderr, too."""
    if structlog.is_configured():
        return structlog.get_logger()
    return structlog.wrap_logger(structlog.WriteLogger(sys.stderr))
