"""What breaks in real life, done to three captures under load: service goes on, and no row is lost or doubled.

One bed serves all tests: each breaks one thing while pgbench writes, waits for the service to go on, lets the load end,
and then compares both changefeeds with the source by its own reading of the Delta tables.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

from reactor.records import SinkMode
from tests.acceptance.bed import DATABASE, SESSION_TTL_S, Bed, Load

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(400)]

UPSERT, CHANGELOG = "upsert", "changelog"
FEEDS = (UPSERT, CHANGELOG)
SERVICE_TIMEOUT_S = SESSION_TTL_S + 5
CATCH_UP_TIMEOUT_S = 90.0
WARM_TRANSACTIONS = 200


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with Bed(tmp_path_factory.mktemp("bed"), captures=3) as bed:
        bed.create_feed(UPSERT, SinkMode.UPSERT)
        bed.create_feed(CHANGELOG, SinkMode.CHANGELOG)
        yield bed


@pytest.fixture(autouse=True)
def whole_again(bed: Bed) -> Iterator[None]:
    """Whatever a test has broken is mended, so that the next one starts from three captures."""
    yield
    for process in bed.processes:
        if process.is_running:
            bed.proceed(process)
        else:
            bed.start(process)
    bed.wait_for("three captures again", lambda: len(bed.captures()) == len(bed.processes))


def test_kill_the_owner(bed: Bed) -> None:
    break_under_load(bed, lambda _: bed.kill(bed.owner()))


def test_kill_the_sync_worker(bed: Bed) -> None:
    break_under_load(bed, lambda _: bed.kill(bed.sync_worker(UPSERT)))


def test_kill_a_capture_in_mid_flush(bed: Bed) -> None:
    """Under load some flush is always under way where spans are."""

    def kill_a_span_holder(_: Load) -> None:
        special = {bed.owner().name, bed.sync_worker(UPSERT).name}
        holders = bed.span_holders(UPSERT)
        bed.kill(next((holder for holder in holders if holder.name not in special), holders[0]))

    break_under_load(bed, kill_a_span_holder)


def test_a_capture_that_sleeps_past_its_lease(bed: Bed) -> None:
    sleeper = None

    def put_to_sleep(_: Load) -> None:
        nonlocal sleeper
        sleeper = bed.sync_worker(UPSERT)
        bed.pause(sleeper)

    def wake_up() -> None:
        assert sleeper is not None
        bed.proceed(sleeper)

    break_under_load(bed, put_to_sleep, then=wake_up)


def test_restart_etcd(bed: Bed) -> None:
    break_under_load(bed, lambda _: bed.etcd.restart())


def test_kill_etcd(bed: Bed) -> None:
    def kill_and_start(_: Load) -> None:
        bed.etcd.kill()
        bed.etcd.start()

    break_under_load(bed, kill_and_start)


def test_restart_postgres(bed: Bed) -> None:
    def restart(load: Load) -> None:
        bed.postgres.restart()
        load.again()

    break_under_load(bed, restart)


def break_under_load(bed: Bed, fault: Callable[[Load], None], *, then: Callable[[], None] = lambda: None) -> None:
    """``then`` mends what must be mended by hand, after the service has gone on without it."""
    with bed.load() as load:
        written = bed.transactions()
        bed.wait_for("the load writes", lambda: bed.transactions() > written + WARM_TRANSACTIONS)
        bed.wait_for("both changefeeds follow", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
        fault(load)
        broken_at = time.monotonic()
        bed.wait_for("the service goes on", follows(bed), timeout_s=SERVICE_TIMEOUT_S)
        assert time.monotonic() - broken_at < SERVICE_TIMEOUT_S
        then()
        after = bed.transactions()
        bed.wait_for("the load goes on", lambda: bed.transactions() > after + WARM_TRANSACTIONS)
    bed.wait_for("both changefeeds have caught up", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
    check_upsert(bed)
    check_changelog(bed)


def follows(bed: Bed) -> Callable[[], bool]:
    """Both changefeeds have what was committed before now."""
    ts = bed.last_ts()
    return lambda: all(bed.covers(feed, ts) for feed in FEEDS)


def check_upsert(bed: Bed) -> None:
    for table, columns in (("account", "id, balance, note"), ("audit", "id, account, delta"), ("item", "id, value")):
        sql = f"SELECT {columns} FROM {{table}} ORDER BY id"
        assert sink_rows(bed.lake(UPSERT), table, sql) == source_rows(bed, sql.format(table=table)), table


def check_changelog(bed: Bed) -> None:
    """Every transaction left one row in audit, and one update of an account: each must be there once."""
    ids = [row[0] for row in source_rows(bed, "SELECT id FROM audit ORDER BY id")]
    audit = changelog(bed, "audit")
    inserted = audit.filter(pc.equal(audit["_change_type"], "insert"))
    assert sorted(inserted["id"].to_pylist()) == ids
    account = changelog(bed, "account")
    updates = account.filter(pc.equal(account["_change_type"], "update_postimage"))
    assert updates.num_rows == len(ids)
    item = changelog(bed, "item")
    kinds = {kind["values"]: kind["counts"] for kind in pc.value_counts(item["_change_type"]).to_pylist()}
    assert kinds["insert"] - kinds.get("delete", 0) == source_rows(bed, "SELECT count(*) FROM item")[0][0]


def changelog(bed: Bed, table: str) -> Any:
    return DeltaTable(bed.lake(CHANGELOG) / "public" / table).to_pyarrow_table()


def source_rows(bed: Bed, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(bed.postgres.dsn(DATABASE)) as connection:
        return list(connection.execute(sql.encode()))


def sink_rows(lake: Path, table: str, sql: str) -> list[tuple[Any, ...]]:
    """The table by delta-rs' own query engine: a reader that is not ours."""
    delta = DeltaTable(lake / "public" / table)
    found = QueryBuilder().register("t", delta).execute(sql.format(table="t")).read_all()
    rows = [found.column(index).to_pylist() for index in range(found.num_columns)]
    return list(zip(*rows, strict=True))
