"""Database collations: the defaults of new tables, as far as the log has been read. Pure.

The first stream asks the server, which may be ahead: up to that place of the log, a table may have been made while its
database had another default. Such a table is *assumed* to have the one that the server shows. If a statement before
that place changes the default, the assumption may be wrong, and no event of a log without metadata would show it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from agent.sources.mysql.ddl.copies.memory import Memory
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.parser.edits import Altered, Created
from reactor.ids import Ts


class Collations:
    """``ask`` reads the server's; ``place``: the end of the log. Neither is asked if ``memory`` has what was read."""

    def __init__(self, memory: Memory, ask: Callable[[], Mapping[str, int]], place: Callable[[], Ts]) -> None:
        found = memory.collations
        self.by_database = dict(ask() if found is None else found)
        #: up to where they may be of later statements
        self.asked_ts = place() if found is None else memory.asked_ts
        #: databases whose collation is of the log
        self.stated = {*memory.stated}
        #: tables that were made by a collation that the server has shown, under their names
        self.assumed = {*memory.assumed}

    def reach(self, ts: Ts) -> None:
        """Note that the log has been read up to ``ts``."""
        if ts > self.asked_ts:
            self.stated, self.assumed = set(), set()

    def note(self, edit: Created | Altered, ts: Ts) -> None:
        """Note a table whose texts have the collation of its database, or of a table that is assumed to have it."""
        is_shown = edit.of_database and ts <= self.asked_ts and edit.table[0] not in self.stated
        if is_shown or (isinstance(edit, Created) and edit.like in self.assumed):
            self.assumed.add(edit.table)

    def rename(self, old: Name, new: Name) -> None:
        if old in self.assumed:
            self.assumed.remove(old)
            self.assumed.add(new)

    def define(self, database: str, collation: int, ts: Ts) -> list[Name]:
        """Set a database's collation; return the tables that may have been made by another one than was assumed."""
        self.by_database[database] = collation
        if ts > self.asked_ts or database in self.stated:
            return []
        self.stated.add(database)
        wrong = sorted(table for table in self.assumed if table[0] == database)
        self.assumed.difference_update(wrong)
        return wrong

    def drop(self, database: str) -> None:
        self.by_database.pop(database, None)

    def remembered(self, memory: Memory) -> Memory:
        """Return what the next stream has to know, with the rest of ``memory``."""
        known = replace(memory, collations=self.by_database, asked_ts=self.asked_ts)
        return replace(known, stated=frozenset(self.stated), assumed=frozenset(self.assumed))
