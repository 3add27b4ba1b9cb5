"""catchup-iceberg: how fast waiting changes are replicated to an Iceberg changelog, against the same to a Delta one."""

from typing import Any

from benchmarks.rows import catchup_postgres

ROWS = 1_000_000


def run(rows: int = ROWS) -> dict[str, Any]:
    figures: dict[str, Any] = {"what": f"{rows:,} inserts of 10 mixed columns waiting in the slot, into a changelog"}
    for name in ("delta", "iceberg"):
        found = catchup_postgres.run(rows, sink=name)
        figures |= {f"{name}_{what}": found[what] for what in ("rows_per_second", "seconds", "python_peak_mb")}
    return {**figures, "ratio": figures["iceberg_rows_per_second"] / figures["delta_rows_per_second"]}
