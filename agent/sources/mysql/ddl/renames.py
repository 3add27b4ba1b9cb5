"""Renames: what becomes of replicated tables, and of copies that take their places, when tables get other names."""

from collections.abc import Sequence
from dataclasses import replace

from agent.rows.schema_change import KnownTable
from agent.sources.mysql.ddl import reasons, shown
from agent.sources.mysql.ddl.copies import shadows
from agent.sources.mysql.ddl.copies.copies import Copies, by_name
from agent.sources.mysql.ddl.effects import Effects
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.ddl.parser import sql_text
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.parser.edits import Edit, Renamed
from agent.sources.mysql.ddl.replicated_tables import moved
from agent.sources.mysql.retyping.terms import RetypeTerms
from reactor.ids import Ts


class Renames:
    """A replicated table continues under any new name. A table that gets a selected name has rows that are not in the
    log: it is copied, unless it is configured to be ignored."""

    def __init__(self, effects: Effects, copies: Copies) -> None:
        self._effects = effects
        self._known = effects.known
        self._server = effects.server
        self._copies = copies
        #: names that the server still shows, and the end of its log a moment later: they may have been given again by
        #: then, and also be given up again
        self._doubted: dict[Name, Ts] = {}

    def is_of_temporary(self, edit: Renamed, edits: Sequence[Edit], event: DdlEvent) -> bool:
        """Return whether one of a statement's edits certainly renames a temporary table, for which MariaDB logs RENAME
        TABLE like for any other: the statement renames another one of this name, or the server shows one and has
        logged nothing since."""
        old, renames = edit.table, [one for one in edits if isinstance(one, Renamed)]
        may_be = self._server.is_mariadb and sql_text.meant(event.statement)[0].word == "RENAME"
        if not may_be or old not in self._known.by_name or old in {one.to for one in renames}:
            return False
        if old in {one.table for one in renames[renames.index(edit) + 1 :]}:
            return True
        if self._server.look(old) is None:
            return False
        place = self._server.place()
        if place > event.end:
            self._doubted[old] = place
        return event.ts <= place <= event.end

    def reach(self, ts: Ts) -> None:
        """Hold tables whose earlier names, as the log has been read up to ``ts``, no statement has given again, though
        the server showed them. Called before each statement: a name that is given again is doubted no longer."""
        for name, place in list(self._doubted.items()):
            if not self._known.is_gone(name):
                del self._doubted[name]
            elif place < ts:
                del self._doubted[name]
                self._hold_left(name)

    def _hold_left(self, name: Name) -> None:
        table = self._known.left(name)
        if table is not None:
            self._effects.hold((table.record.schema_name, table.record.name), reasons.STAYED.format(".".join(name)))

    def rename(self, old: Name, new: Name, event: DdlEvent) -> None:
        self._known.note_made(new)
        table = self._known.by_name.get(old)
        if table is not None and not self._copies.take_left(old):
            self._move(table, old, new)
            return
        base = self._copies.place_for(old, new)
        if base is not None:
            self._replace(old, new, base, event)
        elif self._copies.comes_back(old, new):
            return
        elif not self._copies.rename(old, new):
            self._effects.forget(new)  # it was dropped earlier
            if self._server.wants(*new) and not self._copies.bases_there(new):
                self._effects.meet(new, event)

    def _move(self, table: KnownTable, old: Name, new: Name) -> None:
        """Rename a replicated table."""
        self._effects.changes.touch(table)
        is_unreplicated = table.is_held and table.schema is None
        if is_unreplicated and not self._server.wants(*new):
            self._effects.forget(old)
            return
        if new in self._known.by_name and not self._copies.take_left(new):
            for name in (old, new):
                self._effects.hold(name, reasons.TAKEN.format(".".join(old), ".".join(new)))
            return
        self._known.drop(*old)
        if old in shadows.bases_of(new):
            self._copies.vacate(old, moved(table, new))
        else:
            self._effects.forget(new)
            self._known.put(moved(table, new))

    def _replace(self, copy: Name, name: Name, base: KnownTable, event: DdlEvent) -> None:
        """Replace a table by its copy: a single alteration of the table."""
        effects = self._effects
        effects.changes.touch(base)
        self._known.drop(base.record.schema_name, base.record.name)
        table = moved(base, name)
        if table.record.is_primary:
            table = replace(table, record=table.record.with_(is_primary=self._server.has_primary(name)))
        shadow = self._copies.take(copy)
        schema = shown.exact(self._server, name, shadow.schema if shadow else None)
        if schema is None or table.schema is None or table.is_held:
            self._known.put(table)
            return
        if shadow is not None and not self._known.had_rows(copy):
            effects.begin_empty(effects.new_record(name, schema, event.ts), schema)
            return
        columns = shadow.columns if shadow else by_name(table.schema, schema)
        unknown_fills = shadow.unknown_fills if shadow else columns.added
        is_shown = True if shadow is None or {*shadow.schema.key} != {*schema.key} else None
        doubt = reasons.of_copy(schema, shadow, unknown_fills, table.schema)
        if shadow is None and shown.is_later(self._server, schema, table.schema, event):
            doubt = doubt or reasons.LATER
        terms = RetypeTerms(self._server.is_mariadb, copies=True)
        effects.put(table, schema, shadows.limited(columns, schema), terms, is_shown=is_shown)
        if doubt:
            effects.hold(name, doubt)
