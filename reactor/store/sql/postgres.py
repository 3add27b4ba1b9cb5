"""PostgreSQL: a store for clusters whose team has a PostgreSQL and no etcd, over psycopg.

A reading call is one round trip, a writing one two (lock and read; write and commit), each sent as one pipeline.
Commits ``NOTIFY`` the watches. The URL is libpq's: with several hosts, or another address for the same name, it follows
a fail-over; only a server that can be written to is used.

The clock of leases is the server's, so clocks of captures do not matter. The server's start names it: after a restart,
or on another server, every lease has its whole time once more. A capture that stops within a transaction is
ended by the server (``idle_in_transaction_session_timeout``), and what it had begun is undone.
"""

import logging
import math
import os
import re
import secrets
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import psycopg
import structlog
from psycopg import conninfo, errors

from reactor.errors import StoreAuthError, StoreError, StoreFullError, StoreUnreachableError
from reactor.store.sql import views
from reactor.store.sql.database import Query, Row
from reactor.store.sql.logic import FORMAT

CHANNEL = "weir_store"
#: ``hashtext`` of nothing in particular: the lock under which the tables are created
_LOCK = 0x7765_6972
_TABLES = ("weir_store", "weir_key", "weir_lease", "weir_change", "weir_lineage")
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS weir_store (
        id bigint PRIMARY KEY CHECK (id = 1), format bigint NOT NULL, revision bigint NOT NULL,
        compacted bigint NOT NULL, mark bigint NOT NULL, clock text NOT NULL) WITH (fillfactor = 50)""",
    """CREATE TABLE IF NOT EXISTS weir_key (
        name text COLLATE "C" PRIMARY KEY, value bytea NOT NULL, created bigint NOT NULL, modified bigint NOT NULL,
        lease bigint NOT NULL) WITH (fillfactor = 80)""",
    "CREATE INDEX IF NOT EXISTS weir_key_lease ON weir_key (lease) WHERE lease <> 0",
    "CREATE TABLE IF NOT EXISTS weir_lease (id bigint PRIMARY KEY, ttl_ms bigint NOT NULL, deadline bigint NOT NULL)",
    """CREATE TABLE IF NOT EXISTS weir_change (
        revision bigint NOT NULL, place bigint NOT NULL, mark bigint NOT NULL, name text COLLATE "C" NOT NULL,
        value bytea, created bigint NOT NULL, lease bigint NOT NULL, PRIMARY KEY (revision, place))""",
    "INSERT INTO weir_store VALUES (1, {format}, 1, 0, 0, {clock}) ON CONFLICT DO NOTHING",
    "CREATE TABLE IF NOT EXISTS weir_lineage (number bigint PRIMARY KEY, id bigint NOT NULL, since bigint NOT NULL)",
    "INSERT INTO weir_lineage SELECT 1, {lineage}, revision FROM weir_store ON CONFLICT DO NOTHING",
)
_NOW = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_CLOCK = "extract(epoch FROM pg_postmaster_start_time())::text"
_WRITE = Query("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
_READ = Query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
_COMMIT = Query("COMMIT")
_LOCK_STORE = Query("SELECT id FROM weir_store WHERE id = 1 FOR UPDATE")
#: names of the store in statements; not the channel, which is a string
_NAMES = re.compile(rf"(?<![\w'])(?:{'|'.join((*_TABLES, *views.NAMES, 'weir_json'))})\b")
#: modes in which libpq uses nothing but TLS
_ENCRYPTED = ("require", "verify-ca", "verify-full")
#: how soon a listener notices that nobody waits for it any longer
_LISTEN_STEP_S = 0.05
#: of a server that went away, or refuses for now: another attempt may succeed, there or elsewhere
_PASSING = (
    errors.OperationalError,
    errors.QueryCanceled,
    errors.LockNotAvailable,
    errors.ReadOnlySqlTransaction,
    errors.IdleInTransactionSessionTimeout,
    errors.SerializationFailure,
    errors.InterfaceError,
    TimeoutError,
)


_log = structlog.get_logger()
# it warns of errors that follow from one that is raised
logging.getLogger("psycopg").setLevel(logging.ERROR)


class _Connection(psycopg.Connection[Row]):
    """A connection that does not wait for its server past ``deadline`` (of the monotonic clock)."""

    deadline = math.inf

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        left_s = self.deadline - time.monotonic()
        try:
            return super().wait(gen, interval, left_s if timeout is None else min(left_s, timeout))
        except Exception:
            if time.monotonic() >= self.deadline:
                raise TimeoutError("no answer in time") from None
            raise


class PostgresDatabase:
    """One connection. ``timeout_s``: how long a transaction may take.

    :raises StoreUnreachableError: no server that can be written to answers.
    :raises StoreAuthError: user, password or privileges are refused.
    :raises StoreError: the server cannot be used; the text says why.
    """

    def __init__(self, uri: str, *, timeout_s: float) -> None:
        self.name = name_of(uri)
        self._timeout_s = timeout_s
        self._is_listening = False
        timeout_ms = int(timeout_s * 1000)
        options: dict[str, Any] = {
            "connect_timeout": max(2, math.ceil(timeout_s)),
            "tcp_user_timeout": timeout_ms,
            "keepalives_idle": max(1, int(timeout_s)),
            "application_name": "weir",
            "target_session_attrs": "read-write",
            "client_encoding": "UTF8",
        }
        if not _is_line_safe(uri):
            options["require_auth"] = "!password"
        with self._translated():
            self._connection = _Connection.connect(uri, autocommit=True, **options)
        try:
            with self._translated():
                self._prepare(timeout_ms)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def writing(self, is_given_up: Callable[[], bool]) -> Iterator["_Statements"]:
        with self._transaction(_WRITE, _LOCK_STORE) as statements:
            yield statements
            if is_given_up():
                raise StoreUnreachableError(f"{self.name}: the caller has gone; nothing was written")
            statements.finish()

    @contextmanager
    def reading(self) -> Iterator["_Statements"]:
        with self._transaction(_READ) as statements:
            yield statements
            statements.finish()

    def wait_changed(self, is_given_up: Callable[[], bool], wait_s: float) -> int | None:
        """Wait for a commit; return its revision, or None if there was none, or may have been one before."""
        with self._translated():
            self._connection.deadline = time.monotonic() + wait_s + self._timeout_s
            if not self._is_listening:
                self._connection.execute(f"LISTEN {CHANNEL}".encode())
                self._is_listening = True
                return None
            until = time.monotonic() + wait_s
            socket = select.poll()  # many times cheaper than to let psycopg wait in steps
            socket.register(self._connection.fileno(), select.POLLIN)
            while not is_given_up() and (left_s := until - time.monotonic()) > 0:
                if not socket.poll(1000 * min(left_s, _LISTEN_STEP_S)):
                    continue
                if found := list(self._connection.notifies(timeout=0)):
                    return max(int(each.payload) for each in found)
        return None

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()

    def _prepare(self, timeout_ms: int) -> None:
        execute = self._connection.execute
        for setting in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            execute("SELECT pg_catalog.set_config(%s, %s, false)", [setting, str(timeout_ms)])
        # a commit that the server might forget would be a decision that never happened
        if execute("SHOW synchronous_commit").fetchone() == ("off",):
            execute("SET synchronous_commit = on")
        self._schema = self._choose_schema()
        if not self._has("weir_lineage"):
            with self._connection.transaction():
                execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
                values = {"format": FORMAT, "clock": "{clock}", "lineage": secrets.randbits(62)}
                for statement in _SCHEMA:
                    execute(_sql(statement.format(**values), self._schema))
        found = execute(_sql("SELECT format FROM weir_store", self._schema)).fetchone()
        if found != (FORMAT,):
            raise StoreError(f"{self.name} has a format that this version does not know; use the version that wrote it")
        self._show()

    def _choose_schema(self) -> str:
        """Return the schema that has the store, or that its tables are created in, quoted. The session searches none
        from then on: where others may create functions and operators in it (``public`` before PostgreSQL 15), theirs
        would be called with the rights of this user."""
        execute = self._connection.execute
        found = execute("SELECT pg_catalog.to_regclass('weir_lineage')::oid::bigint, pg_catalog.current_schema()")
        oid, current = found.fetchone() or (None, None)
        execute("SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false)")
        if oid is None and current is None:
            raise StoreError(
                f"{self.name} has no schema in the search path of this user; create one, or set search_path"
            )
        row = execute(
            "SELECT quote_ident(coalesce((SELECT nspname FROM pg_namespace WHERE oid ="
            " (SELECT relnamespace FROM pg_class WHERE oid = %s::bigint::oid))::text, %s))",
            [oid, current],
        ).fetchone()
        assert row is not None  # there is no FROM
        if "%" in row[0]:  # psycopg takes it for a parameter
            raise StoreError(f"{self.name} has its tables in schema {row[0]}; use a schema without % in its name")
        return str(row[0])

    def _has(self, name: str) -> bool:
        found = self._connection.execute("SELECT to_regclass(%s)", [f"{self._schema}.{name}"]).fetchone()
        return found != (None,)

    def _show(self) -> None:
        """Create the views, or replace those of an older version."""
        execute = self._connection.execute
        if self._has("weir_views"):
            found = execute(_sql(views.READ_VERSION, self._schema)).fetchone()
            if found is not None and found[0] >= views.VERSION:
                return
        try:
            with self._connection.transaction():
                execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
                for statement in (*views.drops(), *views.statements(views.POSTGRES)):
                    execute(_sql(statement, self._schema))
        except (errors.InsufficientPrivilege, errors.DependentObjectsStillExist, errors.WrongObjectType) as error:
            _log.info("the store's views are not created", store=self.name, reason=" ".join(str(error).split()))

    @contextmanager
    def _transaction(self, *first: Query) -> Iterator["_Statements"]:
        """After an error the connection is of no use: its transaction ends with it.

        One pipeline for all of it: psycopg leaves a pipeline with a message that ends the server's watch on idle
        transactions (a Flush behind the Sync), so none is left before the commit.
        """
        self._connection.deadline = time.monotonic() + self._timeout_s
        with (
            self._translated(),
            self._closing_after_errors(),
            self._connection.pipeline() as pipeline,
            self._closing_after_errors(),  # leaving the pipeline would wait for an answer
        ):
            yield _Statements(self._connection, pipeline, self._schema, first)

    @contextmanager
    def _closing_after_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, TimeoutError) as error:
            raise _translated(error, self.name) from None


class _Statements:
    """Statements wait until there is something to read, or the end."""

    def __init__(
        self, connection: psycopg.Connection[Row], pipeline: psycopg.Pipeline, schema: str, first: Sequence[Query]
    ) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._schema = schema
        self._waiting: list[tuple[str, Sequence[Sequence[object]]]] = [(each.sql, [()]) for each in first]
        self._revision = 0

    def read(self, *queries: Query) -> list[list[Row]]:
        self._flush()
        cursors = [
            self._connection.execute(_sql(query.sql, self._schema), query.parameters or None, binary=True)
            for query in queries
        ]
        self._pipeline.sync()  # else fetching is a round trip for each
        return [cursor.fetchall() for cursor in cursors]

    def write(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        if rows:
            self._waiting.append((sql, rows))

    def announce(self, revision: int) -> None:
        self._waiting.append((f"SELECT pg_notify('{CHANNEL}', ?)", [[str(revision)]]))

    def finish(self) -> None:
        """The end of the pipeline waits for it."""
        self._waiting.append((_COMMIT.sql, [()]))
        self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for sql, rows in waiting:
            for row in rows:
                self._connection.execute(_sql(sql, self._schema), row or None)


def name_of(uri: str) -> str:
    """Return where the server is, without secrets.

    :raises StoreError: the URI is malformed.
    """
    try:
        found = conninfo.conninfo_to_dict(uri)
    except psycopg.Error:
        raise StoreError("the store's URI is malformed; write postgresql://user@host:port/database") from None
    return f"PostgreSQL at {found.get('host', 'this machine')}:{found.get('port', 5432)}/{found.get('dbname', '')}"


def _is_line_safe(uri: str) -> bool:
    """Return whether a server may ask for the password in clear: over TLS or a Unix socket, or if the URL says what it
    may ask for."""
    found = conninfo.conninfo_to_dict(uri)
    hosts = [host for name in ("host", "hostaddr") for host in str(found.get(name, "")).split(",") if host]
    mode = found.get("sslmode") or os.environ.get("PGSSLMODE", "")
    is_local = all(host.startswith(("/", "@")) for host in hosts) and "PGHOST" not in os.environ
    return "require_auth" in found or mode in _ENCRYPTED or is_local


@cache
def _sql(sql: str, schema: str) -> bytes:
    found = sql.replace("?", "%s").replace("{now}", _NOW).replace("{clock}", _CLOCK)
    return _NAMES.sub(lambda name: f"{schema}.{name[0]}", found).encode()


def _translated(error: Exception, name: str) -> StoreError:
    text = " ".join(str(error).split())[:300]
    state = getattr(error, "sqlstate", None) or ""
    if "cleartext password" in text:
        cure = "use sslmode=require, or scram-sha-256 in its pg_hba.conf"
        return StoreAuthError(f"{name} asks for the password in clear, without TLS; {cure}")
    if "certificate verify failed" in text or "server certificate" in text:
        cure = "check sslrootcert and the host's name, that it has not ended, and that the server sends its whole chain"
        return StoreError(f"the certificate of {name} is not trusted ({text}); {cure}")
    if state.startswith("28") or "authentication failed" in text or "no password supplied" in text:
        return StoreAuthError(f"{name} refuses the user or its password ({text}); correct them")
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreAuthError(f"{name} refuses this user ({text}); let it create and write tables in its schema")
    if isinstance(error, errors.DiskFull):
        return StoreFullError(f"{name} cannot grow: its disk is full; make room")
    if isinstance(error, errors.InvalidCatalogName) or ('database "' in text and "does not exist" in text):
        return StoreError(f"{name} has no such database; create it")
    if isinstance(error, _PASSING):
        return StoreUnreachableError(f"{name} does not answer ({text}); start it, or correct the store's URL")
    return StoreError(f"{name} refused: {text}")
