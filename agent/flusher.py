"""The flusher of one changefeed on one capture, as an actor: one flush at a time over all spans that are here.

What arrives while a flush runs (the log moving on, spans joining, a new barrier) is the next flush: batches grow under
load, and lag stays low when idle (DESIGN 5.3). ``Leave`` is handled between two flushes, so its answer means that
nothing writes for the span any more. The processor puts the newest limits into ``Limits`` and pokes; pokes that come
during a flush fold into one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import time

import structlog

from agent.errors import JobTimeoutError, SinkTimeoutError
from agent.parts import FlushLimits, Parts, SpanFlushed, SpanPosition
from agent.references import Reference, Surroundings
from reactor.errors import WeirError
from reactor.ids import TableSpan
from reactor.records import RunningError

_RETRY_S = 1.0
_RETRY_MAX_S = 15.0
#: failures in a row after which the changefeed's owner is told, and backs off for all of it
_FAILURES_MAX = 5
#: worth a word to people at once, since much time has passed
_WARNED = frozenset({JobTimeoutError.code, SinkTimeoutError.code})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Join:
    """Flush this span from now on."""

    position: SpanPosition


@dataclass(frozen=True, slots=True)
class Leave:
    """Flush it no more. Answered with its last ``SpanPosition``, or None when it was not here."""

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
    """``running_since``: Unix time when the flush under way began, 0 when there is none. ``rows``: written so far."""

    flushes: int = 0
    rows: int = 0
    running_since: float = 0.0
    failures: int = 0


class Flusher:
    """``report`` gives what happened to each span to its writer; ``warn`` tells people of what is tried again."""

    def __init__(
        self,
        parts: Parts,
        limits: Limits,
        *,
        report: Callable[[SpanFlushed], None],
        warn: Callable[[RunningError], None],
    ) -> None:
        self._parts = parts
        self._limits = limits
        self._report = report
        self._warn = warn
        self._positions: dict[TableSpan, SpanPosition] = {}
        self._me: Reference | None = None
        self._context: Surroundings | None = None
        self._is_poked = False
        self._is_waiting = False
        self._failures = 0
        self.statistics = FlusherStatistics()

    async def on_start(self, context: Surroundings) -> None:
        self._context = context
        self._me = context.me

    def poke(self) -> None:
        """Flush soon; called by the processor after it has changed the limits."""
        if not (self._is_poked or self._is_waiting) and self._me is not None:
            self._is_poked = True
            self._me.tell_nowait(Poke())

    async def handle(self, message: Join | Leave | Poke) -> SpanPosition | None:
        match message:
            case Join(position):
                self._positions[position.span] = position
                self.poke()
            case Leave(span):
                return self._positions.pop(span, None)
            case Poke():
                self._is_poked = self._is_waiting = False
                await self._flush()
        return None

    async def _flush(self) -> None:
        limits = self._limits.now
        if limits is None:
            return
        self._take_tables(limits)
        due = [position for position in self._positions.values() if _is_due(position, limits)]
        if not due:
            return
        started = time()
        self._note(running_since=started)
        try:
            flushed = await self._parts.flush(due, limits)
        except WeirError as error:
            self._on_failure(due, error)
            return
        finally:
            self._note(running_since=0.0)
        rows = sum(span.rows for span in flushed.spans)
        _log.debug("flushed", spans=len(flushed.spans), rows=rows, seconds=round(time() - started, 3))
        self._note(flushes=1, rows=rows)
        self._settle(flushed.spans)
        if flushed.is_behind:
            self.poke()

    def _take_tables(self, limits: FlushLimits) -> None:
        """A schema change may have given a table another name or key."""
        for span, position in self._positions.items():
            if (table := limits.table(position.table)) is not position.table:
                self._positions[span] = replace(position, table=table)

    def _settle(self, spans: tuple[SpanFlushed, ...]) -> None:
        """Take over the new positions; a span with a passing error stays and is tried again."""
        failed = [span for span in spans if span.error is not None]
        self._failures = self._failures + 1 if failed else 0
        for span in spans:
            self._positions[span.position.span] = span.position
            if span.error is None or not span.error.retryable or self._failures >= _FAILURES_MAX:
                self._report(span)
            else:
                _log.warning(
                    "a flush failed and is tried again", span=str(span.position.span), error=span.error.message
                )
        if failed:
            self._try_again()

    def _on_failure(self, due: list[SpanPosition], error: WeirError) -> None:
        told = RunningError(code=error.code, message=str(error), time=time(), retryable=error.retryable)
        if error.code in _WARNED:
            self._warn(told)
        self._settle(tuple(SpanFlushed(position, error=told) for position in due))

    def _try_again(self) -> None:
        assert self._context is not None
        if not self._is_waiting:
            self._is_waiting = True
            self._context.schedule(min(_RETRY_S * 2 ** (self._failures - 1), _RETRY_MAX_S), Poke())

    def _note(self, *, flushes: int = 0, rows: int = 0, running_since: float | None = None) -> None:
        old = self.statistics
        self.statistics = FlusherStatistics(
            flushes=old.flushes + flushes,
            rows=old.rows + rows,
            running_since=old.running_since if running_since is None else running_since,
            failures=self._failures,
        )


def _is_due(position: SpanPosition, limits: FlushLimits) -> bool:
    """There is something to move, and the first flush after a resumed dump reaches its consistent point."""
    target = limits.target(position.table.table_id)
    return target > position.checkpoint_ts and target >= position.table.consistent_ts
