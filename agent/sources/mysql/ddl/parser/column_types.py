"""Column types: converts a column of a statement into the form in which a table map declares it. Pure.

Text sizes depend on the character set, which a statement may leave to the table: if it is missing, that of the table's
other texts is used. So a definition read from the server is preferred, if available; the column's type in the sink is
the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from agent.rows.schema import Column
from agent.sources.mysql.ddl.parser.cursor import UnreadableError
from agent.sources.mysql.ddl.parser.type_words import TypeWords
from agent.sources.mysql.decode import charsets, type_names
from agent.sources.mysql.decode.types import FieldType
from agent.sources.mysql.retyping import texts
from agent.sources.mysql.retyping.numbers import UnfitError
from agent.sources.mysql.values.session import UNKNOWN, Session

_BINARY: Final = 63
#: float(p) above this is a double
_FLOAT_BITS_MAX: Final = 24
#: of a DECIMAL without digits
_DECIMAL_DIGITS: Final = 10
#: a longer VARCHAR is a MEDIUMTEXT where the server is not strict
_VARCHAR_BYTES_MAX: Final = 65_535
_T = exp.DataType.Type

_NUMBERS: Final = {
    _T.TINYINT: (FieldType.TINY, 0, False),
    _T.UTINYINT: (FieldType.TINY, 0, True),
    _T.BOOLEAN: (FieldType.TINY, 0, False),
    _T.SMALLINT: (FieldType.SHORT, 0, False),
    _T.USMALLINT: (FieldType.SHORT, 0, True),
    _T.MEDIUMINT: (FieldType.INT24, 0, False),
    _T.UMEDIUMINT: (FieldType.INT24, 0, True),
    _T.INT: (FieldType.LONG, 0, False),
    _T.UINT: (FieldType.LONG, 0, True),
    _T.BIGINT: (FieldType.LONGLONG, 0, False),
    _T.UBIGINT: (FieldType.LONGLONG, 0, True),
    _T.SERIAL: (FieldType.LONGLONG, 0, True),
    _T.FLOAT: (FieldType.FLOAT, 4, False),
    _T.DOUBLE: (FieldType.DOUBLE, 8, False),
    _T.UDOUBLE: (FieldType.DOUBLE, 8, True),
    _T.YEAR: (FieldType.YEAR, 0, False),
    _T.DATE: (FieldType.DATE, 0, False),
}
_MOMENTS: Final = {
    _T.TIME: FieldType.TIME2,
    _T.DATETIME: FieldType.DATETIME2,
    _T.TIMESTAMP: FieldType.TIMESTAMP2,
    _T.TIMESTAMPTZ: FieldType.TIMESTAMP2,
}
_STRINGS: Final = {
    _T.CHAR: (FieldType.STRING, False),
    _T.NCHAR: (FieldType.STRING, False),
    _T.BINARY: (FieldType.STRING, True),
    _T.VARCHAR: (FieldType.VARCHAR, False),
    _T.NVARCHAR: (FieldType.VARCHAR, False),
    _T.VARBINARY: (FieldType.VARCHAR, True),
}
#: number of length bytes, and whether the type is binary
_BLOBS: Final = {
    _T.TINYTEXT: (1, False),
    _T.TEXT: (2, False),
    _T.MEDIUMTEXT: (3, False),
    _T.LONGTEXT: (4, False),
    _T.TINYBLOB: (1, True),
    _T.BLOB: (2, True),
    _T.MEDIUMBLOB: (3, True),
    _T.LONGBLOB: (4, True),
}
_BYTES_TYPES: Final = {"uuid": 16, "inet6": 16, "inet4": 4}


@dataclass(frozen=True, slots=True)
class DefinitionContext:
    """The defaults of a definition: the collation of texts, the server, and the session. ``is_sure``: the collation is
    the table's own. ``database_collation``: of its database, 0 if unknown; ``of_database``: it is the collation."""

    collation: int
    is_mariadb: bool
    session: Session = UNKNOWN
    is_sure: bool = False
    database_collation: int = 0
    of_database: bool = False

    @property
    def known_collation(self) -> int:
        """The collation; 0 if it is not certain."""
        return self.collation if self.is_sure else 0

    @classmethod
    def of(cls, columns: Sequence[Column], *, is_mariadb: bool, session: Session) -> "DefinitionContext":
        """Return the collation of the texts among these columns; utf8mb4 if there are none."""
        found = (column.collation for column in columns if column.collation not in (0, _BINARY) and not column.members)
        return cls(next(found, 45), is_mariadb, session)


def column_of(name: str, kind: exp.DataType, around: DefinitionContext) -> Column | None:
    """Return the column; None if its type is unknown.

    :raises UnreadableError: a member of an enum or set is not known as the server stores it.
    """
    column = _column(name, kind, around)
    if column is None:
        return None
    plain = kind.sql("mysql").lower()
    return replace(column, type_name=plain if plain in _BYTES_TYPES else type_names.name_of(column))


def _column(name: str, kind: exp.DataType, around: DefinitionContext) -> Column | None:
    this = kind.this
    if this is _T.FLOAT and [*_sizes(kind), 0][0] > _FLOAT_BITS_MAX:
        this = _T.DOUBLE
    if this in _NUMBERS:
        type_id, modifier, is_unsigned = _NUMBERS[this]
        return Column(name, int(type_id), modifier, is_unsigned=is_unsigned)
    if this in (_T.DECIMAL, _T.UDECIMAL):
        precision, scale = [*_sizes(kind), 0, 0][:2]
        precision = precision or _DECIMAL_DIGITS  # also for DECIMAL(0)
        return Column(name, int(FieldType.DECIMAL), precision << 8 | scale, is_unsigned=this is _T.UDECIMAL)
    if this in _MOMENTS:
        return Column(name, int(_MOMENTS[this]), [*_sizes(kind), 0][0])
    if this in _STRINGS:
        return _string(name, kind, around)
    if this in _BLOBS:
        width, is_bytes = _BLOBS[this]
        return Column(name, int(FieldType.BLOB), width, collation=_BINARY if is_bytes else around.collation)
    return _special(name, kind, around)


