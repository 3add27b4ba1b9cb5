"""Simulated runtime: what a processor works with, ``agent.control.runtime.SpanRuntime`` over ``outside``.

Only I/O is replaced. The log's head, the unit records, the segment reader, the flush plan and retention are real.
"Threads" are tasks of the machine that a cancellation abandons, like real ones; a request to the sink or to storage is
applied even if the machine that sent it is dead by then.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, TypeVar

import anyio

from agent.control.effects import StartUnit
from agent.control.runtime import NOBODY, Flushed, FlushLimits, Progress, SpanFlushed, SpanPosition, Together, UnitState
from agent.errors import JobError, SinkConfigError, SinkFencedError, SourceUnreachableError
from agent.feeds.attempts import Attempts
from agent.flush import job
from agent.flush.plan import plan_flush
from agent.log import retention
from agent.log.head import LogWriter
from agent.log.head_store import MetaHeadStore
from agent.log.quiet import QuietMoves
from agent.log.segment import SegmentName
from agent.ports.sink import FeedContext, FlushResult, FlushTask
from agent.ports.source import Position
from agent.rows.batches import SegmentRef
from agent.units import renewal
from agent.units.records import UnitRecords
from reactor import keys
from reactor.errors import WeirError
from reactor.ids import CaptureId, TableSpan, Ts
from reactor.records.changefeed import ChangefeedInfo, SinkMode, Unit, UnitRecord, UnitStage
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord
from reactor.store.port import Compare, MetaStore
from tests.simulation.outside import RowEvent, Segment, Sink, Storage, StorageReader, Upstream

if TYPE_CHECKING:
    from tests.simulation.node import Node

T = TypeVar("T")

_RETENTION_CHECK_S = 4.0
_SEGMENT_EVENTS_MAX = 6
_RESTART_S = 2.0


class SimulatedParts:
    """The parts of one changefeed on one capture."""

    def __init__(
        self,
        node: "Node",
        info: ChangefeedInfo,
        *,
        capture: CaptureId,
        client: MetaStore,
        guard: Compare,
        member: Compare,
        trials: anyio.Lock,
        checkpoint: Callable[[], Ts],
        held: Callable[[], Ts],
        quiet: QuietMoves,
    ) -> None:
        self._node = node
        self._info = info
        self._capture = capture
        self._client = client
        self._quiet_moves = quiet
        self._checkpoint = checkpoint
        self._held = held
        self._guard = guard
        key = keys.AttemptKey(node.world.cluster, info.namespace, info.id, capture)
        self._attempts = Attempts(client, key, (guard, member), trials=trials, clock=node.world.loop.time)
        outside = node.world.outside
        self._upstream: Upstream = outside.upstreams[info.source.sealed]
        self._sink: Sink = outside.sinks[info.sink.sealed]
        self._storage: Storage = outside.storage(info.id)
        self._reader = StorageReader(self._storage)
        self._quiet = job.QuietSpans()
        self._random: Random = node.world.chance("parts", node.name, capture, info.id, info.epoch)

    async def open_span(self, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        recorded = await self._node.in_thread(self._committed_ts(span))
        return SpanPosition(span, table, recorded, max(recorded, checkpoint_ts))

    async def flush(
        self, positions: Sequence[SpanPosition], limits: FlushLimits, together: Together = NOBODY
    ) -> Flushed:
        self._node.world.checks.look()
        is_trial = not together and limits.is_trial(at.table.table_id for at in positions)
        async with self._attempts.under_way(is_trial=is_trial):
            flushed = await self._node.in_thread(self._flush(positions, limits, together))
        spans = [await self._reread_position(span) if _is_fenced(span) else span for span in flushed.spans]
        return replace(flushed, spans=tuple(spans))

    async def run_unit(self, order: StartUnit, on_progress: Progress) -> None:
        match order.unit:
            case Unit.DUMP:
                await self._dump(order, on_progress)
            case Unit.LOAD:
                await self._load(order)
            case Unit.SYNC:
                await self._sync(order)

    async def close(self) -> None:
        await self._attempts.close()

    # Spans

    async def _committed_ts(self, span: TableSpan) -> Ts:
        recorded = await self._ask(lambda: self._sink.committed_ts(span))
        if recorded is None:
            raise SinkConfigError(f"the sink has no record of {span}")
        return recorded

    async def _flush(self, positions: Sequence[SpanPosition], limits: FlushLimits, together: Together) -> Flushed:
        await self._take_time()
        segments: Sequence[SegmentRef] = ()
        if wanted := self._quiet.range(positions, together, limits):
            from_ts, to_ts, known_ts = wanted
            segments = self._reader.segments(limits.head, from_ts, to_ts, known_ts=known_ts)
        positions = [*positions, *self._quiet.woken(together, segments)]
        plan = plan_flush(positions, segments, limits, feed=FeedContext(self._info.id, "", SinkMode.UPSERT))
        self._quiet.note(plan.quiet)
        work = [(task, self._rows(task)) for task in plan.tasks]
        tables = frozenset(task.table.table_id for task in plan.tasks)
        await self._attempts.begin(tables, limits.is_trial(tables))
        await anyio.sleep(self._node.world.weather.flush_s(self._random))
        if any(rows and task.table.table_id in self._sink.poisoned for task, rows in work):
            await self._end_process()
        results = [await self._write(task, rows) for task, rows in work]
        return Flushed(job.outcomes(plan, results, limits), plan.is_behind, limits.highest_ts)

    async def _end_process(self) -> None:
        """End the process, as the kernel does when memory runs out; its supervisor restarts it."""
        node = self._node
        self._sink.ended += 1
        node.world.note(f"{node.name} is ended by what it writes")
        node.world.later(0.0, lambda: node.kill(quietly=False))
        node.world.later(_RESTART_S, node.start)
        await anyio.sleep_forever()

    def _rows(self, task: FlushTask) -> list[RowEvent]:
        """Return what a task finds in its segments."""
        events = (event for segment in task.segments for event in self._storage.read(segment.path))
        return [event for event in events if task.from_ts < event.ts <= task.to_ts and event.is_of(task.span)]

    async def _write(self, task: FlushTask, rows: list[RowEvent]) -> FlushResult:
        writer = f"{self._capture[:6]}@{self._node.name}"
        try:
            if rows:
                await self._ask(lambda: self._commit(task, rows, writer))
        except WeirError as error:
            reported = {
                "error": str(error),
                "error_code": error.code,
                "retryable": error.retryable,
                "scope": error.scope,
            }
            return FlushResult(task.span, task.from_ts, task.to_ts, **reported)  # type: ignore[arg-type]
        return FlushResult(task.span, task.from_ts, task.to_ts, committed=bool(rows), rows=len(rows))

    def _commit(self, task: FlushTask, rows: list[RowEvent], writer: str) -> None:
        """Commit in one instant; concurrent writers compete here."""
        self._node.world.checks.look()
        self._sink.commit(task.span, task.from_ts, task.to_ts, rows, writer)

    async def _reread_position(self, span: SpanFlushed) -> SpanFlushed:
        """Like ``agent.feeds.runtime``."""
        before = span.position
        try:
            position = await self.open_span(before.table, before.span, before.checkpoint_ts)
        except SinkFencedError:
            return span
        return SpanFlushed(position) if position.committed_ts > before.committed_ts else span

    # Units

    def _records(self, source: str) -> UnitRecords:
        info = self._info
        key = keys.UnitKey(self._node.world.cluster, info.namespace, info.id, source)
        return UnitRecords(self._client, key, guard=self._guard)

    async def _dump(self, order: StartUnit, on_progress: Progress) -> None:
        records = self._records(order.source)
        running = UnitRecord(unit=Unit.DUMP, stage=UnitStage.RUNNING, epoch=order.epoch, worker=self._capture)
        await records.write(running)
        start_ts = await self._node.in_thread(self._ask_source(self._upstream.open_slot))
        for done in range(3):
            await anyio.sleep(self._random.random() * self._node.world.weather.dump_s)
            on_progress(UnitState(done, 3))
        tables = self._tables_at(start_ts)
        await records.write(running.with_(stage=UnitStage.FINISHED, tables=tables, start_ts=start_ts))

    async def _load(self, order: StartUnit) -> None:
        records = self._records(order.source)
        dumped = await records.require()
        running = dumped.with_(unit=Unit.LOAD, stage=UnitStage.RUNNING, epoch=order.epoch, worker=self._capture)
        await records.write(running)
        await self._load_tables(running.tables)
        await records.write(running.with_(stage=UnitStage.FINISHED))

    async def _load_tables(self, tables: Sequence[TableRecord]) -> None:
        for table in tables:
            await self._node.in_thread(self._ask(partial(self._sink.load, table.table_id, table.start_ts)))

    async def _sync(self, order: StartUnit) -> None:
        records = self._records(order.source)
        before = await records.read() or await self._begin_without_dump(order)
        running = before.with_(unit=Unit.SYNC, stage=UnitStage.RUNNING, epoch=order.epoch, worker=self._capture)
        await records.write(running)
        log_key = keys.LogKey(self._node.world.cluster, self._info.namespace, self._info.id, order.source)
        if running.needs_position:
            start = Position(await self._node.in_thread(self._ask_source(self._upstream.open_slot_again)))
            tables = renewal.tables_now(running.tables, self._upstream.inside(start.ts))
            running = renewal.begun_again(running.with_(tables=tables), start)
            await records.renew(running, log_key, start)
        store = MetaHeadStore(self._client, log_key, guard=self._guard, quiet=self._quiet_moves)
        writer = LogWriter(store, capture=self._capture, epoch_floor=self._guard.revision)
        await writer.take_over(running.start_ts)
        while True:
            try:
                await self._session(writer)
            except SourceUnreachableError:
                await anyio.sleep(0.25)
            await writer.renew()

    def _tables_at(self, start_ts: Ts) -> tuple[TableRecord, ...]:
        return tuple(
            table.with_(start_ts=start_ts, consistent_ts=start_ts) for table in self._upstream.inside(start_ts)
        )

    async def _begin_without_dump(self, order: StartUnit) -> UnitRecord:
        start_ts = await self._node.in_thread(self._ask_source(self._upstream.open_slot))
        tables = self._tables_at(start_ts)
        await self._load_tables(tables)
        running = UnitStage.RUNNING
        return UnitRecord(unit=Unit.SYNC, stage=running, epoch=order.epoch, tables=tables, start_ts=start_ts)

    async def _session(self, writer: LogWriter) -> None:
        """Run one connection to the source, from where the log is complete.

        :raises SourceUnreachableError: it broke.
        """
        me = self._upstream.reader = object()  # the server ends the previous reader
        try:
            await self._stream(writer, me)
        finally:
            if self._upstream.reader is me:
                self._upstream.reader = None

    async def _stream(self, writer: LogWriter, me: object) -> None:
        read = writer.head.resolved_ts
        self._upstream.refuse_lost(read)
        look_at = anyio.current_time() + _RETENTION_CHECK_S
        while self._upstream.reader is me:
            news, position = self._upstream.news, self._upstream.position
            waiting = self._upstream.between(read, position)
            if waiting:
                for cut, is_complete in self._cuts(waiting):
                    await self._append(writer, cut, is_complete=is_complete)
                    read = cut[-1].ts
                    if not is_complete:
                        self._break_sometimes()
            else:
                await writer.advance(position, resolved_time=self._node.world.now)
            self._break_sometimes()
            if anyio.current_time() >= look_at:
                await self._remove_old(writer)
                look_at = anyio.current_time() + _RETENTION_CHECK_S
            with anyio.move_on_after(1.0):
                await news.wait()
            await anyio.sleep(0.2)
        raise SourceUnreachableError("another reader has taken the slot")

    def _break_sometimes(self) -> None:
        if self._node.world.weather.breaks(self._random):
            raise SourceUnreachableError("the connection to the source broke")

    def _cuts(self, events: list[RowEvent]) -> list[tuple[list[RowEvent], bool]]:
        """Divide events into segments; a transaction may span several."""
        cuts: list[tuple[list[RowEvent], bool]] = []
        while events:
            count = self._random.randint(1, _SEGMENT_EVENTS_MAX)
            cut, events = events[:count], events[count:]
            cuts.append((cut, not events or events[0].ts != cut[-1].ts))
        return cuts

    async def _append(self, writer: LogWriter, events: list[RowEvent], *, is_complete: bool) -> None:
        head = writer.head
        resolved_ts = events[-1].ts if is_complete else head.resolved_ts
        name = SegmentName(head.last_seq + 1, head.epoch, events[0].ts, events[-1].ts, resolved_ts)
        segment = Segment(name, tuple(events), self._node.world.now)
        await self._node.in_thread(self._ask(lambda: self._storage.write(segment)))
        ddl = self._changes(head.resolved_ts, resolved_ts) if is_complete else ()
        await writer.append(name.ref(str(name)), is_complete=is_complete, resolved_time=self._node.world.now, ddl=ddl)

    def _changes(self, from_ts: Ts, to_ts: Ts) -> list[DdlRecord]:
        """Return the schema changes in the source's stream; no name and no key changes."""
        tables = {table.table_id: table for table in self._upstream.tables}
        changes = [
            (ts, TableChange(kind=SchemaChangeKind.ALTER, table_id=id, table=tables[id]))
            for ts, id in self._upstream.altered(from_ts, to_ts)
        ]
        for ts, table in self._upstream.arrivals(from_ts, to_ts):
            came = table.with_(start_ts=Ts(ts - 1), consistent_ts=Ts(ts - 1), to_copy=True)
            changes.append((ts, TableChange(kind=SchemaChangeKind.CREATE, table_id=table.table_id, table=came)))
        by_ts: dict[Ts, list[TableChange]] = {}
        for ts, change in sorted(changes, key=lambda found: found[0]):
            by_ts.setdefault(ts, []).append(change)
        return [DdlRecord(ts=ts, changes=tuple(found)) for ts, found in by_ts.items()]

    async def _remove_old(self, writer: LogWriter) -> None:
        entries = await self._node.in_thread(self._ask(self._storage.entries))
        config = self._info.config
        needs = retention.Needs(self._checkpoint(), config.log_retention_seconds, self._held())
        removal = retention.plan(writer.head, entries, needs, now=self._node.world.now)
        if removal.names:
            await retention.apply(removal, writer)
            await self._node.in_thread(self._ask(lambda: self._storage.remove(removal.names)))

    # Requests

    async def _take_time(self) -> None:
        await anyio.sleep(0.001 + self._random.random() * 0.01)

    async def _ask(self, request: Callable[[], T]) -> T:
        """Send a request to storage or sink. Its answer may be lost.

        :raises JobError: no answer.
        """
        weather = self._node.world.weather
        answer = await self._node.world.request(request, after_s=weather.storage_s(self._random))
        if self._random.random() < weather.lose_storage_answer:
            raise JobError("no answer from storage")
        return answer

    async def _ask_source(self, request: Callable[[], T]) -> T:
        await self._take_time()
        if self._node.world.weather.breaks(self._random):
            raise SourceUnreachableError("the source does not answer")
        return request()


def _is_fenced(span: SpanFlushed) -> bool:
    return span.error is not None and span.error.code == SinkFencedError.code
