"""snapshot-postgres: dump and load of 5 M rows of pgbench_accounts into Delta, against COPY of them to /dev/null."""

import time
from typing import Any

from benchmarks.support.bed import bed
from reactor.records.changefeed import Mode, SinkMode, Unit

SCALE = 50
_ROWS_PER_SCALE = 100_000


def run(scale: int = SCALE) -> dict[str, Any]:
    with bed() as found:
        found.run_tool("pgbench", "--initialize", "--scale", str(scale))
        found.execute("DROP TABLE pgbench_history")  # it has no key
        rows = scale * (_ROWS_PER_SCALE + 11)
        peer_s = found.run_tool("psql", "-qc", r"\copy pgbench_accounts TO /dev/null (FORMAT binary)")
        with found.watched() as usage:
            started = time.monotonic()
            found.create("snapshot", sink_mode=SinkMode.UPSERT, mode=Mode.ALL)
            found.wait("snapshot", lambda feed: feed.unit is Unit.SYNC)
            ours_s = time.monotonic() - started
    return {
        "what": f"{rows:,} rows of pgbench tables dumped and loaded into Delta tables",
        "rows_per_second": round(rows / ours_s),
        "copy_rows_per_second": round(rows / peer_s),
        "ratio": peer_s / ours_s,
        "seconds": round(ours_s, 2),
        "rows_per_cpu_second": round(rows / usage.cpu_s),
        "python_peak_mb": round(usage.python_mb),
        "java_peak_mb": round(usage.java_mb),
    }
