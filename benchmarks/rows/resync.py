"""resync: a table of 5 M rows is copied again while 5,000 changes per second go into 20 others.

The peer is the lag of the others without it, in the same run.
"""

import time
from collections.abc import Callable
from typing import Any

from benchmarks.support.bed import Bed, bed
from benchmarks.support.stores import load, make_tables
from capture.quickstart.lag import LagMeter
from reactor.records.changefeed import SinkMode

ROWS = 5_000_000
SECONDS = 30
_TABLES = 20
_CHANGES_PER_SECOND = 5_000
_POLL_S = 0.05
_LONG_S = 600
_FEED, _LARGE = "resync", "public.large"
_CREATE = "CREATE TABLE large (id int PRIMARY KEY, bid int, balance int, filler char(84))"
_FILL = "INSERT INTO large SELECT i, i % 100, i % 7, '' FROM generate_series(1, {rows}) AS i"


def run(rows: int = ROWS, seconds: int = SECONDS) -> dict[str, Any]:
    with bed() as found:
        make_tables(found, tables=_TABLES)
        found.execute(_CREATE)
        found.execute(_FILL.format(rows=rows))
        found.execute("VACUUM ANALYZE large")
        found.create(_FEED, sink_mode=SinkMode.UPSERT, sink_options="deletion_vectors=true")
        found.wait_sync(_FEED)
        rate = _CHANGES_PER_SECOND * 2 // _TABLES
        with found.tool_running(*load(found, seconds=_LONG_S, rate=rate, tables=_TABLES)):
            _lag(found, _until(time.monotonic() + seconds / 2))  # warm
            without = _lag(found, _until(time.monotonic() + seconds))
            started = time.monotonic()
            found.client.resync_table(_FEED, _LARGE)
            during = _lag(found, lambda: _flows(found))
            elapsed_s = time.monotonic() - started
        found.wait_covers(_FEED, found.last_ts())
        differing = [one.table for one in found.client.diff(_FEED) if not one.equal]
    ours, theirs = during.percentile_ms(99), without.percentile_ms(99)
    return {
        "what": f"{rows:,} rows copied again, {_CHANGES_PER_SECOND:,} changes/s in {_TABLES} other tables",
        "rows_per_second": round(rows / elapsed_s),
        "lag_p50_ms": during.percentile_ms(50),
        "lag_p99_ms": ours,
        "lag_without_p50_ms": without.percentile_ms(50),
        "lag_without_p99_ms": theirs,
        "differing_tables": differing,
        "ratio": ours / theirs if ours and theirs else None,
    }


def _flows(found: Bed) -> bool:
    view = found.client.query(_FEED)
    return not (view.resyncs or view.held)


def _until(end: float) -> Callable[[], bool]:
    return lambda: time.monotonic() >= end


def _lag(found: Bed, is_over: Callable[[], bool]) -> LagMeter:
    meter = LagMeter(since=time.time())
    while True:
        meter.observe(time.time(), found.client.query(_FEED).checkpoint_time)
        time.sleep(_POLL_S)
        if is_over():
            return meter
