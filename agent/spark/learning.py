"""Learning: Spark's daemon imports what its workers have needed, so that the workers that it forks later have it.

A plugin whose modules are large, and which few clusters use, names them as ``learned`` in place of ``preload``: no
daemon pays for them where nobody uses the plugin. Spark ends workers that are idle for a minute, so without this each
flush of a quiet changefeed would import them again (PyIceberg and SQLAlchemy: half a second of a core).

A worker tells the daemon through a pipe that it has inherited, and by a signal. The daemon imports some seconds later,
when the first tasks no longer need the processor, or before it forks again if that is earlier. It has one thread.
"""

import gc
import importlib
import os
import signal
import sys
from contextlib import suppress
from typing import Final

from agent.ports.plugin import sinks, sources

#: a write of so few bytes is whole
_MESSAGE_BYTES_MAX: Final = 512
_READ_BYTES: Final = 1 << 16
_PAUSE_S: Final = 5.0
#: the pipe from the workers to their daemon, for reading and for writing; None: this process has no such daemon
_pipe: tuple[int, int] | None = None
_daemon = 0
_is_learning = False
#: modules that are not reported again: the daemon has imported them, or has received their names
_told: set[str] = set()


def begin() -> None:
    """Called once in the daemon, before it forks its first worker."""
    global _pipe, _daemon
    _pipe, _daemon = os.pipe(), os.getpid()
    for end in _pipe:
        os.set_blocking(end, False)
    signal.signal(signal.SIGUSR1, lambda *_: signal.setitimer(signal.ITIMER_REAL, _PAUSE_S))
    signal.signal(signal.SIGALRM, lambda *_: _learn())
    os.register_at_fork(before=_learn)


def tell() -> None:
    """Called in a worker after a task: tell the daemon which modules of plugins it has imported."""
    if _pipe is None or os.getppid() != _daemon:
        return
    new = [name for name in _learned() if name not in _told and name in sys.modules]
    _told.update(new)
    for name in new:
        if len(name) < _MESSAGE_BYTES_MAX:
            with suppress(OSError):  # the pipe is full, or the daemon gone
                os.write(_pipe[1], f"{name}\n".encode())
    if new:
        with suppress(OSError):
            os.kill(_daemon, signal.SIGUSR1)


def _learn() -> None:
    """Import what workers have reported. One module that does not import fails again in the task that needs it."""
    global _is_learning
    if _is_learning or os.getpid() != _daemon:  # interrupted by the signal, or a worker that forks
        return
    _is_learning = True
    try:
        _import([name for name in _received() if name not in _told])
    finally:
        _is_learning = False


def _import(wanted: list[str]) -> None:
    known = set(_learned()) if wanted else set()
    for name in wanted:
        _told.add(name)
        if name in known:
            with suppress(Exception):  # a plugin may raise anything
                importlib.import_module(name)
    if wanted:
        gc.collect()
        gc.freeze()


def _received() -> list[str]:
    assert _pipe is not None
    try:
        return os.read(_pipe[0], _READ_BYTES).decode(errors="replace").split()
    except OSError:  # nothing is there
        return []


def _learned() -> list[str]:
    return [name for plugin in (*sinks().usable(), *sources().usable()) for name in plugin.learned]
