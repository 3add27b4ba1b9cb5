"""Catalog: reads table definitions, in the form of the stream's Relation messages.

Columns that the publications do not send are omitted (``terms``); enums and domains are resolved; a column is a key
column if the table's replica identity includes it. Under an exported snapshot, the definition is that of its moment.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final, Protocol

from agent.errors import SourcePrivilegeError, StatementRefusedError, table_gone
from agent.rows.schema import Column, TableSchema
from agent.sources.postgres.decode import types
from agent.sources.postgres.server.sql import literal, qualified, shown
from agent.sources.postgres.server.terms import AllTerms

_COLUMNS_SQL: Final = """
SELECT c.oid::int8, n.nspname, c.relname, c.relreplident, a.attname, a.atttypid::int8, a.atttypmod,
       pg_catalog.format_type(a.atttypid, a.atttypmod),
       CASE c.relreplident
         WHEN 'f' THEN true
         WHEN 'n' THEN false
         ELSE coalesce(a.attnum = ANY (
           SELECT pg_catalog.unnest(i.indkey::int2[]) FROM pg_catalog.pg_index i
            WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END
         ), false)
       END, a.attnum::int4, a.attgenerated
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.oid IN ({ids})
 ORDER BY c.oid, a.attnum
"""


#: if no publication has been created yet
ALL_COLUMNS: Final = AllTerms()


class Queries(Protocol):
    """The part of ``connection.Connection`` that this module uses; all values are in text form."""

    def query(self, sql: str) -> Sequence[Sequence[Any]]: ...


def try_query(connection: Queries, sql: str) -> Sequence[Sequence[Any]] | None:
    """Run SQL in the connection's transaction, which continues if the server refuses it: None then."""
    connection.query("SAVEPOINT weir_try")
    try:
        rows = connection.query(sql)
    except (StatementRefusedError, SourcePrivilegeError):
        connection.query("ROLLBACK TO SAVEPOINT weir_try")
        return None
    connection.query("RELEASE SAVEPOINT weir_try")
    return rows


def read_schemas(
    connection: Queries, table_ids: Sequence[int], terms: AllTerms = ALL_COLUMNS
) -> dict[int, TableSchema]:
    """Return the tables' definitions by id, as the publications of these ``terms`` send them.

    :raises TableGoneError: a table is gone.
    """
    schemas = present_schemas(connection, table_ids, terms)
    if missing := [table for table in table_ids if table not in schemas]:
        raise table_gone(f"table with oid {missing[0]}")
    return schemas


def present_schemas(
    connection: Queries, table_ids: Sequence[int], terms: AllTerms = ALL_COLUMNS
) -> dict[int, TableSchema]:
    """As ``read_schemas``, without tables that are gone."""
    if not table_ids:
        return {}
    user_types = types.read_user_types(connection.query(types.USER_TYPES_SQL))
    rows = connection.query(_COLUMNS_SQL.format(ids=", ".join(str(int(table)) for table in table_ids)))
    schemas = {}
    for table_id, group in groupby(rows, key=lambda row: int(row[0])):
        columns = list(group)
        own = terms.of(table_id)
        _, schema_name, name, identity = columns[0][:4]
        # for a table without columns, the outer join returns a row without a name
        columns = [row for row in columns if row[4] is not None and own.sends(row[4], row[10])]
        resolved = tuple(types.resolve_column(_column(row), user_types) for row in columns)
        schemas[table_id] = TableSchema(table_id, schema_name, name, resolved, identity)
    return schemas


def table_ids_of(connection: Queries, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return the oids of the tables that exist of these, by schema and name."""
    wanted = ", ".join(f"({literal(schema)}, {literal(name)})" for schema, name in sorted(names))
    if not wanted:
        return {}
    rows = connection.query(
        "SELECT n.nspname, c.relname, c.oid::int8 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
        f"ON n.oid = c.relnamespace WHERE (n.nspname, c.relname) IN ({wanted}) AND c.relkind IN ('r', 'p')"
    )
    return {(str(schema), str(name)): int(number or 0) for schema, name, number in rows}


def names_of(connection: Queries, table_ids: Iterable[int]) -> dict[int, tuple[str, str]]:
    """Return schema and name of the tables that exist of these, by their oids."""
    listed = ", ".join(str(int(table)) for table in sorted(table_ids)) or "0"
    rows = connection.query(
        "SELECT c.oid::int8, n.nspname, c.relname FROM pg_catalog.pg_class c "
        f"JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid IN ({listed})"
    )
    return {int(oid or 0): (str(schema), str(name)) for oid, schema, name in rows}


def _column(row: Sequence[Any]) -> Column:
    name, type_id, modifier, type_name, is_key, place, _ = row[4:]
    return Column(name, int(type_id), int(modifier), shown(type_name), is_key in ("t", True), place=int(place))


def leaves_sql(table_id: int) -> str:
    """Return a subquery of the oids that store a table's rows: its own, or those of all its partitions."""
    tree = f"SELECT relid FROM pg_catalog.pg_partition_tree({table_id}) WHERE isleaf"
    return f"(SELECT {table_id}::oid UNION {tree})"


def all_leaves_sql(table_ids: Iterable[int]) -> str:
    """Return a subquery of (``root``, ``leaf``): as ``leaves_sql``, for many tables."""
    roots = f"pg_catalog.unnest('{{{', '.join(str(int(table)) for table in table_ids)}}}'::oid[])"
    tree = f"SELECT root, relid FROM {roots} AS roots(root) CROSS JOIN LATERAL pg_catalog.pg_partition_tree(root)"
    return f"(SELECT root, root AS leaf FROM {roots} AS roots(root) UNION {tree} WHERE isleaf)"


def rows_of(connection: Queries, schema: TableSchema) -> str:
    """Return the FROM item that selects a table's own rows.

    A partitioned table's rows are its partitions'. Rows of tables that merely inherit from it are replicated with those
    tables, so any other table is read with ONLY.

    :raises TableGoneError: the table is gone.
    """
    return rows_of_all(connection, [schema])[schema.table_id]


def rows_of_all(connection: Queries, schemas: Sequence[TableSchema]) -> dict[int, str]:
    """Return ``rows_of`` each table by its id.

    :raises TableGoneError: a table is gone.
    """
    ids = ", ".join(str(schema.table_id) for schema in schemas) or "0"
    found = connection.query(f"SELECT oid::int8, relkind FROM pg_catalog.pg_class WHERE oid IN ({ids})")
    kinds = {int(table): kind for table, kind in found}
    return {schema.table_id: _from_item(schema, kinds.get(schema.table_id)) for schema in schemas}


def of_other_names(connection: Queries, schemas: Iterable[TableSchema]) -> dict[int, bool]:
    """Return the tables whose names are not theirs any more, and whether they exist. A name means what it means now,
    also under a snapshot; that of a table which the transaction has read or locked stays."""
    tables = ", ".join(f"({one.table_id}, {literal(qualified(one.schema_name, one.name))})" for one in schemas)
    if not tables:
        return {}
    rows = connection.query(
        f"SELECT id, pg_catalog.has_table_privilege(id::oid, 'SELECT') IS NOT NULL FROM (VALUES {tables}) t(id, name) "
        "WHERE pg_catalog.to_regclass(name)::oid IS DISTINCT FROM id::oid"
    )
    return {int(table): exists == "t" for table, exists in rows}


def _from_item(schema: TableSchema, kind: str | None) -> str:
    if kind is None:
        raise table_gone(f"table {schema.qualified_name}")
    name = qualified(schema.schema_name, schema.name)
    return name if kind == "p" else f"ONLY {name}"
