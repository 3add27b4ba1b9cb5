"""requests-s3: requests of one changefeed to an object store, under a steady load and when idle.

The peer is the theoretical minimum: for each commit of a table its rows and the commit itself, and each segment written
and read once.
"""

import time
from typing import Any

from benchmarks.support.stores import TABLES, load, make_tables, s3_bed
from reactor.records.changefeed import SinkMode

SECONDS = 20
_TRANSACTIONS_PER_SECOND = 50
_IDLE_S = 10.0


def run(seconds: int = SECONDS) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "what": f"{TABLES} tables on S3, {_TRANSACTIONS_PER_SECOND} transactions/s of {TABLES // 2} updates"
    }
    with s3_bed() as (found, proxy):
        make_tables(found)
        for mode in SinkMode:
            found.create(mode.value, sink_mode=mode)
            found.wait_sync(mode.value)
            time.sleep(_IDLE_S / 5)
            proxy.taken()
            with found.tool_running(*load(found, seconds=seconds, rate=_TRANSACTIONS_PER_SECOND)) as writer:
                writer.wait()
            found.wait_covers(mode.value, found.last_ts())
            taken = proxy.taken()
            of_log = [kind for kind, path in taken if "/log/" in path]
            of_tables = [(kind, path) for kind, path in taken if "/lake/" in path]
            commits = sum(
                kind == "PUT" and "_delta_log/0" in path and path.endswith(".json") for kind, path in of_tables
            )
            segments = sum(kind == "PUT" and path.endswith(".arrow") for kind, path in taken)
            time.sleep(_IDLE_S / 5)
            proxy.taken()
            time.sleep(_IDLE_S)
            idle = len(proxy.taken())
            figures |= {
                f"{mode.value}_requests_per_table_commit": round(len(of_tables) / max(commits, 1), 2),
                f"{mode.value}_requests_per_segment": round(len(of_log) / max(segments, 1), 2),
                f"{mode.value}_commits": commits,
                f"{mode.value}_lists_and_heads": sum(kind in ("LIST", "HEAD") for kind, _ in taken),
                f"{mode.value}_idle_requests_per_second": round(idle / _IDLE_S, 2),
            }
            found.client.remove(mode.value)
    worst = max(float(figures[f"{mode.value}_requests_per_table_commit"]) for mode in SinkMode)
    return {**figures, "requests_per_table_commit": worst, "ratio": 2 / worst}
