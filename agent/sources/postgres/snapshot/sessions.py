"""Sessions of a snapshot: kept for the next use, since opening one takes longer than most questions about a table.

A session keeps the locks of the tables that its transaction has read, and a statement that changes such a table would
wait. So each use ends with a rollback to a savepoint, which releases them; the snapshot stays.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from queue import Empty, SimpleQueue

from agent.sources.postgres.server.connection import Connection
from agent.sources.postgres.snapshot.rows import session


class SnapshotSessions:
    """Sessions under one exported snapshot, for any thread."""

    def __init__(self, source: str, snapshot: str) -> None:
        self._source = source
        self._snapshot = snapshot
        self._free: SimpleQueue[tuple[Connection, ExitStack]] = SimpleQueue()

    @contextmanager
    def use(self) -> Iterator[Connection]:
        """Yield a session that nobody else uses meanwhile. An error closes it.

        :raises SourceError: the snapshot is gone, or the source failed.
        """
        connection, stack = self._taken()
        try:
            yield connection
            connection.query("ROLLBACK TO SAVEPOINT weir_use")
        except BaseException:
            stack.close()
            raise
        self._free.put((connection, stack))

    def close(self) -> None:
        """Close the sessions that nobody uses."""
        while (one := self._next()) is not None:
            one[1].close()

    def _taken(self) -> tuple[Connection, ExitStack]:
        if (one := self._next()) is not None:
            return one
        with ExitStack() as stack:
            connection = stack.enter_context(session(self._source, self._snapshot))
            connection.query("SAVEPOINT weir_use")
            return connection, stack.pop_all()

    def _next(self) -> tuple[Connection, ExitStack] | None:
        try:
            return self._free.get_nowait()
        except Empty:
            return None
