"""Log file port: reads the files of a source's own log for ``log inspect``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agent.rows.changes import Changes


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One event of a source's log file. ``position``: byte offset in the file; ``time``: Unix seconds; ``what``: its
    content as text, if it has any; ``changes``: its row changes, if the table's schema is known; ``problem``: why it
    could not be decoded completely."""

    position: int
    time: int
    name: str
    what: str = ""
    table: str = ""
    changes: Changes | None = None
    problem: str = ""


class ReadEvents(Protocol):
    def __call__(self, path: Path, *, skip: int = 0) -> Iterator[LoggedEvent]:
        """Yield the file's events from its beginning, without the first ``skip``.

        :raises SourceConfigError: the file is not such a log.
        :raises DecodeError: the file is truncated or damaged behind the events that were yielded.
        """
        ...


@dataclass(frozen=True, slots=True)
class LogFiles:
    """A kind of log file. ``name``: its common name. ``magic``: its first bytes. ``unreadable``: first bytes of related
    formats that are not supported, with the reason as the end of a sentence about the file. ``read``: imports its
    dependencies when called."""

    name: str
    magic: bytes
    read: ReadEvents
    unreadable: Mapping[bytes, str] = field(default_factory=dict)
