"""Lane: one connection and the thread that uses it, for one call at a time.

A caller that gives up, or whose time is over, does not wait for its thread; the lane's next call does. Its transaction
is then not committed, unless the commit had begun.
"""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from reactor.errors import StoreUnreachableError
from reactor.store.sql.database import Database

T = TypeVar("T")
D = TypeVar("D", bound=Database)


class Lane(Generic[D]):
    """``open_database`` is called by the first call, and by the next one after a lost connection; ``greet`` then looks
    at the new connection."""

    def __init__(self, open_database: Callable[[], D], greet: Callable[[D], None], *, name: str) -> None:
        self._open = open_database
        self._greet = greet
        self._name = name
        self._database: D | None = None
        self._lock = threading.Lock()
        self._limiter = CapacityLimiter(1)
        self._is_closed = False

    async def run(self, work: Callable[[D, Callable[[], bool]], T], left_s: float) -> T:
        """Return the result of ``work``, called with the connection and with what says that the caller has given up.

        :raises StoreUnreachableError: no answer within ``left_s``; it may still come to a commit that had begun.
        """
        given_up = threading.Event()
        try:
            with anyio.fail_after(left_s):
                return await to_thread.run_sync(
                    self._work, work, given_up, time.monotonic() + left_s, abandon_on_cancel=True, limiter=self._limiter
                )
        except TimeoutError:
            raise StoreUnreachableError(
                f"{self._name} gives no answer in time; see whether it runs, and what blocks it"
            ) from None
        finally:
            given_up.set()

    async def close(self) -> None:
        await to_thread.run_sync(self._close, limiter=CapacityLimiter(1))

    def _work(self, work: Callable[[D, Callable[[], bool]], T], given_up: threading.Event, deadline: float) -> T:
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise StoreUnreachableError(f"{self._name} still works for an earlier call; ask again")
        try:
            if self._is_closed:
                raise StoreUnreachableError("this store client is closed; open a new one")
            if given_up.is_set():
                raise StoreUnreachableError(f"{self._name} was not asked: the caller has gone")
            if self._database is None:
                self._database = self._opened()
            try:
                return work(self._database, given_up.is_set)
            except BaseException:
                self._drop()  # whatever state an error has left the connection in
                raise
        finally:
            self._lock.release()

    def _opened(self) -> D:
        database = self._open()
        try:
            self._greet(database)
        except BaseException:
            database.close()
            raise
        return database

    def _close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._drop()

    def _drop(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
