"""Exposure: files with secrets that other users of this machine can read, or replace."""

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

#: others may do nothing; the file's group may read it, as secrets that are mounted into containers need it
_TOO_MUCH = 0o027


def exposed(files: Iterable[Path | None]) -> Iterator[str]:
    """Yield a warning for each of the files that is open to others. Files that cannot be looked at are left to whoever
    reads them."""
    for file in files:
        try:
            mode = stat.S_IMODE(file.stat().st_mode) if file is not None and file.is_file() else 0
        except (OSError, ValueError):
            continue
        if mode & _TOO_MUCH:
            yield f"{file} is open to others (mode {mode:o}), who then have what it protects; chmod 600 {file}"
