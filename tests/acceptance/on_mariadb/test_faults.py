"""Faults of captures and server, done to two captures and a MariaDB under sysbench: no row is lost or doubled.

What the sinks hold is compared with the source three times: by the changefeed's own ``diff``,
by query against what delta-rs reads, and change by change with what python-mysql-replication counts in the binlog. All
that may befall them in one go is in ``mysql/test_story.py``.
"""

from collections.abc import Callable, Iterator

import pytest
from deltalake import DeltaTable

from capture.api.port import ChangefeedUpdate
from reactor.records.changefeed import FeedState, Mode
from tests.acceptance import checks
from tests.acceptance.bed import Load
from tests.acceptance.checks import CHANGELOG, FEEDS, UPSERT
from tests.acceptance.maria_bed import DATABASE, TABLES, MariaBed, is_installed, ts_of

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.spark,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore:'db' is deprecated:DeprecationWarning"),  # python-mysql-replication's own
    pytest.mark.skipif(not is_installed(), reason="sysbench is not installed (Debian: apt-get install sysbench)"),
]

#: bytes of binlog
_WARM = 50_000


@pytest.fixture(autouse=True)
def whole_again(bed: MariaBed) -> Iterator[None]:
    yield
    bed.mend()


@pytest.mark.matrix  # daily PostgreSQL's captures are killed
def test_kill_the_sync_worker(bed: MariaBed) -> None:
    break_under_load(bed, lambda _: bed.kill(bed.sync_worker(UPSERT)))


@pytest.mark.matrix  # daily a stream whose server ends, in binlog/test_stream.py
def test_restart_mariadb(bed: MariaBed) -> None:
    def restart(load: Load) -> None:
        bed.mariadb.restart()
        load.again()

    break_under_load(bed, restart)


def test_both_are_equal_by_their_own_account(bed: MariaBed) -> None:
    with bed.load(rate=30):
        diffs = bed.ask(lambda client: client.diff(UPSERT))
    assert {diff.table for diff in diffs} >= {f"sbtest.{table}" for table in TABLES}
    assert [diff for diff in diffs if not diff.equal] == []


def test_a_table_is_copied_again_and_again_while_nobody_writes(bed: MariaBed) -> None:
    """All copies are of one position, and each cures what others have done since."""
    bed.execute("CREATE TABLE quiet LIKE sbtest1")
    bed.execute("INSERT INTO quiet VALUES (1, 1, 'a', 'p'), (2, 2, 'b', 'p'), (3, 3, 'c', 'p')")
    bed.create_feed("quiet", config={"filter": {"rules": ["*.quiet"]}})
    place = bed.place()
    for id in (1, 2, 3):
        DeltaTable(bed.lake("quiet") / DATABASE / "quiet").delete(f"id = {id}")
        bed.ask(lambda client: client.resync_table("quiet", f"{DATABASE}.quiet"))
        bed.wait_for("it is copied", lambda: not bed.query("quiet").resyncs)
        assert bed.sink_rows("quiet", "quiet") == bed.source_rows("quiet")
    assert bed.place() == place
    bed.execute("DELETE FROM quiet WHERE id = 2")
    ts = bed.last_ts()
    bed.wait_for("it flows", lambda: bed.covers("quiet", ts))
    assert bed.query("quiet").held == ()
    assert bed.sink_rows("quiet", "quiet") == bed.source_rows("quiet")
    bed.ask(lambda client: client.remove("quiet"))


