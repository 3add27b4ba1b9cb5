"""Statement interpreter: turns a statement of the binlog into a record of its effects on replicated tables, for its Ts.

The statement defines the operation, the server the resulting columns: a definition read from the server is used if it
has the columns that the statement leads to, else the statement's own, as the server may be ahead. For a statement that
cannot be parsed, the server's definition is read; if it does not show what became of each column, the table is held.

- A new table that the filter selects starts empty.
- Changes of rows that are not logged (partitions, tablespaces, unknown values of a new column) hold the table.
- What no record says (copies that are under way, ...) is in ``memory``, with which the next stream continues.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace

import structlog

from agent.errors import COPIED
from agent.rows.schema import TableSchema
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl import guard, reasons, shown, written
from agent.sources.mysql.ddl.collations import Collations
from agent.sources.mysql.ddl.copies.copies import Copies, by_name
from agent.sources.mysql.ddl.copies.memory import FileBegin, Memory
from agent.sources.mysql.ddl.effects import Effects
from agent.sources.mysql.ddl.environment import Server
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.ddl.expressions.computed import recomputed
from agent.sources.mysql.ddl.expressions.unsteady import unlogged
from agent.sources.mysql.ddl.likeness import is_open
from agent.sources.mysql.ddl.parser import parse
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.parser.edits import (
    CASCADES,
    IGNORED,
    Altered,
    Created,
    DatabaseDefined,
    DatabaseDropped,
    Dropped,
    Edit,
    Effort,
    Rebuilt,
    Rekeyed,
    Renamed,
    Unfollowed,
    Unparsed,
)
from agent.sources.mysql.ddl.renames import Renames
from agent.sources.mysql.ddl.replicated_tables import KnownTables
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord

_log = structlog.get_logger()


class Interpreter:
    """Keeps ``known`` up to date. ``memory``: of an earlier stream at the position where this one begins; empty for the
    first one."""

    def __init__(self, known: KnownTables, server: Server, memory: str = "") -> None:
        remembered = Memory.from_text(memory)
        known.remember(remembered)
        self._known = known
        self._server = server
        self._copies = Copies(known, by_name=dict(remembered.copies), left={*remembered.left})
        self._effects = Effects(known, server, remembered.burnt)
        self._renames = Renames(self._effects, self._copies)
        self._collations = Collations(remembered, server.collations, server.place)
        self._file = remembered.file
        #: the memory before the newest statement, and that one's Ts
        self._before = Ts(0), memory
        #: the memory as text, and the version of ``known`` that it is of; None while a statement changes it
        self._text: tuple[int, str] | None = None

    def memory(self, at: Ts) -> str:
        """Return what the next stream has to know that begins at ``at``; only the newest statement may be behind it."""
        ts, text = self._before
        return text if at < ts else self._memory()

    def begin_file(self, file: FileBegin) -> bool:
        """Note which file of the binlog is read; return False if the log was read from another one of its number."""
        known, self._file, self._text = self._file, file, None
        return known is None or known == file or (known.epoch, known.number) != (file.epoch, file.number)

    def interpret(self, event: DdlEvent) -> DdlRecord | None:
        """Return the statement's changes of replicated tables; None if there are none.

        :raises SourceError: a query to the server fails.
        """
        self._begin(event.ts)
        for name in self._mentioned(event.statement, event.database):
            with self._holding([name], event):
                self._known.ask_collation(name, self._server.look)
        edits = parse.parse_ddl(
            event.statement,
            event.database,
            self._copies.schemas(),
            is_mariadb=self._server.is_mariadb,
            session=self._server.session(event.session),
            folds_names=self._server.folds_names,
            copies=self._copies.by_name,
            collation_of=lambda database: (
                self._collations.by_database.get(database) or self._server.collation_of(database)
            ),
        )
        for edit in edits:
            if isinstance(edit, Renamed) and self._renames.is_of_temporary(edit, edits, event):
                continue
            with self._holding(guard.concerned(edit, self._known), event):
                self._take(edit, event)
        for table in self._copies.end_statement():
            self._known.put(table)  # no copy replaced it: it was only renamed
        for name in self._mentioned(event.statement, event.database):
            with self._holding([name], event):
                self._take_keyed(name, event)
        return self._effects.record(event.ts, event.statement)

    def _begin(self, ts: Ts) -> None:
        if ts != self._before[0]:
            self._before = ts, self._memory()
        self._text = None
        self._collations.reach(ts)
        self._effects.begin_statement()
        self._renames.reach(ts)

    def _memory(self) -> str:
        if self._text is None or self._text[0] != self._known.version:
            self._text = self._known.version, self._learnt()
        return self._text[1]

    def _learnt(self) -> str:
        copies, left = self._copies.by_name, frozenset(self._copies.left)
        filled = frozenset(filter(self._known.had_rows, copies))
        memory = replace(self._known.memory(), copies=copies, filled=filled, left=left, burnt=self._effects.burnt)
        memory = replace(memory, file=self._file)
        return self._collations.remembered(memory).to_text()

    def _holding(self, names: list[Name], event: DdlEvent) -> AbstractContextManager[None]:
        effects = self._effects
        return guard.holding(names, event, effects.changes, self._copies, self._server.wants, effects.begin_held)

    def hold(self, names: Iterable[Name], reason: str, ts: Ts) -> DdlRecord | None:
        """Hold tables that cannot be followed from ``ts`` on, for a reason found in the log itself."""
        self._begin(ts)
        for name in names:
            table = self._known.by_name.get(name)
            if table is None:
                self._appear(name, ts)
            else:
                self._effects.hold(name, reason)
        return self._effects.record(ts, "")

    def _appear(self, name: Name, ts: Ts) -> None:
        """Handle a table that has rows under a name that was given up: what had it may still be that table."""
        left, is_sure, wants = self._known.left(name), self._known.is_gone(name), self._server.wants(*name)
        if left is not None and (is_sure or wants):
            self._effects.hold((left.record.schema_name, left.record.name), reasons.STAYED.format(".".join(name)))
        self._known.note_made(name)
        if wants:
            self._effects.meet(name, DdlEvent(ts, name[0], ""))

    def written(self, statement: str, database: str) -> list[Name]:
        """Return the replicated tables whose rows a statement may have changed."""
        fold, reaches = parse.folding(self._server.folds_names), self._server.reaches
        return written.written(statement, database, self._known.by_name, reaches=reaches, fold=fold)

    def _mentioned(self, statement: str, database: str) -> list[Name]:
        """Return the replicated tables that a statement names anywhere."""
        return parse.mentioned(statement, database, self._known.by_name, folds_names=self._server.folds_names)

    def _take(self, edit: Edit, event: DdlEvent) -> None:
        if shown.is_in_copy(edit, self._known, event.ts):
            return
        if isinstance(edit, Created | Altered):
            self._collations.note(edit, event.ts)
        match edit:
            case Created():
                self._create(edit, event)
            case Dropped(table):
                self._drop(table)
            case DatabaseDefined(name, _, if_absent) if if_absent and name in self._collations.by_database:
                return
            case DatabaseDefined(name, collation):
                for table in self._collations.define(name, collation, event.ts):
                    if not self._known.tells_charsets(table):
                        self._unfollow(Unfollowed(table, reasons.ASSUMED))
            case DatabaseDropped(name):
                self._collations.drop(name)
                self._copies.drop_database(name)
                for table in [table for table in self._known.by_name if table[0] == name]:
                    self._drop(table)
            case Renamed(table, to, if_exists):
                self._collations.rename(table, to)
                # a name that is taken is given to no other table
                if not if_exists or table in self._known.by_name or to not in self._known.by_name:
                    self._renames.rename(table, to, event)
            case Altered():
                self._alter(edit, event)
            case Rebuilt():
                self._rebuild(edit, event)
            case Rekeyed(table, uniques):
                self._copies.doubt_rows(table, uniques)
                self._doubts_key(table, event.ts)
            case Unfollowed():
                if not (edit.event and self._server.ignores(edit.table, edit.event)):
                    self._unfollow(edit)
            case Unparsed():
                self._reread_definition(edit, event)
        if isinstance(edit, Altered | Rebuilt | Unparsed):
            self._doubt_ignored(edit.table, edit.effort)

    def _create(self, edit: Created, event: DdlEvent) -> None:
        name = edit.table
        if edit.replaces and event.is_failed:  # it has dropped the old table by then
            return
        if name in self._known.by_name:
            if not self._copies.take_left(name):
                if not edit.if_absent and self._known.is_met(name):
                    self._effects.hold(name, reasons.CREATED)
                return
            self._effects.forget(name)  # it was dropped earlier
        self._known.note_made(name)
        schema = self._copies.schemas().get(edit.like) if edit.like else edit.schema
        if self._copies.bases_there(name):
            self._copies.begin(name, schema)
            return
        if not self._server.wants(*name):
            return
        if edit.reason and not self._is_harmless(edit.reason):
            self._effects.begin_held(name, edit.reason, event, schema)
            return
        if reason := self._unread(name, schema, edit):
            self._effects.begin_held(name, reason, event, schema)
            return
        stated, found = schema, None if schema else self._server.show(name)
        schema = found.schema if found else shown.exact(self._server, name, schema)
        if schema is None:
            _log.warning("a new table is gone again and is left out", table=".".join(name))
            return
        if edit.is_keyless:
            stated = schema = shown.keyless(schema)
        like = self._known.by_name.get(edit.like) if edit.like else None
        record = self._effects.new_record(name, schema, event.ts).with_(is_primary=edit.is_primary)
        record = shown.created(self._server, record, stated, like)
        if found and found.place > event.end:  # it may show later statements
            self._effects.admit(record, replace(found, schema=schema))
        else:
            self._effects.admit(record, schema)

    def _take_keyed(self, name: Name, event: DdlEvent) -> None:
        """Copy a table that was held without a key, if the statement has given it one."""
        table = self._known.by_name.get(name)
        if table is None or reasons.KEYLESS not in table.held:
            return
        found = self._server.show(name)
        if found.schema is not None and self._server.takes(self._effects.new_record(name, found.schema, event.ts)):
            self._effects.forget(name)
            self._effects.copy(self._effects.new_record(name, found.schema, event.ts), found)

    def _drop(self, name: Name) -> None:
        if self._copies.drop(name):
            for base in self._copies.take_all_left(name):
                self._effects.forget(base)
        elif name in self._known.by_name and not self._copies.leave(name):
            self._effects.forget(name)

    def _alter(self, edit: Altered, event: DdlEvent) -> None:
        columns = Columns(edit.renames, edit.added, edit.fills, edit.required)
        terms = self._server.terms(event.session, edit.effort)
        before, computed = self._copies.schemas().get(edit.table), lambda: self._server.computed(edit.table)
        doubt = recomputed(before, edit, terms, computed) if before else ""
        self._copies.doubt_rows(edit.table, edit.made_uniques, edit.renames)
        self._copies.doubt_values(edit, event.statement, self._server.uniques)
        if self._copies.alter(edit.table, edit.schema, columns, edit.unknown_fills):
            if doubt:
                self._copies.doubt(edit.table, doubt)
            return
        table = self._known.by_name[edit.table]
        if table.is_held or (edit.touches_key and self._doubts_key(edit.table, event.ts)):
            return
        schema = shown.altered(self._server, edit)
        is_shown = shown.is_key_shown(self._server, edit, schema, table.record)
        self._effects.put(table, schema, columns, replace(terms, numbered=edit.numbered), is_shown=is_shown)
        if shown.is_of_another(self._server, edit, schema, table.record):
            self._effects.hold(edit.table, reasons.KEY_UNKNOWN)
            return
        if reason := self._unread(edit.table, edit.schema, edit):
            self._effects.hold(edit.table, reason)
            return
        if self._known.is_empty(table.record.table_id):
            return
        if reason := reasons.unknown_fills(edit.unknown_fills) if edit.unknown_fills else doubt:
            self._effects.hold(edit.table, reason)

    def _unread(self, name: Name, schema: TableSchema | None, edit: Created | Altered) -> str:
        """Return why the values of a new virtual column cannot be followed; empty if they can."""
        if unsteady := self._selected(name, edit.unsteady):
            return reasons.unsteady(unsteady)
        images = self._server.images
        found = self._selected(name, unlogged(schema, edit.virtual, images)) if schema else ()
        return reasons.unlogged(found, images) if found else ""

    def _selected(self, name: Name, columns: Iterable[str]) -> list[str]:
        return [column for column in columns if self._server.selects(name, column)]

    def _doubts_key(self, name: Name, ts: Ts) -> bool:
        """Hold a table whose rows may have come under a key that a statement makes only now; return whether it is."""
        table = self._known.by_name.get(name)
        if is_early := table is not None and self._known.is_keyed_early(table, ts):
            self._effects.hold(name, reasons.KEYED_EARLY)
        return is_early

    def _rebuild(self, edit: Rebuilt, event: DdlEvent) -> None:
        table, terms = self._known.by_name.get(edit.table), self._server.terms(event.session, edit.effort)
        if terms.zeroes_dates and table is not None and table.schema is not None and not table.is_held:
            self._effects.changes.touch(table)
            self._effects.changes.put(table, Columns(), terms)

    def _doubt_ignored(self, name: Name, effort: Effort) -> None:
        """Hold a table from which ALTER IGNORE may have removed rows that constraints of before refuse."""
        if effort.is_lax and effort.copies and self._server.has_checks(name):
            self._unfollow(Unfollowed(name, IGNORED, needs_rows=True))

    def _unfollow(self, edit: Unfollowed) -> None:
        if self._is_harmless(edit.reason):
            return
        table = self._known.by_name.get(edit.table)
        if table is None:
            self._copies.doubt(edit.table, edit.reason)
        elif not (edit.needs_rows and self._known.is_empty(table.record.table_id)):
            is_copied = edit.of_partition and self._server.copies_partitions
            self._effects.hold(edit.table, edit.reason, COPIED if is_copied else reasons.CURE)

    def _is_harmless(self, reason: str) -> bool:
        return reason == CASCADES and self._server.logs_cascades

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
            self._effects.put(known, schema, columns, self._server.terms(event.session, edit.effort), is_shown=is_shown)
            if leaves_open:
                self._effects.hold(name, reasons.unreadable(event))
