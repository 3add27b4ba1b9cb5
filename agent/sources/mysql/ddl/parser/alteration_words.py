"""Alteration words: parses an ALTER TABLE after the table's name, part by part. Pure."""

from collections.abc import Iterator, Sequence

from agent.sources.mysql.ddl.parser.alterations import (
    PRIMARY,
    AddKey,
    ChangeColumn,
    Convert,
    DropColumn,
    DropKey,
    Part,
    RenameColumn,
    RenameKey,
    RenameTo,
    RowsMoved,
    SetDefault,
    Unread,
    Versioning,
)
from agent.sources.mysql.ddl.parser.cursor import Cursor, UnreadableError
from agent.sources.mysql.ddl.parser.definitions import is_column, take_default, take_definition
from agent.sources.mysql.ddl.parser.indexes import column_parts, take_index
from agent.sources.mysql.ddl.parser.table_options import take_options
from agent.sources.mysql.ddl.parser.tokens import spelt
from agent.sources.mysql.values.session import Session
from reactor.records.changefeed import DROP_PARTITION, TRUNCATE_PARTITION


def take_parts(cursor: Cursor, database: str, session: Session) -> list[Part]:
    """Parse the rest of an ALTER TABLE after the table's name."""
    found: list[Part] = []
    lists = False
    for piece in without_partitions(cursor).parts():
        rest = piece.rest
        if lists and _is_listed(piece):
            continue
        lists = piece.peek(1).word == "PARTITION" or piece.peek().word == "ORDER"
        try:
            found += _take_part(piece, database, session) if piece else ()
        except (UnreadableError, ValueError):
            found.append(Unread(spelt(rest)))
    return found


def without_partitions(cursor: Cursor) -> Cursor:
    """Remove the partitioning clause, which needs no comma before it."""
    depth, tokens = 0, cursor.rest
    for at, token in enumerate(tokens):
        depth += (token.text == "(") - (token.text == ")")
        behind = tokens[at + 1].word if at + 1 < len(tokens) else ""
        if depth == 0 and (token.word, behind) in (("PARTITION", "BY"), ("REMOVE", "PARTITIONING")):
            return Cursor(tokens[:at])
    return cursor


def _is_listed(piece: Cursor) -> bool:
    """Return whether the part is another name of a list: of partitions, or of columns to order by."""
    behind = piece.peek(1)
    if behind.text == "." and piece.peek(2).name:  # of a qualified column
        behind = piece.peek(3)
    return bool(piece.peek().name) and (not behind.text or behind.word in ("ASC", "DESC", "INTO"))


def _take_part(cursor: Cursor, database: str, session: Session) -> Sequence[Part]:
    cursor.check_decoded()
    match cursor.peek().word:
        case "ADD":
            cursor.next()
            return list(_add(cursor, session))
        case "DROP":
            cursor.next()
            return _drop(cursor)
        case "MODIFY" | "CHANGE":
            return _change(cursor, session)
        case "RENAME":
            cursor.next()
            return _rename(cursor, database)
        case "CONVERT":
            cursor.next()
            return [_convert(cursor, database)]
        case "ALTER":
            cursor.next()
            return _alter(cursor, session)
        case "EXCHANGE" | "TRUNCATE" | "DISCARD" | "IMPORT":
            return [_moved(cursor, database)]
    return take_options(cursor)


def _add(cursor: Cursor, session: Session) -> Iterator[Part]:
    if cursor.take("PARTITION") or _is_period(cursor):
        return
    if cursor.take("SYSTEM", "VERSIONING"):
        yield Versioning()
        return
    if cursor.peek().word != "COLUMN" and not is_column(cursor):
        yield from take_index(cursor)
        return
    cursor.take("COLUMN")
    if_absent = cursor.take("IF", "NOT", "EXISTS")
    if cursor.peek().text != "(":
        definition = take_definition(cursor, session)
        yield from column_parts(definition, if_absent=if_absent)
        return
    for item in cursor.group().parts():
        if is_column(item):
            yield from column_parts(take_definition(item, session), if_absent=if_absent)
        else:
            yield from take_index(item)


def _is_period(cursor: Cursor) -> bool:
    words = [cursor.peek(ahead).word for ahead in range(5)]
    return words[:2] == ["PERIOD", "FOR"] or (words[:2] == ["PERIOD", "IF"] and "FOR" in words)


