"""Statement interpreter: turns a statement of the binlog into a record of its effects on replicated tables, for its Ts.

The statement defines the operation, the server the resulting columns: a definition read from the server is used if it
has the columns that the statement leads to, else the statement's own, as the server may be ahead. For a statement that
cannot be parsed, the server's definition is read; if it does not show what became of each column, the table is held.

- A new table that the filter selects starts empty. A replicated table continues under any new name. A table that gets a
  selected name by a rename has rows that are not in the log: it is copied, unless it is configured to be ignored.
- Changes of rows that are not logged (partitions, tablespaces, unknown values of a new column) hold the table.
- Ids are permanent: a table keeps its id under every name; a new table gets another id while its name's is in use.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace

import structlog

from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl import guard, reasons, shadows, shown, written
from agent.sources.mysql.ddl.changing import ChangingTables
from agent.sources.mysql.ddl.computed import recomputed
from agent.sources.mysql.ddl.copies import Copies, by_name
from agent.sources.mysql.ddl.environment import Server
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.ddl.likeness import is_open, key_of
from agent.sources.mysql.ddl.new_tables import NewTables
from agent.sources.mysql.ddl.parser import parse
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.parser.edits import (
    CASCADES,
    Altered,
    Created,
    DatabaseDefined,
    DatabaseDropped,
    Dropped,
    Edit,
    Rebuilt,
    Rekeyed,
    Renamed,
    Unfollowed,
    Unparsed,
)
from agent.sources.mysql.ddl.replicated_tables import KnownTables, moved
from agent.sources.mysql.dialect import DIALECT
from agent.sources.mysql.retyping.terms import RetypeTerms
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.tables.table import TableRecord

_log = structlog.get_logger()


class Interpreter:
    """Keeps ``known`` up to date."""

    def __init__(self, known: KnownTables, server: Server) -> None:
        self._known = known
        self._server = server
        self._copies = Copies(known)
        self._new = NewTables(known)
        #: default collations of databases, as far as the log has been read
        self._collations = dict(server.collations())
        #: state of the current statement
        self._changes = ChangingTables(known)

    def interpret(self, event: DdlEvent) -> DdlRecord | None:
        """Return the statement's changes of replicated tables; None if there are none.

        :raises SourceError: a query to the server fails.
        """
        self._changes = ChangingTables(self._known)
        for name in self._mentioned(event.statement, event.database):
            with self._holding([name], event):
                self._known.ask_collation(name, self._server.look)
        for edit in parse.parse_ddl(
            event.statement,
            event.database,
            self._copies.schemas(),
            is_mariadb=self._server.is_mariadb,
            session=self._server.session(event.session),
            folds_names=self._server.folds_names,
            copies=self._copies.by_name,
            collation_of=lambda database: self._collations.get(database) or self._server.collation_of(database),
        ):
            with self._holding(guard.concerned(edit, self._known), event):
                self._take(edit, event)
        for table in self._copies.end_statement():
            self._known.put(table)  # no copy replaced it: it was only renamed
        for name in self._mentioned(event.statement, event.database):
            with self._holding([name], event):
                self._take_keyed(name, event)
        return self._record(event.ts, event.statement)

    def _holding(self, names: list[Name], event: DdlEvent) -> AbstractContextManager[None]:
        return guard.holding(names, event, self._changes, self._copies, self._server.wants, self._begin_held)

    def hold(self, names: Iterable[Name], reason: str, ts: Ts) -> DdlRecord | None:
        """Hold tables that cannot be followed from ``ts`` on, for a reason found in the log itself."""
        self._changes = ChangingTables(self._known)
        for name in names:
            table = self._known.by_name.get(name)
            if table is None:
                self._appear(name, ts)
            else:
                self._hold(name, reason)
        return self._record(ts, "")

    def _appear(self, name: Name, ts: Ts) -> None:
        """Handle a table that has rows under a name that was given up: what had it may still be that table."""
        left, is_sure, wants = self._known.left(name), self._known.is_gone(name), self._server.wants(*name)
        if left is not None and (is_sure or wants):
            self._hold((left.record.schema_name, left.record.name), reasons.STAYED.format(".".join(name)))
        self._known.note_made(name)
        if wants:
            self._meet(name, DdlEvent(ts, name[0], ""))

    def written(self, statement: str, database: str) -> list[Name]:
        """Return the replicated tables whose rows a statement may have changed."""
        fold, reaches = parse.folding(self._server.folds_names), self._server.reaches
        return written.written(statement, database, self._known.by_name, reaches=reaches, fold=fold)

    def _mentioned(self, statement: str, database: str) -> list[Name]:
        """Return the replicated tables that a statement names anywhere."""
        return parse.mentioned(statement, database, self._known.by_name, folds_names=self._server.folds_names)

    def _record(self, ts: Ts, statement: str) -> DdlRecord | None:
        changes = self._changes.taken()
        return DdlRecord(ts=ts, changes=changes, statement=statement) if changes else None

    def _take(self, edit: Edit, event: DdlEvent) -> None:
        if shown.is_in_copy(edit, self._known, event.ts):
            return
        match edit:
            case Created():
                self._create(edit, event)
            case Dropped(table):
                self._drop(table)
            case DatabaseDefined(name, collation):
                self._collations[name] = collation
            case DatabaseDropped(name):
                self._collations.pop(name, None)
                self._copies.drop_database(name)
                for table in [table for table in self._known.by_name if table[0] == name]:
                    self._drop(table)
            case Renamed(table, to, if_exists):
                # a name that is taken is given to no other table
                if not if_exists or table in self._known.by_name or to not in self._known.by_name:
                    self._rename(table, to, event)
            case Altered():
                self._alter(edit, event)
            case Rebuilt():
                self._rebuild(edit, event)
            case Rekeyed(table):
                self._doubts_key(table, event.ts)
            case Unfollowed():
                self._unfollow(edit)
            case Unparsed():
                self._reread_definition(edit, event)

    def _create(self, edit: Created, event: DdlEvent) -> None:
        name = edit.table
        if edit.replaces and event.is_failed:  # it has dropped the old table by then
            return
        self._known.note_made(name)
        if name in self._known.by_name:
            if not self._copies.take_left(name):
                return
            self._forget(name)  # it was dropped earlier
        schema = self._copies.schemas().get(edit.like) if edit.like else edit.schema
        if self._copies.bases_there(name):
            self._copies.begin(name, schema)
            return
        if not self._server.wants(*name):
            return
        if edit.reason and not self._is_harmless(edit.reason):
            self._begin_held(name, edit.reason, event, schema)
            return
        place = None if schema else self._server.place()
        stated, schema = schema, shown.exact(self._server, name, schema)
        if schema is None:
            _log.warning("a new table is gone again and is left out", table=".".join(name))
            return
        if edit.is_keyless:
            stated = schema = shown.keyless(schema)
        like = self._known.by_name.get(edit.like) if edit.like else None
        record = shown.created(self._server, self._new_record(name, schema, event.ts), stated, like)
        self._admit(record, schema, place if place and place > event.end else None)  # it may show later statements

    def _begin_held(self, name: Name, reason: str, event: DdlEvent, schema: TableSchema | None = None) -> None:
        self._changes.begin(KnownTable(self._new_record(name, schema, event.ts), None, reasons.line(name, reason)))

    def _take_keyed(self, name: Name, event: DdlEvent) -> None:
        """Copy a table that was held without a key, if the statement has given it one."""
        table = self._known.by_name.get(name)
        if table is None or reasons.KEYLESS not in table.held:
            return
        place, schema = self._server.place(), self._server.look(name)
        if schema is not None and self._server.takes(self._new_record(name, schema, event.ts)):
            self._forget(name)
            self._copy(self._new_record(name, schema, event.ts), schema, place)

    def _new_record(self, name: Name, schema: TableSchema | None, ts: Ts) -> TableRecord:
        return self._new.record(name, schema, ts, self._changes.before)

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
            self._new.forget(table)

    def _rename(self, old: Name, new: Name, event: DdlEvent) -> None:
        self._known.note_made(new)
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
            self._forget(new)  # it was dropped earlier
            if self._server.wants(*new) and not self._copies.bases_there(new):
                self._meet(new, event)

    def _move(self, table: KnownTable, old: Name, new: Name, event: DdlEvent) -> None:
        """Rename a replicated table."""
        self._changes.touch(table)
        is_unreplicated = table.is_held and table.schema is None
        if is_unreplicated and not self._server.wants(*new):
            self._forget(old)
            return
        if new in self._known.by_name and not self._copies.take_left(new):
            for name in (old, new):
                self._hold(name, reasons.TAKEN.format(".".join(old), ".".join(new)))
            return
        self._known.drop(*old)
        if old in shadows.bases_of(new):
            self._copies.vacate(old, moved(table, new))
        else:
            self._forget(new)
            self._known.put(moved(table, new))

    def _meet(self, name: Name, event: DdlEvent) -> None:
        """Handle a table that gets a selected name; it is unknown whether it has rows."""
        table, place, schema = ".".join(name), self._server.place(), self._server.look(name)
        if schema is None:
            _log.warning("a table that was renamed is gone again and is left out", table=table)
        elif self._server.ignores_rename(name, event.statement):
            _log.warning("a table that was renamed is left out", table=table)
        else:
            self._admit(self._new_record(name, schema, event.ts), schema, place)

    def _admit(self, record: TableRecord, schema: TableSchema, place: Ts | None) -> None:
        """Add a table, which is empty if ``place`` is None; else see ``_copy``."""
        if not self._server.takes(record):
            self._changes.begin(KnownTable(record, None, f"{record.schema_name}.{record.name}: {reasons.KEYLESS}"))
        elif place is None:
            self._begin_empty(record, schema)
        else:
            self._copy(record, schema, place)

    def _copy(self, record: TableRecord, schema: TableSchema, place: Ts) -> None:
        """Add a table with rows that are in no log. ``place``: where the server had this definition, or an earlier one
        that led to it."""
        record = record.with_(to_copy=True, shown_ts=place)
        table = KnownTable(record, self._ours(schema, record))
        self._changes.begin(table)
        self._known.note_copied(table)

    def _replace(self, copy: Name, name: Name, base: KnownTable, ts: Ts) -> None:
        """Replace a table by its copy: a single alteration of the table."""
        self._changes.touch(base)
        self._known.drop(base.record.schema_name, base.record.name)
        table = moved(base, name)
        shadow = self._copies.take(copy)
        schema = shown.exact(self._server, name, shadow.schema if shadow else None)
        if schema is None or table.schema is None or table.is_held:
            self._known.put(table)
            return
        if shadow is not None and not self._known.had_rows(copy):
            self._begin_empty(self._new_record(name, schema, ts), schema)
            return
        columns = shadow.columns if shadow else by_name(table.schema, schema)
        unknown_fills = shadow.unknown_fills if shadow else columns.added
        is_shown = True if shadow is None or {*shadow.schema.key} != {*schema.key} else None
        terms = RetypeTerms(self._server.is_mariadb, copies=True)
        self._put(table, schema, shadows.limited(columns, schema), terms, is_shown=is_shown)
        if doubt := reasons.of_copy(schema, shadow, unknown_fills, table.schema):
            self._hold(name, doubt)

    def _begin_empty(self, record: TableRecord, schema: TableSchema) -> None:
        table = KnownTable(record, self._ours(schema, record))
        self._changes.begin(table)
        self._known.put_new(table)

    def _alter(self, edit: Altered, event: DdlEvent) -> None:
        columns = Columns(edit.renames, edit.added, edit.fills, edit.required)
        terms = self._server.terms(event.session, edit.effort)
        before, computed = self._copies.schemas().get(edit.table), lambda: self._server.computed(edit.table)
        doubt = recomputed(before, edit, terms, computed) if before else ""
        if self._copies.alter(edit.table, edit.schema, columns, edit.unknown_fills):
            if doubt:
                self._copies.doubt(edit.table, doubt)
            return
        table = self._known.by_name[edit.table]
        if table.is_held or (edit.touches_key and self._doubts_key(edit.table, event.ts)):
            return
        schema = shown.exact(self._server, edit.table, edit.schema, asks_key=edit.asks_key)
        assert schema is not None, "the statement has a schema"
        is_shown = shown.is_key_shown(self._server, edit, schema)
        self._put(table, schema, columns, replace(terms, numbered=edit.numbered), is_shown=is_shown)
        if self._known.is_empty(table.record.table_id):
            return
        if reason := reasons.unknown_fills(edit.unknown_fills) if edit.unknown_fills else doubt:
            self._hold(edit.table, reason)

    def _doubts_key(self, name: Name, ts: Ts) -> bool:
        """Hold a table whose rows may have come under a key that a statement makes only now; return whether it is."""
        table = self._known.by_name.get(name)
        if is_early := table is not None and self._known.is_keyed_early(table, ts):
            self._hold(name, reasons.KEYED_EARLY)
        return is_early

    def _rebuild(self, edit: Rebuilt, event: DdlEvent) -> None:
        table, terms = self._known.by_name.get(edit.table), self._server.terms(event.session, edit.effort)
        if terms.zeroes_dates and table is not None and table.schema is not None and not table.is_held:
            self._changes.touch(table)
            self._changes.put(table, Columns(), terms)

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
            self._known.put(replace(table, held=reasons.line(name, reason)))
            _log.warning("a table cannot be followed any more and is held", table=".".join(name), reason=reason)

    def _reread_definition(self, edit: Unparsed, event: DdlEvent) -> None:
        """Handle an unparsable statement: use the server's definitions if they are unambiguous."""
        _log.info("a statement that cannot be read: the table is looked at", statement=event.statement[:200])
        name = edit.table
        known, copy = self._known.by_name.get(name), self._copies.by_name.get(name)
        before = copy.schema if copy else known.schema if known and not known.is_held else None
        schema = self._server.look(name) if before is not None else None
        if before is None or schema is None:
            if before is not None:
                self._unfollow(Unfollowed(name, reasons.unreadable(event)))
            return
        columns = by_name(before, schema, edit.columns)
        leaves_open = is_open(before, schema, columns, edit.columns.added)
        if copy is not None:
            self._copies.alter(name, schema, columns, ())
            if leaves_open:
                self._copies.doubt(name, reasons.unreadable(event))
        elif known is not None and not self._doubts_key(name, event.ts):
            is_shown = True if {*schema.key} != {*before.key} else None
            self._put(known, schema, columns, self._server.terms(event.session, edit.effort), is_shown=is_shown)
            if leaves_open:
                self._hold(name, reasons.unreadable(event))

    def _put(
        self, table: KnownTable, schema: TableSchema, columns: Columns, terms: RetypeTerms, *, is_shown: bool | None
    ) -> None:
        """Change a table. ``is_shown``: see ``shown.noted``."""
        self._changes.touch(table)
        record = table.record.with_(key=key_of(table.record.key, schema.key), collation=schema.collation)
        table = KnownTable(shown.noted(self._server, record, is_shown=is_shown), self._ours(schema, record))
        self._changes.put(table, columns, terms)
        self._known.note_defined(table)
        if is_shown:
            self._known.note_shown(table)

    def _ours(self, schema: TableSchema, record: TableRecord) -> TableSchema:
        named = replace(schema, schema_name=record.schema_name, name=record.name)
        return replace(named, table_id=record.table_id, dialect=DIALECT, zero_dates=self._server.zero_dates)
