"""Edits: what a statement does to tables and databases, and why some tables cannot be followed behind it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from agent.rows.schema import TableSchema
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.names import lowered

VERSIONED: Final = "it keeps the history of its rows from here on (SYSTEM VERSIONING), which is mixed into the log"
CASCADES: Final = "a foreign key changes its rows from here on, and the server does not log that"
HASHED: Final = "it has a unique key by hash from here on, with a hidden column in the log"
IGNORED: Final = "ALTER IGNORE may have deleted rows that no event names"
#: servers keep the bytes of the members, and take them for text of the new character set
MEMBERS: Final = "the server does not convert the members of an enum or set in CONVERT TO CHARACTER SET"
FILLED: Final = "it was created with rows by a statement, which holds no rows; set binlog_format=ROW for all sessions"


@dataclass(frozen=True, slots=True)
class Created:
    """``like``: the table whose definition is copied. ``schema``: the statement's definition, None if it has none.
    ``reason``: why the table cannot be followed, empty if it can. ``is_keyless``: the statement makes
    no key. ``replaces``: it drops the table of that name first. ``is_primary``: it says the primary key.
    ``virtual``: virtual columns; ``unsteady``: those that have another value whenever they are read. ``of_database``:
    texts have the character set of the database, if they say none."""

    table: Name
    like: Name | None = None
    schema: TableSchema | None = None
    if_absent: bool = False
    reason: str = ""
    is_keyless: bool = False
    replaces: bool = False
    is_primary: bool = False
    unsteady: tuple[str, ...] = ()
    of_database: bool = False
    virtual: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dropped:
    table: Name


@dataclass(frozen=True, slots=True)
class Renamed:
    """``if_exists``: nothing has happened if the table was not there."""

    table: Name
    to: Name
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class Effort:
    """``copies``: the server may have copied the table. ``is_lax``: what a strict server refuses was allowed."""

    copies: bool = True
    is_lax: bool = False


#: of a statement that says nothing about it
EFFORT: Final = Effort()


@dataclass(frozen=True, slots=True)
class Altered:
    """``schema``: the result, under its old name. ``renames``: new column → old; ``unknown_fills``: new columns whose
    values in existing rows are unknown. ``asks_key``: only the server knows the resulting key; ``makes_key``: the
    statement makes the primary key; ``touches_key``: it may change which key the server uses; ``uniques``: columns, in
    lower case, of the unique keys that it makes. ``required``: columns that are declared NOT NULL. ``recomputed``:
    columns that get an expression, so the server recomputes them. ``numbered``: those that get AUTO_INCREMENT.
    ``effort``: what the statement asks of the server. ``virtual``, ``unsteady``, ``of_database``: see ``Created``."""

    table: Name
    schema: TableSchema
    renames: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    fills: Mapping[str, str] = field(default_factory=dict)
    unknown_fills: tuple[str, ...] = ()
    asks_key: bool = False
    makes_key: bool = False
    touches_key: bool = False
    uniques: tuple[frozenset[str], ...] = ()
    required: frozenset[str] = frozenset()
    recomputed: tuple[str, ...] = ()
    numbered: frozenset[str] = frozenset()
    effort: Effort = EFFORT
    unsteady: tuple[str, ...] = ()
    of_database: bool = False
    virtual: tuple[str, ...] = ()

    @property
    def made_uniques(self) -> tuple[frozenset[str], ...]:
        """Return the columns, in lower case, of all unique keys that it makes, the primary one too."""
        primary = frozenset(map(lowered, self.schema.key))
        return (*self.uniques, primary) if self.makes_key else self.uniques


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """The definition that is known stays, but an index is made that may be the key. ``uniques``: see ``Altered``."""

    table: Name
    uniques: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The definition stays, and the server may have rewritten all rows."""

    table: Name
    effort: Effort


@dataclass(frozen=True, slots=True)
class DatabaseDefined:
    """``collation``: of its future tables; 0 if it is not known. ``if_absent``: a database of this name stays as it is,
    and the log has the statement all the same."""

    name: str
    collation: int
    if_absent: bool = False


@dataclass(frozen=True, slots=True)
class DatabaseDropped:
    name: str


@dataclass(frozen=True, slots=True)
class Unfollowed:
    """The table cannot be followed from here on. ``needs_rows``: only if it has any. ``event``: unless event filters
    ignore this one. ``of_partition``: one of its partitions came or went with rows."""

    table: Name
    reason: str
    needs_rows: bool = False
    event: str = ""
    of_partition: bool = False


@dataclass(frozen=True, slots=True)
class Unparsed:
    """The definition of ``table`` has to be read. ``columns``: how the parsed ones correspond to those before."""

    table: Name
    columns: Columns = field(default_factory=Columns)
    effort: Effort = EFFORT


Edit = (
    Created
    | Dropped
    | Renamed
    | Altered
    | Rebuilt
    | Rekeyed
    | DatabaseDefined
    | DatabaseDropped
    | Unfollowed
    | Unparsed
)
