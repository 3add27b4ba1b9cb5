"""Sync points of a real cluster: all tables at one are what a source had at one moment, over kills and other names.

A writer numbers its transactions. Each sets one of ten rows, and adds a row to another table, so that the number of the
last one decides what both tables have.
"""

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from capture.api.connection import Connection
from capture.errors import TableNotFoundError
from capture.python.local import LocalChangefeed
from capture.python.moment import Moment
from reactor.records.changefeed import ChangefeedConfig
from reactor.records.sync_point import SyncPoint
from tests.acceptance.bed import Bed

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(400)]

DELTA, ICEBERG = "points", "points-iceberg"
FEEDS = (DELTA, ICEBERG)
SLOTS = 10


@pytest.fixture(scope="module")
def bed(bed: Bed) -> Bed:
    bed.execute("CREATE TABLE slot (id int PRIMARY KEY, number int NOT NULL)")
    bed.execute(f"INSERT INTO slot SELECT i, 0 FROM generate_series(0, {SLOTS - 1}) i")
    bed.execute("CREATE TABLE entry (number int PRIMARY KEY)")
    return bed


def create(bed: Bed, feed: str) -> None:
    """Create a changefeed, unless an earlier test has."""
    if feed not in {view.id for view in bed.ask(lambda client: client.list())}:
        scheme = "iceberg+file" if feed == ICEBERG else "delta+file"
        config = ChangefeedConfig(sync_point_interval_seconds=1)
        bed.create_feed(feed, config=config, sink_uri=f"{scheme}://{bed.lake(feed)}")


def feed_of(bed: Bed, feed: str) -> LocalChangefeed:
    [process] = bed.processes
    return LocalChangefeed(Connection(f"http://{process.address}", token=bed.token_of(process)), feed)


@contextmanager
def writing(bed: Bed) -> Iterator[None]:
    """Write numbered transactions, one after the other."""
    over = threading.Event()

    def write() -> None:
        with psycopg.connect(bed.postgres.dsn(bed.database)) as session:
            for number in range(1 + bed.execute("SELECT count(*) FROM entry")[0][0], 1 << 30):  # type: ignore[operator]
                if over.wait(0.005):
                    return
                session.execute("UPDATE slot SET number = %s WHERE id = %s", [number, number % SLOTS])
                session.execute("INSERT INTO entry VALUES (%s)", [number])
                session.commit()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def points_of(bed: Bed, feed: str) -> list[SyncPoint]:
    return bed.ask(lambda client: list(client.sync_points(feed)))


def is_whole(point: SyncPoint) -> bool:
    return {"public.slot", "public.entry"} <= point.versions.keys()


def moment_of(bed: Bed, feed: str, point: SyncPoint) -> Moment:
    """As ``LocalChangefeed.at``, of a point that the cluster may have forgotten: it keeps 24."""
    return Moment.of(bed.query(feed), [point], None)


def rows_of(moment: Moment) -> tuple[dict[int, int], list[int]]:
    slots, entries = moment.table("public.slot").to_arrow(), moment.table("public.entry").to_arrow()
    ids, numbers = (slots.column(name).to_pylist() for name in ("id", "number"))
    return dict(zip(ids, numbers, strict=True)), sorted(entries.column("number").to_pylist())


def expected(last: int) -> tuple[dict[int, int], list[int]]:
    slots = {number % SLOTS: number for number in range(last + 1)}
    return dict.fromkeys(range(SLOTS), 0) | slots, list(range(1, last + 1))


def check(bed: Bed, feed: str, known: Collection[int]) -> None:
    """All points that are not yet known are states that the source had, each later than the one before."""
    last = 0
    for point in points_of(bed, feed):
        if point.ts not in known and is_whole(point):
            found = rows_of(moment_of(bed, feed, point))
            assert found == expected(len(found[1])), point
            assert len(found[1]) >= last
            last = len(found[1])
    assert last > 0


@pytest.mark.matrix
def test_tables_of_a_sync_point_are_of_one_moment(bed: Bed) -> None:
    """Also where one is split, the capture is killed, and a column is added."""
    for feed in FEEDS:
        create(bed, feed)
    known = {feed: {point.ts for point in points_of(bed, feed)} for feed in FEEDS}
    [process] = bed.processes

    def wait_for_more() -> None:
        before = {feed: {point.ts for point in points_of(bed, feed)} for feed in FEEDS}
        for feed in FEEDS:
            bed.wait_for(
                "two more points",
                lambda feed=feed: len({point.ts for point in points_of(bed, feed)} - before[feed]) >= 2,  # type: ignore[misc]
            )

    with writing(bed):
        wait_for_more()
        for feed in FEEDS:
            feed_of(bed, feed).split("public.entry", 3)
        wait_for_more()
        bed.kill(process)
        bed.start(process)
        bed.wait_for("it answers again", lambda: bool(points_of(bed, DELTA)))
        wait_for_more()
        bed.execute("ALTER TABLE slot ADD COLUMN remark text DEFAULT 'x'")
        wait_for_more()
    for feed in FEEDS:
        check(bed, feed, known[feed])


@pytest.mark.parametrize("feed", [DELTA, pytest.param(ICEBERG, marks=pytest.mark.matrix)])
def test_a_sync_point_has_the_tables_that_had_their_names_then(bed: Bed, feed: str) -> None:
    """As after an online schema change, which ends with a swap of names."""
    create(bed, feed)
    with writing(bed):
        before = {point.ts for point in points_of(bed, feed)}
        bed.wait_for(
            "a point", lambda: any(point.ts not in before and is_whole(point) for point in points_of(bed, feed))
        )
    point = [point for point in points_of(bed, feed) if is_whole(point)][-1]
    found = rows_of(moment_of(bed, feed, point))
    bed.execute("CREATE TABLE slot_new (id int PRIMARY KEY, number int NOT NULL)")
    for number in range(max(map(int, point.versions.values())) + 1 if feed == DELTA else 2):
        bed.execute(f"INSERT INTO slot_new VALUES ({number}, -1)")
        wait_for_all(bed, feed)
    bed.execute("BEGIN; ALTER TABLE slot RENAME TO slot_old; ALTER TABLE slot_new RENAME TO slot; COMMIT")
    bed.execute("INSERT INTO slot VALUES (-1, -1)")
    bed.execute("UPDATE slot_old SET number = number")
    wait_for_all(bed, feed)
    assert rows_of(moment_of(bed, feed, point)) == found
    with pytest.raises(TableNotFoundError, match=r"has no table public\.slot_old; it has"):
        moment_of(bed, feed, point).table("public.slot_old")
    bed.execute("DROP TABLE slot; ALTER TABLE slot_old RENAME TO slot")
    bed.execute("UPDATE slot SET number = number")
    wait_for_all(bed, feed)
    assert rows_of(moment_of(bed, feed, point)) == found


def wait_for_all(bed: Bed, feed: str) -> None:
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers(feed, ts) and not bed.query(feed).joining)
