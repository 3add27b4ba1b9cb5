"""Names at the sink: which table has which, and which are about to be free as schema changes are done in order."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from reactor.records.changefeed import TableChange, TableRecord

if TYPE_CHECKING:
    from owner.progress.facts import Facts

_Name = tuple[str, str]


class SinkNames:
    """A name is *awaited* while a change is under way that takes it from another table: who is to have it then must
    not come before. A held table frees no name in time, so nobody waits for it, unless it is dropped."""

    def __init__(self, facts: "Facts") -> None:
        self._now = {table.table_id: _name(table) for table in facts.tables or ()}
        #: names that tables have until their changes are done, by table
        self._leaving: dict[int, set[_Name]] = {}

    def leave(self, changes: Iterable[TableChange]) -> None:
        """These are under way, and are done by themselves."""
        for change in changes:
            names = self._leaving.setdefault(change.table_id, set())
            names |= {self._now[change.table_id]} if change.table_id in self._now else set()
            names |= {_name(change.table)} if change.table is not None else set()

    def is_awaited(self, changes: Iterable[TableChange]) -> bool:
        """Whether a table of these is to get a name that another one is about to leave."""
        return any(change.table is not None and self._is_awaited(change.table) for change in changes)

    def _is_awaited(self, table: TableRecord) -> bool:
        name = _name(table)
        others = (names for number, names in self._leaving.items() if number != table.table_id)
        return self._now.get(table.table_id) != name and any(name in names for names in others)


def _name(table: TableRecord) -> _Name:
    return table.schema_name, table.name
