"""Rereading: reads the rows of an earlier prepared transaction from the binlog, over another connection.

It is a second dump like mysqlbinlog's: by file and offset, without registering as a replica, and with an end. So it
neither waits for future events nor ends another replica's dump. Events are read one by one: this is only for the few
transactions that were too large to be kept in memory, or that were prepared before the stream began.

Usually a transaction's place is known. An unknown name was prepared before the changefeed began; and on another server
(fail-over) the place is another. Then the transaction is searched backwards from its XA COMMIT, file by file: it is the
last one that was prepared under that name, since a name can be reused only after its decision.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from agent.errors import NEW_POSITION, SnapshotLostByGCError, SourceUnreachableError
from agent.sources.mysql.binlog import events
from agent.sources.mysql.binlog.payload import Payload
from agent.sources.mysql.binlog.request import request_events
from agent.sources.mysql.ddl import statements
from agent.sources.mysql.decode import wire
from agent.sources.mysql.position.positions import FIRST_POSITION, BinlogPosition
from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.refusals import refusal

_log = structlog.get_logger()

_TIMEOUT_S: Final = 60.0
_BUFFER_BYTES: Final = 1 << 18
_LONGEST: Final = 0xFFFFFF
_ERROR, _END = 0xFF, 0xFE
_GTIDS: Final = frozenset({wire.MARIADB_GTID, wire.GTID, wire.ANONYMOUS_GTID, wire.TAGGED_GTID})
#: events that belong to another transaction
_ENDS: Final = frozenset({*_GTIDS, wire.XID, wire.XA_PREPARE, wire.TRANSACTION_PAYLOAD})
#: start of a compressed transaction: its XA START comes first
_PEEK_BYTES: Final = 1 << 12


class Reader(Protocol):
    """A source of events without packet headers and checksums, which the stream reads instead of the server's."""

    def read_into(self, view: memoryview) -> int:
        """Read bytes into ``view``; return their number, 0 at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Event:
    """``at``: its offset in the file. ``data``: the event with header, without checksum."""

    kind: int
    at: int
    data: bytes

    @property
    def body(self) -> bytes:
        return self.data[wire.HEADER_BYTES :]

    @property
    def bare(self) -> bytes:
        """Return the event in the form without checksums."""
        length = struct.pack("<I", len(self.data))
        return self.data[: wire.LENGTH_AT] + length + self.data[wire.LENGTH_AT + len(length) :]


class Dump:
    """Iterates over the events from ``begin`` to the end of its file."""

    def __init__(self, connection: Connection, begin: BinlogPosition) -> None:
        self._connection = connection
        self._file = begin.file
        request_events(connection, begin)
        connection.socket.settimeout(_TIMEOUT_S)
        self._stream = connection.socket.makefile("rb", _BUFFER_BYTES)

    def __iter__(self) -> Iterator[Event]:
        """Yield the events.

        :raises SourceError: the server refuses, or the connection is lost.
        """
        checksum = 0
        while packet := self._packet():
            if packet[0] == _ERROR:
                raise refusal(*events.parse_error(packet[1:]), self._connection.target)
            if packet[0] == _END:
                return
            event = packet[1:]
            match kind := event[wire.TYPE_AT]:
                case wire.FORMAT_DESCRIPTION:
                    checksum = events.parse_format(event[wire.HEADER_BYTES :]).checksum_bytes
                case wire.ROTATE:
                    if events.parse_rotate(event).file != self._file:
                        return
                case _:
                    if checksum and not events.is_sound(event):
                        raise SourceUnreachableError(
                            f"{self._connection.target} sent an event whose checksum is wrong; it is read again"
                        )
                    at = int.from_bytes(event[wire.POSITION_AT : wire.FLAGS_AT], "little") - len(event)
                    yield Event(kind, at, event[: len(event) - checksum])

    def close(self) -> None:
        """Close at once: a dump that keeps sending prevents its file from being purged."""
        self._stream.close()
        self._connection.abort()
        self._connection.close()

    def _packet(self) -> bytes:
        """Return a packet without its header; an event of 16 MiB or more is joined from several packets."""
        pieces: list[bytes] = []
        while not pieces or len(pieces[-1]) == _LONGEST:
            length = int.from_bytes(self._take(4)[:3], "little")
            pieces.append(self._take(length))
        return b"".join(pieces)

    def _take(self, count: int) -> bytes:
        try:
            data: bytes = self._stream.read(count)
        except OSError as error:
            raise self._lost() from error
        if len(data) < count:
            raise self._lost()
        return data

    def _lost(self) -> SourceUnreachableError:
        return SourceUnreachableError(f"{self._connection.target} broke off the binlog; it is opened again")


class PreparedRows:
    """``Reader`` of the transaction at the start of ``dump``: the events after its GTID, up to its XA PREPARE."""

    def __init__(self, dump: Dump, name: str) -> None:
        self._name = name
        self._pieces = self._read(dump)
        self._inside: Payload | None = None
        self._rest = memoryview(b"")

    def read_into(self, view: memoryview) -> int:
        """Read bytes into ``view``; return their number, 0 at the end.

        :raises SourceError: another transaction is at this place, or reading fails temporarily.
        """
        while True:
            if self._inside is not None and (count := self._inside.read_into(view)):
                return count
            if self._rest:
                count = min(len(view), len(self._rest))
                view[:count] = self._rest[:count]
                self._rest = self._rest[count:]
                return count
            self._inside = None
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            if isinstance(piece, Payload):
                self._inside = piece
            else:
                self._rest = memoryview(piece)

    def _read(self, dump: Dump) -> Iterator[bytes | Payload]:
        has_begun = False
        with closing(dump):
            for event in dump:
                if event.kind in _GTIDS and not has_begun:
                    has_begun = True
                elif _prepares(event) == self._name:
                    yield Payload(event.body) if event.kind == wire.TRANSACTION_PAYLOAD else event.bare
                    return
                elif event.kind in _ENDS:
                    break
                elif has_begun:
                    yield event.bare
        raise SnapshotLostByGCError(
            f"the XA transaction {self._name} is not where it was prepared in the binlog; {NEW_POSITION}"
        )


class Reread:
    """Opens such dumps, one at a time; ``abort`` ends an open dump from any thread, and prevents others."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._connection: Connection | None = None
        self._dump: Dump | None = None
        self._is_aborted = False

    def rows_of(self, name: str, at: BinlogPosition | None, before: BinlogPosition) -> Reader:
        """Return the rows of the transaction prepared as ``name``: at the known place ``at``, else somewhere before
        ``before``.

        :raises SnapshotLostByGCError: they are no longer in the binlog.
        """
        at = at or self._find(name, before)
        _log.info("reading a prepared XA transaction again", name=name, at=str(at))
        return PreparedRows(self._open_dump(at), name)

    def abort(self) -> None:
        self._is_aborted = True
        if self._connection is not None:
            self._connection.abort()

    def close(self) -> None:
        if self._dump is not None:
            self._dump.close()
        if self._connection is not None:
            self._connection.close()

    def _open(self) -> Connection:
        self.close()
        self._connection = connection = self._connect()
        if self._is_aborted:
            connection.abort()
        return connection

    def _open_dump(self, begin: BinlogPosition) -> Dump:
        self._dump = Dump(self._open(), begin)
        return self._dump

    def _find(self, name: str, before: BinlogPosition) -> BinlogPosition:
        files = [str(row[0]) for row in self._open().query("SHOW BINARY LOGS")]
        if before.file in files:
            files = files[: files.index(before.file) + 1]
        for file in reversed(files):
            until = before.position if file == before.file else None
            with closing(self._open_dump(BinlogPosition(file))) as dump:
                at = _last_prepared(dump, name, until)
            if at is not None:
                return BinlogPosition(file, at)
        raise SnapshotLostByGCError(
            f"the XA transaction {name} was committed, and its XA PREPARE is in the binlog no more; {NEW_POSITION}"
        )


