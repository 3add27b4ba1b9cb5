"""Flush task: on an executor, reads a span's events, decodes them, keeps the span's rows, and gives them to the sink.

Expected errors (a stale writer, a lost race, a damaged segment) are returned in the result, so that the job's other
tasks keep their work; a bug raises and fails the job.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa

from agent.errors import RESYNC, RowMovedError, TableHeldError
from agent.filter import events
from agent.log import segment
from agent.ports.sink import FlushResult, FlushTask
from agent.rows.batches import SegmentRef
from agent.rows.changes import Changes
from agent.rows.schema import TableSchema
from agent.rows.spans import incomplete_moves, keep_span
from agent.schema_changes.conform import conform
from agent.sinks import open_sink
from agent.sources.registry import decode
from reactor import failpoints
from reactor.errors import WeirError
from reactor.failpoints import Point
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode

_TABLES_AT_ONCE = 8
_JOINED_BYTES = 1 << 20
#: of the log that is folded at once; the plan knows only compressed bytes, which texts may exceed a hundredfold
_FOLDED_BYTES = 512 << 20
#: what Arrow says of a column that exceeds 2 GiB
_ARROW_FULL = "offset overflow"


def run_flushes(tasks: Sequence[FlushTask]) -> list[FlushResult]:
    """Run tasks of one table in sequence, and some tables concurrently, since small tasks mostly wait for storage (see
    ``agent.flush.plan.group_tasks``)."""
    at: dict[int, list[int]] = {}
    for index, task in enumerate(tasks):
        at.setdefault(task.table.table_id, []).append(index)
    if len(at) == 1:
        return [run_flush(task) for task in tasks]
    with ThreadPoolExecutor(_TABLES_AT_ONCE) as pool:
        done = pool.map(lambda indexes: [(index, run_flush(tasks[index])) for index in indexes], at.values())
        results = dict(chain.from_iterable(done))
    return [results[index] for index in range(len(tasks))]


class _EnoughError(Exception):
    """The task has more changes than are folded at once; those up to ``to_ts`` are whole transactions."""

    def __init__(self, to_ts: Ts, segments: tuple[SegmentRef, ...]) -> None:
        super().__init__(to_ts)
        self.to_ts = to_ts
        self.segments = segments


def run_flush(task: FlushTask) -> FlushResult:
    """Write one task's changes to the sink; see ``FlushResult`` for what is left to ``Sink.commit``. If they are too
    many to be folded at once, the result has a lesser ``to_ts``."""
    try:
        sink = open_sink(task.feed.sink_uri, changefeed=task.feed.changefeed, mode=task.feed.sink_mode)
        try:
            written = sink.writer().write(task, _Log(task))
        except _EnoughError as enough:
            task = replace(task, to_ts=enough.to_ts, segments=enough.segments)
            written = sink.writer().write(task, _Log(task))
        except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
            raise _too_large(task, error) from error
        failpoints.reach(Point.FLUSH_WRITTEN)
        return written
    except WeirError as error:
        return FlushResult(
            task.span,
            task.from_ts,
            task.to_ts,
            error=str(error),
            error_code=error.code,
            retryable=error.retryable,
            scope=error.scope,
        )
    finally:
        pa.default_memory_pool().release_unused()  # workers are reused and should not keep a backlog's peak memory


def _too_large(task: FlushTask, error: Exception) -> Exception:
    if _ARROW_FULL not in str(error):
        return error
    table = f"{task.table.schema_name}.{task.table.name}"
    return TableHeldError(f"{table}: changes that belong together have more than 2 GiB in one column; {RESYNC}")


@dataclass(frozen=True, slots=True)
class _Log:
    """The changes that ``task`` writes; reads the log again on each iteration."""

    task: FlushTask

    def __iter__(self) -> Iterator[Changes]:
        return read_changes(self.task)


def read_changes(task: FlushTask) -> Iterator[Changes]:
    """Yield the changes of the task's span in ``(from_ts, to_ts]``, in log order, without those that the table skips,
    and those from before its schema change.

    :raises LogError: a segment is missing or damaged.
    :raises DecodeError: events do not match their schema.
    :raises FilterError: an expression does not fit the table's current columns.
    """
    rules = events.rules_for(task.feed.filter, task.table.schema_name, task.table.name)
    for schema, batch, clock in _joined(_batches(task)):
        changes = clock.with_times(decode(schema, batch, task.table.key))
        if task.change and _may_precede(changes, task.change_ts):
            changes = conform(changes, task.change, keeps_gone=task.feed.sink_mode is not SinkMode.UPSERT)
        _refuse_incomplete_moves(changes, task)
        if rules:
            changes = rules.apply(changes)
        yield keep_span(changes, task.span, key=task.table.key)
        del changes, batch  # free them before the next ones are read


def _may_precede(changes: Changes, change_ts: Ts) -> bool:
    """Return whether rows may have the schema before a change. Later ones have the new one, in which an old name may be
    another column's; where columns have numbers, these tell."""
    has_numbers = any(column.place for column in changes.schema.columns)
    return has_numbers or bool((changes.commit_ts <= change_ts).any())


