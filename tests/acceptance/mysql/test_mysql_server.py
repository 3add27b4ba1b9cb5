"""Faults of captures and server, with two captures and a MySQL under sysbench, in one story: no row is lost or doubled.

The single faults are tested on MariaDB; here they are met on the other server, with its defaults (a binlog that names
no columns), compressed transactions, and partial updates of JSON.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from reactor.records.changefeed import SinkMode
from tests.acceptance.checks import CHANGELOG, FEEDS, UPSERT, follows
from tests.acceptance.maria_bed import TABLES, MariaBed, is_installed
from tests.mysql_package import why_not
from tests.mysql_server import EmbeddedMysql

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.matrix,
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not is_installed(), reason="sysbench is not installed (Debian: apt-get install sysbench)"),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]

CATCH_UP_TIMEOUT_S = 90.0
SETTINGS = {
    "binlog_row_metadata": "MINIMAL",
    "binlog_transaction_compression": "ON",
    "binlog_row_value_options": "PARTIAL_JSON",
}


class MysqlBed(MariaBed):
    """As ``MariaBed``, on a MySQL."""

    def __init__(self, directory: Path, *, captures: int) -> None:
        super().__init__(directory, captures=captures)
        self.mariadb = EmbeddedMysql(directory / "mysql", settings=SETTINGS)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[MysqlBed]:
    with MysqlBed(tmp_path, captures=2) as bed:
        bed.execute("CREATE TABLE paper (id int PRIMARY KEY, d json, long_ago datetime(3), v vector(2))")
        bed.execute(
            "INSERT INTO paper SELECT id, json_object('n', id, 'text', repeat('x', 200)), NOW(3), to_vector('[1, 2]') "
            "FROM sbtest1"
        )
        bed.create_feed(UPSERT, SinkMode.UPSERT)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
        yield bed


def test_a_story_of_faults(bed: MysqlBed) -> None:
    with bed.load(rate=30) as load:
        catch_up(bed)
        worker = bed.sync_worker(UPSERT)
        bed.kill(worker)
        bed.execute("UPDATE paper SET d = json_set(d, '$.n', -id) WHERE id % 3 = 0")
        catch_up(bed)
        bed.start(worker)
        bed.mariadb.restart()
        load.again()
        bed.execute("ALTER TABLE sbtest1 ADD extra int DEFAULT 3, ALGORITHM=INSTANT")
        bed.execute("UPDATE paper SET d = json_remove(d, '$.text'), v = to_vector('[3, 4]') WHERE id % 5 = 0")
        bed.execute("CREATE TABLE copied (PRIMARY KEY (id)) AS SELECT id, k FROM sbtest2 WHERE id < 100")
        catch_up(bed)
        bed.execute("FLUSH BINARY LOGS")
        catch_up(bed)
        newest, _ = bed.place()
        bed.wait_for("the server lets older files go", lambda: bed.purge(newest))
    catch_up(bed)
    for table in TABLES:
        rows = bed.source_rows(table)
        assert bed.sink_rows(UPSERT, table) == rows, table
        assert bed.last_rows(CHANGELOG, table) == rows, table
    assert bed.delta(UPSERT, "sbtest1")["extra"].to_pylist() == [3] * len(bed.source_rows("sbtest1"))
    assert bed.delta(UPSERT, "copied").num_rows == len(bed.execute("SELECT id FROM copied"))
    documents = {row["id"]: json.loads(row["d"]) for row in bed.delta(UPSERT, "paper").to_pylist()}
    assert documents == {number: json.loads(str(text)) for number, text in bed.execute("SELECT id, d FROM paper")}
    for feed in FEEDS:
        diffs = bed.ask(lambda client, feed=feed: client.diff(feed), timeout_s=60.0)  # type: ignore[misc]
        assert [(feed, diff.table) for diff in diffs if not diff.equal] == []
        assert len(diffs) == len(TABLES) + 2


def catch_up(bed: MysqlBed) -> None:
    bed.wait_for("both changefeeds follow", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
