"""Chunk plan: estimates a table's rows and determines where to divide it (see ``chunks`` for the kinds of plans).

Bounds are found by walking along the key's index in steps of rows, which takes about as long as counting the rows. A
key can be used up to the first column that is not compared in index order: a float, enum, set or bit, or one with a
prefix index.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from agent.rows.schema import Column, TableSchema
from agent.sources.mysql.decode import charsets, types
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.server.sql import identifier, literal, qualified
from agent.sources.mysql.snapshot.chunks import ChunkPlan, PlanKind, above

_CHUNKS_MAX: Final = 100_000
#: maximum number of bounds, which are stored individually
_BOUNDS_MAX: Final = 10_000
#: a key range wider than its rows by this factor has gaps, and is divided by bounds
_SPARSE_FACTOR: Final = 10
#: statistics are inaccurate, above all for small tables: tables up to this size are counted
_COUNTED_BYTES_MAX: Final = 64 << 20
_GUESSED_ROW_BYTES: Final = 100
_WALK_TIMEOUT_S: Final = 600.0

_INTEGERS: Final = frozenset(
    {FieldType.TINY, FieldType.SHORT, FieldType.INT24, FieldType.LONG, FieldType.LONGLONG, FieldType.YEAR}
)
_TIMES: Final = frozenset(
    {FieldType.DATE, FieldType.TIME, FieldType.TIME2, FieldType.DATETIME, FieldType.DATETIME2}
    | {FieldType.TIMESTAMP, FieldType.TIMESTAMP2}
)
_STRINGS: Final = frozenset({FieldType.STRING, FieldType.VARCHAR})
#: types that MariaDB compares by their text
_NAMED: Final = frozenset({"uuid", "inet4", "inet6"})


class Queries(Protocol):
    """The part of ``connection.Connection`` that this module uses."""

    def query(self, sql: str, *, timeout_s: float = ...) -> Sequence[Sequence[str | None]]: ...


@dataclass(frozen=True, slots=True)
class _Index:
    """A unique index, and the leading key columns that a walk along it can use."""

    name: str = ""
    columns: tuple[Column, ...] = ()


def plan_chunks(connection: Queries, schema: TableSchema, *, key: Sequence[str], chunk_rows: int) -> ChunkPlan:
    """Plan one table in the connection's transaction."""
    rows = _estimate(connection, schema)
    if rows <= chunk_rows:
        return ChunkPlan(PlanKind.WHOLE, 1, rows)
    columns = [next(column for column in schema.columns if column.name == name) for name in key]
    if len(columns) == 1 and columns[0].type_id in _INTEGERS:
        low, high = _ends(connection, schema, key[0])
        if high - low <= rows * _SPARSE_FACTOR:
            return ChunkPlan(PlanKind.KEYS, min(-(-rows // chunk_rows), _CHUNKS_MAX), rows, (key[0],), low, high)
    index = _usable_index(connection, schema, columns)
    if not index.columns:
        return ChunkPlan(PlanKind.WHOLE, 1, rows)
    return _Walk(connection, schema, index, step=max(chunk_rows, -(-rows // _BOUNDS_MAX))).plan()


def _estimate(connection: Queries, schema: TableSchema) -> int:
    [(rows, size)] = connection.query(
        "SELECT coalesce(table_rows, 0), coalesce(data_length, 0) FROM information_schema.tables "
        f"WHERE table_schema = {literal(schema.schema_name)} AND table_name = {literal(schema.name)}"
    ) or [("0", "0")]
    if int(size or 0) > _COUNTED_BYTES_MAX:
        return int(rows or 0) or int(size or 0) // _GUESSED_ROW_BYTES
    [(count,)] = connection.query(f"SELECT count(*) FROM {_name(schema)}", timeout_s=_WALK_TIMEOUT_S)
    return int(count or 0)


def _ends(connection: Queries, schema: TableSchema, column: str) -> tuple[int, int]:
    name = identifier(column)
    [(low, high)] = connection.query(f"SELECT min({name}), max({name}) FROM {_name(schema)}")
    return (int(low), int(high) + 1) if low is not None and high is not None else (0, 0)


def _usable_index(connection: Queries, schema: TableSchema, key: Sequence[Column]) -> _Index:
    """Return the unique index that begins with the most columns of the key."""
    rows = connection.query(
        "SELECT index_name, column_name, sub_part, index_type FROM information_schema.statistics "
        f"WHERE table_schema = {literal(schema.schema_name)} AND table_name = {literal(schema.name)} "
        "AND non_unique = 0 ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index"
    )
    indexes: dict[str, list[str]] = {}
    for name, column, prefix, index_type in rows:
        # an empty name matches no column, so the index is used up to here
        is_whole = prefix is None and index_type == "BTREE"
        indexes.setdefault(str(name), []).append(str(column) if is_whole else "")
    found = [_Index(name, _common(key, columns)) for name, columns in indexes.items()]
    return max(found, key=lambda index: len(index.columns), default=_Index())


def _common(key: Sequence[Column], names: Sequence[str]) -> tuple[Column, ...]:
    usable: list[Column] = []
    for column, name in zip(key, names, strict=False):
        if column.name != name or not _is_ordered(column):
            break
        usable.append(column)
    return tuple(usable)


def _is_ordered(column: Column) -> bool:
    """Return whether comparison with a constant follows the order of the index."""
    return column.type_id in _INTEGERS | _TIMES | _STRINGS | {FieldType.DECIMAL}


@dataclass(frozen=True, slots=True)
class _Walk:
    connection: Queries
    schema: TableSchema
    index: _Index
    step: int

    def plan(self) -> ChunkPlan:
        bounds: list[tuple[str, ...]] = []
        while (found := self._bound_behind(bounds, self.step - 1)) is not None:
            bounds.append(found)
        rows = self.step * len(bounds)
        if (last := self._bound_behind(bounds, 0, is_last=True)) is not None:
            bounds.append(last)
            rows += self.step // 2
        if not bounds:
            return ChunkPlan(PlanKind.WHOLE, 1, 0)
        return ChunkPlan(PlanKind.BOUNDS, len(bounds), rows, self._names, bounds=tuple(bounds))

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.index.columns)

    def _bound_behind(
        self, bounds: Sequence[tuple[str, ...]], offset: int, *, is_last: bool = False
    ) -> tuple[str, ...] | None:
        """Return the key of a row after the last bound, by offset, or of the very last row; None if there is none."""
        columns, names = self.index.columns, self._names
        where = f" WHERE {above(names, bounds[-1])}" if bounds else ""
        order = ", ".join(f"{identifier(name)}{' DESC' if is_last else ''}" for name in names)
        rows = self.connection.query(
            f"SELECT {', '.join(_value(column) for column in columns)} FROM {_name(self.schema)} "
            f"FORCE INDEX ({identifier(self.index.name)}){where} ORDER BY {order} LIMIT 1 OFFSET {offset}",
            timeout_s=_WALK_TIMEOUT_S,
        )
        if not rows:
            return None
        return tuple(_constant(column, value) for column, value in zip(columns, rows[0], strict=True))


def _value(column: Column) -> str:
    return f"hex({identifier(column.name)})" if _is_hex(column) else identifier(column.name)


def _constant(column: Column, value: str | None) -> str:
    """Return a value as a constant of the column's type and character set, so that its index is used."""
    assert value is not None, "columns of a key are NOT NULL"
    if column.type_id in _INTEGERS or column.type_id == FieldType.DECIMAL:
        return value
    if not _is_hex(column):
        return literal(value)
    charset = charsets.charset_of(column.collation)
    return f"X'{value}'" if types.is_binary(column) else f"_{charset} X'{value}'"


def _is_hex(column: Column) -> bool:
    return column.type_id in _STRINGS and column.type_name not in _NAMED


def _name(schema: TableSchema) -> str:
    return qualified(schema.schema_name, schema.name)
