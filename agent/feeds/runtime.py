"""Changefeed runtime: what really runs for a changefeed on one capture (sink, change log, Spark, three units).

Blocking work runs in worker threads. A thread that is abandoned by a cancellation may still finish what it was asked to
do; that is harmless: the sink's record, the log's epoch and the unit's record refuse a stale writer.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import anyio
from anyio import CapacityLimiter, from_thread, to_thread

from agent.control.effects import StartUnit
from agent.control.runtime import Flushed, FlushLimits, Progress, SpanFlushed, SpanPosition, UnitState
from agent.deadline import AbandonedError, Deadline, run_with_deadline
from agent.errors import NEW_SNAPSHOT, JobTimeoutError, SinkFencedError, SinkTimeoutError, TableForeignError
from agent.feeds.furthest import FurthestRecords
from agent.flush import job
from agent.log.head import EtcdHeadStore, LogWriter
from agent.log.reader import LogReader
from agent.log.retention import Needs
from agent.log.storage import LogDirectory
from agent.ports.executor import Executor
from agent.ports.sink import FeedContext, Sink
from agent.ports.snapshot import DumpOrder
from agent.ports.source import Identity, Position, Scope, Source, StreamOrder
from agent.sinks import open_sink
from agent.sources import open_source
from agent.units import readers
from agent.units.dump import DumpUnit
from agent.units.load import LoadUnit, create_empty
from agent.units.manifest import Manifest
from agent.units.records import UnitRecords
from agent.units.sync import SyncUnit
from reactor import keys
from reactor.errors import WeirError
from reactor.ids import MAX_TS, CaptureId, ChangefeedId, TableSpan, Ts
from reactor.records.changefeed import (
    ChangefeedConfig,
    RunningError,
    SinkMode,
    TableRecord,
    Unit,
    UnitRecord,
    UnitStage,
)
from reactor.store.port import Compare, EtcdClient, Target

T = TypeVar("T")

_WATCH_S = 1.0

#: spans of one changefeed that ask the sink at once
_OPENERS = 8


@dataclass(frozen=True, slots=True)
class Feed:
    """What a changefeed is, with URIs to connect with: never logged, never stored.

    ``created``: the etcd revision at which it came to be, which distinguishes it from others of its name.
    """

    id: ChangefeedId
    cluster: str
    namespace: str
    source_uri: str
    sink_uri: str
    sink_mode: SinkMode
    config: ChangefeedConfig
    start_ts: Ts
    log_uri: str
    created: int = 0
    incarnation: str = ""
    was_filtered: bool = False

    @property
    def _scope(self) -> Scope:
        return Scope(self.cluster, self.id, self.sink_mode, self.config, self.incarnation)

    @property
    def sink_owner(self) -> str:
        """Whose tables the sink's are: several clusters may share one."""
        return f"{self.cluster}/{self.id}"

    def open_source(self) -> Source:
        """:raises SourceConfigError: its URI cannot be opened."""
        return open_source(self.source_uri, self._scope)

    @property
    def reader(self) -> str:
        """Who reads, among all readers that the cluster has had."""
        return f"{self.namespace}/{self.id}/{self.incarnation}"

    def open_sink(self) -> Sink:
        """:raises SinkError: its URI cannot be opened."""
        return open_sink(self.sink_uri, changefeed=self.sink_owner, mode=self.sink_mode)

    @property
    def life(self) -> Compare:
        """Holds as long as this changefeed is there."""
        return Compare(str(keys.InfoKey(self.cluster, self.namespace, self.id)), Target.CREATE_REVISION, self.created)

    def log_directory(self, source: str) -> LogDirectory:
        return LogDirectory(self.log_uri, changefeed=self.id, source=source)

    def manifest(self, source: str) -> Manifest:
        return Manifest.for_source(self.log_uri, changefeed=self.id, source=source)


