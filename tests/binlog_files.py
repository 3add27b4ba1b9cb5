"""Binlog files built by hand, as servers of all versions write them: for versions that cannot be installed.

``BinlogFile`` puts events one behind the other, with checksums where its version has them. ``samples`` has one file of
each age, with all that is special to it.
"""

import struct
import zlib
from collections.abc import Mapping
from typing import Final
from uuid import UUID

import zstandard

from agent.sources.mysql.decode import wire

MAGIC: Final = b"\xfebin"
TIME: Final = 1_700_000_000
SOURCE: Final = UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")
IN_USE: Final = 1
#: a column of every old type: int, varchar(20), enum, set of nine, decimal(5,2), datetime, time and more of before 5.6
OLD_TYPES: Final = bytes([3, 15, 254, 254, 246, 12, 11, 7, 13, 10, 16])
OLD_METADATA: Final = b"\x14\0" + b"\xf7\x01" + b"\xf8\x02" + b"\x05\x02" + b"\x05\0"
OLD_ROW: Final = (
    b"\0\0" + struct.pack("<i", 7) + b"\x03abc" + b"\x02" + b"\x01\x01" + b"\x80\x7b\x2d"
    + struct.pack("<q", 20240131123456) + (123456).to_bytes(3, "little") + struct.pack("<I", TIME)
    + bytes([124]) + (2024 << 9 | 1 << 5 | 31).to_bytes(3, "little") + b"\x15"
)  # fmt: skip


class BinlogFile:
    """``data`` is what lies on the disk."""

    def __init__(self, version: str = "8.0.36", *, checksum: bool = True, flags: int = 0) -> None:
        numbers = tuple(int(part) for part in version.split("-")[0].split(".")[:3])
        self._knows = numbers >= ((5, 3) if "MariaDB" in version else (5, 6, 1))
        self._checksum = checksum and self._knows
        self.data = MAGIC
        count = 171 if "MariaDB" in version else 27 if numbers < (5, 6) else 42
        heads = bytes(
            8 if kind in (19, 23, 24, 25) else 10 if kind in (30, 31, 32) else 0 for kind in range(1, count + 1)
        )
        body = struct.pack("<H50sIB", 4, version.encode(), TIME, 19) + heads
        if self._knows:
            body += bytes([self._checksum])
        self._add(wire.FORMAT_DESCRIPTION, body, flags=flags, checksum=self._knows)

    @property
    def size(self) -> int:
        return len(self.data)

    def add(self, kind: int, body: bytes = b"", *, flags: int = 0) -> "BinlogFile":
        return self._add(kind, body, flags=flags, checksum=self._checksum)

    def _add(self, kind: int, body: bytes, *, flags: int, checksum: bool) -> "BinlogFile":
        length = wire.HEADER_BYTES + len(body) + (4 if checksum else 0)
        head = struct.pack("<IBIII", TIME, kind, 1, length, len(self.data) + length)
        event = head + struct.pack("<H", flags) + body
        if checksum:
            # the flag of a file that is written to is no part of it
            event += struct.pack("<I", zlib.crc32(head + struct.pack("<H", flags & ~IN_USE) + body))
        self.data += event
        return self


def bare(kind: int, body: bytes) -> bytes:
    """An event as it lies in a compressed transaction."""
    return struct.pack("<IBIIIH", TIME, kind, 1, wire.HEADER_BYTES + len(body), 0, 0) + body


def query(statement: str, database: str = "a") -> bytes:
    name = database.encode()
    return struct.pack("<IIBHH", 7, 0, len(name), 0, 0) + name + b"\0" + statement.encode()


