"""Directory lock: a directory belongs to one process, by a lock that the kernel releases when its holder dies."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capture.errors import ConfigError


def make_directory(directory: Path) -> None:
    """:raises ConfigError: it does not exist and cannot be created."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(directory, error) from error


@contextmanager
def restricted(directory: Path, umask: str) -> Iterator[None]:
    """Create nothing with the permissions in ``umask``, and remove them from the directory, if it exists.

    :raises ConfigError: it belongs to another user, and is accessible to others.
    """
    mask = int(umask, 8)
    before = os.umask(mask)
    try:
        mode = stat.S_IMODE(directory.stat().st_mode) if directory.is_dir() else 0
        if mode & mask:
            _take(directory, mode, mask)
        yield
    finally:
        os.umask(before)


def _take(directory: Path, mode: int, mask: int) -> None:
    try:
        directory.chmod(mode & ~mask)
    except OSError as error:
        raise ConfigError(
            f"{directory} is open to others ({mode:o}), and its rights cannot be changed ({error.strerror}); "
            f'change its owner, or set umask = "{0o777 & ~mode:03o}"'
        ) from error


@contextmanager
def locked(path: Path, *, what: str) -> Iterator[None]:
    """Hold the lock file ``path``.

    :raises ConfigError: another process holds it, or it cannot be written.
    """
    make_directory(path.parent)
    try:
        file = path.open("a")
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            text = f"{what} is running in {path.parent} already; stop it, or choose another directory"
            raise ConfigError(text) from error
        yield


def _unwritable(directory: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot write to {directory} ({error.strerror}); choose another directory")
