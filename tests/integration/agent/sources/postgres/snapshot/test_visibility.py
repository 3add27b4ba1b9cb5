"""A commit that is stopped between the log and its visibility is in the snapshot, or in the stream; never between."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.sources.postgres.server.lsn import parse_lsn
from agent.sources.postgres.snapshot.export import create_slot
from agent.sources.postgres.snapshot.rows import session
from capture.embedded import EmbeddedPostgres
from tests.patience import HANG_S

_IDS = "SELECT id FROM public.item ORDER BY id"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(tmp_path / "postgres") as server:
        server.execute("CREATE TABLE item (id int PRIMARY KEY)")
        server.execute("INSERT INTO item VALUES (1)")
        yield server


@contextmanager
def stopped_commit(server: EmbeddedPostgres, statement: str) -> Iterator[None]:
    """Commit a statement that waits in the log for a standby which never comes."""
    server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    server.execute("SELECT pg_reload_conf()")
    _wait(lambda: server.execute("SHOW synchronous_standby_names") == [["nobody"]])
    thread = threading.Thread(target=server.execute, args=(statement,))
    thread.start()
    try:
        _wait(lambda: server.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'") != [])
        yield
    finally:
        server.execute("ALTER SYSTEM RESET synchronous_standby_names")
        server.execute("SELECT pg_reload_conf()")
        thread.join()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline, "the commit has not been stopped"
        threading.Event().wait(0.05)


@pytest.mark.matrix
def test_a_slot_begins_behind_a_commit_only_once_its_snapshot_shows_it(server: EmbeddedPostgres) -> None:
    found: list[tuple[int, list[str | None]]] = []

    def export() -> None:
        with (
            create_slot(server.uri(), "weir_visible", is_temporary=True) as exported,
            session(server.uri(), exported.snapshot) as connection,
        ):
            found.append((exported.start_ts, [row[0] for row in connection.query(_IDS)]))

    with stopped_commit(server, "INSERT INTO item VALUES (2)"):
        [[lsn]] = server.execute("SELECT pg_current_wal_flush_lsn()::text")
        assert server.execute(_IDS) == [[1]], "it is in the log, and not visible"
        exporting = threading.Thread(target=export)
        exporting.start()
        exporting.join(2.0)
        was_open = [ids for _, ids in found]
    exporting.join()
    [(start_ts, ids)] = found
    if was_open:
        assert (start_ts < parse_lsn(lsn), ids) == (True, ["1"])
    else:
        assert (start_ts >= parse_lsn(lsn) - 1, ids) == (True, ["1", "2"])
