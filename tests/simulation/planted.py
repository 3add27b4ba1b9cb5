"""Planted bugs, one at a time: the simulation must find each of them, to prove that it can.

Each removes one safeguard, by replacing a method while a seed runs, so production code contains nothing of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import anyio

from agent.control import processor
from agent.control.runtime import FlushLimits
from agent.log import head, retention
from agent.log.head import LogWriter
from agent.log.head_store import MetaHeadStore
from agent.log.reader import LogReader
from agent.units import records
from agent.units.records import UnitRecords
from capture.member.cluster_service import ClusterService
from capture.member.comparisons import arrival, diff
from owner import jobs, stored_values
from owner.feed.changefeed import Changefeed
from owner.feed.crashes import Crashes
from owner.feed.holds.held import RESYNC, HeldTables
from owner.feed.holds.hold_stages import Trigger
from owner.feed.sync_points import SyncPoints
from owner.progress.facts import Facts
from owner.questions import ReadPositions
from owner.scheduler import replication
from owner.scheduler.coordinator import Coordinator
from owner.scheduler.lowest import LowestPosition
from owner.scheduler.replication import ReplicationSet, Role
from owner.tables import moves
from owner.tables import schema_changes as ddl
from owner.tables.repartition import Repartitions
from owner.tables.resync import Resyncs
from owner.tables.schema_changes import SchemaChanges
from reactor import txn
from reactor.division.divided import Limits
from reactor.ids import MAX_TS, CaptureId, TableSpan, Ts
from reactor.membership.session import Session
from reactor.messages import SpanState
from reactor.questions import Answered
from reactor.records.log_head import Era, LogHead
from reactor.records.tables.held import HeldTable, HoldStage, needed_ts
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.resync import ResyncStage, TableResync
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.tables.table import TableRecord
from reactor.worker.loop import ReactorWorker
from reactor.worker.pending import Pending
from reactor.worker.watch import WatchCursor
from tests.simulation import crashes, data_plane, faults, operator, planted_owners, run
from tests.simulation.checks import Feed
from tests.simulation.operator import Operator
from tests.simulation.outside import Sink
from tests.simulation.run import Outcome, simulate

_TOO_LONG_S = 10.0


def _replace(stack: ExitStack, owner: object, name: str, new: Any) -> None:
    stack.enter_context(mock.patch.object(owner, name, new))


def promote_early(stack: ExitStack) -> None:
    """The secondary is asked to write before the old writer has stopped."""

    def promote(self: ReplicationSet, _capture: CaptureId) -> list[replication.Order]:
        old, new = self.primary, self.secondary
        if new is None:
            return []
        self.captures = {new: Role.PRIMARY}
        return [self._add(new, is_secondary=False), *([self._remove(old)] if old else [])]

    _replace(stack, ReplicationSet, "_promote_or_stop_writer", promote)
    row = (replication.SetState.PREPARE, Role.SECONDARY, SpanState.PREPARED)

    def prepared(self: ReplicationSet, capture: CaptureId) -> list[replication.Order]:
        self.state = replication.SetState.COMMIT
        return promote(self, capture)

    stack.enter_context(mock.patch.dict(replication._ROWS, {row: prepared}))


def take_stopping_for_stopped(stack: ExitStack) -> None:
    """A writer that finishes its last flush counts as gone."""
    row = (replication.SetState.COMMIT, Role.PRIMARY, SpanState.STOPPING)
    stack.enter_context(mock.patch.dict(replication._ROWS, {row: ReplicationSet._writer_lost_in_commit}))


def ignore_the_logs_epoch(stack: ExitStack) -> None:
    """A replaced log writer continues to write the head."""

    async def swap(self: MetaHeadStore, new: LogHead, **_: object) -> int | None:
        return await self._client.put(self._key, new.encode())

    _replace(stack, MetaHeadStore, "swap", swap)


def ignore_the_units_epoch(stack: ExitStack) -> None:
    """A replaced unit continues to write its record."""

    async def write(self: UnitRecords, record: Any) -> None:
        await self._client.put(self._key, record.encode())

    _replace(stack, UnitRecords, "write", write)


def skip_the_barrier_revision(stack: ExitStack) -> None:
    """Ticks do not wait until the watch has returned the last commit."""
    _replace(stack, WatchCursor, "is_caught_up", property(lambda self: True))


def lose_a_patch_on_overflow(stack: ExitStack) -> None:
    """What did not fit into the first transaction of a tick is dropped."""
    original = txn._Packer._fits

    def fits(self: Any, writes: Any, compared: Any, **kwargs: Any) -> bool:
        return not self._writes and original(self, writes, compared, **kwargs)

    def committed(self: Pending, planned: Any) -> None:
        self._groups, self._doubt = (), None

    _replace(stack, txn._Packer, "_fits", fits)
    _replace(stack, Pending, "committed", committed)


def answer_before_it_is_done(stack: ExitStack) -> None:
    """An operator gets the answer before the commit."""

    original = ReactorWorker._commit

    async def commit(self: ReactorWorker) -> None:
        last, self._pending._last = self._pending._last, ()
        for effect in last:
            self._perform(effect)
        await original(self)

    _replace(stack, ReactorWorker, "_commit", commit)


def accept_a_stale_list_of_segments(stack: ExitStack) -> None:
    """A reader that has seen enough segments does not check their epochs."""
    original = LogReader._list

    def list_(self: LogReader, at: LogHead) -> Any:
        if self._valid and self._valid[-1].seq >= at.last_seq:
            return self._valid
        return original(self, at)

    _replace(stack, LogReader, "_list", list_)


def resume_inside_a_transaction(stack: ExitStack) -> None:
    """A new log writer continues after the last segment instead of after the last complete transaction."""

    def new_era(old: LogHead, capture: CaptureId) -> LogHead:
        era = Era(epoch=old.epoch + 1, first_seq=old.last_seq + 1)
        return old.with_(epoch=old.epoch + 1, writer=capture, eras=(*old.eras, era))

    _replace(stack, head, "_new_era", new_era)


def forget_the_from_ts_check(stack: ExitStack) -> None:
    """The sink accepts any write."""

    def commit(self: Sink, span: Any, from_ts: Any, to_ts: Any, rows: Any, writer: str) -> None:
        self.apply(span, from_ts, to_ts, rows, writer)

    _replace(stack, Sink, "commit", commit)


def outlive_the_lease(stack: ExitStack) -> None:
    """A capture that hears nothing of its lease considers it valid for longer than etcd does."""

    def is_done(self: Session) -> bool:
        return self._done.is_set() or anyio.current_time() >= self._deadline + _TOO_LONG_S

    async def ask(self: Session) -> None:
        with anyio.move_on_after(1.0):
            self._ttl_s = await self._client.keep_alive(self.lease)
            self._deadline = anyio.current_time() + self._ttl_s

    _replace(stack, Session, "is_done", property(is_done))
    _replace(stack, Session, "_ask", ask)
    _replace(stack, Session, "_remaining_s", property(lambda self: 0.2))


def state_a_checkpoint_of_some_spans(stack: ExitStack) -> None:
    """A table without a span does not hold the checkpoint back."""
    _replace(stack, Coordinator, "lowest", property(lambda self: self.span_index.lowest))


def write_past_the_barrier(stack: ExitStack) -> None:
    """A flush ignores the barrier."""
    _replace(stack, FlushLimits, "target", lambda self, table_id: self.head.resolved_ts)


def remove_segments_that_are_needed(stack: ExitStack) -> None:
    """Retention looks at the clock only."""
    original = retention.plan

    def plan(at: Any, entries: Any, needs: Any, **kwargs: Any) -> Any:
        return original(at, entries, replace(needs, checkpoint_ts=MAX_TS), **kwargs)

    _replace(stack, retention, "plan", plan)


def give_a_second_life_the_epochs_of_the_first(stack: ExitStack) -> None:
    """A changefeed that is created again under its old name begins at epoch 1 again; that is frequent here."""
    _replace(stack, operator, "_REPLACED", 0.5)
    original = ClusterService._check_absent

    async def check_absent(self: ClusterService, *args: Any) -> int:
        await original(self, *args)
        return 1

    _replace(stack, ClusterService, "_check_absent", check_absent)


def give_a_second_life_the_log_of_the_first(stack: ExitStack) -> None:
    """Segments of a removed changefeed carry epochs that are reused."""
    original = LogWriter.__init__

    def init(self: LogWriter, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs | {"epoch_floor": 0})

    _replace(stack, LogWriter, "__init__", init)


def record_a_sync_point_that_slipped(stack: ExitStack) -> None:
    """What the sink's readers see is taken for the state at the hold."""
    original = SyncPoints.handle_answer

    def handle_answer(self: SyncPoints, answer: Answered[Any]) -> None:
        if isinstance(answer.question, ReadPositions) and answer.answer:
            answer = replace(answer, answer=tuple(replace(table, committed_ts=Ts(0)) for table in answer.answer))
        original(self, answer)

    _replace(stack, SyncPoints, "handle_answer", handle_answer)