def table_map(
    types: bytes = b"\x03", metadata: bytes = b"", *, map_id: int = 5, name: str = "t", optional: bytes = b""
) -> bytes:
    names = b"\x01a\0" + bytes([len(name)]) + name.encode() + b"\0"
    nullable = bytes((len(types) + 7) // 8)
    head = map_id.to_bytes(6, "little") + b"\1\0" + names + bytes([len(types)]) + types
    return head + bytes([len(metadata)]) + metadata + nullable + optional


def rows(values: bytes, *, columns: int = 1, version: int = 2, images: int = 1, map_id: int = 5) -> bytes:
    head = map_id.to_bytes(6, "little") + b"\1\0" + (b"\2\0" if version == 2 else b"")
    present = bytes([0xFF] * (columns // 8) + ([(1 << columns % 8) - 1] if columns % 8 else []))
    return head + bytes([columns]) + present * images + values


def number(value: int) -> bytes:
    """A row of one int."""
    return b"\0" + struct.pack("<i", value)


def compressed(data: bytes) -> bytes:
    """As MariaDB has it: where the length is, and zlib's stream."""
    return bytes([0x80 | 4]) + struct.pack(">I", len(data)) + zlib.compress(data)


def payload(events: bytes) -> bytes:
    fields = bytes([2, 1, 0]) + bytes([3, 9, 0xFE]) + struct.pack("<Q", len(events)) + b"\0"
    return fields + zstandard.compress(events)


def gtid(sequence: int) -> bytes:
    return b"\0" + SOURCE.bytes + struct.pack("<qBqq", sequence, 2, 0, 1)


def user_variable(name: str, kind: int, value: bytes, flags: int = 0) -> bytes:
    head = struct.pack("<I", len(name)) + name.encode() + b"\0"
    return head + struct.pack("<BII", kind, 8, len(value)) + value + bytes([flags])


def old() -> BinlogFile:
    """MySQL 5.5: no checksums, the first version of row events, types of before 5.6."""
    image = rows(OLD_ROW, columns=len(OLD_TYPES), version=1)
    changed = rows(OLD_ROW + OLD_ROW, columns=len(OLD_TYPES), version=1, images=2)
    return (
        BinlogFile("5.5.62-log")
        .add(wire.QUERY, query("BEGIN"))
        .add(wire.INTVAR, struct.pack("<BQ", 2, 41))
        .add(wire.RAND, struct.pack("<QQ", 11, 12))
        .add(wire.USER_VAR, user_variable("x", 2, struct.pack("<q", -3)))
        .add(wire.USER_VAR, user_variable("y", 0, b"text"))
        .add(wire.USER_VAR, user_variable("z", 4, b"\x05\x02\x80\x7b\x2d"))
        .add(wire.USER_VAR, user_variable("r", 1, struct.pack("<d", 1.5)))
        .add(wire.USER_VAR, struct.pack("<I", 1) + b"n\x01")
        .add(wire.TABLE_MAP, table_map(OLD_TYPES, OLD_METADATA))
        .add(wire.WRITE_V1, image)
        .add(wire.UPDATE_V1, changed)
        .add(wire.DELETE_V1, image)
        .add(wire.BEGIN_LOAD, struct.pack("<I", 9) + b"1,2\n")
        .add(wire.APPEND_BLOCK, struct.pack("<I", 9) + b"3,4\n")
        .add(wire.EXECUTE_LOAD, query("")[:13] + struct.pack("<IIIB", 9, 0, 0, 0) + b"a\0LOAD DATA INFILE 'f'")
        .add(wire.XID, struct.pack("<Q", 77))
        .add(wire.INCIDENT, b"\1\0\4gone")
        .add(wire.ROTATE, struct.pack("<Q", 4) + b"binlog.000002")
    )


def of_56() -> BinlogFile:
    """MySQL 5.6: checksums, the second version of row events, fractions of seconds, statements beside their rows."""
    fractions = bytes([17, 18, 19])
    image = b"\0" + struct.pack(">I", TIME) + b"\x04\xd2" + b"\x99\xb2\x7e\xc8\xb8" + b"\x80\xc8\xb8\x00\x0a"
    return (
        BinlogFile("5.6.51-log", flags=IN_USE)
        .add(wire.ANONYMOUS_GTID, gtid(0))
        .add(wire.QUERY, query("BEGIN"))
        .add(wire.ROWS_QUERY, b"\x0aINSERT ...")
        .add(wire.TABLE_MAP, table_map(fractions, b"\x04\x00\x03"))
        .add(wire.WRITE_V2, rows(image, columns=3))
        .add(wire.HEARTBEAT, b"binlog.000001")
        .add(wire.XID, struct.pack("<Q", 78))
    )


def of_57() -> BinlogFile:
    """MySQL 5.7: GTIDs, XA, documents, and what group replication notes."""
    intervals = struct.pack("<QQQ", 1, 1, 6)
    context = bytes([len(str(SOURCE))]) + bytes(17) + str(SOURCE).encode()
    document = b"\x00\x01\x00\x0c\x00\x0b\x00\x01\x00\x05\x07\x00a"
    return (
        BinlogFile("5.7.44-log")
        .add(wire.PREVIOUS_GTIDS, struct.pack("<Q", 1) + SOURCE.bytes + intervals)
        .add(wire.VIEW_CHANGE, b"15:2".ljust(40, b"\0") + struct.pack("<QI", 1, 0))
        .add(wire.TRANSACTION_CONTEXT, context)
        .add(wire.GTID, gtid(6))
        .add(wire.QUERY, query("XA START X'61',X'',1"))
        .add(wire.TABLE_MAP, table_map(bytes([245]), b"\x04"))
        .add(wire.WRITE_V2, rows(b"\0" + struct.pack("<I", len(document)) + document))
        .add(wire.QUERY, query("XA END X'61',X'',1"))
        .add(wire.XA_PREPARE, b"\0" + struct.pack("<III", 1, 1, 0) + b"a")
        .add(wire.STOP)
    )


def of_8() -> BinlogFile:
    """MySQL 8 and 9: named columns, compressed transactions, partial documents, tagged GTIDs."""
    named = bytes([4, 2, 1]) + b"i"
    inner = bare(wire.QUERY, query("BEGIN")) + bare(wire.TABLE_MAP, table_map(optional=named))
    inner += bare(wire.WRITE_V2, rows(number(1) + number(2))) + bare(wire.XID, bytes(8))
    change = b"\x00\x05$.age" + b"\x03\x05\x1a\x00"
    # of the row before there is a NULL: the document is not in the log
    partial = b"\xff" + b"\x01\x01" + b"\0" + struct.pack("<I", len(change)) + change
    update = rows(partial, images=2)
    tagged = b"".join(bytes([value << 1]) for value in (1, 40, 0, 0, 0, 1)) + _numbers(SOURCE.bytes)
    tagged += bytes([2 << 1, 7 << 2, 3 << 1, 4 << 1]) + b"mine"
    return (
        BinlogFile("9.1.0")
        .add(wire.PREVIOUS_GTIDS, struct.pack("<Q", 0))
        .add(wire.GTID, gtid(8) + (TIME * 10**6).to_bytes(7, "little") + b"\x20")
        .add(wire.TRANSACTION_PAYLOAD, payload(inner))
        .add(wire.TAGGED_GTID, tagged)
        .add(wire.QUERY, query("BEGIN"))
        .add(wire.TABLE_MAP, table_map(bytes([245]), b"\x04", name="doc"))
        .add(wire.PARTIAL_UPDATE, update)
        .add(wire.XID, bytes(8))
        .add(wire.HEARTBEAT_V2, b"\x01\x01b\x02\x01\x09\0")
    )


def _numbers(data: bytes) -> bytes:
    """Each as the newer serialization has small numbers: with a bit for their length."""
    return b"".join(bytes([value << 1]) if value < 128 else (value << 2 | 1).to_bytes(2, "little") for value in data)


def of_mariadb() -> BinlogFile:
    """MariaDB: GTID lists, annotated and compressed rows, XA and two-phase ALTER in a GTID."""
    started = struct.pack("<QIB", 9, 0, 1 | 8) + b"\x02" + bytes(8)
    prepared = struct.pack("<QIB", 10, 0, 64) + struct.pack("<IBB", 1, 1, 0) + b"q"
    packed = rows(compressed(number(5)), version=1)
    statement = query("") + compressed(b"CREATE TABLE u (i int)")
    return (
        BinlogFile("10.11.6-MariaDB-log")
        .add(wire.GTID_LIST, struct.pack("<I", 1) + struct.pack("<IIQ", 0, 1, 8))
        .add(wire.CHECKPOINT, struct.pack("<I", 13) + b"binlog.000001")
        .add(wire.MARIADB_GTID, started)
        .add(wire.QUERY, query("ALTER TABLE t ADD b int"))
        .add(wire.MARIADB_GTID, prepared)
        .add(wire.ANNOTATE, b"INSERT INTO t VALUES (5)")
        .add(wire.TABLE_MAP, table_map())
        .add(wire.WRITE_COMPRESSED_V1, packed)
        .add(wire.QUERY_COMPRESSED, statement)
        .add(wire.XA_PREPARE, b"\0" + struct.pack("<III", 1, 1, 0) + b"q")
    )


def samples() -> Mapping[str, BinlogFile]:
    """By the server's age."""
    return {"5.5": old(), "5.6": of_56(), "5.7": of_57(), "8": of_8(), "mariadb": of_mariadb()}
