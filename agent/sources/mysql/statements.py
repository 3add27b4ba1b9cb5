"""What a statement in the binlog is to us, told by its first words.

Pure. With row format only definitions of tables should come as statements. A change of rows that comes as a statement
is a change that nobody can read: it is told apart here and refused by the stream. What a definition *does* is
``agent.sources.mysql.ddl``'s business.
"""

import re
from enum import Enum, auto
from typing import Final

#: texts, names and comments, and names as ANSI_QUOTES has them
_QUOTED: Final = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`|/\*(?!!|M!).*?\*/|(?:--\s|\#)[^\n]*|"((?:[^"]|"")*)\"""", re.DOTALL
)
_WORD: Final = re.compile(r"[A-Za-z_]+")
_NAME: Final = r"(?:`((?:[^`]|``)+)`|([\w$\u0080-\uffff]+))"
_QUALIFIED: Final = rf"{_NAME}\s*(?:\.\s*{_NAME})?"
_TRUNCATE: Final = re.compile(rf"TRUNCATE\s+(?:TABLE\s+)?{_QUALIFIED}", re.IGNORECASE)
_WRITTEN: Final = re.compile(
    r"(?:(?:INSERT|REPLACE)\b(?:\s+(?:LOW_PRIORITY|DELAYED|HIGH_PRIORITY|IGNORE))*(?:\s+INTO)?"
    r"|UPDATE\b(?:\s+(?:LOW_PRIORITY|IGNORE))*"
    r"|DELETE\b(?:\s+(?:LOW_PRIORITY|QUICK|IGNORE))*\s+FROM"
    r"|LOAD\b.*?\bINTO\s+TABLE)\s+" + _QUALIFIED,
    re.IGNORECASE | re.DOTALL,
)
_SAVEPOINT: Final = re.compile(r"(?:SAVEPOINT|ROLLBACK\s+TO(?:\s+SAVEPOINT)?)\s+" + _NAME, re.IGNORECASE)

_DEFINING: Final = frozenset({"CREATE", "ALTER", "DROP", "RENAME", "TRUNCATE"})
_WRITING: Final = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH"})
#: words that may stand between CREATE and what is created
_FILLING: Final = frozenset({"OR", "REPLACE", "UNIQUE", "FULLTEXT", "SPATIAL", "ONLINE", "OFFLINE", "IGNORE"})
#: only these have to do with rows; views, routines, users and the like do not
_CONCERNED: Final = frozenset({"TABLE", "TABLES", "INDEX", "DATABASE", "SCHEMA"})


class Kind(Enum):
    OTHER = auto()
    #: defines, changes or removes tables, their indexes, or databases
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


def backquoted(statement: str) -> str:
    """With the names that a session with ANSI_QUOTES puts in double quotes spelt as everybody else's."""
    return _QUOTED.sub(lambda found: found[0] if found[1] is None else _backquoted_name(found[1]), statement)


def _backquoted_name(text: str) -> str:
    return "`" + text.replace('""', '"').replace("`", "``") + "`"


def kind(statement: str) -> Kind:
    """``statement`` without comments: see ``sql_text.plain``."""
    words = [found[0].upper() for found in _WORD.finditer(statement, 0, 120)][:6]
    match words:
        case ["SAVEPOINT", *_]:
            return Kind.SAVEPOINT
        case ["ROLLBACK", "TO", *_]:
            return Kind.ROLLBACK_TO
        case ["ROLLBACK", *_]:
            return Kind.ROLLBACK
        case ["COMMIT", *_]:
            return Kind.COMMIT
        case ["XA", verb, *_]:
            return _XA.get(verb, Kind.OTHER)
        case ["TRUNCATE", *_]:
            return Kind.TRUNCATE
        case [verb, *rest] if verb in _DEFINING:
            return Kind.DDL if _is_concerned(rest) else Kind.OTHER
        case [verb, *_] if verb in _WRITING:
            return Kind.WRITE
    return Kind.OTHER


def truncated_table(statement: str, database: str) -> tuple[str, str] | None:
    """Schema and name of the table that a TRUNCATE empties."""
    return _table(_TRUNCATE.match(statement), database)


def written_table(statement: str, database: str) -> tuple[str, str] | None:
    """Schema and name of the first table that a statement writes to; None where that is not plain to see."""
    return _table(_WRITTEN.match(statement), database)


def savepoint(statement: str) -> str:
    """The name of the savepoint that is set or gone back to; names differ in more than case."""
    found = _SAVEPOINT.match(statement)
    return _unquoted(found[1], found[2]).lower() if found else ""


def xa_name(statement: str) -> str:
    """Everything behind the two words: what tells distributed transactions apart."""
    return "".join(statement.split()[2:]).upper()


def _is_concerned(words: list[str]) -> bool:
    for word in words:
        if word not in _FILLING:
            return word in _CONCERNED
    return False


def _table(found: re.Match[str] | None, database: str) -> tuple[str, str] | None:
    if found is None:
        return None
    first, second = _unquoted(found[1], found[2]), _unquoted(found[3], found[4])
    return (first, second) if second else (database, first)


def _unquoted(quoted: str | None, bare: str | None) -> str:
    return quoted.replace("``", "`") if quoted else (bare or "")


_XA: Final = {
    "START": Kind.XA_BEGIN,
    "BEGIN": Kind.XA_BEGIN,
    "END": Kind.XA_END,
    "COMMIT": Kind.XA_COMMIT,
    "ROLLBACK": Kind.XA_ROLLBACK,
}
