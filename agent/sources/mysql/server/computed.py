"""Computed columns: finds the generated columns of tables, and their expressions."""

from collections.abc import Collection, Mapping
from typing import Final

from agent.sources.mysql.names import lowered
from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.sql import literal

_SQL: Final = """
SELECT table_name, column_name, generation_expression FROM information_schema.columns
 WHERE generation_expression <> '' AND table_schema = {schema}
"""
_VIRTUAL_SQL: Final = """
SELECT table_schema, table_name, column_name, generation_expression FROM information_schema.columns
 WHERE generation_expression <> '' AND extra LIKE '%VIRTUAL%' AND table_schema IN ({schemas})
"""
_THERE: Final = "SELECT 1 FROM information_schema.tables WHERE table_schema = {schema} AND table_name = {name}"


def is_there(connection: Connection, schema_name: str, name: str) -> bool:
    """Return whether there is such a table, or view."""
    return bool(connection.query(_THERE.format(schema=literal(schema_name), name=literal(name))))


def virtual_columns(
    connection: Connection, tables: Collection[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, str]]:
    """Return the expressions of the virtual generated columns of tables (schema, name), by the columns' names."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    if tables:
        schemas = ", ".join(literal(name) for name in sorted({schema_name for schema_name, _ in tables}))
        for schema_name, name, column, expression in connection.query(_VIRTUAL_SQL.format(schemas=schemas)):
            if (table := (str(schema_name), str(name))) in tables:
                found.setdefault(table, {})[str(column)] = str(expression)
    return found


def computed_columns(connection: Connection, schema_name: str, name: str) -> Mapping[str, str]:
    """Return the expressions of a table's generated columns, by the column's name in lower case.

    If the table is gone, it may have another name now: then those of all tables of its database, joined by spaces.
    """
    schema = literal(schema_name)
    rows = connection.query(_SQL.format(schema=schema))
    if rows and is_there(connection, schema_name, name):
        rows = [row for row in rows if str(row[0]) == name]
    found: dict[str, str] = {}
    for _, column, expression in rows:
        at = lowered(str(column))
        found[at] = f"{found.get(at, '')} {expression}"
    return found