def _last_prepared(dump: Dump, name: str, until: int | None) -> int | None:
    """Return the offset of the last transaction that is prepared as ``name``."""
    return dict(prepared_in(dump, until)).get(name)


def prepared_in(dump: Dump, until: int | None) -> Iterator[tuple[str, int]]:
    """Yield the transactions prepared before ``until``: name, and offset of the start."""
    begun = FIRST_POSITION
    for event in dump:
        if until is not None and event.at >= until:
            break
        if event.kind in _GTIDS:
            begun = event.at
        elif name := _prepares(event):
            yield name, begun


def _prepares(event: Event) -> str:
    """Return the name of the transaction that is prepared by this event, or by one inside of it."""
    if event.kind == wire.XA_PREPARE:
        return events.parse_xa_prepare(event.body)[1]
    if event.kind != wire.TRANSACTION_PAYLOAD:
        return ""
    start = bytearray(_PEEK_BYTES)
    count = Payload(event.body).read_into(memoryview(start))
    if count < wire.HEADER_BYTES or start[wire.TYPE_AT] != wire.QUERY:
        return ""
    length = int.from_bytes(start[wire.LENGTH_AT : wire.POSITION_AT], "little")
    statement = events.parse_query(bytes(start[wire.HEADER_BYTES : min(length, count)])).statement
    return statements.xa_name(statement) if statements.kind(statement) is statements.StatementKind.XA_BEGIN else ""
