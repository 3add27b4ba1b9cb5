"""diff: 10 M equal rows of PostgreSQL and of MariaDB compared by checksums of key ranges, against comparing rows.

Then one row of them is changed, and has to be named. Both ways run in this process, in turn, over one snapshot; the
sink's checksums on Spark.
"""

import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from agent.feeds.diff import Pushed, TableDiff, compare_tables
from agent.ports.executor import Executor
from agent.ports.source import BEGIN, Scope, Source
from agent.sinks import open_sink
from agent.sources import open_source
from agent.sources.registry import arrow_schema
from agent.spark.executor import SparkExecutor
from benchmarks.rows.catchup_mysql import INSERT, ROWS_PER_COMMIT, TABLE
from benchmarks.support.servers import MariaServer, PostgresServer, Server
from reactor.ids import Ts
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from reactor.records.tables.table import TableRecord

ROWS = 10_000_000
_ACCOUNTS = "CREATE TABLE accounts (aid int PRIMARY KEY, bid int, abalance int, filler char(84))"
_FILL = "INSERT INTO accounts SELECT i, i % 100, i % 7, '' FROM generate_series(1, {rows}) AS i"


def run(rows: int = ROWS) -> dict[str, Any]:
    figures: dict[str, Any] = {"what": f"{rows:,} equal rows compared, then one that differs"}
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        spark = SparkExecutor("local[2]", work_dir=Path(name) / "spark")
        spark.start()
        try:
            with PostgresServer(Path(name)) as server:
                server.execute(_ACCOUNTS)
                server.execute(_FILL.format(rows=rows))
                server.execute("VACUUM ANALYZE accounts")
                change = "UPDATE accounts SET abalance = abalance + 1 WHERE aid = {}"
                figures |= _measure("postgres", server, "accounts", change, rows, spark, Path(name) / "lake-postgres")
            with MariaServer(Path(name)) as server:
                server.execute(TABLE.format(name="sbtest1"))
                for _ in range(rows // ROWS_PER_COMMIT):
                    server.execute(INSERT.format(name="sbtest1"))
                change = "UPDATE sbtest1 SET k = k + 1 WHERE id = {}"
                figures |= _measure("mariadb", server, "sbtest1", change, rows, spark, Path(name) / "lake-mariadb")
        finally:
            spark.stop()
    return {**figures, "ratio": min(figures["postgres_ratio"], figures["mariadb_ratio"])}


def _measure(
    kind: str, server: Server, name: str, change: str, rows: int, spark: Executor, lake: Path
) -> dict[str, Any]:
    source = open_source(server.uri, Scope("bench", "bench", SinkMode.UPSERT, ChangefeedConfig()))
    [table] = [table.with_(start_ts=Ts(100)) for table in source.check().tables if table.name == name]
    opened = partial(open_sink, f"delta+file://{lake}", changefeed="bench", mode=SinkMode.UPSERT)
    _copy(source, table, opened)

    def compared(pushed: Pushed | None) -> tuple[TableDiff, float]:
        with closing(source.snapshot([table], BEGIN)) as snapshot:
            started = time.monotonic()
            [found] = compare_tables(snapshot, opened(), [table], pushed=pushed)
            return found, time.monotonic() - started

    pushed = Pushed(spark, opened)
    compared(pushed)  # the workers, and all pages, are there from now on
    (by_rows, rows_s), (by_ranges, ranges_s) = compared(None), compared(pushed)
    server.execute(change.format(rows // 2 + 1))
    wrong, wrong_s = compared(pushed)
    return {
        f"{kind}_rows_per_second": round(rows / ranges_s),
        f"{kind}_present_rows_per_second": round(rows / rows_s),
        f"{kind}_ratio": rows_s / ranges_s,
        f"{kind}_equal": by_rows.equal and by_ranges.equal and not by_ranges.by_rows,
        f"{kind}_named": wrong.differences,
        f"{kind}_naming_seconds": round(wrong_s, 2),
        f"{kind}_python_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        f"{kind}_workers_peak_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
    }


def _copy(source: Source, table: TableRecord, opened: Callable[[], Any]) -> None:
    with closing(source.snapshot([table], BEGIN)) as snapshot:
        schema, sink = snapshot.schema(table), opened()
        staged = sink.writer().stage(table, "0", iter(snapshot.read(schema)), Ts(100))
        sink.load(table, schema, arrow_schema(schema), staged)
