"""PostgreSQL source: a slot, its publications, and what reads from them."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import pyarrow as pa

from agent.errors import OpenTransactionsError, PositionLostError, SourceConfigError, SourceUnreachableError
from agent.filter.expression_sql import SqlWords, in_sql
from agent.filter.expressions import parse
from agent.ports.checksums import ALL_KEYS, KeyRange, NoChecksums, SourceChecksums
from agent.ports.snapshot import Wait
from agent.ports.source import BEGIN, NOW, SIGNAL_MAX, Identity, Position, Scope, Signal, SourceReport, StreamOrder
from agent.rows.schema import TableSchema
from agent.rows.survivors import Survivors
from agent.sources.common.key_constants import ConstantWords, key_conditions
from agent.sources.common.starts import refuse_future
from agent.sources.postgres.preflight import check_source
from agent.sources.postgres.publication import slots
from agent.sources.postgres.publication.slots import Names
from agent.sources.postgres.server.catalog import of_other_names, present_schemas, read_schemas
from agent.sources.postgres.server.connection import catalog_session, connect
from agent.sources.postgres.server.identity import read_identity
from agent.sources.postgres.server.lsn import END_SQL, format_lsn, last_ts
from agent.sources.postgres.server.sql import identifier, literal, qualified
from agent.sources.postgres.server.terms import ALL_ROWS, AllTerms, read_terms, refuse_unsent
from agent.sources.postgres.server.uri import parse_uri
from agent.sources.postgres.settings import PostgresSettings
from agent.sources.postgres.snapshot import survivors
from agent.sources.postgres.snapshot.checksums import checksums
from agent.sources.postgres.snapshot.chunks import WHOLE_TABLE
from agent.sources.postgres.snapshot.dump import PostgresDumper
from agent.sources.postgres.snapshot.export import ExportedSnapshot, create_slot
from agent.sources.postgres.snapshot.rewritten import refuse_rewritten
from agent.sources.postgres.snapshot.rows import copy_rows
from agent.sources.postgres.snapshot.sessions import SnapshotSessions
from agent.sources.postgres.streams import PostgresStreams
from reactor.ids import Ts
from reactor.records.changefeed import FilterConfig
from reactor.records.tables.table import TableRecord

#: how long a comparison waits for open transactions
_COMPARE_WAIT_S: Final = 60.0


class PostgresSource:
    """``agent.ports.source.Source`` over one slot.

    :raises SourceConfigError: a slot name that PostgreSQL does not take.
    """

    def __init__(self, uri: str, scope: Scope) -> None:
        self._uri = uri
        self._scope = scope
        settings = scope.settings(PostgresSettings)
        self._names = slots.names_for(
            scope.cluster,
            scope.changefeed,
            slot=settings.slot,
            publication=settings.publication,
            incarnation=scope.incarnation,
        )

    @property
    def names(self) -> Names:
        return self._names

    @property
    def _publications(self) -> tuple[str, ...]:
        return slots.all_publications(self._names)

    @property
    def numbers_readers(self) -> bool:
        return False  # it knows slots

    @property
    def numbers_tables(self) -> bool:
        return True

    @property
    def dumper(self) -> PostgresDumper:
        return PostgresDumper(self._uri, self._names.slot, self._publications)

    def check(self) -> SourceReport:
        names = self._names
        report = self._check(new_slot=names.slot, new_publication=names.publication if names.owns_publication else "")
        with catalog_session(self._uri) as connection:
            terms = read_terms(connection, self._publications)
            refuse_unsent(connection, terms, report.tables, self._scope.config.filter)
        return report

    def discover(self) -> SourceReport:
        return self._check(accepts_unfit=True)

    def check_identity(self, expected: Identity, at: Position) -> None:
        with connect(self._uri, replication=True) as connection:
            found = read_identity(connection)
            if expected.system_id and found.system_id != expected.system_id:
                raise PositionLostError(
                    f"{connection.target} is system {found.system_id}, but changefeed {self._scope.changefeed} began "
                    f"on {expected.system_id}; name that server, or create another changefeed"
                )
            if expected.system_id and found.timeline < expected.timeline:
                raise PositionLostError(
                    f"{connection.target} is on timeline {found.timeline}, and changefeed {self._scope.changefeed} on "
                    f"{expected.timeline}: it is an old primary; name the new one"
                )

    def prepare(self, tables: Sequence[TableRecord]) -> None:
        """Publications, since a change that is decoded before its publication exists ends the stream."""
        with catalog_session(self._uri) as connection:
            slots.ensure_publications(connection, self._names, tables)

    def publish(self, tables: Sequence[TableRecord]) -> None:
        with catalog_session(self._uri) as connection:
            slots.publish(connection, self._names, tables)

    def signals(self, table: tuple[str, str], limit: int) -> list[Signal]:
        columns = ", ".join(f"left({name}::text, {SIGNAL_MAX})" for name in ("id", "kind", "data"))
        with catalog_session(self._uri) as connection:
            rows = connection.query(f"SELECT {columns} FROM {qualified(*table)} s ORDER BY s.id LIMIT {limit}")
        return [Signal(str(id), str(kind), data or "") for id, kind, data in rows]

    def check_start(self, start_ts: Ts) -> None:
        refuse_future(self.current_ts(), start_ts, parse_uri(self._uri))
        raise SourceConfigError(
            f"PostgreSQL sends no change of before its replication slot was made, so it cannot start at {start_ts}; "
            "leave --start-ts out to start from now"
        )

    def missed_tables(self, known: Sequence[TableRecord]) -> tuple[tuple[str, str], ...]:
        return ()  # the catalog shows the stream all of them

    def begin(self, tables: Sequence[TableRecord], start_ts: Ts = NOW, wait: Wait | None = None) -> Position:
        if start_ts:
            self.check_start(start_ts)
        return slots.open_upstream(self._uri, self._names, tables, wait)

    def begin_again(
        self, tables: Sequence[TableRecord], lost: Position, server: Identity, wait: Wait | None = None
    ) -> Position:
        target = parse_uri(self._uri)
        with connect(self._uri, replication=True) as connection:
            found = read_identity(connection)
        if found.system_id != server.system_id:
            raise SourceConfigError(
                f"{target} is system {found.system_id}, but changefeed {self._scope.changefeed} began on "
                f"{server.system_id}, whose tables have other numbers; name that server (or a copy of its files), or "
                "create another changefeed"
            )

        def refuse_earlier(at: Ts) -> None:
            if at < lost.ts:
                raise SourceUnreachableError(
                    f"{target} is at {format_lsn(at)}, behind {format_lsn(lost.ts)}, which was read before history was "
                    "lost: positions never go back; it is tried again until the server has come past it"
                )

        refuse_earlier(self.current_ts())
        begun = slots.open_upstream(self._uri, self._names, tables, wait)  # which writes a record: the log may be idle
        refuse_earlier(Ts(begun.ts - 1))
        return begun

    def read_schemas(self, tables: Collection[TableRecord]) -> dict[int, TableSchema]:
        ids = [table.table_id for table in tables]
        with catalog_session(self._uri) as connection:
            return present_schemas(connection, ids, read_terms(connection, self._publications, with_rows=False))

    def streams(self, order: StreamOrder) -> PostgresStreams:
        return PostgresStreams(self._uri, self._names, order, self._scope)

    def snapshot(self, tables: Sequence[TableRecord], log: Position) -> "PostgresSnapshot":
        name = f"{self._names.slot[:52]}_compare"
        give_up_at = time.monotonic() + _COMPARE_WAIT_S

        def report(cause: str) -> None:
            if time.monotonic() >= give_up_at:
                raise OpenTransactionsError(cause)

        export = create_slot(self._uri, name, Wait(report), is_temporary=True)
        return PostgresSnapshot(self._uri, export, self._publications, self._scope.config.filter)

    def current_ts(self, log: Position = BEGIN) -> Ts:
        """A commit record starts before the end of what is written."""
        with catalog_session(self._uri) as connection:
            [end] = connection.query(f"SELECT {END_SQL}")
        return last_ts(*(int(number or 0) for number in end))

    def survivors(
        self, before: TableSchema, after: TableSchema, origins: Mapping[str, str], key: Sequence[str]
    ) -> Survivors | None:
        with catalog_session(self._uri) as connection:
            rows = read_terms(connection, self._publications).of(after.table_id).rows
        return survivors.read(self._uri, before, after, origins, key, rows)

    def drop(self) -> None:
        slots.drop_upstream(self._uri, self._names)

    def _check(self, *, new_slot: str = "", new_publication: str = "", accepts_unfit: bool = False) -> SourceReport:
        scope = self._scope
        return check_source(
            self._uri,
            scope.config.filter.rules,
            force_replicate=scope.config.force_replicate,
            sink_mode=scope.sink_mode,
            new_slot=new_slot,
            new_publication=new_publication,
            publication="" if self._names.owns_publication else self._names.publication,
            accepts_unfit=accepts_unfit,
        )


_WORDS: Final = SqlWords(identifier, literal, same="IS NOT DISTINCT FROM", matches="~")
_CONSTANTS: Final = ConstantWords(identifier, literal, binary=lambda value: literal(f"\\x{value.hex()}"), zone="+00")


class PostgresSnapshot:
    """The database under one exported snapshot."""

    def __init__(self, uri: str, export: ExportedSnapshot, publications: Sequence[str], filter: FilterConfig) -> None:
        self._uri = uri
        self._export = export
        self._publications = publications
        self._filter = filter
        self._sessions = SnapshotSessions(uri, export.snapshot)

    @property
    def ts(self) -> Ts:
        return self._export.start_ts

    def schema(self, table: TableRecord) -> TableSchema:
        terms = self._terms
        with self._sessions.use() as connection:
            refuse_unsent(connection, terms, [table], self._filter)
            return read_schemas(connection, [table.table_id], terms)[table.table_id]

    def read(self, schema: TableSchema) -> Iterator[pa.RecordBatch]:
        return self.read_range(schema, ALL_KEYS)

    def read_range(self, schema: TableSchema, keys: KeyRange) -> Iterator[pa.RecordBatch]:
        return self._read_if(schema, " AND ".join(keys.conditions(identifier(keys.column))) or ALL_ROWS)

    def read_where(self, schema: TableSchema, condition: str) -> Iterator[pa.RecordBatch]:
        names = [column.name for column in schema.columns]
        return self._read_if(schema, in_sql(parse(condition), names, _WORDS))

    def read_keys(self, schema: TableSchema, keys: pa.Table) -> Iterator[pa.RecordBatch]:
        for condition in key_conditions(keys, _CONSTANTS):
            yield from self._read_if(schema, condition)

    def _read_if(self, schema: TableSchema, condition: str) -> Iterator[pa.RecordBatch]:
        rows = f"({self._rows(schema)}) AND {condition}"
        with self._sessions.use() as connection:
            yield from copy_rows(connection, schema, WHOLE_TABLE, rows=rows)
            refuse_rewritten(connection, schema.table_id)
            if of_other_names(connection, [schema]):
                raise SourceUnreachableError(
                    f"table {schema.qualified_name} was renamed or dropped while it was to be read; try again"
                )

    def checksums(self, schema: TableSchema) -> SourceChecksums | NoChecksums:
        rows = self._rows(schema)
        with self._sessions.use() as connection:
            return checksums(connection, self._sessions, schema, rows)

    def _rows(self, schema: TableSchema) -> str:
        return self._terms.of(schema.table_id).rows

    @cached_property
    def _terms(self) -> AllTerms:
        with self._sessions.use() as connection:
            return read_terms(connection, self._publications)

    def close(self) -> None:
        self._sessions.close()
        self._export.close()
