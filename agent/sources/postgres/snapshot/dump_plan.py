"""Dump plan of PostgreSQL: schemas and chunks under one snapshot, and what of an earlier plan continues.

The rules for continuing, and why they are right, are in ``agent.sources.postgres.snapshot.dump``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agent.errors import SourceUnreachableError
from agent.filter.tables import TableFilter
from agent.ports.snapshot import DoneChunks, DumpOrder, Plan, TablePlan, is_complete
from agent.rows.schema import TableSchema
from agent.sources.postgres.server.catalog import (
    ALL_COLUMNS,
    leaves_sql,
    of_other_names,
    present_schemas,
    rows_of_all,
    try_query,
)
from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.server.keys import keys_of
from agent.sources.postgres.server.terms import AllTerms
from agent.sources.postgres.snapshot.chunks import ChunkPlan, PlanKind, plan_chunks
from agent.sources.postgres.snapshot.rewritten import rewritten
from reactor.ids import Ts
from reactor.records.changefeed import SinkMode
from reactor.records.tables.table import TableRecord

_LOCK_SQL: Final = "LOCK TABLE {} IN ACCESS SHARE MODE"


def plan_tables(
    order: DumpOrder,
    connection: Connection,
    *,
    start_ts: Ts,
    previous: Plan | None,
    done: DoneChunks,
    terms: AllTerms = ALL_COLUMNS,
) -> Plan:
    """Plan all tables of the order in the connection's transaction, which runs under the snapshot of ``start_ts``.

    The tables to read are locked against rewrites for as long as the transaction lasts. ``previous`` is given when its
    slot still exists.

    :raises SourceError: a table is gone or was rewritten just now, or the source failed.
    """
    known = {table.record.table_id: table for table in previous.tables} if previous else {}
    tables = _Planner(order, connection, start_ts, known, done, terms).plan()
    return Plan(order.epoch, previous.start_ts if previous else start_ts, tables)


@dataclass(frozen=True, slots=True)
class _Planner:
    """``known``: the tables of the earlier plan, by id; ``done``: the chunks of it that are finished."""

    order: DumpOrder
    connection: Connection
    start_ts: Ts
    known: Mapping[int, TablePlan]
    done: DoneChunks
    terms: AllTerms

    def plan(self) -> tuple[TablePlan, ...]:
        unfinished = {record.table_id for record in self.order.tables if not self._is_finished(record.table_id)}
        schemas = present_schemas(self.connection, sorted(unfinished), self.terms)
        if self.order.log is None:
            schemas = {table: schema for table, schema in schemas.items() if self._is_wanted(schema)}
        _lock(self.connection, list(schemas.values()))
        gone = unfinished - schemas.keys() | _gone(self.connection, list(schemas.values()))
        schemas = {table: schema for table, schema in schemas.items() if table not in gone}
        if name := rewritten(self.connection, schemas):
            raise SourceUnreachableError(f"{name} was rewritten while the dump began; it starts again by itself")
        order = self.order.without(gone)
        found = order.with_keys(keys_of(self.connection, schemas)).tables
        records = {record.table_id: record for record in found if record.table_id in schemas}
        continued = {table for table, record in records.items() if self._can_continue(record, schemas[table])}
        fresh = {table: record for table, record in records.items() if table not in continued}
        chunks = plan_chunks(
            self.connection,
            [(schemas[table], record.key) for table, record in fresh.items()],
            chunk_rows=self.order.rows_at_once,
            server_version=self.connection.server_version,
        )
        plans = {table: self._fresh(record, schemas[table], chunks[table]) for table, record in fresh.items()}
        plans |= {table: self._continued(self.known[table]) for table in continued}
        return tuple(plans.get(record.table_id) or self.known[record.table_id] for record in order.tables)

    def _is_wanted(self, schema: TableSchema) -> bool:
        """Return whether it has a name that the rules match; it may have had another one when it was found."""
        return TableFilter(self.order.filter.rules).wants(schema.schema_name, schema.name)

    def _is_finished(self, table_id: int) -> bool:
        table = self.known.get(table_id)
        return table is not None and is_complete(table, self.done)

    def _fresh(self, record: TableRecord, schema: TableSchema, chunks: ChunkPlan) -> TablePlan:
        read = record.with_(start_ts=self.start_ts, consistent_ts=Ts(0), rows_estimated=chunks.rows)
        if self.order.log is None:  # it may have been renamed since it was found
            read = read.with_(schema_name=schema.schema_name, name=schema.name)
        return TablePlan(read, schema, chunks, generation=self.order.epoch)

    def _continued(self, table: TablePlan) -> TablePlan:
        return replace(table, record=table.record.with_(consistent_ts=self.start_ts))

    def _can_continue(self, record: TableRecord, schema: TableSchema) -> bool:
        """Return whether finished chunks of an older snapshot can be combined with chunks of this one."""
        table = self.known.get(schema.table_id)
        if table is None or table.record.key != record.key:
            return False
        is_started = any((table.record.table_id, number) in self.done for number in range(table.chunks.count))
        is_by_key = isinstance(table.chunks, ChunkPlan) and table.chunks.kind is PlanKind.KEYS
        is_mended_by_replay = self.order.sink_mode is SinkMode.UPSERT and is_by_key
        if not is_started or not is_mended_by_replay or table.schema != schema:
            return False
        return schema.replica_identity == "f" or not self._has_large_values(schema)

    def _has_large_values(self, schema: TableSchema) -> bool:
        """Return whether an update of the table may leave a value out. Rows visible to our snapshot are not
        vacuumed."""
        [(size,)] = self.connection.query(
            "SELECT coalesce(sum(pg_catalog.pg_relation_size(nullif(reltoastrelid, 0))), 0) "
            f"FROM pg_catalog.pg_class WHERE oid IN {leaves_sql(schema.table_id)}"
        )
        return int(size or 0) > 0


def _lock(connection: Connection, schemas: Sequence[TableSchema]) -> None:
    """Hold off what snapshots do not protect from: a table that is rewritten (ALTER, TRUNCATE) seems empty to them. A
    table that cannot be locked, as a damaged one, is left out: it is refused alone when its rows are read."""
    if not schemas:
        return
    tables = rows_of_all(connection, schemas).values()
    if try_query(connection, _LOCK_SQL.format(", ".join(tables))) is None:
        for table in tables:
            try_query(connection, _LOCK_SQL.format(table))


def _gone(connection: Connection, schemas: Sequence[TableSchema]) -> set[int]:
    """Return the tables that have been dropped since the snapshot; those that are locked keep their names.

    :raises SourceUnreachableError: one has another name by now.
    """
    others = of_other_names(connection, schemas)
    for schema in schemas:
        if others.get(schema.table_id):
            raise SourceUnreachableError(
                f"{schema.qualified_name} was renamed while the dump began; it starts again by itself"
            )
    return set(others)
