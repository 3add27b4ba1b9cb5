"""Merging columns: finds the columns of a copy in which different values may become equal. Pure."""

import re
from typing import Final

from agent.rows.schema import Column, TableSchema
from agent.sources.mysql.ddl.parser.edits import Altered
from agent.sources.mysql.decode.charsets import charset_of
from agent.sources.mysql.names import lowered
from agent.sources.mysql.retyping.families import Family, family_of, is_same
from agent.sources.mysql.retyping.numbers import bounds

#: a column has its character set's number only, so texts that are compared by another collation are seen by the word
_COLLATE: Final = re.compile(r"\bcollate\b", re.IGNORECASE)
_COMPARED: Final = frozenset({Family.TEXT, Family.MEMBERS})


def may_merge(before: TableSchema, edit: Altered, statement: str) -> frozenset[str]:
    """Return the columns, in lower case, whose distinct values may be equal after a statement."""
    old = {column.name: column for column in before.columns}
    is_collated, found = bool(_COLLATE.search(statement)), set()
    for after in edit.schema.columns:
        column = old.get(edit.renames.get(after.name, after.name))
        if column is not None and after.name not in edit.added and not _stay_apart(column, after, is_collated):
            found.add(lowered(after.name))
    return frozenset(found)


def _stay_apart(before: Column, after: Column, is_collated: bool) -> bool:
    family = family_of(after)
    if family is not family_of(before):
        return False
    if family in (Family.WHOLE, Family.BIT):
        (low, high), (new_low, new_high) = bounds(before), bounds(after)
        return new_low <= low and high <= new_high
    if family in _COMPARED and (is_collated or charset_of(before.collation) != charset_of(after.collation)):
        return False
    return is_same(before, after)
