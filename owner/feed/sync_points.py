"""Sync points of a changefeed: at intervals, brings all spans to one Ts, and records the sink's versions there.

    idle ──interval over──► holding ──every span has arrived──► reading ──the sink has answered──► recorded, idle
                               ▲                                    │
                               └──────── a table is past it ◄───────┘

The Ts is the log's position when the sync point is due. A flush in progress may move a span past it, so the hold moves
to the furthest span; and a version of the sink counts only if its records are not past the hold, since everything up to
the hold is in it (the checkpoints say so). A sink that does not answer delays the changefeed for at most
``read_timeout_s``: then there is no point, and the next one is tried an interval later. ``PHASES`` is the whole state
machine.
"""

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any

from owner.progress.facts import Facts
from owner.progress.watermark import SpanPosition, covers
from owner.questions import ReadPositions, TableRead
from owner.settings import SyncPointSettings
from reactor import keys, patches
from reactor.effects import Commit, Effect, Log
from reactor.ids import Ts
from reactor.questions import Answered, Ask
from reactor.records.sync_point import SyncPoint
from reactor.transitions import History


class Phase(StrEnum):
    IDLE = "idle"
    HOLDING = "holding"
    READING = "reading"


class Trigger(StrEnum):
    """The causes that move a sync point on."""

    DUE = "the interval is over"
    TOGETHER = "every span is there"
    SLIPPED = "a table is past it"
    RECORDED = "the sink has answered"
    GIVEN_UP = "no answer, or an error"
    SWITCHED_OFF = "switched off"


#: (phase, trigger) → phase
PHASES: dict[tuple[Phase, Trigger], Phase] = {
    (Phase.IDLE, Trigger.DUE): Phase.HOLDING,
    (Phase.HOLDING, Trigger.TOGETHER): Phase.READING,
    (Phase.READING, Trigger.SLIPPED): Phase.HOLDING,
    (Phase.READING, Trigger.RECORDED): Phase.IDLE,
    (Phase.READING, Trigger.GIVEN_UP): Phase.IDLE,
    **{(phase, Trigger.SWITCHED_OFF): Phase.IDLE for phase in Phase},
}


