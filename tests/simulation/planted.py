"""Bugs on purpose, one at a time: what the simulation must find, to show that it bites.

Each is the absence of one safeguard. They are planted by replacing a method while a seed runs, so the code that ships
knows nothing of them.
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
from agent.log.head import EtcdHeadStore, LogWriter
from agent.log.reader import LogReader
from agent.units.records import UnitRecords
from capture.member import arrival, diff
from capture.member.cluster_service import ClusterService
from owner import jobs
from owner.feed.changefeed import Changefeed
from owner.feed.crashes import Crashes
from owner.feed.held import HeldTables
from owner.feed.hold_stages import Trigger
from owner.feed.sync_points import SyncPoints
from owner.progress.facts import Facts
from owner.questions import ReadPositions
from owner.scheduler import replication
from owner.scheduler.coordinator import Coordinator
from owner.scheduler.lowest import Lowest
from owner.scheduler.replication import ReplicationSet, Role
from owner.tables import schema_changes as ddl
from owner.tables.repartition import Repartitions
from owner.tables.schema_changes import SchemaChanges
from reactor import txn
from reactor.ids import MAX_TS, CaptureId, Ts
from reactor.membership.session import Session
from reactor.messages import SpanState
from reactor.pending import Pending
from reactor.questions import Answered
from reactor.records.changefeed import DdlRecord, Era, LogHead
from reactor.records.held import HoldStage
from reactor.records.partitioning import TablePartitioning
from reactor.watch import WatchCursor
from reactor.worker import EtcdWorker
from tests.simulation import crashes, run
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
    """Whoever was the log's writer goes on writing its head."""

    async def swap(self: EtcdHeadStore, new: LogHead, *, revision: int, ddl: Sequence[DdlRecord] = ()) -> int | None:
        return await self._client.put(self._key, new.encode())

    _replace(stack, EtcdHeadStore, "swap", swap)


def ignore_the_units_epoch(stack: ExitStack) -> None:
    """A unit that was replaced still writes its record."""

    async def write(self: UnitRecords, record: Any) -> None:
        await self._client.put(self._key, record.encode())

    _replace(stack, UnitRecords, "write", write)


def skip_the_barrier_revision(stack: ExitStack) -> None:
    """Ticks do not wait until the watch has brought back the last commit."""
    _replace(stack, WatchCursor, "is_caught_up", property(lambda self: True))


def lose_a_patch_on_overflow(stack: ExitStack) -> None:
    """What did not fit into the first transaction of a tick is forgotten."""
    original = txn._Packer._fits

    def fits(self: Any, writes: Any, compared: Any) -> bool:
        return not self._writes and original(self, writes, compared)

    def committed(self: Pending, planned: Any) -> None:
        self._groups, self._doubt = (), None

    _replace(stack, txn._Packer, "_fits", fits)
    _replace(stack, Pending, "committed", committed)


def answer_before_it_is_done(stack: ExitStack) -> None:
    """An operator gets the answer before the commit."""

    original = EtcdWorker._commit

    async def commit(self: EtcdWorker) -> None:
        last, self._pending._last = self._pending._last, ()
        for effect in last:
            self._perform(effect)
        await original(self)

    _replace(stack, EtcdWorker, "_commit", commit)


def accept_a_stale_list_of_segments(stack: ExitStack) -> None:
    """A reader that has seen enough segments does not ask whose they are."""
    original = LogReader._list

    def list_(self: LogReader, at: LogHead) -> Any:
        if self._valid and self._valid[-1].seq >= at.last_seq:
            return self._valid
        return original(self, at)

    _replace(stack, LogReader, "_list", list_)


def resume_inside_a_transaction(stack: ExitStack) -> None:
    """A new writer of the log goes on behind the last segment instead of behind the last whole transaction."""

    def new_era(old: LogHead, capture: CaptureId) -> LogHead:
        era = Era(epoch=old.epoch + 1, first_seq=old.last_seq + 1)
        return old.with_(epoch=old.epoch + 1, writer=capture, eras=(*old.eras, era))

    _replace(stack, head, "_new_era", new_era)


def forget_the_from_ts_check(stack: ExitStack) -> None:
    """The sink takes whatever it is given."""

    def commit(self: Sink, span: Any, from_ts: Any, to_ts: Any, rows: Any, writer: str) -> None:
        self.apply(span, from_ts, to_ts, rows, writer)

    _replace(stack, Sink, "commit", commit)


def outlive_the_lease(stack: ExitStack) -> None:
    """A capture that hears nothing of its lease believes in it for longer than etcd does."""

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
    """A table without a span holds nothing back."""
    _replace(stack, Coordinator, "lowest", property(lambda self: self.span_index.lowest))


def write_past_the_barrier(stack: ExitStack) -> None:
    """A flush goes as far as the log does."""
    _replace(stack, FlushLimits, "target", lambda self, table_id: self.head.resolved_ts)


def remove_segments_that_are_needed(stack: ExitStack) -> None:
    """Retention looks at the clock only."""
    original = retention.plan

    def plan(at: Any, entries: Any, needs: Any, **kwargs: Any) -> Any:
        return original(at, entries, replace(needs, checkpoint_ts=MAX_TS), **kwargs)

    _replace(stack, retention, "plan", plan)


