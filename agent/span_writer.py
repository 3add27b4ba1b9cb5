"""A table span as an actor: it finds out where the sink stands, lets the flusher write, and reports how far it came.

    PrepareSpan ─► open_span ─► SpanPrepared        RunSpan ─► join the flusher ─► SpanRunning, SpanProgress…
                                                    StopSpan ─► leave it (after the flush under way) ─► SpanStopped

The decisions are ``agent.table_span``'s; this actor carries them out, one at a time, and always answers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import time

from agent import effects
from agent.flusher import Join, Leave
from agent.parts import Parts, SpanFlushed, SpanPosition
from agent.references import Reference
from reactor import failpoints
from reactor.errors import Scope, WeirError
from reactor.failpoints import Point
from reactor.ids import TableSpan
from reactor.messages import SpanCheckpoint
from reactor.records import RunningError, TableRecord

Emit = Callable[[effects.SpanEvent], None]


@dataclass(frozen=True, slots=True)
class TableChanged:
    """A schema change gave the span's table another record."""

    span: TableSpan
    table: TableRecord


SpanOrder = effects.PrepareSpan | effects.RunSpan | effects.StopSpan | SpanFlushed | TableChanged

#: Longer than any flush may take (``flush_timeout_seconds``), and what is left behind is fenced by the sink's record.
_LEAVE_TIMEOUT_S = 4_000.0


def running_error(error: WeirError) -> RunningError:
    """An error as the owner and users see it."""
    return RunningError(
        code=error.code,
        message=str(error),
        time=time(),
        retryable=error.retryable,
        table_id=error.table_id,
        scope=error.scope,
    )


class SpanWriter:
    """One span. ``emit`` takes what happened to the processor's mailbox."""

    def __init__(self, span: TableSpan, table: TableRecord, *, parts: Parts, flusher: Reference, emit: Emit) -> None:
        self._span = span
        self._table = table
        self._parts = parts
        self._flusher = flusher
        self._emit = emit
        self._position: SpanPosition | None = None

    async def handle(self, message: SpanOrder) -> None:
        try:
            await self._handle(message)
        except WeirError as error:
            await self._leave()
            if error.scope is Scope.TABLE:
                error.of_table(self._span.table_id)
            self._emit(effects.SpanFailed(self._span, running_error(error)))

    async def _handle(self, message: SpanOrder) -> None:
        match message:
            case effects.PrepareSpan():
                await self._prepare(message)
            case effects.RunSpan():
                await self._run(message)
            case effects.StopSpan():
                await self._stop()
            case SpanFlushed():
                await self._on_flushed(message)
            case TableChanged():
                self._table = message.table

    async def _prepare(self, order: effects.PrepareSpan) -> None:
        self._position = await self._parts.open_span(self._table, self._span, order.checkpoint.checkpoint_ts)
        failpoints.reach(Point.SPAN_OPENED)
        self._emit(effects.SpanPrepared(self._span))

    async def _run(self, order: effects.RunSpan) -> None:
        # the old writer has ended since the span was prepared, and may have come further before it did
        self._position = await self._parts.open_span(self._table, self._span, order.checkpoint_ts)
        failpoints.reach(Point.SPAN_TOLD)
        await self._flusher.tell(Join(self._position))
        self._emit(effects.SpanRunning(self._span))
        self._emit(effects.SpanProgress(self._span, self._checkpoint))

    async def _stop(self) -> None:
        await self._leave()
        self._emit(effects.SpanStopped(self._span, self._checkpoint))

    async def _on_flushed(self, flushed: SpanFlushed) -> None:
        self._position = flushed.position
        if flushed.error is not None:
            await self._leave()
            self._emit(effects.SpanFailed(self._span, flushed.error))
            return
        self._emit(effects.SpanProgress(self._span, self._checkpoint, flushed.commit_time))

    async def _leave(self) -> None:
        position = await self._flusher.ask(Leave(self._span), _LEAVE_TIMEOUT_S)
        self._position = position or self._position

    @property
    def _checkpoint(self) -> SpanCheckpoint:
        checkpoint_ts = self._position.checkpoint_ts if self._position else self._table.start_ts
        return SpanCheckpoint(checkpoint_ts, checkpoint_ts)
