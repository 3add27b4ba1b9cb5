"""What a file of a log holds, for people, row changes decoded: a segment of the change log, or a binlog file.

A segment is told batch by batch, a binlog event by event.
"""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from agent.log.segment import read_batches
from agent.ports import DELETE, INSERT, TRUNCATE, UPDATE, Changes
from agent.schema import TableSchema
from agent.sources.dialects import decode
from agent.sources.mysql.binlog_file import MAGIC
from agent.sources.mysql.reading import ToldEvent, read_events
from capture.cluster import View

_NAMES: Mapping[int, str] = {INSERT: "insert", UPDATE: "update", DELETE: "delete", TRUNCATE: "truncate"}
_UNCHANGED = "(unchanged)"


class ChangeView(View):
    """One change; values in their text form."""

    commit_ts: int
    operation: str
    before: dict[str, str | None] | None
    after: dict[str, str | None] | None


class BatchView(View):
    """One batch: the changes of one table under one schema."""

    table: str
    table_id: int
    columns: tuple[str, ...]
    changes: int
    bytes: int
    first_ts: int
    last_ts: int
    commit_time: float
    rows: tuple[ChangeView, ...]


class EventView(View):
    """One event of a binlog file; ``time`` in Unix seconds."""

    position: int
    time: int
    event: str
    what: str
    table: str
    rows: tuple[ChangeView, ...]


def is_binlog(path: str) -> bool:
    """By its first bytes; what is not a local file is none."""
    try:
        with Path(path).open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def inspect_binlog(path: str, *, limit: int, skip: int = 0, count: int = 100) -> list[EventView]:
    """``count`` events behind the first ``skip``, at most ``limit`` rows of each.

    :raises SourceConfigError: it is no binlog file.
    :raises DecodeError: an event is not what its table map says.
    """
    return [_event_view(told, limit) for told in islice(read_events(Path(path)), skip, skip + count)]


def _event_view(told: ToldEvent, limit: int) -> EventView:
    changes = told.changes
    return EventView(
        position=told.event.at,
        time=told.event.time,
        event=told.name,
        what=told.what,
        table=told.table,
        rows=tuple(_change_view(changes, index) for index in range(min(limit, len(changes)))) if changes else (),
    )


def inspect_segment(path: str, *, limit: int) -> list[BatchView]:
    """:raises LogError: the file is missing or damaged."""
    return [_batch_view(schema, batch, commit_time, limit=limit) for schema, batch, commit_time in read_batches(path)]


def _batch_view(schema: TableSchema, batch: pa.RecordBatch, commit_time: float, *, limit: int) -> BatchView:
    commit_ts = batch.column("commit_ts").to_numpy()
    changes = decode(schema, batch.slice(0, limit))
    return BatchView(
        table=schema.qualified_name,
        table_id=schema.table_id,
        columns=tuple(f"{column.name} {column.type_name}".strip() for column in schema.columns),
        changes=batch.num_rows,
        bytes=batch.nbytes,
        first_ts=int(commit_ts[0]),
        last_ts=int(commit_ts[-1]),
        commit_time=commit_time,
        rows=tuple(_change_view(changes, index) for index in range(len(changes))),
    )


def _change_view(changes: Changes, index: int) -> ChangeView:
    operation = int(changes.op[index])
    after = _row(changes.after, index) if operation in (INSERT, UPDATE) else None
    for name, is_unchanged in changes.unchanged.items():
        if after is not None and is_unchanged[index]:
            after[name] = _UNCHANGED
    before = _row(changes.before, index) if changes.before is not None and changes.before_kind[index] else None
    return ChangeView(commit_ts=int(changes.commit_ts[index]), operation=_NAMES[operation], before=before, after=after)


def _row(batch: pa.RecordBatch, index: int) -> dict[str, str | None]:
    values: dict[str, Any] = batch.slice(index, 1).to_pylist()[0]
    return {name: None if value is None else str(value) for name, value in values.items()}
