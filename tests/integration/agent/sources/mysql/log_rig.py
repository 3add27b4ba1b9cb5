"""A sync unit on a real server's binlog, and the sink's tables made from its log, for tests.

The log lies in a directory, its head in the in-memory etcd. The copy is brought up to date as an owner does it: it
flushes up to each schema change, applies that, and continues.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from agent.control.runtime import FlushLimits, SpanPosition
from agent.flush.job import FlushContext, flush
from agent.log.head import LogWriter
from agent.log.head_store import MetaHeadStore
from agent.log.reader import LogReader
from agent.log.retention import Needs
from agent.log.storage import LogDirectory
from agent.ports.sink import FeedContext, ReadsBack
from agent.ports.source import Identity, Position, Scope, StreamOrder
from agent.rows.schema import TableSchema, ZeroDates
from agent.schema_changes.apply import Terms, apply
from agent.settings import SyncSettings
from agent.sinks import open_sink
from agent.sources.mysql.decode.types import arrow_schema
from agent.sources.mysql.server.catalog import read_schemas
from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.server.sql import qualified
from agent.sources.mysql.server.uri import parse_uri
from agent.sources.mysql.settings import MysqlSettings
from agent.sources.mysql.snapshot.rows_text import read_rows, select_list
from agent.sources.mysql.source import MysqlSource
from agent.units.load import create_empty
from agent.units.sync import SyncUnit
from capture.embedded import EmbeddedMariaDB
from reactor.errors import WeirError
from reactor.ids import MAX_TS, CaptureId, ChangefeedId, TableSpan, Ts
from reactor.keys import LogKey, ddl_prefix
from reactor.messages import Barrier
from reactor.records.changefeed import ChangefeedConfig, FilterConfig, SinkMode
from reactor.records.log_head import LogHead
from reactor.records.tables.schema_change import DdlRecord, TableChange
from reactor.records.tables.table import TableRecord
from reactor.store.memory import MemoryClient, MemoryEtcd
from tests.integration.agent.flush.test_job import Inline
from tests.integration.agent.sources.compared import Row, differences
from tests.integration.agent.sources.mysql.binlog_rig import where
from tests.newest import newest_etcd
from tests.patience import patient

_KEY = LogKey("c", "default", ChangefeedId("feed"), "mysql")


@dataclass
class LogRig:
    """One changefeed of a server's tables, as it was created."""

    server: EmbeddedMariaDB
    source: MysqlSource
    scope: Scope
    tables: tuple[TableRecord, ...]
    schemas: dict[int, TableSchema]
    start: Position
    directory: LogDirectory
    etcd: MemoryEtcd = field(default_factory=newest_etcd)

    @property
    def zero_dates(self) -> ZeroDates:
        return ZeroDates(self.scope.settings(MysqlSettings).zero_dates)

    def ddl(self) -> list[DdlRecord]:
        """Return what the log has found to have changed, in its order."""
        prefix = ddl_prefix(_KEY.cluster, _KEY.namespace, _KEY.changefeed)
        found = [DdlRecord.decode(item.value, key=item.key) for item in self.etcd.get_prefix(prefix).items]
        return sorted(found, key=lambda record: record.ts)

    def head(self) -> LogHead:
        item = self.etcd.get(str(_KEY))
        return LogHead.decode(item.value, key=str(_KEY)) if item else LogHead()

    async def read(self) -> None:
        """Read the binlog to its present end, in a session of its own."""
        async with self._running():
            end = where(self.server).resolved
            await self._wait(lambda: self.head().resolved_ts >= end)

    async def join(self, *names: tuple[str, str]) -> None:
        """Read the binlog until these tables, which a changed filter adds, have joined."""
        async with self._running(frozenset(names)):
            await self._wait(lambda: {*names} <= {_name(change) for one in self.ddl() for change in one.changes})

    async def _wait(self, condition: Callable[[], bool]) -> None:
        """Until it holds behind a move of the head, or a change of tables."""
        with anyio.fail_after(patient(60.0)):
            async with MemoryClient(self.etcd).watch_prefix(str(_KEY), start_revision=1) as batches:
                async for batch in batches:
                    if batch.events and condition():
                        return

    @asynccontextmanager
    async def _running(self, joining: frozenset[tuple[str, str]] = frozenset()) -> AsyncIterator[None]:
        order = StreamOrder(self.tables, Identity("", 1), self.schemas, reader=4711, joining=joining)
        unit = SyncUnit(
            self.source.streams(order),
            self.start,
            writer=LogWriter(MetaHeadStore(MemoryClient(self.etcd), _KEY), capture=CaptureId("a")),
            directory=self.directory,
            needs=lambda: Needs(Ts(0), 600.0, MAX_TS, 86_400.0, 10 << 30),
            settings=SyncSettings(),
        )
        async with anyio.create_task_group() as group:
            group.start_soon(unit.run)
            yield
            group.cancel_scope.cancel()


def make_rig(
    server: EmbeddedMariaDB, path: Path, rules: Sequence[str], mode: SinkMode = SinkMode.UPSERT, **settings: Any
) -> LogRig:
    """A changefeed that begins now. ``settings``: of its source."""
    config = ChangefeedConfig(filter=FilterConfig(rules=tuple(rules)), source=settings)
    scope = Scope("c", "feed", mode, config)
    source = MysqlSource(server.uri(), scope)
    tables = source.check().tables
    start = source.begin(tables)
    schemas = dict(source.read_schemas(tables))
    tables = tuple(table.with_(start_ts=start.ts, consistent_ts=start.ts) for table in tables)
    directory = LogDirectory(str(path / "log"), changefeed="feed", source="mysql")
    return LogRig(server, source, scope, tables, schemas, start, directory)


