"""Databases: parses CREATE DATABASE and ALTER DATABASE, as far as they concern future tables. Pure."""

from agent.sources.mysql.ddl.parser.alterations import Convert
from agent.sources.mysql.ddl.parser.cursor import Cursor
from agent.sources.mysql.ddl.parser.table_options import take_options

_OPTIONS = ("CHARACTER", "CHAR", "CHARSET", "COLLATE", "DEFAULT", "COMMENT", "ENCRYPTION", "READ")


def take_database(cursor: Cursor) -> tuple[str, str | None, bool]:
    """Parse the rest. Return the name, empty for the current database; the character set or collation: empty for the
    server's, None if the statement has none; and whether a database of this name stays as it is.

    :raises UnreadableError: an option is unknown.
    """
    if_absent = cursor.take("IF", "NOT", "EXISTS")
    name = "" if cursor.peek().word in _OPTIONS else cursor.name()
    charsets = [part.charset for part in take_options(cursor) if isinstance(part, Convert)]
    # MariaDB's collations that each character set has change none
    charsets = [charset for charset in charsets if not charset.lower().startswith("uca1400")]
    return name, charsets[-1] if charsets else None, if_absent
