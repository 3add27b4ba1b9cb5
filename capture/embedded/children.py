"""Child processes: each in a session of its own, and killed by the kernel when this process dies.

A terminal's Ctrl-C does not reach them (we stop them in order ourselves), and a ``kill -9`` of this process does
(through ``launch``). What a child does, and when it is ready, is its part's business.
"""

import atexit
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

Child = subprocess.Popen[bytes]

_LAUNCH = Path(__file__).with_name("launch.py")
#: PostgreSQL refuses to run as root; this user owns nothing else
UNPRIVILEGED_USER = "nobody"

# The kernel sends the death signal when the *thread* that started the child ends, so all children start from one thread
# that lives as long as the process.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="children")
_living: set[Child] = set()


def spawn(
    argv: Sequence[str | os.PathLike[str]],
    *,
    output: IO[bytes] | int,
    stdout: IO[bytes] | int | None = None,
    user: str | None = None,
    reach: bool = False,
    death_signal: signal.Signals = signal.SIGKILL,
    environment: Mapping[str, str] | None = None,
) -> Child:
    """Start ``argv[0]`` (a path, or a name on PATH). ``output`` receives stderr, and stdout unless that is given."""
    program = shutil.which(os.fspath(argv[0])) or os.fspath(argv[0])
    shim = [sys.executable, "-I", "-S", str(_LAUNCH), str(os.getpid()), str(int(death_signal))]
    shim += [user or "-", "1" if reach else "0", program, *(os.fspath(argument) for argument in argv[1:])]

    def start() -> Child:
        return subprocess.Popen(
            shim,
            stdin=subprocess.DEVNULL,
            stdout=output if stdout is None else stdout,
            stderr=output,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )

    child = _spawner.submit(start).result()
    _living.add(child)
    return child


def stop(child: Child, *signals: signal.Signals, timeout_s: float = 10.0) -> int:
    """Send the signals in turn, waiting ``timeout_s`` after each, then SIGKILL. Return the exit code."""
    for number in (*signals, signal.SIGKILL):
        if child.poll() is None:
            child.send_signal(number)
        try:
            code = child.wait(timeout_s)
            break
        except subprocess.TimeoutExpired:
            continue
    else:
        code = child.wait()
    _living.discard(child)
    return code


def unprivileged_user() -> str | None:
    """Return the user that databases run as; None if we are not root."""
    return UNPRIVILEGED_USER if os.geteuid() == 0 else None


def give(path: Path, user: str | None) -> None:
    """Make ``user`` the owner of ``path``; does nothing if we are not root."""
    if user is not None:
        entry = pwd.getpwnam(user)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def is_reachable_by_all(path: Path) -> bool:
    """Return whether any user can traverse the directories to ``path``."""
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


@atexit.register
def _kill_the_rest() -> None:
    # last resort on a normal interpreter exit; parts stop themselves in order before that
    for child in list(_living):
        if child.poll() is None:
            child.kill()
