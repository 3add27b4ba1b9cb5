"""Flush job: on the capture, plans a flush, runs its tasks as one Spark job, commits, and returns each span's position.

Returned positions are always true: a span whose task or commit failed stays where it was, with the error beside it. An
interrupted flush may have advanced the sink's record; whoever opens the span next reads it there.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from agent.control.runtime import NOBODY, Flushed, FlushLimits, SpanFlushed, SpanPosition, Together
from agent.deadline import Deadline
from agent.errors import JobError, JobTimeoutError, OwnFaultError, WorkerLostError
from agent.flush.plan import FlushPlan, Weights, group_tasks, plan_flush
from agent.flush.task import run_flushes
from agent.log.reader import LogReader
from agent.ports.executor import Executor
from agent.ports.sink import FeedContext, FlushResult, FlushTask, Sink
from agent.rows.batches import SegmentRef
from reactor import failpoints
from reactor.errors import WeirError
from reactor.failpoints import Point
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import RunningError

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
    """Spans without events, or whose events change nothing, and how far the log was searched for others.

    The sink's record of such a span stays where it is, however far the span gets. Without this, each flush
    would search all of the log behind the least of the records: hours of it, for tens of thousands of tables.
    """

    def __init__(self) -> None:
        #: by span: its record, and up to where there is nothing to write behind that
        self._searched: dict[TableSpan, tuple[Ts, Ts]] = {}

    def first_ts(self, position: SpanPosition) -> Ts:
        """Return the Ts behind which the span may have events that the sink does not have."""
        committed_ts, searched_ts = self._searched.get(position.span, (Ts(-1), Ts(0)))
        return searched_ts if committed_ts == position.committed_ts else position.committed_ts

    def note(self, quiet: Iterable[tuple[SpanPosition, Ts]]) -> None:
        """Note up to where each has nothing to write behind its record."""
        for position, ts in quiet:
            self._searched[position.span] = position.committed_ts, ts

    def range(
        self, positions: Sequence[SpanPosition], together: Together, limits: FlushLimits
    ) -> tuple[Ts, Ts, Ts] | None:
        """Return the part of the log that a flush needs (from, to), and behind which Ts it must not lack anything; None
        if there is nothing to do."""
        shared = [together.ts] if together else []
        from_ts = min([*map(self.first_ts, positions), *shared], default=Ts(0))
        targets = [limits.target(item.table.table_id) for item in positions]
        to_ts = max([*targets, *([limits.highest_ts] if together else [])], default=Ts(0))
        known_ts = min([*(item.checkpoint_ts for item in positions), *shared], default=to_ts)
        return (from_ts, to_ts, known_ts) if to_ts > known_ts else None

    def woken(self, together: Together, segments: Iterable[SegmentRef]) -> list[SpanPosition]:
        """Return those of the spans together whose tables have events in ``segments``."""
        if not together:
            return []
        tables = {table for item in segments if item.last_ts > together.ts for table in item.tables}
        found = together.of(tables)
        self.note((position, together.ts) for position in found)
        return found


def flush(
    context: FlushContext,
    positions: Sequence[SpanPosition],
    limits: FlushLimits,
    together: Together = NOBODY,
    *,
    deadline: Deadline | None = None,
    at_once: int | None = None,
) -> Flushed:
    """Move ``positions``, and those ``together``, towards their targets; blocking.

    ``deadline``, ``at_once``: see ``agent.ports.executor.Executor``.

    :raises LogError: the log does not contain what the spans need.
    :raises JobError: the job failed as a whole.
    """
    if not context.sink.capabilities.takes_changes:
        return Flushed(_passed(positions, limits), together_ts=limits.highest_ts)
    began = time.monotonic()
    plan = _plan(context, positions, limits, together)
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
    spans = outcomes(plan, results, limits)
    context.quiet.note((span.position, span.position.checkpoint_ts) for span in spans if span.is_settled)
    return Flushed(spans, plan.is_behind or is_short, limits.highest_ts)


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


def _plan(
    context: FlushContext, positions: Sequence[SpanPosition], limits: FlushLimits, together: Together = NOBODY
) -> FlushPlan:
    wanted = context.quiet.range(positions, together, limits)
    if wanted is None:
        return FlushPlan((), ())
    from_ts, to_ts, known_ts = wanted
    segments = context.reader.segments(limits.head, from_ts, to_ts, known_ts=known_ts)
    weights = context.weights
    if weights.is_backlog(sum(item.bytes for item in segments)):
        weights = weights.for_cores(context.executor.cores())
    positions = [*positions, *context.quiet.woken(together, segments)]
    plan = plan_flush(positions, segments, limits, feed=context.feed, weights=weights, first_ts=context.quiet.first_ts)
    context.quiet.note(plan.quiet)
    return plan


def _passed(positions: Sequence[SpanPosition], limits: FlushLimits) -> tuple[SpanFlushed, ...]:
    """Move the positions of a sink that takes no changes, without reading the log."""
    moved = []
    for position in positions:
        to_ts = max(limits.target(position.table.table_id), position.checkpoint_ts)
        after = replace(position, checkpoint_ts=to_ts, committed_ts=to_ts)
        moved.append(SpanFlushed(after, limits.time_at(to_ts), is_settled=True))
    return tuple(moved)


def outcomes(plan: FlushPlan, results: Sequence[FlushResult], limits: FlushLimits) -> tuple[SpanFlushed, ...]:
    """Return what a plan and the results of its tasks mean for each of its spans."""
    by_span: dict[TableSpan, list[FlushResult]] = {}
    for result in results:
        by_span.setdefault(result.span, []).append(result)
    quiet = {position.span for position, _ in plan.quiet}
    return tuple(
        _outcome(position, to_ts, by_span.get(position.span, ()), limits, is_quiet=position.span in quiet)
        for position, to_ts in plan.targets
    )


def _outcome(
    position: SpanPosition, to_ts: Ts, results: Sequence[FlushResult], limits: FlushLimits, *, is_quiet: bool
) -> SpanFlushed:
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
    commit_time = limits.time_at(to_ts) if to_ts == limits.head.resolved_ts else newest
    # what is not recorded had nothing to write: see ``Sink.commit``
    is_settled = is_quiet or bool(results) or moved.committed_ts == to_ts
    return SpanFlushed(moved, commit_time, sum(result.rows for result in results), is_settled=is_settled)
