"""Tables of a server: finds the tables that can be replicated, and their keys.

Views, sequences and temporary tables are left out. The key is the one that the server uses for row events and that
table maps declare: the primary key, else the first unique key over NOT NULL columns.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from agent.filter.tables import TableFilter
from agent.sources.mysql.decode.table_ids import check_distinct, table_id
from agent.sources.mysql.server.catalog import SYSTEM_SCHEMAS, read_collations
from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.sql import literal
from reactor.records.tables.table import TableRecord

_TABLES_SQL: Final = """
SELECT t.table_schema, t.table_name, t.table_type, t.engine, coalesce(t.table_rows, 0), coalesce(e.transactions, 'NO'),
       t.table_collation
  FROM information_schema.tables t LEFT JOIN information_schema.engines e ON e.engine = t.engine
 WHERE t.table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY t.table_schema, t.table_name
"""
_KEY_COLUMNS_SQL: Final = """
SELECT table_schema, table_name, column_name FROM information_schema.columns
 WHERE column_key = 'PRI' AND table_schema IN ({schemas})
"""
_INDEXES_SQL: Final = """
SELECT table_schema, table_name, index_name, column_name, index_type FROM information_schema.statistics
 WHERE non_unique = 0 AND table_schema IN ({schemas}) ORDER BY table_schema, table_name, index_name, seq_in_index
"""

_PRIMARY_SQL: Final = """
SELECT 1 FROM information_schema.statistics
 WHERE table_schema = {schema} AND table_name = {name} AND index_name = 'PRIMARY' LIMIT 1
"""
_CHECKS_SQL: Final = """
SELECT 1 FROM information_schema.check_constraints
 WHERE constraint_schema = {schema} AND table_name = {name} LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table on the server. ``is_versioned``: MariaDB keeps its history. ``is_transactional``: snapshots are
    consistent. ``has_hidden_column``: the log has a column (the hash of a long unique key) that cannot be selected."""

    record: TableRecord
    engine: str
    is_versioned: bool
    is_transactional: bool
    has_hidden_column: bool


@dataclass(frozen=True, slots=True)
class _Index:
    name: str
    columns: tuple[str, ...]
    kind: str


def find_tables(connection: Connection, wanted: TableFilter) -> list[FoundTable]:
    """Return the tables that the rules select; there may be none yet."""
    rows = [row for row in connection.query(_TABLES_SQL) if row[0] not in SYSTEM_SCHEMAS]
    matching = [row for row in rows if wanted.wants(str(row[0]), str(row[1]))]
    if not matching:
        return []
    check_distinct((str(row[0]), str(row[1])) for row in matching)
    schemas = ", ".join(literal(name) for name in sorted({str(row[0]) for row in matching}))
    keys, indexes = _key_columns(connection, schemas), _indexes(connection, schemas)
    collations = read_collations(connection, {str(row[6]) for row in matching})
    return [_found(row, keys, indexes, collations) for row in matching]


def find_keys(connection: Connection, tables: Collection[tuple[str, str]]) -> dict[int, tuple[str, ...]]:
    """Return the keys of tables (schema, name) by their ids; empty for a table without one."""
    if not tables:
        return {}
    schemas = ", ".join(literal(name) for name in sorted({schema_name for schema_name, _ in tables}))
    keys, indexes = _key_columns(connection, schemas), _indexes(connection, schemas)
    return {table_id(*table): _key(keys.get(table, set()), indexes.get(table, [])) for table in tables}


def has_primary(connection: Connection, schema_name: str, name: str) -> bool:
    """Return whether a table has a primary key."""
    return bool(connection.query(_PRIMARY_SQL.format(schema=literal(schema_name), name=literal(name))))


def has_checks(connection: Connection, schema_name: str, name: str) -> bool:
    """Return whether a table of MariaDB has constraints that rows may fail."""
    return bool(connection.query(_CHECKS_SQL.format(schema=literal(schema_name), name=literal(name))))


def _key_columns(connection: Connection, schemas: str) -> dict[tuple[str, str], set[str]]:
    keys: dict[tuple[str, str], set[str]] = {}
    for schema_name, name, column in connection.query(_KEY_COLUMNS_SQL.format(schemas=schemas)):
        keys.setdefault((str(schema_name), str(name)), set()).add(str(column))
    return keys


def _indexes(connection: Connection, schemas: str) -> dict[tuple[str, str], list[_Index]]:
    columns: dict[tuple[str, str, str, str], list[str]] = {}
    for schema_name, name, index, column, kind in connection.query(_INDEXES_SQL.format(schemas=schemas)):
        columns.setdefault((str(schema_name), str(name), str(index), str(kind)), []).append(str(column))
    indexes: dict[tuple[str, str], list[_Index]] = {}
    for (schema_name, name, index, kind), names in columns.items():
        indexes.setdefault((schema_name, name), []).append(_Index(index, tuple(names), kind))
    return indexes


def _found(
    row: Sequence[str | None],
    keys: dict[tuple[str, str], set[str]],
    indexes: dict[tuple[str, str], list[_Index]],
    collations: Mapping[str, int],
) -> FoundTable:
    schema_name, name, kind, engine, rows, transactions, collation = (value or "" for value in row)
    table = schema_name, name
    mine = indexes.get(table, [])
    record = TableRecord.new(
        table_id(*table),
        schema_name,
        name,
        key=_key(keys.get(table, set()), mine),
        rows_estimated=int(rows),
        collation=collations.get(collation, 0),
        is_primary=any(index.name == "PRIMARY" for index in mine),
    )
    return FoundTable(
        record,
        engine,
        is_versioned=kind == "SYSTEM VERSIONED",
        is_transactional=transactions == "YES",
        has_hidden_column=engine == "InnoDB" and any(index.kind == "HASH" for index in mine),
    )


def _key(columns: set[str], indexes: Sequence[_Index]) -> tuple[str, ...]:
    """Return the key columns that the server uses, in index order."""
    same = [index for index in indexes if set(index.columns) == columns]
    best = min(same, key=lambda index: index.name != "PRIMARY", default=None)
    return best.columns if best else ()
