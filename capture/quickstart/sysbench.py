"""sysbench load: creates the quickstart's tables in an embedded MariaDB, and writes to them at a steady rate.

One transaction of ``oltp_write_only`` is two updates, a delete, and an insert under the deleted key.
"""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from anyio import to_thread

from capture.embedded import EmbeddedMariaDB
from capture.embedded.mariadb import USER
from capture.errors import EmbeddedError
from capture.quickstart.load import RunningLoad, running

_DATABASE = "sbtest"
_TABLES = 4
_ROWS_PER_SCALE = 100_000
_THREADS = 4


class Sysbench:
    """``capture.quickstart.load.Workload``."""

    server = "MariaDB"
    rules = (f"{_DATABASE}.*",)

    def __init__(self, directory: Path) -> None:
        self._mariadb = EmbeddedMariaDB(directory / "mariadb")
        self._log = directory / "sysbench.log"

    @property
    def uri(self) -> str:
        return self._mariadb.uri(_DATABASE)

    def start(self) -> None:
        """:raises EmbeddedError: MariaDB or sysbench is not installed, or MariaDB does not start."""
        if shutil.which("sysbench") is None:
            raise EmbeddedError("sysbench is not installed; install it (Debian: apt-get install sysbench)")
        self._mariadb.start()

    def stop(self) -> None:
        self._mariadb.stop()

    def is_prepared(self) -> bool:
        """The last table's second index is created after its rows."""
        sql = (
            "SELECT count(*) FROM information_schema.statistics "
            f"WHERE table_schema = '{_DATABASE}' AND index_name = 'k_{_TABLES}'"
        )
        return self._mariadb.execute(sql) == [[1]]

    def describe(self, scale: int) -> str:
        return f"sysbench makes {_TABLES} tables with {scale * _ROWS_PER_SCALE:,} rows"

    async def prepare(self, scale: int) -> None:
        await to_thread.run_sync(self._make_database)
        async with self._running("prepare", table_size=scale * _ROWS_PER_SCALE // _TABLES) as load:
            await load.wait()

    def _make_database(self) -> None:
        """Drop what an earlier run left that was killed while it created the tables."""
        self._mariadb.execute(f"DROP DATABASE IF EXISTS {_DATABASE}")
        self._mariadb.create_database(_DATABASE)

    @asynccontextmanager
    async def writing(self, *, seconds: int, rate: int) -> AsyncIterator[RunningLoad]:
        rows = await to_thread.run_sync(self._table_size)
        async with self._running("run", table_size=rows, time=seconds, rate=rate, threads=_THREADS) as load:
            yield load

    def _table_size(self) -> int:
        [[largest]] = self._mariadb.execute(f"SELECT max(id) FROM {_DATABASE}.sbtest1")
        return int(largest)

    @asynccontextmanager
    async def _running(self, command: str, **options: int) -> AsyncIterator[RunningLoad]:
        settings = {
            "db-driver": "mysql",
            "mysql-socket": self._mariadb.socket,
            "mysql-user": USER,
            "mysql-db": _DATABASE,
            "tables": _TABLES,
            **options,
        }
        # passwords do not belong on a command line
        with NamedTemporaryFile("w", prefix="weir-sysbench-") as file:
            file.write(f"mysql-password={self._mariadb.password}\n")
            file.flush()
            arguments = [f"--{name}={value}" for name, value in settings.items()]
            argv = ["sysbench", f"--config-file={file.name}", "oltp_write_only", *arguments, command]
            async with running(argv, self._log) as load:
                yield load
