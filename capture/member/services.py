"""Capture services: Spark, log storage, the key to secrets and real runtimes, for every membership of a process.

It outlives sessions. It also does for the cluster service what needs source and sink but no owner: checks before a
changefeed is created, cleaning up after one is removed, and comparing tables.
"""

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import structlog
from anyio import CapacityLimiter, to_thread

from agent.control.runtime import SpanRuntime
from agent.errors import LogStorageMismatchError, SinkConfigError
from agent.feeds import diff
from agent.feeds.runtime import ChangefeedRuntime, Feed
from agent.log.storage import claim
from agent.ports.source import ComparisonSnapshot, Identity, Position
from agent.spark.executor import SparkExecutor
from capture.api.port import ChangefeedSpec, TableDiff
from capture.config import ServerSettings
from capture.member.asking import Answers
from capture.member.member_data_plane import LocalMemberDataPlane
from capture.member.preflight import check_first
from capture.member.processor_host import RuntimeFactory
from capture.security.secrets import Keeper
from owner.scheduler.spans import even_spans
from reactor import keys
from reactor.ids import CaptureId, Ts
from reactor.records.changefeed import ChangefeedInfo, LogHead, TableRecord, UnitRecord
from reactor.records.log_mark import mark_of
from reactor.records.partitioning import TablePartitioning
from reactor.state import ClusterState
from reactor.store.port import Compare, EtcdClient, Put, Target

T = TypeVar("T")

_log = structlog.get_logger()

#: operators' requests at one time; what a silent source holds is none of the threads that write the log
_QUESTIONS = 8


class MemberDataPlane(RuntimeFactory, Answers, Protocol):
    """The data plane as one membership uses it."""


class Comparison(Protocol):
    """The source as it was at ``ts``, to be compared with a sink that is there."""

    @property
    def ts(self) -> Ts: ...

    async def run(self, ids: Collection[int]) -> list[TableDiff]:
        """Some of the tables."""
        ...


class DataPlane(Protocol):
    """See above; ``capture.capture`` states what a simulated cluster has to bring instead."""

    @property
    def keeper(self) -> Keeper: ...

    async def start(self, client: EtcdClient) -> None:
        """:raises WeirError: no Java, Spark does not start, or the log storage is not this cluster's."""
        ...

    async def stop(self) -> None: ...

    def for_life(self, client: EtcdClient, capture: CaptureId, state: ClusterState) -> MemberDataPlane: ...

    async def check(self, spec: ChangefeedSpec) -> tuple[str, ...]:
        """What a user should know of it, line by line.

        :raises WeirError: source or sink say why this changefeed cannot be.
        """
        ...

    async def recorded(
        self, info: ChangefeedInfo, unit: UnitRecord, partitionings: Mapping[int, TablePartitioning]
    ) -> tuple[Ts, ...]:
        """What the sink records for each of the unit's tables; empty when it keeps no records.

        :raises WeirError: it has no record of a table, or is not this changefeed's.
        """
        ...

    async def check_source_again(self, info: ChangefeedInfo, unit: UnitRecord) -> None:
        """:raises WeirError: the source cannot be reached, or is not the server that the changefeed began on."""
        ...

    def comparison(
        self, info: ChangefeedInfo, tables: Sequence[TableRecord], head: LogHead
    ) -> AbstractAsyncContextManager[Comparison]:
        """Hold on to the tables as they are now at the source, at a Ts of the log whose head is given."""
        ...