def repartition_before_the_sink_has(stack: ExitStack) -> None:
    """A table's new spans begin when the old ones have stopped, whatever the sink records."""

    def await_sink(
        self: Repartitions, facts: Any, table: Any, partitioning: TablePartitioning, under_way: Any, now: float
    ) -> Any:
        return self._settle(facts, partitioning, under_way, under_way.ts)

    _replace(stack, Repartitions, "_await_sink", await_sink)


def cut_ahead_of_the_spans(stack: ExitStack) -> None:
    """A table is repartitioned at the log's position, wherever its spans have stopped."""
    original = Repartitions._await_stop

    def await_stop(self: Repartitions, facts: Any, partitioning: TablePartitioning, sets: Any) -> Any:
        self.holds[partitioning.table_id] = max(self.holds[partitioning.table_id], facts.head.resolved_ts)
        return original(self, facts, partitioning, sets)

    _replace(stack, Repartitions, "_await_stop", await_stop)
    _replace(stack, Operator, "_resync", Operator._repartition)


def forget_what_holds_a_table(stack: ExitStack) -> None:
    """A capture waits for the owner's notice of a schema change, which arrives after the log's head."""
    _replace(stack, processor, "held_tables", lambda _: {})


def alter_before_the_spans_are_there(stack: ExitStack) -> None:
    """The sink applies a schema change as soon as it is found."""
    _replace(stack, ddl, "_is_there", lambda *_: True)


