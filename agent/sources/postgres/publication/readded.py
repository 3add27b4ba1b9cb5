"""Columns that were dropped and added again under their name and type: finds them by their number. Pure.

The stream declares a table by its columns' names and types, so where no row comes between it declares the same table
again; but what the rows that were there hold in the new column (NULL, or its default) is not what they held before.
"""

from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.decode import types
from agent.sources.postgres.publication.published import Relation

#: types from here on are users', which may be domains over any other
_FIRST_USERS_OID = 16384


def readded(known: TableSchema, relation: Relation) -> str:
    """The first column that is another one than ``known`` says, though it looks alike; empty where there is none."""
    for column in known.columns:
        number = relation.numbers.get(column.name)
        is_new = number is not None and column.place not in (0, number) and column.place not in relation.columns
        if is_new and number is not None and _is_alike(column, relation.columns[number][:2]):
            return column.name
    return ""


def _is_alike(column: Column, kind: tuple[int, int]) -> bool:
    """The stream sees no difference; it tells of every other one itself."""
    type_id, modifier = kind
    if column.type_id == types.ENUM_OID:
        return column.modifier == type_id
    return (column.type_id, column.modifier) == (type_id, modifier) or type_id >= _FIRST_USERS_OID
