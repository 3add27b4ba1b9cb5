"""Creation: parses a CREATE TABLE after the table's name. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from agent.sources.mysql.ddl.parser.alteration_words import without_partitions
from agent.sources.mysql.ddl.parser.alterations import AddColumn, AddKey, Cascade, MakesSequence, Part, Versioning
from agent.sources.mysql.ddl.parser.cursor import Cursor, Name, UnreadableError
from agent.sources.mysql.ddl.parser.definitions import is_column, take_definition
from agent.sources.mysql.ddl.parser.indexes import column_parts, take_index
from agent.sources.mysql.ddl.parser.table_options import take_options
from agent.sources.mysql.names import lowered
from agent.sources.mysql.values.session import Session

#: words that start a query
_QUERY = ("AS", "SELECT", "WITH", "TABLE", "VALUES", "IGNORE", "REPLACE")


@dataclass(frozen=True, slots=True)
class Creation:
    """``like``: the table whose definition is copied. ``parts``: columns and keys, None if they cannot be parsed, or
    come from a query. ``options``: of the table. ``has_rows``: a query in the statement fills the table."""

    like: Name | None = None
    parts: tuple[Part, ...] | None = None
    options: tuple[Part, ...] = ()
    has_rows: bool = False

    @property
    def is_versioned(self) -> bool:
        return any(isinstance(part, Versioning) for part in self.options)

    @property
    def is_sequence(self) -> bool:
        return any(isinstance(part, MakesSequence) for part in self.options)

    @property
    def cascades(self) -> bool:
        return any(isinstance(part, Cascade) for part in self.parts or ())

    @property
    def key(self) -> tuple[str, ...]:
        """Return the columns that the server uses as key: the primary key, else the first unique key over NOT NULL
        columns with values in the table."""
        parts = self.parts or ()
        columns = [part.definition for part in parts if isinstance(part, AddColumn)]
        columns = [column for column in columns if column.is_stored or not column.generated]
        required = {lowered(column.name) for column in columns if column.is_required}
        keys = [part for part in parts if isinstance(part, AddKey)]
        for key in sorted(keys, key=lambda key: not key.is_primary):
            if key.columns and (key.is_primary or {*map(lowered, key.columns)} <= required):
                return key.columns
        return ()

    @property
    def is_primary(self) -> bool:
        """Return whether the key is the primary one."""
        return any(isinstance(part, AddKey) and part.is_primary for part in self.parts or ())

    @property
    def is_keyless(self) -> bool:
        """Return whether the statement certainly makes no key: prefixes may be whole columns."""
        parts = self.parts
        return parts is not None and not self.key and all(part.columns for part in parts if isinstance(part, AddKey))


def take_creation(cursor: Cursor, database: str, session: Session) -> Creation:
    """Parse the rest of a CREATE TABLE after the table's name."""
    if cursor.take("LIKE"):
        return Creation(like=cursor.table(database))
    parts: tuple[Part, ...] | None = None
    if cursor.peek().text == "(" and cursor.peek(1).word not in ("SELECT", "WITH", "VALUES"):
        inside = cursor.group()
        if inside.take("LIKE"):
            return Creation(like=inside.table(database))
        parts = _parts(inside, session)
    cursor = _without_start(cursor)
    begin = _query_at(cursor)
    options = _options(without_partitions(Cursor(cursor.rest[:begin])))
    if begin is not None:
        return Creation(options=options or (), has_rows=True)
    return Creation(None, None if options is None else parts, options or ())


def _parts(inside: Cursor, session: Session) -> tuple[Part, ...] | None:
    try:
        return tuple(part for item in inside.parts() for part in _item(item, session))
    except (UnreadableError, ValueError):
        return None


def _item(item: Cursor, session: Session) -> Iterator[Part]:
    item.check_decoded()
    if is_column(item):
        yield from column_parts(take_definition(item, session))
    else:
        yield from take_index(item)


def _options(cursor: Cursor) -> tuple[Part, ...] | None:
    try:
        return tuple(take_options(cursor))
    except (UnreadableError, ValueError):
        return None


def _without_start(cursor: Cursor) -> Cursor:
    """Remove START TRANSACTION: MySQL logs the rows of a new table in the transaction that creates it."""
    tokens = cursor.rest
    words = [token.word for token in tokens[-2:]]
    return Cursor(tokens[:-2]) if words == ["START", "TRANSACTION"] else cursor


def _query_at(cursor: Cursor) -> int | None:
    """Return the position of the query that fills the table."""
    depth = 0
    for at, token in enumerate(cursor.rest):
        before = cursor.rest[at - 1].text if at else ""
        is_query = token.word in _QUERY or (token.text == "(" and cursor.peek(at + 1).word in ("SELECT", "WITH"))
        is_versioning = token.word == "WITH" and cursor.peek(at + 1).word == "SYSTEM"
        if depth == 0 and before != "=" and is_query and not is_versioning:
            return at
        depth += (token.text == "(") - (token.text == ")")
    return None
