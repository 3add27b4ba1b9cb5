"""Simulated data plane: ``capture.member.services.DataPlane`` over ``outside``, for one machine's process."""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from agent.control.runtime import SpanRuntime
from agent.errors import SinkConfigError, SourceUnreachableError
from agent.feeds.progress import Progress
from agent.feeds.read_back import HeldLog
from agent.health.health import Health
from agent.log.quiet import QuietMoves
from agent.ports.sink import Maintained, SpanRepartition
from agent.ports.source import Identity, Signal, SourceReport
from agent.ports.table_files import TableFiles
from agent.rows.batches import SegmentRef
from agent.rows.schema import TableSchema
from capture.api.port import WHOLE, ChangefeedSpec, DiffAsked, RepairAsked, TableDiff, TableRepair
from capture.errors import GoneError
from capture.member.copies import CopyPlace, CopyProgress
from capture.member.preflight import SinkRecord
from capture.member.services import LogRead, MemberDataPlane
from capture.security.secrets import Keeper
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
from reactor import keys
from reactor.ids import MAX_TS, CaptureId, TableSpan, Ts
from reactor.questions import A, Ask
from reactor.records.changefeed import ChangefeedInfo, SealedUri, UnitRecord
from reactor.records.log_head import LogHead
from reactor.records.tables.held import needed_ts
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.resync import needed_ts as copied_ts
from reactor.records.tables.schema_change import SchemaChangeKind
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState
from reactor.store.port import Compare, MetaStore, Target
from tests.simulation.outside import Outside
from tests.simulation.parts import SimulatedParts

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.world import World

T = TypeVar("T")


class OpenKeeper(Keeper):
    """Seals nothing: encryption is random, and would make runs differ."""

    def __init__(self) -> None:
        """Use a key that every capture has."""
        super().__init__(base64.urlsafe_b64encode(b"simulated".ljust(32)))

    def seal(self, uri: str) -> SealedUri:
        return SealedUri(masked=uri, sealed=uri)

    def open(self, sealed: SealedUri) -> str:
        return sealed.sealed


class SimulatedDataPlane:
    """One machine's data plane; see ``capture.member.services.DataPlane``."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.keeper: Keeper = OpenKeeper()
        self.health = Health()
        self.waits_for = ""
        self._trials = anyio.Lock()

    async def start(self, client: MetaStore) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    def for_member(self, client: MetaStore, capture: CaptureId, state: ClusterState) -> MemberDataPlane:
        return SimulatedMemberDataPlane(self._node, client, capture, state, self._trials)

    async def check(self, spec: ChangefeedSpec) -> tuple[str, ...]:
        """Accept everything."""
        return ()

    def check_reach(self, *, source: str | None = None, sink: str | None = None) -> None:
        """Accept everything."""

    async def recorded(
        self, info: ChangefeedInfo, unit: UnitRecord, partitionings: Mapping[int, TablePartitioning]
    ) -> tuple[SinkRecord, ...]:
        tables = self._node.world.outside.sinks[info.sink.sealed].tables
        found = [tables.get(table.table_id) for table in unit.tables]
        if not all(found):
            raise SinkConfigError("the sink has no record of a table")
        return tuple(SinkRecord(min(table.records.values())) for table in found if table)

    async def check_source_again(self, info: ChangefeedInfo, unit: UnitRecord, head: LogHead) -> None:
        """Does nothing: there is only one server."""

    async def maintain(self, info: ChangefeedInfo, table: TableRecord) -> Maintained:
        """Find nothing to do."""
        return Maintained()

    async def table_files(self, info: ChangefeedInfo, table: TableRecord) -> TableFiles:
        """Find none: rows are in memory."""
        return TableFiles()

    async def discover(self, info: ChangefeedInfo) -> SourceReport:
        """Find nothing: the simulation's filters do not change."""
        return SourceReport(Identity(""), ())

    async def publish(self, info: ChangefeedInfo, tables: Sequence[TableRecord]) -> None:
        """Send everything anyhow."""

    async def signals(self, info: ChangefeedInfo, limit: int) -> Sequence[Signal]:
        """Find none: no changefeed has a signal table."""
        return ()

    async def read_log(self, info: ChangefeedInfo, source: str, read: LogRead) -> tuple[SegmentRef, ...]:
        """Find nothing: the simulation's logs have no readers."""
        return ()

    async def table_schema(self, info: ChangefeedInfo, table: TableRecord) -> TableSchema:
        return TableSchema(table.table_id, "", "", ())

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

    async def run(
        self, ids: Collection[int], asked: DiffAsked = WHOLE, progress: Progress | None = None
    ) -> list[TableDiff]:
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

    async def repair(
        self, ids: Collection[int], partitionings: Mapping[int, TablePartitioning], asked: RepairAsked
    ) -> list[TableRepair]:
        """Nobody but Weir writes simulated sinks: there is nothing to repair."""
        return [
            TableRepair(table=one.table, ts=one.ts, dry_run=asked.dry_run) for one in await self.run(ids) if one.equal
        ]

    async def read_back(self, table: TableRecord, spans: Sequence[TableSpan], log: HeldLog) -> int:
        """Simulated rows have no values that could be left out."""
        return 0


