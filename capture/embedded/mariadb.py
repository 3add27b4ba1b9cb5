"""Embedded MariaDB: with a self-describing row binlog, from the machine's own package ``mariadb-server``.

It chooses port and password once per directory, runs as an unprivileged user if we are root (MariaDB refuses root),
listens on one address (default 127.0.0.1), and is ready when its user can log in. The machine's option files are not
read. Leftovers of a killed run (a partial data directory) are removed at the start; InnoDB recovers the rest.
"""

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import pymysql
from pymysql.constants import CR

from capture.embedded import children
from capture.embedded.part import EmbeddedDatabase
from capture.errors import EmbeddedError

USER = "weir"
_CONNECT_TIMEOUT_S = 5
#: Debian installs servers where only root's PATH looks
_PATH_EXTRA = "/usr/sbin:/usr/local/sbin:/usr/libexec"

_SETTINGS = {
    "log_bin": "binlog",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "gtid_strict_mode": "ON",
    "character_set_server": "utf8mb4",
    "skip_name_resolve": "ON",
    # Java, Python and MariaDB share one small machine here
    "innodb_buffer_pool_size": "256M",
    "innodb_log_file_size": "256M",
    "performance_schema": "OFF",
}
_NO_FSYNC = {"innodb_flush_log_at_trx_commit": "2", "sync_binlog": "0", "innodb_doublewrite": "OFF"}


def tool(name: str) -> Path:
    """Return the path of one of MariaDB's programs: mariadbd, mariadb-binlog.

    :raises EmbeddedError: it is not installed.
    """
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_PATH_EXTRA}")
    if found is None:
        raise EmbeddedError(f"no {name} on this machine; apt-get install mariadb-server (or your system's package)")
    return Path(found)


class Session(pymysql.connections.Connection):  # type: ignore[misc] # it has no types
    """A session on this machine, through the server's Unix socket."""

    def connect(self, sock: socket.socket | None = None) -> None:
        """PyMySQL's own leaves the socket open where nobody listens."""
        with contextlib.ExitStack() as stack:
            if sock is None:
                sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                sock.settimeout(self.connect_timeout)
                try:
                    sock.connect(self.unix_socket)
                except OSError as error:
                    raise pymysql.err.OperationalError(CR.CR_CONN_HOST_ERROR, str(error)) from error
            self._secure = True
            super().connect(sock)
            stack.pop_all()


class EmbeddedMariaDB(EmbeddedDatabase):
    """One MariaDB below ``directory``; see ``EmbeddedDatabase``. Its binlog files are in ``data_directory``.

    ``settings``: server variables that differ from the defaults above.
    """

    name = "MariaDB"
    log_name = "mariadb.log"
    sockets_prefix = "weir-my-"
    defaults: ClassVar[Mapping[str, str]] = _SETTINGS
    #: for servers that live as long as a test: the log is small, since there are many of them
    small: ClassVar[Mapping[str, str]] = MappingProxyType({"innodb_log_file_size": "64M"})
    session: ClassVar[type[Session]] = Session

    def __init__(
        self,
        directory: Path | str,
        *,
        unsafe_no_fsync: bool = False,
        settings: Mapping[str, str] = MappingProxyType({}),
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__(directory, host=host)
        self._settings = {**self.defaults, **({**_NO_FSYNC, **self.small} if unsafe_no_fsync else {}), **settings}

    @property
    def socket(self) -> str:
        """The path of its Unix socket, a different one in every run."""
        return f"{self.socket_directory}/mariadb.sock"

    def uri(self, database: str = "") -> str:
        return f"mysql://{USER}:{self.password}@{self._host}:{self.port}/{database}"

    def connect(self, database: str | None = None) -> Session:
        """Open a session for set-up and checks (autocommit). Its handshake takes a quarter of one with TLS."""
        return self.session(
            unix_socket=self.socket,
            ssl_disabled=True,
            user=USER,
            password=self.password,
            database=database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=_CONNECT_TIMEOUT_S,
        )

    def execute(self, sql: str, *, database: str | None = None) -> list[list[Any]]:
        """Run one statement in its own connection."""
        with contextlib.closing(self.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return [list(row) for row in cursor.fetchall()]

    def create_database(self, name: str) -> None:
        self.execute(f"CREATE DATABASE `{name}`")

    def has_database(self, name: str) -> bool:
        return [name] in self.execute("SELECT schema_name FROM information_schema.schemata")

    def _program(self) -> Path:
        return Path(self._command()[0])

    def _command(self) -> list[str | Path]:
        """Return the server's program, and the options before its settings."""
        return [tool("mariadbd"), "--no-defaults"]

    def _initialise(self, new: Path) -> None:
        """Fill the empty directory ``new`` with a server's system tables, and create our user."""
        with tempfile.NamedTemporaryFile("w", dir="/tmp", prefix="weir-my-") as statements:
            # grants are not loaded while a data directory is created; FLUSH loads them
            statements.write("FLUSH PRIVILEGES;\n")
            statements.write(f"CREATE USER {USER}@'%' IDENTIFIED BY '{self.password}';\n")
            statements.write(f"GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION;\n")
            statements.flush()
            children.give(Path(statements.name), self._user)
            command: list[str | Path] = [tool("mariadb-install-db"), "--no-defaults", f"--datadir={new}"]
            # root only through the socket, only as the system's root: no account without a password
            command += ["--auth-root-authentication-method=socket", "--skip-test-db", "--skip-log-bin"]
            command += [f"--extra-file={statements.name}", f"--tmpdir={self.socket_directory}"]
            self._run(command)

    def _launch(self) -> None:
        settings = {
            "server_id": str(self.port),
            **self._settings,
            "datadir": str(self.data_directory),
            "port": str(self.port),
            "bind_address": self._host,
            "socket": self.socket,
            "pid_file": f"{self.socket_directory}/mariadb.pid",
            # a starting server removes the temporary tables of all others in the same directory
            "tmpdir": self.socket_directory,
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
