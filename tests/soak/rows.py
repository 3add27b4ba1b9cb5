"""Random rows: statements that insert, update and delete rows of any table."""

import random
from collections.abc import Sequence

from tests.soak.source import Column, Source, Table

_ROWS_MAX = 8


def statement(rng: random.Random, source: Source, table: Table) -> str:
    """Return a random change of rows of ``table``."""
    makers = {_insert: 6, _update: 5, _move: 1, _delete: 2}
    [make] = rng.choices(list(makers), weights=list(makers.values()))
    return make(rng, source, table)


def _insert(rng: random.Random, source: Source, table: Table) -> str:
    share = 1.0 if source.inserts_all else 0.8
    written = [column for column in table.columns if not column.is_generated]
    columns = [c for c in written if c.is_key or not c.is_nullable or rng.random() < share] or written
    rows = [_values(rng, source, columns) for _ in range(rng.randint(1, _ROWS_MAX))]
    return source.insert(rng, table, columns, ", ".join(rows))


def _update(rng: random.Random, source: Source, table: Table) -> str:
    others = [column for column in table.columns if not (column.is_key or column.is_generated)] or list(table.columns)
    return _set(rng, source, table, rng.sample(others, rng.randint(1, min(3, len(others)))))


def _move(rng: random.Random, source: Source, table: Table) -> str:
    """Return an update that changes a key."""
    keys = [column for column in table.columns if column.is_key] or list(table.columns)
    return _set(rng, source, table, [rng.choice(keys)])


def _set(rng: random.Random, source: Source, table: Table, columns: Sequence[Column]) -> str:
    changes = ", ".join(f"{source.quote(column.name)} = {source.value(rng, column)}" for column in columns)
    return f"UPDATE {source.quote(table.name)} SET {changes} WHERE {_condition(rng, source, table)}"


def _delete(rng: random.Random, source: Source, table: Table) -> str:
    return f"DELETE FROM {source.quote(table.name)} WHERE {_condition(rng, source, table)}"


def _condition(rng: random.Random, source: Source, table: Table) -> str:
    column = rng.choice([c for c in table.columns if c.is_key] or list(table.columns))
    return f"{source.quote(column.name)} {rng.choice(['<', '>', '='])} {source.value(rng, column)}"


def _values(rng: random.Random, source: Source, columns: Sequence[Column]) -> str:
    return f"({', '.join(source.value(rng, column) for column in columns)})"