@dataclass(frozen=True, slots=True)
class _Clock:
    """Commit times of a batch: for each log batch in it, its last Ts and its commit time."""

    last_ts: tuple[int, ...]
    commit_times: tuple[float, ...]

    def with_times(self, changes: Changes) -> Changes:
        if len(self.last_ts) == 1:
            return replace(changes, commit_time=self.commit_times[0])
        times = np.array(self.commit_times)[np.searchsorted(self.last_ts, changes.commit_ts)]
        return replace(changes, commit_time=max(self.commit_times), commit_times=times)


_Batch = tuple[TableSchema, pa.RecordBatch, _Clock]


def _batches(task: FlushTask) -> Iterator[_Batch]:
    """:raises _EnoughError: the rest would be too much."""
    size = 0
    for at, item in enumerate(task.segments):
        if size > _FOLDED_BYTES and _can_end(task, task.segments[at - 1].resolved_ts):
            raise _EnoughError(task.segments[at - 1].resolved_ts, task.segments[:at])
        for schema, batch, commit_time in segment.read_batches(item.path, task.table.table_id):
            if (wanted := _within(batch, task)).num_rows:
                size += wanted.nbytes
                yield schema, wanted, _Clock((wanted.column(0)[-1].as_py(),), (commit_time,))
            del batch, wanted


def _can_end(task: FlushTask, ts: Ts) -> bool:
    """Return whether a task that folds its changes may end at a segment's end instead of its own."""
    is_folded = task.feed.sink_mode.is_keyed and bool(task.table.key) and task.parts == 1
    return is_folded and max(task.from_ts, task.table.consistent_ts - 1) < ts < task.to_ts


def _joined(batches: Iterator[_Batch]) -> Iterator[_Batch]:
    """Join small consecutive batches of one schema: a segment has a few rows of each of many tables, and decoding has a
    fixed cost per batch."""
    waiting: list[_Batch] = []
    size = 0
    for item in batches:
        more = item[1].nbytes
        if waiting and (item[0] != waiting[0][0] or size + more > _JOINED_BYTES):
            yield _as_one(waiting)
            waiting, size = [], 0
        if more > _JOINED_BYTES:
            yield item
        else:
            waiting, size = [*waiting, item], size + more
        del item  # free it before the next one is read
    if waiting:
        yield _as_one(waiting)


def _as_one(waiting: Sequence[_Batch]) -> _Batch:
    schemas, batches, clocks = zip(*waiting, strict=True)
    if len(batches) == 1:
        return waiting[0]
    last_ts = tuple(chain.from_iterable(clock.last_ts for clock in clocks))
    commit_times = tuple(chain.from_iterable(clock.commit_times for clock in clocks))
    return schemas[0], pa.concat_batches(batches), _Clock(last_ts, commit_times)


def _refuse_incomplete_moves(changes: Changes, task: FlushTask) -> None:
    """Refuse the batch whether or not the row concerns this span: see ``agent.rows.spans``."""
    if task.span.is_whole_table or not task.feed.sink_mode.is_keyed:
        return
    (at,) = np.nonzero(incomplete_moves(changes, key=task.table.key))
    if len(at):
        raise RowMovedError(
            f"{task.table.schema_name}.{task.table.name}: an update at {changes.commit_ts[at[0]]} changed a row's key "
            "and left large values out, which spans cannot fetch from each other; the table is joined (to avoid it: "
            "let the source log whole rows)"
        )


def _within(batch: pa.RecordBatch, task: FlushTask) -> pa.RecordBatch:
    from_ts = max(task.from_ts, task.table.skipped_ts)
    if task.change:
        # the sink has all from before it, though it records none that left no row; a key of then is not that of now
        from_ts = max(from_ts, Ts(task.change_ts - 1))
    start, end = np.searchsorted(batch.column(0).to_numpy(), (from_ts, task.to_ts), side="right")
    return batch.slice(int(start), int(end - start))
