"""Agent orders and events: what the agent orders its capture to do with rows, and what the capture reports back.

The agent returns the orders below (together with ``reactor.effects``), the processor performs them, and their outcomes
return as events. The table in ``agent.control.table_span`` relies on three guarantees of the performer:

- the events of one span, and of one unit order, arrive in the order in which they happened;
- ``SpanStopped`` and ``SpanFailed`` are the last event of a span: nothing writes it any more when they are sent;
- ``UnitFinished``, ``UnitStopped`` and ``UnitFailed`` are the last event of a unit order, likewise.
"""

from dataclasses import dataclass

from reactor.effects import Effect
from reactor.ids import TableSpan, Ts
from reactor.messages import Place, SpanCheckpoint
from reactor.records.changefeed import RunningError, Unit

_NOWHERE = Place(SpanCheckpoint(Ts(0), Ts(0)))


@dataclass(frozen=True, slots=True)
class PrepareSpan:
    """Prepare to write ``span`` from ``checkpoint`` on, without writing. Answered by ``SpanPrepared``."""

    span: TableSpan
    checkpoint: SpanCheckpoint


@dataclass(frozen=True, slots=True)
class RunSpan:
    """Write ``span`` from ``checkpoint_ts`` on: there is no other writer. Answered by ``SpanRunning``."""

    span: TableSpan
    checkpoint_ts: Ts


@dataclass(frozen=True, slots=True)
class StopSpan:
    """Stop writing, after finishing or abandoning the current operation. Answered by ``SpanStopped``."""

    span: TableSpan


@dataclass(frozen=True, slots=True)
class StartUnit:
    """Run ``unit`` of ``source`` under the order's ``epoch``."""

    source: str
    unit: Unit
    epoch: int


@dataclass(frozen=True, slots=True)
class StopUnit:
    """Stop the unit that runs under ``epoch``. Answered by ``UnitStopped`` (or its own end, if that comes first)."""

    source: str
    epoch: int


@dataclass(frozen=True, slots=True)
class ReportError:
    """Report to the owner through this capture's ``TaskPosition`` that the changefeed cannot continue."""

    error: RunningError


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The owner drains this capture: every current and later processor here must hand over its spans."""


AgentEffect = Effect | PrepareSpan | RunSpan | StopSpan | StartUnit | StopUnit | ReportError | LeaveAsked


@dataclass(frozen=True, slots=True)
class SpanPrepared:
    span: TableSpan


@dataclass(frozen=True, slots=True)
class SpanRunning:
    span: TableSpan


@dataclass(frozen=True, slots=True)
class SpanProgress:
    """The span's checkpoint is durable in the sink. ``checkpoint_time``: commit time there, 0 if not known."""

    span: TableSpan
    checkpoint: SpanCheckpoint
    checkpoint_time: float = 0.0


@dataclass(frozen=True, slots=True)
class SpansProgress:
    """The progress of all spans that one flush has moved: one event, since there may be tens of thousands.

    Those that are together are all at ``place``. Since the last event of this kind, some have ``joined`` them, and
    others have ``left`` them, before they moved."""

    spans: tuple[SpanProgress, ...]
    place: Place = _NOWHERE
    joined: tuple[TableSpan, ...] = ()
    left: tuple[TableSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class SpanStopped:
    """Nothing writes the span here any more; ``checkpoint`` is where the next writer continues."""

    span: TableSpan
    checkpoint: SpanCheckpoint


@dataclass(frozen=True, slots=True)
class SpanFailed:
    """The span has stopped because of ``error``; its last reported checkpoint is valid."""

    span: TableSpan
    error: RunningError


SpanEvent = SpanPrepared | SpanRunning | SpanProgress | SpanStopped | SpanFailed


@dataclass(frozen=True, slots=True)
class UnitProgress:
    """``trouble``: a transient problem that the unit waits for (a source that cannot be reached), or None."""

    source: str
    epoch: int
    rows_done: int
    rows_total: int
    trouble: RunningError | None = None
    bytes_done: int = 0


@dataclass(frozen=True, slots=True)
class UnitFinished:
    source: str
    epoch: int


@dataclass(frozen=True, slots=True)
class UnitStopped:
    source: str
    epoch: int


@dataclass(frozen=True, slots=True)
class UnitFailed:
    source: str
    epoch: int
    error: RunningError


UnitEvent = UnitProgress | UnitFinished | UnitStopped | UnitFailed
AgentEvent = SpanEvent | SpansProgress | UnitEvent
