"""Chunks of PostgreSQL: divides a table by arithmetic into ranges that are read in parallel.

- ``KEYS``: ranges of a single integer primary key, from its smallest to its largest value at planning time. The upper
  end is fixed: rows inserted above it are in the log. A later snapshot can continue with the missing chunks, because a
  row can only move to another chunk by a change of its key (see ``agent.units.dump``).
- ``BLOCKS``: ranges of physical blocks (``ctid``), for all other tables and for keys with large gaps, whose ranges
  would be uneven. A chunk of a partitioned table has the same range of each partition. Under *one* snapshot every row
  is in exactly one block; an update moves it, so such a plan is invalid under another snapshot.
- ``WHOLE``: one chunk, for small tables, and for tables that cannot be divided: one of a server before version 14, or
  with a partition that is a foreign table, whose key is not an integer.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Final, Self

from agent.rows.schema import TableSchema
from agent.sources.postgres.decode import types
from agent.sources.postgres.decode.types import Kind
from agent.sources.postgres.server.catalog import Queries, all_leaves_sql, rows_of_all, try_query
from agent.sources.postgres.server.sql import identifier

_CHUNKS_MAX: Final = 100_000
#: a key range wider than its rows by this factor has gaps, and is divided by blocks
_SPARSE_FACTOR: Final = 10
#: a table without statistics is counted up to this number of blocks, else estimated
_COUNTED_BLOCKS_MAX: Final = 8_192
_GUESSED_ROWS_PER_BLOCK: Final = 50
#: tables in one statement
_COUNTED_AT_ONCE: Final = 100
#: from this version on, scans of a ctid range read only its pages
_TID_RANGE_VERSION: Final = 14


class PlanKind(StrEnum):
    WHOLE = "whole"
    KEYS = "keys"
    BLOCKS = "blocks"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One range ``[low, high)`` of ``column``, or of blocks, or the whole table."""

    number: int
    kind: PlanKind
    column: str = ""
    low: int = 0
    high: int = 0

    @property
    def predicate(self) -> str:
        """Return the condition after WHERE."""
        match self.kind:
            case PlanKind.WHOLE:
                return "true"
            case PlanKind.BLOCKS:
                return f"ctid >= '({self.low},0)'::tid AND ctid < '({self.high},0)'::tid"
            case PlanKind.KEYS:
                # no bigint is greater than the largest one
                column = identifier(self.column)
                return f"{column} >= {self.low} AND {column} <= {self.high - 1}"


