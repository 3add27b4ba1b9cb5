"""pgbench load: creates the quickstart's tables in an embedded PostgreSQL, and writes to them (TPC-B) at a steady
rate."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from anyio import to_thread

from capture.embedded import EmbeddedPostgres
from capture.embedded.postgres import tool
from capture.quickstart.load import RunningLoad, running

_DATABASE = "pgbench"
_CLIENTS = 4


class Pgbench:
    """``capture.quickstart.load.Workload``. Its history table has no key."""

    server = "PostgreSQL"
    rules = ("public.pgbench_*",)

    def __init__(self, directory: Path) -> None:
        self._postgres = EmbeddedPostgres(directory / "postgres")
        self._log = directory / "pgbench.log"

    @property
    def uri(self) -> str:
        return self._postgres.uri(_DATABASE)

    def start(self) -> None:
        self._postgres.start()

    def stop(self) -> None:
        self._postgres.stop()

    def is_prepared(self) -> bool:
        if not self._postgres.has_database(_DATABASE):
            return False
        sql = "SELECT count(*) FROM pg_constraint WHERE conname = 'pgbench_accounts_pkey'"
        return self._postgres.execute(sql, database=_DATABASE) == [[1]]

    def describe(self, scale: int) -> str:
        return f"pgbench makes {scale * 100_000:,} accounts"

    async def prepare(self, scale: int) -> None:
        if not await to_thread.run_sync(self._postgres.has_database, _DATABASE):
            await to_thread.run_sync(self._postgres.create_database, _DATABASE)
        async with self._running("--initialize", "--scale", str(scale)) as load:
            await load.wait()

    def writing(self, *, seconds: int, rate: int) -> AbstractAsyncContextManager[RunningLoad]:
        # without --no-vacuum, pgbench would begin by truncating the history
        arguments = ["--no-vacuum", "--client", str(_CLIENTS), "--protocol", "prepared", "--time", str(seconds)]
        return self._running(*arguments, *(["--rate", str(rate)] if rate else []))

    def _running(self, *arguments: str) -> AbstractAsyncContextManager[RunningLoad]:
        return running([tool("pgbench"), *arguments], self._log, environment=self._postgres.environment(_DATABASE))
