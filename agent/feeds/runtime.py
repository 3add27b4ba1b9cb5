"""Changefeed runtime: the sink, change log, Spark jobs and units of a changefeed on one capture.

Blocking work runs in worker threads. A thread abandoned by a cancellation may still complete its work; that is
harmless: the sink's record, the log's epoch and the unit's record fence stale writers.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import anyio
from anyio import CapacityLimiter, from_thread, to_thread

from agent.control.effects import StartUnit
from agent.control.runtime import NOBODY, Flushed, FlushLimits, Progress, SpanFlushed, SpanPosition, Together, UnitState
from agent.deadline import AbandonedError, Deadline, run_with_deadline
from agent.errors import (
    RESYNC,
    JobTimeoutError,
    SinkFencedError,
    SinkTimeoutError,
    TableForeignError,
    TableHeldError,
)
from agent.feeds.attempts import Attempts
from agent.feeds.furthest import FurthestRecords, is_kept
from agent.flush import job
from agent.log.head import LogWriter
from agent.log.head_store import MetaHeadStore
from agent.log.quiet import QuietMoves
from agent.log.reader import LogReader
from agent.log.retention import Needs
from agent.log.storage import LogDirectory
from agent.pacing import Pace, pace_of
from agent.ports.executor import Executor
from agent.ports.sink import FeedContext, Sink
from agent.ports.snapshot import DumpOrder
from agent.ports.source import Identity, Position, Scope, Source, StreamOrder
from agent.rows.schema import TableSchema
from agent.running_error import running_error
from agent.sinks import open_sink
from agent.sources import open_source
from agent.units import readers, renewal, sync_watch
from agent.units.beginning import begin
from agent.units.dump import DumpUnit
from agent.units.load import LoadUnit, create_empty
from agent.units.manifest import Manifest
from agent.units.records import UnitRecords
from agent.units.renewal import Place
from agent.units.stream_attempts import StreamAttempts
from agent.units.sync import SyncUnit
from agent.units.waiting import waiting
from reactor import keys
from reactor.errors import StoreError, WeirError
from reactor.ids import MAX_TS, CaptureId, ChangefeedId, TableSpan, Ts
from reactor.records.changefeed import ChangefeedConfig, SinkMode, Unit, UnitRecord, UnitStage
from reactor.records.tables.table import TableRecord
from reactor.store.port import Compare, MetaStore, Target

T = TypeVar("T")

#: spans of one changefeed that query the sink concurrently; those of a directory wait for the interpreter's lock only,
#: and more of them for each other
_OPENERS, _LOCAL_OPENERS = 8, 2


@dataclass(frozen=True, slots=True)
class Feed:
    """A changefeed with URIs to connect with: never logged, never stored.

    ``created``: the etcd revision of its creation, which distinguishes it from others of its name.
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
    #: ``ChangefeedInfo.epoch``
    epoch: int = 0

    @property
    def _scope(self) -> Scope:
        return Scope(self.cluster, self.id, self.sink_mode, self.config, self.incarnation)

    @property
    def sink_owner(self) -> str:
        """The owner of the sink's tables: several clusters may share a sink."""
        return f"{self.cluster}/{self.id}"

    def open_source(self) -> Source:
        """:raises SourceConfigError: its URI cannot be opened."""
        return open_source(self.source_uri, self._scope)

    @property
    def reader(self) -> str:
        """The reader's name, unique among all readers that the cluster has had."""
        return f"{self.namespace}/{self.id}/{self.incarnation}"

    def open_sink(self) -> Sink:
        """:raises SinkError: its URI cannot be opened."""
        layouts = self.config.layout
        return open_sink(self.sink_uri, changefeed=self.sink_owner, mode=self.sink_mode, layouts=layouts)

    def pace(self, rows_per_second: int | None = None) -> Pace:
        """Return what a piece of work may read at: within the changefeed's limit, and its own."""
        return pace_of(f"{self.cluster}/{self.reader}", self.config.read_rows_per_second, rows_per_second)

    @property
    def guard(self) -> Compare:
        """Return a compare that holds while this changefeed exists."""
        return Compare(str(keys.InfoKey(self.cluster, self.namespace, self.id)), Target.CREATE_REVISION, self.created)

    def log_directory(self, source: str) -> LogDirectory:
        return LogDirectory(self.log_uri, changefeed=self.id, source=source)

    def furthest(self, source: str, name: str) -> FurthestRecords:
        """Return what the sink was seen to record. ``name``: of who saves it."""
        key = (self.sink_owner, self.incarnation)
        former_key = (*key, self.sink_uri)  # the sink was another one after a change of its password, too
        log, retention_s = self.log_directory(source), self.config.log_retention_seconds
        return FurthestRecords(key, log, name, retention_s=retention_s, former_key=former_key)

    def manifest(self, source: str) -> Manifest:
        return Manifest.for_source(self.log_uri, changefeed=self.id, source=source)


