"""idle: CPU and memory of a capture with one quiet changefeed, against an idle pg_recvlogical."""

import time
from typing import Any

import psutil

from benchmarks.support.bed import bed
from benchmarks.support.servers import DATABASE
from reactor.records.changefeed import SinkMode

SECONDS = 20.0
_SETTLE_S = 5.0


def run(seconds: float = SECONDS) -> dict[str, Any]:
    with bed() as found:
        found.execute("CREATE TABLE quiet (id int PRIMARY KEY)")
        found.create("idle", sink_mode=SinkMode.UPSERT)
        found.wait_sync("idle")
        time.sleep(_SETTLE_S)
        started = time.monotonic()
        with found.watched(probe=False) as usage:
            time.sleep(seconds)
        elapsed_s = time.monotonic() - started
        found.execute("CREATE PUBLICATION peer FOR TABLE quiet")
        found.execute("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
        options = ["--option", "proto_version=1", "--option", "publication_names=peer"]
        with found.tool_running(
            "pg_recvlogical", "--dbname", DATABASE, "--slot", "peer", "--start", "--file", "/dev/null", *options
        ) as peer:
            time.sleep(seconds / 4)
            times = psutil.Process(peer.pid).cpu_times()
    ours, theirs = usage.cpu_s / elapsed_s, (times.user + times.system) / (seconds / 4)
    return {
        "what": "a capture with one quiet changefeed, share of one core (Python, JVM and workers together)",
        "cpu_percent": round(ours * 100, 2),
        "python_cpu_percent": round(usage.python_cpu_s / elapsed_s * 100, 2),
        "pg_recvlogical_cpu_percent": round(theirs * 100, 2),
        "ratio": ours / theirs if theirs else None,
        "python_mb": round(usage.python_mb),
        "java_mb": round(usage.java_mb),
    }
