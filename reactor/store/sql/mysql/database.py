"""Database: the store's transactions on MariaDB and MySQL.

A reading call is one round trip, a writing one two (lock and read; write and commit), each sent as one packet of
several statements. The servers do not announce commits, so watches poll
(``reactor.store.sql.pulse``).

The clock of leases is the server's. Its name is the server's start, kept in a variable of the session: after a restart,
or on another server, every lease has its whole time once more. A capture that stops within a transaction is ended by
the server (``wait_timeout``), and what it had begun is undone.
"""

import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache

import structlog
from pymysql import err
from pymysql.cursors import Cursor

from reactor.errors import StoreError, StoreUnreachableError
from reactor.store.sql import views
from reactor.store.sql.database import Query, Row
from reactor.store.sql.logic import FORMAT
from reactor.store.sql.mysql import fitness
from reactor.store.sql.mysql.session import Session, open_session, translated
from reactor.store.sql.mysql.target import Target

_NOW = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)"
_CLOCK = "@weir_clock"
#: both times are of the statement's beginning, so their difference is the second in which the server started
_SET_CLOCK = (
    "SET @weir_clock = (SELECT concat_ws(' ', @@hostname, @@port, @@server_id, UNIX_TIMESTAMP() - variable_value)"
    " FROM {status} WHERE variable_name = 'UPTIME')"
)
_STATUS = {True: "information_schema.global_status", False: "performance_schema.global_status"}
#: as text sorts by code points, spaces at the end included
_COLLATION = {True: "utf8mb4_nopad_bin", False: "utf8mb4_0900_bin"}
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS weir_store (
        id bigint PRIMARY KEY, format bigint NOT NULL, revision bigint NOT NULL, compacted bigint NOT NULL,
        mark bigint NOT NULL, clock varchar(400) NOT NULL) {options}""",
    """CREATE TABLE IF NOT EXISTS weir_key (
        name varchar(750) PRIMARY KEY, value longblob NOT NULL, created bigint NOT NULL, modified bigint NOT NULL,
        lease bigint NOT NULL, KEY weir_key_lease (lease)) {options}""",
    """CREATE TABLE IF NOT EXISTS weir_lease (
        id bigint PRIMARY KEY, ttl_ms bigint NOT NULL, deadline bigint NOT NULL,
        KEY weir_lease_deadline (deadline)) {options}""",
    """CREATE TABLE IF NOT EXISTS weir_change (
        revision bigint NOT NULL, place bigint NOT NULL, mark bigint NOT NULL, name varchar(750) NOT NULL,
        value longblob, created bigint NOT NULL, lease bigint NOT NULL, PRIMARY KEY (revision, place)) {options}""",
    "INSERT IGNORE INTO weir_store VALUES (1, {format}, 1, 0, 0, {clock})",
    """CREATE TABLE IF NOT EXISTS weir_lineage (
        number bigint PRIMARY KEY, id bigint NOT NULL, since bigint NOT NULL) {options}""",
    # the last one: where it has a row, the store is complete
    "INSERT IGNORE INTO weir_lineage SELECT 1, {lineage}, revision FROM weir_store",
)
_OPTIONS = "ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE {collation}"
_LOCK_STORE = "SELECT concat(@@global.read_only) FROM weir_store WHERE id = 1 FOR UPDATE"
_READ = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)
_LOCK_NAME = "left(concat('weir ', database()), 64)"
_NO_TABLE = 1146
#: it may not be read, or what it reads is not there
_NO_VIEW = frozenset({_NO_TABLE, 1142, 1356})
#: 1142: a kind of statement, 1356: what a view reads, 1347: the name is a table's
_NO_RIGHT = frozenset({1142, 1347, 1356})

_log = structlog.get_logger()


class MysqlDatabase:
    """One connection. ``timeout_s``: how long a transaction may take.

    :raises StoreUnreachableError: no server that can be written to answers.
    :raises StoreAuthError: user, password or privileges are refused.
    :raises StoreError: the server cannot be used; the text says why.
    """

    def __init__(self, target: Target, *, timeout_s: float) -> None:
        self.name = target.name
        self._timeout_s = timeout_s
        wait_s = max(1, math.ceil(timeout_s))
        self._write = (
            f"SET SESSION wait_timeout = {wait_s}",
            "START TRANSACTION READ WRITE",
            _LOCK_STORE,
        )
        self._session = self._opened(target, wait_s)

    @contextmanager
    def writing(self, is_given_up: Callable[[], bool]) -> Iterator["_Statements"]:
        with self._transaction(self._write, ()) as statements:
            yield statements
            if is_given_up():
                raise StoreUnreachableError(f"{self.name}: the caller has gone; nothing was written")
            statements.finish("COMMIT", "SET SESSION wait_timeout = DEFAULT")

    @contextmanager
    def reading(self) -> Iterator["_Statements"]:
        with self._transaction(_READ, ("COMMIT",)) as statements:
            yield statements

    def close(self) -> None:
        with suppress(err.Error, OSError):
            self._session.close()

    def _opened(self, target: Target, wait_s: int) -> Session:
        """Return a session with the first host that can be written to."""
        deadline = time.monotonic() + self._timeout_s
        for number, (host, port) in enumerate(target.hosts):
            left_s = max(0.5, (deadline - time.monotonic()) / (len(target.hosts) - number))
            try:
                with self._translated():
                    session = open_session(target, host, port, timeout_s=left_s)
                try:
                    with self._translated():
                        session.deadline = time.monotonic() + self._timeout_s
                        self._prepare(session, wait_s)
                except BaseException:
                    session.drop()
                    raise
            except StoreUnreachableError:
                if number == len(target.hosts) - 1:
                    raise
            else:
                return session
        raise AssertionError("a target has hosts")

    def _prepare(self, session: Session, wait_s: int) -> None:
        names = ", ".join(f"'{name}'" for name in fitness.VARIABLES)
        (found,) = _run(session, [f"SHOW GLOBAL VARIABLES WHERE variable_name IN ({names})"])
        variables = {name.lower(): value for name, value in found}
        fitness.check(self.name, variables)
        is_mariadb = fitness.is_mariadb(variables)
        modes = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION"
        _run(
            session,
            [
                f"SET SESSION sql_mode = '{modes}', innodb_lock_wait_timeout = {wait_s}, lock_wait_timeout = {wait_s}",
                "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
                _SET_CLOCK.format(status=_STATUS[is_mariadb]),
            ],
        )
        if not self._has_store(session):
            self._create(session, _COLLATION[is_mariadb], wait_s)
        if _run(session, ["SELECT format FROM weir_store"]) != [((FORMAT,),)]:
            raise StoreError(f"{self.name} has a format that this version does not know; use the version that wrote it")
        self._show(session, wait_s)

    def _has_store(self, session: Session) -> bool:
        try:
            (found,) = _run(session, ["SELECT 1 FROM weir_lineage LIMIT 1"])
        except err.ProgrammingError as error:
            if error.args[0] != _NO_TABLE:
                raise
            return False
        return bool(found)

    def _create(self, session: Session, collation: str, wait_s: int) -> None:
        """Each statement is a transaction of its own: a creation that was interrupted is repeated."""
        options = _OPTIONS.format(collation=collation)
        values = {"format": FORMAT, "clock": _CLOCK, "lineage": secrets.randbits(62), "options": options}
        with self._creating(session, wait_s):
            _run(session, [statement.format(**values) for statement in _SCHEMA])

    @contextmanager
    def _creating(self, session: Session, wait_s: int) -> Iterator[None]:
        """Nobody else creates tables or views meanwhile."""
        (((has_lock,),),) = _run(session, [f"SELECT GET_LOCK({_LOCK_NAME}, {wait_s})"])
        if not has_lock:
            raise StoreUnreachableError(f"{self.name}: another capture is creating the tables; try again")
        try:
            yield
        finally:
            _run(session, [f"SELECT RELEASE_LOCK({_LOCK_NAME})"])

    def _show(self, session: Session, wait_s: int) -> None:
        """Create the views, or replace those of an older version."""
        try:
            ((version,),) = _run(session, [views.READ_VERSION])[0]
        except err.MySQLError as error:
            if error.args[0] not in _NO_VIEW:
                raise
            version = 0
        if version >= views.VERSION:
            return
        try:
            with self._creating(session, wait_s):
                _run(session, [*views.drops(), *views.statements(views.MYSQL)])
        except err.MySQLError as error:
            if error.args[0] not in _NO_RIGHT:
                raise
            _log.info("the store's views are not created", store=self.name, reason=str(error.args[-1]))

    @contextmanager
    def _transaction(self, first: Sequence[str], last: Sequence[str]) -> Iterator["_Statements"]:
        """After an error the connection is of no use: its transaction ends with it."""
        self._session.deadline = time.monotonic() + self._timeout_s
        with self._translated():
            try:
                yield _Statements(self.name, self._session, first, last)
            except BaseException:
                self._session.drop()
                raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (err.Error, OSError) as error:
            raise translated(error, self.name) from None


class _Statements:
    """Statements wait until there is something to read, or the end. ``last``: sent with what is read, so that nothing
    can be read after it."""

    def __init__(self, name: str, session: Session, first: Sequence[str], last: Sequence[str]) -> None:
        self._name = name
        self._session = session
        self._waiting = list(first)
        self._last = last
        self._is_ended = False

    def read(self, *queries: Query) -> list[list[Row]]:
        assert not self._is_ended, "a reading transaction reads once"
        cursor = self._session.cursor()
        texts = [_text(cursor, query.sql, query.parameters) for query in queries]
        found = self._flush([*texts, *self._last])[-len(texts) - len(self._last) :]
        self._is_ended = bool(self._last)
        return [list(rows) for rows in found[: len(texts)]]

    def write(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        cursor = self._session.cursor()
        self._waiting.extend(_text(cursor, sql, row) for row in rows)

    def announce(self, revision: int) -> None:
        """Neither server has a way to: other processes look."""

    def finish(self, *last: str) -> None:
        self._flush(last)

    def _flush(self, texts: Sequence[str]) -> list[tuple[Row, ...]]:
        waiting, self._waiting = self._waiting, []
        found = _run(self._session, [*waiting, *texts])
        if _LOCK_STORE in waiting:
            locked = found[waiting.index(_LOCK_STORE)]
            if locked and fitness.is_read_only(locked[0][0]):
                raise StoreUnreachableError(f"{self._name} has become read-only; see which server is the primary")
        return found


def _run(session: Session, statements: Sequence[str]) -> list[tuple[Row, ...]]:
    """Return the rows of each statement; they are sent as one packet. The first that fails is the last."""
    found = list[tuple[Row, ...]]()
    with session.cursor() as cursor:
        cursor.execute(";".join(statements))
        found.append(tuple(cursor.fetchall()))
        while cursor.nextset():
            found.append(tuple(cursor.fetchall()))
    return found


def _text(cursor: Cursor, sql: str, parameters: Sequence[object]) -> str:
    return str(cursor.mogrify(_sql(sql), tuple(parameters)))


@cache
def _sql(sql: str) -> str:
    return sql.replace("?", "%s").replace("{now}", _NOW).replace("{clock}", _CLOCK)
