"""Meanwhile: another session does something between any two queries of ours, whichever connection they are on."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from random import Random
from threading import Lock

import pytest

from agent.sources.postgres.server.connection import Connection, connect

#: in milliseconds: what we have locked is left alone
_LOCK_MS = 20
_CHANCE = 0.3


@contextmanager
def between_queries(uri: str, step: Callable[[Connection], object], is_due: Callable[[], bool]) -> Iterator[None]:
    """Behind each of our queries, ``step`` is called with a connection of its own if ``is_due``."""
    query, is_free = Connection.query, Lock()

    with closing(connect(uri)) as own, pytest.MonkeyPatch.context() as patched:
        own.query(f"SET lock_timeout = {_LOCK_MS}")

        def interrupted(self: Connection, sql: str, *, timeout_s: float = 60) -> list[tuple[str | None, ...]]:
            try:
                return query(self, sql, timeout_s=timeout_s)
            finally:
                if self is not own and is_due() and is_free.acquire(blocking=False):
                    try:
                        step(own)
                    finally:
                        is_free.release()

        patched.setattr(Connection, "query", interrupted)
        try:
            yield
        finally:
            is_free.acquire()  # a thread of ours may be in the middle of one


@contextmanager
def meanwhile(uri: str, step: Callable[[Connection], list[str]], random: Random) -> Iterator[list[str]]:
    """Do it behind some of our queries; yield all that ``step`` has returned."""
    done: list[str] = []
    with between_queries(uri, lambda own: done.extend(step(own)), lambda: random.random() < _CHANCE):
        yield done
