"""Directory lock: a directory belongs to one process, by a lock that the kernel releases when its holder dies."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capture.errors import ConfigError


@contextmanager
def locked(path: Path, *, what: str) -> Iterator[None]:
    """Hold the lock file ``path``.

    :raises ConfigError: another process holds it, or it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise ConfigError(f"cannot write to {path.parent} ({error.strerror}); choose another directory") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            text = f"{what} is running in {path.parent} already; stop it, or choose another directory"
            raise ConfigError(text) from error
        yield
