"""Span writer: a table span as an actor that reads the sink's position, lets the flusher write, and reports progress.

    PrepareSpan ─► open_span ─► SpanPrepared        RunSpan ─► join the flusher ─► SpanRunning
                                                    StopSpan ─► leave it (after the current flush) ─► SpanStopped

The flusher itself reports the progress of its spans, of all that a flush has moved at once.

``agent.control.table_span`` decides; this actor performs its orders, one at a time, and always answers. While the sink
as a whole is unavailable it retries, warns, and answers afterwards.
"""

from collections.abc import Callable
from dataclasses import dataclass

from agent.control import effects
from agent.control.actors import ActorContext, Reference
from agent.control.flush_errors import PASSING
from agent.control.flusher import Join, Leave
from agent.control.runtime import SpanPosition, SpanRuntime
from agent.errors import TableForeignError
from agent.running_error import running_error
from reactor import failpoints
from reactor.errors import Scope, WeirError
from reactor.failpoints import Point
from reactor.ids import TableSpan
from reactor.messages import SpanCheckpoint
from reactor.records.changefeed import RunningError
from reactor.records.tables.table import TableRecord

Emit = Callable[[effects.SpanEvent], None]
Warn = Callable[[RunningError], None]
#: whether this is a table's newest record, and the sink has all of its schema changes
IsSettled = Callable[[TableRecord], bool]

_RETRY_S, _RETRY_MAX_S = 1.0, 15.0
#: failures after which a table that the sink has elsewhere is reported: a schema change takes less than half a minute
_REPORTED_AFTER = 5


@dataclass(frozen=True, slots=True)
class TableChanged:
    """A schema change gave the span's table another record."""

    span: TableSpan
    table: TableRecord


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The span cannot continue, or the previous actors exhausted the restart budget: ensure that nothing writes, and
    report it."""

    span: TableSpan
    error: RunningError


@dataclass(frozen=True, slots=True)
class _Again:
    """Time to ask the sink again."""

    order: effects.PrepareSpan | effects.RunSpan


SpanOrder = effects.PrepareSpan | effects.RunSpan | effects.StopSpan | TableChanged | GiveUp

#: longer than any flush may take (``flush_timeout_seconds``); the sink's record fences what remains
_LEAVE_TIMEOUT_S = 4_000.0
#: code of what a reference raises when its actor has ended
_ENDED = "ActorDead"


class SpanWriter:
    """One span. ``emit`` passes events to the processor's mailbox.

    Its memory is a copy of what the sink records, and of the order that is in progress at the agent. After a crash it
    is restarted with that order (``again``), and performs it from the beginning.
    """

    def __init__(
        self,
        span: TableSpan,
        table: TableRecord,
        *,
        runtime: SpanRuntime,
        flusher: Reference,
        emit: Emit,
        warn: Warn,
        is_settled: IsSettled = lambda _: True,
        again: effects.PrepareSpan | effects.RunSpan | effects.StopSpan | None = None,
    ) -> None:
        self._span = span
        self._table = table
        self._runtime = runtime
        self._flusher = flusher
        self._emit = emit
        self._warn = warn
        self._is_settled = is_settled
        self._position: SpanPosition | None = None
        self._context: ActorContext | None = None
        self._order: effects.PrepareSpan | effects.RunSpan | None = None
        self._failures = 0
        self._again = again
        #: its last event is sent: messages still in the mailbox are ignored
        self._is_over = False

    async def on_start(self, context: ActorContext) -> None:
        self._context = context
        if self._again is not None:
            await self.handle(self._again)

    async def handle(self, message: SpanOrder | _Again) -> None:
        if self._is_over:
            return
        try:
            if not isinstance(message, _Again):
                await self._handle(message)
            elif message.order is self._order:
                await self._handle(message.order)
        except WeirError as error:
            if error.code == _ENDED:  # the flusher ends with the processor, and so does this actor
                self._is_over = True
                return
            if self._order is not None and self._is_passing(error):
                self._ask_again(self._order, error)
                return
            if error.scope is Scope.TABLE:
                error.of_table(self._span.table_id)
            await self._fail(running_error(error))

    def _is_passing(self, error: WeirError) -> bool:
        """Return whether to ask again. A sink that has renamed or replaced the table has it elsewhere than its record
        says, until the change is completed in etcd."""
        if error.code == TableForeignError.code:
            return not self._is_settled(self._table)
        return error.code in PASSING and error.scope is not Scope.CAPTURE

    def _ask_again(self, order: effects.PrepareSpan | effects.RunSpan, error: WeirError) -> None:
        assert self._context is not None
        self._failures += 1
        if error.code in PASSING or self._failures > _REPORTED_AFTER:
            self._warn(running_error(error))
        self._context.schedule(min(_RETRY_S * 2 ** (self._failures - 1), _RETRY_MAX_S), _Again(order))

    async def _handle(self, message: SpanOrder) -> None:
        match message:
            case effects.PrepareSpan() | effects.RunSpan():
                self._order = message
                await (self._prepare(message) if isinstance(message, effects.PrepareSpan) else self._run(message))
                self._order, self._failures = None, 0
            case effects.StopSpan():
                self._order = None
                await self._stop()
            case TableChanged():
                self._table = message.table
            case GiveUp():
                await self._fail(message.error)

    async def _prepare(self, order: effects.PrepareSpan) -> None:
        self._position = await self._runtime.open_span(self._table, self._span, order.checkpoint.checkpoint_ts)
        failpoints.reach(Point.SPAN_OPENED)
        self._emit(effects.SpanPrepared(self._span))

    async def _run(self, order: effects.RunSpan) -> None:
        # the old writer has ended since the span was prepared, and may have advanced before
        self._position = await self._runtime.open_span(self._table, self._span, order.checkpoint_ts)
        failpoints.reach(Point.SPAN_ASKED)
        await self._flusher.tell(Join(self._position))
        self._emit(effects.SpanRunning(self._span))
        self._emit(effects.SpanProgress(self._span, self._checkpoint))

    async def _stop(self) -> None:
        await self._leave()
        self._is_over = True
        self._emit(effects.SpanStopped(self._span, self._checkpoint))

    async def _fail(self, error: RunningError) -> None:
        await self._leave()
        self._is_over = True
        self._emit(effects.SpanFailed(self._span, error))

    async def _leave(self) -> None:
        position = await self._flusher.ask(Leave(self._span), _LEAVE_TIMEOUT_S)
        self._position = position or self._position

    @property
    def _checkpoint(self) -> SpanCheckpoint:
        checkpoint_ts = self._position.checkpoint_ts if self._position else self._table.start_ts
        return SpanCheckpoint(checkpoint_ts, checkpoint_ts)
