"""Benchmark servers: the databases that the end-to-end benchmarks replicate, each with its own tools."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Protocol, Self

from agent.ports.source import Scope
from agent.sources import open_source
from capture.embedded import EmbeddedMariaDB, EmbeddedPostgres, mariadb, postgres
from capture.embedded.mariadb import USER
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from tests.mysql_server import EmbeddedMysql

DATABASE = "bench"


class Server(Protocol):
    """A context manager: the server runs during the block."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def uri(self) -> str: ...

    def execute(self, sql: str) -> list[list[object]]: ...

    def command(self, name: str, *arguments: str) -> tuple[list[str], Mapping[str, str]]:
        """Return the command line of one of the server's tools, and the environment with its credentials."""
        ...


class PostgresServer:
    """PostgreSQL with a database of its own."""

    def __init__(self, directory: Path) -> None:
        self._part = EmbeddedPostgres(directory / "postgres")

    def __enter__(self) -> Self:
        self._part.start()
        self._part.create_database(DATABASE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._part.stop()

    @property
    def uri(self) -> str:
        return self._part.uri(DATABASE)

    def execute(self, sql: str) -> list[list[object]]:
        return self._part.execute(sql, database=DATABASE)

    def command(self, name: str, *arguments: str) -> tuple[list[str], Mapping[str, str]]:
        return [str(postgres.tool(name)), *arguments], self._part.environment(DATABASE)


class MariaServer:
    """MariaDB with a database of its own; its tool is sysbench."""

    part_class: ClassVar[type[EmbeddedMariaDB]] = EmbeddedMariaDB

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.part = self.part_class(directory / "mariadb", settings={"max_binlog_size": "1G", "sync_binlog": "0"})

    def __enter__(self) -> Self:
        self.part.start()
        self.part.create_database(DATABASE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.part.stop()

    @property
    def uri(self) -> str:
        return self.part.uri(DATABASE)

    def execute(self, sql: str) -> list[list[object]]:
        return self.part.execute(sql, database=DATABASE)

    def command(self, name: str, *arguments: str) -> tuple[list[str], Mapping[str, str]]:
        """Return sysbench, or one of the server's own clients. Passwords do not belong on a command line."""
        if name != "sysbench":
            secret = self._secret("[client]\npassword")
            return [
                str(mariadb.tool(name)),
                f"--defaults-extra-file={secret}",
                f"--socket={self.part.socket}",
                f"--user={USER}",
                *arguments,
            ], {}
        secret = self._secret("mysql-password")
        settings = {"db-driver": "mysql", "mysql-socket": self.part.socket, "mysql-user": USER, "mysql-db": DATABASE}
        options = [f"--{key}={value}" for key, value in settings.items()]
        return [name, f"--config-file={secret}", *options, *arguments], {}

    def _secret(self, setting: str) -> Path:
        secret = self._directory / "secret.cnf"
        secret.touch(mode=0o600)
        secret.write_text(f"{setting}={self.part.password}\n")
        return secret


class MysqlServer(MariaServer):
    """MySQL's own server, which only ``make mysql`` installs; it accepts MariaDB's statements."""

    part_class = EmbeddedMysql


def last_ts(server: Server) -> int:
    """Return a Ts that is not below any past commit."""
    return open_source(server.uri, Scope("bench", "bench", SinkMode.UPSERT, ChangefeedConfig())).current_ts()
