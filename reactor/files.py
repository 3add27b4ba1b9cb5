"""Files that somebody else names: read up to a limit, since a device has no end; and whether a path is still the same
file."""

import errno
import os
from contextlib import suppress
from pathlib import Path

#: of a key, a token, a certificate
SECRET_BYTES_MAX = 64 * 1024


def read_bounded(path: Path, size_max: int = SECRET_BYTES_MAX) -> bytes:
    """:raises OSError: it cannot be read, or has more bytes."""
    with path.open("rb") as file:
        data = file.read(size_max + 1)
    if len(data) > size_max:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data


def is_foreign(found: os.stat_result) -> bool:
    """Return whether a file is neither root's nor this user's: whoever has made it knows what is in it."""
    return found.st_uid not in (0, os.geteuid())


def identity(path: str | Path) -> tuple[int, int] | None:
    """Return device and inode of the file at ``path``; None if there is none.

    What has a file open stays with it, also if it is removed and another one, such as a backup, is put in its place.

    :raises OSError: it cannot be looked up.
    """
    with suppress(FileNotFoundError):
        found = os.stat(path)
        return found.st_dev, found.st_ino
    return None