class SyncPoints:
    """The sync points of one run. ``wall_offset_s``: Unix time minus the clock that ticks are given."""

    def __init__(self, settings: SyncPointSettings, *, cluster: str, wall_offset_s: float) -> None:
        self.phase = Phase.IDLE
        #: no span may write past it, unless it is None
        self.hold_ts: Ts | None = None
        self._settings = settings
        self._cluster = cluster
        self._wall_offset_s = wall_offset_s
        self._due_at: float | None = None
        self._asked_at = 0.0
        self._answer: Answered[tuple[TableRead, ...]] | None = None
        #: tables that were held when the sink was asked
        self._left_out: tuple[str, ...] = ()
        self._steps = History("sync point")

    def handle_answer(self, answer: Answered[Any]) -> None:
        """Process the sink's answer; one to an earlier question is ignored."""
        question = answer.question
        if isinstance(question, ReadPositions) and self.phase is Phase.READING and question.ts == self.hold_ts:
            self._answer = answer

    def tick(self, facts: Facts, spans_now: Callable[[], Collection[SpanPosition]], now: float) -> list[Effect]:
        """Run one round. ``spans_now`` is called only when it is due: it scans every span."""
        if not facts.info.config.sync_point_interval_seconds or facts.tables is None or facts.head is None:
            self._rest(Trigger.SWITCHED_OFF, due_at=None)
            return []
        if self.phase is Phase.READING:
            return self._await_sink(facts, now)
        if self.phase is Phase.IDLE and now < self._next_due_at(facts, now):
            return []
        tables = {table.table_id for table in facts.flowing}
        spans = [span for span in spans_now() if span.span.table_id in tables]
        if self.phase is Phase.HOLDING:
            return self._await_spans(facts, spans, now)
        self._begin(facts.head.resolved_ts, spans)
        return []

    def next_at(self) -> float:
        """Return when the next step is due by time; infinity if it waits for something else."""
        match self.phase:
            case Phase.IDLE:
                return float("inf") if self._due_at is None else self._due_at
            case Phase.HOLDING:
                return float("inf")
            case Phase.READING:
                return self._asked_at + self._settings.read_timeout_s

    def validate(self) -> None:
        """Assert the invariants between two ticks."""
        assert (self.hold_ts is None) == (self.phase is Phase.IDLE), f"{self.phase}, and held at {self.hold_ts}"
        assert self._answer is None or self.phase is Phase.READING, f"{self.phase} with an answer of the sink"

    def _next_due_at(self, facts: Facts, now: float) -> float:
        """Return an interval after the last point, also of an earlier owner, or after the last attempt."""
        interval_s = facts.info.config.sync_point_interval_seconds
        if self._due_at is None:
            last = facts.sync_points[-1].time - self._wall_offset_s if facts.sync_points else now
            self._due_at = max(now, last + interval_s)
        return self._due_at

    def _begin(self, resolved_ts: Ts, spans: Collection[SpanPosition]) -> None:
        if spans:
            self._enter(Trigger.DUE)
            self.hold_ts = max([resolved_ts, *(span.checkpoint_ts for span in spans)])

    def _await_spans(self, facts: Facts, spans: Collection[SpanPosition], now: float) -> list[Effect]:
        assert self.hold_ts is not None, "spans are waited for at a Ts"
        assert facts.tables is not None, "and they are known"
        self.hold_ts = max([self.hold_ts, *(span.checkpoint_ts for span in spans)])
        is_whole = covers([table.table_id for table in facts.flowing], spans)
        if not is_whole or any(span.checkpoint_ts < self.hold_ts for span in spans):
            return []
        self._enter(Trigger.TOGETHER)
        self._asked_at = now
        self._left_out = tuple(sorted(table.name for table in facts.held.values()))
        asked = tuple(sorted(span.span for span in spans))
        return [Ask(facts.info.id, facts.info, ReadPositions(facts.flowing, asked, self.hold_ts))]

    def _await_sink(self, facts: Facts, now: float) -> list[Effect]:
        assert self.hold_ts is not None, "the sink was asked about a Ts"
        answer, self._answer = self._answer, None
        if answer is None:
            is_late = now >= self._asked_at + self._settings.read_timeout_s
            return self._give_up(facts, "the sink does not say how far it is", now) if is_late else []
        if answer.answer is None or answer.error is not None:
            return self._give_up(facts, answer.error.message if answer.error else "it said nothing", now)
        furthest = max((table.committed_ts for table in answer.answer), default=Ts(0))
        if furthest > self.hold_ts:
            self._enter(Trigger.SLIPPED)
            self.hold_ts = furthest
            return []
        question = answer.question
        assert isinstance(question, ReadPositions), "handle_answer takes no other"
        point = SyncPoint(
            ts=self.hold_ts,
            time=now + self._wall_offset_s,
            versions={table.table: table.version for table in answer.answer},
            table_ids={f"{table.schema_name}.{table.name}": table.table_id for table in question.tables},
            left_out=self._left_out,
        )
        self._rest(Trigger.RECORDED, due_at=now + facts.info.config.sync_point_interval_seconds)
        return [self._record(facts, point)]

    def _record(self, facts: Facts, point: SyncPoint) -> Commit:
        """Record the new point, and remove the oldest beyond the limit."""
        old = [known.ts for known in facts.sync_points if known.ts != point.ts]
        doomed = old[: max(0, len(old) + 1 - self._settings.kept)]
        changes = [patches.put_record(self._key(facts, point.ts), point)]
        return Commit(patches.group([*changes, *(patches.delete(self._key(facts, ts)) for ts in doomed)]))

    def _give_up(self, facts: Facts, reason: str, now: float) -> list[Effect]:
        fields = (("changefeed", facts.info.id), ("ts", self.hold_ts), ("reason", reason))
        self._rest(Trigger.GIVEN_UP, due_at=now + facts.info.config.sync_point_interval_seconds)
        return [Log("warning", "no sync point this time", fields)]

    def _rest(self, trigger: Trigger, *, due_at: float | None) -> None:
        self._enter(trigger)
        self.hold_ts, self._due_at, self._answer = None, due_at, None

    def _enter(self, trigger: Trigger) -> None:
        """:raises InvalidTransitionError: its phase has no row for it."""
        after = PHASES.get((self.phase, trigger))
        if after is None:
            raise self._steps.invalid(self.phase, trigger)
        if after is not self.phase:
            self._steps.note(self.phase, trigger, after)
        self.phase = after

    def _key(self, facts: Facts, ts: Ts) -> keys.SyncPointKey:
        return keys.SyncPointKey(self._cluster, facts.info.namespace, facts.info.id, ts)
