"""Random histories of partitioned tables that are sent by their roots: partitions that come and go with rows, default
ones and sub-partitions, rows that move. In the end all tables are as the server has them, and flow, without a command:
upserted tables, changelogs and histories, Delta and Iceberg, read at once or late."""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg
import pytest

import capture
from capture.embedded import EmbeddedPostgres
from reactor.records.changefeed import SinkMode
from tests.acceptance.families import captures_log, differences, stored
from tests.acceptance.postgres.families import DATABASE, Table, connected, tables, there
from tests.acceptance.postgres.test_families import _difference, _end, _spec
from tests.integration.agent.sources.postgres.random_partitions import PARTITIONED, PartitionStatements
from tests.patience import patient

pytestmark = [
    pytest.mark.minutes(1.5),
    pytest.mark.in_turn("format"),
    pytest.mark.acceptance,
    pytest.mark.matrix,
    pytest.mark.spark,
    pytest.mark.timeout(1200),
]

_HISTORIES: Final = 6
_STEPS: Final = 25
_END_S: Final = 400.0


@pytest.fixture(autouse=True)
def _log(tmp_path: Path) -> Iterator[None]:
    with captures_log(tmp_path):
        yield


@pytest.mark.parametrize("format", ["delta", "iceberg"])
@pytest.mark.parametrize("is_late", [False, True], ids=["at-once", "late"])
@pytest.mark.parametrize("seed", range(3))
def test_partitions(seed: int, is_late: bool, format: str, tmp_path: Path) -> None:
    random, done = Random(f"{seed} {is_late} {format}"), list[str]()
    server = EmbeddedPostgres(tmp_path / "server", unsafe_no_fsync=True)
    with server, capture.local(tmp_path / "weir") as cluster:
        server.create_database(DATABASE)
        histories = [_History(server, number, random) for number in range(_HISTORIES)]
        server.execute(
            "CREATE PUBLICATION everything FOR ALL TABLES WITH (publish_via_partition_root)", database=DATABASE
        )
        feeds = [cluster.create(mode.value, **_spec(server, tmp_path, mode, format)) for mode in SinkMode]
        for feed in feeds:
            feed.wait(timeout=_END_S)
            if is_late:
                feed.pause()
        for _ in range(_STEPS):
            done += [line for history in histories for line in history.step()]
        for feed in feeds:
            if is_late:
                feed.resume()
            _wait_until_all_flow(feed, partial(_end, server))
        wrong = [line for feed in feeds for line in _wrong(server, feed, tmp_path / feed.id, format)]
    assert not wrong, "\n".join([*wrong, *done])


class _History:
    """One partitioned table, in a schema of its own."""

    def __init__(self, server: EmbeddedPostgres, number: int, random: Random) -> None:
        self._server, self._random, self._schema = server, random, f"fam_p{number}"
        self._statements = PartitionStatements(random, can_hold=False)
        with self._session() as connection:
            connection.execute(f"CREATE SCHEMA {self._schema}".encode())
            connection.execute(PARTITIONED.encode())

    def step(self) -> Iterator[str]:
        """Execute a transaction; one that the server refuses is undone."""
        statements = [self._statements.next() for _ in range(self._random.choice((1, 1, 2, 3)))]
        whole = len(statements) > 1 and not any("CONCURRENTLY" in one for one in statements)
        with self._session() as connection, contextlib.suppress(psycopg.Error):
            for statement in ["; ".join(statements)] if whole else statements:
                connection.execute(statement.encode())
                yield f"{self._schema}: {statement}"

    def _session(self) -> psycopg.Connection[Any]:
        return connected(self._server, f"-c search_path={self._schema}")


def _wait_until_all_flow(feed: Any, end_ts: Callable[[], int]) -> None:
    end = time.monotonic() + patient(_END_S)
    while True:
        feed.wait(ts=end_ts(), timeout=_END_S)
        view = feed.query()
        if not (view.held or view.resyncs or view.joining):
            return
        assert time.monotonic() < end, f"{feed.id}: {view.resyncs} {view.joining} {view.held}"
        time.sleep(0.5)


def _wrong(server: EmbeddedPostgres, feed: Any, lake: Path, format: str) -> list[str]:
    def difference(table: Table, location: str) -> str:
        return _difference(server, feed.id, table, stored(lake, location, format))

    return differences(feed, tables(server), difference, is_needed=lambda table: bool(there(server, table)))
