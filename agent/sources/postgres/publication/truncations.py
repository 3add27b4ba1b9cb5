"""Truncations: which tables the stream has emptied, and how far it has come, for the prover beside it."""

import threading
from typing import Final

from reactor.ids import Ts

#: what is in the log is sent at once, unless the stream has to wait for memory
_WAIT_S: Final = 10.0


class Truncations:
    """Written by the stream's thread, asked by another."""

    def __init__(self) -> None:
        self._last: dict[int, Ts] = {}
        self._reached = Ts(0)
        self._moved = threading.Condition()

    def note(self, table_id: int, ts: Ts) -> None:
        """A transaction that ends at ``ts`` has emptied the table."""
        with self._moved:
            self._last[table_id] = ts

    def reach(self, ts: Ts) -> None:
        """The stream has come so far."""
        with self._moved:
            if ts > self._reached:
                self._reached = ts
                self._moved.notify_all()

    def has(self, table_id: int, *, since: Ts, upto: Ts) -> bool:
        """Whether the table was emptied behind ``since``; the stream is waited for until it has come to ``upto``."""
        with self._moved:
            self._moved.wait_for(lambda: self._last.get(table_id, 0) > since or self._reached >= upto - 1, _WAIT_S)
            return self._last.get(table_id, 0) > since
