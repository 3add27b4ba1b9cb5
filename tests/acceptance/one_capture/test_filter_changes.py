"""Tables that join and leave a running changefeed by its filter, while they are written; no row is lost in between."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest
from deltalake import DeltaTable

from capture.api.client import Client, RemoteError
from capture.api.port import ChangefeedUpdate
from reactor.records.changefeed import ChangefeedConfig, FilterConfig
from tests.acceptance.bed import DATABASE, Bed
from tests.acceptance.checks import sink_rows
from tests.acceptance.maria_bed import MariaBed

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(480)]

SHOP = "shop"
#: a question that the owner asks the source about
_LOOK_S = 60.0


def without(*rules: str) -> ChangefeedConfig:
    return ChangefeedConfig(filter=FilterConfig(rules=("*.*", *(f"!{rule}" for rule in rules))))


@contextmanager
def written(bed: Bed, table: str, first: int) -> Iterator[None]:
    """A row after the other comes while the block runs."""
    is_over = threading.Event()

    def write() -> None:
        number = first
        while not is_over.wait(0.02):
            bed.execute(f"INSERT INTO {table} (id, v) VALUES ({number}, {number})")
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        is_over.set()
        writer.join()


def flows(bed: Bed, table: str) -> bool:
    view = bed.query(SHOP)
    is_coming = view.joining or view.lost_tables or view.resyncs or view.held
    return not is_coming and any(one.table == table for one in view.tables)


def synced(bed: Bed) -> None:
    ts = bed.last_ts()
    bed.wait_for("all is there", lambda: bed.covers(SHOP, ts))


def rows_of(bed: Bed, table: str) -> list[tuple[int, int]]:
    sql = "SELECT id, v FROM {table} ORDER BY id"
    if isinstance(bed, MariaBed):
        found = bed.delta(SHOP, table).select(["id", "v"]).sort_by("id")
        return list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    return [(int(row[0]), int(row[1])) for row in sink_rows(bed.lake(SHOP), table, sql)]


def at_source(bed: Bed, table: str) -> list[tuple[int, int]]:
    return [(int(str(row[0])), int(str(row[1]))) for row in bed.execute(f"SELECT id, v FROM {table} ORDER BY id")]


def move(bed: Bed, action: str, table: str) -> None:
    method = Client.add_table if action == "add" else Client.remove_table
    bed.ask(partial(method, changefeed_id=SHOP, table=table), timeout_s=_LOOK_S)


def is_marked(bed: Bed, schema: str, table: str) -> bool:
    """Whether the sink's table says that it is no longer replicated."""
    return "left" in json.loads(DeltaTable(bed.lake(SHOP) / schema / table).metadata().description)["weir"]


def tables_join_and_leave(bed: Bed, schema: str) -> None:
    first, second = f"{schema}.extra", f"{schema}.more"
    with pytest.raises(RemoteError, match="has no table"):
        move(bed, "remove", first)
    with written(bed, "extra", 10_001), written(bed, "more", 20_001):
        move(bed, "add", first)
        [process] = bed.processes
        bed.kill(process)
        bed.start(process)
        bed.wait_for("it has joined", lambda: flows(bed, first))
        bed.ask(lambda client: client.update(SHOP, ChangefeedUpdate(config=ChangefeedConfig())), timeout_s=_LOOK_S)
        bed.wait_for("the other one has joined", lambda: flows(bed, second))
        move(bed, "remove", first)
        assert first not in [one.table for one in bed.query(SHOP).tables]
        bed.wait_for("the sink says so", lambda: [one.table for one in bed.query(SHOP).left if one.marked] == [first])
        assert is_marked(bed, schema, "extra")
    synced(bed)
    assert rows_of(bed, "more") == at_source(bed, "more")
    left = rows_of(bed, "extra")
    assert 1_000 < len(left) < len(at_source(bed, "extra")), "the sink keeps what it has"
    bed.execute("DELETE FROM extra WHERE id < 500")
    with written(bed, "extra", 30_001):
        move(bed, "add", first)
        bed.wait_for("it has joined again", lambda: flows(bed, first))
    synced(bed)
    assert rows_of(bed, "extra") == at_source(bed, "extra")
    assert bed.query(SHOP).left == ()
    assert not is_marked(bed, schema, "extra")
    with pytest.raises(RemoteError, match=r"has \S+ already"):
        move(bed, "add", first)
    with pytest.raises(RemoteError, match="there is no table"):
        move(bed, "add", f"{schema}.nowhere")


def test_postgres(bed: Bed) -> None:
    for table in ("extra", "more"):
        bed.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)")
        bed.execute(f"INSERT INTO {table} SELECT i, i FROM generate_series(1, 1000) AS i")
    bed.create_feed(SHOP, config=without("public.extra", "public.more"))
    tables_join_and_leave(bed, "public")


@pytest.mark.matrix
def test_mariadb(tmp_path: Path) -> None:
    with MariaBed(tmp_path, captures=1) as bed:
        for table in ("extra", "more"):
            bed.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)")
            bed.execute(f"INSERT INTO {table} SELECT seq, seq FROM seq_1_to_1000")
        bed.create_feed(SHOP, config=without("sbtest.extra", "sbtest.more"))
        tables_join_and_leave(bed, "sbtest")


@pytest.mark.matrix
def test_a_table_that_was_published_too_late_is_copied_when_it_is_added(tmp_path: Path) -> None:
    """Its transactions of before send nothing, and are waited for."""
    with Bed(tmp_path, captures=1) as bed:
        bed.execute("CREATE TABLE extra (id int PRIMARY KEY, v int); INSERT INTO extra VALUES (1, 1)")
        bed.execute("CREATE PUBLICATION mine FOR TABLE account, audit, item")
        publication = ChangefeedConfig(source={"publication": "mine"}).with_(filter=without("public.extra").filter)
        bed.create_feed(SHOP, config=publication)
        with pytest.raises(RemoteError, match="publication mine lacks "):
            move(bed, "add", "public.extra")
        with psycopg.connect(bed.postgres.dsn(DATABASE)) as before:
            before.execute("INSERT INTO extra VALUES (2, 2)")
            bed.execute("ALTER PUBLICATION mine ADD TABLE extra")
            move(bed, "add", "public.extra")
            bed.execute("INSERT INTO extra VALUES (3, 3)")
            synced(bed)
            assert bed.query(SHOP).joining == ("public.extra",)
            before.execute("INSERT INTO extra VALUES (4, 4)")
        with written(bed, "extra", 101):
            bed.wait_for("it has joined", lambda: flows(bed, "public.extra"))
        bed.execute("CREATE TABLE late (id int PRIMARY KEY, v int); INSERT INTO late VALUES (1, 1)")
        bed.execute("ALTER PUBLICATION mine ADD TABLE late")
        bed.wait_for("it is held", lambda: [one.table for one in bed.query(SHOP).held] == ["public.late"])
        assert "`weir table add` copies it" in bed.query(SHOP).held[0].message
        with written(bed, "late", 101):
            move(bed, "add", "public.late")
            bed.wait_for("it has joined", lambda: flows(bed, "public.late"))
        synced(bed)
        for table in ("extra", "late"):
            assert rows_of(bed, table) == at_source(bed, table)
