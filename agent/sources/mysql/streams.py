"""Streams: open the binlog, again and again for as long as a sync unit runs.

Before each opening it is checked that the server can continue exactly where the log is: by file and offset at the
server of the position, by GTID at another one (``resume``). A new session ends the one that a lost worker has left.
"""

from collections.abc import Sequence
from typing import Final

from agent.errors import SourceConfigError
from agent.filter.events import rules_for
from agent.filter.tables import TableFilter
from agent.ports.source import Position, Scope, StreamOrder
from agent.rows.arena import Arena, LogChunk
from agent.rows.schema import TableSchema, ZeroDates
from agent.rows.schema_change import known_tables
from agent.sources.mysql.binlog.recover import forgotten
from agent.sources.mysql.binlog.reread import Reread
from agent.sources.mysql.binlog.rolled_back import RolledBack
from agent.sources.mysql.binlog.stream import BinlogStream
from agent.sources.mysql.ddl.interpreter import Interpreter
from agent.sources.mysql.ddl.replicated_tables import KnownTables
from agent.sources.mysql.ddl.surroundings import Server
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.position.consistency import current_place
from agent.sources.mysql.position.positions import SourcePosition
from agent.sources.mysql.position.resume import position_at, resume
from agent.sources.mysql.server.cascades import logs_cascades
from agent.sources.mysql.server.catalog import SYSTEM_SCHEMAS, database_collation, read_schemas
from agent.sources.mysql.server.connection import Connection, connect
from agent.sources.mysql.server.uri import Target
from agent.sources.mysql.settings import MysqlSettings
from reactor.records.changefeed import DdlRecord, SinkMode

#: in the words of event filters
_RENAME: Final = ("rename table",)


class MysqlStreams:
    """``agent.ports.source.Streams``; ``order.reader`` is the server id that we go by."""

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
            return MysqlStream(connection, self._start(connection, at, arena, ddl, reread), reread)
        except BaseException:
            connection.close()
            raise

    def _start(
        self, connection: Connection, at: Position, arena: Arena, ddl: Sequence[DdlRecord], reread: Reread
    ) -> BinlogStream:
        known = KnownTables(
            known_tables(self._order.tables, self._order.schemas, ddl, at=at.ts).values(),
            zero_dates=self._zero_dates,
            is_mariadb=connection.is_mariadb,
        )
        position = SourcePosition.from_json(at.text) if at.text else position_at(connection, at.ts)
        resumption = resume(connection, position)
        self._rolled_back.forget(at.ts)
        server = self._server(connection)
        interpreter = Interpreter(known, server)
        stream = BinlogStream(
            connection,
            arena,
            position=resumption.position,
            is_wanted=known.is_wanted,
            describe=known.describe,
            known=known.schema_of,
            interpret=interpreter.interpret,
            hold=interpreter.hold,
            mentioned=interpreter.mentioned,
            folds_names=server.folds_names,
            rolled_back=self._rolled_back,
            reread=reread.rows_of,
        )
        begun = resumption.position
        if gone := forgotten(connection, begun.prepared):  # the end is asked for afterwards: decisions lie before it
            stream.doubt_prepared(gone, current_place(connection).ts(begun.epoch.number))
        stream.start(server_id=self._order.reader, by_gtid=resumption.by_gtid)
        return stream

    def _server(self, connection: Connection) -> Server:
        config = self._scope.config
        [(time_zone, folding)] = connection.query("SELECT @@system_time_zone, @@lower_case_table_names")
        wanted = TableFilter(config.filter.rules)
        is_free = config.force_replicate or self._scope.sink_mode is not SinkMode.UPSERT
        return Server(
            wants=lambda schema, name: schema not in SYSTEM_SCHEMAS and wanted.wants(schema, name),
            takes=lambda table: is_free or bool(table.key),
            look=self._look,
            ignores_rename=lambda name, statement: rules_for(config.filter, *name).ignores_ddl(_RENAME, statement),
            zero_dates=self._zero_dates,
            is_mariadb=connection.is_mariadb,
            time_zone=str(time_zone),
            folds_names=folding == "1",
            collation_of=self._collation_of,
            logs_cascades=self._settings.unlogged_cascades == "accept" or logs_cascades(connection),
        )

    def _collation_of(self, database: str) -> int:
        with connect(self._target) as connection:
            return database_collation(connection, database)

    def _look(self, name: tuple[str, str]) -> TableSchema | None:
        """The stream's own connection cannot answer questions."""
        with connect(self._target) as connection:
            try:
                found = read_schemas(connection, [name], zero_dates=self._zero_dates)
            except SourceConfigError:
                return None  # it is gone, or of a type that only its rows would be refused for
        return found[table_id(*name)]


class MysqlStream:
    """``agent.ports.source.OpenStream``."""

    def __init__(self, connection: Connection, stream: BinlogStream, reread: Reread) -> None:
        self._connection = connection
        self._reread = reread
        self.stream = stream

    def prove(self, cut: LogChunk) -> LogChunk:
        """A binlog has everything."""
        return cut

    def abort(self) -> None:
        self._connection.abort()
        self._reread.abort()

    def close(self) -> None:
        self._connection.close()
        self._reread.close()
