"""A member's data plane: opens changefeeds for one session, and answers the owner's questions at source and sink.

Each question has its handler here; ``capture.member.asking`` has what they share.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from anyio import CapacityLimiter, Lock, to_thread

from agent.control.runtime import SpanRuntime
from agent.feeds import copies
from agent.feeds.runtime import Feed
from agent.feeds.schema_attempts import SchemaAttempts
from agent.log.quiet import QuietMoves
from agent.log.storage import LogDirectory
from agent.ports.executor import Executor
from agent.ports.sink import MarksLeft, SpanRepartition, Splits
from agent.schema_changes import apply as apply_ddl
from agent.schema_changes.apply import Terms
from agent.units import readers
from agent.units.records import UnitRecords
from capture.errors import GoneError
from capture.member.copies import Copies, CopyPlace, CopyProgress
from capture.member.copy_groups import CopyGroups
from owner.progress.units import SOURCE
from owner.questions import (
    ApplySchema,
    CopyTable,
    DropCopy,
    MarkLeft,
    MeasureTables,
    PlaceTable,
    ReadPositions,
    ReleaseSource,
    RepartitionTable,
    TableCopied,
    TableRead,
)
from reactor import failpoints, keys
from reactor.failpoints import Point
from reactor.ids import MAX_TS, CaptureId, ChangefeedId, Ts
from reactor.questions import A, Ask, Question
from reactor.records import subscription
from reactor.records.changefeed import ChangefeedInfo
from reactor.records.tables import held, resync
from reactor.state import ClusterState
from reactor.store.port import Compare, MetaStore, Target

T = TypeVar("T")

#: questions of one kind that are answered concurrently
_THREADS = 32


class Feeds(Protocol):
    """The capture's data plane, with Spark, the log storage and the key to secrets."""

    @property
    def executor(self) -> Executor: ...

    def feed(self, info: ChangefeedInfo) -> Feed:
        """:raises ConfigError: sealed with another key, or a reference that cannot be resolved here."""
        ...

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
    ) -> SpanRuntime: ...


