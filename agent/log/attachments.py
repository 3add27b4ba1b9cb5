"""Attachments: files with source state for a log position that is too large to store with every move of the head.

An attachment is a file beside the segments, written atomically and never changed. The head names the one that belongs
to its position: a new attachment is written before the head that first refers to it, and the previous one becomes an
orphan. The name contains the writer's epoch, so no writer can take another one's file for its own.
"""

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import BinaryIO, Self

from agent.errors import NEW_POSITION, LogError, PositionLostError
from agent.log.storage import LogDirectory

_NAME = re.compile(r"^position-(\d+)-([0-9a-f]{32})\.json$")


@dataclass(frozen=True, slots=True)
class Attachment:
    """``name``: the file's name, empty if there is nothing to store."""

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
    """Read the attachment that the head names.

    :raises LogError: the storage refused.
    :raises PositionLostError: the file is gone or has other content.
    """
    if not name:
        return Attachment()
    try:
        data = directory.read(name)
    except FileNotFoundError:
        raise PositionLostError(
            f"the change log {directory} lacks {name}, which belongs to its head; restore it, or {NEW_POSITION}"
        ) from None
    match = _NAME.match(name)
    if match is None or sha256(data).hexdigest()[:32] != match[2]:
        raise LogError(f"{directory}/{name} is damaged: it is not what was written; restore it, or {NEW_POSITION}")
    return Attachment(name, data.decode())


def epoch_of(name: str) -> int | None:
    """Return the epoch in which the file was written, or None if it is not an attachment."""
    match = _NAME.match(name)
    return int(match[1]) if match else None
