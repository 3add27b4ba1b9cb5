"""Statements of the binlog as changes of our tables: what each has become, as one record for its Ts.

The statement says what is done, the server what the columns then are: a definition read from the server counts where
it has the columns that the statement leaves, and the statement's own otherwise, as the server may be further on. What
cannot be read at all is looked at; a table that is then gone, or as it was, has not changed.

- A table that is created and wanted starts empty. One of ours goes on whatever its new name. One that was none of ours
  and gets a wanted name has rows that are not in the log: reading ends, unless it is gone again or shall be left out.
- Ids last: a table keeps its id under every name, and a new one of an old name gets another, if that is still in use.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from agent.ddl import KnownTable
from agent.errors import NEW_SNAPSHOT, SourceConfigError
from agent.schema import Dialect, TableSchema, ZeroDates
from agent.sources import comparing
from agent.sources.comparing import Columns
from agent.sources.dialects import arrow_schema
from agent.sources.mysql import ddl, shadows
from agent.sources.mysql.ddl import Altered, Created, DatabaseDropped, Dropped, Edit, Name, Renamed, RowsMoved, Unparsed
from agent.sources.mysql.events import DdlEvent
from agent.sources.mysql.known import KnownTables
from agent.sources.mysql.session import SYSTEM, Session
from agent.sources.mysql.shadows import NOTHING, Shadow
from agent.sources.mysql.table_ids import table_id
from reactor.ids import Ts
from reactor.records import DdlRecord, TableChange, TableRecord

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Server:
    """``wants``: whether a new table is, by schema and name; ``takes``: whether it can be replicated. ``look``: a
    table's definition as it is now, None when it is gone. ``ignores_rename``: whether a table that gets this name by
    this statement shall be left out. ``time_zone``: its own, empty where it cannot be told.
    ``folds_names``: tables are in lower case there, however a statement spells them."""

    wants: Callable[[str, str], bool]
    takes: Callable[[TableRecord], bool]
    look: Callable[[Name], TableSchema | None]
    ignores_rename: Callable[[Name, str], bool]
    zero_dates: ZeroDates
    is_mariadb: bool
    time_zone: str = ""
    folds_names: bool = False


class Interpreter:
    """``known`` is kept up to date."""

    def __init__(self, known: KnownTables, server: Server) -> None:
        self._known = known
        self._server = server
        self._shadows: dict[Name, Shadow] = {}
        #: of the statement at hand: tables as they were before it, and how their columns have moved since
        self._before: dict[int, KnownTable | None] = {}
        self._columns: dict[int, Columns] = {}
        #: tables that a rename has moved out of the way of their copies
        self._vacated: dict[Name, KnownTable] = {}

    def interpret(self, event: DdlEvent) -> DdlRecord | None:
        """What the statement changes of our tables; None when nothing.

        :raises SourceConfigError: a table has come by its name, with rows that are not in the log.
        :raises SourceError: the server cannot be asked.
        """
        self._before, self._columns, self._vacated = {}, {}, {}
        session, is_mariadb = self._session(event), self._server.is_mariadb
        for edit in ddl.parse_ddl(
            event.statement,
            event.database,
            self._schemas(),
            is_mariadb=is_mariadb,
            session=session,
            folds_names=self._server.folds_names,
        ):
            self._take(edit, event)
        for table in self._vacated.values():
            self._known.put(table)  # its copy did not come: it has only got another name
        changes = tuple(change for number in self._before if (change := self._change(number)) is not None)
        return DdlRecord(ts=event.ts, changes=changes, statement=event.statement) if changes else None

    def _session(self, event: DdlEvent) -> Session:
        is_system = event.session.time_zone in ("", SYSTEM)
        return replace(event.session, time_zone=self._server.time_zone) if is_system else event.session

    def _schemas(self) -> dict[Name, TableSchema]:
        known = {name: table.schema for name, table in self._known.by_name.items() if table.schema is not None}
        return {**{name: shadow.schema for name, shadow in self._shadows.items()}, **known}

    def _take(self, edit: Edit, event: DdlEvent) -> None:
        match edit:
            case Created():
                self._create(edit, event.ts)
            case Dropped(table):
                self._drop(table)
            case DatabaseDropped(name):
                for table in [table for table in self._known.by_name if table[0] == name]:
                    self._drop(table)
            case Renamed(table, to):
                self._rename(table, to, event.statement)
            case Altered():
                self._alter(edit)
            case RowsMoved(table):
                self._warn_of_rows(table, event)
            case Unparsed():
                self._look_again(edit, event)

    def _warn_of_rows(self, name: Name, event: DdlEvent) -> None:
        if name in self._known.by_name:
            _log.warning(
                "rows that come or go with a partition are not in the log: the sink keeps what it has",
                table=".".join(name),
                statement=event.statement[:200],
            )

    def _create(self, edit: Created, ts: Ts) -> None:
        name = edit.table
        if name in self._known.by_name:
            return
        schema = self._schemas().get(edit.like) if edit.like else edit.schema
        if any(base in self._known.by_name for base in shadows.bases_of(name)):
            if schema is not None:
                self._shadows[name] = Shadow(_named(schema, name))
            return
        if not self._server.wants(*name):
            return
        schema = self._exact(name, schema)
        if schema is None:
            _log.warning("a new table is gone again and is left out", table=".".join(name))
            return
        number = self._free_id(name, ts)
        record = TableRecord(
            table_id=number,
            schema_name=name[0],
            name=name[1],
            key=schema.key,
            start_ts=Ts(ts - 1),
            consistent_ts=Ts(ts - 1),
        )
        if not self._server.takes(record):
            _log.warning("a new table has no key and is left out; set force_replicate", table=".".join(name))
            return
        self._before.setdefault(number, None)
        self._known.put(KnownTable(record, self._ours(schema, record)))

    def _drop(self, name: Name) -> None:
        self._shadows.pop(name, None)
        table = self._known.by_name.get(name)
        if table is not None:
            self._before.setdefault(table.record.table_id, table)
            self._known.drop(*name)

    def _rename(self, old: Name, new: Name, statement: str) -> None:
        table = self._known.by_name.get(old)
        if table is not None:
            self._before.setdefault(table.record.table_id, table)
            self._known.drop(*old)
            if old in shadows.bases_of(new):
                self._vacated[old] = _moved(table, new)
            else:
                self._known.put(_moved(table, new))
        elif new in self._vacated and new in shadows.bases_of(old):
            self._replace(old, new)
        else:
            shadow = self._shadows.pop(old, None)
            if any(base in self._known.by_name or base in self._vacated for base in shadows.bases_of(new)):
                if shadow is not None:
                    self._shadows[new] = shadow
            elif self._server.wants(*new):
                self._refuse(new, statement)

    def _refuse(self, name: Name, statement: str) -> None:
        """A table from outside gets a wanted name; without rows or not, nobody can tell here."""
        table, schema = ".".join(name), self._server.look(name)
        if schema is None:
            _log.warning("a table that was renamed is gone again and is left out", table=table)
            return
        record = TableRecord(table_id=0, schema_name=name[0], name=name[1], key=schema.key)
        if self._server.ignores_rename(name, statement) or not self._server.takes(record):
            _log.warning("a table that was renamed is left out", table=table)
            return
        raise SourceConfigError(
            f"{table} was renamed into the filter, and its rows are not in the log; rename it back and resume, then "
            "bring them in by CREATE TABLE and INSERT … SELECT; or leave it out by an event filter with "
            f'ignore-event = ["rename table"]; or, {NEW_SNAPSHOT}'
        )

    def _replace(self, copy: Name, name: Name) -> None:
        """A copy takes its table's place: one alter of the table."""
        table = _moved(self._vacated.pop(name), name)
        shadow = self._shadows.pop(copy, None)
        schema = self._exact(name, shadow.schema if shadow else None)
        if schema is None or table.schema is None:
            self._known.put(table)
            return
        columns = shadow.columns if shadow else _by_name(table.schema, schema)
        self._put(table, schema, shadows.limited(columns, schema))

    def _alter(self, edit: Altered) -> None:
        columns = Columns(edit.renames, edit.added, edit.fills)
        if edit.table in self._shadows:
            shadow = self._shadows[edit.table]
            self._shadows[edit.table] = Shadow(edit.schema, shadows.composed(shadow.columns, columns))
            return
        table = self._known.by_name[edit.table]
        schema = self._exact(edit.table, edit.schema, asks_key=edit.asks_key)
        assert schema is not None, "the statement has one"
        if edit.untold:
            _warn_untold(schema, edit.untold)
        self._put(table, schema, columns)

    def _look_again(self, edit: Unparsed, event: DdlEvent) -> None:
        _log.info("a statement that cannot be read: the table is looked at", statement=event.statement[:200])
        name = edit.table
        known, shadow = self._known.by_name.get(name), self._shadows.pop(name, None)
        before = shadow.schema if shadow else known.schema if known else None
        schema = self._server.look(name) if before is not None else None
        if before is None or schema is None:
            return
        columns = _by_name(before, schema, edit.columns)
        if shadow is not None:
            self._shadows[name] = Shadow(schema, shadows.composed(shadow.columns, columns))
        elif known is not None:
            if untold := [column for column in columns.added if column not in edit.columns.added]:
                _warn_untold(schema, untold)
            self._put(known, schema, columns)

    def _put(self, table: KnownTable, schema: TableSchema, columns: Columns) -> None:
        number = table.record.table_id
        self._before.setdefault(number, table)
        self._columns[number] = shadows.composed(self._columns.get(number, NOTHING), columns)
        record = table.record.with_(key=_key(table.record.key, schema.key))
        self._known.put(KnownTable(record, self._ours(schema, record)))

    def _change(self, number: int) -> TableChange | None:
        before = self._before[number]
        after = next((table for table in self._known.by_name.values() if table.record.table_id == number), None)
        if before is None or before.schema is None:
            return comparing.created(after) if after is not None and before is None else None
        if after is None or after.schema is None:
            return comparing.dropped(before)
        return comparing.compare(before, after, self._columns.get(number, NOTHING))

    def _exact(self, name: Name, told: TableSchema | None, *, asks_key: bool = False) -> TableSchema | None:
        """The server's definition, if it is what the statement leaves; or the statement's."""
        found = self._server.look(name)
        if told is None:
            return found
        return found if found is not None and _is_like(found, told, asks_key=asks_key) else told

    def _ours(self, schema: TableSchema, record: TableRecord) -> TableSchema:
        named = _named(schema, (record.schema_name, record.name))
        return replace(named, table_id=record.table_id, dialect=Dialect.MYSQL, zero_dates=self._server.zero_dates)

    def _free_id(self, name: Name, ts: Ts) -> int:
        used = {table.record.table_id for table in self._known.by_name.values()}
        number = table_id(*name)
        return table_id(name[0], f"{name[1]}\0{ts}") if number in used else number


