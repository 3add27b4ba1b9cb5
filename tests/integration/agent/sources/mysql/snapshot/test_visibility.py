"""A commit that is stopped between the binlog and its engine is in the snapshot, or behind the place; never between."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.sources.mysql.position import consistency
from agent.sources.mysql.server.connection import connect
from agent.sources.mysql.server.uri import parse_uri
from capture.embedded import EmbeddedMariaDB
from tests.patience import HANG_S

TABLE = ("shop", "item")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedMariaDB]:
    with EmbeddedMariaDB(tmp_path / "mariadb", unsafe_no_fsync=True) as server:
        server.create_database("shop")
        server.execute("CREATE TABLE shop.item (id int PRIMARY KEY)")
        server.execute("INSERT INTO shop.item VALUES (1)")
        yield server


@contextlib.contextmanager
def stopped_commit(server: EmbeddedMariaDB, statement: str) -> Iterator[None]:
    """Commit a statement that waits in the binlog for a replica which never comes."""
    server.execute("SET GLOBAL rpl_semi_sync_master_timeout = 600000, rpl_semi_sync_master_wait_no_slave = ON")
    server.execute("SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC', rpl_semi_sync_master_enabled = ON")
    thread = threading.Thread(target=server.execute, args=(statement,))
    thread.start()
    try:
        deadline = time.monotonic() + HANG_S
        while not _waits(server):
            assert time.monotonic() < deadline, "the commit has not been stopped"
            thread.join(0.05)
        yield
    finally:
        server.execute("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
        thread.join()


def _waits(server: EmbeddedMariaDB) -> bool:
    states = server.execute("SELECT state FROM information_schema.processlist")
    return any("semi-sync" in str(state) for (state,) in states)


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