class LocalDataPlane:
    """Sources, Spark and sinks."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._spark = SparkExecutor(
            settings.spark_master, settings=settings.spark, work_dir=(settings.data_dir / "spark").absolute()
        )
        self._keeper: Keeper | None = None
        self._heartbeat_budget = CapacityLimiter(_QUESTIONS)

    @property
    def keeper(self) -> Keeper:
        if self._keeper is None:
            path = self._settings.secret_key_file
            own = self._settings.data_dir / "secret.key"
            self._keeper = Keeper.from_file(path) if path else Keeper.from_own_file(own)
        return self._keeper

    async def start(self, client: EtcdClient) -> None:
        await self._claim_log_storage(client)
        await to_thread.run_sync(self._spark.start, abandon_on_cancel=True)

    async def stop(self) -> None:
        await to_thread.run_sync(self._spark.stop)

    def for_life(self, client: EtcdClient, capture: CaptureId, state: ClusterState) -> MemberDataPlane:
        return LocalMemberDataPlane(self, client, capture, state)

    async def check(self, spec: ChangefeedSpec) -> tuple[str, ...]:
        return await self._ask(partial(check_first, spec, self._settings.cluster_id))

    async def recorded(
        self, info: ChangefeedInfo, unit: UnitRecord, partitionings: Mapping[int, TablePartitioning]
    ) -> tuple[Ts, ...]:
        return await self._ask(partial(_recorded, self.feed(info), unit, partitionings))

    async def check_source_again(self, info: ChangefeedInfo, unit: UnitRecord) -> None:
        await self._ask(partial(_check_source_again, self.feed(info), unit))

    @asynccontextmanager
    async def comparison(
        self, info: ChangefeedInfo, tables: Sequence[TableRecord], head: LogHead
    ) -> "AsyncIterator[_RealComparison]":
        feed = self.feed(info)
        log = Position(head.resolved_ts, head.position)
        take = partial(feed.open_source().snapshot, tables, log)
        snapshot = await to_thread.run_sync(take, limiter=self._heartbeat_budget)
        try:
            yield _RealComparison(feed, tables, snapshot, self._heartbeat_budget)
        finally:
            snapshot.close()

    async def _ask(self, question: Callable[[], T]) -> T:
        return await to_thread.run_sync(question, abandon_on_cancel=True, limiter=self._heartbeat_budget)

    def feed(self, info: ChangefeedInfo) -> Feed:
        """:raises ConfigError: sealed with another key, or a reference that names nothing here."""
        return Feed(
            id=info.id,
            cluster=self._settings.cluster_id,
            namespace=info.namespace,
            source_uri=self.keeper.connectable(info.source),
            sink_uri=self.keeper.connectable(info.sink),
            sink_mode=info.sink_mode,
            config=info.config,
            start_ts=info.start_ts,
            log_uri=self._settings.log_storage_uri,
            incarnation=info.incarnation,
            was_filtered=info.was_filtered,
        )

    def open(
        self,
        feed: Feed,
        *,
        capture: CaptureId,
        client: EtcdClient,
        checkpoint: Callable[[], Ts],
        held: Callable[[], Ts],
    ) -> SpanRuntime:
        return ChangefeedRuntime(
            feed, capture=capture, client=client, executor=self._spark, checkpoint=checkpoint, held=held
        )

    async def _claim_log_storage(self, client: EtcdClient) -> None:
        """The first capture of a cluster marks its log storage, and etcd remembers the mark.

        :raises LogStorageMismatchError: this is not the storage that the cluster's log lies on.
        """
        key = str(keys.LogStorageKey(self._settings.cluster_id))
        stored = await client.get(key)
        expected = mark_of(stored.value) if stored else None
        uri = self._settings.log_storage_uri
        run = partial(claim, uri, cluster_id=self._settings.cluster_id, expected=expected)
        found = await to_thread.run_sync(run)
        if stored is None:
            absent = Compare(key, Target.CREATE_REVISION, 0)
            if not (await client.txn([absent], [Put(key, found.encode())])).succeeded:
                other = await client.get(key)
                if other is None or mark_of(other.value) != found:
                    raise LogStorageMismatchError(
                        f"two captures began this cluster at once on different log storage ({uri} is one of them); "
                        "give all of them the same --log-storage"
                    )


@dataclass(frozen=True, slots=True)
class _RealComparison:
    feed: Feed
    tables: Sequence[TableRecord]
    snapshot: ComparisonSnapshot
    limiter: CapacityLimiter

    @property
    def ts(self) -> Ts:
        return self.snapshot.ts

    async def run(self, ids: Collection[int]) -> list[TableDiff]:
        return await to_thread.run_sync(self._compare, ids, limiter=self.limiter)

    def _compare(self, ids: Collection[int]) -> list[TableDiff]:
        tables = [table for table in self.tables if table.table_id in ids]
        found = diff.compare_tables(self.snapshot, self.feed.open_sink(), tables, self.feed.config.filter)
        return [
            TableDiff(
                table=one.table,
                equal=one.equal,
                source_rows=one.rows_source,
                sink_rows=one.rows_sink,
                ts=self.ts,
                differences=one.differences,
            )
            for one in found
        ]


def build_data_plane(settings: ServerSettings) -> DataPlane:
    return LocalDataPlane(settings)


def _recorded(feed: Feed, unit: UnitRecord, partitionings: Mapping[int, TablePartitioning]) -> tuple[Ts, ...]:
    """The record of each table's slowest span."""
    sink = feed.open_sink()
    sink.check(unit.tables)
    if not sink.capabilities.keeps_record:
        return ()
    found = []
    for table in unit.tables:
        spans = even_spans(
            table.table_id, partitionings[table.table_id].spans if table.table_id in partitionings else 1
        )
        recorded = [sink.committed_ts(table, span) for span in spans]
        known = [ts for ts in recorded if ts is not None]
        if len(known) < len(spans):
            raise SinkConfigError(
                f"the sink holds no table {table.schema_name}.{table.name} of changefeed {feed.id}; bring it there "
                "with its history, or create another changefeed for a new snapshot"
            )
        found.append(min(known))
    return tuple(found)


def _check_source_again(feed: Feed, unit: UnitRecord) -> None:
    feed.open_source().check_identity(Identity(unit.system_id, unit.timeline))
