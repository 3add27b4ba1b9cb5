"""Type words: turn a column's type as a statement spells it into one of the few spellings that sqlglot reads. Pure.

Both servers know many names for the same type (``INT4``, ``DEC``, ``CHARACTER VARYING``, ``LONG VARCHAR``), and words
behind a type that decide its character set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from agent.sources.mysql.ddl.parser.cursor import Cursor, UnreadableError
from agent.sources.mysql.ddl.parser.tokens import Token, TokenKind, spelt
from agent.sources.mysql.values.session import Session

_SAME: Final = {
    **{"INT1": "TINYINT", "INT2": "SMALLINT", "INT3": "MEDIUMINT", "MIDDLEINT": "MEDIUMINT", "INT4": "INT"},
    **{"INTEGER": "INT", "INT8": "BIGINT", "BOOL": "TINYINT", "BOOLEAN": "TINYINT", "DEC": "DECIMAL"},
    **{"NUMERIC": "DECIMAL", "FIXED": "DECIMAL", "FLOAT4": "FLOAT", "FLOAT8": "DOUBLE", "CHARACTER": "CHAR"},
    **{"VARCHARACTER": "VARCHAR", "VARCHAR2": "VARCHAR", "NVARCHAR": "VARCHAR", "NCHAR": "CHAR"},
    **dict.fromkeys(("POINT", "LINESTRING", "POLYGON", "MULTIPOINT", "MULTILINESTRING", "MULTIPOLYGON"), "GEOMETRY"),
    **dict.fromkeys(("GEOMETRYCOLLECTION", "GEOMCOLLECTION"), "GEOMETRY"),
}
_PLAIN: Final = frozenset(
    {"TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT", "DECIMAL", "FLOAT", "DOUBLE", "BIT", "YEAR", "DATE", "TIME"}
    | {"DATETIME", "TIMESTAMP", "CHAR", "VARCHAR", "BINARY", "VARBINARY", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"}
    | {"TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB", "ENUM", "SET", "JSON", "GEOMETRY", "UUID", "INET4", "INET6"}
    | {"VECTOR", "SERIAL"}
)
#: which sqlglot does not know
_NAMED: Final = frozenset({"INET4", "INET6"})
#: their display width, or their precision, is nothing that a row shows
_NUMBERS: Final = frozenset({"TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT", "YEAR"})
_CHARACTERS: Final = frozenset({"CHAR", "VARCHAR"})
#: types of a character set as types of bytes
_OF_BYTES: Final = {
    **{"CHAR": "BINARY", "VARCHAR": "VARBINARY", "TINYTEXT": "TINYBLOB", "TEXT": "BLOB"},
    **{"MEDIUMTEXT": "MEDIUMBLOB", "LONGTEXT": "LONGBLOB"},
}
_REAL_AS_FLOAT, _ORACLE = 1, 1 << 9


@dataclass(frozen=True, slots=True)
class TypeWords:
    """``charset``: which the type itself says; ``size``: of a TEXT or BLOB whose type depends on it, 0 without.
    ``display``: the width or the digits that a number is printed with, in parentheses."""

    name: str
    arguments: str = ""
    charset: str = ""
    is_unsigned: bool = False
    size: int = 0
    display: str = ""
    is_zerofill: bool = False

    def data_type(self, *, is_binary: bool) -> exp.DataType:
        """``is_binary``: its character set is ``binary``.

        :raises UnreadableError: sqlglot does not know it.
        """
        name = _OF_BYTES.get(self.name, self.name) if is_binary else self.name
        if name in _NAMED:
            return exp.DataType(this=exp.DataType.Type.USERDEFINED, kind=name.lower())
        sign = " UNSIGNED" if self.is_unsigned and name != "FLOAT" else ""
        found = exp.DataType.build(f"{name}{self.arguments}{sign}", dialect="mysql")
        if not isinstance(found, exp.DataType):
            raise UnreadableError(f"{name} is no known type")
        return found


def take_type(cursor: Cursor, session: Session) -> TypeWords:
    """:raises UnreadableError: what comes next is no type that is known here."""
    name, charset = _name(cursor, session)
    arguments: Sequence[Token] = cursor.expression() if cursor.peek().text == "(" else ()
    size = 0
    if name in ("TEXT", "BLOB") and arguments:
        size, arguments = int(arguments[1].text), ()
    display = spelt(arguments).replace(" ", "") if name in _NUMBERS or len(arguments) > 3 else ""
    if name in _NUMBERS:
        arguments = ()
    if name in ("FLOAT", "DOUBLE") and len(arguments) > 3:  # (5,2) rounds, and is a float or a double all the same
        arguments = ()
    is_unsigned, is_zerofill = name == "SERIAL", False
    while word := cursor.take_one("UNSIGNED", "ZEROFILL", "SIGNED", "ASCII", "UNICODE", "BYTE", "BINARY"):
        is_unsigned, is_zerofill = is_unsigned or word in ("UNSIGNED", "ZEROFILL"), is_zerofill or word == "ZEROFILL"
        charset = {"ASCII": "latin1", "UNICODE": "ucs2", "BYTE": "binary"}.get(word, charset)
    text = _members(arguments) if name in ("ENUM", "SET") else spelt(arguments)
    return TypeWords(name, text, charset, is_unsigned, size, display, is_zerofill)


def _name(cursor: Cursor, session: Session) -> tuple[str, str]:
    """The type's name, and the character set that it means."""
    word, charset = cursor.next().word, ""
    if word == "NATIONAL":
        word, charset = cursor.next().word, "utf8mb3"
    elif word in ("NCHAR", "NVARCHAR"):
        charset = "utf8mb3"
    word = _SAME.get(word, word)
    if word == "LONG":
        return _long(cursor)
    if word == "REAL":
        word = "FLOAT" if session.sql_mode & _REAL_AS_FLOAT else "DOUBLE"
    if word == "DOUBLE":
        cursor.take("PRECISION")
    if word in _CHARACTERS and cursor.take_one("VARYING", "VARCHAR", "VARCHARACTER"):
        word = "VARCHAR"
    if word == "DATE" and session.sql_mode & _ORACLE:
        word = "DATETIME"
    if word not in _PLAIN:
        raise UnreadableError(f"{word} is no known type")
    return word, charset


def _long(cursor: Cursor) -> tuple[str, str]:
    if cursor.take_one("VARBINARY", "BYTE"):
        return "MEDIUMBLOB", ""
    if cursor.take_one("CHAR", "CHARACTER"):
        cursor.take("VARYING")
    else:
        cursor.take_one("VARCHAR", "VARCHARACTER", "VARCHAR2")
    return "MEDIUMTEXT", ""


def _members(arguments: Sequence[Token]) -> str:
    """Without the spaces at their ends, as the server keeps them."""
    if any(token.kind is TokenKind.TEXT and token.text[0] not in "'\"" for token in arguments):
        raise UnreadableError("a member is spelt as bytes")
    values = [token.value.rstrip(" ") for token in arguments if token.kind is TokenKind.TEXT]
    return "(" + ",".join("'" + value.replace("\\", "\\\\").replace("'", "''") + "'" for value in values) + ")"
