"""pgbench as a child process: makes the tables of the quickstart, and writes to them (TPC-B) at a steady rate."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread

from capture.embedded import EmbeddedPostgres, children
from capture.embedded.postgres import tool
from capture.errors import EmbeddedError

DATABASE = "pgbench"
_POLL_S = 0.05
_CLIENTS = 4
_STOP_TIMEOUT_S = 5.0


class Load:
    """pgbench on one embedded PostgreSQL. ``log`` takes what it prints."""

    def __init__(self, postgres: EmbeddedPostgres, *, log: Path) -> None:
        self._postgres = postgres
        self._log = log

    def is_prepared(self) -> bool:
        """The last thing that ``pgbench -i`` makes is there."""
        if not self._postgres.has_database(DATABASE):
            return False
        sql = "SELECT count(*) FROM pg_constraint WHERE conname = 'pgbench_accounts_pkey'"
        return self._postgres.execute(sql, database=DATABASE) == [[1]]

    async def prepare(self, scale: int) -> None:
        """Make the tables: 100,000 accounts for each ``scale``.

        :raises EmbeddedError: pgbench failed; the text names its log.
        """
        if not await to_thread.run_sync(self._postgres.has_database, DATABASE):
            await to_thread.run_sync(self._postgres.create_database, DATABASE)
        async with self._running("--initialize", "--scale", str(scale)) as load:
            await load.wait()

    @asynccontextmanager
    async def writing(self, *, seconds: int, rate: int) -> AsyncIterator["RunningLoad"]:
        """Write for ``seconds``, ``rate`` transactions (four changes each) a second; 0: as fast as it goes."""
        # Without --no-vacuum pgbench would begin by truncating the history.
        arguments = ["--no-vacuum", "--client", str(_CLIENTS), "--protocol", "prepared", "--time", str(seconds)]
        arguments += ["--rate", str(rate)] if rate else []
        async with self._running(*arguments) as load:
            yield load

    @asynccontextmanager
    async def _running(self, *arguments: str) -> AsyncIterator["RunningLoad"]:
        with self._log.open("ab") as output:
            child = children.spawn(
                [tool("pgbench"), *arguments], output=output, environment=self._postgres.environment(DATABASE)
            )
        try:
            yield RunningLoad(child, self._log)
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(partial(children.stop, child, signal.SIGTERM, timeout_s=_STOP_TIMEOUT_S))


class RunningLoad:
    """A pgbench that runs."""

    def __init__(self, child: children.Child, log: Path) -> None:
        self._child = child
        self._log = log

    def is_running(self) -> bool:
        """:raises EmbeddedError: it has failed."""
        code = self._child.poll()
        if code:
            raise EmbeddedError(f"pgbench ended with code {code}; see {self._log}")
        return code is None

    async def wait(self) -> None:
        while self.is_running():  # noqa: ASYNC110 - a child's end is no event of the loop
            await anyio.sleep(_POLL_S)
