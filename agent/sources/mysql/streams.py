"""Streams: opens the binlog, repeatedly for as long as a sync unit runs.

Before each opening, it checks that the server can continue exactly at the log's position: by file and offset at the
position's server, by GTID at another one (``resume``). A new session ends the one that a lost worker has left.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from agent.errors import NEW_POSITION, PositionLostError, SourceConfigError
from agent.filter.events import rules_for
from agent.filter.tables import TableFilter
from agent.ports.source import Identity, Position, Scope, StreamOrder
from agent.rows.arena import Arena, LogChunk
from agent.rows.schema import TableSchema, ZeroDates
from agent.rows.schema_change import KnownTable, known_tables
from agent.sources.common import schema_diff
from agent.sources.common.joining import Joining, Reading
from agent.sources.mysql.binlog.recover import forgotten
from agent.sources.mysql.binlog.reread import Reread
from agent.sources.mysql.binlog.rolled_back import RolledBack
from agent.sources.mysql.binlog.stream import BinlogStream
from agent.sources.mysql.ddl.environment import Server
from agent.sources.mysql.ddl.expressions.unsteady import FULL_IMAGES
from agent.sources.mysql.ddl.interpreter import Interpreter
from agent.sources.mysql.ddl.replicated_tables import KnownTables
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.position.consistency import current_place
from agent.sources.mysql.position.end_check import EndCheck
from agent.sources.mysql.position.positions import SourcePosition
from agent.sources.mysql.position.resume import Resumption, position_at, resume
from agent.sources.mysql.server.cascades import logs_cascades
from agent.sources.mysql.server.catalog import SYSTEM_SCHEMAS, database_collations, present_schemas
from agent.sources.mysql.server.computed import computed_columns, is_there
from agent.sources.mysql.server.connection import Connection, connect
from agent.sources.mysql.server.defaults import explicit_timestamps
from agent.sources.mysql.server.reach import reaches_others
from agent.sources.mysql.server.tables import has_checks, has_primary
from agent.sources.mysql.server.uniques import unique_columns
from agent.sources.mysql.server.uri import Target
from agent.sources.mysql.settings import MysqlSettings
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.tables.table import TableRecord

#: more than tables join at one position, each at a Ts of its own
_NEAR: Final = 1 << 16
#: named as in event filters
_RENAME: Final = ("rename table",)


class MysqlStreams:
    """Implements ``agent.ports.source.Streams``; ``order.reader`` is the server id under which the stream registers."""

    def __init__(self, target: Target, order: StreamOrder, scope: Scope) -> None:
        self._target = target
        self._order = order
        self._scope = scope
        self._settings = scope.settings(MysqlSettings)
        self._zero_dates = ZeroDates(self._settings.zero_dates)
        self._rolled_back = RolledBack()

    def open(self, at: Position, arena: Arena, ddl: Sequence[DdlRecord] = ()) -> "MysqlStream":
        connection = connect(self._target)
        try:
            reread = Reread(lambda: connect(self._target))
            resumption = self._resume(connection, at)
            stream = self._start(connection, at, resumption, arena, ddl, reread)
            server = resumption.position.identity
            return MysqlStream(connection, stream, server, reread, self._joiner(at, ddl), EndCheck(self._target))
        except BaseException:
            connection.close()
            raise

    def _resume(self, connection: Connection, at: Position) -> Resumption:
        position = SourcePosition.from_json(at.text) if at.text else position_at(connection, at.ts)
        resumption = resume(connection, position)
        if resumption.by_gtid and any(table.consistent_ts > at.ts for table in self._order.tables):
            raise PositionLostError(
                f"{connection.target} is another server, and may lack what the snapshot was read with on the one "
                f"before, as the log has not reached all of it; {NEW_POSITION}"
            )
        return resumption

    def _start(
        self,
        connection: Connection,
        at: Position,
        resumption: Resumption,
        arena: Arena,
        ddl: Sequence[DdlRecord],
        reread: Reread,
    ) -> BinlogStream:
        known = KnownTables(
            known_tables(self._order.tables, self._order.schemas, ddl, at=at.ts).values(),
            zero_dates=self._zero_dates,
            is_mariadb=connection.is_mariadb,
            begin=at.ts,
        )
        self._rolled_back.forget(at.ts)
        server = self._server(connection, resumption.position.epoch.number)
        interpreter = Interpreter(known, server, at.attachment)
        stream = BinlogStream(
            connection,
            arena,
            position=resumption.position,
            is_wanted=known.is_wanted,
            describe=known.describe,
            known=known.schema_of,
            interpret=interpreter.interpret,
            memory=interpreter.memory,
            hold=interpreter.hold,
            written=interpreter.written,
            begin_file=interpreter.begin_file,
            folds_names=server.folds_names,
            rolled_back=self._rolled_back,
            reread=reread.rows_of,
        )
        begun = resumption.position
        if gone := forgotten(connection, begun.prepared):  # before the end is read: the decisions precede it
            stream.doubt_prepared(gone, current_place(connection).ts(begun.epoch.number))
        stream.start(server_id=self._order.reader, by_gtid=resumption.by_gtid)
        return stream

    def _joiner(self, at: Position, ddl: Sequence[DdlRecord]) -> "Joiner":
        known = known_tables(self._order.tables, self._order.schemas, ddl, at=at.ts).values()
        there = {(table.record.schema_name, table.record.name) for table in known}
        ids = {table.record.table_id for table in known}
        taken = {record.ts for record in ddl}
        return Joiner(self._target, self._order.joining - there, ids, taken, zero_dates=self._zero_dates)

    def _server(self, connection: Connection, epoch: int) -> Server:
        config = self._scope.config
        sql = "SELECT @@system_time_zone, @@lower_case_table_names, @@binlog_row_image"
        [(time_zone, folding, images)] = connection.query(sql)
        wanted = TableFilter(config.filter.rules)
        is_free = config.force_replicate or not self._scope.sink_mode.is_keyed
        return Server(
            wants=lambda schema, name: schema not in SYSTEM_SCHEMAS and wanted.wants(schema, name),
            takes=lambda table: is_free or bool(table.key),
            look=self._look,
            ignores_rename=lambda name, statement: rules_for(config.filter, *name).ignores_ddl(_RENAME, statement),
            # by name only: whoever upserts has to know from the filter that rows may stay
            ignores=lambda name, event: event in rules_for(config.filter, *name).events,
            zero_dates=self._zero_dates,
            is_mariadb=connection.is_mariadb,
            time_zone=str(time_zone),
            folds_names=folding == "1",
            explicit_timestamps=explicit_timestamps(connection),
            collations=self._collations,
            collation_of=self._collation_of,
            reaches=self._reaches,
            computed=self._computed,
            uniques=self._uniques,
            place=self._place_in(epoch),
            has_primary=self._has_primary,
            has_checks=self._has_checks,
            selects=lambda name, column: rules_for(config.filter, *name).selects(column),
            images=str(images) if connection.is_mariadb else FULL_IMAGES,
            copies_partitions=self._settings.partition_rows == "copy",
            logs_cascades=self._settings.unlogged_cascades == "accept" or logs_cascades(connection),
        )

    def _collations(self) -> Mapping[str, int]:
        with connect(self._target) as connection:
            return database_collations(connection)

    def _collation_of(self, database: str) -> int:
        return self._collations().get(database, 0)

    def _place_in(self, epoch: int) -> Callable[[], Ts]:
        """Return what asks for the end of the log."""

        def place() -> Ts:
            with connect(self._target) as connection:
                return current_place(connection).ts(epoch)

        return place

    def _has_primary(self, name: tuple[str, str]) -> bool:
        with connect(self._target) as connection:
            return has_primary(connection, *name)

    def _has_checks(self, name: tuple[str, str]) -> bool:
        with connect(self._target) as connection:
            return has_checks(connection, *name)

    def _computed(self, name: tuple[str, str]) -> Mapping[str, str]:
        with connect(self._target) as connection:
            return computed_columns(connection, *name)

    def _uniques(self, name: tuple[str, str]) -> frozenset[str]:
        with connect(self._target) as connection:
            return unique_columns(connection, *name)

    def _reaches(self, names: Sequence[tuple[str, str]]) -> bool:
        with connect(self._target) as connection:
            return reaches_others(connection, names)

    def _look(self, name: tuple[str, str]) -> TableSchema | None:
        """Read a table's definition over another connection: the stream's own cannot run queries."""
        with connect(self._target) as connection:
            try:
                found = present_schemas(connection, [name], zero_dates=self._zero_dates)
            except SourceConfigError:
                return None  # it has a type that is refused only if rows come
        return found.get(table_id(*name))


class MysqlStream:
    """``agent.ports.source.OpenStream``."""

    def __init__(
        self,
        connection: Connection,
        stream: BinlogStream,
        server: Identity,
        reread: Reread,
        joiner: "Joiner",
        end: EndCheck,
    ) -> None:
        self.server = server
        self._connection = connection
        self._reread = reread
        self._joiner = joiner
        self._end = end
        self.stream = stream

    def prove(self, cut: LogChunk) -> LogChunk:
        """Return the chunk: a binlog is complete. Tables that join are added to it."""
        self._end.check(cut)
        return self._joiner.join(cut)

    def abort(self) -> None:
        self._connection.abort()
        self._reread.abort()

    def close(self) -> None:
        self._connection.close()
        self._reread.close()


class Joiner:
    """Takes joining tables into a stream's chunks. ``ids`` and ``taken``: the tables that the stream knows, and where
    the schema changes are that it has."""

    def __init__(
        self,
        target: Target,
        names: Collection[tuple[str, str]],
        ids: Collection[int],
        taken: Collection[Ts],
        *,
        zero_dates: ZeroDates,
    ) -> None:
        self._target = target
        self._joining = Joining(set(names))
        self._ids = frozenset(ids)
        self._taken = set(taken)
        self._zero_dates = zero_dates
        #: names of those whose key is a primary one
        self._primary: set[tuple[str, str]] = set()

    def join(self, cut: LogChunk) -> LogChunk:
        """Return the chunk, with tables that begin where it ends.

        :raises StreamRestart: some have.
        """
        self._joining.restart()
        created = (change.table for record in cut.ddl for change in record.changes if change.table is not None)
        self._joining.leave_out((table.schema_name, table.name) for table in created)
        taken = self._taken.union(record.ts for record in cut.ddl)
        self._taken = {ts for ts in taken if ts > cut.resolved_ts - _NEAR}
        if not self._joining.is_due() or not cut.is_complete:
            return cut
        reading = self._read(SourcePosition.from_json(cut.position))
        ready = self._joining.ready(reading, cut.resolved_ts)
        gone = self._joining.give_up({*reading.schemas, *self._unfit(reading)})
        if not ready and not gone:
            return cut
        ts = cut.resolved_ts
        while ts in self._taken:  # it is a change of its own, and follows none of them
            ts = Ts(ts - 1)
        self._taken.add(ts)
        changes = tuple(schema_diff.created(self._known(schema, ts)) for schema in ready.values())
        return replace(cut, ddl=(*cut.ddl, DdlRecord(ts=ts, changes=changes, never_joined=gone)))

    def _unfit(self, reading: Reading) -> list[tuple[str, str]]:
        """Return joining tables that exist, and cannot be read as they are."""
        missing = sorted(self._joining.names.difference(reading.schemas))
        if not missing:
            return []
        with connect(self._target) as connection:
            return [name for name in missing if is_there(connection, *name)]

    def _read(self, position: SourcePosition) -> Reading:
        schemas: dict[tuple[str, str], TableSchema] = {}
        with connect(self._target) as connection:
            for name in self._joining.names:
                with suppress(SourceConfigError):  # a type that is refused
                    for schema in present_schemas(connection, [name], zero_dates=self._zero_dates).values():
                        schemas[name] = schema
            self._primary = {name for name in schemas if has_primary(connection, *name)}
            return Reading(schemas, current_place(connection).ts(position.epoch.number))

    def _known(self, schema: TableSchema, ts: Ts) -> KnownTable:
        name, number = (schema.schema_name, schema.name), schema.table_id
        if number in self._ids:
            number = table_id(name[0], f"{name[1]}\0{ts}")
        start_ts = Ts(ts - 1)
        record = TableRecord.new(
            number,
            *name,
            key=schema.key,
            start_ts=start_ts,
            consistent_ts=start_ts,
            collation=schema.collation,
            to_copy=True,
            is_primary=name in self._primary,
        )
        return KnownTable(record, replace(schema, table_id=number))
