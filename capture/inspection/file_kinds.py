"""File kinds: identifies a log file by its first bytes, and rejects other files."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from agent.ports.log_files import LogFiles
from agent.ports.plugin import sources
from capture.errors import NotALogError

_FIRST_BYTES: Final = 4096
_INDEX_LINE: Final = re.compile(r"\S.*\.\d{3,}")
_ALLOWED: Final = frozenset("\t\n\r\f\x1b")


_SEGMENT: Final = b"ARROW1"
_OTHERS: Final[Mapping[bytes, str]] = {
    b"PAR1": "is a Parquet file; name {files}",
    b"\x1f\x8b": "is compressed with gzip; unpack it first",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd; unpack it first",
    b"BZh": "is compressed with bzip2; unpack it first",
    b"\xfd7zXZ": "is compressed with xz; unpack it first",
    b"PK\x03\x04": "is a zip archive; unpack it first",
    b"SQLite format 3": "is an SQLite database; name {files}",
}


def log_files_of(name: str) -> LogFiles | None:
    """Return the source whose log the file is, or None for a segment. A remote file is taken for a segment.

    :raises NotALogError: the file is neither, or cannot be read.
    """
    if "://" in name and not name.startswith("file://"):
        return None
    path = Path(name.removeprefix("file://"))
    start = _first_bytes(path)
    if start.startswith(_SEGMENT):
        return None
    known = [plugin.log_files for plugin in sources().usable() if plugin.log_files is not None]
    for files in known:
        if start.startswith(files.magic):
            return files
    raise NotALogError(f"{path} {_other(start, known)}")


def _first_bytes(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise NotALogError(f"{path} is a directory; name a file in it")
        if path.exists() and not path.is_file():
            raise NotALogError(f"{path} is no ordinary file; copy its bytes into one")
        with path.open("rb") as file:
            return file.read(_FIRST_BYTES)
    except FileNotFoundError:
        raise NotALogError(f"there is no file {path}; check its name") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise NotALogError(f"{path} cannot be read ({reason.lower()}); name another, or correct that") from None


def _other(start: bytes, known: Sequence[LogFiles]) -> str:
    readable = " or ".join(["a segment of the change log", *(files.name for files in known)])
    others = dict(_OTHERS)
    for files in known:
        others |= files.unreadable
    if not start:
        return f"is empty; name {readable}"
    for magic, what in others.items():
        if start.startswith(magic):
            return what.format(files=readable)
    text = _text(start)
    if text is None:
        return f"is not {readable}, by its first bytes; check its name"
    lines = [line for line in text.splitlines() if line.strip()]
    whole = lines if len(start) < _FIRST_BYTES else lines[:-1]
    if whole and all(_INDEX_LINE.fullmatch(line) for line in whole):
        return f"is an index of log files; name one that it lists, as {whole[0][:200]}"
    return f"is a text file; name {readable}"


def _text(start: bytes) -> str | None:
    """Return the bytes as text, or None if they are not; a character may be truncated at the end."""
    for end in range(len(start), max(len(start) - 4, 0), -1):
        try:
            text = start[:end].decode()
        except UnicodeDecodeError:
            continue
        return text if all(character >= " " or character in _ALLOWED for character in text) else None
    return None
