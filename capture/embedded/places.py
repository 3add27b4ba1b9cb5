"""Embedded places: finds a server's installed package, and keeps its ports and secrets in one file of mode 0600.

Ports stay the same in every run of one directory, because changefeeds have them in their URIs. They are chosen below
the kernel's range for outgoing connections, so that none of those blocks them later.
"""

import importlib.util
import json
import os
import random
import socket
from collections import deque
from pathlib import Path
from typing import Final

from capture.errors import EmbeddedError, PortInUseError

_PORTS = range(20_000, 32_000)
_ATTEMPTS = 200
_HELD_MAX: Final = 64

#: descriptors of sockets; each holds a port that was chosen recently, so that no other process chooses it before its
#: server listens there
_held: deque[int] = deque()


def package(name: str) -> Path:
    """Return the directory of an installed package without importing it: only its binaries are needed.

    :raises EmbeddedError: it is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise EmbeddedError(f"the package {name} is not installed; pip install 'weir-cdc[embedded]'")
    return Path(spec.origin).parent


def load_state(path: Path) -> dict[str, str | int]:
    """Return what an earlier run saved, or nothing.

    :raises EmbeddedError: the file is damaged.
    """
    try:
        state = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise EmbeddedError(
            f"{path} is damaged ({error}); remove the directory {path.parent} to start afresh"
        ) from error
    if not isinstance(state, dict):
        raise EmbeddedError(f"{path} is damaged; remove {path.parent} to start afresh")
    return state


def save_state(path: Path, state: dict[str, str | int]) -> None:
    """Save atomically, readable by the owner only from the first byte on."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(state, file)
    new.replace(path)


def free_port() -> int:
    """Return a free port of 127.0.0.1, which nobody else is given until a server has had time to listen there.

    :raises PortInUseError: none was found.
    """
    # processes that begin at once, with one seed, must not try the same ones
    for port in random.SystemRandom().sample(_PORTS, _ATTEMPTS):
        if _hold(port):
            return port
    raise PortInUseError(f"no free port between {_PORTS.start} and {_PORTS.stop}; stop something that listens there")


def _hold(port: int) -> bool:
    """Bind a socket to the port, without listening; return whether it was free."""
    holder = socket.socket()
    try:
        holder.bind(("127.0.0.1", port))
    except OSError:
        holder.close()
        return False
    # set after the bind: a second holder, which binds without it, is refused; a server, which binds with it, is not
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _held.append(holder.detach())
    if len(_held) > _HELD_MAX:
        os.close(_held.popleft())
    return True


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((host, port))
        except OSError:
            return False
    return True


def require_free(port: int, *, who: str) -> None:
    """:raises PortInUseError: the port is in use."""
    if not is_free(port):
        raise PortInUseError(f"port {port} of {who} is taken; stop what listens there, or use another directory")
