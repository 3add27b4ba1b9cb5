"""Table options: parses what follows the columns of a CREATE TABLE, or is between parts of an ALTER TABLE. Pure."""

from collections.abc import Sequence
from typing import Final

from agent.sources.mysql.ddl.parser.alterations import Convert, MakesSequence, Part, RowsMoved, Versioning
from agent.sources.mysql.ddl.parser.cursor import Cursor, UnreadableError

#: storage engines that show rows of other tables
FOREIGN_ROWS: Final = frozenset({"MERGE", "MRG_MYISAM", "FEDERATED", "FEDERATEDX", "CONNECT", "SPIDER"})
#: storage engines that store no rows, or other ones
_ROWLESS: Final = FOREIGN_ROWS | {"BLACKHOLE"}
#: options with a value that do not affect rows
_OPTIONS: Final = frozenset(
    {"AUTO_INCREMENT", "AVG_ROW_LENGTH", "CHECKSUM", "COMMENT", "COMPRESSION", "CONNECTION", "DELAY_KEY_WRITE"}
    | {"ENCRYPTION", "ENGINE_ATTRIBUTE", "INSERT_METHOD", "KEY_BLOCK_SIZE", "MAX_ROWS", "MIN_ROWS", "PACK_KEYS"}
    | {"PASSWORD", "ROW_FORMAT", "SECONDARY_ENGINE_ATTRIBUTE", "SECONDARY_ENGINE", "STATS_AUTO_RECALC"}
    | {"STATS_PERSISTENT", "STATS_SAMPLE_PAGES", "AUTOEXTEND_SIZE", "PAGE_CHECKSUM", "PAGE_COMPRESSED"}
    | {"PAGE_COMPRESSION_LEVEL", "ENCRYPTED", "ENCRYPTION_KEY_ID", "TRANSACTIONAL", "TABLE_CHECKSUM", "TABLESPACE"}
    | {"IETF_QUOTES", "ALGORITHM", "LOCK", "START", "STORAGE"}
)
_CHARSETS: Final = ("CHARACTER", "CHAR", "CHARSET", "COLLATE")
#: partition operations that neither add nor remove rows
_HARMLESS: Final = ("REORGANIZE", "ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "REPAIR", "COALESCE")


def take_options(cursor: Cursor) -> list[Part]:
    """Parse consecutive table options.

    :raises UnreadableError: one is unknown.
    """
    found: list[Part] = []
    while cursor:
        if not cursor.symbol(","):
            found += _option(cursor, has_charset=any(isinstance(part, Convert) for part in found))
    return found


def _option(cursor: Cursor, *, has_charset: bool) -> Sequence[Part]:
    word = cursor.next().name.upper()  # MariaDB takes quoted ones
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
    if word == "DEFAULT" and cursor.take("ENCRYPTION"):
        _value(cursor)
        return []
    if word == "DEFAULT" or word in _CHARSETS:
        return _default_charset(cursor, word, has_charset=has_charset)
    if word in ("ENGINE", "TYPE"):
        cursor.symbol("=")
        engine = cursor.next().value
        reason = f"its engine is {engine}, which has other rows than its log, or none"
        return [RowsMoved(reason, comes=engine.upper() in FOREIGN_ROWS)] if engine.upper() in _ROWLESS else []
    if (word in ("DATA", "INDEX") and cursor.take("DIRECTORY")) or word in _OPTIONS:
        _value(cursor)
        return []
    if word == "SEQUENCE":
        cursor.symbol("=")
        return [] if cursor.next().text == "0" else [MakesSequence()]
    if word == "UNION":
        cursor.symbol("=")
        cursor.group()
        return []
    if word and cursor.symbol("="):  # an option of the storage engine
        cursor.next()
        return []
    raise UnreadableError(f"{word} is no known option")


def _value(cursor: Cursor) -> None:
    cursor.symbol("=")
    cursor.next()


def _default_charset(cursor: Cursor, word: str, *, has_charset: bool) -> Sequence[Part]:
    """Parse the default of new texts. ``has_charset``: a character set is stated before; COLLATE DEFAULT keeps it."""
    if word == "DEFAULT":
        word = cursor.next().word
    cursor.charset(word)
    cursor.symbol("=")
    charset = cursor.next().value
    if charset.upper() != "DEFAULT":
        return [Convert(charset, is_default=True)]
    return [] if word == "COLLATE" and has_charset else [Convert("", is_default=True)]


def _skip(cursor: Cursor) -> None:
    while cursor:
        cursor.next()
