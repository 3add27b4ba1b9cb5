"""File kinds: tells by its first bytes what a file is that somebody wants to look into, and refuses what is no log."""

import re
from collections.abc import Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Final

from capture.errors import NotALogError

_FIRST_BYTES: Final = 4096
_INDEX_LINE: Final = re.compile(r"\S.*\.\d{3,}")
_ALLOWED: Final = frozenset("\t\n\r\f\x1b")


class FileKind(Enum):
    SEGMENT = auto()
    BINLOG = auto()


_MAGICS: Final[Mapping[bytes, FileKind]] = {b"\xfebin": FileKind.BINLOG, b"ARROW1": FileKind.SEGMENT}
_OTHERS: Final[Mapping[bytes, str]] = {
    b"\xfdbin": "is an encrypted binlog file; its server decrypts it: mysqlbinlog --read-from-remote-server",
    b"PAR1": "is a Parquet file; name a segment of the change log or a binlog file",
    b"\x1f\x8b": "is compressed with gzip; unpack it first",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd; unpack it first",
    b"BZh": "is compressed with bzip2; unpack it first",
    b"\xfd7zXZ": "is compressed with xz; unpack it first",
    b"PK\x03\x04": "is a zip archive; unpack it first",
    b"SQLite format 3": "is an SQLite database; name a segment of the change log or a binlog file",
}


def file_kind(name: str) -> FileKind:
    """What the file is; who names one that is not local means a segment.

    :raises NotALogError: it is neither a segment nor a binlog file, or cannot be read.
    """
    if "://" in name and not name.startswith("file://"):
        return FileKind.SEGMENT
    path = Path(name.removeprefix("file://"))
    start = _first_bytes(path)
    for magic, kind in _MAGICS.items():
        if start.startswith(magic):
            return kind
    raise NotALogError(f"{path} {_other(start)}")


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
        raise NotALogError(f"{path} cannot be read ({reason.lower()}); name another, or mend that") from None


def _other(start: bytes) -> str:
    if not start:
        return "is empty; a segment or a binlog file has a head at least"
    for magic, what in _OTHERS.items():
        if start.startswith(magic):
            return what
    text = _text(start)
    if text is None:
        return "is neither a segment of the change log nor a binlog file, by its first bytes; check its name"
    lines = [line for line in text.splitlines() if line.strip()]
    whole = lines if len(start) < _FIRST_BYTES else lines[:-1]
    if whole and all(_INDEX_LINE.fullmatch(line) for line in whole):
        return f"is an index of binlog files; name one that it lists, as {whole[0][:200]}"
    return "is a text file; name a segment of the change log or a binlog file"


def _text(start: bytes) -> str | None:
    """None where it is none; a character may be cut off at the end."""
    for end in range(len(start), max(len(start) - 4, 0), -1):
        try:
            text = start[:end].decode()
        except UnicodeDecodeError:
            continue
        return text if all(character >= " " or character in _ALLOWED for character in text) else None
    return None
