"""Changefeeds without any table, on a real cluster: created on an empty database, and left without by a drop."""

from collections.abc import Iterator

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from reactor.records.changefeed import ChangefeedConfig, FeedState, SinkMode
from reactor.views import TableView
from tests.acceptance.bed import DATABASE, Bed
from tests.acceptance.checks import CHANGELOG, FEEDS, UPSERT, follows
from tests.acceptance.maria_bed import MariaBed

pytestmark = [pytest.mark.acceptance, pytest.mark.matrix, pytest.mark.spark, pytest.mark.timeout(300)]


class EmptyBed(Bed):
    """As ``Bed``, with an empty database, and a publication that new tables are in."""

    schema = "public"
    config = ChangefeedConfig(publication="everything")

    def start_source(self) -> None:
        self.postgres.start()
        self.postgres.create_database(DATABASE)
        self.execute("CREATE PUBLICATION everything FOR ALL TABLES WITH (publish_via_partition_root = true)")


class EmptyMariaBed(MariaBed):
    """The same on MariaDB."""

    schema = "sbtest"
    config = ChangefeedConfig()

    def start_source(self) -> None:
        self.mariadb.start()
        self.mariadb.create_database(self.schema)


@pytest.fixture(scope="module", params=[EmptyBed, EmptyMariaBed], ids=["postgres", "mariadb"])
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmptyBed | EmptyMariaBed]:
    with request.param(tmp_path_factory.mktemp("bed"), captures=1) as bed:
        for feed, mode in ((UPSERT, SinkMode.UPSERT), (CHANGELOG, SinkMode.CHANGELOG)):
            bed.create_feed(feed, mode, config=bed.config)
        yield bed


def stored(bed: EmptyBed | EmptyMariaBed, feed: str, table: str) -> list[dict[str, object]] | None:
    """None: the sink has no such table."""
    try:
        delta = DeltaTable(bed.lake(feed) / bed.schema / table)
    except TableNotFoundError:
        return None
    return [{"id": row["id"], "v": row["v"]} for row in delta.to_pyarrow_table().sort_by("id").to_pylist()]


def tables(bed: EmptyBed | EmptyMariaBed, feed: str) -> list[TableView]:
    return bed.ask(lambda client: client.tables(feed))


def check_follows(bed: EmptyBed | EmptyMariaBed) -> None:
    """Whatever was committed is covered, and nothing is called wrong."""
    bed.wait_for("both changefeeds follow", follows(bed), timeout_s=60.0)
    for feed in FEEDS:
        view = bed.query(feed)
        assert (view.state, view.error, view.warning, view.held) == (FeedState.NORMAL, None, None, ())


def test_an_empty_database_and_tables_that_come_later_and_go_again(bed: EmptyBed | EmptyMariaBed) -> None:
    check_follows(bed)
    for _ in range(2):
        bed.execute("CREATE TABLE only_one (id int PRIMARY KEY, v varchar(10))")
        bed.execute("INSERT INTO only_one VALUES (1, 'a'), (2, 'b')")
        check_follows(bed)
        for feed in FEEDS:
            assert stored(bed, feed, "only_one") == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
        bed.execute("DROP TABLE only_one")
        bed.execute("CREATE TABLE elsewhere (id int)")  # no key: PostgreSQL's log moves, and the changefeed with it
        bed.execute("DROP TABLE elsewhere")
        check_follows(bed)
        bed.wait_for("the table is gone", lambda: not any(tables(bed, feed) for feed in FEEDS))
        check_follows(bed)


def test_the_only_table_goes_while_no_capture_runs(bed: EmptyBed | EmptyMariaBed) -> None:
    bed.execute("CREATE TABLE again (id int PRIMARY KEY, v varchar(10))")
    bed.execute("INSERT INTO again VALUES (1, 'a')")
    check_follows(bed)
    [process] = bed.processes
    bed.kill(process)
    bed.execute("DROP TABLE again")
    bed.mend()
    check_follows(bed)
    bed.execute("CREATE TABLE again (id int PRIMARY KEY, v varchar(10))")
    bed.execute("INSERT INTO again VALUES (2, 'b')")
    check_follows(bed)
    assert stored(bed, UPSERT, "again") == [{"id": 2, "v": "b"}]
