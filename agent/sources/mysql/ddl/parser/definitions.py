"""Column definitions: parses a column's definition, word by word. Pure.

Attributes that affect rows are also returned as a ``sqlglot`` node, for the code that evaluates types and defaults.
Attributes that do not (comments, checks, storage) are parsed to find their end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from agent.sources.mysql.ddl.parser.cursor import Cursor, UnreadableError
from agent.sources.mysql.ddl.parser.tokens import Token, TokenKind, spelt
from agent.sources.mysql.ddl.parser.type_words import TypeWords, take_type
from agent.sources.mysql.values.session import Session

FIRST: Final = ""
#: a default whose value cannot be parsed
_UNREADABLE: Final = exp.Anonymous(this="unreadable")
#: words followed by one value, with an optional equals sign
_VALUED: Final = ("COMMENT", "COLUMN_FORMAT", "STORAGE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE")
_SRIDS: Final = ("SRID", "REF_SYSTEM_ID")
#: words that cannot be unquoted column names
_KEYWORDS: Final = frozenset(
    {"PRIMARY", "UNIQUE", "INDEX", "KEY", "FULLTEXT", "SPATIAL", "CHECK", "FOREIGN", "CONSTRAINT", "LIKE"}
)


@dataclass(slots=True)
class Definition:
    """``place``: the column after which it is placed, ``FIRST``, or None. ``charset``: name of a character set or a
    collation, empty for the table's. ``is_required``: NOT NULL. ``generated``: its expression; ``is_stored``: and
    its values are in the table. ``is_nullable``: NULL is stated. ``has_update``: ON UPDATE."""

    name: str
    type: TypeWords
    charset: str = ""
    is_required: bool = False
    is_primary: bool = False
    is_unique: bool = False
    is_numbered: bool = False
    is_nullable: bool = False
    has_update: bool = False
    is_compressed: bool = False
    cascades: bool = False
    generated: str = ""
    is_stored: bool = False
    default: exp.Expr | None = None
    place: str | None = None

    @property
    def is_bare_timestamp(self) -> bool:
        """Whether it is a ``timestamp`` without NULL, default and update of its own."""
        is_bare = self.default is None and not (self.has_update or self.generated or self.is_nullable)
        return self.type.name == "TIMESTAMP" and is_bare

    def node(self) -> exp.ColumnDef:
        """Return the definition as sqlglot parses it."""
        kinds: list[exp.Expr] = []
        if self.is_required:
            kinds.append(exp.NotNullColumnConstraint())
        if self.is_primary:
            kinds.append(exp.PrimaryKeyColumnConstraint())
        if self.is_numbered:
            kinds.append(exp.AutoIncrementColumnConstraint())
        if self.generated:
            kinds.append(exp.ComputedColumnConstraint(this=parsed(self.generated) or _UNREADABLE.copy()))
        if self.default is not None:
            kinds.append(exp.DefaultColumnConstraint(this=self.default))
        return exp.ColumnDef(
            this=exp.to_identifier(self.name, quoted=True),
            kind=self.type.data_type(is_binary=self.charset.lower() == "binary"),
            constraints=[exp.ColumnConstraint(kind=kind) for kind in kinds],
        )


def is_column(cursor: Cursor) -> bool:
    """Return whether a column's definition comes next, not an index or a constraint."""
    word, behind = cursor.peek().word, cursor.peek(1).word
    return word not in _KEYWORDS and (word, behind) not in (("PERIOD", "FOR"), ("VECTOR", "INDEX"), ("VECTOR", "KEY"))


def take_definition(cursor: Cursor, session: Session) -> Definition:
    """Parse the rest.

    :raises UnreadableError: it contains unknown words.
    """
    name = cursor.column()
    words = take_type(cursor, session)
    found = Definition(name, words, charset=words.charset)
    if words.name == "SERIAL":
        found.is_required = found.is_numbered = found.is_unique = True
    while cursor:
        _take_attribute(cursor, found, session)
    is_timestamp = words.name == "TIMESTAMP" and not (found.is_nullable or found.generated)
    if is_timestamp and session.explicit_timestamps is False:
        found.is_required = True
    return found


def parsed(expression: str) -> exp.Expr | None:
    try:
        found = sqlglot.parse_one(expression, dialect="mysql")
    except (SqlglotError, RecursionError):
        return None
    return found if isinstance(found, exp.Expr) else None


def _take_attribute(cursor: Cursor, found: Definition, session: Session) -> None:
    word = cursor.next().word
    match word:
        case "NOT":
            _take_not(cursor, found)
        case "NULL":  # takes back what is said before, but not by a primary key
            found.is_nullable, found.is_required = True, found.is_primary
        case "STORED" | "PERSISTENT":
            found.is_stored = True
        case "VISIBLE" | "INVISIBLE" | "VIRTUAL" | "ENFORCED" | "SIGNED":
            pass
        case "DEFAULT":
            found.default = take_default(cursor, session)
        case "SERIAL":
            cursor.expect("DEFAULT", "VALUE")
            found.is_required = found.is_numbered = found.is_unique = True
        case "ON":
            cursor.expect("UPDATE")
            found.has_update = True
            cursor.next()
            if cursor.peek().text == "(":
                cursor.group()
        case "AUTO_INCREMENT":
            found.is_numbered = found.is_required = True
        case "UNIQUE":
            cursor.take("KEY")
            found.is_unique = True
        case "PRIMARY" | "KEY":
            if word == "PRIMARY":
                cursor.take("KEY")
            found.is_primary = found.is_required = True
        case "CHARACTER" | "CHAR" | "CHARSET" | "COLLATE" | "BINARY":
            _take_charset(cursor, word, found)
        case "GENERATED" | "AS":
            _take_generated(cursor, word, found)
        case "FIRST":
            found.place = FIRST
        case "AFTER":
            found.place = cursor.name()
        case _:
            _take_unseen(cursor, word, found)


