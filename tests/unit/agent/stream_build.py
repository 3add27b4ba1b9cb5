"""Replication messages as a walsender frames them, and a stream that reads them from a socket of our own."""

import socket
import struct
from collections.abc import Callable

from agent.rows.arena import Arena, ArenaPool, LogChunk
from agent.rows.schema import TableSchema
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.uri import Target
from agent.sources.postgres.stream.stream import ReplicationStream
from reactor.ids import Ts


def copy_data(payload: bytes) -> bytes:
    return b"d" + struct.pack("!i", len(payload) + 4) + payload


def message(payload: bytes) -> bytes:
    """A pgoutput message as XLogData."""
    return copy_data(b"w" + bytes(24) + payload)


def keepalive(wal_end: int, *, clock: int = 0, reply: bool = False) -> bytes:
    return copy_data(b"k" + struct.pack("!qqB", wal_end, clock, reply))


def begin(commit_ts: int, *, time: int = 1_000_000) -> bytes:
    return message(b"B" + struct.pack("!qqi", commit_ts, time, 7))


def commit(commit_ts: int, *, time: int = 1_000_000) -> bytes:
    """The commit record takes ten bytes here."""
    return message(b"C" + struct.pack("!Bqqq", 0, commit_ts, commit_ts + 10, time))


def relation(table_id: int, *, name: str = "t", columns: tuple[str, ...] = ("id",)) -> bytes:
    body = b"R" + struct.pack("!I", table_id) + b"public\0" + name.encode() + b"\0d" + struct.pack("!h", len(columns))
    for column in columns:
        body += b"\1" + column.encode() + b"\0" + struct.pack("!Ii", 23, -1)
    return message(body)


def row_body(table_id: int, data: bytes, *, kind: bytes = b"I") -> bytes:
    return kind + struct.pack("!I", table_id) + data


def row(table_id: int, data: bytes, *, kind: bytes = b"I") -> bytes:
    return message(row_body(table_id, data, kind=kind))


def truncate_body(*table_ids: int) -> bytes:
    return b"T" + struct.pack(f"!iB{len(table_ids)}I", len(table_ids), 0, *table_ids)


class Wire(Connection):
    """A connection whose other end is ours; closes both."""

    def __init__(self) -> None:
        self.socket, self.server = socket.socketpair()
        self.target = Target("h", 5432, "db", "u")
        self.server_version = 18

    def close(self) -> None:
        self.socket.close()
        self.server.close()


def stream_on(
    wire: Wire,
    pool: ArenaPool,
    *,
    resolved: int = 0,
    is_wanted: Callable[[int], bool] = lambda _: True,
    resolve: Callable[[TableSchema], TableSchema] = lambda schema: schema,
    split_s: float = 60.0,
) -> ReplicationStream:
    return ReplicationStream(
        wire,
        taken(pool),
        resolved=Ts(resolved),
        is_wanted=is_wanted,
        resolve=resolve,
        pause_s=0.0,
        split_s=split_s,
    )


def taken(pool: ArenaPool) -> Arena:
    arena = pool.take(timeout_s=0)
    assert arena is not None
    return arena


#: table id, commit Ts, ordinal, bytes, name of the first column (empty: the table has none)
StreamedEvent = tuple[int, int, int, bytes, str]


def events_of(cut: LogChunk) -> list[StreamedEvent]:
    found = []
    for item in cut.batches():
        first = next((column.name for column in item.schema.columns), "")
        for commit_ts, seq, event in zip(*(column.to_pylist() for column in item.batch.columns), strict=True):
            found.append((item.schema.table_id, commit_ts, seq, event, first))
    return found
