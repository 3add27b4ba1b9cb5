"""Reach: whether a change of some tables may change others, by views and triggers.

Row events name each table; a statement does not. Triggers are visible only with the privilege TRIGGER.
"""

from collections.abc import Sequence
from typing import Final

from agent.sources.mysql.names import lowered
from agent.sources.mysql.server.connection import Connection
from agent.sources.mysql.server.sql import literal

_REACHING_SQL: Final = """
SELECT table_schema, table_name FROM information_schema.views WHERE table_schema IN ({schemas})
UNION ALL
SELECT event_object_schema, event_object_table FROM information_schema.triggers WHERE event_object_schema IN ({schemas})
"""
_TABLES_SQL: Final = """
SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN ({schemas})
"""
_PRIVILEGES_SQL: Final = """
SELECT '%' FROM information_schema.user_privileges WHERE privilege_type = 'TRIGGER'
UNION ALL
SELECT table_schema FROM information_schema.schema_privileges WHERE privilege_type = 'TRIGGER'
"""


def reaches_others(connection: Connection, names: Sequence[tuple[str, str]]) -> bool:
    """Return whether a change of one of these names may change other tables: one is a view, has a trigger,
    none is a table any more, or the user does not see triggers."""
    schemas = sorted({schema for schema, _ in names})
    seen = [str(pattern) for (pattern,) in connection.query(_PRIVILEGES_SQL)]
    if not all(any(_covers(pattern, schema) for pattern in seen) for schema in schemas):
        return True
    listed = ", ".join(map(literal, schemas))
    wanted = {_folded(name) for name in names}
    reaching = {_folded((str(row[0]), str(row[1]))) for row in connection.query(_REACHING_SQL.format(schemas=listed))}
    tables = {_folded((str(row[0]), str(row[1]))) for row in connection.query(_TABLES_SQL.format(schemas=listed))}
    return bool(wanted & reaching) or not wanted & tables


def _covers(pattern: str, schema: str) -> bool:
    return pattern == "%" or pattern.replace("\\_", "_").replace("\\%", "%") == schema


def _folded(name: tuple[str, str]) -> tuple[str, str]:
    return lowered(name[0]), lowered(name[1])
