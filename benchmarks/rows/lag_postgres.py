"""lag-postgres: time from a commit until it is in Delta, at 2,000 changes per second for a minute.

Into a table of 1 M rows (upsert) and into a changelog. The peer is the time in which the server passes the same commits
to pg_recvlogical: its write lag, sampled as often.
"""

import time
from typing import Any

from benchmarks.support.bed import Bed, bed
from benchmarks.support.servers import DATABASE
from capture.quickstart.lag import LagMeter
from reactor.records.changefeed import SinkMode

SECONDS = 60
_SCALE = 10
_TRANSACTIONS_PER_SECOND = 500
_POLL_S = 0.05
#: four updates in one transaction, from one client: random updates cannot deadlock
_SCRIPT = """\
\\set a random(1, 1000000)
\\set b random(1, 1000000)
\\set c random(1, 1000000)
\\set d random(1, 1000000)
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :a;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :b;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :c;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :d;
END;
"""


def run(seconds: int = SECONDS) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "what": f"{_TRANSACTIONS_PER_SECOND * 4:,} changes/s for {seconds} s; commit in the source to visible in Delta"
    }
    with bed() as found:
        found.run_tool("pgbench", "--initialize", "--scale", str(_SCALE))
        found.execute("DROP TABLE pgbench_history")  # it has no key
        (found.directory / "load.sql").write_text(_SCRIPT)
        for mode in (SinkMode.UPSERT, SinkMode.CHANGELOG):
            found.create(mode.value, sink_mode=mode)
            found.wait_sync(mode.value)
            meter, changes, elapsed_s = _measure(found, mode.value, seconds)
            figures |= {
                f"{mode.value}_p50_ms": meter.percentile_ms(50),
                f"{mode.value}_p99_ms": meter.percentile_ms(99),
                f"{mode.value}_changes_per_second": round(changes / elapsed_s),
            }
            found.client.remove(mode.value)
        figures["pg_recvlogical_p50_ms"] = peer = _peer(found, seconds // 4)
    ours = figures["changelog_p50_ms"]
    return {**figures, "ratio": ours / peer if ours and peer else None}


def _measure(found: Bed, name: str, seconds: int) -> tuple[LagMeter, int, float]:
    started = time.monotonic()
    with found.tool_running(*_load(found, seconds)) as load:
        meter = LagMeter(since=time.time())
        while load.poll() is None:
            meter.observe(time.time(), found.client.query(name).checkpoint_time)
            time.sleep(_POLL_S)
    elapsed_s = time.monotonic() - started
    found.wait_covers(name, found.last_ts())
    return meter, found.client.query(name).changes, elapsed_s


def _peer(found: Bed, seconds: int) -> float | None:
    """Return the median write lag of pg_recvlogical."""
    found.execute("CREATE PUBLICATION peer FOR TABLE pgbench_accounts")
    found.execute("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
    reader = [
        "pg_recvlogical",
        "--dbname",
        DATABASE,
        "--slot",
        "peer",
        "--start",
        "--file",
        "/dev/null",
        "--status-interval",
        "1",
    ]
    reader += ["--option", "proto_version=1", "--option", "publication_names=peer", "--option", "binary=true"]
    lags: list[float] = []
    with found.tool_running(*reader), found.tool_running(*_load(found, seconds)) as load:
        while load.poll() is None:
            rows = found.execute("SELECT extract(epoch FROM write_lag) FROM pg_stat_replication")
            lags += [float(str(row[0])) * 1000 for row in rows if row[0] is not None]
            time.sleep(_POLL_S)
    return round(sorted(lags)[len(lags) // 2], 1) if lags else None


def _load(found: Bed, seconds: int) -> list[str]:
    load = ["pgbench", "--no-vacuum", "--client", "1", "--protocol", "prepared", "--time", str(seconds)]
    return [*load, "--rate", str(_TRANSACTIONS_PER_SECOND), "--file", str(found.directory / "load.sql")]
