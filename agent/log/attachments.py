"""Attachments: files with what a source records for a position, where it is too large for each move of the head.

One is a file beside the segments, whole or not there, and never changed. The head names the one that belongs to its
position, so a new one is written before the head that first relies on it, and the one before is an orphan afterwards.
The name carries the writer's epoch: no writer can take another one's file for its own.
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import BinaryIO, Self

from agent.errors import NEW_SNAPSHOT, LogError, PositionLostError
from agent.log.storage import LogDirectory

_NAME = re.compile(r"^position-(\d+)-([0-9a-f]{32})\.json$")


@dataclass(frozen=True, slots=True)
class Attachment:
    """``name``: of its file, empty where there is nothing to say."""

    name: str = ""
    text: str = ""

    @classmethod
    def of(cls, text: str, *, epoch: int) -> Self:
        digest = sha256(text.encode()).hexdigest()[:32]
        return cls(f"position-{epoch}-{digest}.json", text) if text else cls()


def write(directory: LogDirectory, attachment: Attachment) -> None:
    """:raises LogError: the storage refused."""

    def fill(file: BinaryIO) -> None:
        file.write(attachment.text.encode())

    directory.write(attachment.name, fill)


def read(directory: LogDirectory, name: str) -> Attachment:
    """:raises LogError: the storage refused. :raises PositionLostError: the file is gone, or is another one."""
    if not name:
        return Attachment()
    try:
        data = directory.read(name)
    except FileNotFoundError:
        raise PositionLostError(
            f"the change log {directory} lacks {name}, which belongs to its head; restore it, or {NEW_SNAPSHOT}"
        ) from None
    match = _NAME.match(name)
    if match is None or sha256(data).hexdigest()[:32] != match[2]:
        raise LogError(f"{directory}/{name} is damaged: it is not what was written; restore it, or {NEW_SNAPSHOT}")
    return Attachment(name, data.decode())


def epoch_of(name: str) -> int | None:
    """Under which epoch the file was written; None of another file."""
    match = _NAME.match(name)
    return int(match[1]) if match else None
