"""Scratch space of tests: what a module of tests has made on disk is removed when the module ends.

A whole run makes more than ten gigabytes of server data. Directories of modules in which a test has failed are kept, as
pytest keeps those of failed tests.
"""

import contextlib
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pg8000.exceptions
import pymysql
import pytest

from capture.embedded import EmbeddedMariaDB, EmbeddedPostgres
from capture.embedded.mariadb import Session
from tests.shared_postgres import SharedPostgres

#: that tests share
Servers = list[EmbeddedMariaDB | EmbeddedPostgres]

_OF_MARIADB = {"information_schema", "mysql", "performance_schema", "sys"}
_OF_POSTGRES = {"postgres", "template0", "template1"}


def with_directories(fixturedef: Any, request: pytest.FixtureRequest) -> Generator[None, Any, Any]:
    """Set a fixture up; what it makes by ``tmp_path_factory`` goes with it, unless a test has failed meanwhile."""
    if fixturedef.scope == "session" or "tmp_path_factory" not in fixturedef.argnames:
        return (yield)
    base = request.getfixturevalue("tmp_path_factory").getbasetemp()
    before, failed = set(base.iterdir()), request.session.testsfailed
    made: set[Path] = set()

    def remove() -> None:
        if request.session.testsfailed == failed:
            for directory in made:
                shutil.rmtree(directory, ignore_errors=True)

    fixturedef.addfinalizer(remove)  # the first one, so that it is called when the fixture itself has ended
    try:
        return (yield)
    finally:
        made |= {path for path in base.iterdir() if path not in before and not path.is_symlink()}


def clear(server: EmbeddedMariaDB | EmbeddedPostgres) -> None:
    """Remove the databases of a server that others use after this, and what it keeps of its log for nobody. What cannot
    be removed (somebody still reads it, a test has damaged it) stays."""
    if not server.is_running:
        return
    if isinstance(server, EmbeddedMariaDB):
        _clear_mariadb(server)
    else:
        _clear_postgres(server)


def _clear_postgres(server: EmbeddedPostgres) -> None:
    slots = _try_postgres(server, "SELECT slot_name::text FROM pg_replication_slots WHERE NOT active")
    for [name] in slots:
        _try_postgres(server, f"SELECT pg_drop_replication_slot('{name}')")
    free = server.free if isinstance(server, SharedPostgres) else ()
    for [name] in _try_postgres(server, "SELECT datname::text FROM pg_database"):
        if name not in _OF_POSTGRES and name not in free:
            _try_postgres(server, f'DROP DATABASE "{name}" WITH (FORCE)')


def _clear_mariadb(server: EmbeddedMariaDB) -> None:
    with contextlib.suppress(pymysql.err.MySQLError, OSError), contextlib.closing(server.connect()) as session:
        # A transaction that a test has left open or prepared locks its tables.
        _try_mariadb(session, "SET lock_wait_timeout = 1, innodb_lock_wait_timeout = 1")
        for number, length, _, data in _try_mariadb(session, "XA RECOVER"):
            name = data if isinstance(data, bytes) else data.encode()  # MySQL's is a text
            _try_mariadb(session, f"XA ROLLBACK X'{name[:length].hex()}', X'{name[length:].hex()}', {number}")
        for [name] in _try_mariadb(session, "SELECT schema_name FROM information_schema.schemata"):
            if name not in _OF_MARIADB:
                _try_mariadb(session, f"DROP DATABASE `{name}`")
        for newest, *_ in _try_mariadb(session, "SHOW MASTER STATUS"):
            _try_mariadb(session, f"PURGE BINARY LOGS TO '{newest}'")


def _try_postgres(server: EmbeddedPostgres, sql: str) -> list[list[Any]]:
    with contextlib.suppress(pg8000.exceptions.Error, OSError):
        return server.execute(sql)
    return []


def _try_mariadb(session: Session, sql: str) -> list[tuple[Any, ...]]:
    with contextlib.suppress(pymysql.err.MySQLError), session.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())
    return []
