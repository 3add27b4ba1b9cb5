"""Copies of tables by online schema change tools: tracks copies in progress, and tables that make room for them. Pure.

A tool renames the table away (or drops it) and renames its copy to the table's name, in one statement or in two. While
the copy exists, a table that loses its name is only *left*: it continues unchanged until the copy replaces it or is
gone.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl import reasons
from agent.sources.mysql.ddl.copies import shadows
from agent.sources.mysql.ddl.copies.merging import may_merge
from agent.sources.mysql.ddl.copies.shadows import NOTHING, Shadow
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.parser.edits import Altered
from agent.sources.mysql.ddl.replicated_tables import KnownTables
from agent.sources.mysql.decode.table_ids import table_id
from agent.sources.mysql.names import lowered


@dataclass(slots=True)
class Copies:
    """``by_name``: current copies. ``left``: names of replicated tables that are gone while their copy exists.
    ``vacated``: tables that the current statement has renamed away, under their new names."""

    known: KnownTables
    by_name: dict[Name, Shadow] = field(default_factory=dict)
    left: set[Name] = field(default_factory=set)
    vacated: dict[Name, KnownTable] = field(default_factory=dict)

    def bases_there(self, name: Name) -> bool:
        """Return whether the name is that of a copy, log or remnant of a replicated table."""
        return any(base in self.known.by_name or base in self.vacated for base in shadows.bases_of(name))

    def schemas(self) -> dict[Name, TableSchema]:
        """Return the definitions of copies, and of the tables that are followed."""
        tables = self.known.by_name.items()
        known = {name: table.schema for name, table in tables if table.schema is not None and not table.is_held}
        return {**{name: copy.schema for name, copy in self.by_name.items()}, **known}

    def begin(self, name: Name, schema: TableSchema | None) -> None:
        self.known.note_unreplicated(name)
        if schema is not None:
            self.by_name[name] = Shadow(replace(schema, schema_name=name[0], name=name[1]))

    def take(self, name: Name) -> Shadow | None:
        return self.by_name.pop(name, None)

    def drop(self, name: Name) -> bool:
        """Drop a copy; return whether it was one."""
        return self.by_name.pop(name, None) is not None

    def drop_database(self, name: str) -> None:
        self.by_name = {table: copy for table, copy in self.by_name.items() if table[0] != name}

    def rename(self, old: Name, new: Name) -> bool:
        """Rename a table; return whether it is still a copy."""
        shadow = self.by_name.pop(old, None)
        if shadow is None or not self.bases_there(new):
            return False
        self.by_name[new] = replace(shadow, schema=replace(shadow.schema, schema_name=new[0], name=new[1]))
        return True

    def alter(self, name: Name, schema: TableSchema, columns: Columns, unknown_fills: Collection[str]) -> bool:
        """Alter a table; return whether it is a copy."""
        shadow = self.by_name.get(name)
        if shadow is not None:
            moved = {old: new for new, old in columns.renames.items()}
            kept = tuple(moved.get(column, column) for column in shadow.unknown_fills if column not in columns.added)
            composed = shadows.composed(shadow.columns, columns)
            self.by_name[name] = replace(shadow, schema=schema, columns=composed, unknown_fills=(*kept, *unknown_fills))
        return shadow is not None

    def doubt(self, name: Name, reason: str) -> None:
        shadow = self.by_name.get(name)
        if shadow is not None and not shadow.doubt:
            self.by_name[name] = replace(shadow, doubt=reason)

    def doubt_rows(
        self, name: Name, uniques: Collection[frozenset[str]], renames: Mapping[str, str] = NOTHING.renames
    ) -> None:
        """Doubt a copy before it gets unique keys: rows of the table may be duplicates in it, unless they include its
        key. ``renames``: new column → old, of the same statement."""
        if (shadow := self.by_name.get(name)) is not None:
            new = {old: column for column, old in renames.items()}
            key = {lowered(new.get(column, column)) for column in shadow.schema.key}
            if any(not key or not key <= columns for columns in uniques):
                self.doubt(name, reasons.DUPLICATES)

    def doubt_values(self, edit: Altered, statement: str, uniques: Callable[[Name], frozenset[str]]) -> None:
        """Doubt a copy before columns of its unique keys change so that different values may become equal. ``uniques``:
        see ``Server``; only asked for if it matters."""
        shadow = self.by_name.get(edit.table)
        merged = may_merge(shadow.schema, edit, statement) if shadow else frozenset()
        if merged and merged & uniques(edit.table):
            self.doubt(edit.table, reasons.MERGED)

    def vacate(self, name: Name, table: KnownTable) -> None:
        self.vacated[name] = table

    def end_statement(self) -> Iterator[KnownTable]:
        """Yield the tables that were renamed away, in their new state. A name that another replicated table has got
        by the same statement is not kept for a copy."""
        for name, table in self.vacated.items():
            if name not in self.known.by_name and self._is_awaited(name):
                self.left.add(name)
                schema = table.schema and replace(table.schema, schema_name=name[0], name=name[1])
                record = table.record.named(*name)
                yield replace(table, record=record, schema=schema)
            else:
                yield table
        self.vacated = {}

    def leave(self, name: Name) -> bool:
        """Drop a table; return whether it continues because its copy exists."""
        if self._is_awaited(name):
            self.left.add(name)
            return True
        return False

    def take_left(self, name: Name) -> bool:
        """Return whether the table of this name was left, and forget it."""
        had = name in self.left
        self.left.discard(name)
        return had

    def take_all_left(self, copy: Name) -> list[Name]:
        """Return, and forget, the tables that were left for this copy, which will not replace them any more."""
        found = [base for base in shadows.bases_of(copy) if base in self.left and not self._is_awaited(base)]
        self.left -= {*found}
        return found

    def place_for(self, copy: Name, name: Name) -> KnownTable | None:
        """Return the table that a copy replaces by taking this name."""
        if name not in shadows.bases_of(copy) or not shadows.is_copy(copy):
            return None
        if name in self.vacated:
            return self.vacated.pop(name)
        self.left.discard(name)
        return self.known.by_name.get(name) or self._moved_away(name)

    def comes_back(self, remnant: Name, name: Name) -> bool:
        """Rename a remnant back; return whether it is a table that had left this name."""
        is_back = name in self.left and name in shadows.bases_of(remnant)
        self.left.discard(name)
        return is_back

    def _is_awaited(self, name: Name) -> bool:
        return any(name in shadows.bases_of(copy) for copy in self.by_name if shadows.is_copy(copy))

    def _moved_away(self, name: Name) -> KnownTable | None:
        """Return the table that first had this name, if it now has the name of its remnant."""
        for other, table in self.known.by_name.items():
            if name in shadows.bases_of(other) and table.record.table_id == table_id(*name):
                return table
        return None


def by_name(before: TableSchema, after: TableSchema, stated: Columns = NOTHING) -> Columns:
    """Match columns by name, except for those in ``stated``."""
    columns, names = shadows.limited(stated, after), {column.name for column in before.columns}
    known = names - set(columns.renames.values()) | set(columns.renames)
    added = [column.name for column in after.columns if column.name not in known or column.name in columns.added]
    return replace(columns, added=tuple(added))