def _named(schema: TableSchema, name: Name) -> TableSchema:
    return replace(schema, schema_name=name[0], name=name[1])


def _moved(table: KnownTable, name: Name) -> KnownTable:
    schema = None if table.schema is None else _named(table.schema, name)
    return KnownTable(table.record.with_(schema_name=name[0], name=name[1]), schema)


def _warn_untold(schema: TableSchema, columns: Sequence[str]) -> None:
    _log.warning(
        "what older rows hold in a new column is not in the log; if there are any, load the table anew",
        table=schema.qualified_name,
        column=columns[0],
    )


def _by_name(before: TableSchema, after: TableSchema, told: Columns = NOTHING) -> Columns:
    """Columns of one name are the same, unless told otherwise."""
    columns, names = shadows.limited(told, after), {column.name for column in before.columns}
    known = names - set(columns.renames.values()) | set(columns.renames)
    added = [column.name for column in after.columns if column.name not in known or column.name in columns.added]
    return replace(columns, added=tuple(added))


def _key(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    return before if set(before) == set(after) else after


def _is_like(found: TableSchema, told: TableSchema, *, asks_key: bool) -> bool:
    """The same columns, as far as a sink sees them, and the same key."""
    shapes = [
        [(item.name, item.type) for item in arrow_schema(replace(one, dialect=Dialect.MYSQL))] for one in (found, told)
    ]
    is_same_key = asks_key or not told.key or set(found.key) == set(told.key)
    return shapes[0] == shapes[1] and is_same_key
