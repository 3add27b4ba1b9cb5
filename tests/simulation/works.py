"""What a machine's process gives its lives to work with: ``capture.member.services.DataPlane`` over ``outside``."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from agent.control.runtime import SpanRuntime
from agent.errors import SinkConfigError, SourceUnreachableError
from agent.ports.sink import SpanRepartition
from capture.api.port import ChangefeedSpec, TableDiff
from capture.errors import GoneError
from capture.member.services import MemberDataPlane
from capture.security.secrets import Keeper
from owner.questions import ApplySchema, ReadPositions, ReleaseSource, RepartitionTable, TableRead
from reactor import keys
from reactor.ids import MAX_TS, CaptureId, Ts
from reactor.questions import A, Ask
from reactor.records.changefeed import ChangefeedInfo, LogHead, SealedUri, TableRecord, UnitRecord
from reactor.records.held import needed_ts
from reactor.records.partitioning import TablePartitioning
from reactor.state import ClusterState
from reactor.store.port import Compare, EtcdClient, Target
from tests.simulation.outside import Outside
from tests.simulation.parts import SimulatedParts

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

T = TypeVar("T")


class OpenKeeper(Keeper):
    """Seals nothing: encryption is random, and here is nobody to hide from."""

    def __init__(self) -> None:
        """Without a key."""

    def seal(self, uri: str) -> SealedUri:
        return SealedUri(masked=uri, sealed=uri)

    def open(self, sealed: SealedUri) -> str:
        return sealed.sealed


class SimulatedWorks:
    """One machine's works; see ``capture.member.services.DataPlane``."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.keeper: Keeper = OpenKeeper()

    async def start(self, client: EtcdClient) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    def for_life(self, client: EtcdClient, capture: CaptureId, state: ClusterState) -> MemberDataPlane:
        return SimulatedLifeWorks(self._node, client, capture, state)

    async def check(self, spec: ChangefeedSpec) -> tuple[str, ...]:
        """Whatever is asked for can be."""
        return ()

    async def recorded(
        self, info: ChangefeedInfo, unit: UnitRecord, partitionings: Mapping[int, TablePartitioning]
    ) -> tuple[Ts, ...]:
        tables = self._node.world.outside.sinks[info.sink.sealed].tables
        found = [tables.get(table.table_id) for table in unit.tables]
        if not all(found):
            raise SinkConfigError("the sink has no record of a table")
        return tuple(min(table.records.values()) for table in found if table)

    async def check_source_again(self, info: ChangefeedInfo, unit: UnitRecord) -> None:
        """There is only one server."""

    @asynccontextmanager
    async def comparison(
        self, info: ChangefeedInfo, tables: Sequence[TableRecord], head: LogHead
    ) -> "AsyncIterator[Comparison]":
        yield Comparison(self._node.world, info, tables)


class Comparison:
    """The source as it is now, and later the sink's tables, read one after the other."""

    def __init__(self, world: "World", info: ChangefeedInfo, tables: Sequence[TableRecord]) -> None:
        self._tables = tables
        self._world = world
        self._outside: Outside = world.outside
        self._info = info
        self.ts = self._outside.upstreams[info.source.sealed].position

    async def run(self, ids: Collection[int]) -> list[TableDiff]:
        upstream = self._outside.upstreams[self._info.source.sealed]
        sink = self._outside.sinks[self._info.sink.sealed]
        events = upstream.between(Ts(0), self.ts)
        found = []
        for table in self._tables:
            if table.table_id not in ids:
                continue
            await anyio.sleep(self._world.weather.storage_s(self._world.chances))
            there = sink.tables.get(table.table_id)
            wanted = {event.number for event in events if event.table_id == table.table_id}
            stored = set(there.rows) if there else set()
            found.append(TableDiff(table=table.name, equal=stored == wanted, ts=self.ts))
        return found


