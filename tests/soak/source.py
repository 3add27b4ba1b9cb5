"""Source of a soak: the operations that the soak needs of a database, whichever product it is."""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

#: canonical values of one row
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """``type``: as the catalog spells it, in lower case. ``is_key``: part of the primary key."""

    name: str
    type: str
    is_key: bool = False
    is_nullable: bool = True
    is_generated: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table as the catalog has it now. ``id``: Weir's, 0 if only Weir knows it."""

    name: str
    columns: tuple[Column, ...]
    id: int = 0

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.is_key)


class Session(Protocol):
    """One connection of a writer."""

    def execute(self, sql: str) -> None:
        """:raises StatementRefused: the server refused it; the session remains usable."""
        ...

    def begin(self) -> None: ...

    def end(self, *, commit: bool) -> None: ...


class StatementRefused(Exception):
    """The server refused a random statement, which is a valid outcome."""


class Source(Protocol):
    """One server with one database of random tables."""

    name: str
    database: str
    #: inserts name every column: a default would not be in the log
    inserts_all: bool

    @property
    def uri(self) -> str: ...

    def config(self, feed: str) -> Mapping[str, object]:
        """Return the changefeed configuration for this source."""
        ...

    def start(self) -> None: ...

    def restart(self) -> None: ...

    def stop(self) -> None: ...

    def session(self, rng: random.Random) -> AbstractContextManager[Session]: ...

    def tables(self) -> Sequence[Table]: ...

    def touch(self, table: Table) -> bool:
        """Change a row of ``table``, so that the log declares the table's current schema. Return False if it has no
        row."""
        ...

    def rows(self, table: Table) -> Iterator[Row]:
        """Yield all rows of a table in canonical form."""
        ...

    def canonical(self, column: Column, stored: Any) -> Any:
        """Convert a value of the sink to the form of ``rows``."""
        ...

    def schema_change(self, rng: random.Random, tables: Sequence[Table], name: str) -> str:
        """Return a random statement; ``name``: of the table that it may create."""
        ...

    def insert(self, rng: random.Random, table: Table, columns: Sequence[Column], values: str) -> str:
        """Return a statement that inserts rows, or does something about a row of the same key."""
        ...

    def value(self, rng: random.Random, column: Column) -> str:
        """Return a random literal for a column."""
        ...

    def quote(self, name: str) -> str: ...
