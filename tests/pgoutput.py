"""Real pgoutput messages for tests, and a plain reader of them that shares no code with the kernels."""

import struct
from dataclasses import dataclass, field

import psycopg
import pyarrow as pa

from agent.rows.schema import TableSchema
from agent.sources.postgres.server.catalog import read_schemas
from agent.sources.postgres.server.connection import connect

UNCHANGED = "unchanged"
#: NULL, UNCHANGED, or (is_binary, bytes)
Value = None | str | tuple[bool, bytes]


@dataclass(frozen=True, slots=True)
class Event:
    commit_ts: int
    seq: int
    body: bytes


@dataclass(slots=True)
class PlainRow:
    op: str
    old_kind: str = ""
    old: list[Value] = field(default_factory=list)
    new: list[Value] = field(default_factory=list)


def table_id(dsn: str, name: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT %s::regclass::oid::int8", [name]).fetchone()
        assert row is not None
        return int(row[0])


def read_schema(uri: str, table: int) -> TableSchema:
    with connect(uri) as connection:
        return read_schemas(connection, [table])[table]


def create_slot(dsn: str, slot: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])


def read_events(
    dsn: str, slot: str, publication: str, *, is_binary: bool, consume: bool = False
) -> dict[int, list[Event]]:
    """The row events in the slot, by relation; they stay there unless consumed."""
    function = "get" if consume else "peek"
    sql = (
        f"SELECT data FROM pg_logical_slot_{function}_binary_changes(%s, NULL, NULL, "
        "'proto_version', '1', 'publication_names', %s, 'binary', %s)"
    )
    events: dict[int, list[Event]] = {}
    commit_ts = seq = 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        for (message,) in connection.execute(sql, [slot, publication, str(is_binary).lower()], binary=True):
            if message[:1] == b"B":
                commit_ts, seq = struct.unpack_from("!q", message, 1)[0], 0
            elif message[:1] in (b"I", b"U", b"D", b"T"):
                for relation in _relations(message):
                    events.setdefault(relation, []).append(Event(commit_ts, seq, bytes(message)))
                seq += 1
    return events


def _relations(message: bytes) -> list[int]:
    if message[:1] != b"T":
        return [struct.unpack_from("!I", message, 1)[0]]
    (count,) = struct.unpack_from("!i", message, 1)
    return list(struct.unpack_from(f"!{count}I", message, 6))


def as_batch(events: list[Event]) -> pa.RecordBatch:
    """In the shape of the change log."""
    return pa.record_batch(
        [
            pa.array([event.commit_ts for event in events], pa.int64()),
            pa.array([event.seq for event in events], pa.int64()),
            pa.array([event.body for event in events], pa.large_binary()),
        ],
        names=["commit_ts", "seq", "event"],
    )


def parse(body: bytes) -> PlainRow:
    row = PlainRow(chr(body[0]))
    at = 5
    if row.op == "T":
        return row
    if chr(body[at]) in "KO":
        row.old_kind = chr(body[at])
        row.old, at = _parse_tuple(body, at + 1)
    if row.op in "IU":
        assert chr(body[at]) == "N"
        row.new, at = _parse_tuple(body, at + 1)
    assert at == len(body)
    return row


def _parse_tuple(body: bytes, at: int) -> tuple[list[Value], int]:
    (count,) = struct.unpack_from("!h", body, at)
    at += 2
    values: list[Value] = []
    for _ in range(count):
        kind = chr(body[at])
        at += 1
        if kind == "n":
            values.append(None)
        elif kind == "u":
            values.append(UNCHANGED)
        else:
            (length,) = struct.unpack_from("!i", body, at)
            values.append((kind == "b", body[at + 4 : at + 4 + length]))
            at += 4 + length
    return values, at