def let_a_checkpoint_pass_a_schema_change(stack: ExitStack) -> None:
    """The owner considers a schema change done that the sink has not applied."""

    def tick(self: SchemaChanges, facts: Any, spans: Any, now: float) -> Any:
        pending = [record for record in facts.ddl.values() if record.pending_ids]
        return [self._done(facts, record.with_(changes=record.alterations)) for record in pending]

    _replace(stack, SchemaChanges, "tick", tick)


def compare_what_was_not_held(stack: ExitStack) -> None:
    """Source and sink are compared at different positions."""

    async def wherever(operations: Any, changefeed: Any, _: Any, tables: Any) -> Any:
        await arrival.running(operations, changefeed)
        return tables

    async def reach(*_: Any) -> dict[int, Any]:
        return {}

    async def ask(self: ClusterService, job: Any) -> Any:
        if isinstance(job, jobs.HoldAt):
            self.held_ts = job.ts  # type: ignore[attr-defined]
            return job.ts
        answer = await original_ask(self, job)
        return getattr(self, "held_ts", answer) if isinstance(job, jobs.Release) else answer

    original_ask = ClusterService.ask
    _replace(stack, ClusterService, "ask", ask)
    _replace(stack, arrival, "reach", reach)
    _replace(stack, diff, "_at", wherever)


def start_a_held_table_at_the_checkpoint(stack: ExitStack) -> None:
    """The spans of a retried table start at the other tables' checkpoint."""
    _replace(stack, Facts, "catching_up", property(lambda self: dict.fromkeys(_tried(self), self.status.checkpoint_ts)))


def let_a_held_table_flow_at_once(stack: ExitStack) -> None:
    """A retried table counts as caught up at once."""

    def catch_up(self: HeldTables, facts: Any, status: Any, spans: Any, verdict: Any, now: float) -> None:
        for id in _tried(facts):
            self._change(verdict, Trigger.CAUGHT_UP, facts.held[id], None)

    _replace(stack, HeldTables, "catch_up", catch_up)


def keep_no_log_for_held_tables(stack: ExitStack) -> None:
    """Retention looks at the checkpoint only, which ignores held tables."""
    original = retention.plan

    def plan(at: Any, entries: Any, needs: Any, **kwargs: Any) -> Any:
        return original(at, entries, replace(needs, held_ts=MAX_TS), **kwargs)

    _replace(stack, retention, "plan", plan)


