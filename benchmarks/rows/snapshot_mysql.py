"""snapshot-mysql: dump and load of 5 M sysbench rows into a Delta table, against mariadb-dump."""

import time
from typing import Any

from benchmarks.rows.catchup_mysql import INSERT, ROWS_PER_COMMIT, TABLE
from benchmarks.support.bed import bed
from benchmarks.support.servers import DATABASE, MariaServer
from reactor.records.changefeed import Mode, SinkMode, Unit

ROWS = 5_000_000


def run(rows: int = ROWS) -> dict[str, Any]:
    with bed(MariaServer) as found:
        found.execute(TABLE.format(name="sbtest1"))
        for _ in range(rows // ROWS_PER_COMMIT):
            found.execute(INSERT.format(name="sbtest1"))
        peer_s = found.run_tool("mariadb-dump", "--single-transaction", "--result-file=/dev/null", DATABASE, "sbtest1")
        with found.watched() as usage:
            started = time.monotonic()
            found.create("snapshot", sink_mode=SinkMode.UPSERT, mode=Mode.ALL)
            found.wait("snapshot", lambda feed: feed.unit is Unit.SYNC)
            ours_s = time.monotonic() - started
    return {
        "what": f"{rows:,} sysbench rows dumped and loaded into a Delta table",
        "rows_per_second": round(rows / ours_s),
        "mariadb_dump_rows_per_second": round(rows / peer_s),
        "ratio": peer_s / ours_s,
        "seconds": round(ours_s, 2),
        "rows_per_cpu_second": round(rows / usage.cpu_s),
        "python_peak_mb": round(usage.python_mb),
        "java_peak_mb": round(usage.java_mb),
    }
