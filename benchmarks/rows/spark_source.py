"""spark-source: how fast a user's Spark query reads 2 M waiting changes into Parquet, with ``availableNow``.

The peer is the catch-up of the same changes into our own changelog, in the same run. The query runs in this machine's
own threads, and on a standalone cluster of one worker and of two, of one core each; beside Debezium, reading only,
where that runs.

Where the time goes, in CPU seconds for 2 M changes (one batch query in a new session of two threads, without the start
of the session, on a loaded machine):

- JVM: 28.5. It plans, compiles, and converts each row from Arrow to Spark's format and then to Parquet.
- Python: 4.1. Decoding takes 1.0; planning and Spark's protocol take the rest.

A source that only maps the same Arrow batches from files took 27.6 in the JVM (16.1 in tasks, 8.1 in compilers) and 5.9
in Python. So the ratio compares Spark's writer with ours, rather than the two readers.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.rows import catchup_mysql
from benchmarks.rows.catchup_postgres import FEED, Backlog
from benchmarks.support.bed import Bed, bed
from capture.embedded import EmbeddedSpark

ROWS = 2_000_000
#: a query of a user's own session; prints the seconds from its start to its end, without those of the session
_QUERY = """
import sys, time
from pyspark.sql import SparkSession
import capture
server, token, changefeed, directory, master = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}
settings["spark.python.daemon.module"] = "agent.spark.daemon"  # as docs/python.md says
spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
spark.dataSource.register(capture.SparkSource)
options = {"server": server, "token": token, "changefeed": changefeed, "table": "public.change"}
spark.range(8).mapInArrow(lambda batches: batches, "id bigint").collect()
began = time.monotonic()
changes = spark.readStream.format("weir").options(**options, startingTs="earliest").load()
query = changes.writeStream.format("parquet").option("checkpointLocation", f"{directory}/checkpoint")
query.trigger(availableNow=True).start(f"{directory}/rows").awaitTermination()
print(time.monotonic() - began)
"""


def run(rows: int = ROWS) -> dict[str, Any]:
    with bed() as found:
        backlog = Backlog(found, rows)
        backlog.fill()
        ours_s = backlog.catch_up()
        local_s = _query(found, rows, "local[2]")
        with tempfile.TemporaryDirectory(prefix="weir-spark-") as name, EmbeddedSpark(Path(name)) as cluster:
            two_s = _query(found, rows, cluster.url)
        with tempfile.TemporaryDirectory(prefix="weir-spark-") as name, EmbeddedSpark(Path(name), workers=1) as cluster:
            one_s = _query(found, rows, cluster.url)
    figures = {
        "what": f"{rows:,} changes of 10 mixed columns, from the change log into Parquet by a user's query",
        "rows_per_second": round(rows / local_s),
        "catch_up_rows_per_second": round(rows / ours_s),
        "ratio": ours_s / local_s,
        "two_executors_rows_per_second": round(rows / two_s),
        "one_executor_rows_per_second": round(rows / one_s),
        "second_executor": one_s / two_s,
    }
    debezium = {name: value for name, value in catchup_mysql.beside_debezium(rows // 4).items() if "debezium" in name}
    if rate := debezium.get("debezium_rows_per_second"):
        debezium["debezium_ratio"] = rows / local_s / rate
    return figures | debezium


def _query(found: Bed, rows: int, master: str) -> float:
    with tempfile.TemporaryDirectory(prefix="weir-query-") as directory:
        arguments = [f"http://{found.address}", found.token, FEED, directory, master]
        done = subprocess.run(
            [sys.executable, "-c", _QUERY, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        read = pq.ParquetDataset(Path(directory) / "rows").read(["_commit_seq"]).num_rows
        shutil.rmtree(Path(directory) / "rows")
        assert read == rows, f"{read} of {rows} changes were read"
        return float(done.stdout)
