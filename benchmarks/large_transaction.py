"""One transaction of 10 million rows in MariaDB, with a savepoint rolled back in it: does the capture's memory hold?

Once into a changelog, once into an upserted table. The peer is mariadb-binlog, which copies the same binlog to a file.
"""

import time
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from benchmarks._bed import Bed, bed
from benchmarks._servers import DATABASE, MariaServer
from reactor.records import Mode, SinkMode

ROWS = 10_000_000
_ROLLED_BACK = 100_000
_TABLE = "CREATE TABLE {name} (id int PRIMARY KEY, k int NOT NULL, note varchar(40) NOT NULL)"
_INSERT = "INSERT INTO {name} SELECT seq, seq % 1000, CONCAT('row ', seq) FROM seq_{first}_to_{last}"


def run(rows: int = ROWS) -> dict[str, Any]:
    figures: dict[str, Any] = {"what": f"one transaction of {rows:,} rows, {_ROLLED_BACK:,} more rolled back in it"}
    with bed(MariaServer) as found:
        for mode in (SinkMode.CHANGELOG, SinkMode.UPSERT):
            figures |= measure(found, mode, rows)
        peer = _peer(found)
    return {
        **figures,
        "mariadb_binlog_rows_per_second": round(2 * rows / peer),
        "ratio": figures["changelog_rows_per_second"] * peer / (2 * rows),
    }


def measure(found: Bed, mode: SinkMode, rows: int) -> dict[str, Any]:
    """From the commit on; what is in Delta is counted."""
    name = mode.value
    found.execute(_TABLE.format(name=name))
    found.create(name, sink_mode=mode, mode=Mode.INCREMENTAL, rules=(f"*.{name}",))
    found.wait_sync(name)
    with found.watched() as usage:
        _write(found, name, rows)
        started = time.monotonic()
        found.wait_covers(name, found.last_ts())
        seconds = time.monotonic() - started
    found.client.remove(name)
    return {
        f"{name}_rows_per_second": round(rows / seconds),
        f"{name}_rows_in_delta": _count(found, name),
        f"{name}_python_peak_mb": round(usage.python_mb),
        f"{name}_java_peak_mb": round(usage.java_mb),
    }


def _write(found: Bed, name: str, rows: int) -> None:
    server = found.server
    assert isinstance(server, MariaServer)
    last, half = rows + _ROLLED_BACK, rows // 2
    with server.part.connect(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(_INSERT.format(name=name, first=1, last=half))
        cursor.execute("SAVEPOINT half")
        cursor.execute(_INSERT.format(name=name, first=rows + 1, last=last))
        cursor.execute("ROLLBACK TO half")
        cursor.execute(_INSERT.format(name=name, first=half + 1, last=rows))
        cursor.execute("COMMIT")


def _count(found: Bed, name: str) -> int:
    table = DeltaTable(str(found.lake(name) / DATABASE / name))
    return sum(batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.scan(columns=["id"])))


def _peer(found: Bed) -> float:
    """Seconds for all of the binlog."""
    files = [str(file) for file, *_ in found.execute("SHOW BINARY LOGS")]
    options = ["--read-from-remote-server", "--raw", f"--result-file={found.directory}/copy-"]
    return found.run_tool("mariadb-binlog", *options, *files)
