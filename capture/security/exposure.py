"""Exposure: files with secrets that other users of this machine can read, or replace."""

import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agent.references import is_local
from agent.spark.masters import is_secret, shown
from capture.security.secrets import mask

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
