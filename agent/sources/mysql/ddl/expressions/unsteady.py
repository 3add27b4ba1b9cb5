"""Unsteady columns: finds virtual generated columns that have another value whenever they are read. Pure.

The server computes a virtual column when it is read. If its expression goes by the session, the time or chance, the
log has the value that a writer's session would have seen, a snapshot that of Weir's session, and nobody can say that
they are equal. Stored columns have one value, however it was computed.
"""

from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Final

from agent.rows.schema import TableSchema
from agent.sources.mysql.ddl.parser.tokens import tokens
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.names import lowered

#: the ``binlog_row_image`` that has all columns
FULL_IMAGES: Final = "FULL"
_CALLED: Final = """
RAND RANDOM_BYTES UUID UUID_SHORT UUID_V4 UUID_V7 SYS_GUID NOW SYSDATE CURDATE CURTIME UNIX_TIMESTAMP FROM_UNIXTIME USER
SESSION_USER SYSTEM_USER CONNECTION_ID DATABASE SCHEMA LAST_INSERT_ID LASTVAL NEXTVAL ROW_COUNT FOUND_ROWS VERSION
"""
_BARE: Final = """
CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP LOCALTIME LOCALTIMESTAMP UTC_DATE UTC_TIME UTC_TIMESTAMP CURRENT_USER
CURRENT_ROLE
"""
#: functions that do not go by their arguments alone
_FUNCTIONS: Final = frozenset(_CALLED.split())
#: the same, also without parentheses
_WORDS: Final = frozenset(_BARE.split())
_TIMESTAMPS: Final = frozenset({FieldType.TIMESTAMP, FieldType.TIMESTAMP2})


def timestamps(schema: TableSchema) -> frozenset[str]:
    """Return the columns, in lower case, whose text goes by the session's time zone."""
    return frozenset(lowered(column.name) for column in schema.columns if column.type_id in _TIMESTAMPS)


def unlogged(schema: TableSchema, virtual: Iterable[str], image: str) -> tuple[str, ...]:
    """Return the virtual columns that updates do not log, also if their values change, where MariaDB has the
    ``binlog_row_image`` ``image``. Those with an index are logged, which is not asked for."""
    if image == FULL_IMAGES:
        return ()
    blobs = {column.name for column in schema.columns if column.type_id == FieldType.BLOB}
    return tuple(name for name in virtual if image != "NOBLOB" or name in blobs)


def is_unsteady(expression: str, timestamps: Collection[str]) -> bool:
    """Return whether an expression may have another value in another session, or later. ``timestamps``: see there."""
    found = list(tokens(expression))
    if any(one.text == "@" or one.word in _WORDS or lowered(one.name) in timestamps for one in found):
        return True
    return any(one.word in _FUNCTIONS and behind.text == "(" for one, behind in pairwise(found))
