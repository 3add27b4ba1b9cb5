"""Statements of the binlog as changes of our tables: what each has become, as one record for its Ts.

The statement says what is done, the server what the columns then are: a definition read from the server counts where
it has the columns that the statement leaves, and the statement's own otherwise, as the server may be further on. What
cannot be read is looked at; where that does not tell what became of each column, the table is held.

- A table that is created and wanted starts empty. One of ours continues whatever its new name. One that was none of
  ours and gets a wanted name has rows that are not in the log: it is held at once, unless it shall be left out.
- What the log does not tell of a table's rows (partitions, tablespaces, values of a new column) holds it.
- Ids last: a table keeps its id under every name, and a new one of an old name gets another, if that is still in use.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import structlog

from agent.rows.schema import Column, Dialect, TableSchema, ZeroDates
from agent.rows.schema_change import KnownTable
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl import shadows
from agent.sources.mysql.ddl.changing import Changes
from agent.sources.mysql.ddl.copies import Copies, by_name
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.ddl.parser import parse
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.parser.parse import (
    CASCADES,
    Altered,
    Created,
    DatabaseDropped,
    Dropped,
    Edit,
    Renamed,
    Unfollowed,
    Unparsed,
)
from agent.sources.mysql.ddl.replicated_tables import KnownTables
from agent.sources.mysql.ddl.shadows import Shadow
from agent.sources.mysql.decode import types
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.retyping import texts
from agent.sources.mysql.retyping.terms import Terms
from agent.sources.mysql.values.session import SYSTEM, Session
from reactor.ids import Ts
from reactor.records.changefeed import DdlRecord, TableRecord

_log = structlog.get_logger()

#: what cures a table that is held: until it can be copied again by itself
CURE: Final = "leave it out by a filter rule and create a changefeed for it alone, or create the changefeed again"
_CAME: Final = (
    "it was renamed into the filter, and its rows are not in the log; rename it back, or leave it out by "
    'ignore-event = ["rename table"], or create the changefeed again'
)


@dataclass(frozen=True, slots=True)
class Server:
    """``wants``: whether a new table is, by schema and name; ``takes``: whether it can be replicated. ``look``: a
    table's definition as it is now, None when it is gone. ``ignores_rename``: whether a table that gets this name by
    this statement shall be left out. ``time_zone``: its own, empty where it cannot be told.
    ``folds_names``: tables are in lower case there, however a statement spells them. ``logs_cascades``: what foreign
    keys do to rows is in its log, or nobody minds."""

    wants: Callable[[str, str], bool]
    takes: Callable[[TableRecord], bool]
    look: Callable[[Name], TableSchema | None]
    ignores_rename: Callable[[Name, str], bool]
    zero_dates: ZeroDates
    is_mariadb: bool
    time_zone: str = ""
    folds_names: bool = False
    logs_cascades: bool = False


class Interpreter:
    """``known`` is kept up to date."""

    def __init__(self, known: KnownTables, server: Server) -> None:
        self._known = known
        self._server = server
        self._copies = Copies(known)
        #: of the statement at hand
        self._changes = Changes(known)
        #: ids of tables that were held when they went
        self._burnt: set[int] = set()

    def interpret(self, event: DdlEvent) -> DdlRecord | None:
        """What the statement changes of our tables; None when nothing.

        :raises SourceError: the server cannot be asked.
        """
        self._changes = Changes(self._known)
        for edit in parse.parse_ddl(
            event.statement,
            event.database,
            self._schemas(),
            is_mariadb=self._server.is_mariadb,
            session=self._session(event),
            folds_names=self._server.folds_names,
            copies=self._copies.by_name,
        ):
            self._take(edit, event)
        for table in self._copies.end_statement():
            self._known.put(table)  # its copy did not come: it has only got another name
        return self._record(event.ts, event.statement)

    def hold(self, names: Iterable[Name], reason: str, ts: Ts) -> DdlRecord | None:
        """Tables that cannot be followed from ``ts`` on, for what the log says itself."""
        self._changes = Changes(self._known)
        for name in names:
            self._hold(name, reason)
        return self._record(ts, "")

    def mentioned(self, statement: str, database: str) -> list[Name]:
        """The tables of ours that a statement names anywhere."""
        return parse.mentioned(statement, database, self._known.by_name, folds_names=self._server.folds_names)

    def _record(self, ts: Ts, statement: str) -> DdlRecord | None:
        changes = self._changes.taken()
        return DdlRecord(ts=ts, changes=changes, statement=statement) if changes else None

    def _session(self, event: DdlEvent) -> Session:
        is_system = event.session.time_zone in ("", SYSTEM)
        return replace(event.session, time_zone=self._server.time_zone) if is_system else event.session

    def _schemas(self) -> dict[Name, TableSchema]:
        tables = self._known.by_name.items()
        known = {name: table.schema for name, table in tables if table.schema is not None and not table.is_held}
        return {**{name: copy.schema for name, copy in self._copies.by_name.items()}, **known}

    def _take(self, edit: Edit, event: DdlEvent) -> None:
        match edit:
            case Created():
                self._create(edit, event)
            case Dropped(table):
                self._drop(table)
            case DatabaseDropped(name):
                self._copies.drop_database(name)
                for table in [table for table in self._known.by_name if table[0] == name]:
                    self._drop(table)
            case Renamed(table, to):
                self._rename(table, to, event)
            case Altered():
                self._alter(edit, event)
            case Unfollowed():
                self._unfollow(edit)
            case Unparsed():
                self._look_again(edit, event)

    def _create(self, edit: Created, event: DdlEvent) -> None:
        name = edit.table
        if name in self._known.by_name:
            if not self._copies.take_left(name):
                return
            self._forget(name)  # it went a while ago
        schema = self._schemas().get(edit.like) if edit.like else edit.schema
        if self._copies.bases_there(name):
            self._copies.begin(name, schema)
            return
        if not self._server.wants(*name):
            return
        if edit.reason and not self._is_harmless(edit.reason):
            record = self._new_record(name, schema, event.ts)
            self._changes.begin(KnownTable(record, None, _line(name, edit.reason)))
            return
        schema = self._exact(name, schema)
        if schema is None:
            _log.warning("a new table is gone again and is left out", table=".".join(name))
            return
        record = self._new_record(name, schema, event.ts)
        if not self._server.takes(record):
            _log.warning("a new table has no key and is left out; set force_replicate", table=".".join(name))
        else:
            table = KnownTable(record, self._ours(schema, record))
            self._changes.begin(table)
            self._known.put_new(table)

    def _new_record(self, name: Name, schema: TableSchema | None, ts: Ts) -> TableRecord:
        return TableRecord(
            table_id=self._free_id(name, ts),
            schema_name=name[0],
            name=name[1],
            key=schema.key if schema else (),
            start_ts=Ts(ts - 1),
            consistent_ts=Ts(ts - 1),
        )

    def _drop(self, name: Name) -> None:
        if self._copies.drop(name):
            for base in self._copies.take_all_left(name):
                self._forget(base)
        elif name in self._known.by_name and not self._copies.leave(name):
            self._forget(name)

    def _forget(self, name: Name) -> None:
        table = self._known.by_name.get(name)
        if table is not None:
            self._changes.touch(table)
            self._known.drop(*name)
            if table.is_held:
                self._burnt.add(table.record.table_id)

    def _rename(self, old: Name, new: Name, event: DdlEvent) -> None:
        table = self._known.by_name.get(old)
        if table is not None and not self._copies.take_left(old):
            self._move(table, old, new, event)
            return
        base = self._copies.place_for(old, new)
        if base is not None:
            self._replace(old, new, base, event.ts)
        elif self._copies.comes_back(old, new):
            return
        elif not self._copies.rename(old, new):
            self._forget(new)  # it went a while ago
            if self._server.wants(*new) and not self._copies.bases_there(new):
                self._meet(new, event)

    def _move(self, table: KnownTable, old: Name, new: Name, event: DdlEvent) -> None:
        """One of ours gets another name."""
        self._changes.touch(table)
        is_stranger = table.is_held and table.schema is None
        if is_stranger and not self._server.wants(*new):
            self._forget(old)
            return
        self._known.drop(*old)
        if old in shadows.bases_of(new):
            self._copies.vacate(old, moved(table, new))
        else:
            self._forget(new)
            self._known.put(moved(table, new))

    def _meet(self, name: Name, event: DdlEvent) -> None:
        """A table from outside gets a wanted name; without rows or not, nobody can tell here."""
        table, schema = ".".join(name), self._server.look(name)
        if schema is None:
            _log.warning("a table that was renamed is gone again and is left out", table=table)
            return
        record = self._new_record(name, schema, event.ts)
        if self._server.ignores_rename(name, event.statement) or not self._server.takes(record):
            _log.warning("a table that was renamed is left out", table=table)
        else:
            self._changes.begin(KnownTable(record, None, f"{table}: {_CAME}"))

    def _replace(self, copy: Name, name: Name, base: KnownTable, ts: Ts) -> None:
        """A copy takes its table's place: one alter of the table."""
        self._changes.touch(base)
        self._known.drop(base.record.schema_name, base.record.name)
        table = moved(base, name)
        shadow = self._copies.take(copy)
        schema = self._exact(name, shadow.schema if shadow else None)
        if schema is None or table.schema is None or table.is_held:
            self._known.put(table)
            return
        if shadow is not None and not self._known.had_rows(copy):
            self._begin_empty(name, schema, ts)
            return
        columns = shadow.columns if shadow else by_name(table.schema, schema)
        untold = shadow.untold if shadow else columns.added
        self._put(table, schema, shadows.limited(columns, schema), Terms(self._server.is_mariadb))
        if doubt := self._doubt(schema, shadow, untold, table.schema):
            self._hold(name, doubt)

    def _begin_empty(self, name: Name, schema: TableSchema, ts: Ts) -> None:
        record = self._new_record(name, schema, ts)
        table = KnownTable(record, self._ours(schema, record))
        self._changes.begin(table)
        self._known.put_new(table)

    def _doubt(self, schema: TableSchema, shadow: Shadow | None, untold: Iterable[str], before: TableSchema) -> str:
        """Why rows of a copy may be others than those of its table."""
        if shadow is not None and shadow.doubt:
            return shadow.doubt
        names = {column.name for column in schema.columns}
        origins = {column.name for column in before.columns}
        columns = shadow.columns if shadow else Columns()
        told = {*columns.added, *columns.renames, *origins}
        unknown = sorted((names - told) | ({*untold} & names))
        return _untold(unknown) if unknown else ""

    def _alter(self, edit: Altered, event: DdlEvent) -> None:
        columns = Columns(edit.renames, edit.added, edit.fills, edit.required)
        if self._copies.alter(edit.table, edit.schema, columns, edit.untold):
            return
        table = self._known.by_name[edit.table]
        schema = self._exact(edit.table, edit.schema, asks_key=edit.asks_key)
        assert schema is not None, "the statement has one"
        self._put(table, schema, columns, self._terms(event))
        if edit.untold and not self._known.is_empty(table.record.table_id):
            self._hold(edit.table, _untold(edit.untold))

    def _unfollow(self, edit: Unfollowed) -> None:
        if self._is_harmless(edit.reason):
            return
        table = self._known.by_name.get(edit.table)
        if table is None:
            self._copies.doubt(edit.table, edit.reason)
        elif not (edit.needs_rows and self._known.is_empty(table.record.table_id)):
            self._hold(edit.table, edit.reason)

    def _is_harmless(self, reason: str) -> bool:
        return reason == CASCADES and self._server.logs_cascades

    def _hold(self, name: Name, reason: str) -> None:
        table = self._known.by_name.get(name)
        if table is not None and not table.is_held:
            self._changes.touch(table)
            self._known.put(replace(table, held=_line(name, reason)))
            _log.warning("a table cannot be followed any more and is held", table=".".join(name), reason=reason)

    def _look_again(self, edit: Unparsed, event: DdlEvent) -> None:
        """A statement that cannot be read: the server tells what it left, where that leaves nothing open."""
        _log.info("a statement that cannot be read: the table is looked at", statement=event.statement[:200])
        name = edit.table
        known, copy = self._known.by_name.get(name), self._copies.by_name.get(name)
        before = copy.schema if copy else known.schema if known and not known.is_held else None
        schema = self._server.look(name) if before is not None else None
        if before is None or schema is None:
            if before is not None:
                self._unfollow(Unfollowed(name, _unreadable(event)))
            return
        columns = by_name(before, schema, edit.columns)
        is_open = _is_open(before, schema, columns, edit.columns.added)
        if copy is not None:
            self._copies.alter(name, schema, columns, ())
            if is_open:
                self._copies.doubt(name, _unreadable(event))
        elif known is not None:
            self._put(known, schema, columns, self._terms(event))
            if is_open:
                self._hold(name, _unreadable(event))

    def _terms(self, event: DdlEvent) -> Terms:
        """On which the statement gives columns other types."""
        session = self._session(event)
        return Terms(self._server.is_mariadb, session.sql_mode, session.time_zone)

    def _put(self, table: KnownTable, schema: TableSchema, columns: Columns, terms: Terms) -> None:
        self._changes.touch(table)
        record = table.record.with_(key=_key(table.record.key, schema.key))
        self._changes.put(KnownTable(record, self._ours(schema, record)), columns, terms)

    def _exact(self, name: Name, told: TableSchema | None, *, asks_key: bool = False) -> TableSchema | None:
        """The server's definition, if it is what the statement leaves; or the statement's."""
        found = self._server.look(name)
        if told is None:
            return found
        return found if found is not None and _is_like(found, told, asks_key=asks_key) else told

    def _ours(self, schema: TableSchema, record: TableRecord) -> TableSchema:
        named = replace(schema, schema_name=record.schema_name, name=record.name)
        return replace(named, table_id=record.table_id, dialect=Dialect.MYSQL, zero_dates=self._server.zero_dates)

    def _free_id(self, name: Name, ts: Ts) -> int:
        used = {table.record.table_id for table in self._known.by_name.values()} | self._burnt | {*self._changes.before}
        number = table_id(*name)
        return table_id(name[0], f"{name[1]}\0{ts}") if number in used else number