def _drop(cursor: Cursor) -> Sequence[Part]:
    if cursor.take("PRIMARY", "KEY"):
        return [DropKey(PRIMARY)]
    if cursor.take("PARTITION"):
        return [RowsMoved("a partition was dropped with its rows", event=DROP_PARTITION, of_partition=True)]
    if cursor.take("SYSTEM", "VERSIONING") or _is_period(cursor):
        return []
    if cursor.take("FOREIGN", "KEY") or cursor.peek().word == "CHECK":
        return []
    if cursor.take_one("INDEX", "KEY", "CONSTRAINT"):
        cursor.take("IF", "EXISTS")
        return [DropKey(cursor.name())]
    cursor.take("COLUMN")
    if_exists = cursor.take("IF", "EXISTS")
    name = cursor.column()
    cursor.take_one("RESTRICT", "CASCADE")
    _end(cursor)
    return [DropColumn(name, if_exists)]


def _change(cursor: Cursor, session: Session) -> Sequence[Part]:
    is_change = cursor.next().word == "CHANGE"
    cursor.take("COLUMN")
    if_exists = cursor.take("IF", "EXISTS")
    old = cursor.column() if is_change else ""
    definition = take_definition(cursor, session)
    found: list[Part] = [ChangeColumn(old or definition.name, definition, if_exists)]
    if definition.is_primary:
        found.append(AddKey(PRIMARY, (definition.name,)))
    elif definition.is_unique:
        found.append(AddKey(definition.name, (definition.name,)))
    return found


def _rename(cursor: Cursor, database: str) -> Sequence[Part]:
    if cursor.take("COLUMN"):
        if_exists = cursor.take("IF", "EXISTS")
        old = cursor.name()
        cursor.expect("TO")
        return [RenameColumn(old, cursor.name(), if_exists)]
    if cursor.take_one("INDEX", "KEY"):
        cursor.take("IF", "EXISTS")
        old = cursor.name()
        cursor.expect("TO")
        return [RenameKey(old, cursor.name())]
    if not cursor.take_one("TO", "AS"):
        cursor.symbol("=")
    table = cursor.table(database)
    _end(cursor)
    return [RenameTo(table)]


def _convert(cursor: Cursor, database: str) -> Part:
    if cursor.take("PARTITION"):
        cursor.name()
        cursor.expect("TO", "TABLE")
        return RowsMoved("a partition became a table of its own", cursor.table(database), makes=True, of_partition=True)
    if cursor.take("TABLE"):
        return RowsMoved("another table became a partition", cursor.table(database), ends=True, of_partition=True)
    cursor.expect("TO")
    if not (word := cursor.take_one("CHARACTER", "CHAR", "CHARSET")):
        raise UnreadableError("to what is it converted?")
    cursor.charset(word)
    cursor.symbol("=")
    charset = cursor.next().value
    if charset.upper() == "DEFAULT" and cursor.take("COLLATE"):
        cursor.symbol("=")
        charset = cursor.next().value
    return Convert("" if charset.upper() == "DEFAULT" else charset)


def _alter(cursor: Cursor, session: Session) -> Sequence[Part]:
    if cursor.take_one("INDEX", "KEY", "CHECK", "CONSTRAINT"):
        return []
    cursor.take("COLUMN")
    cursor.take("IF", "EXISTS")
    name = cursor.name()
    if cursor.take("SET", "DEFAULT"):
        return [SetDefault(name, take_default(cursor, session))]
    if cursor.take("DROP", "DEFAULT"):
        return [SetDefault(name, None)]
    if not cursor.take_one("SET"):
        raise UnreadableError("what of the column is altered?")
    return []


def _moved(cursor: Cursor, database: str) -> RowsMoved:
    verb = cursor.next().word
    comes = verb == "IMPORT"
    if cursor.take("TABLESPACE"):
        return RowsMoved(f"its tablespace was {'imported' if comes else 'discarded'}", comes=comes)
    cursor.expect("PARTITION")
    if verb != "EXCHANGE":
        done = {"TRUNCATE": "emptied", "DISCARD": "discarded", "IMPORT": "imported"}[verb]
        event = TRUNCATE_PARTITION if verb == "TRUNCATE" else ""
        return RowsMoved(f"a partition was {done}", comes=comes, event=event, of_partition=True)
    cursor.name()
    cursor.expect("WITH", "TABLE")
    return RowsMoved("a partition was exchanged for a table", cursor.table(database), of_partition=True)


def _end(cursor: Cursor) -> None:
    if cursor:
        raise UnreadableError(f"{cursor.peek().text} is not known here")
