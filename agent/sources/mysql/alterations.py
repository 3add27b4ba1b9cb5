"""Alterations: the parts of one ALTER TABLE, each as what it does to columns, keys, name or rows. Pure.

A part that is not understood becomes ``Unread``: it costs nothing but itself until somebody has to know what it does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from agent.sources.mysql.cursor import Cursor, Name, UnreadableError
from agent.sources.mysql.definitions import Definition, is_column, take_definition, take_references
from agent.sources.mysql.session import Session
from agent.sources.mysql.tokens import spelt

PRIMARY: Final = "PRIMARY"
#: engines that keep no rows, or other ones
_ROWLESS: Final = frozenset({"BLACKHOLE", "MERGE", "MRG_MYISAM", "FEDERATED", "FEDERATEDX", "CONNECT", "SPIDER"})
#: options of a table that no row shows, with a value behind each
_OPTIONS: Final = frozenset(
    {"AUTO_INCREMENT", "AVG_ROW_LENGTH", "CHECKSUM", "COMMENT", "COMPRESSION", "CONNECTION", "DELAY_KEY_WRITE"}
    | {"ENCRYPTION", "ENGINE_ATTRIBUTE", "INSERT_METHOD", "KEY_BLOCK_SIZE", "MAX_ROWS", "MIN_ROWS", "PACK_KEYS"}
    | {"PASSWORD", "ROW_FORMAT", "SECONDARY_ENGINE_ATTRIBUTE", "SECONDARY_ENGINE", "STATS_AUTO_RECALC"}
    | {"STATS_PERSISTENT", "STATS_SAMPLE_PAGES", "AUTOEXTEND_SIZE", "PAGE_CHECKSUM", "PAGE_COMPRESSED", "SEQUENCE"}
    | {"PAGE_COMPRESSION_LEVEL", "ENCRYPTED", "ENCRYPTION_KEY_ID", "TRANSACTIONAL", "TABLE_CHECKSUM", "TABLESPACE"}
    | {"IETF_QUOTES", "ALGORITHM", "LOCK", "START"}
)
#: what partitions do without rows that come or go
_HARMLESS: Final = ("REORGANIZE", "ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "REPAIR", "COALESCE")


@dataclass(frozen=True, slots=True)
class AddColumn:
    definition: Definition
    if_absent: bool = False


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """``old``: its name before."""

    old: str
    definition: Definition
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class RenameColumn:
    old: str
    new: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class AddKey:
    """A unique one, or the primary key. ``columns``: empty where it tells rows apart by more than whole columns.
    ``is_hashed``: MariaDB keeps a hash of them in a hidden column."""

    name: str
    columns: tuple[str, ...]
    if_absent: bool = False
    is_hashed: bool = False

    @property
    def is_primary(self) -> bool:
        return self.name == PRIMARY


@dataclass(frozen=True, slots=True)
class DropKey:
    name: str


@dataclass(frozen=True, slots=True)
class RenameKey:
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Convert:
    """All texts to another character set; empty: the database's. ``is_default``: of columns to come only."""

    charset: str
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class RenameTo:
    table: Name


@dataclass(frozen=True, slots=True)
class RowsMoved:
    """Rows of the table come or go, and no event says which. ``other``: the table that they go to or come from;
    ``makes``, ``ends``: that is a new one, or is gone then."""

    reason: str
    other: Name | None = None
    makes: bool = False
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Cascade:
    """Rows will change with those of another table."""


@dataclass(frozen=True, slots=True)
class Versioning:
    """The table's history is kept from now on."""


@dataclass(frozen=True, slots=True)
class Unread:
    text: str


Part = (
    AddColumn
    | ChangeColumn
    | RenameColumn
    | DropColumn
    | AddKey
    | DropKey
    | RenameKey
    | Convert
    | RenameTo
    | RowsMoved
    | Cascade
    | Versioning
    | Unread
)


def take_parts(cursor: Cursor, database: str, session: Session) -> list[Part]:
    """All that is left of an ALTER TABLE behind the table's name."""
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
    """Without what says how the table is partitioned, which needs no comma before it."""
    depth, tokens = 0, cursor.rest
    for at, token in enumerate(tokens):
        depth += (token.text == "(") - (token.text == ")")
        behind = tokens[at + 1].word if at + 1 < len(tokens) else ""
        if depth == 0 and (token.word, behind) in (("PARTITION", "BY"), ("REMOVE", "PARTITIONING")):
            return Cursor(tokens[:at])
    return cursor


def _is_listed(piece: Cursor) -> bool:
    """One more name of a list: of partitions, or of columns to order by."""
    behind = piece.peek(1)
    return bool(piece.peek().name) and (not behind.text or behind.word in ("ASC", "DESC", "INTO"))


def _take_part(cursor: Cursor, database: str, session: Session) -> Sequence[Part]:
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
            return _alter(cursor)
        case "EXCHANGE" | "TRUNCATE" | "DISCARD" | "IMPORT":
            return [_moved(cursor, database)]
    return take_options(cursor)


def _add(cursor: Cursor, session: Session) -> Iterator[Part]:
    if cursor.take("PARTITION") or cursor.take("PERIOD", "FOR"):
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


def column_parts(definition: Definition, *, if_absent: bool = False) -> Iterator[Part]:
    """A new column, and the key that it is."""
    yield AddColumn(definition, if_absent)
    if definition.cascades:
        yield Cascade()
    if definition.is_primary:
        yield AddKey(PRIMARY, (definition.name,))
    elif definition.is_unique:
        yield AddKey(definition.name, (definition.name,), if_absent)


