"""One flush task, on an executor: read the span's events, decode them, keep the span's rows, give them to the sink.

What may go wrong for reasons of the world (a late writer, a lost race, a damaged segment) comes back in the result, so
that the other tasks of the job keep what they have done; a bug raises and fails the job.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa

from agent import event_filter
from agent.conform import conform
from agent.errors import RowMovedError
from agent.log import segment
from agent.ports import Changes, FlushResult, FlushTask
from agent.sinks import open_sink
from agent.sources.dialects import decode
from agent.span_rows import incomplete_moves, keep_span
from reactor import failpoints
from reactor.errors import WeirError
from reactor.failpoints import Point
from reactor.records import SinkMode

_TABLES_AT_ONCE = 4
_PIECE_BYTES = 4 << 20


def run_flushes(tasks: Sequence[FlushTask]) -> list[FlushResult]:
    """Those of one table one after the other; of different tables some at a time, since small ones mostly wait for the
    storage (see ``agent.flush.plan.group_tasks``)."""
    at: dict[int, list[int]] = {}
    for index, task in enumerate(tasks):
        at.setdefault(task.table.table_id, []).append(index)
    if len(at) == 1:
        return [run_flush(task) for task in tasks]
    with ThreadPoolExecutor(_TABLES_AT_ONCE) as pool:
        done = pool.map(lambda indexes: [(index, run_flush(tasks[index])) for index in indexes], at.values())
        results = dict(chain.from_iterable(done))
    return [results[index] for index in range(len(tasks))]


def run_flush(task: FlushTask) -> FlushResult:
    """Write one task's changes to the sink; see ``FlushResult`` for what is left to ``Sink.commit``."""
    try:
        sink = open_sink(task.sink_uri, changefeed=task.changefeed, mode=task.sink_mode)
        written = sink.write(task, _Log(task))
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
        )
    finally:
        pa.default_memory_pool().release_unused()  # workers live on, and a backlog's peak should not


@dataclass(frozen=True, slots=True)
class _Log:
    """What ``task`` is to write, as often as it is asked for."""

    task: FlushTask

    def __iter__(self) -> Iterator[Changes]:
        return read_changes(self.task)


def read_changes(task: FlushTask) -> Iterator[Changes]:
    """The changes of the task's span in ``(from_ts, to_ts]``, in log order.

    :raises LogError: a segment is missing or damaged.
    :raises DecodeError: events are not what their schema says.
    :raises FilterError: an expression does not fit the table as it has become.
    """
    rules = event_filter.rules_for(task.filter, task.table.schema_name, task.table.name)
    for item in task.segments:
        for schema, batch, commit_time in segment.read_batches(item.path, task.table.table_id):
            for piece in _pieces(_within(batch, task)):
                changes = replace(decode(schema, piece), commit_time=commit_time)
                if task.change:
                    changes = conform(changes, task.change, keeps_gone=task.sink_mode is SinkMode.CHANGELOG)
                _refuse_incomplete_moves(changes, task)
                if rules:
                    changes = rules.apply(changes)
                yield keep_span(changes, task.span, key=task.table.key)
                del changes, piece  # they are large, and the next ones are to come
            del batch


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Events of some mebibytes at a time: what decoding makes of narrow rows is larger than they are."""
    offsets = segment.event_offsets(batch)
    count = max(-(-int(offsets[-1] - offsets[0]) // _PIECE_BYTES), 1)
    bounds = np.searchsorted(offsets, offsets[0] + _PIECE_BYTES * np.arange(count + 1)).tolist()
    bounds[-1:] = [batch.num_rows]
    for first, end in pairwise(dict.fromkeys(bounds)):
        yield batch.slice(first, end - first)


def _refuse_incomplete_moves(changes: Changes, task: FlushTask) -> None:
    """Whether or not the row concerns this span: see ``agent.span_rows``."""
    if task.span.is_whole_table or task.sink_mode is not SinkMode.UPSERT:
        return
    (at,) = np.nonzero(incomplete_moves(changes, key=task.table.key))
    if len(at):
        raise RowMovedError(
            f"{task.table.schema_name}.{task.table.name}: an update at {changes.commit_ts[at[0]]} changed a row's key "
            "and left large values out, which spans cannot fetch from each other; the table is joined (to avoid it: "
            "let the source log whole rows)"
        )


def _within(batch: pa.RecordBatch, task: FlushTask) -> pa.RecordBatch:
    start, end = np.searchsorted(batch.column(0).to_numpy(), (task.from_ts, task.to_ts), side="right")
    return batch.slice(int(start), int(end - start))
