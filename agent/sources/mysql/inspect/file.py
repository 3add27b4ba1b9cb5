"""Binlog file: reads a file event by event, for ``log inspect`` and for tests.

Unlike the replication stream it uses no kernels. Checksums are verified and removed. The events of a compressed
transaction follow the event that contains them, with its offset. One event is in memory at a time. A relay log is a
binlog too: in the middle of it, another server's format description defines the format of the following events.
"""

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

from agent.errors import DecodeError, SourceConfigError
from agent.sources.mysql.binlog.payload import Payload
from agent.sources.mysql.decode.wire import FORMAT_DESCRIPTION, HEADER_BYTES, START_ENCRYPTION, TRANSACTION_PAYLOAD

MAGIC: Final = b"\xfebin"
#: time, type, server id, length, position of the next event, flags
_HEADER: Final = struct.Struct("<IBIIIH")
_TYPE_AT, _FLAGS_AT = 4, 17
#: flag of a format description in a file that is being written, excluded from its checksum
_IN_USE: Final = 0x01
_CHECKSUM_BYTES: Final = 4
#: an event cannot be larger: servers limit rows, and the headers are small
_EVENT_MAX: Final = (1 << 30) + (1 << 20)
_PIECE_BYTES: Final = 1 << 20

#: offset of the server's version in a format description, and its minimum size
_VERSION: Final = slice(2, 52)
_DESCRIPTION_MIN: Final = 57
#: versions from which servers log the checksum algorithm of events; MariaDB's version has no prefix in a binlog
_CHECKSUMS_SINCE, _MARIADB_CHECKSUMS_SINCE = (5, 6, 1), (5, 3)


@dataclass(frozen=True, slots=True)
class FileEvent:
    """``body``: the event after its header, without the checksum. ``at``: its offset in the file. ``damage``: why the
    events inside of this one cannot be read; then there is no body."""

    at: int
    time: int
    type: int
    server_id: int
    flags: int
    body: bytes
    damage: str = ""


@dataclass(frozen=True, slots=True)
class BinlogFile:
    """An opened file. Iteration reads it from the start.

    :raises DecodeError: the file is truncated or damaged: the text has the offset up to which it can be read.
    """

    path: Path
    server_version: str
    has_checksums: bool

    @property
    def is_mariadb(self) -> bool:
        return is_mariadb(self.server_version)

    def __iter__(self) -> Iterator[FileEvent]:
        has_checksums = self.has_checksums
        with self.path.open("rb") as file:
            size, at = os.fstat(file.fileno()).st_size, len(MAGIC)
            while at < size:
                file.seek(at)
                header, body = self._read(file, at, size)
                number = header[_TYPE_AT]
                if number == FORMAT_DESCRIPTION:
                    has_checksums = _says_checksums(body)
                has_checksum = has_checksums or (number == FORMAT_DESCRIPTION and _knows_checksums(body))
                if has_checksum and _is_damaged(header, body):
                    raise self._ended(at, "the bytes there are not those of the event's checksum")
                event = _event(header, at, body[: len(body) - _CHECKSUM_BYTES] if has_checksum else body)
                yield event
                if number == TRANSACTION_PAYLOAD:
                    yield from _inside(event)
                at += len(header) + len(body)
                if number == START_ENCRYPTION and at < size:
                    raise DecodeError(
                        f"{self.path} is encrypted from byte {at} on; its server decrypts it: read it with "
                        "mariadb-binlog --read-from-remote-server"
                    )

    def _read(self, file: BinaryIO, at: int, size: int) -> tuple[bytes, bytes]:
        """Return header and remaining bytes of the event at ``at``."""
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            raise self._ended(at, f"{HEADER_BYTES - len(header)} bytes of an event's header are missing")
        length = int(_HEADER.unpack(header)[3])
        if not HEADER_BYTES <= length <= _EVENT_MAX:
            raise self._ended(at, f"an event says there that it has {length} bytes")
        if at + length > size:
            raise self._ended(at, f"{at + length - size} of an event's {length} bytes are missing")
        body = file.read(length - HEADER_BYTES)
        if len(header) + len(body) != length:
            raise self._ended(at, "the file became shorter while it was read")
        return header, body

    def _ended(self, at: int, what: str) -> DecodeError:
        return DecodeError(
            f"{self.path} is cut off or damaged: it can be read up to byte {at}, {what}; what comes before is shown"
        )


