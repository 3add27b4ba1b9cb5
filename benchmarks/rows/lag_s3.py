"""lag-s3: time from a commit until it is in Delta on S3, at 2,000 changes per second over 8 tables.

With the server as it is, and with 30 ms added to each request. The peer is a directory, in the same run.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.support.bed import Bed, bed
from benchmarks.support.stores import TABLES, load, make_tables, s3_bed
from capture.quickstart.lag import LagMeter
from reactor.records.changefeed import SinkMode

SECONDS = 30
_CHANGES_PER_SECOND = 2_000
_DELAY_S = 0.03
_POLL_S = 0.05


def run(seconds: int = SECONDS) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "what": f"{_CHANGES_PER_SECOND:,} changes/s over {TABLES} tables for {seconds} s; commit to visible in Delta"
    }
    for name, place in (("directory", _directory()), ("s3", _s3(0.0)), ("s3_30ms", _s3(_DELAY_S))):
        with place as found:
            meter = _measure(found, seconds)
        figures |= {f"{name}_p50_ms": meter.percentile_ms(50), f"{name}_p99_ms": meter.percentile_ms(99)}
    ours, theirs = figures["s3_p50_ms"], figures["directory_p50_ms"]
    return {**figures, "ratio": ours / theirs if ours and theirs else None}


@contextmanager
def _directory() -> Iterator[Bed]:
    with bed() as found:
        yield found


@contextmanager
def _s3(delay_s: float) -> Iterator[Bed]:
    with s3_bed(delay_s) as (found, _):
        yield found


def _measure(found: Bed, seconds: int) -> LagMeter:
    make_tables(found)
    found.create("lag", sink_mode=SinkMode.UPSERT, sink_options="deletion_vectors=true")
    found.wait_sync("lag")
    rate = _CHANGES_PER_SECOND * 2 // TABLES
    with found.tool_running(*load(found, seconds=seconds, rate=rate)) as writer:
        meter = LagMeter(since=time.time())
        while writer.poll() is None:
            meter.observe(time.time(), found.client.query("lag").checkpoint_time)
            time.sleep(_POLL_S)
    found.wait_covers("lag", found.last_ts())
    return meter
