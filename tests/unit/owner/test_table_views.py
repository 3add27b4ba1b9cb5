"""Views of tables: pages and single tables are parts of the whole, and the view without tables is the rest of it."""

import random
from collections import Counter

import pytest

from owner import jobs
from reactor.ids import CaptureId, Ts
from reactor.records.tables.table import TableRecord
from reactor.views import ChangefeedView, TableView
from tests.unit.owner.owner_build import FEED
from tests.unit.owner.small_cluster import SmallCluster

A, B = CaptureId("capture-a"), CaptureId("capture-b")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    """Two captures replicate fifty tables, whose ids are in no order."""
    ids = random.Random(7).sample(range(1, 10_000), 50)
    tables = tuple(
        TableRecord(table_id=id, schema_name="public", name=f"t{n}", key=("id",), start_ts=Ts(100))
        for n, id in enumerate(ids)
    )
    monkeypatch.setattr("tests.unit.owner.small_cluster.TABLES", tables)
    cluster = SmallCluster(A, B)
    cluster.create()
    cluster.step(4)
    cluster.finish_unit()
    cluster.step(4)
    cluster.finish_unit()
    cluster.advance_log(500)
    cluster.step(20)
    return cluster


def queries(cluster: SmallCluster) -> tuple[ChangefeedView, ChangefeedView]:
    """Return the view with tables, and the one without, of one moment."""
    cluster.jobs += [jobs.Query("whole", FEED), jobs.Query("light", FEED, tables=False)]
    cluster.step()
    whole, light = (cluster.answers[id].value for id in ("whole", "light"))
    assert isinstance(whole, ChangefeedView)
    assert isinstance(light, ChangefeedView)
    return whole, light


def tables(
    cluster: SmallCluster, after: int | None = None, limit: int | None = None, name: str = ""
) -> list[TableView]:
    job = jobs.Tables(f"{after} {limit} {name}", FEED, after=after, limit=limit, name=name)
    cluster.ask(job)
    found = cluster.answers[job.job_id].value
    assert isinstance(found, tuple)
    return [*found]


def test_the_view_without_tables_is_the_rest_of_the_whole_view(cluster: SmallCluster) -> None:
    whole, light = queries(cluster)
    assert len(whole.tables) == whole.table_count == light.table_count == 50
    assert all(table.spans for table in whole.tables)
    spans = Counter(span.capture for table in whole.tables for span in table.spans)
    assert light.span_counts == dict(spans)
    assert light.span_counts.keys() == {A, B}
    assert light == whole.model_copy(update={"tables": ()})


@pytest.mark.parametrize("limit", [1, 7, 49, 50, 51])
def test_pages_together_are_all_tables_each_once(cluster: SmallCluster, limit: int) -> None:
    whole = queries(cluster)[0].tables
    found: list[TableView] = []
    while page := tables(cluster, found[-1].table_id if found else None, limit):
        assert len(page) <= limit
        found += page
    assert found == sorted(whole, key=lambda table: table.table_id)


def test_one_table_is_found_by_its_name(cluster: SmallCluster) -> None:
    whole = {table.table: table for table in queries(cluster)[0].tables}
    assert tables(cluster) == list(whole.values())
    for name in ("public.t0", "public.t49"):
        assert tables(cluster, name=name) == [whole[name]]
    assert tables(cluster, name="public.t50") == []
