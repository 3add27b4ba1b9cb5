"""Faulty runtime: that of a changefeed for which this capture lacks something; every call raises that fault. And how
long it rests then."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.control.effects import StartUnit
from agent.control.runtime import NOBODY, Flushed, FlushLimits, Progress, SpanPosition, Together
from agent.errors import OwnFaultError
from reactor.errors import WeirError
from reactor.ids import ChangefeedId, TableSpan, Ts
from reactor.records.changefeed import RunningError
from reactor.records.tables.table import TableRecord

#: how long a capture that cannot work for a changefeed waits before it checks again
_RETRY_S, _RETRY_MAX_S = 30.0, 480.0
#: without a fault for so long, the next one is as the first
_CALM_S = 1_800.0


@dataclass(slots=True)
class _Rest:
    fault: OwnFaultError
    seconds: float
    until: float


@dataclass(slots=True)
class Rests:
    """Changefeeds for which this capture has failed by its own fault: it rests, the longer the more often it fails."""

    _rests: dict[ChangefeedId, _Rest] = field(default_factory=dict)

    def note(self, changefeed: ChangefeedId, error: RunningError, now: float) -> None:
        before = self._rests.get(changefeed)
        is_again = before is not None and now - before.until < _CALM_S
        seconds = min(2 * before.seconds, _RETRY_MAX_S) if before is not None and is_again else _RETRY_S
        fault = OwnFaultError(error.message)
        fault.table_id = error.table_id
        self._rests[changefeed] = _Rest(fault, seconds, now + seconds)

    def current(self, changefeed: ChangefeedId, now: float) -> OwnFaultError | None:
        """Return the fault while it rests."""
        rest = self._rests.get(changefeed)
        return rest.fault if rest is not None and now < rest.until else None

    def left_s(self, changefeed: ChangefeedId, now: float) -> float:
        """Return when to check again."""
        rest = self._rests.get(changefeed)
        return rest.until - now if rest is not None and now < rest.until else _RETRY_S


class FaultyRuntime:
    """``agent.control.runtime.SpanRuntime``. Its agent accepts no work, so it only gets calls for earlier work."""

    def __init__(self, fault: WeirError) -> None:
        self._fault = fault

    async def open_span(self, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        raise self._fault

    async def flush(
        self, positions: Sequence[SpanPosition], limits: FlushLimits, together: Together = NOBODY
    ) -> Flushed:
        raise self._fault

    async def run_unit(self, order: StartUnit, on_progress: Progress) -> None:
        raise self._fault

    async def close(self) -> None:
        """Does nothing."""
