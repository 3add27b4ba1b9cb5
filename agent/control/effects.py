"""Agent orders and events: what the agent asks of its capture about rows, and what the capture reports back.

The agent decides and never acts: it returns the orders below (together with ``reactor.effects``), the processor
carries them out, and what happened comes in again as one of the events. Three promises of whoever carries them out
make the table in ``agent.control.table_span`` right:

- the events of one span, and of one unit order, come in the order in which they happened;
- ``SpanStopped`` and ``SpanFailed`` are the last event of a span: nothing writes for it any more when they are sent;
- ``UnitFinished``, ``UnitStopped`` and ``UnitFailed`` are the last event of a unit order, likewise.
"""

from dataclasses import dataclass

from reactor.effects import Effect
from reactor.ids import TableSpan, Ts
from reactor.messages import SpanCheckpoint
from reactor.records.changefeed import RunningError, Unit


@dataclass(frozen=True, slots=True)
class PrepareSpan:
    """Get ready to write ``span`` from ``checkpoint`` on, and write nothing. Answered by ``SpanPrepared``."""

    span: TableSpan
    checkpoint: SpanCheckpoint


@dataclass(frozen=True, slots=True)
class RunSpan:
    """Write ``span`` from ``checkpoint_ts`` on: nobody else does any more. Answered by ``SpanRunning``."""

    span: TableSpan
    checkpoint_ts: Ts


@dataclass(frozen=True, slots=True)
class StopSpan:
    """Write no more; what is half done is finished or given up first. Answered by ``SpanStopped``."""

    span: TableSpan


@dataclass(frozen=True, slots=True)
class StartUnit:
    """Run ``unit`` of ``source`` under the order's ``epoch``."""

    source: str
    unit: Unit
    epoch: int


@dataclass(frozen=True, slots=True)
class StopUnit:
    """End the unit that runs under ``epoch``. Answered by ``UnitStopped`` (or its own end, if that was first)."""

    source: str
    epoch: int


@dataclass(frozen=True, slots=True)
class ReportError:
    """Report to the owner through this capture's ``TaskPosition``: the changefeed cannot continue like this."""

    error: RunningError


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    """The owner drains this capture: every processor here, and every later one, is to give up what it has."""


AgentEffect = Effect | PrepareSpan | RunSpan | StopSpan | StartUnit | StopUnit | ReportError | LeaveAsked


@dataclass(frozen=True, slots=True)
class SpanPrepared:
    span: TableSpan


@dataclass(frozen=True, slots=True)
class SpanRunning:
    span: TableSpan


@dataclass(frozen=True, slots=True)
class SpanProgress:
    """The span's checkpoint is durable in the sink. ``checkpoint_time``: commit time there, 0 when not known."""

    span: TableSpan
    checkpoint: SpanCheckpoint
    checkpoint_time: float = 0.0


@dataclass(frozen=True, slots=True)
class SpanStopped:
    """Nothing writes for the span here any more; ``checkpoint`` is where the next writer continues."""

    span: TableSpan
    checkpoint: SpanCheckpoint


@dataclass(frozen=True, slots=True)
class SpanFailed:
    """As ``SpanStopped``, unasked and because of ``error``; the last known checkpoint holds."""

    span: TableSpan
    error: RunningError


SpanEvent = SpanPrepared | SpanRunning | SpanProgress | SpanStopped | SpanFailed


@dataclass(frozen=True, slots=True)
class UnitProgress:
    """``trouble``: what the unit is waiting to pass by itself (a source that cannot be reached), None when nothing."""

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
AgentEvent = SpanEvent | UnitEvent
