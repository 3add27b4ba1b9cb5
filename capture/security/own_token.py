"""Own token: created by a server at its first start, so that the same user's command line is authorised.

It is stored in the server's data directory, readable by that user only. A running server announces itself in the user's
runtime directory with its address and the location of its token, by which ``weir`` finds it. The lock of its data
directory, which the kernel releases when the server dies, shows whether it still runs: so a token is never sent to
another process that took the port later.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from capture.address import is_loopback, split_address
from capture.errors import ConfigError
from reactor.files import is_foreign, read_bounded

TOKEN_FILE = "api-token"
LOCK_FILE = "capture.lock"
_WILDCARDS = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server of this user on this machine. ``ca_file``: verifies its certificate; empty without TLS."""

    address: str
    url: str
    data_dir: str
    ca_file: str = ""

    @property
    def token(self) -> str:
        """The token; empty if it cannot be read."""
        try:
            return (Path(self.data_dir) / TOKEN_FILE).read_text().strip()
        except (OSError, ValueError):
            return ""

    @property
    def is_running(self) -> bool:
        try:
            with (Path(self.data_dir) / LOCK_FILE).open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def own_token(data_dir: Path, new_token: str) -> str:
    """Return the token in the data directory; store ``new_token`` if there is none yet, or if another user has put it
    there and knows it.

    :raises ConfigError: it cannot be read or written.
    """
    path = data_dir / TOKEN_FILE
    try:
        if not path.exists() or is_foreign(path.stat()):
            _write(path, new_token + "\n")
        return read_bounded(path).decode().strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it holds no text"
        raise ConfigError(f"cannot use {path} ({why}); choose another --data-dir") from error


def replace_token(data_dir: Path, token: str) -> None:
    """Replace a revoked token.

    :raises ConfigError: it cannot be written.
    """
    try:
        _write(data_dir / TOKEN_FILE, token + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write {data_dir / TOKEN_FILE} ({error.strerror})") from error


@contextmanager
def announced(server: LocalServer) -> Iterator[None]:
    """Announce the server to this user's commands. If there is no writable place, ``--token-file`` has to name the
    token."""
    path = _directory() / _name(server.address)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(path, json.dumps({"address": server.address, "url": server.url} | _places(server)))
    except OSError:
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if _read(path) == server:
                path.unlink()


def find(url: str) -> LocalServer | None:
    """Return this user's running server at ``url``; None if there is none, or it is another user's."""
    wanted = _host_and_port(url)
    if wanted is None:
        return None
    for path in sorted(_directory().glob("*.json")):
        server = _read(path)
        if server is not None and _is_at(server.address, wanted) and server.is_running:
            return server
    return None


def _is_at(address: str, wanted: tuple[str, int]) -> bool:
    try:
        host, port = split_address(address)
    except ValueError:
        return False
    if port != wanted[1]:
        return False
    both_local = is_loopback(host) and is_loopback(wanted[0])
    return host == wanted[0] or both_local or (host in _WILDCARDS and is_loopback(wanted[0]))


def _host_and_port(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:
        return None


def _places(server: LocalServer) -> dict[str, str]:
    return {"data_dir": server.data_dir, "ca_file": server.ca_file}


def _read(path: Path) -> LocalServer | None:
    """None if the file is not this user's own, or invalid."""
    try:
        found = path.stat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
            return None
        content = json.loads(path.read_text())
        return LocalServer(**{name: str(content[name]) for name in ("address", "url", "data_dir", "ca_file")})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _directory() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return (Path(runtime) if runtime else Path(state)) / "weir"


def _name(address: str) -> str:
    return hashlib.sha256(address.encode()).hexdigest()[:16] + ".json"


def _write(path: Path, content: str) -> None:
    """Write atomically, with mode 0600."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:  # 0600 from its first byte on
        file.write(content)
        file.flush()
    os.replace(file.name, path)