class ChangefeedRuntime:
    """``agent.control.runtime.SpanRuntime`` of one changefeed. ``checkpoint`` returns what every flowing span has
    passed, ``held`` what every held table has; ``joined``: the revision at which the capture became a member;
    ``trials``: see ``agent.feeds.attempts``; it is shared by all of a process, and ``quiet`` by all of a session."""

    def __init__(
        self,
        feed: Feed,
        *,
        capture: CaptureId,
        client: MetaStore,
        executor: Executor,
        checkpoint: Callable[[], Ts],
        held: Callable[[], Ts] = lambda: MAX_TS,
        source: str = "main",
        joined: int = 0,
        trials: anyio.Lock | None = None,
        quiet: QuietMoves | None = None,
    ) -> None:
        self._feed = feed
        self._capture = capture
        self._client = client
        self._executor = executor
        self._quiet = quiet or QuietMoves(client)
        self._checkpoint = checkpoint
        self._held = held
        self._source = source
        self._sink = feed.open_sink()
        self._furthest = feed.furthest(source, capture)
        # threads of its own: a sink that never answers must not block other changefeeds
        self._openers = CapacityLimiter(_LOCAL_OPENERS if "+file:" in feed.sink_uri else _OPENERS)
        self._flusher = CapacityLimiter(1)
        self._asking = CapacityLimiter(1)
        self._at_once: int | None = None
        key = keys.AttemptKey(feed.cluster, feed.namespace, feed.id, capture)
        member = Compare(str(keys.CaptureKey(feed.cluster, capture)), Target.CREATE_REVISION, joined)
        conditions = (feed.guard, member) if joined else (feed.guard,)
        self._attempts = Attempts(client, key, conditions, trials=trials or anyio.Lock(), clock=time.monotonic)
        self._context = job.FlushContext(
            FeedContext(feed.sink_owner, feed.sink_uri, feed.sink_mode, feed.config.filter, feed.was_filtered),
            sink=self._sink,
            reader=LogReader(feed.log_directory(source)),
            executor=executor,
            begin=self._attempts.begin_in_thread,
        )

    async def open_span(self, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        recorded = await self._with_deadline(lambda _: self._committed_ts(table, span), self._openers)
        if self._sink.capabilities.keeps_record:
            self._furthest.check(table, span, recorded, checkpoint_ts)
        return SpanPosition(span, table, recorded, max(recorded, checkpoint_ts))

    async def flush(
        self, positions: Sequence[SpanPosition], limits: FlushLimits, together: Together = NOBODY
    ) -> Flushed:
        def run(deadline: Deadline) -> Flushed:
            flushed = job.flush(self._context, positions, limits, together, deadline=deadline, at_once=self._at_once)
            self._furthest.note(span.position for span in flushed.spans)
            self._furthest.save(limits.tables or None)
            return flushed

        is_trial = not together and limits.is_trial(at.table.table_id for at in positions)
        try:
            async with self._attempts.under_way(is_trial=is_trial):
                flushed = await self._with_deadline(run, self._flusher)
        except (JobTimeoutError, SinkTimeoutError):
            # after a timeout, use one slot until a flush succeeds, and leave the others free
            self._at_once = 1
            raise
        if any(span.rows for span in flushed.spans):
            self._at_once = None
        spans = [
            await self._reread_position(span, limits.table(span.position.table)) if _is_fenced(span) else span
            for span in flushed.spans
        ]
        return replace(flushed, spans=tuple(spans))

    async def run_unit(self, order: StartUnit, on_progress: Progress) -> None:
        match order.unit:
            case Unit.DUMP:
                await self._dump(order, on_progress)
            case Unit.LOAD:
                await self._load(order, on_progress)
            case Unit.SYNC:
                await self._sync(order, on_progress)

    async def close(self) -> None:
        await self._attempts.close()
        with suppress(StoreError):
            if await is_kept(self._client, self._feed.guard.key):
                await to_thread.run_sync(partial(self._furthest.save, is_last=True), abandon_on_cancel=True)

    async def _with_deadline(self, call: Callable[[Deadline], T], limiter: CapacityLimiter) -> T:
        timeout_s = self._feed.config.flush_timeout_seconds
        try:
            return await run_with_deadline(call, timeout_s=timeout_s, limiter=limiter)
        except AbandonedError as error:
            raise SinkTimeoutError(
                f"the sink of changefeed {self._feed.id} has not answered for {timeout_s} s; see whether it hangs, or "
                "give it more time (flush-timeout-seconds); it is asked again"
            ) from error

    async def _reread_position(self, span: SpanFlushed, table: TableRecord) -> SpanFlushed:
        """Handle a sink that was further than expected: by the previous writer, or a commit whose answer was lost."""
        before = span.position
        try:
            position = await self.open_span(table, before.span, before.checkpoint_ts)
        except SinkFencedError:  # its table has other spans
            return span
        except WeirError as error:
            return replace(span, error=running_error(error).with_(table_id=before.table.table_id))
        return SpanFlushed(position) if position.committed_ts > before.committed_ts else span

    def _committed_ts(self, table: TableRecord, span: TableSpan) -> Ts:
        self._furthest.load()
        recorded = self._sink.committed_ts(table, span)
        if recorded is None:
            name = f"{table.schema_name}.{table.name}"
            if reason := self._refused.get(table.table_id):
                cure = "" if RESYNC in reason else f"; correct it there, and then {RESYNC}"
                raise TableHeldError(f"{name} could not be copied: {reason}{cure}")
            if self._sink.capabilities.keeps_record:
                raise TableForeignError(f"the sink has no record of {name}: it was removed or replaced there; {RESYNC}")
        return recorded or table.start_ts

    @cached_property
    def _refused(self) -> dict[int, str]:
        """Read once: spans are opened after the snapshot has finished, and then this does not change."""
        return self._feed.manifest(self._source).read_refused()

    # Units

    def _records(self, source: str) -> UnitRecords:
        key = keys.UnitKey(self._feed.cluster, self._feed.namespace, self._feed.id, source)
        return UnitRecords(self._client, key, guard=self._feed.guard)

    async def _query(self, question: Callable[..., T], *arguments: Any) -> T:
        """Call a source or sink, which may take long."""
        return await to_thread.run_sync(question, *arguments, abandon_on_cancel=True, limiter=self._asking)

    async def _dump(self, order: StartUnit, on_progress: Progress) -> None:
        records, source = self._records(order.source), self._feed.open_source()
        running = UnitRecord(unit=Unit.DUMP, stage=UnitStage.RUNNING, epoch=order.epoch, worker=self._capture)
        await records.write(running)
        report = await self._query(source.discover)
        await self._query(source.prepare, report.tables)
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
                pace=feed.pace(),
            ),
            feed.manifest(order.source),
            self._executor,
            on_progress=lambda at: from_thread.run_sync(
                on_progress, UnitState(at.rows_done, at.rows_total, at.trouble, at.bytes_done)
            ),
        )
        done = await dump.run()
        await records.write(
            running.with_(
                stage=UnitStage.FINISHED,
                tables=done.tables,
                joining=await self._query(source.missed_tables, done.tables),
                start_ts=done.start.ts,
                start_position=done.start.text,
                rows_total=done.rows_total,
                rows_done=done.rows_done,
                bytes_done=done.bytes_done,
                manifest=done.manifest,
                system_id=report.identity.system_id,
                timeline=done.timeline or report.identity.timeline,
            )
        )

    async def _load(self, order: StartUnit, on_progress: Progress) -> None:
        records = self._records(order.source)
        dumped = await records.require()
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
        records, source, feed = self._records(order.source), self._feed.open_source(), self._feed
        before = await records.read()
        if before is None:
            before = await self._begin_without_dump(order, source, on_progress)
        running = before.with_(unit=Unit.SYNC, stage=UnitStage.RUNNING, epoch=order.epoch, worker=self._capture)
        await records.write(running)
        log_key = keys.LogKey(feed.cluster, feed.namespace, feed.id, order.source)
        attempts_key = keys.StreamAttemptKey(feed.cluster, feed.namespace, feed.id, order.source)
        if running.needs_position:
            place = Place(records, self._client, log_key, feed.manifest(order.source), feed.log_directory(order.source))
            with waiting(on_progress) as wait:
                running = await renewal.take_position(running, source, place, wait=wait, ask=self._query)
        schemas = await to_thread.run_sync(feed.manifest(order.source).read_schemas)
        identity = Identity(running.system_id, running.timeline)
        reader = await readers.claim(self._client, feed.cluster, feed.reader) if source.numbers_readers else 0
        store = MetaHeadStore(self._client, log_key, guard=feed.guard, quiet=self._quiet)
        unit = SyncUnit(
            source.streams(StreamOrder(running.tables, identity, schemas, reader, frozenset(running.joining))),
            Position(running.start_ts, running.start_position),
            writer=LogWriter(store, capture=self._capture, epoch_floor=feed.created),
            directory=feed.log_directory(order.source),
            needs=self._needs,
            tables=(table.table_id for table in running.tables),
            attempts=StreamAttempts(self._client, attempts_key, self._capture, feed.epoch, feed.guard),
            next_quiet_at=self._quiet.next_at,
            on_server=partial(records.note_server, running),
        )
        with self._quiet.of_a_log():
            await sync_watch.run(unit, on_progress)

    def _needs(self) -> Needs:
        config = self._feed.config
        return Needs(
            checkpoint_ts=self._checkpoint(),
            held_ts=self._held(),
            retention_s=config.log_retention_seconds,
            held_retention_s=config.held_retention_seconds,
            held_bytes=config.held_retention_bytes,
        )

    async def _begin_without_dump(self, order: StartUnit, source: Source, on_progress: Progress) -> UnitRecord:
        """Mode ``incremental``: tables start empty where the stream starts."""
        with waiting(on_progress) as wait:
            begun = await self._query(begin, source, partial(source.begin, start_ts=self._feed.start_ts, wait=wait))
        ts = begun.position.ts
        tables = tuple(table.with_(start_ts=ts, consistent_ts=ts) for table in begun.tables)
        await self._query(self._create_empty, begun.schemas, tables, order)
        return UnitRecord(
            unit=Unit.SYNC,
            stage=UnitStage.RUNNING,
            epoch=order.epoch,
            tables=tables,
            start_ts=ts,
            start_position=begun.position.text,
            joining=begun.joining,
            **begun.report.identity.fields(),
        )

    def _create_empty(
        self, schemas: Mapping[int, TableSchema], tables: Sequence[TableRecord], order: StartUnit
    ) -> None:
        self._feed.manifest(order.source).write_begun(order.epoch, schemas.values())
        create_empty(self._sink, [(table, schemas[table.table_id]) for table in tables], self._feed.config.filter)


def _is_fenced(span: SpanFlushed) -> bool:
    return span.error is not None and span.error.code == SinkFencedError.code
