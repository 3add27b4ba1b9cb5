"""Segments, heads and names with dull fields filled in."""

from pathlib import Path

import pyarrow as pa

from agent.log import segment
from agent.log.segment import SegmentName
from agent.log.storage import LogDirectory
from agent.rows.batches import SegmentRef, TableBatch
from agent.rows.schema import LOG_BATCH, Column, TableSchema
from reactor.ids import Ts
from reactor.records.log_head import Era, LogHead


def schema(table_id: int, *, columns: tuple[str, ...] = ("id",)) -> TableSchema:
    return TableSchema(table_id, "public", f"t{table_id}", tuple(Column(name, 23, -1, "int4") for name in columns))


def batch(table_id: int, *events: tuple[int, int], columns: tuple[str, ...] = ("id",)) -> TableBatch:
    """``events``: (commit Ts, ordinal); the bytes spell them."""
    rows = [[ts for ts, _ in events], [seq for _, seq in events], [f"{ts}/{seq}".encode() for ts, seq in events]]
    return TableBatch(
        schema(table_id, columns=columns),
        pa.RecordBatch.from_arrays(
            [pa.array(values, field.type) for values, field in zip(rows, LOG_BATCH, strict=True)], schema=LOG_BATCH
        ),
        commit_time=1000.0 + events[-1][0],
    )


def name(seq: int, *, epoch: int = 1, first: int = 0, last: int = 0, resolved: int = 0) -> SegmentName:
    """Without positions, segment ``seq`` holds the commits of the ten Ts before ``10 * seq``."""
    last = last or 10 * seq
    return SegmentName(seq, epoch, Ts(first or last - 9), Ts(last), Ts(resolved or last))


def head(*, last_seq: int, epoch: int = 1, **changes: object) -> LogHead:
    plain = LogHead(
        epoch=epoch,
        last_seq=last_seq,
        complete_seq=last_seq,
        resolved_ts=Ts(10 * last_seq),
        eras=(Era(epoch=epoch, first_seq=1),),
    )
    return plain.with_(**changes)


def directory(path: Path) -> LogDirectory:
    return LogDirectory(str(path), changefeed="feed", source="main")


def put(place: LogDirectory, segment_name: SegmentName, *batches: TableBatch) -> SegmentRef:
    return segment.write(place, segment_name, batches or (batch(1, (segment_name.last_ts, 0)),))
