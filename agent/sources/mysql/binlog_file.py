"""A binlog file, event by event: for whoever looks at one (``log inspect``), and for tests.

Not the way of the replication stream, which takes blocks apart with a kernel. Checksums are verified and cut off.
Events of a compressed transaction come behind the one that holds them, at its place.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from agent.errors import DecodeError, SourceConfigError
from agent.sources.mysql.payload import Payload
from agent.sources.mysql.wire import FORMAT_DESCRIPTION, HEADER_BYTES, TRANSACTION_PAYLOAD

MAGIC: Final = b"\xfebin"
#: time, type, server id, length, position of the next event, flags
_HEADER: Final = struct.Struct("<IBIIIH")
_CHECKSUM_BYTES = 4

#: where a format description holds the server's version
_VERSION: Final = slice(2, 52)


@dataclass(frozen=True, slots=True)
class FileEvent:
    """``body`` is what follows the header, without the checksum. ``at``: where the event begins in its file."""

    at: int
    time: int
    type: int
    server_id: int
    flags: int
    body: bytes


@dataclass(frozen=True, slots=True)
class BinlogFile:
    """An opened file. Iterating reads it from the start; an event that is not all there yet ends it.

    :raises DecodeError: an event is damaged.
    """

    path: Path
    server_version: str
    has_checksums: bool

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in self.server_version.lower()

    def __iter__(self) -> Iterator[FileEvent]:
        with self.path.open("rb") as file:
            file.seek(len(MAGIC))
            at = len(MAGIC)
            while len(header := file.read(HEADER_BYTES)) == HEADER_BYTES:
                time, number, server_id, length, _, flags = _HEADER.unpack(header)
                body = file.read(max(length - HEADER_BYTES, 0))
                if HEADER_BYTES + len(body) != length:
                    return
                if self.has_checksums and number != FORMAT_DESCRIPTION and _is_damaged(header, body):
                    raise DecodeError(f"{self.path} is damaged: the event at {at} has not the bytes of its checksum")
                # A format description has a checksum wherever its server knows of them.
                checksum = _CHECKSUM_BYTES if self.has_checksums or number == FORMAT_DESCRIPTION else 0
                event = FileEvent(at, time, number, server_id, flags, body[: len(body) - checksum])
                yield event
                if number == TRANSACTION_PAYLOAD:
                    yield from _inside(event)
                at += length


def _is_damaged(header: bytes, body: bytes) -> bool:
    """A format description is not asked: one flag of it changes while its file is written to."""
    expected = int.from_bytes(body[-_CHECKSUM_BYTES:], "little")
    return crc32(body[:-_CHECKSUM_BYTES], crc32(header)) != expected


def _inside(event: FileEvent) -> Iterator[FileEvent]:
    """What a compressed transaction holds: events without checksums."""
    payload = Payload(event.body)
    while header := _take(payload, HEADER_BYTES):
        time, number, server_id, length, _, flags = _HEADER.unpack(header)
        yield FileEvent(event.at, time, number, server_id, flags, _take(payload, length - HEADER_BYTES))


def _take(payload: Payload, count: int) -> bytes:
    data, filled = memoryview(bytearray(count)), 0
    while filled < count and (taken := payload.read_into(data[filled:])):
        filled += taken
    return bytes(data[:filled])


def open_binlog(path: Path) -> BinlogFile:
    """:raises SourceConfigError: it is no binlog file, or an encrypted one."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise SourceConfigError(f"{path} is not a binlog file (or an encrypted one); give the path of a plain one")
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES or header[4] != FORMAT_DESCRIPTION:
            raise SourceConfigError(f"{path} does not begin with a format description; its server must be 5.0 or later")
        body = file.read(_HEADER.unpack(header)[3] - HEADER_BYTES)
    version = body[_VERSION].rstrip(b"\0").decode("ascii", "replace")
    # The last five bytes: which checksum events have (0 none, 1 CRC32), and this event's own.
    return BinlogFile(path, version, has_checksums=body[-_CHECKSUM_BYTES - 1] == 1)