class LocalMemberDataPlane:
    """``capture.member.services.MemberDataPlane`` over real sources and sinks."""

    def __init__(
        self,
        data_plane: Feeds,
        client: MetaStore,
        capture: CaptureId,
        state: ClusterState,
        *,
        trials: Lock | None = None,
    ) -> None:
        self._data_plane = data_plane
        self._client = client
        self._capture = capture
        self._state = state
        self._threads: dict[type, CapacityLimiter] = {}
        self._loaders = CapacityLimiter(_THREADS)
        self._handlers: Mapping[type, Callable[[ChangefeedInfo, Any], Awaitable[Any]]] = {
            ReleaseSource: self._release_source,
            ReadPositions: self._read_positions,
            RepartitionTable: self._repartition_table,
            ApplySchema: self._apply_schema,
            CopyTable: self._copy_table,
            MeasureTables: self._measure_tables,
            PlaceTable: self._place_table,
            DropCopy: self._drop_copy,
            MarkLeft: self._mark_left,
        }
        self._quiet = QuietMoves(client)
        self._copies = Copies(state)
        self._copy_groups = CopyGroups()
        self._schema_attempts = SchemaAttempts(client, state, trials or Lock())

    @property
    def copies(self) -> Mapping[CopyPlace, CopyProgress]:
        return self._copies.progress

    async def load(self, info: ChangefeedInfo) -> None:
        """Open source and sink once in a thread, so that their plugins are imported and the kernels read: on a busy
        machine PyIceberg alone takes seconds, in which the event loop would renew no lease."""

        def open_both() -> None:
            feed = self._data_plane.feed(info)
            feed.open_source()
            feed.open_sink()

        with suppress(Exception):
            await to_thread.run_sync(open_both, abandon_on_cancel=True, limiter=self._loaders)

    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        member = self._state.raw.get(str(keys.CaptureKey(self._state.cluster, self._capture)))
        return self._data_plane.open(
            self._feed(info),
            capture=self._capture,
            client=self._client,
            checkpoint=lambda: self._checkpoint(info.id),
            held=lambda: self._held(info.id),
            joined=member.create_revision if member else 0,
            quiet=self._quiet,
        )

    def _feed(self, info: ChangefeedInfo) -> Feed:
        key = str(keys.InfoKey(self._state.cluster, info.namespace, info.id))
        return replace(self._data_plane.feed(info), created=self._state.raw[key].create_revision)

    def _membership(self) -> tuple[Compare, ...]:
        """Holds while this capture is a member."""
        key = str(keys.CaptureKey(self._state.cluster, self._capture))
        member = self._state.raw.get(key)
        return (Compare(key, Target.CREATE_REVISION, member.create_revision),) if member else ()

    async def answer(self, ask: Ask[A]) -> A:
        """See ``capture.member.asking``."""
        found: A = await self._handlers[type(ask.question)](ask.info, ask.question)
        return found

    async def _release_source(self, info: ChangefeedInfo, question: ReleaseSource) -> None:
        """Remove what was created at the source, then files.

        Another owner may clean up at the same time, and a later changefeed of the same name may exist by the time that
        files are removed: so only files are removed that existed before etcd was last read.
        """
        if await self._is_to_be_released(info):
            feed = self._data_plane.feed(info)
            source = await self._in_thread(question, feed.open_source)  # which may import its plugin
            known = self._state.changefeeds.get(info.id)
            resyncs = known.resyncs.values() if known else ()
            names = ("main", *(copies.source_name(resync.table_id, resync.number) for resync in resyncs))
            directories = (feed.log_directory("main"), *(feed.manifest(name).directory for name in names))

            def drop() -> list[tuple[LogDirectory, list[str]]]:
                source.drop()
                return [(place, place.names()) for place in directories]

            found = await self._in_thread(question, drop)
            if await self._is_to_be_released(info):
                await self._in_thread(question, partial(_remove, found))
                if source.numbers_readers:
                    await readers.release(self._client, feed.cluster, feed.reader)
        failpoints.reach(Point.REMOVE_DROPPED)

    async def _read_positions(self, info: ChangefeedInfo, question: ReadPositions) -> tuple[TableRead, ...]:
        return await self._in_thread(question, partial(_positions, self._data_plane.feed(info), question))

    async def _repartition_table(self, info: ChangefeedInfo, question: RepartitionTable) -> Ts:
        await self._refuse_another(info)
        return await self._in_thread(question, partial(_repartition, self._data_plane.feed(info), question))

    async def _apply_schema(self, info: ChangefeedInfo, question: ApplySchema) -> None:
        await self._refuse_another(info)
        feed = self._feed(info)
        key = keys.SchemaAttemptKey(feed.cluster, feed.namespace, feed.id, self._capture)
        conditions = (feed.guard, *self._membership())
        async with self._schema_attempts.under_way(key, conditions, question.record.table_ids):
            await self._in_thread(question, partial(_apply, feed, question))

    async def _copy_table(self, info: ChangefeedInfo, question: CopyTable) -> TableCopied:
        """Run until it is copied, or no longer wanted."""
        await self._refuse_another(info)
        feed, executor = self._data_plane.feed(info), self._data_plane.executor
        copy = partial(copies.copy, feed, executor)
        if question.together:
            together = partial(copies.copy_together, feed, executor)
            copy = partial(self._copy_groups.copy, info, together)
        return await self._copies.run(info.id, question, copy)

    async def _measure_tables(self, info: ChangefeedInfo, question: MeasureTables) -> dict[int, int]:
        return await self._in_thread(question, partial(copies.measure, self._data_plane.feed(info), question.tables))

    async def _place_table(self, info: ChangefeedInfo, question: PlaceTable) -> None:
        await self._refuse_another(info)
        key = keys.UnitKey(self._state.cluster, info.namespace, info.id, SOURCE)
        unit = await UnitRecords(self._client, key).read()
        copy = question.table, question.spans, question.number
        place = partial(copies.place, self._data_plane.feed(info), *copy, cut=question.cut)
        await self._in_thread(question, partial(place, timeline=unit.timeline if unit else 0))

    async def _mark_left(self, info: ChangefeedInfo, question: MarkLeft) -> None:
        await self._refuse_another(info)
        await self._in_thread(question, partial(_mark_left, self._data_plane.feed(info), question))

    async def _drop_copy(self, info: ChangefeedInfo, question: DropCopy) -> None:
        manifest = self._data_plane.feed(info).manifest(copies.source_name(question.table_id, question.number))
        await self._in_thread(question, lambda: manifest.directory.remove(manifest.directory.names()))

    async def _in_thread(self, question: Question[Any], work: Callable[[], T]) -> T:
        """Each kind of question has its own threads: a rewrite that takes hours must not delay removals or the log."""
        limiter = self._threads.setdefault(type(question), CapacityLimiter(_THREADS))
        return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)

    async def _refuse_another(self, info: ChangefeedInfo) -> None:
        """:raises GoneError: the sink belongs to another changefeed now."""
        if not await self._is_still_there(info):
            raise GoneError(f"changefeed {info.id} is gone; nothing is done for it any more")

    async def _is_still_there(self, info: ChangefeedInfo) -> bool:
        """A stale request, after another owner has cleaned up, must not meet a successor of the same name."""
        stored = await self._stored(info)
        return stored is not None and stored.created_at == info.created_at

    async def _is_to_be_released(self, info: ChangefeedInfo) -> bool:
        """Nor the same changefeed when it runs again, at a new position."""
        stored = await self._stored(info)
        return stored is not None and (stored.created_at, stored.epoch) == (info.created_at, info.epoch)

    async def _stored(self, info: ChangefeedInfo) -> ChangefeedInfo | None:
        key = str(keys.InfoKey(self._state.cluster, info.namespace, info.id))
        item = await self._client.get(key)
        return None if item is None else ChangefeedInfo.decode(item.value, key=key)

    def _held(self, changefeed: ChangefeedId) -> Ts:
        feed = self._state.changefeeds.get(changefeed)
        if feed is None:
            return MAX_TS
        read_ts = subscription.needed_ts(feed.subscriptions.values(), time.time())
        return min(held.needed_ts(feed.held.values()), resync.needed_ts(feed.resyncs.values()), read_ts)

    def _checkpoint(self, changefeed: ChangefeedId) -> Ts:
        feed = self._state.changefeeds.get(changefeed)
        return feed.status.checkpoint_ts if feed and feed.status else Ts(0)