def _take_not(cursor: Cursor, found: Definition) -> None:
    if cursor.take("NULL"):
        found.is_required = True
    elif not cursor.take_one("ENFORCED", "SECONDARY"):
        raise UnreadableError("NOT what?")


def _take_charset(cursor: Cursor, word: str, found: Definition) -> None:
    if word == "BINARY":  # the binary collation of the character set
        return
    cursor.charset(word)
    cursor.symbol("=")
    value = cursor.next().value
    is_known = word == "COLLATE" and (found.charset or value.lower().startswith("uca1400"))
    if not is_known and value.upper() != "DEFAULT":
        found.charset = value


def _take_generated(cursor: Cursor, word: str, found: Definition) -> None:
    if word == "GENERATED":
        cursor.expect("ALWAYS", "AS")
    if cursor.peek().text != "(":
        raise UnreadableError("a column of the rows' history")
    found.generated = spelt(cursor.expression())


def _take_unseen(cursor: Cursor, word: str, found: Definition) -> None:
    """Consume an attribute that does not affect rows."""
    if word in (*_VALUED, *_SRIDS):
        cursor.symbol("=")
        cursor.next()
    elif word == "COMPRESSED":
        found.is_compressed = True
        if cursor.symbol("="):
            cursor.next()
    elif word == "CONSTRAINT":
        if cursor.peek().word != "CHECK":
            cursor.name()
        cursor.expect("CHECK")
        cursor.group()
    elif word == "CHECK":
        cursor.group()
    elif word == "REFERENCES":
        found.cascades = take_references(cursor)
    elif word in ("WITH", "WITHOUT"):
        cursor.expect("SYSTEM", "VERSIONING")
    elif cursor.symbol("="):  # an option of the storage engine
        cursor.next()
    else:
        raise UnreadableError(f"{word or 'a symbol'} is not known in a column")


def take_references(cursor: Cursor) -> bool:
    """Parse after REFERENCES; return whether rows of the table change with their parents'."""
    cursor.table("")
    if cursor.peek().text == "(":
        cursor.group()
    cascades = False
    while True:
        if cursor.take("MATCH"):
            cursor.next()
        elif cursor.peek().word == "ON" and cursor.peek(1).word in ("DELETE", "UPDATE") and _is_action(cursor.peek(2)):
            cursor.next()
            cursor.next()
            cascades = _takes_action(cursor) or cascades
        else:
            return cascades


def _is_action(token: Token) -> bool:
    return token.word in ("CASCADE", "SET", "RESTRICT", "NO")


def _takes_action(cursor: Cursor) -> bool:
    word = cursor.next().word
    if word == "SET":
        return cursor.next().word in ("NULL", "DEFAULT")
    if word == "NO":
        cursor.expect("ACTION")
    return word == "CASCADE"


def take_default(cursor: Cursor, session: Session) -> exp.Expr:
    """Parse the value after DEFAULT."""
    tokens = _default_tokens(cursor)
    if session.pipes_texts and (texts := _piped(tokens)):
        return exp.Concat(expressions=texts)
    return parsed(spelt(tokens)) or _UNREADABLE.copy()


def _piped(tokens: Sequence[Token]) -> list[exp.Expr]:
    """Return the texts that ``('a' || 'b')`` puts together; empty if it is another expression."""
    inner = tokens[1:-1] if tokens and tokens[0].text == "(" else tokens
    texts, pipes = inner[::2], inner[1::2]
    is_plain = all(token.kind is TokenKind.TEXT for token in texts) and all(token.text == "||" for token in pipes)
    if not (pipes and is_plain and len(texts) == len(pipes) + 1):
        return []
    found = [text for token in texts if (text := parsed(token.text)) is not None]
    return found if len(found) == len(texts) else []


def _default_tokens(cursor: Cursor) -> Sequence[Token]:
    """Consume a constant, a date literal, or an expression; MariaDB needs no parentheses around functions."""
    begin = cursor.rest
    if cursor.peek().text in ("-", "+"):
        cursor.next()
    if cursor.peek().text == "(":
        cursor.group()
    elif cursor.take("CASE"):
        _end_case(cursor)
    elif cursor.take_one("NEXT", "PREVIOUS"):
        cursor.expect("VALUE", "FOR")
        cursor.table("")
    else:
        _take_simple(cursor)
    return begin[: len(begin) - len(cursor.rest)]


def _end_case(cursor: Cursor) -> None:
    depth = 1
    while depth:
        word = cursor.next().word
        depth += (word == "CASE") - (word == "END")


def _take_simple(cursor: Cursor) -> None:
    token = cursor.next()
    if token.kind is TokenKind.WORD and cursor.peek().text == "(":
        cursor.group()
    elif token.kind is TokenKind.WORD and cursor.peek().kind is TokenKind.TEXT and _is_prefix(token):
        cursor.next()
    while token.kind is TokenKind.TEXT and cursor.peek().kind is TokenKind.TEXT:
        cursor.next()  # adjacent texts are concatenated


def _is_prefix(token: Token) -> bool:
    """Return whether the token is a character set introducer, or the type of a date literal."""
    return token.text.startswith("_") or token.word in ("DATE", "TIME", "TIMESTAMP")
