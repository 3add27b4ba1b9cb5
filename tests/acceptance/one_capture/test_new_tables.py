"""New tables of a PostgreSQL source, in Weir's own publication: each is at the sink in the end, with all its rows."""

from functools import partial

import pytest

from capture.api.client import Client
from reactor.records.changefeed import FeedState, SinkMode
from tests.acceptance.bed import Bed
from tests.acceptance.checks import CHANGELOG, FEEDS, UPSERT, changelog, sink_rows

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(300)]

_STEPS = (
    "CREATE TABLE fresh (id int PRIMARY KEY, v int); INSERT INTO fresh VALUES (1, 1), (2, 2)",
    "CREATE TABLE scratch (id int PRIMARY KEY, v int); INSERT INTO scratch VALUES (1, 1); DROP TABLE scratch",
    "CREATE TABLE made AS SELECT i AS id, i AS v FROM generate_series(1, 500) AS i",
    "DROP TABLE audit; CREATE TABLE audit (id int PRIMARY KEY, v int); INSERT INTO audit VALUES (7, 7)",
    "CREATE TABLE parted (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
    "CREATE TABLE parted_0 PARTITION OF parted FOR VALUES FROM (0) TO (10); INSERT INTO parted VALUES (1, 1)",
    "CREATE TABLE account_new (id int PRIMARY KEY, v int); INSERT INTO account_new VALUES (1, 1); "
    "ALTER TABLE account RENAME TO account_old; ALTER TABLE account_new RENAME TO account",
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (10) TO (20); INSERT INTO parted VALUES (11, 11)",
)
_NEW = ("fresh", "made", "audit", "parted", "account")


def _names(bed: Bed, feed: str) -> set[str]:
    view = bed.query(feed)
    if view.joining or view.resyncs or view.lost_tables or view.held:
        return set()
    return {table.table for table in view.tables}


@pytest.mark.matrix
def test_new_tables_are_published_and_copied(bed: Bed) -> None:
    for feed, mode in ((UPSERT, SinkMode.UPSERT), (CHANGELOG, SinkMode.CHANGELOG)):
        bed.create_feed(feed, mode)
    for number, step in enumerate(_STEPS):
        for statement in step.split("; "):
            bed.execute(statement)
        if number == len(_STEPS) // 2:
            [process] = bed.processes
            bed.kill(process)
            bed.start(process)
    bed.wait_for(
        "the one without a key waits for it alone",
        lambda: all([one.table for one in bed.query(feed).held] == ["public.made"] for feed in FEEDS),
    )
    bed.execute("ALTER TABLE made REPLICA IDENTITY FULL")
    bed.wait_for("a changelog needs no key", lambda: "public.made" in _names(bed, CHANGELOG))
    bed.execute("INSERT INTO made VALUES (501, 0), (501, 0)")
    ts = bed.last_ts()
    bed.wait_for("it is followed", lambda: bed.covers(CHANGELOG, ts))
    assert sorted(changelog(bed, "made")["id"].drop_null().to_pylist()) == [*range(1, 502), 501], "each row once"
    bed.execute("DELETE FROM made WHERE id = 501")
    bed.execute("ALTER TABLE made ADD PRIMARY KEY (id)")
    expected = {f"public.{name}" for name in (*_NEW, "item", "account_old")}
    for feed in FEEDS:
        bed.wait_for("all have joined", lambda feed=feed: _names(bed, feed) == expected)  # type: ignore[misc]
    for table in _NEW:
        bed.execute(f"INSERT INTO {table} VALUES (5, 5) ON CONFLICT (id) DO UPDATE SET v = 6")
    ts = bed.last_ts()
    for feed in FEEDS:
        bed.wait_for("all is there", lambda feed=feed: bed.covers(feed, ts))  # type: ignore[misc]
        assert bed.query(feed).state is FeedState.NORMAL
        found = bed.ask(partial(Client.diff, changefeed_id=feed))
        assert {one.table for one in found if one.equal} == expected
    for table in _NEW:
        query = "SELECT id, v FROM {table} ORDER BY id"
        rows = sink_rows(bed.lake(UPSERT), table, query)
        assert [tuple(map(str, row)) for row in rows] == [
            tuple(map(str, row)) for row in bed.execute(query.replace("{table}", table))
        ]
