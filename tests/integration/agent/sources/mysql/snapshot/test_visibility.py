"""A commit that is stopped between the binlog and its engine is in the snapshot, or behind the place; never between."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import TableLockedError
from agent.sources.mysql.position import consistency
from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.server.uri import parse_uri
from capture.embedded import EmbeddedMariaDB
from tests.mysql_package import why_not
from tests.mysql_server import EmbeddedMysql
from tests.patience import HANG_S

TABLE = ("shop", "item")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedMariaDB]:
    with EmbeddedMariaDB(tmp_path / "mariadb", unsafe_no_fsync=True) as server:
        server.create_database("shop")
        server.execute("CREATE TABLE shop.item (id int PRIMARY KEY)")
        server.execute("INSERT INTO shop.item VALUES (1)")
        yield server


_MARIADB = (
    "SET GLOBAL rpl_semi_sync_master_timeout = 600000, rpl_semi_sync_master_wait_no_slave = ON",
    "SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC', rpl_semi_sync_master_enabled = ON",
    "SET GLOBAL rpl_semi_sync_master_enabled = OFF",
)
_MYSQL = (
    "SET GLOBAL rpl_semi_sync_source_timeout = 600000, rpl_semi_sync_source_wait_no_replica = ON",
    "SET GLOBAL rpl_semi_sync_source_wait_point = 'AFTER_SYNC', rpl_semi_sync_source_enabled = ON",
    "SET GLOBAL rpl_semi_sync_source_enabled = OFF",
)


@contextlib.contextmanager
def stopped_commit(
    server: EmbeddedMariaDB, statement: str, settings: tuple[str, str, str] = _MARIADB
) -> Iterator[None]:
    """Commit a statement that waits in the binlog for a replica which never comes."""
    *begin, end = settings
    for setting in begin:
        server.execute(setting)
    thread = threading.Thread(target=server.execute, args=(statement,))
    thread.start()
    try:
        deadline = time.monotonic() + HANG_S
        while not _waits(server):
            assert time.monotonic() < deadline, "the commit has not been stopped"
            thread.join(0.05)
        yield
    finally:
        server.execute(end)
        thread.join()


def _waits(server: EmbeddedMariaDB) -> bool:
    states = server.execute("SELECT state FROM information_schema.processlist")
    return any("semi-sync" in str(state) for (state,) in states)


@pytest.mark.matrix
def test_a_place_is_before_a_commit_that_no_snapshot_shows(server: EmbeddedMariaDB) -> None:
    target = parse_uri(server.uri())
    with connect(target) as connection:
        before = consistency.current_place(connection)
        with stopped_commit(server, "INSERT INTO shop.item VALUES (2)"):
            end = consistency.current_place(connection)
            assert end.ts(0) > before.ts(0), "it is in the binlog"
            assert server.execute("SELECT id FROM shop.item") == [[1]], "and not visible"
            place = consistency.settled_place(target, [TABLE])
            assert place.ts(0) <= before.ts(0)
            with consistency.open_readers(target, 1, [TABLE]) as opened:
                assert opened.place.ts(0) <= before.ts(0)
                assert opened.connections[0].query("SELECT id FROM shop.item") == [("1",)]
        assert consistency.settled_place(target, [TABLE]).ts(0) >= end.ts(0)
        assert server.execute("SELECT id FROM shop.item") == [[1], [2]]


@pytest.fixture
def mysql(tmp_path: Path) -> Iterator[EmbeddedMysql]:
    with EmbeddedMysql(tmp_path / "mysql") as server:
        server.create_database("shop")
        server.execute("CREATE TABLE shop.item (id int PRIMARY KEY)")
        server.execute("INSERT INTO shop.item VALUES (1)")
        server.execute("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
        server.execute("CREATE USER plain@'%' IDENTIFIED BY 'plain'")
        server.execute("GRANT SELECT, LOCK TABLES, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO plain@'%'")
        yield server


@pytest.mark.matrix
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
@pytest.mark.parametrize("user", ["", "plain"])
def test_mysql_gives_no_place_while_a_commit_is_in_its_binlog_and_not_visible(
    mysql: EmbeddedMysql, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock waits for the commit, with the privilege for all tables and without."""
    monkeypatch.setattr(consistency, "LOCK_WAIT_S", 1)
    target = parse_uri(mysql.uri())
    target = replace(target, user=user, password=user) if user else target
    with connect(target) as connection:
        before = consistency.current_place(connection)
        with stopped_commit(mysql, "INSERT INTO shop.item VALUES (2)", _MYSQL):
            assert consistency.current_place(connection).ts(0) > before.ts(0), "it is in the binlog"
            assert mysql.execute("SELECT id FROM shop.item") == [[1]], "and not visible"
            with pytest.raises(TableLockedError):
                consistency.settled_place(target, [TABLE])
            with pytest.raises(TableLockedError), consistency.open_readers(target, 1, [TABLE]):
                pass
        end = consistency.current_place(connection)
        assert consistency.settled_place(target, [TABLE]).ts(0) == end.ts(0)
        with consistency.open_readers(target, 1, [TABLE]) as opened:
            assert opened.place.ts(0) == end.ts(0)
            assert opened.connections[0].query("SELECT id FROM shop.item") == [("1",), ("2",)]
