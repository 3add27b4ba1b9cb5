"""Exposure: files with secrets that other users of this machine can read or replace, or have made."""

import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agent.references import is_local
from agent.spark.masters import is_secret, shown
from capture.security.secrets import mask
from reactor.files import is_foreign

#: others may do nothing; the file's group may read it, as secrets that are mounted into containers need it
_TOO_MUCH = 0o027


def exposed(files: Iterable[Path | None]) -> Iterator[str]:
    """Yield a warning for each of the files that is open to others, and for each file or directory of another user.
    Those that cannot be looked at are left to whoever reads them."""
    for file in files:
        try:
            found = file.stat() if file is not None else None
        except (OSError, ValueError):
            continue
        if found is None or not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            continue
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISREG(found.st_mode) and mode & _TOO_MUCH:
            yield f"{file} is open to others (mode {mode:o}), who then have what it protects; chmod 600 {file}"
        elif is_foreign(found):
            yield f"{file} belongs to another user, who then has what it protects; chown it to the server's user"


def exposed_settings(file: Path | None) -> Iterator[str]:
    """As ``exposed``, for a TOML file that could be loaded: only if a secret is written there, not a reference."""
    if any(exposed([file])) and file is not None and _has_secret(tomllib.loads(file.read_text("utf-8"))):
        yield f"{file} has a secret in it and is open to others; chmod 600 {file}, or write env:NAME or file:PATH there"


def _has_secret(values: Mapping[str, Any]) -> bool:
    return any(_is_secret(name, value) for name, value in values.items())


def _is_secret(name: str, value: Any) -> bool:
    if isinstance(value, Mapping):
        return _has_secret(value)
    if isinstance(value, list):
        return any(_is_secret(name, one) for one in value)
    if not isinstance(value, str) or is_local(name, value):
        return False
    is_named = bool(value) and is_secret(name) and not name.lower().endswith("file")
    return is_named or mask(value) != value or shown(value) != value