#: the whole table as one chunk
WHOLE_TABLE: Final = Chunk(0, PlanKind.WHOLE)


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """``count`` chunks that divide ``[low, high)`` evenly; ``rows`` is an estimate for progress."""

    kind: PlanKind
    count: int
    rows: int
    column: str = ""
    low: int = 0
    high: int = 0

    def chunk(self, number: int) -> Chunk:
        assert 0 <= number < self.count
        step = -(-(self.high - self.low) // self.count)
        low = min(self.low + number * step, self.high)
        return Chunk(number, self.kind, self.column, low, min(low + step, self.high))

    def to_fields(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        return cls(**{**fields, "kind": PlanKind(fields["kind"])})


@dataclass(frozen=True, slots=True)
class _Size:
    """``source``: the FROM item of the table's rows. ``blocks``: of all its partitions; ``longest``: of the largest
    one, 0 if one has no blocks of its own."""

    source: str
    blocks: int = 0
    rows: int = 0
    longest: int = 0


def plan_chunks(
    connection: Queries,
    tables: Sequence[tuple[TableSchema, Sequence[str]]],
    *,
    chunk_rows: int,
    server_version: int,
) -> dict[int, ChunkPlan]:
    """Plan tables, given with their keys, by their ids, in the connection's transaction, under whose snapshot they will
    be read. Questions about small tables are asked for many at once. A table about which the server refuses to answer,
    as a damaged one, is one chunk: it is refused alone when that is read."""
    sizes = _sizes(connection, [schema for schema, _ in tables])
    return {
        schema.table_id: _plan(connection, schema, key, sizes[schema.table_id], chunk_rows, server_version)
        for schema, key in tables
    }


def _plan(
    connection: Queries, schema: TableSchema, key: Sequence[str], size: _Size, chunk_rows: int, server_version: int
) -> ChunkPlan:
    rows = size.rows
    count = min(-(-rows // chunk_rows), _CHUNKS_MAX)
    if count <= 1:
        return ChunkPlan(PlanKind.WHOLE, 1, rows)
    column = _integer_key(schema, key)
    bounds = _key_bounds(connection, size.source, column) if column else (0, 0)
    if bounds is None:
        return ChunkPlan(PlanKind.WHOLE, 1, rows)
    low, high = bounds
    has_blocks = size.longest > 0 and server_version >= _TID_RANGE_VERSION
    if column and (high - low <= rows * _SPARSE_FACTOR or not has_blocks):
        return ChunkPlan(PlanKind.KEYS, count, rows, column, low, high)
    if not has_blocks:
        return ChunkPlan(PlanKind.WHOLE, 1, rows)
    return ChunkPlan(PlanKind.BLOCKS, min(count, size.longest), rows, high=size.longest)


def _integer_key(schema: TableSchema, key: Sequence[str]) -> str:
    """Return the key's only column if its type is an integer, else an empty string."""
    if len(key) != 1:
        return ""
    column = next(column for column in schema.columns if column.name == key[0])
    return column.name if types.kind_of(column) in (Kind.INT2, Kind.INT4, Kind.INT8) else ""


def _key_bounds(connection: Queries, table: str, column: str) -> tuple[int, int] | None:
    name = identifier(column)
    found = try_query(connection, f"SELECT min({name}), max({name}) FROM {table}")
    if found is None:
        return None
    [(low, high)] = found
    return (int(low), int(high) + 1) if low is not None else (0, 0)


def _sizes(connection: Queries, schemas: Sequence[TableSchema]) -> dict[int, _Size]:
    """Return blocks and rows: the planner's density times the current size; counted if there are no statistics."""
    if not schemas:
        return {}
    sources = rows_of_all(connection, schemas)
    found = try_query(connection, _sizes_sql(sources))
    if found is None:  # one of them cannot be opened
        found = [row for table in sources for row in try_query(connection, _sizes_sql([table])) or ()]
    sizes = {table: _Size(source) for table, source in sources.items()}
    uncounted = []
    for table, blocks_now, longest, pages, tuples, is_analyzed in found:
        blocks, pages = int(float(blocks_now or 0)), int(pages)
        if pages > 0 and is_analyzed in ("t", True):
            rows = round(blocks * int(tuples) / pages)
        else:
            rows = blocks * _GUESSED_ROWS_PER_BLOCK
            if 0 < blocks <= _COUNTED_BLOCKS_MAX:
                uncounted.append(int(table))
        size = replace(sizes[int(table)], blocks=blocks, rows=rows, longest=int(longest or 0))
        sizes[int(table)] = size
    for table, rows in _counts(connection, [(table, sizes[table].source) for table in uncounted]):
        sizes[table] = replace(sizes[table], rows=rows)
    return sizes


def _sizes_sql(table_ids: Iterable[int]) -> str:
    return (
        "SELECT root::int8, sum(pg_catalog.pg_relation_size(oid)) / current_setting('block_size')::int8, "
        "CASE WHEN bool_and(relkind = 'r') THEN max(pg_catalog.pg_relation_size(oid)) "
        "/ current_setting('block_size')::int8 END, sum(relpages), sum(reltuples)::int8, bool_and(reltuples >= 0) "
        "FROM pg_catalog.pg_class "
        f"JOIN {all_leaves_sql(table_ids)} AS leaves ON oid = leaf WHERE relkind <> 'p' GROUP BY 1"
    )


def _counts(connection: Queries, tables: Sequence[tuple[int, str]]) -> Iterator[tuple[int, int]]:
    for first in range(0, len(tables), _COUNTED_AT_ONCE):
        some = tables[first : first + _COUNTED_AT_ONCE]
        counts = [f"SELECT {table}::int8, count(*) FROM {source}" for table, source in some]
        found = try_query(connection, " UNION ALL ".join(counts))
        if found is None:  # one of them cannot be read
            found = [row for count in counts for row in try_query(connection, count) or ()]
        yield from ((int(table), int(count)) for table, count in found)
