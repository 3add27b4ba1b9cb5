"""Database: what the store's logic needs of an SQL database: transactions, its clock, and its errors as ours.

SQL is written once, with ``?`` for parameters; ``{now}`` and ``{clock}`` stand for the dialect's expressions.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from reactor.store.port import LAST

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Query:
    sql: str
    parameters: Sequence[object] = ()


class Statements(Protocol):
    """The statements of one transaction, in their order."""

    def read(self, *queries: Query) -> list[list[Row]]:
        """Return the rows of each query, in one round trip if the database can."""
        ...

    def write(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Run the statement for each row, at the latest before the next read or the commit."""
        ...

    def announce(self, revision: int) -> None:
        """Tell waiting watches of the commit, if the database can."""
        ...


class Database(Protocol):
    """One connection, used by one thread at a time. Errors are those of ``reactor.errors``.

    ``{now}`` is the time of leases in milliseconds: it never goes back while ``{clock}`` is the same text. With another
    text, times of before mean nothing.
    """

    #: names the database in errors and logs, without secrets
    name: str

    def writing(self, is_given_up: Callable[[], bool]) -> AbstractContextManager[Statements]:
        """A transaction that no other writing one overlaps, durable when it ends; undone by an error.

        ``is_given_up``: asked right before the commit; nobody waits for the answer any longer, so it must not happen.

        :raises StoreUnreachableError: it may or may not have been committed.
        """
        ...

    def reading(self) -> AbstractContextManager[Statements]:
        """A transaction that reads one state of the database, which has all that was committed before."""
        ...

    def close(self) -> None: ...


class Announcing(Database, Protocol):
    """A database that tells of commits, so that nobody has to look for them."""

    def wait_changed(self, is_given_up: Callable[[], bool], wait_s: float) -> int | None:
        """Wait for a commit; return its revision, or None if there was none, or may have been one before."""
        ...


def after(prefix: str) -> str:
    """Return the first text that sorts after everything that begins with ``prefix``, by code points."""
    for place in range(len(prefix) - 1, -1, -1):
        if prefix[place] != LAST:
            code = ord(prefix[place]) + 1
            return prefix[:place] + chr(0xE000 if code == 0xD800 else code)  # no text has surrogates
    return LAST
