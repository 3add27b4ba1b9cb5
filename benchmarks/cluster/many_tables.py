"""many-tables: measures lag, owner ticks and start time of a changefeed with 20,000 tables. Fifty of them change.

Everything is real: the snapshot of all tables, the stream, Delta tables in a directory. The peer is a changefeed of the
fifty alone, under the same load in the same run: what the quiet tables cost.
"""

import re
import time
from typing import Any

import httpx

from benchmarks.support.bed import Bed, bed
from capture.quickstart.lag import LagMeter
from reactor.records.changefeed import SinkMode

TABLES = 20_000
SECONDS = 30
_ACTIVE = 50
_ROWS = 10
#: each changes one row of one table
_TRANSACTIONS_PER_SECOND = 200
_POLL_S = 0.1
#: tables created in one transaction: the server keeps a lock for each until its end
_AT_ONCE = 500
_MAKE = """
DO $$ BEGIN
  FOR i IN {first}..{last} LOOP
    EXECUTE format('CREATE TABLE {schema}.t%s (id int PRIMARY KEY, n int NOT NULL)', i);
    EXECUTE format('INSERT INTO {schema}.t%s SELECT i, 0 FROM generate_series(1, {rows}) AS i', i);
  END LOOP;
END $$
"""
_LOAD = f"""
\\set table random(0, {_ACTIVE - 1})
\\set row random(1, {_ROWS})
UPDATE hot.t:table SET n = n + 1 WHERE id = :row;
"""
_BUCKET = re.compile(r'^weir_owner_tick_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


def run(tables: int = TABLES, seconds: int = SECONDS) -> dict[str, Any]:
    with bed() as found:
        _make(found, "hot", _ACTIVE)
        _make(found, "cold", tables - _ACTIVE)
        found.create("few", sink_mode=SinkMode.UPSERT, rules=("hot.*",))
        found.wait_sync("few")
        few = _lag(found, "few", seconds)
        found.client.remove("few")
        started = time.monotonic()
        found.create("many", sink_mode=SinkMode.UPSERT, rules=("hot.*", "cold.*"))
        found.wait_sync("many")
        snapshot_s = time.monotonic() - started
        found.wait_covers("many", found.last_ts())
        all_flow_s = time.monotonic() - started
        before = _ticks(found)
        many = _lag(found, "many", seconds)
        ticks = [(limit, count - earlier) for (limit, count), (_, earlier) in zip(_ticks(found), before, strict=True)]
        start_s = found.restart()
        started = time.monotonic()
        found.wait_covers("many", found.last_ts())
        flows_s = time.monotonic() - started
    p50_ms, peer_ms = many.percentile_ms(50), few.percentile_ms(50)
    return {
        "what": f"{tables:,} tables of {_ROWS} rows; {_ACTIVE} change, {_TRANSACTIONS_PER_SECOND} times a second",
        "snapshot_seconds": round(snapshot_s, 1),
        "snapshot_to_flow_seconds": round(all_flow_s, 1),
        "lag_p50_ms": p50_ms,
        "lag_p99_ms": many.percentile_ms(99),
        f"lag_p50_ms_of_{_ACTIVE}_tables_alone": peer_ms,
        f"lag_p99_ms_of_{_ACTIVE}_tables_alone": few.percentile_ms(99),
        "tick_p99_ms_at_most": _p99_ms(ticks),
        "ticks": round(ticks[-1][1]),
        "start_seconds": round(start_s, 1),
        "start_to_flow_seconds": round(start_s + flows_s, 1),
        "ratio": p50_ms / peer_ms if p50_ms and peer_ms else None,
    }


def _make(found: Bed, schema: str, tables: int) -> None:
    found.execute(f"CREATE SCHEMA {schema}")
    for first in range(0, tables, _AT_ONCE):
        last = min(first + _AT_ONCE, tables) - 1
        found.execute(_MAKE.format(first=first, last=last, schema=schema, rows=_ROWS))


def _lag(found: Bed, feed: str, seconds: int) -> LagMeter:
    script = found.directory / "load.sql"
    script.write_text(_LOAD)
    options = ["--no-vacuum", "--client", "1", "--time", str(seconds), "--rate", str(_TRANSACTIONS_PER_SECOND)]
    with found.tool_running("pgbench", *options, "--file", str(script)) as writer:
        meter = LagMeter(since=time.time())
        while writer.poll() is None:
            meter.observe(time.time(), found.client.query(feed, tables=False).checkpoint_time)
            time.sleep(_POLL_S)
    assert writer.returncode == 0, (found.directory / "tools.log").read_text()[-500:]
    found.wait_covers(feed, found.last_ts())
    return meter


def _ticks(found: Bed) -> list[tuple[float, float]]:
    """Return how many ticks took at most so many seconds, by the upper bounds of the histogram."""
    answer = httpx.get(f"http://{found.address}/metrics", headers={"Authorization": f"Bearer {found.token}"})
    return [(float(limit), float(count)) for limit, count in _BUCKET.findall(answer.raise_for_status().text)]


def _p99_ms(ticks: list[tuple[float, float]]) -> float:
    """Return the least bound that 99 % of the ticks are below."""
    return next(limit for limit, count in ticks if count >= 0.99 * ticks[-1][1]) * 1000
