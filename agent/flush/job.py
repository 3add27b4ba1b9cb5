"""Flush job: on the capture, plans a flush, runs its tasks as one Spark job, commits, and returns each span's position.

Returned positions are always true: a span whose task or commit failed stays where it was, with the error beside it. An
interrupted flush may have advanced the sink's record; whoever opens the span next reads it there.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from agent.control.runtime import Flushed, FlushLimits, SpanFlushed, SpanPosition
from agent.deadline import Deadline
from agent.errors import JobError, JobTimeoutError, OwnFaultError, WorkerLostError
from agent.flush.plan import FlushPlan, Weights, group_tasks, plan_flush
from agent.flush.task import run_flushes
from agent.log.reader import LogReader
from agent.ports.executor import Executor
from agent.ports.sink import FeedContext, FlushResult, FlushTask, Sink
from reactor import failpoints
from reactor.errors import WeirError
from reactor.failpoints import Point
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import RunningError
from reactor.records.log_head import LogHead

#: failures of a job that say nothing of its table, though it has only one: the capture's own, or perhaps so
_NOT_OF_TABLES = frozenset({JobTimeoutError.code, OwnFaultError.code, WorkerLostError.code})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FlushContext:
    """The parameters of all flushes of a changefeed on one capture."""

    feed: FeedContext
    sink: Sink
    reader: LogReader
    executor: Executor
    weights: Weights = field(default_factory=Weights)
    #: called with the tables about to be written, and whether all of them are suspects
    begin: Callable[[frozenset[int], bool], None] = lambda _tables, _is_trial: None
    quiet: "QuietSpans" = field(default_factory=lambda: QuietSpans())


class QuietSpans:
    """Spans without events, and how far the log was searched for those.

    The sink's record of a span without events stays where it is, however far the span gets. Without this, each flush
    would search all of the log behind the least of the records: hours of it, for tens of thousands of tables.
    """

    def __init__(self) -> None:
        #: by span: its record, and up to where there is no event behind that
        self._searched: dict[TableSpan, tuple[Ts, Ts]] = {}

    def first_ts(self, position: SpanPosition) -> Ts:
        """Return the Ts behind which the span may have events that the sink does not have."""
        committed_ts, searched_ts = self._searched.get(position.span, (Ts(-1), Ts(0)))
        return searched_ts if committed_ts == position.committed_ts else position.committed_ts

    def note(self, plan: FlushPlan) -> None:
        for position, ts in plan.quiet:
            self._searched[position.span] = position.committed_ts, ts


def flush(
    context: FlushContext,
    positions: Sequence[SpanPosition],
    limits: FlushLimits,
    *,
    deadline: Deadline | None = None,
    at_once: int | None = None,
) -> Flushed:
    """Move ``positions`` towards their targets; blocking.

    ``deadline``, ``at_once``: see ``agent.ports.executor.Executor``.

    :raises LogError: the log does not contain what the spans need.
    :raises JobError: the job failed as a whole.
    """
    if not context.sink.capabilities.takes_changes:
        return _passed(positions, limits)
    began = time.monotonic()
    plan = _plan(context, positions, limits)
    results: Sequence[FlushResult] = ()
    is_short = False
    at_work = frozenset(task.table.table_id for task in plan.tasks)
    context.begin(at_work, limits.is_trial(at_work))
    if plan.tasks:
        tables = sorted({f"{task.table.schema_name}.{task.table.name}" for task in plan.tasks})
        name = f"flush {context.feed.changefeed}: {', '.join(tables)}"
        groups = group_tasks(plan.tasks, cores=context.executor.cores())
        planned = time.monotonic()
        try:
            written = context.executor.map(run_flushes, groups, description=name, deadline=deadline, at_once=at_once)
        except JobError as error:
            raise _attributed(context, at_work, error) from error
        failpoints.reach(Point.FLUSH_BEFORE_COMMIT)
        ran = time.monotonic()
        results = [result for results in written for result in results]
        tasks = [_done(*pair) for pair in zip((task for group in groups for task in group), results, strict=True)]
        is_short = tasks != [task for group in groups for task in group]
        results = context.sink.commit(tasks, results)
        failpoints.reach(Point.FLUSH_AFTER_COMMIT)
        took = {"plan_s": planned - began, "job_s": ran - planned, "commit_s": time.monotonic() - ran}
        _log.debug("flush", tasks=len(tasks), **{name: round(seconds, 3) for name, seconds in took.items()})
    return Flushed(tuple(_outcomes(plan, results, limits.head)), plan.is_behind or is_short)


def _done(task: FlushTask, result: FlushResult) -> FlushTask:
    """Return the part of a task that was written, which may be less than planned."""
    return task if task.to_ts == result.to_ts else replace(task, to_ts=result.to_ts)


def _attributed(context: FlushContext, tables: frozenset[int], error: JobError) -> JobError:
    """Attribute a failure to the table if the job has only one and another job succeeds. A job that hangs may hang for
    all, and a fault of the capture's own is no table's; whose a lost process is, the flusher finds out."""
    if len(tables) != 1 or error.code in _NOT_OF_TABLES:
        return error
    try:
        context.executor.map(_nothing, (0,), description="see whether Spark works")
    except WeirError:
        return error
    return error.of_table(*tables)


def _nothing(number: int) -> int:
    return number


def _plan(context: FlushContext, positions: Sequence[SpanPosition], limits: FlushLimits) -> FlushPlan:
    from_ts = min(map(context.quiet.first_ts, positions), default=Ts(0))
    to_ts = max((limits.target(item.table.table_id) for item in positions), default=Ts(0))
    known_ts = min((item.checkpoint_ts for item in positions), default=to_ts)
    if to_ts <= known_ts:
        return FlushPlan((), ())
    segments = context.reader.segments(limits.head, from_ts, to_ts, known_ts=known_ts)
    weights = context.weights
    if weights.is_backlog(sum(item.bytes for item in segments)):
        weights = weights.for_cores(context.executor.cores())
    plan = plan_flush(positions, segments, limits, feed=context.feed, weights=weights)
    context.quiet.note(plan)
    return plan


def _passed(positions: Sequence[SpanPosition], limits: FlushLimits) -> Flushed:
    """Move the positions of a sink that takes no changes, without reading the log."""
    head, moved = limits.head, []
    for position in positions:
        to_ts = max(limits.target(position.table.table_id), position.checkpoint_ts)
        commit_time = head.resolved_time if to_ts == head.resolved_ts else 0.0
        moved.append(SpanFlushed(replace(position, checkpoint_ts=to_ts, committed_ts=to_ts), commit_time))
    return Flushed(tuple(moved))


def _outcomes(plan: FlushPlan, results: Sequence[FlushResult], head: LogHead) -> list[SpanFlushed]:
    by_span: dict[TableSpan, list[FlushResult]] = {}
    for result in results:
        by_span.setdefault(result.span, []).append(result)
    return [_outcome(position, to_ts, by_span.get(position.span, []), head) for position, to_ts in plan.targets]


def _outcome(position: SpanPosition, to_ts: Ts, results: Sequence[FlushResult], head: LogHead) -> SpanFlushed:
    """Combine the results of one span's parts."""
    failed = next((result for result in results if result.error), None)
    if failed is not None:
        error = RunningError(
            code=failed.error_code,
            message=failed.error,
            time=time.time(),
            retryable=failed.retryable,
            scope=failed.scope,
            table_id=position.table.table_id,
        )
        return SpanFlushed(position, error=error)
    to_ts = min((result.to_ts for result in results), default=to_ts)
    is_recorded = any(result.committed for result in results)
    moved = replace(position, checkpoint_ts=to_ts, committed_ts=to_ts if is_recorded else position.committed_ts)
    newest = max((result.commit_time for result in results), default=0.0)
    commit_time = head.resolved_time if to_ts == head.resolved_ts else newest
    return SpanFlushed(moved, commit_time, sum(result.rows for result in results))
