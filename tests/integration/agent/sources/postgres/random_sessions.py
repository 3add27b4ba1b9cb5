"""Sessions: execute random statements in overlapping transactions, with savepoints, rollbacks and two phases.

A transaction gets its number with its first write, so one that has written elsewhere long ago may alter a table last.
"""

import itertools
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any, Final, Protocol

from agent.sources.postgres.server.connection import Connection, connect
from reactor.errors import WeirError

#: a statement that waits for another session's transaction fails, and is undone
_WAIT_SQL: Final = "SET lock_timeout = '50ms'; SET statement_timeout = '2s'"
_MOST_PREPARED: Final = 2

_numbers = itertools.count()


class RandomStatements(Protocol):
    """Makes statements that fit ``table``, which those so far have left."""

    table: Any

    def undo(self) -> Callable[[], None]:
        """Return what takes back every statement from here on."""
        ...

    def next(self) -> str:
        """Return a statement, or several that belong together."""
        ...


class _Session:
    """``undo``: what takes back the schema changes of its transaction, which no other session has seen."""

    def __init__(self, uri: str) -> None:
        self.connection: Connection = connect(uri)
        self.connection.query(_WAIT_SQL)
        self.undo: Callable[[], None] | None = None
        self.is_in_transaction = False


class Sessions:
    """``done``: what was executed. ``idle``: where a transaction gets its number without a lock on the tables."""

    def __init__(self, uri: str, statements: RandomStatements, random: Random, *, idle: str, number: int = 3) -> None:
        self.done: list[str] = []
        self._statements = statements
        self._random = random
        self._idle = idle
        self._sessions = [_Session(uri) for _ in range(number)]
        self._prepared: dict[str, Callable[[], None] | None] = {}

    def close(self) -> None:
        for session in self._sessions:
            session.connection.close()

    def step(self) -> None:
        """Let one session do something."""
        random, session = self._random, self._random.choice(self._sessions)
        if self._prepared and random.random() < 0.1:
            self._end_prepared(random.choice(list(self._prepared)), session)
        elif not session.is_in_transaction:
            self._begin(session) if random.random() < 0.5 else self._execute(session)
        elif (kind := random.random()) < 0.65:
            self._execute_in(session)
        elif kind < 0.9:
            self._end(session, "COMMIT")
        elif kind < 0.95 or len(self._prepared) >= _MOST_PREPARED:
            self._end(session, "ROLLBACK")
        else:
            self._prepare(session)

    def finish(self) -> None:
        """End all transactions."""
        for session in self._sessions:
            if session.is_in_transaction:
                self._end(session, self._random.choice(("COMMIT", "COMMIT", "ROLLBACK")))
        for name in list(self._prepared):
            self._end_prepared(name, self._sessions[0])

    def _begin(self, session: _Session) -> None:
        session.undo, session.is_in_transaction = None, True
        first = self._random.choice(("", "SELECT pg_current_xact_id()", self._idle))
        self._run(session, f"BEGIN; {first}" if first else "BEGIN")

    def _execute(self, session: _Session) -> None:
        undo, statement = self._statements.undo(), self._statements.next()
        if not self._run(session, statement):
            undo()

    def _execute_in(self, session: _Session) -> None:
        """Execute behind a savepoint, and release that, keep it, or go back to it."""
        random, before = self._random, deepcopy(self._statements.table)
        undo, statement = self._statements.undo(), self._statements.next()
        session.connection.query("SAVEPOINT before")
        is_done = self._run(session, statement)
        if not is_done or random.random() < 0.1:
            undo()
            session.connection.query("ROLLBACK TO before")
            self._note(session, "ROLLBACK TO before" if is_done else "")
        elif random.random() < 0.5:
            session.connection.query("RELEASE before")
        if session.undo is None and self._statements.table != before:
            session.undo = undo

    def _end(self, session: _Session, how: str) -> None:
        undo, session.undo, session.is_in_transaction = session.undo, None, False
        if (not self._run(session, how) or how == "ROLLBACK") and undo:
            undo()

    def _prepare(self, session: _Session) -> None:
        name, undo = f"weir{next(_numbers)}", session.undo
        if self._run(session, f"PREPARE TRANSACTION '{name}'"):
            self._prepared[name], session.undo, session.is_in_transaction = undo, None, False
        else:
            self._end(session, "ROLLBACK")

    def _end_prepared(self, name: str, session: _Session) -> None:
        if session.is_in_transaction:
            return
        undo, how = self._prepared.pop(name), self._random.choice(("COMMIT", "COMMIT", "ROLLBACK"))
        self._run(session, f"{how} PREPARED '{name}'")
        if how == "ROLLBACK" and undo:
            undo()

    def _run(self, session: _Session, sql: str) -> bool:
        try:
            session.connection.query(sql)
        except WeirError:
            return False
        self._note(session, sql)
        return True

    def _note(self, session: _Session, sql: str) -> None:
        if sql:
            self.done.append(f"{self._sessions.index(session)}: {sql}")