@pytest.mark.matrix
def test_what_a_changefeed_leaves_out_never_arrives(bed: MariaBed) -> None:
    bed.execute("CREATE TABLE person (id int PRIMARY KEY, name varchar(20), secret varchar(20))")
    bed.execute("INSERT INTO person VALUES (1, 'a', 's1'), (2, 'draft', 's2')")
    left_out = {
        "rules": ["*.person"],
        "event_filters": [
            {"matcher": ["*.*"], "ignore_event": ["delete"], "ignore_insert_value_expr": "name = 'draft'"}
        ],
        "column_selectors": [{"matcher": ["*.person"], "columns": ["*", "!secret"]}],
    }
    bed.create_feed("partly", config={"filter": left_out})
    bed.execute("INSERT INTO person VALUES (3, 'c', 's3'), (4, 'draft', 's4')")
    bed.execute("UPDATE person SET name = 'b', secret = 's5' WHERE id = 1")
    bed.execute("DELETE FROM person WHERE id = 3")
    bed.execute("INSERT INTO sbtest1 (k, c, pad) VALUES (1, 'c', 'p')")
    ts = bed.last_ts()
    bed.wait_for("partly follows", lambda: bed.covers("partly", ts))
    assert bed.delta("partly", "person").sort_by("id").to_pylist() == [{"id": 1, "name": "b"}, {"id": 3, "name": "c"}]
    assert [path.name for path in (bed.lake("partly") / DATABASE).iterdir()] == ["person"]
    bed.ask(lambda client: client.remove("partly"))


@pytest.mark.matrix
def test_a_dump_is_loaded_and_followed_on_request(bed: MariaBed) -> None:
    """Rows and a definition that came in between are in the log."""
    bed.execute("CREATE TABLE stock (id int PRIMARY KEY, name varchar(20))")
    bed.execute("INSERT INTO stock VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    bed.create("copied", mode=Mode.DUMP, config={"filter": {"rules": ["*.stock"]}})
    bed.wait_for("the dump has finished", lambda: bed.query("copied").state is FeedState.FINISHED)
    bed.execute("UPDATE stock SET name = 'x' WHERE id = 1")
    bed.execute("ALTER TABLE stock ADD COLUMN price int DEFAULT 7")
    bed.execute("DELETE FROM stock WHERE id = 2")
    bed.ask(lambda client: client.update("copied", ChangefeedUpdate(mode=Mode.LOAD_SYNC)))
    bed.ask(lambda client: client.resume("copied"))
    ts = bed.last_ts()
    bed.wait_for("copied follows", lambda: bed.covers("copied", ts))
    expected = [{"id": 1, "name": "x", "price": 7}, {"id": 3, "name": "c", "price": 7}]
    assert bed.delta("copied", "stock").sort_by("id").to_pylist() == expected
    bed.ask(lambda client: client.remove("copied"))


@pytest.mark.matrix
def test_a_position_that_was_purged_reports_it(bed: MariaBed) -> None:
    bed.create_feed("late", mode=Mode.INCREMENTAL)
    ts = bed.last_ts()
    bed.wait_for("late has begun", lambda: bed.covers("late", ts))
    bed.ask(lambda client: client.pause("late"))
    bed.wait_for("nobody reads for late", lambda: bed.readers() == len(FEEDS))
    bed.execute("UPDATE sbtest1 SET k = k + 1")
    bed.execute("FLUSH LOGS")
    newest, _ = bed.place()
    bed.wait_for("the server lets older files go", lambda: bed.purge(newest))
    bed.ask(lambda client: client.resume("late"))
    bed.wait_for("late has failed", lambda: bed.query("late").state is FeedState.FAILED)
    error = bed.query("late").error
    assert error is not None
    assert error.code == "SnapshotLostByGC"
    assert "has purged" in error.message
    assert "`weir changefeed resume --resync`" in error.message
    bed.ask(lambda client: client.remove("late"))


def break_under_load(bed: MariaBed, fault: Callable[[Load], None]) -> None:
    places: list[tuple[str, int]] = []
    checks.break_under_load(
        bed, fault, written=bed.last_ts, warm=_WARM, rate=30, then=lambda: places.append(bed.place())
    )
    [place] = places
    for table in TABLES:
        rows = bed.source_rows(table)
        assert bed.sink_rows(UPSERT, table) == rows, table
        assert bed.last_rows(CHANGELOG, table) == rows, table
    written_since = bed.written(place)
    assert written_since
    for table in TABLES:
        assert bed.logged(CHANGELOG, table, after_ts=ts_of(place)) == written_since.get(table, {}), table