def give_a_second_life_the_epochs_of_the_first(stack: ExitStack) -> None:
    """A changefeed that is created anew under its old name begins at epoch 1 again."""
    original = ClusterService._check_absent

    async def check_absent(self: ClusterService, *args: Any) -> int:
        await original(self, *args)
        return 1

    _replace(stack, ClusterService, "_check_absent", check_absent)


def give_a_second_life_the_log_of_the_first(stack: ExitStack) -> None:
    """Segments of a changefeed that was removed carry epochs that come again."""
    original = LogWriter.__init__

    def init(self: LogWriter, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs | {"epoch_floor": 0})

    _replace(stack, LogWriter, "__init__", init)


def record_a_sync_point_that_slipped(stack: ExitStack) -> None:
    """What the sink's readers see is taken for what stood at the hold."""
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
    """A table is repartitioned where its log is, wherever its spans have stopped."""
    original = Repartitions._await_stop

    def await_stop(self: Repartitions, facts: Any, partitioning: TablePartitioning, sets: Any) -> Any:
        self.holds[partitioning.table_id] = max(self.holds[partitioning.table_id], facts.head.resolved_ts)
        return original(self, facts, partitioning, sets)

    _replace(stack, Repartitions, "_await_stop", await_stop)


def forget_what_holds_a_table(stack: ExitStack) -> None:
    """A capture waits for the owner's word on a schema change, which comes later than the log's head."""
    _replace(stack, processor, "held_tables", lambda _: {})


def alter_before_the_spans_are_there(stack: ExitStack) -> None:
    """The sink follows a schema change as soon as it is found."""
    _replace(stack, ddl, "_are_there", lambda *_: True)


def let_a_checkpoint_pass_a_schema_change(stack: ExitStack) -> None:
    """The owner takes a schema change for done that the sink has not followed."""

    def tick(self: SchemaChanges, facts: Any, spans: Any, now: float) -> Any:
        pending = [record for record in facts.ddl.values() if record.pending_ids]
        return [self._done(facts, record.with_(changes=record.alterations)) for record in pending]

    _replace(stack, SchemaChanges, "tick", tick)


def compare_what_was_not_held(stack: ExitStack) -> None:
    """Source and sink are compared wherever they are."""

    async def stand_at(operations: Any, changefeed: Any, *_: Any) -> bool:
        await arrival.running(operations, changefeed)
        return True

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
    _replace(stack, diff, "_stand_at", stand_at)


def start_a_held_table_at_the_checkpoint(stack: ExitStack) -> None:
    """The spans of a table that is tried again start where the others are."""
    _replace(stack, Facts, "stragglers", property(lambda self: dict.fromkeys(_tried(self), self.status.checkpoint_ts)))


def let_a_held_table_flow_at_once(stack: ExitStack) -> None:
    """A table that is tried again counts as caught up, wherever it is."""

    def catch_up(self: HeldTables, facts: Any, status: Any, spans: Any, verdict: Any, now: float) -> None:
        for id in _tried(facts):
            self._change(verdict, Trigger.CAUGHT_UP, facts.held[id], None)

    _replace(stack, HeldTables, "catch_up", catch_up)


def keep_no_log_for_held_tables(stack: ExitStack) -> None:
    """Retention looks at the checkpoint only, which leaves held tables out."""
    original = retention.plan

    def plan(at: Any, entries: Any, needs: Any, **kwargs: Any) -> Any:
        return original(at, entries, replace(needs, held_ts=MAX_TS), **kwargs)

    _replace(stack, retention, "plan", plan)


def forget_a_span_in_one_place_only(stack: ExitStack) -> None:
    """A span that nobody has any more is still counted among the positions."""
    _replace(stack, Lowest, "remove", lambda self, ts, many=1: None)


def begin_again_under_the_same_epoch(stack: ExitStack) -> None:
    """The owner's part that comes after a crash hears captures that report only what has changed since. Such crashes
    are made to come often."""
    _replace(stack, run, "_CRASHING_SHARE", 1.1)
    _replace(stack, crashes, "_PACE_S", 1.0)
    _replace(stack, crashes, "_ASYNC", ())
    _replace(stack, crashes, "_PLAIN", ((Changefeed, "tick", "owner"),))
    _replace(stack, Crashes, "hold_back", lambda self, feed, now: [])


def _tried(facts: Any) -> list[int]:
    return [id for id, held in facts.held.items() if held.stage is HoldStage.TRIED]


#: name → how to plant it
PLANTED: dict[str, Callable[[ExitStack], None]] = {
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
    )
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """One bug at a time: no crashes beside it, but where the bug is about crashes."""
    with ExitStack() as stack:
        _replace(stack, run, "_CRASHING_SHARE", 0.0)
        PLANTED[name](stack)
        yield


def first_that_finds(name: str, seeds: Iterable[int]) -> Outcome | None:
    """The first run that has a violation with the bug in it."""
    with planted(name):
        return next((outcome for outcome in map(simulate, seeds) if outcome.violations), None)
