"""catchup-standalone: how fast a backlog is replicated to a Delta changelog on a Spark cluster of two one-core workers.

The peer is Spark in the capture with two threads, in the same run; also measured with one worker, for the speed-up.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.rows import catchup_postgres
from capture.embedded import EmbeddedSpark

ROWS = 400_000
_SPARK = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}


def run(rows: int = ROWS) -> dict[str, Any]:
    local = _seconds("local[2]", rows, {})
    with tempfile.TemporaryDirectory(prefix="weir-spark-") as name, EmbeddedSpark(Path(name)) as cluster:
        two = _seconds(cluster.url, rows, _SPARK)
    with tempfile.TemporaryDirectory(prefix="weir-spark-") as name, EmbeddedSpark(Path(name), workers=1) as cluster:
        one = _seconds(cluster.url, rows, _SPARK)
    return {
        "what": f"{rows:,} inserts of 10 mixed columns waiting in the slot, into a Delta changelog",
        "standalone_rows_per_second": round(rows / two),
        "one_worker_rows_per_second": round(rows / one),
        "local_rows_per_second": round(rows / local),
        "second_worker": one / two,
        "ratio": local / two,
    }


def _seconds(master: str, rows: int, spark: Mapping[str, str]) -> float:
    settings = {"spark-master": master, "spark-captures": "1", "insecure-spark": "true"}
    return float(catchup_postgres.run(rows, settings=settings, spark=spark)["seconds"])
