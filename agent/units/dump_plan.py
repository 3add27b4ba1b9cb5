"""What a dump will read: every table's schema and chunks under one snapshot, and what of an earlier plan goes on.

The rules of going on, and why they are right, stand in ``agent.units.dump``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agent.ports import Sink
from agent.schema import TableSchema
from agent.sources.postgres.catalog import read_schemas
from agent.sources.postgres.chunks import PlanKind, plan_chunks
from agent.sources.postgres.connection import Connection
from agent.sources.postgres.export import ExportedSnapshot
from agent.sources.postgres.snapshot import session
from agent.sources.postgres.uri import parse_uri
from agent.units.manifest import DoneChunks, Plan, TablePlan
from reactor.ids import Ts
from reactor.records import SinkMode, TableRecord


@dataclass(frozen=True, slots=True)
class DumpOrder:
    """What to dump, and where to. ``open_sink`` travels to the executors: a partial of ``agent.sinks.open_sink``.

    ``epoch`` is the order's number (``UnitRecord.epoch``): it grows with every run. The tables are published already:
    what changes between the slot's start and a later publication would be in neither snapshot nor stream.
    """

    source: str
    slot: str
    tables: tuple[TableRecord, ...]
    sink_mode: SinkMode
    open_sink: Callable[[], Sink]
    epoch: int
    chunk_rows: int = 250_000
    #: chunks that are read at the same time, each over a connection of its own
    parallel: int = 4


def is_complete(table: TablePlan, done: DoneChunks) -> bool:
    return all((table.record.table_id, number) in done for number in range(table.chunks.count))


def plan_tables(order: DumpOrder, export: ExportedSnapshot, *, previous: Plan | None, done: DoneChunks) -> Plan:
    """Plan all tables of the order under the exported snapshot; ``previous`` is given when its slot still stands.

    :raises SourceError: a table is gone, or the source failed.
    """
    known = {table.record.table_id: table for table in previous.tables} if previous else {}
    with session(parse_uri(order.source), export.snapshot) as connection:
        planner = _Planner(order, connection, export.start_ts, known, done)
        tables = planner.plan()
    return Plan(order.epoch, order.slot, previous.start_ts if previous else export.start_ts, tables)


@dataclass(frozen=True, slots=True)
class _Planner:
    """``known``: the tables of the earlier plan, by id; ``done``: the chunks of it that are finished."""

    order: DumpOrder
    connection: Connection
    start_ts: Ts
    known: Mapping[int, TablePlan]
    done: DoneChunks

    def plan(self) -> tuple[TablePlan, ...]:
        unfinished = [record.table_id for record in self.order.tables if not self._is_finished(record.table_id)]
        schemas = read_schemas(self.connection, unfinished)
        return tuple(
            self._plan_table(record, schemas[record.table_id])
            if record.table_id in schemas
            else self.known[record.table_id]
            for record in self.order.tables
        )

    def _is_finished(self, table_id: int) -> bool:
        table = self.known.get(table_id)
        return table is not None and is_complete(table, self.done)

    def _plan_table(self, record: TableRecord, schema: TableSchema) -> TablePlan:
        table = self.known.get(record.table_id)
        if table is not None and self._goes_on(table, schema):
            return replace(table, record=table.record.with_(consistent_ts=self.start_ts))
        chunks = plan_chunks(
            self.connection,
            schema,
            key=record.key,
            chunk_rows=self.order.chunk_rows,
            server_version=self.connection.server_version,
        )
        fresh = record.with_(start_ts=self.start_ts, consistent_ts=Ts(0), rows_estimated=chunks.rows)
        return TablePlan(fresh, schema, chunks, generation=self.order.epoch)

    def _goes_on(self, table: TablePlan, schema: TableSchema) -> bool:
        """Whether finished chunks of an older snapshot are of use beside chunks of this one."""
        is_started = any((table.record.table_id, number) in self.done for number in range(table.chunks.count))
        is_mended_by_replay = self.order.sink_mode is SinkMode.UPSERT and table.chunks.kind is PlanKind.KEYS
        return is_started and is_mended_by_replay and table.schema == schema
