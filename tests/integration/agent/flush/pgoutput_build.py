"""Change-log segments with row events in pgoutput's text form, written by hand."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from agent.log import segment
from agent.log.segment import SegmentName
from agent.log.storage import LogDirectory
from agent.rows.batches import SegmentRef, TableBatch
from agent.rows.schema import LOG_BATCH, Column, TableSchema
from reactor.ids import Ts

INT8, TEXT = 20, 25
TABLE = TableSchema(
    16384,
    "public",
    "t",
    (Column("id", INT8, -1, "int8", is_key=True), Column("name", TEXT, -1, "text"), Column("big", TEXT, -1, "text")),
)
Row = tuple[object, ...]


@dataclass(frozen=True)
class Event:
    """A raw message and the commit it belongs to."""

    ts: int
    message: bytes


def inserted(ts: int, *row: object, table: TableSchema = TABLE) -> Event:
    return Event(ts, b"I" + struct.pack(">i", table.table_id) + b"N" + _tuple(row))


def updated(ts: int, *row: object, old_key: Row | None = None, table: TableSchema = TABLE) -> Event:
    old = b"" if old_key is None else b"K" + _tuple(old_key)
    return Event(ts, b"U" + struct.pack(">i", table.table_id) + old + b"N" + _tuple(row))


def deleted(ts: int, *old_key: object, table: TableSchema = TABLE) -> Event:
    return Event(ts, b"D" + struct.pack(">i", table.table_id) + b"K" + _tuple(old_key))


def truncated(ts: int, table: TableSchema = TABLE) -> Event:
    return Event(ts, b"T" + struct.pack(">ibi", 1, 0, table.table_id))


def _tuple(row: Sequence[object]) -> bytes:
    return struct.pack(">h", len(row)) + b"".join(_value(value) for value in row)


def _value(value: object) -> bytes:
    if value is None:
        return b"n"
    if value is ...:  # an unchanged large value
        return b"u"
    text = str(value).encode()
    return b"t" + struct.pack(">i", len(text)) + text


def write_segment(
    directory: LogDirectory,
    seq: int,
    resolved_ts: int,
    events: Sequence[Event],
    *,
    table: TableSchema = TABLE,
    commit_time: float = 0.0,
) -> SegmentRef:
    """One segment of one table's events, in order of their commits."""
    columns = [
        pa.array([event.ts for event in events], pa.int64()),
        pa.array(range(len(events)), pa.int64()),
        pa.array([event.message for event in events], pa.large_binary()),
    ]
    batch = pa.record_batch(columns, schema=LOG_BATCH)
    name = SegmentName(seq, 1, Ts(events[0].ts), Ts(events[-1].ts), Ts(resolved_ts))
    return segment.write(directory, name, [TableBatch(table, batch, commit_time)])
