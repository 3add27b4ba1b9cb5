"""MySQL source: opens the binlog and snapshots of MySQL and MariaDB. It creates nothing on the server."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from agent.errors import PositionLostError
from agent.filter.tables import TableFilter
from agent.ports.snapshot import Wait
from agent.ports.source import BEGIN, NOW, SIGNAL_MAX, Identity, Position, Scope, Signal, SourceReport, StreamOrder
from agent.rows.schema import TableSchema, ZeroDates
from agent.rows.survivors import Survivors
from agent.sources.mysql.binlog.prepared_before import names_before, with_prepared
from agent.sources.mysql.position.consistency import current_place
from agent.sources.mysql.position.positions import SourcePosition, behind
from agent.sources.mysql.position.resume import check_successor, current_position, epoch_of
from agent.sources.mysql.preflight import check_cascades, check_source
from agent.sources.mysql.server import catalog
from agent.sources.mysql.server.connection import Connection, connect
from agent.sources.mysql.server.identity import read_identity
from agent.sources.mysql.server.sql import qualified
from agent.sources.mysql.server.tables import find_tables
from agent.sources.mysql.server.uri import parse_uri
from agent.sources.mysql.settings import MysqlSettings
from agent.sources.mysql.snapshot.dump import MysqlDumper
from agent.sources.mysql.snapshot.rows import MysqlSnapshot
from agent.sources.mysql.starts import check_unchanged, start_position
from agent.sources.mysql.streams import MysqlStreams
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord


class MysqlSource:
    """Implements ``agent.ports.source.Source`` for one server's binlog.

    :raises SourceConfigError: a malformed URI.
    """

    def __init__(self, uri: str, scope: Scope) -> None:
        self._uri, self._target = uri, parse_uri(uri)
        self._scope = scope
        self._settings = scope.settings(MysqlSettings)
        self._zero_dates = ZeroDates(self._settings.zero_dates)

    @property
    def numbers_readers(self) -> bool:
        return True  # by their server ids

    @property
    def numbers_tables(self) -> bool:
        return False

    @property
    def dumper(self) -> MysqlDumper:
        return MysqlDumper(self._uri, zero_dates=self._zero_dates, accepts_cascades=self._accepts_cascades)

    @property
    def _accepts_cascades(self) -> bool:
        return self._settings.unlogged_cascades == "accept"

    def check(self) -> SourceReport:
        return self._check(accepts_cascades=self._accepts_cascades)

    def discover(self) -> SourceReport:
        """Check without refusing cascades: changefeeds of v0.1.0 were created with such tables, and continue."""
        return self._check(accepts_cascades=True, accepts_unfit=True)

    def _check(self, *, accepts_cascades: bool, accepts_unfit: bool = False) -> SourceReport:
        scope = self._scope
        return check_source(
            self._target,
            scope.config.filter,
            force_replicate=scope.config.force_replicate,
            sink_mode=scope.sink_mode,
            accepts_cascades=accepts_cascades,
            accepts_unfit=accepts_unfit,
        )

    def check_identity(self, expected: Identity, at: Position) -> None:
        with connect(self._target) as connection:
            found = read_identity(connection).system_id
            if not expected.system_id or found == expected.system_id:
                return
            if not at.text:
                raise PositionLostError(
                    f"{connection.target} is {found}, but changefeed {self._scope.changefeed} began on "
                    f"{expected.system_id}; name that server, or create another changefeed"
                )
            check_successor(connection, SourcePosition.from_json(at.text))

    def prepare(self, tables: Sequence[TableRecord]) -> None:
        """Do nothing: nothing has to be created on the server."""

    def publish(self, tables: Sequence[TableRecord]) -> None:
        """A binlog has every table, but not every change of one with foreign keys that have actions."""
        names = [(table.schema_name, table.name) for table in tables]
        with connect(self._target) as connection:
            check_cascades(connection, names, is_accepted=self._accepts_cascades)

    def signals(self, table: tuple[str, str], limit: int) -> list[Signal]:
        columns = ", ".join(f"LEFT(CAST({name} AS CHAR), {SIGNAL_MAX})" for name in ("id", "kind", "data"))
        with connect(self._target) as connection:
            rows = connection.query(f"SELECT {columns} FROM {qualified(*table)} ORDER BY id LIMIT {limit}")
        return [Signal(str(id), str(kind), data or "") for id, kind, data in rows]

    def check_start(self, start_ts: Ts) -> None:
        with connect(self._target) as connection:
            begin = start_position(connection, start_ts)
            names = [found.record for found in find_tables(connection, TableFilter(self._scope.config.filter.rules))]
            schemas = catalog.read_schemas(connection, [(table.schema_name, table.name) for table in names])
            [(folding,)] = connection.query("SELECT @@lower_case_table_names")
            by_name = {(schema.schema_name, schema.name): schema for schema in schemas.values()}
            check_unchanged(connection, begin, by_name, folds_names=folding == "1")

    def missed_tables(self, known: Sequence[TableRecord]) -> tuple[tuple[str, str], ...]:
        config, before = self._scope.config, {table.table_id for table in known}
        is_free = config.force_replicate or not self._scope.sink_mode.is_keyed
        with connect(self._target) as connection:
            found = [found.record for found in find_tables(connection, TableFilter(config.filter.rules))]
            missed = [table for table in found if table.table_id not in before and (table.key or is_free)]
            names = [(table.schema_name, table.name) for table in missed]
            readable = catalog.present_schemas(connection, names).values()
        return tuple((schema.schema_name, schema.name) for schema in readable)

    def begin(self, tables: Sequence[TableRecord], start_ts: Ts = NOW, wait: Wait | None = None) -> Position:
        begin = self._begin(lambda connection: start_position(connection, start_ts) if start_ts else None)
        names = [(table.schema_name, table.name) for table in tables]
        with connect(self._target) as connection:  # foreign keys that come later are in the binlog
            check_cascades(connection, names, is_accepted=self._accepts_cascades)
        return begin

    def begin_again(
        self, tables: Sequence[TableRecord], lost: Position, server: Identity, wait: Wait | None = None
    ) -> Position:
        before = SourcePosition.from_json(lost.text)
        return self._begin(lambda connection: behind(before, current_position(connection)))

    def _begin(self, find: Callable[[Connection], SourcePosition | None]) -> Position:
        with connect(self._target) as connection:
            before = names_before(connection)
            at = find(connection) or current_position(connection)
            at = with_prepared(connection, at, before, lambda: connect(self._target))
        return Position(at.resolved, at.to_json())

    def read_schemas(self, tables: Collection[TableRecord]) -> dict[int, TableSchema]:
        ids = {(table.schema_name, table.name): table.table_id for table in tables}
        with connect(self._target) as connection:
            found = catalog.present_schemas(connection, ids, zero_dates=self._zero_dates).values()
        of_records = {ids[schema.schema_name, schema.name]: schema for schema in found}
        # a table that was renamed has the number of its first name
        return {id: replace(schema, table_id=id) for id, schema in of_records.items()}

    def streams(self, order: StreamOrder) -> MysqlStreams:
        return MysqlStreams(self._target, order, self._scope)

    def snapshot(self, tables: Sequence[TableRecord], log: Position) -> MysqlSnapshot:
        names = [(table.schema_name, table.name) for table in tables]
        return MysqlSnapshot(self._target, names, log, zero_dates=self._zero_dates)

    def current_ts(self, log: Position = BEGIN) -> Ts:
        with connect(self._target) as connection:
            return current_place(connection).ts(epoch_of(connection, log.text))

    def survivors(
        self, before: TableSchema, after: TableSchema, origins: Mapping[str, str], key: Sequence[str]
    ) -> Survivors | None:
        return None  # there are no expressions that compute new values from old ones

    def drop(self) -> None:
        """Do nothing: nothing was created on the server."""
