"""Binlog events: parses control events (rotations, format descriptions, statements) and the server's errors.

Pure. Rows, GTIDs and other events of every transaction are not parsed here, but in ``split``. A body is the event after
its header of 19 bytes, without checksum.
"""

import contextlib
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from agent.errors import DecodeError
from agent.sources.mysql.ddl.parser import sql_text
from agent.sources.mysql.decode import charsets, inflating, wire
from agent.sources.mysql.decode.table_name import reading
from agent.sources.mysql.position.positions import FIRST_POSITION, BinlogPosition
from agent.sources.mysql.values.session import UNKNOWN, Session, parse_session

CHECKSUM_BYTES: Final = 4
_QUERY: Final = struct.Struct("<IIBHH")
_TAIL_BYTES: Final = 5  # of a format description: the checksum algorithm, and its own checksum
_TABLE_MAP_HEAD, _ROWS_HEAD = 8, (8, 10)
#: fields in the header of a payload event
_PAYLOAD_END, _PAYLOAD_COMPRESSION = 0, 2
ZSTD, UNCOMPRESSED = 0, 255
_SHOWN: Final = re.compile(
    rb"create (?:or replace )?table (?:if not exists )?(?:`[^`]*`\.)?`[^`]*` \(\n  `", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Format:
    """``checksum_bytes``: size of the checksum after every event of the file; ``is_readable``: its rows events have a
    supported format."""

    server_version: str
    checksum_bytes: int
    is_readable: bool


@dataclass(frozen=True, slots=True)
class Query:
    database: str
    statement: str
    session: Session = UNKNOWN
    #: the server has logged it with an error
    is_failed: bool = False


@dataclass(frozen=True, slots=True)
class TaggedGtid:
    """GTID with a tag (MySQL 8.4): ``source`` is ``uuid:tag``. ``time_us``: commit time, Unix microseconds."""

    source: str
    number: int
    time_us: int


def is_sound(event: bytes) -> bool:
    """Return whether the event, including its header, ends with a correct CRC-32."""
    return zlib.crc32(event[:-CHECKSUM_BYTES]) == int.from_bytes(event[-CHECKSUM_BYTES:], "little")


@reading("a format description")
def parse_format(body: bytes) -> Format:
    """Parse a format description; ``body`` includes the checksum, which this event always has."""
    version = body[2:52].rstrip(b"\0").decode("latin-1")
    # bytes of the fixed header by event type, from type 1 on
    heads = body[57:-_TAIL_BYTES]
    readable = len(heads) >= wire.DELETE_V1 and heads[wire.TABLE_MAP - 1] == _TABLE_MAP_HEAD
    # MySQL 9 has dropped the first version of rows events, MariaDB only writes that one
    rows_heads = {heads[kind - 1] for kind in (wire.WRITE_V1, wire.WRITE_V2) if kind <= len(heads)} - {0}
    readable = readable and bool(rows_heads) and rows_heads.issubset(_ROWS_HEAD)
    return Format(version, CHECKSUM_BYTES if body[-_TAIL_BYTES] == 1 else 0, readable)


@reading("a rotation")
def parse_rotate(event: bytes) -> BinlogPosition:
    """Parse a rotation, given with its header. Before the first format description, the checksum is optional."""
    body = event[wire.HEADER_BYTES :]
    if is_sound(event):
        body = body[:-CHECKSUM_BYTES]
    (position,) = struct.unpack_from("<Q", body)
    return BinlogPosition(body[8:].decode(errors="replace"), max(position, FIRST_POSITION))


def parse_load(body: bytes) -> Query:
    """Parse a LOAD DATA that was logged as a statement: a query with a header of 13 more bytes."""
    return parse_query(body[: _QUERY.size] + body[_QUERY.size + 13 :])


def parse_query(body: bytes, *, is_compressed: bool = False) -> Query:
    """Parse a statement.

    :raises DecodeError: the event is malformed.
    """
    try:
        _, _, name_bytes, error, status_bytes = _QUERY.unpack_from(body)
        at = _QUERY.size + status_bytes
        statement = body[at + name_bytes + 1 :]
        if is_compressed:
            statement = inflate(statement)
        session = parse_session(body[_QUERY.size : at])
        text = sql_text.unquoted(
            _text(statement, session.charset),
            has_quoted_names=session.has_quoted_names,
            has_plain_backslashes=session.has_plain_backslashes,
        )
        return Query(body[at : at + name_bytes].decode(), text, session, error != 0)
    except (struct.error, zlib.error, LookupError, ValueError) as error:
        raise DecodeError(f"a statement in the binlog cannot be read ({error}); report this") from None


def _text(statement: bytes, collation: int) -> str:
    """Decode a statement, which has the session's character set.

    Only the CREATE TABLE of a server that creates a table from rows or from a temporary table is UTF-8 in any session;
    it has the form of SHOW CREATE TABLE. Bytes may be valid in both, such as those of a client that sends UTF-8 in a
    session of ``latin1``.
    """
    candidates = (charsets.charset_of(collation), "utf8mb4")
    for charset in reversed(candidates) if _SHOWN.match(statement) else candidates:
        with contextlib.suppress(UnicodeDecodeError):
            return charsets.to_text(charset, statement)
    return statement.decode(errors="replace")


def inflate(data: bytes) -> bytes:
    """Decompress MariaDB's format: a byte with the size of the length, the length, and zlib's stream.

    :raises zlib.error: it is damaged.
    """
    start = 1 + (data[0] & 7)
    return inflating.inflate(data[start:], int.from_bytes(data[1:start]))


@reading("a heartbeat")
def parse_heartbeat_v2(body: bytes) -> int:
    """Return the position, which has 64 bits here; 0 if it is missing."""
    for number, field in _fields(body):
        if number == 2:
            return _lenenc(field, 0)[0]
    return 0


def parse_payload(body: bytes) -> tuple[int, int]:
    """Return the compression algorithm of a compressed transaction, and the offset of its events in ``body``.

    :raises DecodeError: the event is malformed.
    """
    compression, at = ZSTD, 0
    try:
        while (number := body[at]) != _PAYLOAD_END:
            length, start = _lenenc(body, at + 1)
            if number == _PAYLOAD_COMPRESSION:
                compression = _lenenc(body, start)[0]
            at = start + length
    except IndexError:
        raise DecodeError("a compressed transaction in the binlog has no sound head; check the binlog file") from None
    return compression, at + 1


@reading("an XA PREPARE")
def parse_xa_prepare(body: bytes) -> tuple[bool, str]:
    """Return whether it commits in one phase, and its name as XA COMMIT and XA ROLLBACK have it in the binlog."""
    kind, first_bytes, second_bytes = struct.unpack_from("<III", body, 1)
    first, second = body[13 : 13 + first_bytes], body[13 + first_bytes : 13 + first_bytes + second_bytes]
    return body[0] != 0, f"X'{first.hex()}',X'{second.hex()}',{kind}".upper()


def parse_incident(body: bytes) -> str:
    """Return the server's description of a gap in its binlog."""
    return body[3 : 3 + body[2]].decode(errors="replace") if len(body) > 2 else ""


def parse_error(packet: bytes) -> tuple[int, str]:
    """Return number and text of an error packet; ``packet`` begins after its marker."""
    text = packet[2:]
    return int.from_bytes(packet[:2], "little"), (text[6:] if text[:1] == b"#" else text).decode(errors="replace")


@reading("a GTID")
def parse_tagged_gtid(body: bytes) -> TaggedGtid:
    """Parse MySQL's newer serialization: numbers of one to nine bytes, fields by number, unknown ones at the end."""
    reader = _Numbers(body)
    for _ in range(3):  # version, size, last field that must be supported
        reader.number()
    source, tag, number, time_us = "", "", 0, 0
    while reader:
        match reader.number():
            case 0 | 4 | 5:
                reader.number()
            case 1:
                source = str(UUID(bytes=bytes(reader.number() for _ in range(16))))
            case 2:
                number = reader.number() >> 1  # the lowest bit is the sign
            case 3:
                tag = reader.text(reader.number())
            case 6:
                time_us = reader.number()
            case _:
                break
    return TaggedGtid(f"{source}:{tag}" if tag else source, number, time_us)


class _Numbers:
    """Reads variable-length numbers: the low bits of the first byte count the bytes that follow."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def number(self) -> int:
        first = self._data[self._at]
        more = (~first & (first + 1)).bit_length() - 1
        word = int.from_bytes(self._data[self._at : self._at + 1 + more], "little")
        self._at += 1 + more
        return word >> min(more + 1, 8)

    def text(self, length: int) -> str:
        self._at += length
        return self._data[self._at - length : self._at].decode()


def _fields(body: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(body) and body[at] != 0:
        length, start = _lenenc(body, at + 1)
        yield body[at], body[start : start + length]
        at = start + length


def _lenenc(data: bytes, at: int) -> tuple[int, int]:
    if data[at] < 0xFB:
        return data[at], at + 1
    width = {0xFC: 2, 0xFD: 3}.get(data[at], 8)
    return int.from_bytes(data[at + 1 : at + 1 + width], "little"), at + 1 + width
