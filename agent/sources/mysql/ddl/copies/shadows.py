"""Shadow tables: tracks copies that online schema change tools make of a table in order to replace it. Pure.

gh-ost copies ``t`` into ``_t_gho``, alters that, and then renames ``t`` to ``_t_del`` and ``_t_gho`` to ``t``, in one
statement; pt-online-schema-change does the same with ``_t_new`` and ``_t_old``. To a sink this is one alteration of
``t``. This module remembers the changes of the copy; a stream that starts later has the copy's definition from the
server, and matches columns by name.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from agent.rows.schema import TableSchema
from agent.sources.common.schema_diff import Columns

Name = tuple[str, str]

_SHADOW: Final = re.compile(r"^_(.+)_(?:gho|ghc|del|new|old)$")
_COPY: Final = re.compile(r"_(?:gho|new)$")
#: suffix with the time at which gh-ost put the table away, if configured so
_MOMENT: Final = re.compile(r"_\d{14}$")


def bases_of(table: Name) -> tuple[Name, ...]:
    """Return the tables that this one may be a copy, log or remnant of, by its name: pt-online-schema-change
    adds underscores in front if a name is taken."""
    found = _SHADOW.match(table[1])
    if found is None:
        return ()
    base = found[1]
    names = [base[at:] for at in range(len(base)) if not base[:at].strip("_")]
    return tuple((table[0], name) for one in names for name in dict.fromkeys([one, _MOMENT.sub("", one)]) if name)


def is_copy(table: Name) -> bool:
    """Return whether the name is that of a copy that will replace its table, not of a log or remnant."""
    return bool(_COPY.search(table[1])) and bool(bases_of(table))


#: unchanged columns
NOTHING: Final = Columns()


@dataclass(frozen=True, slots=True)
class Shadow:
    """The current state of a copy. ``columns``: how they correspond to those of the table that it was created like.
    ``unknown_fills``: new columns whose values in existing rows are unknown. ``doubt``: why its rows may differ from
    those of the table."""

    schema: TableSchema
    columns: Columns = NOTHING
    unknown_fills: tuple[str, ...] = ()
    doubt: str = ""


def composed(first: Columns, second: Columns) -> Columns:
    """Compose two consecutive changes."""
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
    """Drop columns that are no longer in ``schema``."""
    names = {column.name for column in schema.columns}
    return replace(
        columns,
        renames={new: old for new, old in columns.renames.items() if new in names},
        added=tuple(name for name in columns.added if name in names),
        fills={name: text for name, text in columns.fills.items() if name in names},
        required=columns.required & names,
    )
