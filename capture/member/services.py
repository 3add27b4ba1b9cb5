"""Capture services: Spark, log storage, the key to secrets and real runtimes, for every membership of a process.

They survive sessions. They also do what the cluster service needs from source and sink without the owner: checks before
a changefeed is created, cleaning up after one is removed, and comparing tables.
"""

import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import structlog
from anyio import CapacityLimiter, Lock, to_thread

from agent import host_cache
from agent.control.runtime import SpanRuntime
from agent.errors import table_gone
from agent.feeds.runtime import ChangefeedRuntime, Feed
from agent.health.guarded_runtime import GuardedRuntime
from agent.health.health import Health
from agent.health.probe import SelfTest
from agent.log.quiet import QuietMoves
from agent.log.reader import LogReader
from agent.log.storage import LogDirectory
from agent.ports.executor import Executor
from agent.ports.sink import Maintained, Maintains
from agent.ports.source import Position, Signal, SourceReport
from agent.ports.table_files import TableFiles
from agent.rows.batches import SegmentRef
from agent.rows.schema import TableSchema
from agent.spark.executor import SparkExecutor
from agent.spark.masters import is_secret
from capture.api.port import ChangefeedSpec
from capture.config import ServerSettings
from capture.errors import JobRefusedError
from capture.member.asking import Answers
from capture.member.comparisons.comparison import Comparison, SnapshotComparison
from capture.member.copies import CopyPlace, CopyProgress
from capture.member.member_data_plane import LocalMemberDataPlane
from capture.member.ownership.router import Member
from capture.member.preflight import SinkRecord, check_first, check_source_again, read_signals, recorded
from capture.member.processor_host import RuntimeFactory
from capture.security.key_mark import claim_key
from capture.security.reach import Reach, look_up_freely
from capture.security.secrets import Keeper, resolve
from capture.store import claim_log_storage
from reactor import failpoints
from reactor.failpoints import Point
from reactor.ids import CaptureId, Ts
from reactor.messages import Liveness
from reactor.records.changefeed import ChangefeedInfo, UnitRecord
from reactor.records.log_head import LogHead
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState
from reactor.store.port import MetaStore

T = TypeVar("T")

_log = structlog.get_logger()

#: concurrent operators' requests; a silent source must not block the threads that write the log
_QUESTIONS = 8


@dataclass(frozen=True, slots=True)
class LogRead:
    """The part ``(from_ts, to_ts]`` of the log with ``head``."""

    head: LogHead
    from_ts: Ts
    to_ts: Ts


class MemberDataPlane(RuntimeFactory, Answers, Protocol):
    """The data plane as one membership uses it."""

    @property
    def copies(self) -> Mapping[CopyPlace, CopyProgress]:
        """The progress of tables' copies in progress here."""
        ...


class DataPlane(Protocol):
    """See above; ``capture.capture`` documents what a simulated cluster has to provide."""

    @property
    def keeper(self) -> Keeper: ...

    @property
    def health(self) -> Health:
        """Whether this capture can work at all."""
        ...

    @property
    def waits_for(self) -> str:
        """What ``start`` waits for, if it may need an operator's attention; otherwise empty."""
        ...

    async def start(self, client: MetaStore) -> None:
        """:raises WeirError: no Java, Spark does not start, or the log storage is not this cluster's."""
        ...

    async def stop(self) -> None: ...

    def for_member(self, client: MetaStore, capture: CaptureId, state: ClusterState) -> MemberDataPlane: ...

    async def check(self, spec: ChangefeedSpec) -> tuple[str, ...]:
        """Return warnings for the user, line by line.

        :raises WeirError: source or sink refuse this changefeed.
        """
        ...

    def check_reach(self, *, source: str | None = None, sink: str | None = None) -> None:
        """:raises ConfigError: the settings do not allow a changefeed to name this."""
        ...

    async def recorded(
        self, info: ChangefeedInfo, unit: UnitRecord, partitionings: Mapping[int, TablePartitioning]
    ) -> tuple[SinkRecord, ...]:
        """Return what the sink records for each of the unit's tables; empty if it keeps no records.

        :raises WeirError: it has no record of a table, or is not this changefeed's.
        """
        ...

    async def check_source_again(self, info: ChangefeedInfo, unit: UnitRecord, head: LogHead) -> None:
        """:raises WeirError: the source cannot be reached, or the log cannot continue on it."""
        ...

    async def maintain(self, info: ChangefeedInfo, table: TableRecord) -> Maintained:
        """See ``agent.ports.sink.Maintains``.

        :raises WeirError: the sink cannot be reached, or has no maintenance.
        """
        ...

    async def table_files(self, info: ChangefeedInfo, table: TableRecord) -> TableFiles:
        """See ``agent.ports.sink.Maintains``.

        :raises WeirError: the sink cannot be reached, or has no data files.
        """
        ...

    async def discover(self, info: ChangefeedInfo) -> SourceReport:
        """Return the tables at the source that its filter wants, and which of them it cannot replicate as they are.

        :raises WeirError: the source cannot be reached, or is not fit for a changefeed.
        """
        ...

    async def publish(self, info: ChangefeedInfo, tables: Sequence[TableRecord]) -> None:
        """:raises WeirError: the source does not send them."""
        ...

    async def signals(self, info: ChangefeedInfo, limit: int) -> Sequence[Signal]:
        """Return rows of the changefeed's signal table, by id. :raises WeirError: it cannot be read."""
        ...

    async def read_log(self, info: ChangefeedInfo, source: str, read: LogRead) -> tuple[SegmentRef, ...]:
        """Return the segments with changes in a part of the changefeed's log.

        :raises LogError: they were removed, or the storage refused.
        """
        ...

    async def table_schema(self, info: ChangefeedInfo, table: TableRecord) -> TableSchema:
        """Return a table's columns as they are at the source, where it has the record's name.

        :raises WeirError: the source cannot be reached, or the table is gone.
        """
        ...

    def comparison(
        self, info: ChangefeedInfo, tables: Sequence[TableRecord], head: LogHead
    ) -> AbstractAsyncContextManager[Comparison]:
        """Open a view of the tables' current state at the source, at a Ts of the log whose head is given."""
        ...


