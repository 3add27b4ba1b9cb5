"""catchup-mysql: how fast a backlog in MariaDB's binlog is replicated to Delta, against python-mysql-replication.

Three backlogs: 2 M sysbench rows in large transactions into a changelog, the same rows into an upserted table, and
transactions of one row each into a changelog. The peer only reads, from the same position, for a shorter time.

A second peer is Debezium, which reads MySQL only (see ``support.debezium``): if MySQL is installed, the first backlog
is repeated there for both.
"""

import time
from typing import Any

from benchmarks.support import debezium
from benchmarks.support.bed import Bed, bed
from benchmarks.support.binlog import binlog_reader
from benchmarks.support.debezium import Debezium
from benchmarks.support.servers import MariaServer, MysqlServer
from reactor.records.changefeed import Mode, SinkMode
from tests import mysql_package

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
            _fill(found, mode.value, rows)
            peer_rate = peer_rate or _peer(found, place)
            figures |= _measure(found, mode.value, rows)
        _prepare(found, "single", mode=SinkMode.CHANGELOG)
        found.execute(_LOOP.format(name="single", count=transactions))
        figures |= _measure(found, "single", transactions)
    ratio = figures["changelog_rows_per_second"] / peer_rate
    figures |= {"python_mysql_replication_rows_per_second": round(peer_rate), "ratio": ratio}
    return figures | beside_debezium(rows)


def beside_debezium(rows: int) -> dict[str, Any]:
    """Measure the changelog on MySQL, and Debezium reading the same binlog; return only the reason if one is
    missing."""
    if reason := debezium.why_not() or mysql_package.why_not():
        return {"debezium": f"not measured: {reason}"}
    name = "mysql"
    with bed(MysqlServer) as found:
        server = found.server
        assert isinstance(server, MysqlServer)
        _prepare(found, name, mode=SinkMode.CHANGELOG)
        peer = Debezium(found.directory, server, name)
        _fill(found, name, rows)
        figures = _measure(found, name, rows)
        read = peer.read(rows)
    figures["debezium_rows_per_second"] = rate = round(read.rows / read.seconds)
    figures["debezium_rows_per_cpu_second"] = round(read.rows / read.cpu_s)
    return figures | {"debezium_ratio": figures[f"{name}_rows_per_second"] / rate}


def _prepare(found: Bed, name: str, *, mode: SinkMode | None = None) -> tuple[str, int]:
    """Create a changefeed, wait until it has caught up, and pause it; return the binlog position where the backlog will
    begin."""
    found.execute(TABLE.format(name=name))
    found.create(name, sink_mode=mode or SinkMode(name), mode=Mode.INCREMENTAL, rules=(f"*.{name}",))
    found.wait_sync(name)
    found.client.pause(name)
    [[file, position, *_]] = found.execute("SHOW MASTER STATUS")
    return str(file), int(str(position))


def _fill(found: Bed, name: str, rows: int) -> None:
    for _ in range(rows // ROWS_PER_COMMIT):
        found.execute(INSERT.format(name=name))


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
    """Return the peer's rows per second."""
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
