"""Log file port: files of a source's own log as ``log inspect`` shows them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agent.rows.changes import Changes


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One event; ``position`` in the file, ``time`` in Unix seconds. ``what``: what it says, where people can read it.
    ``changes``: of rows whose table is known. ``problem``: why it cannot be read, or not all of it."""

    position: int
    time: int
    name: str
    what: str = ""
    table: str = ""
    changes: Changes | None = None
    problem: str = ""


class ReadEvents(Protocol):
    def __call__(self, path: Path, *, skip: int = 0) -> Iterator[LoggedEvent]:
        """From the file's begin, without the first ``skip``.

        :raises SourceConfigError: it is no such file.
        :raises DecodeError: it is cut off or damaged, behind the events that came.
        """
        ...


@dataclass(frozen=True, slots=True)
class LogFiles:
    """``name``: what people call such a file. ``magic``: its first bytes. ``unreadable``: first bytes of its kin that
    cannot be read, and why, as the end of a sentence about the file. ``read``: imports what it needs when called."""

    name: str
    magic: bytes
    read: ReadEvents
    unreadable: Mapping[bytes, str] = field(default_factory=dict)