class PresentMembership(Member, Protocol):
    """The present membership."""

    @property
    def client(self) -> MetaStore: ...

    @property
    def copies(self) -> Mapping[CopyPlace, CopyProgress]: ...


class CaptureState(Protocol):
    """The capture of the services: ``capture.capture.Capture``. ``membership`` is None before and between two."""

    @property
    def settings(self) -> ServerSettings: ...

    @property
    def data_plane(self) -> DataPlane: ...

    @property
    def membership(self) -> PresentMembership | None: ...

    @property
    def absence(self) -> str:
        """Why there is no membership, as a sentence without its end."""
        ...

    @property
    def liveness(self) -> Liveness: ...


class _LogReaders:
    """The readers of logs that subscriptions read, with what they know of their directories."""

    def __init__(self) -> None:
        self._readers: dict[str, LogReader] = {}
        self._lock = threading.Lock()

    def segments(self, directory: LogDirectory, read: LogRead) -> tuple[SegmentRef, ...]:
        with self._lock:
            reader = self._readers.setdefault(str(directory), LogReader(directory))
            return reader.segments(read.head, read.from_ts, read.to_ts)


class LocalDataPlane:
    """Sources, Spark and sinks."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        spark = {name: look_up_freely(value) if is_secret(name) else value for name, value in settings.spark.items()}
        self._spark = SparkExecutor(
            settings.spark_master,
            settings=spark,
            work_dir=(settings.data_dir / "spark").absolute(),
            is_installed=settings.spark_packages == "installed",
            captures=settings.spark_captures,
        )
        own = [(settings.data_dir / "spark").absolute(), host_cache.directory()]
        self._health = Health(SelfTest(own, self._spark))
        self._waits_for = ""
        self._keeper: Keeper | None = None
        self._reach = Reach(settings.reach)
        self._heartbeat_budget = CapacityLimiter(_QUESTIONS)
        self._trials = Lock()
        self._log_readers = _LogReaders()

    @property
    def executor(self) -> Executor:
        return self._spark

    @property
    def health(self) -> Health:
        return self._health

    @property
    def keeper(self) -> Keeper:
        if self._keeper is None:
            path = self._settings.secret_key_file
            own = self._settings.data_dir / "secret.key"
            self._keeper = Keeper.from_file(path) if path else Keeper.from_own_file(own)
        return self._keeper

    @property
    def waits_for(self) -> str:
        return self._waits_for

    async def start(self, client: MetaStore) -> None:
        await claim_key(client, self._settings.cluster_id, self.keeper)
        await claim_log_storage(client, self._settings)
        await to_thread.run_sync(self._spark.start, self._report, abandon_on_cancel=True)

    def _report(self, waits_for: str) -> None:
        """Called by the thread that starts Spark."""
        if waits_for and waits_for != self._waits_for:
            _log.warning("this capture waits for Spark before it joins its cluster", reason=waits_for)
        self._waits_for = waits_for

    async def stop(self) -> None:
        await to_thread.run_sync(self._spark.stop)

    def for_member(self, client: MetaStore, capture: CaptureId, state: ClusterState) -> MemberDataPlane:
        return LocalMemberDataPlane(self, client, capture, state, trials=self._trials)

    async def check(self, spec: ChangefeedSpec) -> tuple[str, ...]:
        self.check_reach(source=spec.source_uri, sink=spec.sink_uri)
        return await self._ask(partial(check_first, spec, self._settings.cluster_id, self._reach.look_up))

    def check_reach(self, *, source: str | None = None, sink: str | None = None) -> None:
        self._reach.check(source=source, sink=sink)

    async def recorded(
        self, info: ChangefeedInfo, unit: UnitRecord, partitionings: Mapping[int, TablePartitioning]
    ) -> tuple[SinkRecord, ...]:
        return await self._ask(partial(recorded, self.feed(info), unit, partitionings))

    async def check_source_again(self, info: ChangefeedInfo, unit: UnitRecord, head: LogHead) -> None:
        await self._ask(partial(check_source_again, self.feed(info), unit, head))

    async def maintain(self, info: ChangefeedInfo, table: TableRecord) -> Maintained:
        sink = self.feed(info).open_sink()
        if not isinstance(sink, Maintains):
            raise JobRefusedError(f"the sink of changefeed {info.id} needs no maintenance, and has none")
        return await self._ask(partial(sink.maintain, table))

    async def table_files(self, info: ChangefeedInfo, table: TableRecord) -> TableFiles:
        sink = self.feed(info).open_sink()
        if not isinstance(sink, Maintains):
            raise JobRefusedError(f"the sink of changefeed {info.id} has no data files of tables")
        return await self._ask(partial(sink.files, table))

    async def discover(self, info: ChangefeedInfo) -> SourceReport:
        return await self._ask(lambda: self.feed(info).open_source().discover())

    async def publish(self, info: ChangefeedInfo, tables: Sequence[TableRecord]) -> None:
        await self._ask(lambda: self.feed(info).open_source().publish(tables))
        failpoints.reach(Point.TABLE_PUBLISHED)

    async def signals(self, info: ChangefeedInfo, limit: int) -> Sequence[Signal]:
        return await self._ask(lambda: read_signals(self.feed(info).open_source(), info.config, limit))

    async def read_log(self, info: ChangefeedInfo, source: str, read: LogRead) -> tuple[SegmentRef, ...]:
        directory = self.feed(info).log_directory(source)
        return await self._ask(partial(self._log_readers.segments, directory, read))

    async def table_schema(self, info: ChangefeedInfo, table: TableRecord) -> TableSchema:
        found = await self._ask(lambda: self.feed(info).open_source().read_schemas([table]))
        if table.table_id not in found:
            raise table_gone(f"table {table.schema_name}.{table.name}")
        return found[table.table_id]

    @asynccontextmanager
    async def comparison(
        self, info: ChangefeedInfo, tables: Sequence[TableRecord], head: LogHead
    ) -> "AsyncIterator[SnapshotComparison]":
        feed = self.feed(info)
        log = Position(head.resolved_ts, head.position)
        take = partial(feed.open_source().snapshot, tables, log)
        snapshot = await to_thread.run_sync(take, limiter=self._heartbeat_budget)
        try:
            yield SnapshotComparison(feed, tables, snapshot, self._spark, self._heartbeat_budget)
        finally:
            snapshot.close()

    async def _ask(self, question: Callable[[], T]) -> T:
        return await to_thread.run_sync(question, abandon_on_cancel=True, limiter=self._heartbeat_budget)

    def feed(self, info: ChangefeedInfo) -> Feed:
        """:raises ConfigError: sealed with another key, or a reference that cannot be resolved here."""
        source_uri, sink_uri = self.keeper.open(info.source), self.keeper.open(info.sink)
        self._reach.note(info.id, source=source_uri, sink=sink_uri)
        return Feed(
            id=info.id,
            cluster=self._settings.cluster_id,
            namespace=info.namespace,
            source_uri=resolve(source_uri, self._reach.look_up),
            sink_uri=resolve(sink_uri, self._reach.look_up),
            sink_mode=info.sink_mode,
            config=info.config,
            start_ts=info.start_ts,
            log_uri=self._settings.log_storage_uri,
            incarnation=info.incarnation,
            was_filtered=info.was_filtered,
            epoch=info.epoch,
        )

    def open(
        self,
        feed: Feed,
        *,
        capture: CaptureId,
        client: MetaStore,
        checkpoint: Callable[[], Ts],
        held: Callable[[], Ts],
        joined: int = 0,
        quiet: QuietMoves,
    ) -> SpanRuntime:
        runtime = ChangefeedRuntime(
            feed,
            capture=capture,
            client=client,
            executor=self._spark,
            checkpoint=checkpoint,
            held=held,
            joined=joined,
            trials=self._trials,
            quiet=quiet,
        )
        return GuardedRuntime(runtime, self._health)


def build_data_plane(settings: ServerSettings) -> DataPlane:
    return LocalDataPlane(settings)
