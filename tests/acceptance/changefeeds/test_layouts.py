"""Changefeeds with layouts: from the database to tables with partitions, with another layout by a copy."""

from collections.abc import Iterator

import pytest
from pyiceberg.table import Table

from agent.sinks.iceberg.table.lake import Lake
from agent.sinks.uri import parse_sink_uri
from capture.api.port import ChangefeedUpdate
from reactor.records.changefeed import ChangefeedConfig
from reactor.records.layouts import TableLayout
from tests.acceptance.bed import Bed
from tests.acceptance.checks import source_rows

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.matrix, pytest.mark.timeout(600)]


def _config(partition: str) -> ChangefeedConfig:
    layout = TableLayout(matcher=("public.account",), partition_by=(partition,), sort_by=("balance desc",))
    return ChangefeedConfig(layout=(layout,))


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with Bed(tmp_path_factory.mktemp("bed"), captures=1) as bed:
        yield bed


def _table(bed: Bed) -> Table:
    place = Lake.of(parse_sink_uri(f"iceberg+file://{bed.lake('feed')}")).place_at("public/account")
    return place.opened()


def _check(bed: Bed, transform: str) -> None:
    ts = bed.last_ts()
    bed.wait_for("the sink has it", lambda: bed.covers("feed", ts))
    table = _table(bed)
    assert [str(field.transform) for field in table.spec().fields] == [transform]
    found = table.scan().to_arrow().select(["id", "balance"]).to_pylist()
    rows = sorted((row["id"], row["balance"]) for row in found)
    assert rows == source_rows(bed, "SELECT id, balance FROM account ORDER BY id")


def test_tables_lie_as_the_configuration_says(bed: Bed) -> None:
    config = _config("truncate(10, balance)")
    bed.create_feed("feed", sink_uri=f"iceberg+file://{bed.lake('feed')}", config=config)
    bed.execute("TRUNCATE account CASCADE")
    bed.execute("INSERT INTO account SELECT n, n, NULL FROM generate_series(1, 50) n")
    _check(bed, "truncate[10]")
    bed.execute("UPDATE account SET balance = balance + 10 WHERE id % 3 = 0")
    bed.execute("DELETE FROM account WHERE id <= 5")
    _check(bed, "truncate[10]")
    bed.ask(lambda client: client.pause("feed"))
    bed.ask(lambda client: client.update("feed", ChangefeedUpdate(config=_config("bucket(4, id)"))))
    bed.ask(lambda client: client.resume("feed"))
    _check(bed, "truncate[10]")
    bed.ask(lambda client: client.resync_table("feed", "public.account"))
    bed.wait_for("the table is copied", lambda: not bed.query("feed").resyncs)
    _check(bed, "bucket[4]")
    bed.execute("UPDATE account SET balance = -1 WHERE id % 5 = 0")
    _check(bed, "bucket[4]")