def is_mariadb(version: str) -> bool:
    return "mariadb" in version.lower()


def server_version(description: bytes) -> str:
    """Return the server's version from the body of a format description."""
    return description[_VERSION].rstrip(b"\0").decode("ascii", "replace")


def _knows_checksums(description: bytes) -> bool:
    version = server_version(description)
    numbers = tuple(int(number) for number in re.findall(r"\d+", version.split("-")[0])[:3])
    return numbers >= (_MARIADB_CHECKSUMS_SINCE if is_mariadb(version) else _CHECKSUMS_SINCE)


def _says_checksums(description: bytes) -> bool:
    """Parse the last five bytes: the checksum algorithm of events (0 none, 1 CRC32), and this event's own checksum."""
    return _knows_checksums(description) and description[-_CHECKSUM_BYTES - 1 :][:1] == b"\1"


def _is_damaged(header: bytes, body: bytes) -> bool:
    plain = bytearray(header)
    if header[_TYPE_AT] == FORMAT_DESCRIPTION:
        plain[_FLAGS_AT] &= ~_IN_USE
    return crc32(body[:-_CHECKSUM_BYTES], crc32(plain)) != int.from_bytes(body[-_CHECKSUM_BYTES:], "little")


def _event(header: bytes, at: int, body: bytes) -> FileEvent:
    time, number, server_id, _, _, flags = _HEADER.unpack(header)
    return FileEvent(at, time, number, server_id, flags, body)


def _inside(event: FileEvent) -> Iterator[FileEvent]:
    """Yield the events of a compressed transaction, which have no checksums."""
    try:
        payload = Payload(event.body)
        while header := _take(payload, HEADER_BYTES):
            length = int(_HEADER.unpack(header)[3]) if len(header) == HEADER_BYTES else 0
            if not HEADER_BYTES <= length <= _EVENT_MAX:
                raise DecodeError("an event of a compressed transaction is cut off, or has an impossible length")
            body = _take(payload, length - HEADER_BYTES)
            if len(header) + len(body) != length:
                raise DecodeError("a compressed transaction ends within an event")
            yield _event(header, event.at, body)
    except (DecodeError, SourceConfigError) as error:
        yield FileEvent(event.at, event.time, event.type, event.server_id, event.flags, b"", damage=str(error))


def _take(payload: Payload, count: int) -> bytes:
    """Read up to ``count`` bytes; allocate memory for existing bytes only, as a damaged length may be huge."""
    pieces: list[bytes] = []
    while count > 0:
        piece = bytearray(min(count, _PIECE_BYTES))
        taken = payload.read_into(memoryview(piece))
        if taken == 0:
            break
        pieces.append(bytes(piece[:taken]))
        count -= taken
    return b"".join(pieces)


def open_binlog(path: Path) -> BinlogFile:
    """Open a binlog file.

    :raises SourceConfigError: it is not a binlog file, or an encrypted one.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise SourceConfigError(f"{path} is not a binlog file (or an encrypted one); give the path of a plain one")
        header = file.read(HEADER_BYTES)
        length = int(_HEADER.unpack(header)[3]) if len(header) == HEADER_BYTES else 0
        size = os.fstat(file.fileno()).st_size
        if len(header) == HEADER_BYTES and header[_TYPE_AT] != FORMAT_DESCRIPTION:
            raise SourceConfigError(f"{path} does not begin with a format description; its server must be 5.0 or later")
        if not HEADER_BYTES + _DESCRIPTION_MIN <= length <= size - len(MAGIC):
            raise SourceConfigError(
                f"{path} is cut off or damaged within its first event, the format description, at byte {len(MAGIC)} "
                f"of {size}; take another copy of the file"
            )
        body = file.read(length - HEADER_BYTES)
    return BinlogFile(path, server_version(body), has_checksums=_says_checksums(body))
