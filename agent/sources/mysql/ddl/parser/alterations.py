"""Alterations: what the parts of one ALTER TABLE, or of a CREATE TABLE, do to columns, keys, name or rows.

A part that is not understood becomes ``Unread``: it costs nothing but itself until somebody has to know what it does.
"""

from dataclasses import dataclass
from typing import Final

from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.parser.definitions import Definition

PRIMARY: Final = "PRIMARY"


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
