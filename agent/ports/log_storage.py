"""Log storage port: the files of one changefeed's log, on storage that all captures and executors can access."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a log directory. ``modified_at``: Unix seconds."""

    name: str
    size: int
    modified_at: float


class LogStorage(Protocol):
    """One directory. Methods block and raise ``OSError`` when the storage refuses."""

    def names(self) -> list[str]:
        """Return the names of all files, finished or not.

        :raises FileNotFoundError: the directory does not exist yet.
        """
        ...

    def entries(self) -> list[Entry]:
        """Return all files with sizes and times."""
        ...

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        """Write ``name`` with ``fill``, atomically and durably, replacing a file of that name. Return its size in
        bytes."""
        ...

    def create(self, name: str, content: bytes) -> None:
        """Write a small file unless one of that name exists; of several writers one wins, if the storage can tell."""
        ...

    def read(self, name: str) -> bytes:
        """:raises FileNotFoundError: there is no such file."""
        ...

    def remove(self, name: str) -> None:
        """:raises FileNotFoundError: there is no such file, if the storage tells."""
        ...
