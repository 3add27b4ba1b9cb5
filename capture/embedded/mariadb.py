"""A MariaDB with a self-describing row binlog, from the machine's own package ``mariadb-server``.

It decides port and password once per directory, runs as an unprivileged user where we are root (MariaDB refuses root),
listens on one address (127.0.0.1 unless told otherwise), and is ready when it lets its user in. No option file of the
machine is read. What an earlier, killed run left (a half-made data directory) is cleared at the start; InnoDB recovers
the rest by itself.
"""

import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar, Self

import pymysql

from capture.embedded import children, places
from capture.errors import EmbeddedError

USER = "weir"
_POLL_S = 0.05
_CONNECT_TIMEOUT_S = 5
#: Debian keeps servers where only root's PATH looks.
_PATH_EXTRA = "/usr/sbin:/usr/local/sbin:/usr/libexec"

_SETTINGS = {
    "log_bin": "binlog",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "gtid_strict_mode": "ON",
    "character_set_server": "utf8mb4",
    "skip_name_resolve": "ON",
    # Java, Python and MariaDB share one small machine here.
    "innodb_buffer_pool_size": "256M",
    "innodb_log_file_size": "256M",
    "performance_schema": "OFF",
}
_NO_FSYNC = {"innodb_flush_log_at_trx_commit": "2", "sync_binlog": "0", "innodb_doublewrite": "OFF"}


def tool(name: str) -> Path:
    """The path of one of MariaDB's programs: mariadbd, mariadb-binlog.

    :raises EmbeddedError: it is not installed.
    """
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_PATH_EXTRA}")
    if found is None:
        raise EmbeddedError(f"no {name} on this machine; apt-get install mariadb-server (or your system's package)")
    return Path(found)


