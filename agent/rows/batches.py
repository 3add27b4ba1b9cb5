"""Batches of the change log: raw row events of one table, and references to the segment files that hold them."""

from dataclasses import dataclass

import pyarrow as pa

from agent.rows.schema import TableSchema
from reactor.ids import Ts


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """One file of the change log, as named (see ``agent.log.segment``).

    It holds row events with ``first_ts <= commit_ts <= last_ts``; every commit at or below ``resolved_ts`` is in this
    segment or an earlier one. ``tables``: ids of the tables with at least one event in it.
    """

    path: str
    seq: int
    epoch: int
    first_ts: Ts
    last_ts: Ts
    resolved_ts: Ts
    bytes: int = 0
    tables: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Raw row events of one table under one schema on their way into the log (columns:
    ``agent.rows.schema.LOG_BATCH``).

    ``commit_time``: commit time of the newest event, Unix seconds.
    """

    schema: TableSchema
    batch: pa.RecordBatch
    commit_time: float