class SimulatedMemberDataPlane:
    def __init__(
        self, node: "Node", client: MetaStore, capture: CaptureId, state: ClusterState, trials: anyio.Lock
    ) -> None:
        self._node = node
        self._trials = trials
        self._quiet = QuietMoves(client)
        self._client = client
        self._capture = capture
        self._state = state

    @property
    def copies(self) -> Mapping[CopyPlace, CopyProgress]:
        return {}

    async def load(self, info: ChangefeedInfo) -> None:
        await anyio.sleep(0.05)

    def open(self, info: ChangefeedInfo) -> SpanRuntime:
        def checkpoint() -> Ts:
            feed = self._state.changefeeds.get(info.id)
            return feed.status.checkpoint_ts if feed and feed.status else Ts(0)

        def held() -> Ts:
            feed = self._state.changefeeds.get(info.id)
            return min(needed_ts(feed.held.values()), copied_ts(feed.resyncs.values())) if feed else MAX_TS

        key = str(keys.InfoKey(self._state.cluster, info.namespace, info.id))
        guard = Compare(key, Target.CREATE_REVISION, self._state.raw[key].create_revision)
        member = str(keys.CaptureKey(self._state.cluster, self._capture))
        return SimulatedParts(
            self._node,
            info,
            capture=self._capture,
            client=self._client,
            guard=guard,
            member=Compare(member, Target.CREATE_REVISION, self._state.raw[member].create_revision),
            trials=self._trials,
            checkpoint=checkpoint,
            held=held,
            quiet=self._quiet,
        )

    async def answer(self, ask: Ask[A]) -> A:
        handlers: dict[type, Callable[[ChangefeedInfo, Any], Awaitable[Any]]] = {
            ReleaseSource: self._release_source,
            ReadPositions: self._read_positions,
            RepartitionTable: self._repartition_table,
            ApplySchema: self._apply_schema,
            MeasureTables: self._measure_tables,
            CopyTable: self._copy_table,
            PlaceTable: self._place_table,
            DropCopy: self._drop_copy,
            MarkLeft: self._mark_left,
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
        """Rows have no columns here; the sink checks the position."""
        record, sink = question.record, self._node.world.outside.sinks[info.sink.sealed]
        await self._refuse_another(info)
        for change in record.alterations:
            is_new = change.kind is SchemaChangeKind.CREATE
            step = partial(sink.create, ts=Ts(record.ts - 1)) if is_new else partial(sink.alter, ts=record.ts)
            await self._node.in_thread(self._ask(partial(step, change.table_id)))

    async def _measure_tables(self, info: ChangefeedInfo, question: MeasureTables) -> Mapping[int, int]:
        """Every third table is large."""
        upstream = self._node.world.outside.upstreams[info.source.sealed]
        known = await self._node.in_thread(self._ask(lambda: {table.table_id for table in upstream.tables}))
        return {id: 0 if id % 3 else 10**9 for id in known & {table.table_id for table in question.tables}}

    async def _copy_table(self, info: ChangefeedInfo, question: CopyTable) -> TableCopied:
        """Copy the current rows when the copy begins; its number identifies what an earlier run has copied."""
        await self._refuse_another(info)
        outside = self._node.world.outside
        upstream, copies = outside.upstreams[info.source.sealed], outside.sinks[info.sink.sealed].copies
        place = question.table.table_id, question.number
        ts = await self._node.in_thread(self._ask(lambda: copies.setdefault(place, upstream.position)))
        await anyio.sleep(self._node.world.weather.flush_s(self._node.world.chances))
        rows = [event for event in upstream.between(Ts(0), ts) if event.table_id == question.table.table_id]
        return TableCopied(question.table.with_(start_ts=ts), len(rows))

    async def _place_table(self, info: ChangefeedInfo, question: PlaceTable) -> None:
        await self._refuse_another(info)
        sink = self._node.world.outside.sinks[info.sink.sealed]
        await self._node.in_thread(self._ask(lambda: sink.replace(question.table, question.spans, question.number)))

    async def _drop_copy(self, info: ChangefeedInfo, question: DropCopy) -> None:
        copies = self._node.world.outside.sinks[info.sink.sealed].copies
        await self._node.in_thread(self._ask(lambda: copies.pop((question.table_id, question.number), None)))

    async def _mark_left(self, info: ChangefeedInfo, question: MarkLeft) -> None:
        """Simulated tables have no marks."""
        await self._refuse_another(info)

    async def _release_source(self, info: ChangefeedInfo, question: ReleaseSource) -> None:
        """In the order of ``capture.member.member_data_plane``: check, clean the source, list files, check, remove
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
