"""Unique keys: finds the columns that unique keys of a table have now."""

from typing import Final

from agent.sources.mysql.names import lowered
from agent.sources.mysql.server.computed import is_there
from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.sql import literal

#: a part of a key that is an expression may be of any column
_SQL: Final = """
SELECT DISTINCT s.table_name, c.column_name FROM information_schema.statistics s
  JOIN information_schema.columns c ON c.table_schema = s.table_schema AND c.table_name = s.table_name
 WHERE s.non_unique = 0 AND (s.column_name = c.column_name OR s.column_name IS NULL) AND s.table_schema = {schema}
"""


def unique_columns(connection: Connection, schema_name: str, name: str) -> frozenset[str]:
    """Return the columns of a table's unique keys, the primary one too, in lower case.

    If the table is gone, it may have another name now: then those of all tables of its database.
    """
    rows = connection.query(_SQL.format(schema=literal(schema_name)))
    if rows and is_there(connection, schema_name, name):
        rows = [row for row in rows if str(row[0]) == name]
    return frozenset(lowered(str(column)) for _, column in rows)
