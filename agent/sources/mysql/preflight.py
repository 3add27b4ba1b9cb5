"""Preflight of MySQL: checks the server and its tables before a changefeed is created, so that it does not fail later.

Nothing is changed at the source. All unsuitable settings and missing privileges are reported in one line, together with
the first unsuitable table; without a connection or a binlog nothing else is checked. Settings that work but are not
ideal are logged.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import structlog

from agent.errors import SourceAuthError, SourceConfigError, SourceError, TableIneligibleError
from agent.filter.events import rules_for
from agent.filter.tables import TableFilter
from agent.ports.source import SourceReport
from agent.rows.schema import TableSchema
from agent.sources.mysql.ddl import reasons
from agent.sources.mysql.ddl.expressions.unsteady import FULL_IMAGES, is_unsteady, timestamps, unlogged
from agent.sources.mysql.ddl.parser.table_options import FOREIGN_ROWS
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.server import grants
from agent.sources.mysql.server.cascades import unlogged_cascades
from agent.sources.mysql.server.catalog import present_schemas
from agent.sources.mysql.server.computed import virtual_columns
from agent.sources.mysql.server.connection import Connection, connect
from agent.sources.mysql.server.identity import read_identity
from agent.sources.mysql.server.tables import FoundTable, find_tables
from agent.sources.mysql.server.uri import Target
from agent.sources.mysql.snapshot.dump_plan import needs_exact_rows
from reactor.records.changefeed import FilterConfig, SinkMode

#: oldest tested versions, including versions that are treated alike
_MARIADB_MIN: Final = (10, 5)
_MYSQL_MIN: Final = (5, 7)
_REPLICA_STATUS_SINCE: Final = (8, 0, 22)
_EXPIRE_MIN_S: Final = 3600
_EXPIRE_GOOD_S: Final = 86_400
_DAY_S: Final = 86_400
#: a locked table is no reason to refuse a changefeed
_LOCK_WAIT_S: Final = 1

_log = structlog.get_logger()


def check_source(
    source: str | Target,
    filters: FilterConfig,
    *,
    force_replicate: bool,
    sink_mode: SinkMode,
    accepts_cascades: bool,
    accepts_unfit: bool = False,
) -> SourceReport:
    """Run all checks. ``accepts_cascades``: only warn about tables whose foreign keys change rows without logging.
    ``accepts_unfit``: only report tables that cannot be replicated as they are.

    :raises SourceUnreachableError: the server does not respond.
    :raises SourceAuthError: user or password refused, or a privilege missing; the text contains the GRANT.
    :raises SourceConfigError: a server setting is unsuitable, or no table matches the rules.
    :raises TableIneligibleError: a table cannot be replicated as it is, and ``accepts_unfit`` is off.
    """
    wanted = TableFilter(filters.rules)
    with connect(source) as connection:
        connection.execute(f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}")
        settings = _Settings(connection)
        _check_server(connection)
        _check_binlog(settings)
        missing = _Missing()
        for check in (_check_format, _check_server_id, _check_expiry, _check_images):
            with missing:
                check(settings)
        tables: Sequence[FoundTable] = ()
        with missing:
            tables = find_tables(connection, wanted)
        names = [(table.record.schema_name, table.record.name) for table in tables]
        with missing:
            grants.check_may_monitor(connection)
            _check_logged(connection, names)
        with missing:
            grants.check_may_replicate(connection)
        with missing:
            _check_replica(connection, settings)
        unreadable: Mapping[tuple[str, str], str] = {}
        with missing:
            unreadable = grants.check_may_read(connection, names)
            check_cascades(connection, names, is_accepted=accepts_cascades)
        with missing:
            if not connection.is_mariadb:
                grants.check_may_lock(connection, names)
        there: Mapping[int, TableSchema] = {}
        with missing:
            there = present_schemas(connection, names)
        # others are gone, or the server cannot open them
        refused = {table_id(*name) for name in unreadable}
        tables = [table for table in tables if table.record.table_id in there.keys() | refused]
        unfit: Mapping[int, str] = {}
        with missing:
            images = settings.get("binlog_row_image", FULL_IMAGES)
            is_full = images == FULL_IMAGES
            unfit = _unfit(tables, sink_mode, force_replicate=force_replicate, has_full_images=is_full)
            images = images if connection.is_mariadb else FULL_IMAGES
            unfit = {**_virtual(connection, tables, there, filters, images), **unfit, **_unreadable(tables, unreadable)}
            if unfit and not accepts_unfit:
                raise TableIneligibleError(next(iter(unfit.values())))
        missing.refuse()
        return SourceReport(read_identity(connection), tuple(table.record for table in tables), unfit)


class _Missing:
    """Collects the errors of the blocks it guards, so that all of them can be fixed at once."""

    def __init__(self) -> None:
        self._found: list[SourceError] = []

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, SourceError) or error.retryable:
            return False
        self._found.append(error)
        return True

    def refuse(self) -> None:
        """Raise the collected errors as one.

        :raises SourceError: of the first error's class, with all texts.
        """
        if self._found:
            first = self._found[0]
            raise type(first)("; also: ".join(map(str, self._found))) from first


class _Settings:
    """Global server variables. Variables that a server version lacks have a default."""

    def __init__(self, connection: Connection) -> None:
        self.target = connection.target
        self._values = {
            str(name): str(value)
            for name, value in connection.query(
                "SHOW GLOBAL VARIABLES WHERE Variable_name LIKE '%log%' OR Variable_name LIKE 'server_id'"
            )
        }

    def get(self, name: str, default: str) -> str:
        return self._values.get(name, default).upper()


def _check_server(connection: Connection) -> None:
    target = connection.target
    [(version,)] = connection.query("SELECT VERSION()")
    if "tidb" in str(version).lower():
        raise SourceConfigError(f"{target} is a TiDB, which writes no binlog that Weir reads; use its own changefeeds")
    least = _MARIADB_MIN if connection.is_mariadb else _MYSQL_MIN
    if connection.server_version < least:
        kind, number = "MariaDB" if connection.is_mariadb else "MySQL", ".".join(map(str, least))
        raise SourceConfigError(f"{target} runs {kind} {version}; Weir needs {number} or newer: upgrade it")


def _check_binlog(settings: _Settings) -> None:
    if settings.get("log_bin", "OFF") not in ("ON", "1"):
        raise SourceConfigError(
            f"{settings.target} writes no binlog; set log_bin = binlog in its configuration and restart it"
        )


def _check_format(settings: _Settings) -> None:
    if (form := settings.get("binlog_format", "ROW")) != "ROW":
        raise SourceConfigError(
            f"{settings.target} has binlog_format = {form}; run: SET GLOBAL binlog_format = 'ROW' (and set it in its "
            "configuration), then have its clients connect again: sessions keep the format they began with"
        )


def _check_server_id(settings: _Settings) -> None:
    if settings.get("server_id", "1") == "0":
        raise SourceConfigError(
            f"{settings.target} has server_id = 0; run: SET GLOBAL server_id = 1 (or another number)"
        )


def _check_images(settings: _Settings) -> None:
    """Check what row images contain, and whether column names are logged."""
    if (image := settings.get("binlog_row_image", "FULL")) != "FULL":
        if "PARTIAL_JSON" in settings.get("binlog_row_value_options", ""):
            raise SourceConfigError(
                f"{settings.target} logs what has changed in a JSON document, and not that "
                f"(binlog_row_image = {image}); "
                "run: SET GLOBAL binlog_row_value_options = '' (or binlog_row_image = 'FULL')"
            )
        _log.warning(
            "updates do not say the values of all columns: changes show the others as unchanged, and snapshots need "
            "exact moments; an insert that takes a column's default holds its table; "
            "SET GLOBAL binlog_row_image = 'FULL' mends it",
            binlog_row_image=image,
        )
    if (metadata := settings.get("binlog_row_metadata", "MINIMAL")) != "FULL":
        _log.warning(
            "the binlog does not name columns: an ALTER TABLE that Weir cannot follow will end the changefeed; "
            "SET GLOBAL binlog_row_metadata = 'FULL' mends it",
            binlog_row_metadata=metadata,
        )


def _check_expiry(settings: _Settings) -> None:
    """Check the binlog's expiry; 0 is never. If a server has both settings, the one in seconds counts."""
    seconds = int(settings.get("binlog_expire_logs_seconds", "0"))
    kept_s = seconds or round(float(settings.get("expire_logs_days", "0")) * _DAY_S)
    if 0 < kept_s < _EXPIRE_MIN_S:
        raise SourceConfigError(
            f"{settings.target} removes its binlog after {kept_s} s, and what was not read by then is lost; "
            f"run: SET GLOBAL binlog_expire_logs_seconds = {7 * _DAY_S}"
        )
    if 0 < kept_s < _EXPIRE_GOOD_S:
        _log.warning("a changefeed that is stopped for longer than the binlog is kept is lost", kept_s=kept_s)


