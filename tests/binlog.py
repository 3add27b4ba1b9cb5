"""Binlogs built by hand, for what no server at hand writes: MySQL's own events, broken bytes, giant packets.

``Binlog`` numbers positions as a server does and wraps events into packets; ``Line`` is the connection that a stream
reads them from, over a real socket.
"""

import socket
import struct
import zlib
from uuid import UUID

import zstandard

from agent.sources.mysql.decode import wire
from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.uri import Target

TARGET = Target(host="db.example", port=3306, user="weir")
SOURCE = UUID("3e11fa47-71ca-11e1-9e33-c80aa9429562")
CLOCK = 1_700_000_000
_HEADS = bytes(8 if kind == wire.TABLE_MAP else 10 for kind in range(1, 43))


def table_map(map_id: int, schema_name: str = "a", name: str = "t", *, columns: bytes = b"\x03") -> bytes:
    """The body of a table map: ints without names or anything else."""
    names = b"".join(bytes([len(part)]) + part.encode() + b"\0" for part in (schema_name, name))
    return map_id.to_bytes(6, "little") + b"\1\0" + names + bytes([len(columns)]) + columns + b"\0\0"


def query(statement: str, database: str = "a") -> bytes:
    name = database.encode()
    return struct.pack("<IIBHH", 7, 0, len(name), 0, 3) + b"abc" + name + b"\0" + statement.encode()


def rows(map_id: int, image: bytes = b"\xfe\x01\0\0\0") -> bytes:
    """The body of a rows event (version 2) with one int."""
    return map_id.to_bytes(6, "little") + b"\1\0" + b"\2\0" + b"\1\xff" + image


class Binlog:
    """Events in the order they are asked for. ``data`` is what the server sends."""

    def __init__(self, *, checksum: bool = True, position: int = 4) -> None:
        self.checksum = checksum
        self.position = position
        self.data = b""
        self._number = 0

    def event(self, kind: int, body: bytes = b"", *, flags: int = 0, artificial: bool = False) -> bytes:
        """One event with its checksum; it takes its place in the file."""
        length = wire.HEADER_BYTES + len(body) + (4 if self.checksum else 0)
        flags |= wire.FLAG_ARTIFICIAL if artificial else 0
        self.position += 0 if artificial else length
        end = 0 if artificial else self.position & 0xFFFFFFFF
        event = struct.pack("<IBIIIH", 0 if artificial else CLOCK, kind, 1, length, end, flags) + body
        return event + struct.pack("<I", zlib.crc32(event)) if self.checksum else event

    def add(self, kind: int, body: bytes = b"", *, flags: int = 0, artificial: bool = False) -> "Binlog":
        return self.send(b"\0" + self.event(kind, body, flags=flags, artificial=artificial))

    def send(self, payload: bytes) -> "Binlog":
        """One packet, or as many as it takes."""
        while True:
            piece, payload = payload[:0xFFFFFF], payload[0xFFFFFF:]
            self.data += len(piece).to_bytes(3, "little") + bytes([self._number]) + piece
            self._number = (self._number + 1) % 256
            if len(piece) < 0xFFFFFF:
                return self

    def begin(self, file: str = "binlog.000001") -> "Binlog":
        """What every dump begins with."""
        self.rotate(file, self.position)
        alg = 1 if self.checksum else 0
        body = struct.pack("<H50sIB", 4, b"8.4.0", 0, 19) + _HEADS + bytes([alg])
        event = struct.pack("<IBIIIH", CLOCK, wire.FORMAT_DESCRIPTION, 1, 19 + len(body) + 4, 0, 0) + body
        return self.send(b"\0" + event + struct.pack("<I", zlib.crc32(event)))

    def rotate(self, file: str, position: int = 4) -> "Binlog":
        self.add(wire.ROTATE, struct.pack("<Q", position) + file.encode(), artificial=True)
        self.position = position
        return self

    def gtid(self, number: int, *, time_us: int = 0) -> "Binlog":
        """MySQL's, with the time of commit when there is one."""
        body = b"\0" + SOURCE.bytes + struct.pack("<qBqq", number, 2, 0, 1)
        return self.add(wire.GTID, body + (time_us.to_bytes(7, "little") + b"\x20" if time_us else b""))

    def transaction(self, number: int, map_id: int = 5, *, count: int = 1) -> "Binlog":
        self.gtid(number).add(wire.QUERY, query("BEGIN")).add(wire.TABLE_MAP, table_map(map_id))
        for _ in range(count):
            self.add(wire.WRITE_V2, rows(map_id))
        return self.add(wire.XID, bytes(8))

    def payload(self, events: bytes, *, compression: int = 0) -> "Binlog":
        """A compressed transaction; ``events`` come from a ``Binlog`` without checksums."""
        data = zstandard.compress(events) if compression == 0 else events
        fields = bytes([2, 1, compression]) if compression < 0xFB else bytes([2, 3, 0xFC, compression, 0])
        fields += bytes([3, 9, 0xFE]) + struct.pack("<Q", len(events)) + b"\0"
        return self.add(wire.TRANSACTION_PAYLOAD, fields + data)


class Line(Connection):
    """A connection that needs no server. ``far`` is the server's end."""

    is_tls = False

    def __init__(self, *, is_mariadb: bool = False) -> None:
        self.socket, self.far = socket.socketpair()
        self.target = TARGET
        self.is_mariadb = is_mariadb

    def close(self) -> None:
        self.socket.close()
        self.far.close()
