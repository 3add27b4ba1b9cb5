"""What waits in MariaDB's binlog: how fast does it come into Delta, and how fast does python-mysql-replication read it?

Three backlogs: 2 M sysbench rows in large transactions into a changelog, the same rows into an upserted table, and
transactions of one row each into a changelog. The peer only reads, from the same place, for a shorter while.
"""

import time
from typing import Any

from benchmarks._bed import Bed, bed
from benchmarks._binlog import binlog_reader
from benchmarks._servers import MariaServer
from reactor.records import Mode, SinkMode

ROWS = 2_000_000
TRANSACTIONS = 300_000
ROWS_PER_COMMIT = 10_000
_PEER_ROWS = 200_000

#: sysbench's own table and rows
TABLE = """
CREATE TABLE {name} (
    id int NOT NULL AUTO_INCREMENT, k int NOT NULL DEFAULT 0, c char(120) NOT NULL DEFAULT '',
    pad char(60) NOT NULL DEFAULT '', PRIMARY KEY (id)
)
"""
_TEXT = "CONCAT_WS('-', {groups})"
_GROUP = "LPAD(FLOOR(RAND() * 1e11), 11, '0')"
_ROW = f"FLOOR(RAND() * 1000000), {_TEXT.format(groups=', '.join([_GROUP] * 10))}, " + _TEXT.format(
    groups=", ".join([_GROUP] * 5)
)
INSERT = f"INSERT INTO {{name}} (k, c, pad) SELECT {_ROW} FROM seq_1_to_{ROWS_PER_COMMIT}"
_LOOP = f"""
BEGIN NOT ATOMIC
    FOR i IN 1..{{count}} DO INSERT INTO {{name}} (k, c, pad) SELECT {_ROW}; END FOR;
END
"""


def run(rows: int = ROWS, transactions: int = TRANSACTIONS) -> dict[str, Any]:
    with bed(MariaServer) as found:
        peer_rate = 0.0
        figures: dict[str, Any] = {"what": f"{rows:,} sysbench rows waiting in the binlog, into Delta"}
        for mode in (SinkMode.CHANGELOG, SinkMode.UPSERT):
            place = _prepare(found, mode.value)
            for _ in range(rows // ROWS_PER_COMMIT):
                found.execute(INSERT.format(name=mode.value))
            peer_rate = peer_rate or _peer(found, place)
            figures |= _measure(found, mode.value, rows)
        _prepare(found, "single", mode=SinkMode.CHANGELOG)
        found.execute(_LOOP.format(name="single", count=transactions))
        figures |= _measure(found, "single", transactions)
    ratio = figures["changelog_rows_per_second"] / peer_rate
    return {**figures, "python_mysql_replication_rows_per_second": round(peer_rate), "ratio": ratio}


def _prepare(found: Bed, name: str, *, mode: SinkMode | None = None) -> tuple[str, int]:
    """A changefeed that has come to where the backlog will begin, and stands there; that place in the binlog."""
    found.execute(TABLE.format(name=name))
    found.create(name, sink_mode=mode or SinkMode(name), mode=Mode.INCREMENTAL, rules=(f"*.{name}",))
    found.wait_sync(name)
    found.client.pause(name)
    [[file, position, *_]] = found.execute("SHOW MASTER STATUS")
    return str(file), int(str(position))


def _measure(found: Bed, name: str, count: int) -> dict[str, Any]:
    ts = found.last_ts()
    with found.watched() as usage:
        started = time.monotonic()
        found.client.resume(name)
        found.wait_covers(name, ts)
        seconds = time.monotonic() - started
    found.client.remove(name)
    return {
        f"{name}_rows_per_second": round(count / seconds),
        f"{name}_rows_per_cpu_second": round(count / usage.cpu_s),
        f"{name}_python_peak_mb": round(usage.python_mb),
        f"{name}_java_peak_mb": round(usage.java_mb),
    }


def _peer(found: Bed, place: tuple[str, int]) -> float:
    """Rows a second."""
    server = found.server
    assert isinstance(server, MariaServer)
    reader = binlog_reader(server, place)
    seen, started = 0, time.monotonic()
    try:
        for event in reader:
            seen += len(event.rows)
            if seen >= _PEER_ROWS:
                break
    finally:
        reader.close()
    return seen / (time.monotonic() - started)