def put_a_copy_in_place_twice(stack: ExitStack) -> None:
    """The sink applies a copy whenever it is asked to, even one that it has applied before."""

    def replace_(self: Sink, copied: TableRecord, spans: Sequence[TableSpan], number: int) -> None:
        table = self.tables[copied.table_id]
        table.rows = [
            event.number
            for event in self._upstream.between(Ts(0), copied.start_ts)
            if event.table_id == copied.table_id
        ]
        table.records = dict.fromkeys(spans, copied.start_ts)

    _replace(stack, Sink, "replace", replace_)
    _resync_often(stack)


def let_a_copy_win_over_later_changes(stack: ExitStack) -> None:
    """A copy counts as read at the log's end, though its chunks are older: changes between them are never written."""
    original = Sink.put

    def put(self: Sink, table_id: int, ts: Ts, spans: Sequence[TableSpan], number: int) -> None:
        original(self, table_id, ts, spans, number)
        table = self.tables[table_id]
        table.records = dict.fromkeys(spans, self._upstream.position)

    async def copy_table(self: data_plane.SimulatedMemberDataPlane, *args: Any) -> Any:
        copied = await copied_before(self, *args)
        await anyio.sleep(2.0)
        return copied

    copied_before = data_plane.SimulatedMemberDataPlane._copy_table
    _replace(stack, data_plane.SimulatedMemberDataPlane, "_copy_table", copy_table)
    _replace(stack, Sink, "put", put)
    _resync_often(stack)


def drop_the_log_of_a_table_that_is_copied(stack: ExitStack) -> None:
    """Retention ignores tables being copied again, and their copies' positions. Copying takes long here."""
    original = data_plane.SimulatedMemberDataPlane._copy_table

    async def copy_table(self: data_plane.SimulatedMemberDataPlane, *args: Any) -> Any:
        copied = await original(self, *args)
        await anyio.sleep(20.0)
        return copied

    _replace(stack, data_plane.SimulatedMemberDataPlane, "_copy_table", copy_table)

    def kept(held: Iterable[HeldTable]) -> Ts:
        return needed_ts(table for table in held if table.error.code != RESYNC)

    _replace(stack, data_plane, "needed_ts", kept)
    _replace(stack, data_plane, "copied_ts", lambda resyncs: MAX_TS)
    _resync_often(stack)


def copy_a_table_that_is_written(stack: ExitStack) -> None:
    """A copy replaces a table whose spans are still written."""
    _replace(stack, TableResync, "holds_table", property(lambda self: False))

    def await_stop(self: Resyncs, facts: Any, resync: TableResync, sets: Any) -> Any:
        after = resync.with_(stage=ResyncStage.COPYING, floor_ts=facts.head.resolved_ts)
        return self._enter(facts, resync, after, "whoever writes it")

    def put(self: Sink, table_id: int, ts: Ts, spans: Sequence[TableSpan], number: int) -> None:
        table = self.tables[table_id]
        table.rows = [event.number for event in self._upstream.between(Ts(0), ts) if event.table_id == table_id]
        table.records = dict.fromkeys(table.records, ts)
        table.placed_ts = ts

    _replace(stack, Resyncs, "_await_stop", await_stop)
    _replace(stack, Sink, "put", put)
    _resync_often(stack)


def continue_behind_a_lost_position(stack: ExitStack) -> None:
    """Tables are written on from a new position, as if nothing lay between."""

    def begun_again(old: LogHead, start_ts: Ts, *, position: str) -> LogHead:
        return head.begun_again(old, start_ts, position=position).with_(removed_ts=old.removed_ts)

    _replace(stack, operator, "_LOSSES", 0.3)
    _replace(stack, records, "begun_again", begun_again)
    _replace(stack, Facts, "lost", frozenset())
    _replace(stack, Feed, "is_lost", False)


def write_a_table_without_the_rows_that_it_came_with(stack: ExitStack) -> None:
    """A filter that is changed, or a name, loses what was there before."""
    changed = moves.changed

    def forget(unit: Any, record: DdlRecord) -> Any:
        found = changed(unit, record)
        return found.with_(tables=tuple(table.with_(to_copy=False) for table in found.tables))

    _replace(stack, moves, "changed", forget)


