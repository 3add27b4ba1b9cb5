"""Statement kinds: classifies a statement in the binlog by its first words.

Pure. With row format, only definitions of tables should be logged as statements. A change of rows that is logged as a
statement cannot be interpreted: it is detected here and refused by the stream. ``agent.sources.mysql.ddl.parser.parse``
interprets definitions.
"""

from enum import Enum, auto
from itertools import islice
from typing import Final

from agent.sources.mysql.ddl.parser.cursor import Cursor, Name, UnreadableError
from agent.sources.mysql.ddl.parser.tokens import tokens

#: number of first words that classify a statement
_WORDS_MAX: Final = 6

_DEFINING: Final = frozenset({"CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"})
#: SELECT, DO and CALL are logged where they call a function that changes rows
_WRITING: Final = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "SELECT", "DO", "CALL"})
#: words that may come between CREATE and the kind of object
_FILLING: Final = frozenset({"OR", "REPLACE", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "ONLINE", "OFFLINE", "IGNORE"})
#: the objects that concern rows, unlike views, routines, users and the like
_CONCERNED: Final = frozenset({"TABLE", "TABLES", "INDEX", "DATABASE", "SCHEMA"})


class StatementKind(Enum):
    OTHER = auto()
    #: creates, changes or drops tables, their indexes, or databases
    DDL = auto()
    TRUNCATE = auto()
    #: changes rows
    WRITE = auto()
    SAVEPOINT = auto()
    ROLLBACK_TO = auto()
    ROLLBACK = auto()
    COMMIT = auto()
    XA_BEGIN = auto()
    XA_END = auto()
    XA_COMMIT = auto()
    XA_ROLLBACK = auto()


def kind(statement: str) -> StatementKind:
    """Classify ``statement``, given without comments: see ``sql_text.plain``."""
    words = [token.word for token in islice(tokens(statement), _WORDS_MAX)]
    match words:
        case ["SAVEPOINT", *_]:
            return StatementKind.SAVEPOINT
        case ["ROLLBACK", "TO", *_]:
            return StatementKind.ROLLBACK_TO
        case ["ROLLBACK", *_]:
            return StatementKind.ROLLBACK
        case ["COMMIT", *_]:
            return StatementKind.COMMIT
        case ["XA", verb, *_]:
            return _XA.get(verb, StatementKind.OTHER)
        case ["TRUNCATE", *_]:
            return StatementKind.TRUNCATE
        case [verb, *rest] if verb in _DEFINING:
            return StatementKind.DDL if _is_concerned(rest) else StatementKind.OTHER
        case [verb, *_] if verb in _WRITING:
            return StatementKind.WRITE
    return StatementKind.OTHER


def truncated_table(statement: str, database: str) -> Name | None:
    """Return schema and name of the table that a TRUNCATE empties."""
    cursor = Cursor(list(tokens(statement)))
    if not cursor.take("TRUNCATE"):
        return None
    cursor.take("TABLE")
    return _table(cursor, database)


def savepoint(statement: str) -> str:
    """Return the name of the savepoint that is set or rolled back to, case-folded."""
    cursor = Cursor(list(tokens(statement)))
    cursor.take("ROLLBACK", "TO")
    cursor.take("SAVEPOINT")
    return cursor.peek().name.lower()


def xa_name(statement: str) -> str:
    """Return everything after the two words: the identifier of a distributed transaction."""
    return "".join(statement.split()[2:]).upper()


def _is_concerned(words: list[str]) -> bool:
    for word in words:
        if word not in _FILLING:
            return word in _CONCERNED
    return False


def _table(cursor: Cursor, database: str) -> Name | None:
    try:
        return cursor.table(database)
    except UnreadableError:
        return None


_XA: Final = {
    "START": StatementKind.XA_BEGIN,
    "BEGIN": StatementKind.XA_BEGIN,
    "END": StatementKind.XA_END,
    "COMMIT": StatementKind.XA_COMMIT,
    "ROLLBACK": StatementKind.XA_ROLLBACK,
}
