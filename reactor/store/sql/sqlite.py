"""SQLite: a store for the captures of one machine, in one file.

The file is in WAL mode with ``synchronous=FULL``: a commit is on the disk when it returns, readers never wait for the
writer, and what a killed process had begun is undone by whoever opens the file next.

The clock of leases is the machine's monotonic one, which is the clock of sessions, too
(``reactor.membership.session``). All processes of one boot share it, nobody can set it, and a suspended machine does
not spend it; the time of day has none of this. It starts over with each boot, so the file names the boot (and the
kernel's time namespace) of its times.
"""

import os
import secrets
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from reactor import files
from reactor.errors import StoreError, StoreFullError, StoreUnreachableError
from reactor.store.sql import views
from reactor.store.sql.database import Query, Row
from reactor.store.sql.logic import FORMAT

#: file systems that other machines use, too: there WAL's shared memory shows each machine another state
#: (https://www.sqlite.org/wal.html, "all processes using a database must be on the same host computer")
_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "afs", "lustre", "gpfs", "gfs2", "ocfs2", "beegfs", "glusterfs"}
)
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS weir_store (
        id INTEGER PRIMARY KEY CHECK (id = 1), format INTEGER NOT NULL, revision INTEGER NOT NULL,
        compacted INTEGER NOT NULL, mark INTEGER NOT NULL, clock TEXT NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS weir_key (
        name TEXT PRIMARY KEY, value BLOB NOT NULL, created INTEGER NOT NULL, modified INTEGER NOT NULL,
        lease INTEGER NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS weir_key_lease ON weir_key (lease) WHERE lease <> 0",
    """CREATE TABLE IF NOT EXISTS weir_lease (
        id INTEGER PRIMARY KEY, ttl_ms INTEGER NOT NULL, deadline INTEGER NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS weir_lease_deadline ON weir_lease (deadline)",
    """CREATE TABLE IF NOT EXISTS weir_change (
        revision INTEGER NOT NULL, place INTEGER NOT NULL, mark INTEGER NOT NULL, name TEXT NOT NULL, value BLOB,
        created INTEGER NOT NULL, lease INTEGER NOT NULL, PRIMARY KEY (revision, place))""",
    "INSERT OR IGNORE INTO weir_store VALUES (1, {format}, 1, 0, 0, weir_clock())",
    "CREATE TABLE IF NOT EXISTS weir_lineage (number INTEGER PRIMARY KEY, id INTEGER NOT NULL, since INTEGER NOT NULL)",
    "INSERT OR IGNORE INTO weir_lineage SELECT 1, {lineage}, revision FROM weir_store",
)


@dataclass(frozen=True, slots=True)
class Clock:
    """``now``: seconds since any moment. ``name``: another one where that moment is another."""

    name: str
    now: Callable[[], float]


class SqliteDatabase:
    """One connection to the file at ``path``, which is created if there is none.

    ``busy_s``: how long a transaction waits for those of others.

    :raises StoreError: the file cannot be used; the text says why.
    """

    def __init__(self, path: Path, *, busy_s: float, clock: Clock | None = None) -> None:
        self.name = f"SQLite file {path}"
        self._path = path
        _check_place(path)
        times = clock or machine_clock()
        with self._translated():
            _create(path)
            self._connection = sqlite3.connect(
                path, timeout=busy_s, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            self._file = files.identity(path)
        try:
            with self._translated():
                self._connection.create_function("weir_now", 0, lambda: int(times.now() * 1000))
                self._connection.create_function("weir_clock", 0, lambda: times.name)
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    @contextmanager
    def writing(self, is_given_up: Callable[[], bool]) -> Iterator["_Statements"]:
        self._refuse_replaced()
        with self._transaction("BEGIN IMMEDIATE") as statements:
            yield statements
            if is_given_up():
                raise StoreUnreachableError(f"{self.name}: the caller has gone; nothing was written")

    @contextmanager
    def reading(self) -> Iterator["_Statements"]:
        self._refuse_replaced()
        with self._transaction("BEGIN") as statements:
            yield statements

    def close(self) -> None:
        self._connection.close()

    def _prepare(self) -> None:
        execute = self._connection.execute
        if execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise StoreError(f"{self.name} cannot be in WAL mode here; choose a file on a disk of this machine")
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA fullfsync = ON")  # what fsync should do, on macOS
        execute("PRAGMA checkpoint_fullfsync = ON")
        with self._transaction("BEGIN"):
            has_store = execute("SELECT 1 FROM sqlite_schema WHERE name = 'weir_lineage'").fetchone()
        if not has_store:
            with self._transaction("BEGIN IMMEDIATE"):
                lineage = secrets.randbits(62)
                for statement in _SCHEMA:
                    execute(statement.format(format=FORMAT, lineage=lineage))
        found = execute("SELECT format FROM weir_store").fetchone()
        if found is None or found[0] != FORMAT:
            raise StoreError(f"{self.name} has a format that this version does not know; use the version that wrote it")
        self._show()

    def _show(self) -> None:
        """Create the views, or replace those of an older version."""
        execute = self._connection.execute
        has_views = execute("SELECT 1 FROM sqlite_schema WHERE name = 'weir_views'").fetchone()
        if has_views and execute(views.READ_VERSION).fetchone()[0] >= views.VERSION:
            return
        with self._transaction("BEGIN IMMEDIATE"):
            for statement in (*views.drops(), *views.statements(views.SQLITE)):
                execute(statement)

    def _refuse_replaced(self) -> None:
        """A connection stays with its file, which nobody else sees if that was removed or replaced by a backup.

        :raises StoreUnreachableError: it was; another connection shows what the store lacks since.
        """
        with self._translated():
            if files.identity(self._path) != self._file:
                raise StoreUnreachableError(f"{self.name} was removed or replaced; it is opened again")

    @contextmanager
    def _transaction(self, begin: str) -> Iterator["_Statements"]:
        with self._translated():
            self._connection.execute(begin)
            try:
                yield _Statements(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    with suppress(sqlite3.Error):  # the first error says more
                        self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise _translated(error, self.name) from error


class _Statements:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def read(self, *queries: Query) -> list[list[Row]]:
        return [self._connection.execute(_sql(query.sql), query.parameters).fetchall() for query in queries]

    def write(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        if rows:
            self._connection.executemany(_sql(sql), rows)

    def announce(self, revision: int) -> None:
        """SQLite has no way to: other processes look (``reactor.store.sql.pulse``)."""


@cache
def machine_clock() -> Clock:
    """:raises StoreError: the system does not name its boot."""
    return Clock(_boot(), time.monotonic)


def _boot() -> str:
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        raise StoreError(
            f"the boot's id cannot be read ({error}), so leases in SQLite have no clock; use etcd"
        ) from error
    with suppress(OSError):
        boot += f" {os.readlink('/proc/self/ns/time')}"
    return boot


def _check_place(path: Path) -> None:
    """:raises StoreError: there is no such directory, or other machines use it, too."""
    if not path.parent.is_dir():
        raise StoreError(f"{path.parent} is no directory; create it, or name another file for the store")
    kind = _file_system(path.parent.resolve())
    if kind.removeprefix("fuse.") in _NETWORK or kind == "fuse.sshfs":
        raise StoreError(
            f"{path} is on a network ({kind}), where SQLite is not safe; use a local disk, or another store"
        )


def _file_system(directory: Path) -> str:
    """Return the kind of file system that ``directory`` is on; empty where the system does not say."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""
    found = ("", "")
    for line in mounts.splitlines():
        before, _, behind = line.partition(" - ")
        point = before.split(" ")[4].encode().decode("unicode_escape")
        # of two mounts on one point, the later one hides the earlier
        if directory.is_relative_to(point) and len(point) >= len(found[0]):
            found = point, behind.split(" ")[0]
    return found[1]


def _create(path: Path) -> None:
    """Readable by its owner only, as are the files that SQLite adds: it gives them the same permissions."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _sql(sql: str) -> str:
    return sql.replace("{now}", "weir_now()").replace("{clock}", "weir_clock()")


def _translated(error: sqlite3.Error | OSError, name: str) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnreachableError(f"{name} is locked by another process for too long; see whether one was stopped")
    if code == sqlite3.SQLITE_FULL:
        return StoreFullError(f"{name} cannot grow: the disk is full; make room")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreError(f"{name} is damaged, or no store ({error}); restore it from a backup, or name another file")
    if code == sqlite3.SQLITE_IOERR:
        return StoreUnreachableError(f"{name} failed: {error}; see the disk")
    return StoreError(f"{name} failed: {error}; see that this user may write the file and its directory")
