"""Log contents: shows a segment of the change log or a file of a source's own log, with row changes decoded.

A segment is shown batch by batch, a source's log event by event. If a file is damaged or truncated, everything before
that is shown, and then the error is raised.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from agent.errors import DecodeError
from agent.log.salvage import whole_batches
from agent.ports.log_files import LogFiles, LoggedEvent
from agent.rows.changes import DELETE, INSERT, TRUNCATE, UPDATE, Changes
from agent.rows.schema import TableSchema
from agent.sources.registry import decode
from reactor.views import View

_NAMES: Mapping[int, str] = {INSERT: "insert", UPDATE: "update", DELETE: "delete", TRUNCATE: "truncate"}
_UNCHANGED = "(unchanged)"


class ChangeView(View):
    """One change; values as text."""

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
    problem: str = ""


class EventView(View):
    """One event of a source's own log; ``time`` in Unix seconds. ``problem``: why it could not be read completely."""

    position: int
    time: int
    event: str
    what: str
    table: str
    rows: tuple[ChangeView, ...]
    problem: str = ""


def inspect_events(
    files: LogFiles, path: str, *, limit: int, skip: int = 0, count: int | None = None
) -> Iterator[EventView]:
    """Yield ``count`` events after the first ``skip`` (None: all), with at most ``limit`` rows each.

    :raises SourceConfigError: the file is not such a log.
    :raises DecodeError: the file is damaged or truncated after the events that were yielded.
    """
    for event in islice(files.read(Path(path), skip=skip), count):
        yield _event_view(event, limit)


def _event_view(event: LoggedEvent, limit: int) -> EventView:
    changes = event.changes
    return EventView(
        position=event.position,
        time=event.time,
        event=event.name,
        what=event.what,
        table=event.table,
        rows=tuple(_change_view(changes, index) for index in range(min(limit, len(changes)))) if changes else (),
        problem=event.problem,
    )


def inspect_segment(path: str, *, limit: int) -> Iterator[BatchView]:
    """:raises LogError: the file is missing, or damaged or truncated after the batches that were yielded."""
    for schema, batch, commit_time in whole_batches(path):
        yield _batch_view(schema, batch, commit_time, limit=limit)


def _batch_view(schema: TableSchema, batch: pa.RecordBatch, commit_time: float, *, limit: int) -> BatchView:
    commit_ts = batch.column("commit_ts").to_numpy()
    rows: tuple[ChangeView, ...] = ()
    problem = ""
    try:
        changes = decode(schema, batch.slice(0, limit))
        rows = tuple(_change_view(changes, index) for index in range(len(changes)))
    except DecodeError as error:
        problem = str(error)
    return BatchView(
        table=schema.qualified_name,
        table_id=schema.table_id,
        columns=tuple(f"{column.name} {column.type_name}".strip() for column in schema.columns),
        changes=batch.num_rows,
        bytes=batch.nbytes,
        first_ts=int(commit_ts[0]),
        last_ts=int(commit_ts[-1]),
        commit_time=commit_time,
        rows=rows,
        problem=problem,
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
    return {name: None if value is None else _value(value) for name, value in values.items()}


def _value(value: object) -> str:
    """Return bytes as text if they are UTF-8, otherwise as hexadecimal."""
    if not isinstance(value, bytes):
        return str(value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "0x" + value.hex()
    return text if text.isprintable() else "0x" + value.hex()
