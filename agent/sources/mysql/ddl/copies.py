"""Copies of tables by tools for online schema changes: those that are being made, and tables that make room. Pure.

A tool moves the table out of the way (or drops it) and its copy into its place, in one statement or in two. While a
copy is there, its table that leaves its name is only *left*: it continues as it is until the copy comes, or is gone.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl import shadows
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.replicated_tables import KnownTables
from agent.sources.mysql.ddl.shadows import NOTHING, Shadow
from agent.sources.mysql.decode.table_ids import table_id


@dataclass(slots=True)
class Copies:
    """``by_name``: copies as they have become. ``left``: names of our tables that are gone while their copy is there.
    ``vacated``: tables that the statement at hand has moved out of the way, under their new names."""

    known: KnownTables
    by_name: dict[Name, Shadow] = field(default_factory=dict)
    left: set[Name] = field(default_factory=set)
    vacated: dict[Name, KnownTable] = field(default_factory=dict)

    def bases_there(self, name: Name) -> bool:
        """It is called like a copy, a log or a remnant of a table of ours."""
        return any(base in self.known.by_name or base in self.vacated for base in shadows.bases_of(name))

    def begin(self, name: Name, schema: TableSchema | None) -> None:
        self.known.begin_stranger(name)
        if schema is not None:
            self.by_name[name] = Shadow(replace(schema, schema_name=name[0], name=name[1]))

    def take(self, name: Name) -> Shadow | None:
        return self.by_name.pop(name, None)

    def drop(self, name: Name) -> bool:
        """Whether it was one."""
        return self.by_name.pop(name, None) is not None

    def drop_database(self, name: str) -> None:
        self.by_name = {table: copy for table, copy in self.by_name.items() if table[0] != name}

    def rename(self, old: Name, new: Name) -> bool:
        """Whether it is a copy still."""
        shadow = self.by_name.pop(old, None)
        if shadow is None or not self.bases_there(new):
            return False
        self.by_name[new] = replace(shadow, schema=replace(shadow.schema, schema_name=new[0], name=new[1]))
        return True

    def alter(self, name: Name, schema: TableSchema, columns: Columns, unknown_fills: Collection[str]) -> bool:
        """Whether it is one."""
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

    def vacate(self, name: Name, table: KnownTable) -> None:
        self.vacated[name] = table

    def end_statement(self) -> Iterator[KnownTable]:
        """Tables that were moved out of the way, as they are known from here on."""
        for name, table in self.vacated.items():
            if self._is_awaited(name):
                self.left.add(name)
                schema = table.schema and replace(table.schema, schema_name=name[0], name=name[1])
                record = table.record.with_(schema_name=name[0], name=name[1])
                yield replace(table, record=record, schema=schema)
            else:
                yield table
        self.vacated = {}

    def leave(self, name: Name) -> bool:
        """The table is dropped; whether it continues for the sake of its copy."""
        if self._is_awaited(name):
            self.left.add(name)
            return True
        return False

    def take_left(self, name: Name) -> bool:
        """Whether the table of this name had left it; not so any more."""
        had = name in self.left
        self.left.discard(name)
        return had

    def take_all_left(self, copy: Name) -> list[Name]:
        """Tables that had left for the sake of this copy, which does not come any more."""
        found = [base for base in shadows.bases_of(copy) if base in self.left and not self._is_awaited(base)]
        self.left -= {*found}
        return found

    def place_for(self, copy: Name, name: Name) -> KnownTable | None:
        """The table whose place a copy takes by this name."""
        if name not in shadows.bases_of(copy) or not shadows.is_copy(copy):
            return None
        if name in self.vacated:
            return self.vacated.pop(name)
        self.left.discard(name)
        return self.known.by_name.get(name) or self._moved_away(name)

    def comes_back(self, remnant: Name, name: Name) -> bool:
        """A table that had left its name has it again."""
        is_back = name in self.left and name in shadows.bases_of(remnant)
        self.left.discard(name)
        return is_back

    def _is_awaited(self, name: Name) -> bool:
        return any(name in shadows.bases_of(copy) for copy in self.by_name if shadows.is_copy(copy))

    def _moved_away(self, name: Name) -> KnownTable | None:
        """The table that had this name first, if it is called like its remnant now."""
        for other, table in self.known.by_name.items():
            if name in shadows.bases_of(other) and table.record.table_id == table_id(*name):
                return table
        return None


def by_name(before: TableSchema, after: TableSchema, stated: Columns = NOTHING) -> Columns:
    """Columns of one name are the same, unless set otherwise."""
    columns, names = shadows.limited(stated, after), {column.name for column in before.columns}
    known = names - set(columns.renames.values()) | set(columns.renames)
    added = [column.name for column in after.columns if column.name not in known or column.name in columns.added]
    return replace(columns, added=tuple(added))
