"""Indexes and constraints: parses them, and finds which identify rows, and which change rows implicitly. Pure."""

from collections.abc import Iterator, Sequence

from agent.sources.mysql.ddl.parser.alterations import PRIMARY, AddColumn, AddKey, Cascade, Part
from agent.sources.mysql.ddl.parser.cursor import Cursor, UnreadableError
from agent.sources.mysql.ddl.parser.definitions import Definition, take_references


def column_parts(definition: Definition, *, if_absent: bool = False) -> Iterator[Part]:
    """Yield a new column, and the key that its definition includes."""
    yield AddColumn(definition, if_absent)
    if definition.cascades:
        yield Cascade()
    if definition.is_primary:
        yield AddKey(PRIMARY, (definition.name,), if_absent)
    elif definition.is_unique:
        yield AddKey(definition.name, (definition.name,), if_absent)


def take_index(cursor: Cursor) -> Sequence[Part]:
    """Parse an index or a constraint of a CREATE TABLE or ALTER TABLE.

    :raises UnreadableError: it contains unknown words.
    """
    name = ""
    if cursor.take("CONSTRAINT"):
        cursor.take("IF", "NOT", "EXISTS")
        name = "" if _is_constraint(cursor) else cursor.name()
    word = cursor.next().word
    match word:
        case "PRIMARY":
            cursor.expect("KEY")
            if_absent = cursor.take("IF", "NOT", "EXISTS")
            return [AddKey(PRIMARY, _columns_of_index(cursor)[1], if_absent)]
        case "UNIQUE":
            cursor.take_one("INDEX", "KEY")
            if_absent = cursor.take("IF", "NOT", "EXISTS")
            own, columns = _columns_of_index(cursor)
            words = [token.word for token in cursor.rest]
            return [AddKey(own or name, columns, if_absent, is_hashed="HASH" in words)]
        case "INDEX" | "KEY" | "FULLTEXT" | "SPATIAL" | "VECTOR" | "CHECK" | "PERIOD":
            return []
        case "FOREIGN":
            return [Cascade()] if _is_cascade(cursor) else []
    raise UnreadableError(f"{word} is no known index")


def _is_constraint(cursor: Cursor) -> bool:
    return cursor.peek().word in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK")


def _columns_of_index(cursor: Cursor) -> tuple[str, tuple[str, ...]]:
    """Parse its name and columns; no columns if it has prefixes or expressions."""
    name = ""
    if cursor.peek().text != "(" and cursor.peek().word != "USING":
        name = cursor.name()
    while cursor.take_one("USING", "TYPE"):
        cursor.next()
    columns = []
    for item in cursor.group().parts():
        is_whole = len(item.rest) == 1 or item.peek(1).word in ("ASC", "DESC", "WITHOUT")
        if item.peek(1).word == "WITHOUT" or not is_whole or not item.peek().name:
            return name, ()
        columns.append(item.name())
    return name, tuple(columns)


def _is_cascade(cursor: Cursor) -> bool:
    while cursor and not cursor.take("REFERENCES"):
        cursor.next()
    return take_references(cursor)