def remove_parts_that_are_being_written(stack: ExitStack) -> None:
    """The owner removes parts that no pointer names at once, and writers do not notice it."""

    async def write_early(self: ReactorWorker, of: Any) -> list[Any]:
        for puts in of.early:
            await self._client.txn(self._fences, puts)
            await anyio.sleep(0.3)
        return []

    _replace(stack, ReactorWorker, "_write_early", write_early)
    _replace(stack, stored_values, "LEFT_FOR_S", 0.0)
    _replace(stack, run, "_limits", lambda random: Limits(whole=100, part=60, group=300, together=0))


def name_parts_before_they_are_there(stack: ExitStack) -> None:
    """A pointer is written in front of its parts."""

    async def ask(self: ReactorWorker, planned: Any) -> Any:
        result = await self._client.txn(planned.txn.compares, planned.txn.operations)
        await self._write_early(planned.txn)
        return result

    _replace(stack, ReactorWorker, "_ask", ask)
    _replace(stack, run, "_limits", lambda random: Limits(whole=100, part=60, group=300, together=0))


def _resync_often(stack: ExitStack) -> None:
    """Operators request resyncs most of the time."""
    _replace(stack, Operator, "_repartition", Operator._resync)
    _replace(stack, Operator, "_hold", Operator._resync)
    _replace(stack, Operator, "_move_table", Operator._resync)


def forget_a_span_in_one_place_only(stack: ExitStack) -> None:
    """A removed span still counts among the positions."""
    _replace(stack, LowestPosition, "remove", lambda self, ts, many=1: None)


def begin_again_under_the_same_epoch(stack: ExitStack) -> None:
    """After a crash, the new owner part accepts captures' reports that contain only changes since the last one. Such
    crashes, and links that delay the first whole report, are frequent here."""
    _replace(stack, run, "_CRASHING_SHARE", 1.1)
    _replace(stack, crashes, "_PACE_S", 1.0)
    _replace(stack, faults, "_SLOW_SHARES", (1.0,))
    _replace(stack, crashes, "_ASYNC", ())
    _replace(stack, crashes, "_PLAIN", ((Changefeed, "tick", "owner"),))
    _replace(stack, Crashes, "hold_back", lambda self, feed, now: [])


def _tried(facts: Any) -> list[int]:
    return [id for id, held in facts.held.items() if held.stage is HoldStage.TRIED]


#: name → how to plant it
PLANTED: dict[str, Callable[[ExitStack], None]] = planted_owners.PLANTED | {
    plant.__name__.replace("_", " "): plant
    for plant in (
        promote_early,
        take_stopping_for_stopped,
        ignore_the_logs_epoch,
        ignore_the_units_epoch,
        skip_the_barrier_revision,
        lose_a_patch_on_overflow,
        answer_before_it_is_done,
        accept_a_stale_list_of_segments,
        resume_inside_a_transaction,
        forget_the_from_ts_check,
        outlive_the_lease,
        state_a_checkpoint_of_some_spans,
        write_past_the_barrier,
        remove_segments_that_are_needed,
        give_a_second_life_the_epochs_of_the_first,
        give_a_second_life_the_log_of_the_first,
        record_a_sync_point_that_slipped,
        repartition_before_the_sink_has,
        cut_ahead_of_the_spans,
        compare_what_was_not_held,
        forget_what_holds_a_table,
        alter_before_the_spans_are_there,
        let_a_checkpoint_pass_a_schema_change,
        start_a_held_table_at_the_checkpoint,
        let_a_held_table_flow_at_once,
        keep_no_log_for_held_tables,
        begin_again_under_the_same_epoch,
        forget_a_span_in_one_place_only,
        put_a_copy_in_place_twice,
        drop_the_log_of_a_table_that_is_copied,
        let_a_copy_win_over_later_changes,
        copy_a_table_that_is_written,
        continue_behind_a_lost_position,
        write_a_table_without_the_rows_that_it_came_with,
        remove_parts_that_are_being_written,
        name_parts_before_they_are_there,
    )
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant one bug: without other crashes, unless the bug is about crashes."""
    with ExitStack() as stack:
        _replace(stack, run, "_CRASHING_SHARE", 0.0)
        PLANTED[name](stack)
        yield


def first_that_finds(name: str, seeds: Iterable[int]) -> Outcome | None:
    """Return the first run that finds a violation with the bug planted."""
    with planted(name):
        return next((outcome for outcome in map(simulate, seeds) if outcome.violations), None)
