"""Log storage port: the files of one changefeed's log, where every capture and executor reaches them."""

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
    """One directory. Methods block, and raise ``OSError`` where the storage refuses."""

    def names(self) -> list[str]:
        """All files, finished or not. :raises FileNotFoundError: nothing was ever written there."""
        ...

    def entries(self) -> list[Entry]:
        """As ``names``, with sizes and times."""
        ...

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> int:
        """Write ``name`` by ``fill``, atomically and durably; replaces a file of that name. Returns its size."""
        ...

    def read(self, name: str) -> bytes:
        """:raises FileNotFoundError: there is none."""
        ...

    def remove(self, name: str) -> None:
        """:raises FileNotFoundError: it is gone already."""
        ...
