"""Final checks of every story: the upserted tables equal the source, the changelog has every change once.

They are read by delta-rs and by pyiceberg, as the lake is: readers that are not ours.
"""

from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from tests.acceptance.bed import SESSION_TTL_S, Bed, Load

UPSERT, CHANGELOG = "upsert", "changelog"
FEEDS = (UPSERT, CHANGELOG)
SERVICE_TIMEOUT_S = SESSION_TTL_S + 5
CATCH_UP_TIMEOUT_S = 90.0


def follows(bed: Bed) -> Callable[[], bool]:
    """Both changefeeds have what was committed before now."""
    ts = bed.last_ts()
    return lambda: all(bed.covers(feed, ts) for feed in FEEDS)


def break_under_load(
    bed: Bed,
    fault: Callable[[Load], None],
    *,
    written: Callable[[], int],
    warm: int,
    rate: int = 100,
    then: Callable[[], None] = lambda: None,
) -> None:
    """``fault`` while both changefeeds follow a load, which has grown by ``warm`` before and does so again; ``then`` is
    done in between, when the service has gone on. In the end everything is there."""
    with bed.load(rate=rate) as load:
        before = written()
        bed.wait_for("the load writes", lambda: written() > before + warm)
        bed.wait_for("both changefeeds follow", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)
        fault(load)
        bed.wait_for("the service continues", follows(bed), timeout_s=SERVICE_TIMEOUT_S)
        then()
        after = written()
        bed.wait_for("the load continues", lambda: written() > after + warm)
    bed.wait_for("both changefeeds have caught up", follows(bed), timeout_s=CATCH_UP_TIMEOUT_S)


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


def longest_silence_s(bed: Bed, since: float, until: float) -> float:
    """The longest time in which some table of some changefeed had no commit."""
    longest = 0.0
    for feed in FEEDS:
        for table in ("account", "audit", "item"):
            times = [since, *sorted(time for time in _commits(bed.lake(feed), table) if since < time < until), until]
            longest = max(longest, *(after - before for before, after in pairwise(times)))
    return longest


def _commits(lake: Path, table: str) -> list[float]:
    """The times of a table's commits: of Delta's files, and of the snapshots that are retained."""
    if _is_iceberg(lake):
        return [item.timestamp_ms / 1000 for item in _iceberg(lake, table).metadata.snapshots]
    return [commit.stat().st_mtime for commit in (lake / "public" / table / "_delta_log").glob("*.json")]


def changelog(bed: Bed, table: str) -> Any:
    lake = bed.lake(CHANGELOG)
    if _is_iceberg(lake):
        return _iceberg(lake, table).scan().to_arrow()
    return DeltaTable(lake / "public" / table).to_pyarrow_table()


def source_rows(bed: Bed, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(bed.postgres.dsn(bed.database)) as connection:
        return list(connection.execute(sql.encode()))


def sink_rows(lake: Path, table: str, sql: str) -> list[tuple[Any, ...]]:
    if _is_iceberg(lake):
        with duckdb.connect() as engine:
            return (
                engine.register("t", _iceberg(lake, table).scan().to_arrow()).execute(sql.format(table="t")).fetchall()
            )
    delta = DeltaTable(lake / "public" / table)
    found = QueryBuilder().register("t", delta).execute(sql.format(table="t")).read_all()
    rows = [found.column(index).to_pylist() for index in range(found.num_columns)]
    return list(zip(*rows, strict=True))


def _is_iceberg(lake: Path) -> bool:
    return (lake / "catalog.db").exists()


def _iceberg(lake: Path, table: str) -> Table:
    catalog = SqlCatalog("weir", uri=f"sqlite:///{lake / 'catalog.db'}?timeout=30")
    with closing(catalog):
        return catalog.load_table(("public", table))
