"""Changefeeds with layouts and histories: from the database to the tables, with a copy beside the changes."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import Table

from agent.sinks import open_table
from agent.sinks.iceberg.table.catalogs.lake import Lake
from agent.sinks.uri import parse_sink_uri
from capture.api.client import RemoteError
from capture.api.port import ChangefeedUpdate
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from reactor.records.sink_settings import TableLayout
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


def test_delta_tables_are_divided_by_columns(bed: Bed) -> None:
    sink = f"delta+file://{bed.lake('divided')}"
    with pytest.raises(RemoteError, match=r"has truncate\(10, balance\), and Delta divides by columns alone"):
        bed.create_feed("divided", sink_uri=sink, config=_divided("truncate(10, balance)"))
    bed.execute("TRUNCATE account CASCADE")
    bed.execute("INSERT INTO account SELECT n, n % 3, NULL FROM generate_series(1, 50) n")
    bed.create_feed("divided", sink_uri=sink, config=_divided("balance"))

    def check(*partitions: str) -> None:
        ts = bed.last_ts()
        bed.wait_for("the sink has it", lambda: bed.covers("divided", ts))
        table = DeltaTable(f"{bed.lake('divided')}/public/account")
        assert table.metadata().partition_columns == [*partitions]
        found = pa.table(pa.RecordBatchReader.from_stream(table.scan(columns=["id", "balance"])).read_all())
        rows = sorted(zip(*found.to_pydict().values(), strict=True))
        assert rows == source_rows(bed, "SELECT id, balance FROM account ORDER BY id")

    check("balance")
    bed.execute("UPDATE account SET balance = balance + 1 WHERE id % 4 = 0")
    bed.execute("ALTER TABLE account RENAME COLUMN note TO notes")
    bed.execute("DELETE FROM account WHERE id <= 5")
    check("balance")
    bed.ask(lambda client: client.pause("divided"))
    bed.ask(lambda client: client.update("divided", ChangefeedUpdate(config=_divided("notes"))))
    bed.ask(lambda client: client.resume("divided"))
    bed.ask(lambda client: client.resync_table("divided", "public.account"))
    bed.wait_for("the table is copied", lambda: not bed.query("divided").resyncs)
    bed.execute("UPDATE account SET notes = 'x' WHERE id % 5 = 0")
    check("notes")
    assert all(table.equal for table in bed.ask(lambda client: client.diff("divided"), timeout_s=60.0))
    bed.execute("ALTER TABLE account RENAME COLUMN notes TO note")


def _divided(column: str) -> ChangefeedConfig:
    return ChangefeedConfig(layout=(TableLayout(matcher=("public.account",), partition_by=(column,)),))


@pytest.mark.parametrize("scheme", ["iceberg", "delta"])
def test_every_version_is_kept(bed: Bed, scheme: str) -> None:
    feed = f"history-{scheme}"
    bed.execute("TRUNCATE account CASCADE")
    bed.execute("INSERT INTO account SELECT n, n, NULL FROM generate_series(1, 50) n")
    bed.create_feed(feed, SinkMode.HISTORY, sink_uri=f"{scheme}+file://{bed.lake(feed)}")
    bed.execute("UPDATE account SET balance = balance + 1000 WHERE id <= 10")
    bed.execute("DELETE FROM account WHERE id <= 3")
    bed.execute("UPDATE account SET id = 777 WHERE id = 9")

    def check() -> list[dict[str, Any]]:
        ts = bed.last_ts()
        bed.wait_for("the sink has it", lambda: bed.covers(feed, ts))
        found = open_table(f"{scheme}+file://{bed.lake(feed)}", "public/account").scan().read_all().to_pylist()
        now = sorted((row["id"], row["balance"]) for row in found if row["_is_current"])
        assert now == source_rows(bed, "SELECT id, balance FROM account ORDER BY id")
        return [row for row in found if not row["_is_current"]]

    ended = check()
    assert sorted((row["id"], row["balance"]) for row in ended) == sorted(
        [*((at, at) for at in range(1, 11)), *((at, at + 1000) for at in (1, 2, 3, 9))]
    )
    assert all(row["_valid_from"] < row["_valid_to"] and row["_valid_to_time"] is not None for row in ended)
    bed.ask(lambda client: client.resync_table(feed, "public.account"))
    bed.wait_for("the table is copied", lambda: not bed.query(feed).resyncs)
    bed.execute("UPDATE account SET balance = 0 WHERE id = 20")
    assert len(check()) == len(ended) + 1, "a copy that differs in nothing changes nothing"
    assert all(table.equal for table in bed.ask(lambda client: client.diff(feed), timeout_s=60.0))