def _remove(found: Sequence[tuple[LogDirectory, list[str]]]) -> None:
    for place, names in found:
        place.remove(names)


def _positions(feed: Feed, question: ReadPositions) -> tuple[TableRead, ...]:
    sink = feed.open_sink()
    found = []
    for table in question.tables:
        at = sink.visible(table, [span for span in question.spans if span.table_id == table.table_id])
        found.append(TableRead(f"{table.schema_name}.{table.name}", at.version, at.committed_ts))
    return tuple(found)


def _repartition(feed: Feed, question: RepartitionTable) -> Ts:
    failpoints.reach(Point.REPARTITION_BEFORE_SINK)
    order = SpanRepartition(question.old, question.new, question.ts, question.number)
    sink = feed.open_sink()
    assert isinstance(sink, Splits), "no table is split whose sink cannot (preflight.refuse_split)"
    furthest_ts = sink.repartition(question.table, order)
    failpoints.reach(Point.REPARTITION_AFTER_SINK)
    return furthest_ts


def _mark_left(feed: Feed, question: MarkLeft) -> None:
    failpoints.reach(Point.MARK_BEFORE_SINK)
    sink = feed.open_sink()
    if isinstance(sink, MarksLeft):
        sink.mark_left(question.table, question.ts, time=question.time)
    failpoints.reach(Point.MARK_AFTER_SINK)


def _apply(feed: Feed, question: ApplySchema) -> None:
    failpoints.reach(Point.SCHEMA_BEFORE_SINK)
    terms = Terms(feed.config, feed.sink_mode, feed.open_source().survivors)
    apply_ddl.apply(feed.open_sink(), question.record, terms, question.tables)
    failpoints.reach(Point.SCHEMA_AFTER_SINK)