def moved(table: KnownTable, name: Name) -> KnownTable:
    schema = None if table.schema is None else replace(table.schema, schema_name=name[0], name=name[1])
    return replace(table, record=table.record.with_(schema_name=name[0], name=name[1]), schema=schema)


def _line(name: Name, reason: str) -> str:
    return f"{'.'.join(name)}: {reason}; {CURE}"


def _untold(columns: Iterable[str]) -> str:
    return f"what older rows hold in the new column {', '.join(columns)} is in no statement"


def _unreadable(event: DdlEvent) -> str:
    return f"a statement cannot be read that may change it: {' '.join(event.statement[:120].split())}"


def _is_open(before: TableSchema, after: TableSchema, columns: Columns, told: Iterable[str]) -> bool:
    """Whether what became of the values is not plain to see: a column is new, or of another definition."""
    old = {column.name: column for column in before.columns}
    for column in after.columns:
        origin = old.get(columns.renames.get(column.name, column.name))
        if column.name in columns.added:
            if column.name not in told:
                return True
        elif origin is None or replace(origin, name=column.name, is_key=column.is_key) != column:
            return True
    return False


def _key(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    return before if set(before) == set(after) else after


def _is_like(found: TableSchema, told: TableSchema, *, asks_key: bool) -> bool:
    """The same columns, as far as the statement tells them, and the same key."""
    shapes = [[_told(column) for column in schema.columns] for schema in (found, told)]
    is_same_key = asks_key or not told.key or set(found.key) == set(told.key)
    return shapes[0] == shapes[1] and is_same_key


def _told(column: Column) -> tuple[object, ...]:
    """What a statement tells of a column for sure: not its character set, which may be the table's."""
    is_short = column.type_id in (FieldType.STRING, FieldType.VARCHAR)
    length = texts.length_max(column) if is_short else column.modifier
    is_bytes = types.is_binary(column) and column.type_id in types.CHARACTER_TYPES
    return column.name, column.type_id, length, column.is_unsigned, column.members, is_bytes
