"""Dump plan of MySQL: the chunks of every table under one view of the source, reusing chunks of an earlier plan.

The rules for reuse, and the reasons, are in ``dump``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.errors import StatementRefusedError
from agent.ports.snapshot import DoneChunks, DumpOrder, Plan, TablePlan, is_complete
from agent.rows.schema import TableSchema
from agent.sources.mysql.position.positions import SourcePosition
from agent.sources.mysql.snapshot.chunk_plan import Queries, plan_chunks
from agent.sources.mysql.snapshot.chunks import ChunkPlan, PlanKind
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord


def needs_exact_rows(record: TableRecord, sink_mode: SinkMode, *, has_full_images: bool) -> bool:
    """Return whether all rows must be of one moment, because replay cannot make them consistent."""
    return sink_mode is not SinkMode.UPSERT or not record.key or not has_full_images


@dataclass(frozen=True, slots=True)
class Planner:
    """``at``: the place of the view, or a place before it. ``previous``: the earlier plan, if replay from its place is
    possible; ``done``: its finished chunks. ``is_exact``: all rows are those at ``at``."""

    order: DumpOrder
    schemas: Mapping[int, TableSchema]
    at: SourcePosition
    previous: Plan | None
    done: DoneChunks
    is_exact: bool
    has_full_images: bool

    def plan(self, connection: Queries) -> Plan:
        """Plan in the connection's transaction, whose view is not older than ``at``."""
        known = {table.record.table_id: table for table in self.previous.tables} if self.previous else {}
        tables = tuple(self._plan_table(connection, record, known.get(record.table_id)) for record in self.order.tables)
        start_ts, position = Ts(self.at.ts - 1), self.at.to_json()
        if self.previous:
            start_ts, position = self.previous.start_ts, self.previous.position
        return Plan(self.order.epoch, start_ts, tables, position, self.at.identity.timeline)

    def _plan_table(self, connection: Queries, record: TableRecord, known: TablePlan | None) -> TablePlan:
        if known is not None and is_complete(known, self.done):
            return known
        schema = self.schemas[record.table_id]
        if known is not None and self._is_reusable(known, schema):
            return replace(known, record=known.record.with_(consistent_ts=self._placeholder_ts))
        try:
            chunks = plan_chunks(connection, schema, key=record.key, chunk_rows=self.order.rows_at_once)
        except StatementRefusedError:  # as for a damaged table, which is refused alone when this chunk is read
            chunks = ChunkPlan(PlanKind.WHOLE, 1, 0)
        fresh = record.with_(
            start_ts=Ts(self.at.ts - 1),
            consistent_ts=Ts(0) if self.is_exact else self._placeholder_ts,
            rows_estimated=chunks.rows,
            collation=schema.collation or record.collation,
        )
        return TablePlan(fresh, schema, chunks, generation=self.order.epoch)

    @property
    def _placeholder_ts(self) -> Ts:
        """Return a placeholder that is not zero: ``Dumper.settle`` sets the final Ts after all rows are read."""
        return Ts(self.at.ts - 1)

    def _is_reusable(self, known: TablePlan, schema: TableSchema) -> bool:
        """Return whether finished chunks of an older view can be combined with chunks of this one."""
        is_started = any((known.record.table_id, number) in self.done for number in range(known.chunks.count))
        exact = needs_exact_rows(known.record, self.order.sink_mode, has_full_images=self.has_full_images)
        is_cut = isinstance(known.chunks, ChunkPlan) and known.chunks.kind is not PlanKind.WHOLE
        return is_started and is_cut and not exact and known.schema == schema
