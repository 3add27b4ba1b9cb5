"""Names at the sink: which table has which, and which are about to be free as schema changes are done in order.

A held table that was renamed at its source stays where it is. A table that has its old name since, new or renamed, gets
a location of its own, and stays there while it keeps the name.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from reactor.records.tables import locations
from reactor.records.tables.schema_change import DdlRecord, TableChange
from reactor.records.tables.table import TableRecord

if TYPE_CHECKING:
    from owner.progress.facts import Facts

T = TypeVar("T")
N = TypeVar("N", bound=Hashable)

_Name = tuple[str, str]


class SinkNames:
    """A name is *awaited* while a pending change takes it from another table: the table that is to get it must wait. A
    held table frees no name in time, so nothing waits for it, unless it is dropped."""

    def __init__(self, facts: "Facts") -> None:
        self._facts = facts
        #: tables that have a name until their changes are done
        self._leaving: dict[_Name, set[int]] = {}

    def leave(self, changes: Iterable[TableChange]) -> None:
        """Add changes that are in progress and will complete."""
        for change in changes:
            for table in (self._facts.by_id.get(change.table_id), change.table):
                if table is not None:
                    self._leaving.setdefault(_name(table), set()).add(change.table_id)

    def is_awaited(self, changes: Iterable[TableChange]) -> bool:
        """Return whether one of their tables is to get a name that another table is about to give up."""
        return any(change.table is not None and self._is_awaited(change.table) for change in changes)

    def _is_awaited(self, table: TableRecord) -> bool:
        name, now = _name(table), self._facts.by_id.get(table.table_id)
        return (now is None or _name(now) != name) and bool(self._leaving.get(name, set()) - {table.table_id})


def independent(changes: Sequence[TableChange], facts: "Facts") -> list[tuple[TableChange, ...]]:
    """Return ``changes`` in groups between which no name goes from one table to another, in order."""

    def names(change: TableChange) -> set[_Name]:
        tables = (facts.by_id.get(change.table_id), change.table)
        return {_name(table) for table in tables if table is not None}

    return [tuple(group) for group in grouped_by_names(changes, names)]


def grouped_by_names(items: Iterable[T], names_of: Callable[[T], set[N]]) -> list[list[T]]:
    """Return ``items`` in groups between which no name is shared, in order."""
    groups: dict[int, list[T]] = {}
    group_of: dict[N, int] = {}
    names_of_group: dict[int, set[N]] = {}
    for number, item in enumerate(items):
        names = names_of(item)
        met = sorted({group_of[name] for name in names if name in group_of})
        into = met[0] if met else number
        members, known = groups.setdefault(into, []), names_of_group.setdefault(into, set())
        for other in met[1:]:
            members += groups.pop(other)
            names = names | names_of_group.pop(other)
        members.append(item)
        known |= names
        group_of.update(dict.fromkeys(names, into))
    return [groups[number] for number in sorted(groups)]


def located(part: DdlRecord, facts: "Facts") -> DdlRecord | None:
    """The whole record of ``part`` with other locations for tables that would come where held ones lie; None where none
    would."""
    held = (facts.by_id.get(id) for id in facts.held if id not in part.table_ids)
    taken = {table.path for table in held if table is not None}
    beside = {
        change.table_id: change.table.with_(location=locations.beside(change.table.path, change.table_id))
        for change in part.changes
        if change.table is not None and change.table.path in taken
    }
    return _with_tables(facts.ddl[part.ts], beside) if beside else None


def begun(part: DdlRecord, facts: "Facts") -> DdlRecord | None:
    """The whole record of ``part``, marked as begun for its tables; None where it is, or where no table moves, or makes
    way for another one.

    Between the sink's step and the tables' new records, no span can open such a table where its record says. So whether
    all spans were there must be known without them, should the run, the owner or the capture that asks end.
    """
    if is_begun(part) or not any(_leaves_its_place(change, part, facts) for change in part.changes):
        return None
    record = facts.ddl[part.ts]
    return record.with_(begun=tuple(sorted(part.table_ids.union(record.begun))))


def _leaves_its_place(change: TableChange, part: DdlRecord, facts: "Facts") -> bool:
    now, then = facts.by_id.get(change.table_id), change.table
    if now is None:
        return False
    if then is not None:
        return now.path != then.path
    return any(other.table is not None and other.table.path == now.path for other in part.changes)


def is_begun(part: DdlRecord) -> bool:
    return part.table_ids <= {*part.begun}


def where_they_lie(part: DdlRecord, facts: "Facts") -> DdlRecord:
    """``part`` with its tables' locations: the source knows names only, and a table that keeps its name stays."""
    known = facts.by_id
    kept = {
        change.table_id: change.table.with_(location=known[change.table_id].location)
        for change in part.changes
        if change.table is not None
        and change.table_id in known
        and _name(change.table) == _name(known[change.table_id])
        and change.table.location != known[change.table_id].location
    }
    return _with_tables(part, kept) if kept else part


def _with_tables(record: DdlRecord, tables: Mapping[int, TableRecord]) -> DdlRecord:
    changes = (
        change.with_(table=tables[change.table_id])
        if change.table_id in tables and change.table is not None
        else change
        for change in record.changes
    )
    return record.with_(changes=tuple(changes))


def _name(table: TableRecord) -> _Name:
    return table.schema_name, table.name


def names_of(facts: "Facts", record: DdlRecord) -> str:
    """Return the tables of a record for display."""
    tables = (change.table or facts.by_id.get(change.table_id) for change in record.changes)
    return ", ".join(".".join(_name(table)) for table in tables if table is not None) or "a table"
