"""Distributed transactions from a server into Delta, while what reads them falls between XA PREPARE and the decision.

One story: what was prepared before the changefeeds began, what is prepared when their worker is killed and the server
restarted, and what is rolled back. A changelog shows each row once, at its commit, and nothing that was only prepared.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from capture.embedded import EmbeddedMariaDB
from reactor.records.changefeed import SinkMode
from tests.acceptance.bed import Bed
from tests.acceptance.checks import CHANGELOG, FEEDS, UPSERT, follows
from tests.integration.agent.sources.mysql.binlog_rig import run
from tests.mysql_package import why_not
from tests.mysql_server import EmbeddedMysql

#: matrix: tests/integration/agent/sources/mysql/binlog/test_xa.py reads the same transactions without a cluster
pytestmark = [pytest.mark.acceptance, pytest.mark.matrix, pytest.mark.spark, pytest.mark.timeout(400)]

DATABASE = "shop"
CATCH_UP_TIMEOUT_S = 90.0
MANY = 50_000


class XaBed(Bed):
    """As ``Bed``, over one table of a server that is given."""

    def __init__(self, directory: Path, kind: type[EmbeddedMariaDB]) -> None:
        super().__init__(directory, captures=2)
        self.server = kind(directory / "my")

    @property
    def source_uri(self) -> str:
        return self.server.uri(DATABASE)

    def start_source(self) -> None:
        self.server.start()
        self.server.create_database(DATABASE)
        self.run("CREATE TABLE item (id int PRIMARY KEY, note varchar(100))", "INSERT INTO item VALUES (1, 'seen')")

    def stop_source(self) -> None:
        self.server.kill()
        self.server.stop()

    def run(self, *statements: str) -> None:
        run(self.server, DATABASE, *statements)

    def prepare(self, name: str, *changes: str) -> None:
        """And go away."""
        self.run(f"XA START '{name}'", *changes, f"XA END '{name}'", f"XA PREPARE '{name}'")

    def rows(self) -> list[tuple[int, str]]:
        return [(int(row[0]), str(row[1])) for row in self.server.execute(f"SELECT * FROM {DATABASE}.item ORDER BY id")]

    def sink_rows(self, feed: str) -> list[tuple[int, str]]:
        found = DeltaTable(str(self.lake(feed) / DATABASE / "item")).to_pyarrow_table().to_pylist()
        return sorted((row["id"], row["note"]) for row in found if row.get("_change_type") in (None, "insert"))


@pytest.fixture(
    params=[
        EmbeddedMariaDB,
        pytest.param(
            EmbeddedMysql,
            marks=[pytest.mark.skipif(why_not() is not None, reason=why_not() or "")],
        ),
    ],
    ids=["mariadb", "mysql"],
)
def bed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[XaBed]:
    with XaBed(tmp_path, request.param) as bed:
        bed.prepare("before", "INSERT INTO item VALUES (2, 'before')")
        bed.create_feed(UPSERT, SinkMode.UPSERT)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
        yield bed


def test_only_what_is_committed_arrives_and_once(bed: XaBed) -> None:
    bed.prepare("kept", "INSERT INTO item VALUES (3, 'kept')")
    bed.prepare("large", f"INSERT INTO item SELECT seq + 1000, repeat('l', 90) FROM seq_1_to_{MANY}")
    bed.prepare("gone", "INSERT INTO item VALUES (4, 'gone')")
    held = bed.server.execute("SHOW BINARY LOGS")[-1][0]
    bed.run("INSERT INTO item VALUES (5, 'plain')", "FLUSH BINARY LOGS", "INSERT INTO item VALUES (6, 'plain')")
    catch_up(bed)
    assert [bed.sink_rows(feed) for feed in FEEDS] == [[(1, "seen"), (5, "plain"), (6, "plain")]] * 2
    assert [bed.query(feed).source_position.split(":")[0] for feed in FEEDS] == [held] * 2
    for feed in FEEDS:
        worker = bed.sync_worker(feed)
        bed.kill(worker)
        bed.run("INSERT INTO item VALUES " + ("(7, 'plain')" if feed == UPSERT else "(8, 'plain')"))
        catch_up(bed)
        bed.start(worker)
        bed.mend()
    bed.server.kill()
    bed.server.start()
    bed.run("XA COMMIT 'kept'", "XA ROLLBACK 'gone'", "INSERT INTO item VALUES (4, 'plain')")
    bed.run("XA COMMIT 'large'", "XA COMMIT 'before'")
    catch_up(bed)
    rows = bed.rows()
    assert len(rows) == MANY + 8
    for feed in FEEDS:
        assert bed.sink_rows(feed) == rows, feed
        assert bed.query(feed).source_position.split(":")[0] > held
    assert [diff.equal for diff in bed.ask(lambda client: client.diff(UPSERT), timeout_s=60.0)] == [True]


def catch_up(bed: XaBed) -> None:
    bed.wait_for("both changefeeds have caught up", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