class ChangefeedRuntime:
    """``agent.control.runtime.SpanRuntime`` of one changefeed. ``checkpoint`` says what every span that flows has
    passed, ``held`` what every held table has."""

    def __init__(
        self,
        feed: Feed,
        *,
        capture: CaptureId,
        client: EtcdClient,
        executor: Executor,
        checkpoint: Callable[[], Ts],
        held: Callable[[], Ts] = lambda: MAX_TS,
        source: str = "main",
    ) -> None:
        self._feed = feed
        self._capture = capture
        self._client = client
        self._executor = executor
        self._checkpoint = checkpoint
        self._held = held
        self._sink = feed.open_sink()
        self._furthest = FurthestRecords((feed.sink_owner, feed.incarnation, feed.sink_uri))
        # threads of its own: a sink that never answers must not take those of other changefeeds
        self._openers = CapacityLimiter(_OPENERS)
        self._flusher = CapacityLimiter(1)
        self._asking = CapacityLimiter(1)
        self._at_once: int | None = None
        self._context = job.FlushContext(
            FeedContext(feed.sink_owner, feed.sink_uri, feed.sink_mode, feed.config.filter, feed.was_filtered),
            sink=self._sink,
            reader=LogReader(feed.log_directory(source)),
            executor=executor,
        )

    async def open_span(self, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        recorded = await self._with_deadline(lambda _: self._committed_ts(table, span), self._openers)
        if self._sink.capabilities.keeps_record:
            self._furthest.check(table, span, recorded, checkpoint_ts)
        return SpanPosition(span, table, recorded, max(recorded, checkpoint_ts))

    async def flush(self, positions: Sequence[SpanPosition], limits: FlushLimits) -> Flushed:
        def run(deadline: Deadline) -> Flushed:
            return job.flush(self._context, positions, limits, deadline=deadline, at_once=self._at_once)

        try:
            flushed = await self._with_deadline(run, self._flusher)
        except (JobTimeoutError, SinkTimeoutError):
            # what hangs once may hang again: until it does not, it holds one slot and leaves the others their own
            self._at_once = 1
            raise
        if any(span.rows for span in flushed.spans):
            self._at_once = None
        spans = [await self._look_again(span) if _is_fenced(span) else span for span in flushed.spans]
        self._furthest.note(span.position for span in spans)
        return Flushed(tuple(spans), flushed.is_behind)

    async def run_unit(self, order: StartUnit, on_progress: Progress) -> None:
        match order.unit:
            case Unit.DUMP:
                await self._dump(order, on_progress)
            case Unit.LOAD:
                await self._load(order, on_progress)
            case Unit.SYNC:
                await self._sync(order, on_progress)

    async def close(self) -> None:
        """Nothing is held between calls."""

    async def _with_deadline(self, call: Callable[[Deadline], T], limiter: CapacityLimiter) -> T:
        timeout_s = self._feed.config.flush_timeout_seconds
        try:
            return await run_with_deadline(call, timeout_s=timeout_s, limiter=limiter)
        except AbandonedError as error:
            raise SinkTimeoutError(
                f"the sink of changefeed {self._feed.id} has not answered for {timeout_s} s; see whether it hangs, or "
                "give it more time (flush-timeout-seconds); it is asked again"
            ) from error

    async def _look_again(self, span: SpanFlushed) -> SpanFlushed:
        """The sink was further than we knew: the writer before us, or a commit of ours whose answer was lost."""
        before = span.position
        try:
            position = await self.open_span(before.table, before.span, before.checkpoint_ts)
        except SinkFencedError:  # its table has other spans
            return span
        except WeirError as error:
            return replace(span, error=_running_error(error, before.table.table_id))
        return SpanFlushed(position) if position.committed_ts > before.committed_ts else span

    def _committed_ts(self, table: TableRecord, span: TableSpan) -> Ts:
        recorded = self._sink.committed_ts(table, span)
        if recorded is None and self._sink.capabilities.keeps_record:
            raise TableForeignError(
                f"the sink has no record of {table.schema_name}.{table.name}: its table was removed or replaced; "
                f"{NEW_SNAPSHOT}"
            )
        return recorded or table.start_ts

    # Units

    def _records(self, source: str) -> UnitRecords:
        key = keys.UnitKey(self._feed.cluster, self._feed.namespace, self._feed.id, source)
        return UnitRecords(self._client, key, life=self._feed.life)

    async def _asked(self, question: Callable[..., T], *arguments: Any) -> T:
        """What a source or sink says, which may be long in coming."""
        return await to_thread.run_sync(question, *arguments, abandon_on_cancel=True, limiter=self._asking)

    async def _dump(self, order: StartUnit, on_progress: Progress) -> None:
        records, source = self._records(order.source), self._feed.open_source()
        running = UnitRecord(unit=Unit.DUMP, stage=UnitStage.RUNNING, epoch=order.epoch, worker=self._capture)
        await records.write(running)
        report = await self._asked(source.discover)
        await self._asked(source.prepare, report.tables)
        feed = self._feed
        dump = DumpUnit(
            source.dumper,
            DumpOrder(
                tables=report.tables,
                sink_mode=feed.sink_mode,
                open_sink=feed.open_sink,
                epoch=order.epoch,
                chunk_rows=feed.config.dump_chunk_rows,
                filter=feed.config.filter,
            ),
            feed.manifest(order.source),
            self._executor,
            on_progress=lambda at: from_thread.run_sync(
                on_progress, UnitState(at.rows_done, at.rows_total, bytes_done=at.bytes_done)
            ),
        )
        done = await dump.run()
        await records.write(
            running.with_(
                stage=UnitStage.FINISHED,
                tables=done.tables,
                start_ts=done.start.ts,
                start_position=done.start.text,
                rows_total=done.rows_total,
                rows_done=done.rows_done,
                bytes_done=done.bytes_done,
                manifest=done.manifest,
                system_id=report.identity.system_id,
                timeline=report.identity.timeline,
            )
        )

    async def _load(self, order: StartUnit, on_progress: Progress) -> None:
        records = self._records(order.source)
        dumped = await records.read()
        assert dumped is not None, "load follows a dump, whose record it reads"
        running = dumped.with_(unit=Unit.LOAD, stage=UnitStage.RUNNING, epoch=order.epoch, worker=self._capture)
        await records.write(running)
        load = LoadUnit(
            dumped.manifest,
            self._sink,
            self._feed.config.filter,
            on_progress=lambda done, total: on_progress(UnitState(done, total)),
        )
        await load.run()
        await records.write(running.with_(stage=UnitStage.FINISHED))

    async def _sync(self, order: StartUnit, on_progress: Progress) -> None:
        records, source = self._records(order.source), self._feed.open_source()
        before = await records.read()
        if before is None:
            before = await self._begin_without_dump(order, source)
        running = before.with_(unit=Unit.SYNC, stage=UnitStage.RUNNING, epoch=order.epoch, worker=self._capture)
        await records.write(running)
        feed = self._feed
        log_key = keys.LogKey(feed.cluster, feed.namespace, feed.id, order.source)
        schemas = await to_thread.run_sync(feed.manifest(order.source).read_schemas)
        identity = Identity(running.system_id, running.timeline)
        reader = await readers.claim(self._client, feed.cluster, feed.reader) if source.numbers_readers else 0
        unit = SyncUnit(
            source.streams(StreamOrder(running.tables, identity, schemas, reader)),
            Position(running.start_ts, running.start_position),
            writer=LogWriter(
                EtcdHeadStore(self._client, log_key, life=feed.life), capture=self._capture, epoch_floor=feed.created
            ),
            directory=feed.log_directory(order.source),
            needs=self._needs,
        )
        await _run_watched(unit, on_progress)

    def _needs(self) -> Needs:
        config = self._feed.config
        return Needs(
            checkpoint_ts=self._checkpoint(),
            held_ts=self._held(),
            retention_s=config.log_retention_seconds,
            held_retention_s=config.held_retention_seconds,
            held_bytes=config.held_retention_bytes,
        )

    async def _begin_without_dump(self, order: StartUnit, source: Source) -> UnitRecord:
        """Mode ``incremental``: tables start empty where the stream starts."""
        report = await self._asked(source.discover)
        start = await self._asked(source.begin, report.tables, self._feed.start_ts)
        tables = tuple(table.with_(start_ts=start.ts, consistent_ts=start.ts) for table in report.tables)
        await self._asked(self._create_empty, source, tables, order)
        return UnitRecord(
            unit=Unit.SYNC,
            stage=UnitStage.RUNNING,
            epoch=order.epoch,
            tables=tables,
            start_ts=start.ts,
            start_position=start.text,
            system_id=report.identity.system_id,
            timeline=report.identity.timeline,
        )

    def _create_empty(self, source: Source, tables: Sequence[TableRecord], order: StartUnit) -> None:
        schemas = source.read_schemas([table.table_id for table in tables])
        self._feed.manifest(order.source).write_begun(order.epoch, schemas.values())
        create_empty(self._sink, [(table, schemas[table.table_id]) for table in tables], self._feed.config.filter)


def _running_error(error: WeirError, table_id: int) -> RunningError:
    return RunningError(
        code=error.code,
        message=str(error),
        time=time.time(),
        retryable=error.retryable,
        scope=error.scope,
        table_id=table_id,
    )


def _is_fenced(span: SpanFlushed) -> bool:
    return span.error is not None and span.error.code == SinkFencedError.code


async def _run_watched(unit: SyncUnit, on_progress: Progress) -> None:
    """Run the sync unit; while it waits for its source, say why."""
    failure: list[Exception] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_watch, unit, on_progress)
        try:
            await unit.run()
        except WeirError as error:
            failure.append(error)  # kept out of the task group, which would wrap it
        tasks.cancel_scope.cancel()
    if failure:
        raise failure[0]


async def _watch(unit: SyncUnit, on_progress: Progress) -> None:
    known = ""
    while True:
        await anyio.sleep(_WATCH_S)
        now = unit.statistics()
        if now.error != known:
            known = now.error
            trouble = RunningError(code=now.error_code, message=now.error, time=now.error_since) if known else None
            on_progress(UnitState(trouble=trouble))
