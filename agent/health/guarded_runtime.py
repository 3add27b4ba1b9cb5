"""Guarded runtime: gives errors that are this capture's own their scope, and has the capture tested after them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from agent.control.effects import StartUnit
from agent.control.runtime import NOBODY, Flushed, FlushLimits, Progress, SpanPosition, SpanRuntime, Together
from agent.errors import JobError
from agent.health.health import Health
from agent.own_faults import own_fault
from reactor.errors import Scope, WeirError
from reactor.ids import TableSpan, Ts
from reactor.records.tables.table import TableRecord


class GuardedRuntime:
    """``agent.control.runtime.SpanRuntime`` around another one. ``health`` is tested again when Spark or the process
    fails."""

    def __init__(self, runtime: SpanRuntime, health: Health) -> None:
        self._runtime = runtime
        self._health = health

    async def open_span(self, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        with self._guarded():
            return await self._runtime.open_span(table, span, checkpoint_ts)

    async def flush(
        self, positions: Sequence[SpanPosition], limits: FlushLimits, together: Together = NOBODY
    ) -> Flushed:
        with self._guarded():
            flushed = await self._runtime.flush(positions, limits, together)
        if any(span.error is not None and span.error.scope is Scope.CAPTURE for span in flushed.spans):
            self._health.doubt()
        return flushed

    async def run_unit(self, order: StartUnit, on_progress: Progress) -> None:
        with self._guarded():
            await self._runtime.run_unit(order, on_progress)

    async def close(self) -> None:
        await self._runtime.close()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            is_own = isinstance(error, WeirError) and error.scope is Scope.CAPTURE
            fault = None if is_own else own_fault(error)
            if is_own or fault is not None or isinstance(error, JobError):
                self._health.doubt()
            if fault is None:
                raise
            raise fault from error
