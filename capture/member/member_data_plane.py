"""A member's data plane: opens changefeeds for one session, and answers the owner's questions at source and sink.

Each question has its handler here; what they have in common is in ``capture.member.asking``.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from anyio import CapacityLimiter, to_thread

from agent.control.runtime import SpanRuntime
from agent.feeds.runtime import Feed
from agent.log.storage import LogDirectory
from agent.ports.sink import SpanRepartition, Splits
from agent.schema_changes import apply as apply_ddl
from agent.schema_changes.apply import Terms
from agent.units import readers
from capture.errors import GoneError
from owner.questions import ApplySchema, ReadPositions, ReleaseSource, RepartitionTable, TableRead
from reactor import failpoints, keys
from reactor.failpoints import Point
from reactor.ids import MAX_TS, CaptureId, ChangefeedId, Ts
from reactor.questions import A, Ask, Question
from reactor.records import held
from reactor.records.changefeed import ChangefeedInfo
from reactor.state import ClusterState
from reactor.store.port import EtcdClient

T = TypeVar("T")

#: questions of one kind that are answered at one time
_THREADS = 32


class Feeds(Protocol):
    """The capture's data plane: it knows Spark, the log storage and the key to secrets."""

    def feed(self, info: ChangefeedInfo) -> Feed:
        """:raises ConfigError: sealed with another key, or a reference that names nothing here."""
        ...

    def open(
        self,
        feed: Feed,
        *,
        capture: CaptureId,
        client: EtcdClient,
        checkpoint: Callable[[], Ts],
        held: Callable[[], Ts],
    ) -> SpanRuntime: ...


class LocalMemberDataPlane:
    """``capture.member.services.MemberDataPlane`` over real sources and sinks."""

    def __init__(self, data_plane: Feeds, client: EtcdClient, capture: CaptureId, state: ClusterState) -> None:
        self._data_plane = data_plane
        self._client = client
        self._capture = capture
        self._state = state
        self._threads: dict[type, CapacityLimiter] = {}
        self._handlers: Mapping[type, Callable[[ChangefeedInfo, Any], Awaitable[Any]]] = {
            ReleaseSource: self._release_source,
            ReadPositions: self._read_positions,
            RepartitionTable: self._repartition_table,
            ApplySchema: self._apply_schema,
        }

    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        key = str(keys.InfoKey(self._state.cluster, info.namespace, info.id))
        return self._data_plane.open(
            replace(self._data_plane.feed(info), created=self._state.raw[key].create_revision),
            capture=self._capture,
            client=self._client,
            checkpoint=lambda: self._checkpoint(info.id),
            held=lambda: self._held(info.id),
        )

    async def answer(self, ask: Ask[A]) -> A:
        """See ``capture.member.asking``."""
        found: A = await self._handlers[type(ask.question)](ask.info, ask.question)
        return found

    async def _release_source(self, info: ChangefeedInfo, question: ReleaseSource) -> None:
        """What was made at the source, then files.

        Another owner may clean up at the same time, and a successor of the same name may be there by the time that the
        files go: so only those go that existed before etcd was asked for the last time.
        """
        if await self._is_still_there(info):
            feed = self._data_plane.feed(info)
            source = feed.open_source()
            directories = (feed.log_directory("main"), feed.manifest("main").directory)

            def drop() -> list[tuple[LogDirectory, list[str]]]:
                source.drop()
                return [(place, place.names()) for place in directories]

            found = await self._in_thread(question, drop)
            if await self._is_still_there(info):
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
        await self._in_thread(question, partial(_apply, self._data_plane.feed(info), question))

    async def _in_thread(self, question: Question[Any], work: Callable[[], T]) -> T:
        """Threads of one kind of question: a rewrite that takes hours keeps no removal waiting, nor the log."""
        limiter = self._threads.setdefault(type(question), CapacityLimiter(_THREADS))
        return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)

    async def _refuse_another(self, info: ChangefeedInfo) -> None:
        """:raises GoneError: the sink is another changefeed's by now."""
        if not await self._is_still_there(info):
            raise GoneError(f"changefeed {info.id} is gone; nothing is done for it any more")

    async def _is_still_there(self, info: ChangefeedInfo) -> bool:
        """A stale request, after another owner has cleaned up, must not meet a successor of the same name."""
        key = str(keys.InfoKey(self._state.cluster, info.namespace, info.id))
        item = await self._client.get(key)
        return item is not None and ChangefeedInfo.decode(item.value, key=key).created_at == info.created_at

    def _held(self, changefeed: ChangefeedId) -> Ts:
        feed = self._state.changefeeds.get(changefeed)
        return held.needed_ts(feed.held.values()) if feed else MAX_TS

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


def _apply(feed: Feed, question: ApplySchema) -> None:
    failpoints.reach(Point.SCHEMA_BEFORE_SINK)
    terms = Terms(feed.config, feed.sink_mode, feed.open_source().survivors)
    apply_ddl.apply(feed.open_sink(), question.record, terms, question.tables)
    failpoints.reach(Point.SCHEMA_AFTER_SINK)