class SimulatedLifeWorks:
    def __init__(self, node: "Node", client: EtcdClient, capture: CaptureId, state: ClusterState) -> None:
        self._node = node
        self._client = client
        self._capture = capture
        self._state = state

    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        def checkpoint() -> Ts:
            feed = self._state.changefeeds.get(info.id)
            return feed.status.checkpoint_ts if feed and feed.status else Ts(0)

        def held() -> Ts:
            feed = self._state.changefeeds.get(info.id)
            return needed_ts(feed.held.values()) if feed else MAX_TS

        key = str(keys.InfoKey(self._state.cluster, info.namespace, info.id))
        life = Compare(key, Target.CREATE_REVISION, self._state.raw[key].create_revision)
        return SimulatedParts(
            self._node, info, capture=self._capture, client=self._client, life=life, checkpoint=checkpoint, held=held
        )

    async def answer(self, ask: Ask[A]) -> A:
        handlers: dict[type, Callable[[ChangefeedInfo, Any], Awaitable[Any]]] = {
            ReleaseSource: self._release_source,
            ReadPositions: self._read_positions,
            RepartitionTable: self._repartition_table,
            ApplySchema: self._apply_schema,
        }
        found: A = await handlers[type(ask.question)](ask.info, ask.question)
        return found

    async def _read_positions(self, info: ChangefeedInfo, question: ReadPositions) -> tuple[TableRead, ...]:
        sink = self._node.world.outside.sinks[info.sink.sealed]
        await anyio.sleep(0.05)
        records = [(table.table_id, sink.tables.get(table.table_id)) for table in question.tables]
        return tuple(
            TableRead(str(id), str(len(table.rows)), max(table.records.values())) for id, table in records if table
        )

    async def _repartition_table(self, info: ChangefeedInfo, question: RepartitionTable) -> Ts:
        sink = self._node.world.outside.sinks[info.sink.sealed]
        order = SpanRepartition(question.old, question.new, question.ts, question.number)
        await self._refuse_another(info)
        return await self._node.in_thread(self._ask(lambda: sink.repartition(order)))

    async def _apply_schema(self, info: ChangefeedInfo, question: ApplySchema) -> None:
        """Rows have no columns here; the sink checks that it is the moment."""
        record, sink = question.record, self._node.world.outside.sinks[info.sink.sealed]
        await self._refuse_another(info)
        for change in record.alterations:
            await self._node.in_thread(self._ask(partial(sink.alter, change.table_id, record.ts)))

    async def _release_source(self, info: ChangefeedInfo, question: ReleaseSource) -> None:
        """In the order of ``capture.member.member_data_plane``: a look, the source, a list of files, a look, the
        files."""
        if await self._is_still_there(info):
            await self._clean_up(info)

    async def _refuse_another(self, info: ChangefeedInfo) -> None:
        if not await self._is_still_there(info):
            raise GoneError(
                f"changefeed {info.id} is gone, or another of its name is here; nothing is done for it any more"
            )

    async def _clean_up(self, info: ChangefeedInfo) -> None:
        outside = self._node.world.outside
        storage = outside.storage(info.id)
        await self._node.in_thread(self._ask(outside.upstreams[info.source.sealed].drop_slot))
        names = await self._node.in_thread(self._ask(storage.names))
        if await self._is_still_there(info):
            await self._node.in_thread(self._ask(lambda: storage.drop(names)))

    async def _ask(self, request: Callable[[], T]) -> T:
        world = self._node.world
        if world.weather.breaks(world.chances):
            raise SourceUnreachableError("no answer")
        return await world.request(request, after_s=world.weather.storage_s(world.chances))

    async def _is_still_there(self, info: ChangefeedInfo) -> bool:
        key = str(keys.InfoKey(self._state.cluster, info.namespace, info.id))
        item = await self._client.get(key)
        return item is not None and ChangefeedInfo.decode(item.value, key=key).created_at == info.created_at
