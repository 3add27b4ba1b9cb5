"""Alterations: the effects of the parts of an ALTER TABLE or CREATE TABLE on columns, keys, name and rows.

A part that is not understood becomes ``Unread``, which has no effect on the others.
"""

from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.parser.definitions import Definition

PRIMARY: Final = "PRIMARY"


@dataclass(frozen=True, slots=True)
class AddColumn:
    definition: Definition
    if_absent: bool = False


@dataclass(frozen=True, slots=True)
class ChangeColumn:
    """``old``: the column's former name."""

    old: str
    definition: Definition
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class SetDefault:
    """MariaDB applies it to a column that the same statement adds. ``default``: None if there is none any more."""

    name: str
    default: exp.Expr | None


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
    """A unique or primary key. ``columns``: empty if it includes prefixes or expressions. ``is_hashed``: MariaDB stores
    a hash of them in a hidden column."""

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
    """Convert all texts to another character set; empty: the database's. ``is_default``: only for later columns."""

    charset: str
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class RenameTo:
    table: Name


@dataclass(frozen=True, slots=True)
class RowsMoved:
    """Rows of the table come or go without events. ``other``: the table that they move to or from; ``makes``: it is
    new; ``ends``: it is dropped. ``comes``: an empty table may have rows afterwards. ``event``: its name in event
    filters, empty if they have none. ``of_partition``: they are those of a partition."""

    reason: str
    other: Name | None = None
    makes: bool = False
    ends: bool = False
    comes: bool = False
    event: str = ""
    of_partition: bool = False


@dataclass(frozen=True, slots=True)
class Cascade:
    """Rows will change together with those of another table."""


@dataclass(frozen=True, slots=True)
class MakesSequence:
    """It is a sequence of MariaDB, not a table."""


@dataclass(frozen=True, slots=True)
class Versioning:
    """The table's history is stored from now on."""


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
    | SetDefault
    | Cascade
    | MakesSequence
    | Versioning
    | Unread
)
