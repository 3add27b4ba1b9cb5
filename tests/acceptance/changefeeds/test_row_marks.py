"""Changefeeds whose sinks keep deleted rows: from the database to the tables, with a copy beside the changes."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from agent.sinks.iceberg.table.catalogs.lake import Lake
from agent.sinks.uri import parse_sink_uri
from tests.acceptance.bed import Bed
from tests.acceptance.checks import source_rows

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.matrix, pytest.mark.timeout(600)]

_SCHEMES = ("delta", "iceberg")


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with Bed(tmp_path_factory.mktemp("bed"), captures=1) as bed:
        for name in _SCHEMES:
            bed.create_feed(name, sink_uri=f"{name}+file://{bed.lake(name)}?soft_delete=true&synced_at=true")
        yield bed


def _rows(bed: Bed, feed: str) -> pa.Table:
    if feed == "delta":
        found = DeltaTable(f"{bed.lake(feed)}/public/account").scan()
        return pa.RecordBatchReader.from_stream(found).read_all()
    place = Lake.of(parse_sink_uri(f"iceberg+file://{bed.lake(feed)}")).place_at("public/account")
    return place.opened().scan().to_arrow()


def _check(bed: Bed, feed: str, gone: set[int]) -> None:
    ts = bed.last_ts()
    bed.wait_for("the sink has it", lambda: bed.covers(feed, ts))
    found = _rows(bed, feed).select(["id", "balance", "_weir_deleted"]).to_pylist()
    held = sorted((row["id"], row["balance"]) for row in found if not row["_weir_deleted"])
    assert held == source_rows(bed, "SELECT id, balance FROM account ORDER BY id")
    assert {row["id"] for row in found if row["_weir_deleted"]} == gone


@pytest.mark.parametrize("feed", _SCHEMES)
def test_deleted_rows_stay(bed: Bed, feed: str) -> None:
    bed.execute("TRUNCATE account CASCADE")
    bed.execute("INSERT INTO account SELECT n, n, NULL FROM generate_series(1, 50) n")
    ts = bed.last_ts()
    bed.wait_for("the sink has it", lambda: bed.covers(feed, ts))
    before = {row["id"] for row in _rows(bed, feed).to_pylist() if row["_weir_deleted"]}
    bed.execute("DELETE FROM account WHERE id <= 10")
    bed.execute("UPDATE account SET id = id + 100000 WHERE id > 45")
    bed.execute("INSERT INTO account VALUES (3, 33, NULL)")
    gone = (before | {*range(1, 11), *range(46, 51)}) - {3, *range(100_046, 100_051)}
    _check(bed, feed, gone)
    bed.ask(lambda client: client.resync_table(feed, "public.account"))
    bed.wait_for("the table is copied", lambda: not bed.query(feed).resyncs)
    _check(bed, feed, gone)