def _check_replica(connection: Connection, settings: _Settings) -> None:
    """Check a replica, which writes replicated changes into its binlog only if configured so."""
    if "ON" in (settings.get("log_slave_updates", "OFF"), settings.get("log_replica_updates", "OFF")):
        return
    is_renamed = not connection.is_mariadb and connection.server_version >= _REPLICA_STATUS_SINCE
    try:
        rows = connection.query("SHOW REPLICA STATUS" if is_renamed else "SHOW SLAVE STATUS")
    except SourceAuthError:
        return  # the privilege for it is not needed otherwise
    if rows:
        setting = "log_replica_updates" if is_renamed else "log_slave_updates"
        raise SourceConfigError(
            f"{connection.target} is a replica that does not log what it replicates; set {setting} = ON in its "
            "configuration and restart it, or name the primary instead"
        )


def _check_logged(connection: Connection, tables: Sequence[tuple[str, str]]) -> None:
    """Check the databases that the server excludes from its binlog."""
    is_renamed = not connection.is_mariadb and connection.server_version >= (8, 2)
    [(_, _, only, never, *_)] = connection.query("SHOW BINARY LOG STATUS" if is_renamed else "SHOW MASTER STATUS")
    logged, ignored = (frozenset(filter(None, (names or "").split(","))) for names in (only, never))
    for schema_name, name in tables:
        if schema_name in ignored or (logged and schema_name not in logged):
            raise SourceConfigError(
                f"{connection.target} leaves database {schema_name} out of its binlog; change binlog_do_db or "
                f"binlog_ignore_db in its configuration and restart it, or leave {schema_name}.{name} out"
            )


