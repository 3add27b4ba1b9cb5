"""A member's data plane: opens changefeeds for one session and does the owner's work at source and sink.

Every piece of that work answers with a message, also when it fails, and may be asked for again at any time.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import structlog

from agent.control.runtime import SpanRuntime
from agent.feeds.runtime import Feed
from agent.log.storage import LogDirectory
from agent.ports.sink import SpanRepartition
from agent.units import readers
from capture.member.once import Once
from capture.member.schema_work import SchemaWork
from capture.security.secrets import mask
from owner.jobs import SchemaApplied, SinkCut, SinkRead, TableRead, UpstreamDropped
from reactor import failpoints, keys
from reactor.effects import ApplySchema, CutSink, DropUpstream, ReadSink
from reactor.errors import WeirError
from reactor.failpoints import Point
from reactor.ids import MAX_TS, CaptureId, ChangefeedId, Ts
from reactor.records import held
from reactor.records.changefeed import ChangefeedInfo, RunningError
from reactor.state import ClusterState
from reactor.store.port import EtcdClient

_log = structlog.get_logger()


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
        self._schemas = SchemaWork()
        self._drops = Once("the source")
        self._reads = Once("the sink")
        self._cuts = Once("the sink")

    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        key = str(keys.InfoKey(self._state.cluster, info.namespace, info.id))
        return self._data_plane.open(
            replace(self._data_plane.feed(info), created=self._state.raw[key].create_revision),
            capture=self._capture,
            client=self._client,
            checkpoint=lambda: self._checkpoint(info.id),
            held=lambda: self._held(info.id),
        )

    async def drop_upstream(self, effect: DropUpstream, post: Callable[[UpstreamDropped], None]) -> None:
        error = ""
        try:
            if await self._is_still_there(effect.info):
                await self._clean_up(effect.info)
            failpoints.reach(Point.REMOVE_DROPPED)
        except Exception as failure:  # asked again by the owner, whatever it was
            error = _line(failure)
            _log.warning("cleaning up after a changefeed failed", changefeed=effect.changefeed, error=error)
        post(UpstreamDropped(effect.changefeed, error))

    async def _clean_up(self, info: ChangefeedInfo) -> None:
        """What was made at the source, then files: safe to do again, and once at a time.

        Another owner may clean up at the same time, and a successor of the same name may be there by the time that the
        files go: so only those go that existed before etcd was asked for the last time.
        """
        feed = self._data_plane.feed(info)
        source = feed.open_source()
        directories = (feed.log_directory("main"), feed.manifest("main").directory)

        def drop() -> list[tuple[LogDirectory, list[str]]]:
            source.drop()
            return [(place, place.names()) for place in directories]

        at = info.id, info.incarnation
        found = await self._drops.run(at, drop)
        if await self._is_still_there(info):
            await self._drops.run(at, partial(_remove, found))
            if source.numbers_readers:
                await readers.release(self._client, feed.cluster, feed.reader)

    async def read_sink(self, effect: ReadSink, post: Callable[[SinkRead], None]) -> None:
        """Once at a time for a changefeed."""
        said = partial(SinkRead, effect.changefeed, effect.ts)
        try:
            ask = partial(_read_sink, self._data_plane.feed(effect.info), effect)
            post(said(await self._reads.run(effect.changefeed, ask)))
        except Exception as failure:  # asked again by the owner, whatever it was
            post(said(error=_line(failure)))

    async def cut_sink(self, effect: CutSink, post: Callable[[SinkCut], None]) -> None:
        """Once at a time for a table; what is asked again is the same."""
        at = effect.changefeed, effect.table.table_id
        said = partial(SinkCut, *at, effect.number, effect.ts)
        try:
            if await self._is_still_there(effect.info):
                post(said(await self._cuts.run(at, partial(_cut_sink, self._data_plane.feed(effect.info), effect))))
        except Exception as failure:  # asked again by the owner, whatever it was
            post(said(error=_line(failure)))

    async def apply_schema(self, effect: ApplySchema, post: Callable[[SchemaApplied], None]) -> None:
        try:
            if await self._is_still_there(effect.info):
                await self._schemas.apply(effect, self._data_plane.feed(effect.info), post)
        except Exception as failure:  # asked again by the owner, whatever it was
            error = RunningError(code=getattr(failure, "code", "Internal"), message=_line(failure))
            post(SchemaApplied(effect.changefeed, effect.record.ts, error))

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


def _cut_sink(feed: Feed, effect: CutSink) -> Ts:
    failpoints.reach(Point.CUT_BEFORE_SINK)
    furthest_ts = feed.open_sink().cut(effect.table, SpanRepartition(effect.old, effect.new, effect.ts, effect.number))
    failpoints.reach(Point.CUT_AFTER_SINK)
    return furthest_ts


def _line(failure: Exception) -> str:
    """One line; what we did not raise ourselves goes to the log too."""
    if isinstance(failure, WeirError):
        return str(failure)
    _log.error("work for the owner failed", exc_info=failure)
    return f"{type(failure).__name__}: {mask(str(failure))}"


def _read_sink(feed: Feed, asked: ReadSink) -> tuple[TableRead, ...]:
    sink = feed.open_sink()
    found = []
    for table in asked.tables:
        at = sink.visible(table, [span for span in asked.spans if span.table_id == table.table_id])
        found.append(TableRead(f"{table.schema_name}.{table.name}", at.version, at.committed_ts))
    return tuple(found)
