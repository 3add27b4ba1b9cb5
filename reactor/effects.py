"""Effects: the closed set of what a decision may ask for; ``capture.member`` carries them out.

A machine returns effects and never acts. What an effect brings back (a reply, a result, a failure) comes in again
as an event, at the performer's pace.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reactor.ids import ChangefeedId, TableSpan, Ts
from reactor.messages import Message
from reactor.patches import PatchGroup
from reactor.records.changefeed import ChangefeedInfo, DdlRecord, TableRecord


@dataclass(frozen=True, slots=True)
class Send:
    """Give ``message`` to its receiver: in order per sender and topic, at least once while both live."""

    message: Message


@dataclass(frozen=True, slots=True)
class Commit:
    """Apply one patch group to etcd, all of it or nothing; re-run on conflict with fresh values."""

    group: PatchGroup


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Tick again no later than ``at`` (seconds of the clock that ``now`` was read from)."""

    at: float


@dataclass(frozen=True, slots=True)
class Log:
    """One structured log line: decisions hold no logger."""

    level: str
    event: str
    fields: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """Complete an operator's job: ``error`` empty when it was done."""

    job_id: str
    error: str = ""
    value: object = None


@dataclass(frozen=True, slots=True)
class DropUpstream:
    """Remove what a changefeed left at its source (slot, publication) and in the change log; safe to do again.

    The owner is notified by ``owner.jobs.UpstreamDropped``, and asks again until it went well.
    """

    changefeed: ChangefeedId
    info: ChangefeedInfo


@dataclass(frozen=True, slots=True)
class ReadSink:
    """Ask the sink which version of each table its readers see, and how far its spans are in that version.

    The owner is notified by ``owner.jobs.SinkRead``, which repeats ``ts``.
    """

    changefeed: ChangefeedId
    info: ChangefeedInfo
    tables: tuple[TableRecord, ...]
    spans: tuple[TableSpan, ...]
    ts: Ts


@dataclass(frozen=True, slots=True)
class CutSink:
    """Let the sink record that ``table`` consists of the spans ``new``, which are at ``ts``, and not of ``old``.

    ``number`` orders the repartitions of one table. Safe to do again. The owner is notified by ``owner.jobs.SinkCut``,
    which repeats table, number and Ts.
    """

    changefeed: ChangefeedId
    info: ChangefeedInfo
    table: TableRecord
    old: tuple[TableSpan, ...]
    new: tuple[TableSpan, ...]
    ts: Ts
    number: int


@dataclass(frozen=True, slots=True)
class ApplySchema:
    """Let the sink's tables become what ``record`` says; all their spans are right before it. Safe to do again.

    The record may be a part of the stored one: of the tables that are asked for. The owner is notified by
    ``owner.jobs.SchemaApplied``, which repeats its Ts and tables. ``tables``: those of them that the sink has, under
    the names that they have there: one that was held may have got others at its source since.
    """

    changefeed: ChangefeedId
    info: ChangefeedInfo
    record: DdlRecord
    tables: tuple[TableRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Resign:
    """Give up ownership; the capture and its processors stay."""


Effect = Send | Commit | WakeAt | Log | Answer | DropUpstream | ReadSink | CutSink | ApplySchema | Resign
#: carries out what the worker does not: also what a reactor asks beyond this set (``agent.control.processors``)
Perform = Callable[[Any], None]
