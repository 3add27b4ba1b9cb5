"""Messages between captures: orders of the scheduler and the worker manager, and the answers to them.

Every message carries a ``Header``; the receiving side (``agent.control.gate``, ``owner.scheduler.coordinator``) rejects
messages of an older owner, another run of the processor, or another epoch of the changefeed (after the protocol of
TiCDC's scheduler v3). Bodies are frozen dataclasses of plain values; parts that occur by the thousand are named tuples,
which are created three times as fast. ``capture.messaging.frames`` serialises them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple, TypeVar

from reactor.ids import MAX_TS, CaptureId, ChangefeedId, TableSpan, Ts
from reactor.records.changefeed import RunningError, Unit

T = TypeVar("T")

#: spans, or statuses of spans, per message; more are sent in several parts. Keeps frames small, and quick enough to
#: decode that the capture is not blocked
SPANS_PER_MESSAGE = 5_000


class SpanState(IntEnum):
    """State of a table span on one capture (``docs/states/agent-span.md``)."""

    UNKNOWN = 0
    ABSENT = 1
    PREPARING = 2
    PREPARED = 3
    REPLICATING = 4
    STOPPING = 5
    STOPPED = 6


class Liveness(StrEnum):
    """One-way: a capture that is stopping never becomes alive again."""

    ALIVE = "alive"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Header:
    """``owner_revision``: etcd revision of the owner's election. ``processor_epoch``: the run of the processor, empty
    if the sender does not know it yet. ``changefeed_epoch``: ``ChangefeedInfo.epoch``."""

    version: str
    owner_revision: int
    processor_epoch: str
    changefeed_epoch: int


class SpanCheckpoint(NamedTuple):
    checkpoint_ts: Ts
    resolved_ts: Ts


class SpanStatus(NamedTuple):
    """One table span as its capture sees it. ``checkpoint_time``: commit time at the checkpoint, 0 if unknown."""

    span: TableSpan
    state: SpanState
    checkpoint: SpanCheckpoint
    checkpoint_time: float = 0.0


@dataclass(frozen=True, slots=True)
class Barrier:
    """``global_ts``: no span may write past it. ``tables``: stricter limits, by table id (at most 256)."""

    global_ts: Ts = MAX_TS
    tables: tuple[tuple[int, Ts], ...] = ()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Owner → agent. ``spans``: what the owner expects; the agent answers for these and, unless the heartbeat names its
    run, all it has.

    Sent in ``parts`` one after the other if there are many; ``part`` counts from 0, and the last one is answered.
    ``takes_together``: this owner understands ``HeartbeatResponse.together``; ``follows_log``: it needs no report of
    spans together that the move of a quiet log's head has moved (``LogHead.ends_at``).
    """

    spans: tuple[TableSpan, ...] = ()
    is_stopping: bool = False
    barrier: Barrier = Barrier()
    part: int = 0
    parts: int = 1
    takes_together: bool = False
    follows_log: bool = False


class Place(NamedTuple):
    """Place that spans share, or that one has for itself. ``time``: commit time there, 0 if unknown."""

    checkpoint: SpanCheckpoint
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    """Agent → owner. ``rows_flushed``: row changes this run of the processor has written to the sink so far.

    Sent in ``parts`` like a heartbeat: the answer is complete with the last part.

    ``together``: where all spans are that this run has reported as ``joined``, and has not reported singly since (in
    ``statuses``, or in a dispatch response). That holds only for who has had all of the run's messages since a full
    answer (``is_full``): their ``number`` grows by one with each, 0 if the sender does not count.
    """

    statuses: tuple[SpanStatus, ...] = ()
    liveness: Liveness = Liveness.ALIVE
    worker: "WorkerStatus | None" = None
    rows_flushed: int = 0
    part: int = 0
    parts: int = 1
    number: int = 0
    is_full: bool = False
    together: Place | None = None
    joined: tuple[TableSpan, ...] = ()

    def at_place(self) -> list[SpanStatus]:
        """Return the statuses of the spans that have joined."""
        place, state = self.together, SpanState.REPLICATING
        return [SpanStatus(span, state, *place) for span in self.joined] if place else []


@dataclass(frozen=True, slots=True)
class AddSpan:
    """Owner → agent. ``is_secondary``: prepare only; the same order without it commits (two-phase move)."""

    span: TableSpan
    is_secondary: bool
    checkpoint: SpanCheckpoint


@dataclass(frozen=True, slots=True)
class RemoveSpan:
    """Owner → agent."""

    span: TableSpan


@dataclass(frozen=True, slots=True)
class DispatchResponse:
    """Agent → owner: the answer to ``AddSpan`` and ``RemoveSpan``. ``number``: see ``HeartbeatResponse``."""

    status: SpanStatus
    number: int = 0


class WorkerStage(StrEnum):
    """Stage of a worker as its capture sees it (``docs/states/worker.md``)."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Owner → agent: run ``unit`` of ``source``. ``epoch`` is the order's number, echoed in every status."""

    source: str
    unit: Unit
    epoch: int


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Owner → agent."""

    source: str
    epoch: int


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Agent → owner, with every heartbeat response while a worker runs or has just ended."""

    source: str
    unit: Unit
    epoch: int
    stage: WorkerStage
    rows_done: int = 0
    rows_total: int = 0
    error: RunningError | None = None
    bytes_done: int = 0


Body = Heartbeat | HeartbeatResponse | AddSpan | RemoveSpan | DispatchResponse | StartWorker | StopWorker


@dataclass(frozen=True, slots=True)
class Message:
    """One message between an owner's changefeed and an agent, as the decision code sees it."""

    sender: CaptureId
    receiver: CaptureId
    changefeed: ChangefeedId
    header: Header
    body: Body


def is_progress(body: Body) -> bool:
    """Return whether it reports nothing but progress: where spans are that are together, and rows of a worker."""
    return (
        isinstance(body, HeartbeatResponse)
        and not (body.statuses or body.joined or body.is_full)
        and body.liveness is Liveness.ALIVE
        and (body.worker is None or (body.worker.stage is WorkerStage.RUNNING and body.worker.error is None))
    )


def in_parts(items: Sequence[T], size: int = SPANS_PER_MESSAGE) -> list[tuple[T, ...]]:
    """Divide ``items`` into parts of at most ``size``, in order; one empty part if there are none."""
    return [tuple(items[start : start + size]) for start in range(0, len(items), size)] or [()]
