"""catchup-postgres: how fast 1 M changes waiting in a slot are replicated to a Delta changelog, against pg_recvlogical.

The peer reads the same changes from a slot of its own to /dev/null: the server's own limit.
"""

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from benchmarks.support.bed import Bed, bed
from benchmarks.support.servers import DATABASE
from reactor.records.changefeed import Mode, SinkMode

ROWS = 1_000_000
FEED = "catchup"
_NONE: Mapping[str, str] = MappingProxyType({})
_ROWS_PER_COMMIT = 10_000
_TABLE = """
CREATE TABLE change (
    id bigint PRIMARY KEY, account int NOT NULL, amount numeric(12, 2), rate double precision, is_open boolean,
    name text, code varchar(20), day date, at timestamptz, ref uuid
)
"""
_INSERT = """
DO $$ BEGIN FOR batch IN 0..{last} LOOP
    INSERT INTO change SELECT i, i % 1000, i / 7.0, i * 0.5, i % 3 = 0, CASE WHEN i % 5 > 0 THEN 'customer ' || i END,
        'C' || i % 97, date '2026-01-01' + (i % 365)::int, timestamptz '2026-01-01' + i * interval '1 second',
        CASE WHEN i % 4 > 0 THEN md5(i::text)::uuid END
    FROM generate_series(batch * {size}::bigint + 1, (batch + 1) * {size}::bigint) AS i;
    COMMIT;
END LOOP; END $$
"""


class Backlog:
    """Changes that wait in the slot of a paused changefeed, ``FEED``, which writes a changelog."""

    def __init__(self, found: Bed, rows: int) -> None:
        self._found = found
        self._rows = rows
        found.execute(_TABLE)
        found.create(FEED, sink_mode=SinkMode.CHANGELOG, mode=Mode.ALL)
        found.wait_sync(FEED)
        found.client.pause(FEED)

    def fill(self) -> None:
        self._found.execute(_INSERT.format(last=self._rows // _ROWS_PER_COMMIT - 1, size=_ROWS_PER_COMMIT))

    def catch_up(self) -> float:
        """Resume the changefeed; return the seconds until everything is in the sink."""
        ts = self._found.last_ts()
        started = time.monotonic()
        self._found.client.resume(FEED)
        self._found.wait_covers(FEED, ts)
        return time.monotonic() - started


def run(
    rows: int = ROWS, *, settings: Mapping[str, str] = _NONE, spark: Mapping[str, str] = _NONE, sink: str = "delta"
) -> dict[str, Any]:
    """``sink``: the format of the table."""
    with bed(settings=settings, spark=spark) as found:
        found.format = sink
        backlog = Backlog(found, rows)
        found.execute("CREATE PUBLICATION peer FOR TABLE change")
        found.execute("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
        backlog.fill()
        end = str(found.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])
        peer_s = _peer(found, end)
        with found.watched() as usage:
            ours_s = backlog.catch_up()
    return {
        "what": f"{rows:,} inserts of 10 mixed columns waiting in the slot, into a changelog ({sink})",
        "rows_per_second": round(rows / ours_s),
        "pg_recvlogical_rows_per_second": round(rows / peer_s),
        "ratio": peer_s / ours_s,
        "seconds": round(ours_s, 2),
        "rows_per_cpu_second": round(rows / usage.cpu_s),
        "python_peak_mb": round(usage.python_mb),
        "java_peak_mb": round(usage.java_mb),
        "api_round_trip_p99_ms": round(usage.round_trip_p99_ms, 1),
    }


def _peer(found: Bed, end: str) -> float:
    return found.run_tool(
        *("pg_recvlogical", "--dbname", DATABASE, "--slot", "peer", "--start", "--file", "/dev/null", "--endpos", end),
        *("--option", "proto_version=1", "--option", "publication_names=peer", "--option", "binary=true"),
    )
