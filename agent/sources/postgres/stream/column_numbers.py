"""Column numbers: a column keeps its number for life, so a new name with an old number is a rename. Pure.

A Relation message has no numbers, but its columns are in order. The numbers come from the catalog at the time of
reading, which may be long after the change. So earlier knowledge has priority: a column that keeps its name keeps its
number, unless the catalog shows that a newer column has the name, or that names were swapped. If the catalog no longer
has the column (it was renamed again, or dropped), its position decides: PostgreSQL appends new columns, so one in the
middle is an old one with a new name.

One case remains: a column that is dropped and added again, with the same definition when its next row comes, is taken
for the old one.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.rows.schema import TableSchema
from agent.sources.common.schema_diff import Columns


def placed(known: TableSchema, declared: TableSchema, catalog: Mapping[str, int]) -> TableSchema:
    """Return ``declared`` with column numbers. ``catalog``: the current numbers by name."""
    today = [catalog.get(column.name, 0) for column in declared.columns]
    numbers = _by_name(known, declared, today)
    if not _is_in_order(numbers) and _is_in_order(inferred := _completed(known, today)):
        numbers = inferred
    columns = (replace(column, place=place) for column, place in zip(declared.columns, numbers, strict=True))
    return replace(declared, columns=tuple(columns))


def _by_name(known: TableSchema, declared: TableSchema, today: Sequence[int]) -> list[int]:
    numbers = {column.name: column.place for column in known.columns}
    last = max(numbers.values(), default=0)
    found: list[int] = []
    for at, column in enumerate(declared.columns):
        number = today[at] if today[at] > last else numbers.get(column.name, today[at])
        if not number:
            number = _by_place(known, declared, at) or 1 + max([last, *found])
        found.append(number)
    return found


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
