"""Likeness: compares two definitions of a table: are they equal, and may values have changed? Pure."""

from collections.abc import Iterable
from dataclasses import replace

from agent.rows.schema import Column, TableSchema
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.decode import charsets, types
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.retyping import texts


def is_open(before: TableSchema, after: TableSchema, columns: Columns, declared: Iterable[str]) -> bool:
    """Return whether values may have changed unpredictably: a column is new, or has another definition."""
    old = {column.name: column for column in before.columns}
    for column in after.columns:
        origin = old.get(columns.renames.get(column.name, column.name))
        if column.name in columns.added:
            if column.name not in declared:
                return True
        elif origin is None or replace(origin, name=column.name, is_key=column.is_key) != column:
            return True
    return False


def key_of(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[str, ...]:
    return before if set(before) == set(after) else after


def is_like(found: TableSchema, declared: TableSchema, *, asks_key: bool) -> bool:
    """Return whether the columns, as far as the statement defines them, and the key are equal."""
    shapes = [
        [_shape(column, is_sure=declared.collation != 0) for column in schema.columns] for schema in (found, declared)
    ]
    is_same_key = asks_key or not declared.key or set(found.key) == set(declared.key)
    return shapes[0] == shapes[1] and is_same_key


def _shape(column: Column, *, is_sure: bool) -> tuple[object, ...]:
    """Return what a statement certainly defines of a column: the character set only if that of the table is known."""
    is_short = column.type_id in (FieldType.STRING, FieldType.VARCHAR)
    length = texts.length_max(column) if is_short else column.modifier
    is_bytes = types.is_binary(column) and column.type_id in types.CHARACTER_TYPES
    charset = charsets.charset_of(column.collation) if is_sure else ""
    return column.name, column.type_id, length, column.is_unsigned, column.members, is_bytes, charset
