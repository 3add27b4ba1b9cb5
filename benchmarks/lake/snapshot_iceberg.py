"""snapshot-iceberg: dump and load of 5 M rows of pgbench_accounts into Iceberg, against the same into Delta."""

import time
from typing import Any

from benchmarks.support.bed import bed
from reactor.records.changefeed import Mode, SinkMode, Unit

SCALE = 50
_ROWS_PER_SCALE = 100_000


def run(scale: int = SCALE) -> dict[str, Any]:
    rows = scale * (_ROWS_PER_SCALE + 11)
    figures: dict[str, Any] = {"what": f"{rows:,} rows of pgbench tables dumped and loaded, in a directory"}
    with bed() as found:
        found.run_tool("pgbench", "--initialize", "--scale", str(scale))
        found.execute("DROP TABLE pgbench_history")  # it has no key
        for name in ("delta", "iceberg"):
            found.format = name
            with found.watched() as usage:
                started = time.monotonic()
                found.create(name, sink_mode=SinkMode.UPSERT, mode=Mode.ALL)
                found.wait(name, lambda feed: feed.unit is Unit.SYNC)
                seconds = time.monotonic() - started
            figures |= {
                f"{name}_rows_per_second": round(rows / seconds),
                f"{name}_seconds": round(seconds, 2),
                f"{name}_python_peak_mb": round(usage.python_mb),
            }
            found.client.remove(name)
    return {**figures, "ratio": figures["iceberg_rows_per_second"] / figures["delta_rows_per_second"]}
