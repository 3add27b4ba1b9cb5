"""Host cache: local copies of immutable objects of an object store, shared by all processes of one user on a machine.

Every worker that flushes a table reads the same log segments, and every worker that searches for keys reads the same
data files. The cache fetches each object once per machine: the first process that needs it downloads it under a lock.
Writers add what they have just written. Least recently used files are evicted. An entry may disappear at any time, so
callers treat the cache as an optimisation only.
"""

import fcntl
import hashlib
import os
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

_GIBIBYTES: Final = 2
#: a process checks the cache's total size each time it has added this many bytes
_CHECK_BYTES: Final = 64 << 20
_VARIABLE: Final = "WEIR_HOST_CACHE"
_SIZE_VARIABLE: Final = "WEIR_HOST_CACHE_GIB"

_added = 0


def fetch_path(uri: str, fetch: Callable[[], bytes], *, is_synced: bool = False) -> str:
    """Return the path of a local copy of ``uri``; call ``fetch`` for the content if there is no copy yet.

    The copy was just used, so it is evicted last; open it soon all the same. ``is_synced``: a new copy is on disk, so
    that it is whole, or not there, after a power failure.
    """
    path = _path(uri)
    with suppress(OSError):
        os.utime(path)
        return str(path)
    with _locked(path):
        if not path.exists():
            _write(path, fetch(), is_synced=is_synced)
    return str(path)


def known_path(uri: str) -> str | None:
    """Return the path of the local copy of ``uri``, or None if there is none."""
    path = _path(uri)
    with suppress(OSError):
        os.utime(path)
        return str(path)
    return None


def move_in(uri: str, file: str) -> None:
    """Store ``file``, which must lie in ``directory()``, as the content of ``uri``. Errors are ignored."""
    with suppress(OSError):
        os.replace(file, _path(uri))
        _note_added(_path(uri).stat().st_size)


def put(uri: str, content: bytes) -> None:
    """Store ``content`` under ``uri``, replacing an earlier entry. Errors are ignored: the cache only saves time."""
    with suppress(OSError):
        _write(_path(uri), content)


def get(uri: str) -> bytes | None:
    """Return the content stored under ``uri``, or None."""
    with suppress(OSError):
        return _path(uri).read_bytes()
    return None


@cache
def directory() -> Path:
    """Return the cache directory, which only this user may write: its files are trusted like the store's objects."""
    given = os.environ.get(_VARIABLE) or os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    own = Path(given or tempfile.gettempdir(), f"weir-objects-{os.getuid()}")
    with suppress(OSError):
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = own.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022:
            return own
    return Path(tempfile.mkdtemp(prefix="weir-objects-"))


def _path(uri: str) -> Path:
    return directory() / hashlib.sha256(uri.encode()).hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold one of 256 file locks, chosen by the path's name: downloads of different objects seldom block each other."""
    with open(directory() / f"lock-{path.name[:2]}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(path: Path, content: bytes, *, is_synced: bool = False) -> None:
    new = path.with_name(f"new-{uuid.uuid4().hex}")
    try:
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            if is_synced:
                os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    _note_added(len(content))


def _note_added(size: int) -> None:
    global _added
    _added += size
    if _added >= _CHECK_BYTES:
        _added = 0
        _evict()


def _bytes_max() -> int:
    """Return the limit; ``WEIR_HOST_CACHE_GIB`` sets it in gibibytes, and what is no number there counts as not set."""
    try:
        return int(float(os.environ[_SIZE_VARIABLE]) * (1 << 30))
    except (KeyError, ValueError, OverflowError):
        return _GIBIBYTES << 30


def _evict() -> None:
    """Remove the least recently used files until the cache is at three quarters of its limit, if it is above it."""
    entries = []
    for path in directory().iterdir():
        with suppress(OSError):
            status = path.stat()
            entries.append((status.st_mtime, status.st_size, path))
    total = sum(size for _, size, _ in entries)
    most = _bytes_max()
    if total <= most:
        return
    for _, size, path in sorted(entries):
        if not path.name.startswith("lock-") and total > most * 3 // 4:
            with suppress(OSError):
                path.unlink()
                total -= size