def _special(name: str, kind: exp.DataType, around: DefinitionContext) -> Column | None:
    this = kind.this
    if this in (_T.ENUM, _T.SET):
        members = tuple(_member(item, around) for item in kind.expressions)
        return _members(name, members, is_set=this is _T.SET, collation=around.collation)
    if this is _T.BIT:
        return Column(name, int(FieldType.BIT), [*_sizes(kind), 0][0] or 1)
    if this is _T.JSON:
        # MariaDB's is a text type
        is_text = around.is_mariadb
        return Column(name, int(FieldType.BLOB if is_text else FieldType.JSON), 4, collation=46 if is_text else 0)
    plain = kind.sql("mysql").lower()
    if plain in _BYTES_TYPES:
        return Column(name, int(FieldType.STRING), _BYTES_TYPES[plain], collation=_BINARY)
    if this in (_T.GEOMETRY, _T.POINT, _T.LINESTRING, _T.POLYGON, _T.MULTIPOLYGON, _T.MULTILINESTRING):
        return Column(name, int(FieldType.GEOMETRY), 4)
    if this is _T.VECTOR and not around.is_mariadb:
        return Column(name, int(FieldType.VECTOR), 4)
    return None


def _string(name: str, kind: exp.DataType, around: DefinitionContext) -> Column:
    type_id, is_bytes = _STRINGS[kind.this]
    length = [*_sizes(kind), 1][0]
    collation = _BINARY if is_bytes else around.collation
    width = 1 if is_bytes else charsets.bytes_per_character(charsets.charset_of(collation))
    if type_id is FieldType.VARCHAR and length * width > _VARCHAR_BYTES_MAX:  # without strict mode
        return Column(name, int(FieldType.BLOB), 3 if length * width < 1 << 24 else 4, collation=collation)
    return Column(name, int(type_id), length * width, collation=collation)


def _member(item: exp.Expr, around: DefinitionContext) -> str:
    """Return a member as the server stores it.

    :raises UnreadableError: only the server knows.
    """
    if isinstance(item, exp.HexString):
        return _kept(_text_of(bytes.fromhex(str(item.this)), charsets.charset_of(around.collation)), around.collation)
    member = _kept(str(item.this), around.collation)
    if not around.session.keeps(member, around.collation):
        raise UnreadableError(f"the session's character set changes the member {member}")
    return _stored(member, around.collation)


def _text_of(data: bytes, charset: str) -> str:
    """Return the text of a member that is given as bytes, which are taken for those of its character set."""
    unit = {"utf32": 4}.get(charset, 2) if charset in charsets.WIDE else 1
    if len(data) % unit or charset in (charsets.BINARY, ""):
        raise UnreadableError("the bytes of a member are no whole characters")
    try:
        return charsets.to_text(charset, data)
    except UnicodeDecodeError as error:
        raise UnreadableError("the bytes of a member are no text of its character set") from error


def _kept(member: str, collation: int) -> str:
    """Strip trailing spaces, like the server, unless the member is binary."""
    return member if collation == _BINARY else member.rstrip(" ")


def _stored(member: str, collation: int) -> str:
    """Return the member as its character set has it.

    :raises UnreadableError: it may not have all of its characters, and others in their place.
    """
    charset = charsets.charset_of(collation)
    if charset in (charsets.BINARY, "") or charsets.has(charset, member):
        return member
    try:
        return texts.translated(member, collation)
    except UnfitError as error:
        raise UnreadableError(f"{charset} may lack characters of the member {member}") from error


def _members(name: str, members: tuple[str, ...], *, is_set: bool, collation: int) -> Column:
    if is_set:
        width = (len(members) + 7) // 8
        return Column(name, int(FieldType.SET), width if width <= 4 else 8, collation=collation, members=members)
    return Column(name, int(FieldType.ENUM), 1 if len(members) < 256 else 2, collation=collation, members=members)


def _sizes(kind: exp.DataType) -> list[int]:
    """Return the numbers in parentheses; the servers take DECIMAL(19.5) for DECIMAL(19)."""
    texts = [item.name.partition(".")[0] for item in kind.expressions if isinstance(item, exp.DataTypeParam)]
    return [int(text) for text in texts if text.isdigit()]


def sized(column: Column, words: TypeWords) -> Column:
    """Add what the type alone lacks: the sign of a FLOAT, the length bytes of a TEXT, the display width."""
    if words.is_unsigned and column.type_id in (FieldType.FLOAT, FieldType.DOUBLE):
        column = replace(column, is_unsigned=True)
    if words.size:
        longest = words.size * charsets.bytes_per_character(charsets.charset_of(column.collation))
        column = replace(column, modifier=length_bytes(longest))
    if not (words.size or words.is_unsigned or words.display):
        return column
    return replace(column, type_name=type_names.name_of(column, words.display, is_zerofill=words.is_zerofill))


def length_bytes(longest: int) -> int:
    """Return the length bytes of the smallest text type that holds this number of bytes."""
    return next((width for width in (1, 2, 3) if longest < 1 << 8 * width), 4)
