"""Flusher: an actor that flushes all of a changefeed's spans on one capture, one flush at a time.

What arrives during a flush (new log, joining spans, a new barrier) is handled by the next flush: batches grow under
load, and lag stays low when idle. Where the log's head moves without segments, spans that are together move at once,
without a flush. ``Leave`` is handled between two flushes, so after its answer nothing writes the span any more. The
processor stores the newest limits in ``Limits`` and pokes the flusher; pokes during a flush are merged.

A failure specific to one table delays only that table: it is retried with growing delays, and after some attempts, or
at once if retrying cannot help, its writer is notified and the owner holds the table. A failure of the sink as a whole
(or of Spark) delays all tables. A job that repeatedly fails as a whole is divided into one job per table, to find out
whether one of them is the cause (``agent.control.lost_workers`` for one that ends processes). Transient failures of the
sink are retried without limit, and reported as warnings.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import anyio
import structlog

from agent.control.actors import ActorContext, Reference
from agent.control.flush_errors import is_passing, of_tables
from agent.control.lost_workers import LOSSES_MAX, LostWorkers, is_loss, is_single
from agent.control.positions import Positions, jobs_of
from agent.control.runtime import NOBODY, Advanced, FlushLimits, SpanFlushed, SpanPosition, SpanRuntime, Together
from agent.errors import (
    RESYNC,
    JobError,
    OwnFaultError,
    SinkTimeoutError,
    TableLogLostError,
)
from agent.running_error import running_error
from reactor.errors import WeirError
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import RunningError
from reactor.records.tables.table import TableRecord

_RETRY_S = 1.0
_RETRY_MAX_S = 15.0
#: consecutive failures after which the owner is notified: it holds the table, or backs off for the changefeed
_FAILURES_MAX = 5
#: consecutive failures of whole jobs after which each table gets its own job
_WHOLE_MAX = 2
#: a span that joins more than this number of others is flushed a little later: together with those that follow it
_MANY, _JOINING_S = 100, 0.2

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Join:
    """Start flushing this span."""

    position: SpanPosition


@dataclass(frozen=True, slots=True)
class Leave:
    """Stop flushing this span. Answered with its last ``SpanPosition``, or None if it was not here."""

    span: TableSpan


@dataclass(frozen=True, slots=True)
class Poke:
    """There may be something to flush."""


@dataclass(slots=True)
class Limits:
    """The newest limits; written by the processor, read by the flusher when it starts a flush."""

    now: FlushLimits | None = None


@dataclass(frozen=True, slots=True)
class FlusherStatistics:
    """``running_since``: Unix time when the current flush began, 0 if there is none. ``rows``: written so far."""

    flushes: int = 0
    rows: int = 0
    running_since: float = 0.0
    failures: int = 0


class Flusher:
    """``advanced`` passes on what a flush has moved; ``report`` notifies a span's writer that it cannot
    continue; ``warn`` reports failures that are retried. ``is_alone``: whether the cluster has no other capture."""

    def __init__(
        self,
        runtime: SpanRuntime,
        limits: Limits,
        *,
        advanced: Callable[[Advanced], None],
        report: Callable[[SpanFlushed], None],
        warn: Callable[[RunningError], None],
        is_alone: Callable[[], bool],
    ) -> None:
        self._runtime = runtime
        self._limits = limits
        self._advanced = advanced
        self._report = report
        self._warn = warn
        self._positions = Positions()
        #: spans that have joined since the last flush
        self._joined: list[TableSpan] = []
        #: the records that all other positions have
        self._tables: Mapping[int, TableRecord] | None = None
        self._me: Reference | None = None
        self._context: ActorContext | None = None
        self._is_poked = False
        self._is_waiting = False
        self._is_flushing = False
        #: consecutive failures of flushes that concern all tables, and of those that failed as a whole
        self._failures = 0
        self._whole_failures = 0
        self._is_narrowing = False
        #: tables whose own jobs have succeeded since each table has its own
        self._healthy: set[int] = set()
        self._lost = LostWorkers(is_alone)
        #: spans with failures of their own: consecutive failures, and the time of the next attempt
        self._failing: dict[TableSpan, tuple[int, float]] = {}
        self._wake_at = 0.0
        self.statistics = FlusherStatistics()

    async def on_start(self, context: ActorContext) -> None:
        self._context = context
        self._me = context.me

    def poke(self) -> None:
        """Flush soon; called by the processor after it has changed the limits."""
        if self._is_poked or self._is_waiting or self._me is None or self._move_quietly():
            return
        self._is_poked = True
        self._me.tell_nowait(Poke())

    def _move_quietly(self) -> bool:
        """Move the spans if all are together, and there is nothing in the log behind them; else return False."""
        limits = self._limits.now
        if limits is None or not self._is_quiet(limits):
            return False
        if self._positions.together.ts < limits.highest_ts:
            self._settle((), limits, limits.highest_ts)
        return True

    def _is_quiet(self, limits: FlushLimits) -> bool:
        """Return whether all spans are together, and the log has nothing behind them."""
        positions = self._positions
        if self._is_flushing or self._is_narrowing or positions.apart or not limits.head.ends_at(positions.together.ts):
            return False
        is_limited = limits.limited or limits.suspects or self._lost.tables
        return limits.tables is self._tables and not is_limited

    def can_follow(self, limits: FlushLimits) -> bool:
        """Return whether ``limits`` move the spans to the log's end, and do nothing else."""
        is_at_end = self._positions.together.ts <= limits.highest_ts == limits.head.resolved_ts
        is_idle = not (self._is_poked or self._is_waiting or self._positions.has_changes)
        return is_idle and is_at_end and self._is_quiet(limits)

    def follow(self, ts: Ts) -> None:
        """Move as ``can_follow`` has allowed, without a report."""
        self._positions.together.move(ts)

    def _poke_for_joined(self) -> None:
        """A flush looks at all spans that are apart; of thousands that join one by one, many get it together."""
        if len(self._positions) <= _MANY:
            self.poke()
        elif len(self._joined) == 1 and not self._is_waiting:
            assert self._context is not None, "it runs"
            self._context.schedule(_JOINING_S, Poke())

    async def handle(self, message: Join | Leave | Poke) -> SpanPosition | None:
        match message:
            case Join(position):
                self._positions.put(position)
                self._joined.append(position.span)
                self._poke_for_joined()
            case Leave(span):
                self._forget(span)
                return self._positions.pop(span)
            case Poke():
                self._is_poked = self._is_waiting = False
                self._is_flushing = True
                try:
                    await self._flush()
                finally:
                    self._is_flushing = False
        return None

    async def _flush(self) -> None:
        limits = self._limits.now
        if limits is None:
            return
        self._take_tables(limits)
        suspects = self._lost.apart(limits).suspects
        self._positions.part({*limits.limited, *suspects})
        if self._is_narrowing:
            self._positions.part_all()
        self._report_lost(limits)
        now = anyio.current_time()
        behind = [at for at in self._positions.apart.values() if at.checkpoint_ts < limits.highest_ts]
        due = [at for at in behind if _is_due(at, limits) and self._retry_at(at) <= now]
        if self._is_narrowing:
            await self._flush_singly(due, limits)
        else:
            others, *trials = jobs_of(due, suspects)
            is_behind = self._positions.together.ts < limits.highest_ts
            together = self._positions.together if is_behind else NOBODY
            if others or together:
                await self._flush_these(others, limits, together)
            for some in trials:
                await self._flush_these(some, limits)
        self._wake_for_failing(now)

    async def _flush_these(self, due: list[SpanPosition], limits: FlushLimits, together: Together = NOBODY) -> None:
        """Flush all of them in one job."""
        started = time.time()
        self._note(running_since=started)
        try:
            flushed = await self._runtime.flush(due, self._lost.apart(limits), together)
        except WeirError as error:
            self._on_failure([*due, *(self._positions.part_all() if together else ())], error, limits)
            return
        finally:
            self._note(running_since=0.0)
        rows = sum(span.rows for span in flushed.spans)
        _log.debug("flushed", spans=len(flushed.spans), rows=rows, seconds=round(time.time() - started, 3))
        self._note(flushes=1, rows=rows)
        self._whole_failures = 0
        self._settle(of_tables(flushed.spans), limits, None if together is NOBODY else flushed.together_ts)
        if flushed.is_behind:
            self.poke()

    async def _flush_singly(self, due: list[SpanPosition], limits: FlushLimits) -> None:
        """Flush each table in its own job: a table that fails while another succeeds is itself the cause."""
        by_table: dict[int, list[SpanPosition]] = {}
        for position in due:
            by_table.setdefault(position.table.table_id, []).append(position)
        if not by_table:
            return
        failed: dict[int, WeirError] = {}
        for table_id, positions in by_table.items():
            try:
                flushed = await self._runtime.flush(positions, self._lost.apart(limits))
            except WeirError as error:
                failed[table_id] = error
            else:
                self._healthy.add(table_id)
                self._settle(flushed.spans, limits)
        for table_id, failure in failed.items():
            if is_loss(failure):
                self._lost.attribute(failure, table_id, limits.suspects)
            elif self._healthy - {table_id} and failure.code != OwnFaultError.code:
                failure.of_table(table_id)
            shown = running_error(failure)
            self._settle(tuple(SpanFlushed(position, error=shown) for position in by_table[table_id]), limits)
        if not failed:
            self._is_narrowing, self._whole_failures = False, 0
            self._healthy.clear()

    def _take_tables(self, limits: FlushLimits) -> None:
        """Take over new table records: a schema change may have changed a table's name or key."""
        joined = self._joined if self._tables is limits.tables else None
        self._tables, self._joined = limits.tables, []
        self._positions.renew(joined, limits.table)

    def _settle(self, spans: tuple[SpanFlushed, ...], limits: FlushLimits, together_ts: Ts | None = None) -> None:
        """Take over the new positions; a span with a transient error stays and is retried."""
        is_whole = any(span.error is not None and not is_single(span.error) for span in spans)
        self._failures = self._failures + 1 if is_whole else 0
        ts = self._positions.together.ts if together_ts is None else together_ts
        moved = self._positions.move(spans, ts)
        advanced: list[SpanFlushed] = []
        for span in spans:
            if span.error is None:
                self._forget(span.position.span)
                advanced.append(span)
            elif self._is_final(span.position.span, span.error):
                self._report(span)
        if advanced or moved:
            self._advanced(Advanced(tuple(advanced), ts, limits.time_at(ts), *self._positions.take_changes()))
        passing = {span.error.code: span.error for span in spans if span.error is not None and is_passing(span.error)}
        for error in passing.values():
            self._warn(error)
        if is_whole:
            self._try_again()

    def _is_final(self, span: TableSpan, error: RunningError) -> bool:
        """Return whether its writer must be notified: the span cannot continue."""
        if is_passing(error):
            is_final = False
        elif is_single(error):
            failures = self._failing[span][0] + 1 if span in self._failing else 1
            self._failing[span] = failures, anyio.current_time() + _wait_s(failures)
            failures_max = LOSSES_MAX if span.table_id in self._lost.tables else _FAILURES_MAX
            is_final = not error.retryable or failures >= failures_max
        else:
            is_final = not error.retryable or self._failures >= _FAILURES_MAX
        if not is_final:
            _log.warning("flush failed, retrying", span=str(span), error=error.message)
        return is_final

    def _on_failure(self, due: list[SpanPosition], error: WeirError, limits: FlushLimits) -> None:
        self._whole_failures += 1
        tables = {at.table.table_id for at in due}
        if is_loss(error) and len(tables) == 1:
            self._lost.attribute(error, tables.pop(), limits.suspects)
        elif isinstance(error, (JobError, SinkTimeoutError)) and len(tables) > 1:
            self._is_narrowing = self._whole_failures >= _WHOLE_MAX
        shown = running_error(error)
        self._settle(tuple(SpanFlushed(position, error=shown) for position in due), limits)

    def _report_lost(self, limits: FlushLimits) -> None:
        """Report spans whose part of the log is gone: they would fail every flush that contains them."""
        removed_ts = limits.head.removed_ts
        if self._positions.together.ts < removed_ts:
            self._positions.part_all()
        for position in [at for at in self._positions.apart.values() if at.checkpoint_ts < removed_ts]:
            table = position.table
            error = TableLogLostError(
                f"the change log reaches back to {removed_ts}, {table.schema_name}.{table.name} is at "
                f"{position.checkpoint_ts}: {RESYNC}"
            )
            self._positions.pop(position.span)
            self._report(SpanFlushed(position, error=running_error(error.of_table(table.table_id))))

    def _retry_at(self, position: SpanPosition) -> float:
        return self._failing.get(position.span, (0, 0.0))[1]

    def _forget(self, span: TableSpan) -> None:
        self._failing.pop(span, None)
        self._lost.tables.discard(span.table_id)

    def _wake_for_failing(self, now: float) -> None:
        """Schedule a wake-up for the failing span with the earliest retry; others are flushed meanwhile."""
        waiting = [at for span, (_, at) in self._failing.items() if span in self._positions and at > now]
        if waiting and not self._is_waiting and not (self._wake_at and now < self._wake_at <= min(waiting)):
            assert self._context is not None, "it runs"
            self._wake_at = min(waiting)
            self._context.schedule(self._wake_at - now, Poke())

    def _try_again(self) -> None:
        assert self._context is not None, "it runs"
        if not self._is_waiting:
            self._is_waiting = True
            self._context.schedule(_wait_s(self._failures), Poke())

    def _note(self, *, flushes: int = 0, rows: int = 0, running_since: float | None = None) -> None:
        old = self.statistics
        self.statistics = FlusherStatistics(
            flushes=old.flushes + flushes,
            rows=old.rows + rows,
            running_since=old.running_since if running_since is None else running_since,
            failures=self._failures,
        )


def _is_due(position: SpanPosition, limits: FlushLimits) -> bool:
    """Return whether there is something to flush; the first flush after a resumed dump must reach its consistent
    point."""
    target = limits.target(position.table.table_id)
    return target > position.checkpoint_ts and target >= position.table.consistent_ts


def _wait_s(failures: int) -> float:
    return float(min(_RETRY_S * 2 ** (max(failures, 1) - 1), _RETRY_MAX_S))
