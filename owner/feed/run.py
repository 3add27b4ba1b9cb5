"""Run: a changefeed under one epoch, with its scheduler, workers and observed progress.

A run begins when the changefeed may run and ends with its epoch; nothing in it survives that. It takes the stored
records and the captures' messages and returns messages. ``owner.feed.changefeed`` decides the changefeed's state and
status.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from owner.feed.workers import Placement, Stage, WorkerManager, first_epoch
from owner.progress.barrier import Limits
from owner.progress.facts import Facts, TickContext
from owner.progress.stall import Stall
from owner.progress.units import SOURCE, ordinal
from owner.progress.watermark import SpanPosition, Watermark, advance, covers
from owner.questions import Asks
from owner.scheduler.coordinator import Coordinator, Identity
from owner.scheduler.replication import SetState
from owner.settings import OwnerSettings
from owner.tables.departures import Departures
from owner.tables.repartition import Repartitions
from owner.tables.resync import Resyncs
from owner.tables.schema_changes import SchemaChanges
from reactor.effects import Effect, Send
from reactor.ids import CaptureId, Ts
from reactor.messages import Message
from reactor.records.changefeed import RunningError
from reactor.records.log_head import LogHead
from reactor.records.tables.table import TableRecord

_NONE: frozenset[int] = frozenset()


class Run:
    """Everything that runs under one epoch."""

    def __init__(
        self, identity: Identity, facts: Facts, settings: OwnerSettings, *, cluster: str, epoch_floor: int, now: float
    ) -> None:
        self.epoch = facts.info.epoch
        self.coordinator = Coordinator(identity, settings.scheduler)
        self.workers = WorkerManager(facts.info.mode, settings.workers, epoch_floor=epoch_floor)
        self.repartitions = Repartitions(cluster=cluster)
        self.schemas = SchemaChanges(cluster=cluster, wall_offset_s=settings.wall_offset_s)
        self.resyncs = Resyncs(
            cluster=cluster, epoch=first_epoch(identity.owner_revision), wall_offset_s=settings.wall_offset_s
        )
        self.departures = Departures(cluster=cluster)
        self.head_stall = Stall()
        self.checkpoint_stall = Stall()
        self._progress_pulse = Stall()
        self._settings = settings
        self._started_at = now
        self._has_waited = False
        self._tables: tuple[TableRecord, ...] | None = None
        self._starts: dict[int, Ts] = {}
        self._parked: frozenset[int] = frozenset()
        #: tables that the scheduler must not touch because they are being repartitioned
        self._away: frozenset[int] = frozenset()

    def tick(
        self, facts: Facts, messages: Sequence[Message], limits: Limits, context: TickContext, now: float
    ) -> list[Send]:
        """Run one round: captures' reports, then spans, then workers.

        :raises owner.errors.SpanError: the captures contradict each other.
        """
        table_spans = self.repartitions.table_spans(facts.partitionings)
        self._away = frozenset(id for id, spans in table_spans.items() if not spans) if table_spans else _NONE
        effects = self.coordinator.poll(
            self._starts_of(facts),
            context.alive,
            messages,
            limits.barrier,
            now,
            table_spans=table_spans,
            floor_ts=facts.status.checkpoint_ts,
            catching_up=facts.catching_up,
            heartbeat_budget=context.heartbeat_budget,
        )
        if facts.head is not None and _is_free(facts, facts.head, limits):
            effects += self.coordinator.follow_log(facts.head)
        self._note_workers(context, now)
        if self.workers.has_errors or not self._may_place_workers(now):
            return effects
        return effects + self._place_workers(facts, context, now)

    def watermark(self, facts: Facts, limits: Limits, now: float) -> Watermark | None:
        """Return the changefeed's progress; None if unknown."""
        starts = self._starts_of(facts)
        if starts is None or facts.lost - facts.held.keys():
            return None
        self.head_stall.note(facts.head and (facts.head.resolved_ts, facts.head.resolved_time), now)
        standing = [
            at
            for at in self.repartitions.standing(facts.partitionings)
            if at.span.table_id in starts and at.span.table_id not in facts.held
        ]
        lowest = self.coordinator.lowest
        if lowest is None or (self._away and not self._counted(facts) & self._away <= _tables_of(standing)):
            return None
        positions = [(at.checkpoint_ts, at.checkpoint_time) for at in standing]
        if lowest.ts is not None:
            positions.append((lowest.ts, lowest.time))
        slowest = min(positions, key=lambda at: (at[0], -at[1]), default=None)
        if facts.head is not None:
            return advance(slowest, facts.head, limits)
        begun = [starts[table] for table in self._counted(facts)]
        return advance(slowest, None, limits, start_ts=max([facts.status.checkpoint_ts, *begun]))

    @property
    def asking(self) -> list[Asks]:
        """The state machines that ask source and sink."""
        return [self.repartitions, self.schemas, self.resyncs, self.departures]

    def repartition(self, facts: Facts, now: float, *, is_held: bool) -> list[Effect]:
        """Advance repartitions by one step."""
        sets, captures = self.coordinator.sets, len(self.coordinator.captures.serving())
        return self.repartitions.tick(facts, sets, captures, now, is_held=is_held)

    def resync(self, facts: Facts, now: float) -> list[Effect]:
        """Advance resyncs by one step."""
        return self.resyncs.tick(facts, self.coordinator.sets, now) if facts.resyncs else []

    def change_schemas(self, facts: Facts, now: float) -> list[Effect]:
        """Advance schema changes by one step."""
        if not facts.ddl:
            return []
        return self.schemas.tick(facts, self.positions, now)

    def positions(self) -> list[SpanPosition]:
        """Return the known position of every span."""
        sets = self.coordinator.sets.items()
        return [SpanPosition(span, at.checkpoint.checkpoint_ts, at.checkpoint_time) for span, at in sets]

    def reached(self, ids: Iterable[int], *, is_written: bool = False) -> Mapping[int, Ts]:
        """Return the position that all spans of each table have reached; without tables of which a span is missing, or
        not being written (``is_written``)."""
        by_table: dict[int, list[SpanPosition]] = {id: [] for id in ids}
        if not by_table:
            return {}
        for span, known in self.coordinator.sets.items():
            if span.table_id in by_table and (known.state is SetState.REPLICATING or not is_written):
                by_table[span.table_id].append(SpanPosition(span, known.checkpoint.checkpoint_ts))
        whole = {id: spans for id, spans in by_table.items() if covers([id], spans)}
        return {id: min(at.checkpoint_ts for at in spans) for id, spans in whole.items()}

    def writes_others(self, failing: Collection[int]) -> bool:
        """Return whether any other table is being written at the moment."""
        sets = self.coordinator.sets.items()
        return any(at.state is SetState.REPLICATING and span.table_id not in failing for span, at in sets)

    def progress(self, facts: Facts) -> tuple[int, int]:
        """Return a number that grows whenever any work is completed."""
        if facts.tables is not None:
            return ordinal(facts.info.mode, facts.unit) + 1, facts.status.checkpoint_ts
        worker = self.workers.workers.get(SOURCE)
        stored = facts.record.rows_done if facts.record else 0
        return ordinal(facts.info.mode, facts.unit), max(stored, worker.rows_done if worker else 0)

    def still_s(self, facts: Facts, now: float) -> float:
        """Return for how long there has been no progress of the log, of a checkpoint behind it, or of the snapshot."""
        self._progress_pulse.note(self.progress(facts), now)
        if facts.tables is None or facts.head is None:
            return self._progress_pulse.still_s(now)
        is_behind = facts.status.checkpoint_ts < facts.head.resolved_ts
        return max(self.head_stall.still_s(now), self.checkpoint_stall.still_s(now) if is_behind else 0.0)

    def errors(self) -> list[RunningError]:
        return self.workers.take_errors()

    def next_at(self) -> float:
        """Return when this run wants its next tick."""
        captures = self.coordinator.captures
        waited_at = self._started_at + self._settings.workers.creating_timeout_s
        parts = (
            float("inf") if captures.is_initialized or self._has_waited else waited_at,
            self.workers.next_check_at(),
            self.repartitions.next_at(),
            self.schemas.next_at(),
            self.resyncs.next_at(),
            self.departures.next_at(),
        )
        return min(captures.next_heartbeat_at(), *parts)

    def _starts_of(self, facts: Facts) -> Mapping[int, Ts] | None:
        """Return table → where its spans start, after its snapshot; the same object while it does not change.

        Held tables have no spans before they are retried.
        """
        tables = facts.tables
        if tables is None:
            return None
        parked = facts.parked
        if tables is not self._tables or parked != self._parked:
            starts = {table.table_id: table.start_ts for table in tables if table.table_id not in parked}
            self._tables, self._parked = tables, parked
            self._starts = self._starts if starts == self._starts else starts
        return self._starts

    def _counted(self, facts: Facts) -> Set[int]:
        """Return the tables that the watermark covers."""
        return self._starts.keys() - facts.held.keys()

    def _note_workers(self, context: TickContext, now: float) -> None:
        self.workers.handle_alive(context.alive, now)
        for report in self.coordinator.take_worker_reports():
            self.workers.handle_report(report.capture, report.status, now)

    def _may_place_workers(self, now: float) -> bool:
        """Return whether all captures have reported their workers; one that is silent for long is not waited for, since
        epochs fence it."""
        patience_s = self._settings.workers.creating_timeout_s
        self._has_waited = now - self._started_at >= patience_s
        return self.coordinator.captures.is_initialized or self._has_waited

    def _place_workers(self, facts: Facts, context: TickContext, now: float) -> list[Send]:
        captures = self.coordinator.captures
        placement = Placement(tuple(captures.serving()), context.worker_loads, captures.leaving())
        records = {SOURCE: facts.record} if facts.record else {}
        orders = self.workers.tick([SOURCE], records, placement, now)
        identity = self.coordinator.identity
        return [identity.message(o.capture, o.body, processor_epoch=captures.epoch_of(o.capture)) for o in orders]

    def validate(self) -> None:
        """Assert the invariants between two ticks."""
        assert self.coordinator.identity.changefeed_epoch == self.epoch, "a run speaks under its own epoch"
        assert not self._parked & self._starts.keys(), "a held table has spans"
        self.coordinator.validate()
        self.workers.validate()
        self.repartitions.validate()
        self.schemas.validate()
        self.resyncs.validate()
        self.departures.validate()

    def drain(self, capture: CaptureId) -> int:
        """Request that ``capture`` be emptied; return how many spans and workers it still has."""
        return self.coordinator.drain(capture) + self.workers.count_on(capture)

    def running_workers(self) -> list[CaptureId]:
        """Return the captures of this changefeed's workers, for the placement of others."""
        at_work = (Stage.CREATING, Stage.ONLINE)
        return [worker.capture for worker in self.workers.workers.values() if worker.stage in at_work]


def _is_free(facts: Facts, head: LogHead, limits: Limits) -> bool:
    """Return whether nothing stops a table in front of ``head``. If something does, captures report their moves: only
    they know whether they stop there."""
    changes = (record.barrier_ts for record in facts.pending_ddl)  # of held tables, too
    return min([limits.lowest_ts, *changes]) >= head.resolved_ts


def _tables_of(positions: Iterable[SpanPosition]) -> Set[int]:
    return {at.span.table_id for at in positions}
