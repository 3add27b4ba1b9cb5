"""lag-iceberg: time from a commit until it is in Iceberg, at 5,000 changes per second over 20 upserted tables.

The catalog is the embedded one (SQLite). The peer is Delta with deletion vectors, in the same run.
"""

import time
from typing import Any

from benchmarks.support.bed import bed
from benchmarks.support.stores import load, make_tables
from capture.quickstart.lag import LagMeter
from reactor.records.changefeed import SinkMode

SECONDS = 60
TABLES = 20
_CHANGES_PER_SECOND = 5_000
_POLL_S = 0.05
_OPTIONS = {"iceberg": "", "delta": "deletion_vectors=true"}


def run(seconds: int = SECONDS, changes_per_second: int = _CHANGES_PER_SECOND) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "what": f"{changes_per_second:,} changes/s over {TABLES} tables for {seconds} s; commit to visible in the table"
    }
    for name in _OPTIONS:
        meter, rate = _measure(name, seconds, changes_per_second)
        figures |= {
            f"{name}_p50_ms": meter.percentile_ms(50),
            f"{name}_p99_ms": meter.percentile_ms(99),
            f"{name}_changes_per_second": rate,
        }
    ours, theirs = figures["iceberg_p50_ms"], figures["delta_p50_ms"]
    return {**figures, "ratio": ours / theirs if ours and theirs else None}


def _measure(name: str, seconds: int, changes_per_second: int) -> tuple[LagMeter, int]:
    with bed() as found:
        found.format = name
        make_tables(found, tables=TABLES)
        found.create("lag", sink_mode=SinkMode.UPSERT, sink_options=_OPTIONS[name])
        found.wait_sync("lag")
        started = time.monotonic()
        command = load(found, seconds=seconds, rate=changes_per_second * 2 // TABLES, tables=TABLES)
        with found.tool_running(*command) as writer:
            meter = LagMeter(since=time.time())
            while writer.poll() is None:
                meter.observe(time.time(), found.client.query("lag").checkpoint_time)
                time.sleep(_POLL_S)
        elapsed_s = time.monotonic() - started
        found.wait_covers("lag", found.last_ts())
        return meter, round(found.client.query("lag").changes / elapsed_s)
