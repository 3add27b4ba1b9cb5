"""Directory lock: a directory belongs to one process, by a lock that the kernel releases when its holder dies."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capture.errors import ConfigError


def make_directory(directory: Path) -> None:
    """:raises ConfigError: it is not there, and cannot be made."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(directory, error) from error


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
