"""Type words: converts a column's type in a statement to one of the notations that sqlglot supports. Pure.

Both servers have many names for the same type (``INT4``, ``DEC``, ``CHARACTER VARYING``, ``LONG VARCHAR``), and
attributes after a type that determine its character set.
"""

import re
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
#: types that sqlglot does not support
_NAMED: Final = frozenset({"INET4", "INET6"})
#: types whose display width or precision does not affect rows
_NUMBERS: Final = frozenset({"TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT", "YEAR"})
_CHARACTERS: Final = frozenset({"CHAR", "VARCHAR"})
#: text types and the corresponding binary types
_OF_BYTES: Final = {
    **{"CHAR": "BINARY", "VARCHAR": "VARBINARY", "TINYTEXT": "TINYBLOB", "TEXT": "BLOB"},
    **{"MEDIUMTEXT": "MEDIUMBLOB", "LONGTEXT": "LONGBLOB"},
}
_BYTES: Final = re.compile(r"0?([xXbB])'?([0-9A-Fa-f]*)'?")
#: of a vector without one
_VECTOR_LENGTH: Final = "(2048)"
_REAL_AS_FLOAT, _ORACLE, _MAXDB = 1, 1 << 9, 1 << 12
_COMPATIBLE: Final = _ORACLE | _MAXDB
#: MariaDB's qualifiers of types, and the SQL mode whose types they are
_QUALIFIERS: Final = {"MARIADB_SCHEMA": 0, "ORACLE_SCHEMA": _ORACLE, "MAXDB_SCHEMA": _MAXDB}
_IN_ORACLE: Final = {"DATE": "DATETIME", "RAW": "VARBINARY", "CLOB": "LONGTEXT", "NUMBER": "DECIMAL"}


@dataclass(frozen=True, slots=True)
class TypeWords:
    """``charset``: implied by the type itself; ``size``: of a TEXT or BLOB whose type depends on it, or 0. ``display``:
    the display width or digits of a number, or the length of a vector, in parentheses."""

    name: str
    arguments: str = ""
    charset: str = ""
    is_unsigned: bool = False
    size: int = 0
    display: str = ""
    is_zerofill: bool = False

    def data_type(self, *, is_binary: bool) -> exp.DataType:
        """Return the type. ``is_binary``: its character set is ``binary``.

        :raises UnreadableError: sqlglot does not support it.
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
    """Parse a type.

    :raises UnreadableError: no known type comes next.
    """
    name, charset = _name(cursor, _sql_mode(cursor, session))
    arguments: Sequence[Token] = cursor.expression() if cursor.peek().text == "(" else ()
    size = 0
    if name in ("TEXT", "BLOB") and arguments:
        size, arguments = int(arguments[1].text), ()
    display = spelt(arguments).replace(" ", "") if name in _NUMBERS or len(arguments) > 3 else ""
    if name == "VECTOR":
        display = spelt(arguments).replace(" ", "") or _VECTOR_LENGTH
    if name in _NUMBERS:
        arguments = ()
    if name in ("FLOAT", "DOUBLE") and len(arguments) > 3:  # (5,2) only rounds
        arguments = ()
    is_unsigned, is_zerofill = name == "SERIAL", False
    while word := cursor.take_one("UNSIGNED", "ZEROFILL", "SIGNED", "ASCII", "UNICODE", "BYTE", "BINARY"):
        is_unsigned, is_zerofill = is_unsigned or word in ("UNSIGNED", "ZEROFILL"), is_zerofill or word == "ZEROFILL"
        charset = {"ASCII": "latin1", "UNICODE": "ucs2", "BYTE": "binary"}.get(word, charset)
    text = _members(arguments) if name in ("ENUM", "SET") else spelt(arguments)
    return TypeWords(name, text, charset, is_unsigned, size, display, is_zerofill)


def _sql_mode(cursor: Cursor, session: Session) -> int:
    """Parse a qualifier (``oracle_schema.date``); return the SQL mode that gives the type its meaning."""
    other = _QUALIFIERS.get(cursor.peek().name.upper())
    if other is None or cursor.peek(1).text != ".":
        return session.sql_mode
    cursor.next()
    cursor.next()
    return session.sql_mode & ~_COMPATIBLE | other


def _name(cursor: Cursor, sql_mode: int) -> tuple[str, str]:
    """Parse the type's name; return it with the character set that it implies."""
    word, charset = cursor.next().word, ""
    if word == "NATIONAL":
        word, charset = cursor.next().word, "utf8mb3"
    elif word in ("NCHAR", "NVARCHAR"):
        charset = "utf8mb3"
    word = _SAME.get(word, word)
    if word == "LONG":
        return _long(cursor)
    if word == "REAL":
        word = "FLOAT" if sql_mode & _REAL_AS_FLOAT else "DOUBLE"
    if word == "DOUBLE":
        cursor.take("PRECISION")
    if word in _CHARACTERS and cursor.take_one("VARYING", "VARCHAR", "VARCHARACTER"):
        word = "VARCHAR"
    if word == "TIMESTAMP" and sql_mode & _MAXDB:
        word = "DATETIME"
    if sql_mode & _ORACLE:
        word = _of_oracle(word, has_size=cursor.peek().text == "(")
    if word not in _PLAIN:
        raise UnreadableError(f"{word} is no known type")
    return word, charset


def _of_oracle(word: str, *, has_size: bool) -> str:
    """Return MariaDB's type for a word in the SQL mode ORACLE."""
    if word in ("BLOB", "NUMBER") and not has_size:
        return {"BLOB": "LONGBLOB", "NUMBER": "DOUBLE"}[word]
    return _IN_ORACLE.get(word, word)


def _long(cursor: Cursor) -> tuple[str, str]:
    if cursor.take_one("VARBINARY", "BYTE"):
        return "MEDIUMBLOB", ""
    if cursor.take_one("CHAR", "CHARACTER"):
        cursor.take("VARYING")
    else:
        cursor.take_one("VARCHAR", "VARCHARACTER", "VARCHAR2")
    return "MEDIUMTEXT", ""


def _members(arguments: Sequence[Token]) -> str:
    """Return the members as SQL: texts, and bytes in hexadecimal."""
    return "(" + ",".join(_member(token) for token in arguments if token.kind is not TokenKind.SYMBOL) + ")"


def _member(token: Token) -> str:
    """:raises UnreadableError: it is no text, and no bytes (``x'61'``, ``0x61``, ``b'1'``)."""
    if token.kind is TokenKind.TEXT and token.text[0] in "'\"":
        return "'" + token.value.replace("\\", "\\\\").replace("'", "''") + "'"
    found = _BYTES.fullmatch(token.text)
    if found is None:
        raise UnreadableError(f"{token.text} is no member")
    digits = found[2] if found[1] in "xX" else f"{int(found[2] or '0', 2):0{(len(found[2]) + 7) // 8 * 2}x}"
    return f"x'{'0' * (len(digits) % 2)}{digits}'"