def _name(change: TableChange) -> tuple[str, str]:
    return (change.table.schema_name, change.table.name) if change.table else ("", "")


class Copy:
    """The sink's tables. ``held``: table id → its name at the source, and why."""

    def __init__(self, rig: LogRig, lake: Path) -> None:
        mode = rig.scope.sink_mode
        uri = f"delta+file://{lake}"
        sink = open_sink(uri, changefeed="feed", mode=mode)
        assert isinstance(sink, ReadsBack)
        self._sink, self._rig, self._mode = sink, rig, mode
        self._head = rig.head()
        self._changes: dict[int, tuple[Ts, TableChange]] = {}
        self.tables = {table.table_id: table for table in rig.tables}
        self.held: dict[int, tuple[tuple[str, str], str]] = {}
        create_empty(sink, [(table, rig.schemas[table.table_id]) for table in rig.tables])
        self._context = FlushContext(
            FeedContext("feed", uri, mode), sink=sink, reader=LogReader(rig.directory), executor=Inline()
        )
        self._at = {id: self._begin(table, rig.start.ts) for id, table in self.tables.items()}

    def bring_up(self) -> None:
        """Apply everything that has been read."""
        for found in self._rig.ddl():
            self._flush(Ts(found.ts - 1))
            self._change(found)
        self._flush(self._head.resolved_ts)

    def differences(self) -> dict[tuple[str, str], tuple[list[Row], list[Row]]]:
        """Return, by table, the rows that only the source has, and those that only the sink has."""
        wrong, zero_dates = {}, self._rig.zero_dates
        with connect(parse_uri(self._rig.server.uri())) as connection:
            for table in self.tables.values():
                name = table.schema_name, table.name
                [schema] = read_schemas(connection, [name], zero_dates=zero_dates).values()
                columns = [column.name for column in schema.columns]
                sql = f"SELECT {select_list(schema.columns)} FROM {qualified(*name)}"
                there = map(self._sink.as_stored, read_rows(connection, schema, sql))
                here = self._sink.read_rows(table, schema, arrow_schema(schema))
                if any(found := differences(there, here, columns)):
                    wrong[name] = found
        return wrong

    def _begin(self, table: TableRecord, ts: Ts) -> SpanPosition:
        return SpanPosition(TableSpan(table.table_id), table, ts, ts)

    def _change(self, found: DdlRecord) -> None:
        are_held = set(self.held)
        for change in found.changes:
            if change.is_hold:
                self._hold_by(change)
            elif change.table_id in self.held:
                self._rename_held(change)
        are_held |= set(self.held)
        changes = tuple(one for one in found.alterations if one.table is None or one.table_id not in are_held)
        try:
            apply(self._sink, found.with_(changes=changes), Terms(self._rig.scope.config, self._mode))
        except WeirError as error:
            for change in changes:
                if record := change.table or self.tables.get(change.table_id):  # a held one may be dropped beside it
                    self._hold(change.table_id, (record.schema_name, record.name), str(error))
            return
        for change in changes:
            self._applied(found.ts, change)

    def _hold_by(self, change: TableChange) -> None:
        record = change.table or self.tables.get(change.table_id)
        name = (record.schema_name, record.name) if record else self.held[change.table_id][0]
        self._hold(change.table_id, name, change.reason)

    def _rename_held(self, change: TableChange) -> None:
        """A held table may get another name, or be dropped."""
        _, reason = self.held.pop(change.table_id)
        if change.table is not None:
            self.held[change.table_id] = (change.table.schema_name, change.table.name), reason

    def _applied(self, ts: Ts, change: TableChange) -> None:
        id = change.table_id
        if change.table is None:
            self.tables.pop(id, None)
            self._at.pop(id, None)
            return
        if change.table.to_copy:
            self._hold(id, (change.table.schema_name, change.table.name), "is to be copied")
            return
        before = self.tables.get(id)
        start_ts = before.start_ts if before else ts
        record = self.tables[id] = change.table.with_(start_ts=start_ts, consistent_ts=start_ts)
        self._changes[id] = ts, change
        committed_ts = self._sink.committed_ts(record, TableSpan(id))
        assert committed_ts is not None, record
        at = self._at.get(id)
        self._at[id] = SpanPosition(TableSpan(id), record, committed_ts, at.checkpoint_ts if at else committed_ts)

    def _hold(self, id: int, name: tuple[str, str], reason: str) -> None:
        self.held[id] = name, reason
        self.tables.pop(id, None)
        self._at.pop(id, None)

    def _flush(self, to_ts: Ts) -> None:
        limits = FlushLimits(self._head, Barrier(to_ts), tables=dict(self.tables), changes=self._changes)
        is_behind = True
        while is_behind and self._at:
            flushed = flush(self._context, list(self._at.values()), limits)
            for span in flushed.spans:
                id = span.position.span.table_id
                if span.error is not None:
                    record = self.tables[id]
                    self._hold(id, (record.schema_name, record.name), f"{span.error.code}: {span.error.message}")
                else:
                    self._at[id] = span.position
            is_behind = flushed.is_behind