def check_cascades(connection: Connection, tables: Sequence[tuple[str, str]], *, is_accepted: bool) -> None:
    """:raises TableIneligibleError: a table has foreign keys with actions that the server does not log."""
    found = [".".join(table) for table in unlogged_cascades(connection, tables)]
    if not found:
        return
    what = (
        "the server does not log the rows that foreign keys delete or change by themselves (ON DELETE or ON UPDATE "
        "CASCADE, SET NULL)"
    )
    if is_accepted:
        _log.warning(f"{what}: such rows stay at the sink as they were", tables=found)
        return
    these = f"table {found[0]} has" if len(found) == 1 else f"tables {', '.join(found)} have"
    rules = " ".join(f"!{name}" for name in found)
    raise TableIneligibleError(
        f"{these} such a foreign key, and {what}; give it no action and have statements change these rows, or leave "
        f'out by filter rules {rules}, or set unlogged-cascades = "accept" below [source] if such rows may stay '
        "as they were"
    )


def _unfit(
    tables: Iterable[FoundTable], sink_mode: SinkMode, *, force_replicate: bool, has_full_images: bool
) -> dict[int, str]:
    found = {}
    for table in tables:
        try:
            _check_table(table, sink_mode, force_replicate=force_replicate, has_full_images=has_full_images)
        except TableIneligibleError as error:
            found[table.record.table_id] = str(error)
    return found


def _unreadable(tables: Iterable[FoundTable], refused: Mapping[tuple[str, str], str]) -> dict[int, str]:
    found = {}
    for record in (table.record for table in tables):
        if why := refused.get((record.schema_name, record.name)):
            name = f"{record.schema_name}.{record.name}"
            found[record.table_id] = (
                f"table {name} cannot be read ({why}); repair it, or leave it out by a filter rule !{name}"
            )
    return found


def _virtual(
    connection: Connection,
    tables: Iterable[FoundTable],
    schemas: Mapping[int, TableSchema],
    filters: FilterConfig,
    images: str,
) -> dict[int, str]:
    """Return the tables with replicated virtual columns that have another value whenever they are read, or that updates
    do not log."""
    by_name = {(table.record.schema_name, table.record.name): table.record.table_id for table in tables}
    found, virtual = {}, virtual_columns(connection, by_name)
    for name, columns in virtual.items():
        if (schema := schemas.get(by_name[name])) is None:
            continue
        rules = rules_for(filters, *name)
        mine = {one: text for one, text in columns.items() if rules.selects(one)}
        unsteady = [one for one, text in mine.items() if is_unsteady(text, timestamps(schema))]
        reason = reasons.unsteady(unsteady) if unsteady else ""
        if not reason and (missing := unlogged(schema, mine, images)):
            reason = reasons.unlogged(missing, images)
        if reason:
            table = ".".join(name)
            found[by_name[name]] = f"table {table}: {reason}, or the table by a filter rule !{table}"
    return found


def _check_table(table: FoundTable, sink_mode: SinkMode, *, force_replicate: bool, has_full_images: bool) -> None:
    record = table.record
    name = f"{record.schema_name}.{record.name}"
    leave_out = f"leave it out by a filter rule !{name}"
    if table.is_versioned:
        raise TableIneligibleError(f"table {name} is system-versioned: its binlog has its history too; {leave_out}")
    if table.has_hidden_column:
        raise TableIneligibleError(
            f"table {name} has a unique key USING HASH, which adds a hidden column to the log; drop it, or {leave_out}"
        )
    if table.engine.upper() in FOREIGN_ROWS:
        raise TableIneligibleError(
            f"table {name} has the engine {table.engine}, which shows rows of other tables; {leave_out}"
        )
    if not record.key and sink_mode.is_keyed and not force_replicate:
        raise TableIneligibleError(
            f"table {name} has no primary key or unique NOT NULL key to upsert by; add one, use sink mode changelog, "
            f"{leave_out}, or set force-replicate = true to append only"
        )
    if not table.is_transactional and needs_exact_rows(record, sink_mode, has_full_images=has_full_images):
        raise TableIneligibleError(
            f"table {name} has the engine {table.engine or 'none'}, which has no consistent snapshots; run: "
            f"ALTER TABLE {name} ENGINE = InnoDB, or upsert by a key with full row images, or {leave_out}"
        )