class EmbeddedMariaDB:
    """One MariaDB below ``directory``. Blocking calls; a context manager starts and stops it.

    ``settings``: server variables that differ from the defaults above. ``host``: the address of this machine on which
    it is reached.
    """

    defaults: ClassVar[Mapping[str, str]] = _SETTINGS

    def __init__(
        self,
        directory: Path | str,
        *,
        unsafe_no_fsync: bool = False,
        settings: Mapping[str, str] = MappingProxyType({}),
        host: str = "127.0.0.1",
    ) -> None:
        self._directory = Path(directory).absolute()
        self._host = host
        self._settings = {**self.defaults, **(_NO_FSYNC if unsafe_no_fsync else {}), **settings}
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
    def socket(self) -> str:
        """The path of its Unix socket, another one in every run."""
        return f"{self._state['sockets']}/mariadb.sock"

    @property
    def data_directory(self) -> Path:
        """Where its binlog files lie."""
        return self._directory / "data"

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def uri(self, database: str = "") -> str:
        return f"mysql://{USER}:{self.password}@{self._host}:{self.port}/{database}"

    def connect(self, database: str | None = None) -> pymysql.connections.Connection:
        """A session for set-up and checks (autocommit)."""
        return pymysql.connect(
            host=self._host,
            port=self.port,
            user=USER,
            password=self.password,
            database=database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT_S,
        )

    def execute(self, sql: str, *, database: str | None = None) -> list[list[Any]]:
        """Run one statement in a connection of its own."""
        with contextlib.closing(self.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return [list(row) for row in cursor.fetchall()]

    def create_database(self, name: str) -> None:
        self.execute(f"CREATE DATABASE `{name}`")

    def has_database(self, name: str) -> bool:
        return [name] in self.execute("SELECT schema_name FROM information_schema.schemata")

    def start(self, *, timeout_s: float = 60.0) -> None:
        """Start and wait until it accepts connections.

        :raises EmbeddedError: it does not; the text names its log.
        """
        deadline = time.monotonic() + timeout_s
        self._prepare()
        places.require_free(self.port, who=f"embedded MariaDB in {self._directory}")
        try:
            self._launch()
            while not self._is_ready():
                self._check_alive(deadline)
                time.sleep(_POLL_S)
        except BaseException:
            self.stop()
            raise

    def stop(self, *, timeout_s: float = 20.0) -> None:
        if self._child is not None:
            children.stop(self._child, signal.SIGTERM, timeout_s=timeout_s)
            self._child = None
        if "sockets" in self._state:
            shutil.rmtree(str(self._state["sockets"]), ignore_errors=True)

    def kill(self) -> None:
        """As ``kill -9`` does: for tests of what survives it."""
        if self._child is not None:
            children.stop(self._child)
            self._child = None

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def _log(self) -> Path:
        return self._directory / "mariadb.log"

    def _prepare(self) -> None:
        program = self._command()[0]
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._user is not None:
            reachable = children.is_reachable_by_all(Path(program)) and children.is_reachable_by_all(
                self.data_directory
            )
            self._reach = not reachable
        state_file = self._directory / "state.json"
        self._state = places.load_state(state_file) or {"port": places.free_port(), "password": secrets.token_hex(16)}
        if "sockets" in self._state:
            shutil.rmtree(str(self._state["sockets"]), ignore_errors=True)
        # Not below our directory: a socket's path may have 107 bytes only.
        sockets = Path(tempfile.mkdtemp(prefix="weir-my-", dir="/tmp"))
        children.give(sockets, self._user)
        self._state["sockets"] = str(sockets)
        places.save_state(state_file, self._state)
        if not self.data_directory.exists():
            # beside its place, then moved there: a killed run leaves no half-made one
            new = self._directory / "data.new"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir(mode=0o700)
            children.give(new, self._user)
            self._initialise(new)
            new.rename(self.data_directory)

    def _command(self) -> list[str | Path]:
        """The server's program, and what it is told before its settings."""
        return [tool("mariadbd"), "--no-defaults"]

    def _initialise(self, new: Path) -> None:
        """Fill the empty directory ``new`` with a server's system tables, and make our user."""
        with tempfile.NamedTemporaryFile("w", dir="/tmp", prefix="weir-my-") as statements:
            # grants are not loaded while a data directory is made; FLUSH loads them
            statements.write("FLUSH PRIVILEGES;\n")
            statements.write(f"CREATE USER {USER}@'%' IDENTIFIED BY '{self.password}';\n")
            statements.write(f"GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION;\n")
            statements.flush()
            children.give(Path(statements.name), self._user)
            command: list[str | Path] = [tool("mariadb-install-db"), "--no-defaults", f"--datadir={new}"]
            # root only through the socket, only as the system's root: no account without a password
            command += ["--auth-root-authentication-method=socket", "--skip-test-db", "--skip-log-bin"]
            command += [f"--extra-file={statements.name}", f"--tmpdir={self._state['sockets']}"]
            with self._log.open("ab") as output:
                child = children.spawn(command, output=output, user=self._user, reach=self._reach)
            if (code := child.wait(120)) != 0:
                raise EmbeddedError(f"embedded MariaDB's mariadb-install-db ended with code {code}; see {self._log}")

    def _launch(self) -> None:
        settings = {
            "server_id": str(self.port),
            **self._settings,
            "datadir": str(self.data_directory),
            "port": str(self.port),
            "bind_address": self._host,
            "socket": self.socket,
            "pid_file": f"{self._state['sockets']}/mariadb.pid",
            # a server that starts removes the temporary tables of all others in the same directory
            "tmpdir": str(self._state["sockets"]),
        }
        command = [*self._command(), *(f"--{name}={value}" for name, value in settings.items())]
        with self._log.open("ab") as output:
            self._child = children.spawn(command, output=output, user=self._user, reach=self._reach)

    def _is_ready(self) -> bool:
        try:
            self.connect().close()
        except pymysql.err.OperationalError:
            return False
        return True

    def _check_alive(self, deadline: float) -> None:
        assert self._child is not None
        if (code := self._child.poll()) is not None:
            raise EmbeddedError(f"embedded MariaDB ended with code {code} at its start; see {self._log}")
        if time.monotonic() > deadline:
            raise EmbeddedError(f"embedded MariaDB is not ready in time; see {self._log}")
