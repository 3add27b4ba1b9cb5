"""Column numbers: a column keeps its number for life, so a new name with an old number is a rename. Pure.

A Relation message has no numbers, but its columns are in order. The numbers come from the catalog at the time of
reading, which may be long after the change. New columns have higher numbers than all before them, so a table's columns
were, at any time, the first of those that it has now and of those that have been dropped since.

Which have been dropped since can be misjudged by the numbers of transactions. So where some may have been, and of a
table that is known, names have priority: a column that keeps its name keeps its number, unless the catalog shows that a
newer column has the name, or that names were swapped. If the catalog no longer has the column (it was renamed again, or
dropped), its position decides. A column that may have been dropped since is preferred to a newer one of the name. So is
a known one of the name and type, whoever has dropped it: if it is another column all the same, its table is held (see
below), which it would not be in the opposite case. So is, last, what the numbers of transactions say has been dropped
since.

So is a known one, of a later transaction, at the place of one whose name is gone: that was renamed, and a newer one
has got its new name since.

A column that is dropped and added again, with the same definition when its next row comes, is taken for the old one.
See ``publication.readded``.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.rows.schema import Column, TableSchema
from agent.sources.common.schema_diff import Columns


@dataclass(frozen=True, slots=True)
class Numbers:
    """A table's columns in the catalog. ``by_name``: the numbers of its columns. ``there``: of those that are sent, in
    order. ``gone``: of columns that may have been dropped since the table was declared. ``gone_since``: of those that a
    later transaction than the declaring one has dropped."""

    by_name: Mapping[str, int] = field(default_factory=dict)
    there: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    gone_since: tuple[int, ...] = ()


def placed(known: TableSchema | None, declared: TableSchema, catalog: Numbers) -> TableSchema:
    """Return ``declared`` with column numbers. ``known``: the table as it was, if it is known."""
    columns = declared.columns
    if known is not None and (numbers := _all_there(known, declared, catalog)):
        return _numbered(declared, numbers)
    first = sorted({*catalog.there, *catalog.gone})[: len(columns)]
    is_known = len(first) == len(columns) and (known is None or not catalog.gone)
    if is_known and (known is None or _keeps(known, declared, catalog, first)):
        return _numbered(declared, first)
    known = known or declared
    today = [catalog.by_name.get(column.name, 0) for column in columns]
    numbers = _by_name(known, declared, today, catalog)
    if not _is_in_order(numbers):
        others = (first,) if is_known else (_lowered(known, declared, numbers, catalog.gone), _completed(known, today))
        numbers = next(filter(_is_in_order, others), numbers)
    by_age = sorted({*catalog.there, *catalog.gone_since})[: len(columns)]
    is_dropped = not set(by_age).difference(numbers).isdisjoint(catalog.gone_since)
    if len(by_age) == len(columns) and (is_dropped or not _is_in_order(numbers)):
        numbers = by_age
    return _numbered(declared, numbers)


def _numbered(declared: TableSchema, numbers: Sequence[int]) -> TableSchema:
    columns = (replace(column, place=place) for column, place in zip(declared.columns, numbers, strict=True))
    return replace(declared, columns=tuple(columns))


def _all_there(known: TableSchema, declared: TableSchema, catalog: Numbers) -> list[int]:
    """Return the numbers if no known column had been dropped yet, and all columns are known ones, or those of today.

    A known column's name and type at its place say more than the numbers of transactions do.
    """
    places = {column.place for column in known.columns}
    numbers = sorted({*catalog.there, *catalog.gone, *places} - {0})[: len(declared.columns)]
    before = {_facts(column): column.place for column in known.columns}

    def is_plausible(column: Column, number: int) -> bool:
        today = catalog.by_name.get(column.name, 0)
        return number == today or (today not in places and number == before.get(_facts(column)))

    is_whole = len(numbers) == len(declared.columns)
    return numbers if is_whole and all(map(is_plausible, declared.columns, numbers)) else []


def _facts(column: Column) -> tuple[str, int, int]:
    return column.name, column.type_id, column.modifier


def _keeps(known: TableSchema, declared: TableSchema, catalog: Numbers, numbers: Sequence[int]) -> bool:
    """Return whether columns that have their name and number still, or again, have this number; or all are there."""
    before = {column.name: column.place for column in known.columns}
    return set(catalog.there).issuperset(before.values()) or all(
        number == before[column.name]
        for column, number in zip(declared.columns, numbers, strict=True)
        if before.get(column.name, 0) and before[column.name] == catalog.by_name.get(column.name)
    )


def _by_name(known: TableSchema, declared: TableSchema, today: Sequence[int], catalog: Numbers) -> list[int]:
    numbers = {column.name: column.place for column in known.columns}
    last = max(numbers.values(), default=0)
    found: list[int] = []
    for at, column in enumerate(declared.columns):
        number = today[at] if today[at] > last else numbers.get(column.name, today[at])
        if number > last:
            before, place = max([last, *found]), _by_place(known, declared, at)
            number = min((other for other in catalog.gone if before < other < number), default=number)
            number = place if place in catalog.gone_since and place > max(found, default=0) else number
        if not number:
            number = _by_place(known, declared, at) or 1 + max([last, *found])
        found.append(number)
    return found


def _lowered(known: TableSchema, declared: TableSchema, numbers: Sequence[int], gone: Sequence[int]) -> list[int]:
    """Replace numbers that are higher than that of a later column: those are of columns that have the name today, and
    did not exist yet. The column is the known one of its name, or one that has been dropped since."""
    before = {column.name: column.place for column in known.columns}
    found: list[int] = []
    limit = max(numbers, default=0) + 1
    for column, number in zip(reversed(declared.columns), reversed(numbers), strict=True):
        choices = (number, before.get(column.name, 0), *sorted(gone, reverse=True))
        limit = next((choice for choice in choices if 0 < choice < limit), 0)
        found.append(limit)
    return found[::-1]


def _completed(known: TableSchema, today: Sequence[int]) -> list[int]:
    """Match a column that the catalog does not have with the next earlier column, by order."""
    numbers = sorted({column.place for column in known.columns} - set(today))
    found: list[int] = []
    for number in today:
        last = found[-1] if found else 0
        found.append(number or next((free for free in numbers if free > last), last + 1))
    return found


def _is_in_order(numbers: Sequence[int]) -> bool:
    return all(0 < one < other for one, other in itertools.pairwise(numbers))


def _by_place(known: TableSchema, declared: TableSchema, at: int) -> int:
    """Return the number of the column at this position, if its name is gone."""
    if at >= len(known.columns) or known.columns[at].name in {column.name for column in declared.columns}:
        return 0
    return known.columns[at].place


def matched(known: TableSchema, declared: TableSchema, fills: Mapping[str, str]) -> Columns:
    """Return how the columns of two versions with numbers correspond. ``fills``: of any columns, by name."""
    names = {column.place: column.name for column in known.columns}
    renames, added = {}, []
    for column in declared.columns:
        before = names.get(column.place)
        if before is None:
            added.append(column.name)
        elif before != column.name:
            renames[column.name] = before
    return Columns(renames, tuple(added), {name: fills[name] for name in added if name in fills})
