"""Shadow tables: copies that tools for online schema changes make beside a table, to put in its place. Pure.

gh-ost copies ``t`` into ``_t_gho``, alters that, and then renames ``t`` to ``_t_del`` and ``_t_gho`` to ``t``, in one
statement; pt-online-schema-change does the same with ``_t_new`` and ``_t_old``. To a sink all of it is one alter of
``t``. What happens to the copy is remembered here; who comes too late for that has the copy's definition from the
server, and knows columns by their names alone.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from agent.rows.schema import TableSchema
from agent.sources.common.schema_diff import Columns

Name = tuple[str, str]

_SHADOW: Final = re.compile(r"^_(.+)_(?:gho|ghc|del|new|old)$")
_COPY: Final = re.compile(r"_(?:gho|new)$")
#: when gh-ost put the table away, if it is set to say so
_MOMENT: Final = re.compile(r"_\d{14}$")


def bases_of(table: Name) -> tuple[Name, ...]:
    """The tables that this one can be a copy, a log or a remnant of, to judge by its name: pt-online-schema-change puts
    more underscores in front where a name is taken."""
    found = _SHADOW.match(table[1])
    if found is None:
        return ()
    base = found[1]
    names = [base[at:] for at in range(len(base)) if not base[:at].strip("_")]
    return tuple((table[0], name) for one in names for name in dict.fromkeys([one, _MOMENT.sub("", one)]) if name)


def is_copy(table: Name) -> bool:
    """By its name it is to take its table's place, and is no log or remnant."""
    return bool(_COPY.search(table[1])) and bool(bases_of(table))


#: the columns are what they were
NOTHING: Final = Columns()


@dataclass(frozen=True, slots=True)
class Shadow:
    """A copy as it has become. ``columns``: how they belong to those of the table that it was made like.
    ``unknown_fills``: new columns whose values in old rows are not known. ``doubt``: why its rows may differ from those
    of the table."""

    schema: TableSchema
    columns: Columns = NOTHING
    unknown_fills: tuple[str, ...] = ()
    doubt: str = ""


def composed(first: Columns, second: Columns) -> Columns:
    """One change after the other as one."""
    renames = {}
    for new, old in second.renames.items():
        if old not in first.added:
            renames[new] = first.renames.get(old, old)
    moved = set(second.renames.values())
    renames |= {new: old for new, old in first.renames.items() if new not in moved and new not in second.added}
    carried = {new: old for new, old in second.renames.items() if old in first.added}
    kept = [name for name in first.added if name not in moved and name not in second.added]
    added = (*kept, *carried, *second.added)
    fills = {name: first.fills[name] for name in kept if name in first.fills}
    fills |= {new: first.fills[old] for new, old in carried.items() if old in first.fills}
    required = {new for new in first.required if new not in moved and new not in second.added}
    required |= {new for new, old in second.renames.items() if old in first.required}
    return Columns(renames, added, {**fills, **second.fills}, frozenset(required | second.required))


def limited(columns: Columns, schema: TableSchema) -> Columns:
    """Without what is not in ``schema`` any more."""
    names = {column.name for column in schema.columns}
    return replace(
        columns,
        renames={new: old for new, old in columns.renames.items() if new in names},
        added=tuple(name for name in columns.added if name in names),
        fills={name: text for name, text in columns.fills.items() if name in names},
        required=columns.required & names,
    )