def take_index(cursor: Cursor) -> Sequence[Part]:
    """An index or a constraint, as CREATE TABLE and ALTER TABLE define them.

    :raises UnreadableError: it has words that are not known here.
    """
    name = ""
    if cursor.take("CONSTRAINT") and not _is_constraint(cursor):
        name = cursor.name()
    word = cursor.next().word
    match word:
        case "PRIMARY":
            cursor.expect("KEY")
            return [AddKey(PRIMARY, _columns_of_index(cursor)[1])]
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
    """Its name and its columns; without columns where it has prefixes or expressions."""
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


def _drop(cursor: Cursor) -> Sequence[Part]:
    if cursor.take("PRIMARY", "KEY"):
        return [DropKey(PRIMARY)]
    if cursor.take("PARTITION"):
        return [RowsMoved("a partition was dropped with its rows")]
    if cursor.take("SYSTEM", "VERSIONING") or cursor.take("PERIOD", "FOR"):
        return []
    if cursor.take("FOREIGN", "KEY") or cursor.peek().word == "CHECK":
        return []
    if cursor.take_one("INDEX", "KEY", "CONSTRAINT"):
        cursor.take("IF", "EXISTS")
        return [DropKey(cursor.name())]
    cursor.take("COLUMN")
    if_exists = cursor.take("IF", "EXISTS")
    name = cursor.name()
    cursor.take_one("RESTRICT", "CASCADE")
    _end(cursor)
    return [DropColumn(name, if_exists)]


def _change(cursor: Cursor, session: Session) -> Sequence[Part]:
    is_change = cursor.next().word == "CHANGE"
    cursor.take("COLUMN")
    if_exists = cursor.take("IF", "EXISTS")
    old = cursor.name() if is_change else cursor.peek().name
    definition = take_definition(cursor, session)
    found: list[Part] = [ChangeColumn(old, definition, if_exists)]
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
        return RowsMoved("a partition became a table of its own", cursor.table(database), makes=True)
    if cursor.take("TABLE"):
        return RowsMoved("another table became a partition", cursor.table(database), ends=True)
    cursor.expect("TO")
    if not cursor.take("CHARSET"):
        cursor.expect("CHARACTER", "SET")
    cursor.symbol("=")
    charset = cursor.next().value
    if charset.upper() == "DEFAULT" and cursor.take("COLLATE"):
        cursor.symbol("=")
        charset = cursor.next().value
    return Convert("" if charset.upper() == "DEFAULT" else charset)


def _alter(cursor: Cursor) -> Sequence[Part]:
    if cursor.take_one("INDEX", "KEY", "CHECK", "CONSTRAINT"):
        return []
    cursor.take("COLUMN")
    cursor.take("IF", "EXISTS")
    cursor.name()
    if not cursor.take_one("SET", "DROP"):
        raise UnreadableError("what of the column is altered?")
    return []


def _moved(cursor: Cursor, database: str) -> RowsMoved:
    verb = cursor.next().word
    if cursor.take("TABLESPACE"):
        return RowsMoved(f"its tablespace was {'discarded' if verb == 'DISCARD' else 'imported'}")
    cursor.expect("PARTITION")
    if verb != "EXCHANGE":
        done = {"TRUNCATE": "emptied", "DISCARD": "discarded", "IMPORT": "imported"}[verb]
        return RowsMoved(f"a partition was {done}")
    cursor.name()
    cursor.expect("WITH", "TABLE")
    return RowsMoved("a partition was exchanged for a table", cursor.table(database))


def take_options(cursor: Cursor) -> list[Part]:
    """Options of a table, one behind the other.

    :raises UnreadableError: one is not known here.
    """
    found: list[Part] = []
    while cursor:
        if not cursor.symbol(","):
            found += _option(cursor)
    return found


def _option(cursor: Cursor) -> Sequence[Part]:
    word = cursor.next().word
    if word in _HARMLESS and cursor.peek().word == "PARTITION":
        _skip(cursor)
        return []
    if word in ("FORCE", "SECONDARY_LOAD", "SECONDARY_UNLOAD"):
        return []
    if word in ("WITH", "WITHOUT") and cursor.take("VALIDATION"):
        return []
    if word == "WITH" and cursor.take("SYSTEM", "VERSIONING"):
        return [Versioning()]
    if word in ("ENABLE", "DISABLE") and cursor.take("KEYS"):
        return []
    if word == "ORDER":
        _skip(cursor)
        return []
    if word == "DEFAULT" or word in ("CHARACTER", "CHARSET", "COLLATE"):
        return [_default_charset(cursor, word)]
    if word in ("ENGINE", "TYPE"):
        cursor.symbol("=")
        engine = cursor.next().value
        is_rowless = engine.upper() in _ROWLESS
        return [RowsMoved(f"it went to the engine {engine}, which has other rows or none")] if is_rowless else []
    if (word in ("DATA", "INDEX") and cursor.take("DIRECTORY")) or word in _OPTIONS:
        _value(cursor)
        return []
    if word == "UNION":
        cursor.symbol("=")
        cursor.group()
        return []
    if word and cursor.symbol("="):  # an engine's own
        cursor.next()
        return []
    raise UnreadableError(f"{word} is no known option")


def _value(cursor: Cursor) -> None:
    cursor.symbol("=")
    cursor.next()


def _default_charset(cursor: Cursor, word: str) -> Convert:
    if word == "DEFAULT":
        word = cursor.next().word
    if word == "CHARACTER":
        cursor.expect("SET")
    cursor.symbol("=")
    charset = cursor.next().value
    return Convert("" if charset.upper() == "DEFAULT" else charset, is_default=True)


def _skip(cursor: Cursor) -> None:
    while cursor:
        cursor.next()


def _end(cursor: Cursor) -> None:
    if cursor:
        raise UnreadableError(f"{cursor.peek().text} is not known here")
