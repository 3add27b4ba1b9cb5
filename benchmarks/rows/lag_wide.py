"""lag-wide: lag of 50 changing tables among 1,000, and the cost of the quiet ones.

The fifty are chosen in turn. What a capture uses while nothing changes is measured twice, with a changefeed of 100 of
the tables and with one of all: the peer is the smaller one.
"""

import threading
import time
from typing import Any

from benchmarks.rows.lag_mysql import lags_while, percentile
from benchmarks.support.bed import Bed, bed
from benchmarks.support.servers import DATABASE, MariaServer
from reactor.records.changefeed import Mode, SinkMode

TABLES = 1_000
SECONDS = 60
_FEW = 100
_ACTIVE = 50
#: how long the same fifty tables change
_STAY_S = 5.0
_ROUNDS_PER_SECOND = 4
_QUIET_S = 20.0
_SETTLE_S = 5.0
_TABLE = "CREATE TABLE t{number:04d} (id int PRIMARY KEY, version int NOT NULL, note varchar(100) NOT NULL)"
_WRITE = "INSERT INTO t{number:04d} VALUES {rows} ON DUPLICATE KEY UPDATE version = version + 1"
#: so that rows are inserted first, and updated later
_KEYS = 30
_ROWS = 3


def run(tables: int = TABLES, seconds: int = SECONDS) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "what": f"{tables:,} tables, {_ACTIVE} of which change, {_ACTIVE * _ROUNDS_PER_SECOND * _ROWS:,} changes/s for "
        f"{seconds} s; commit in the source to visible in Delta (upsert); CPU of a capture with nothing to do"
    }
    with bed(MariaServer) as found:
        for number in range(tables):
            found.execute(_TABLE.format(number=number))
        few = _quiet(found, "few", rules=("*.t00*",))
        wide = _quiet(found, "wide", rules=("*.*",), stays=True)
        stop = threading.Event()
        writer = threading.Thread(target=_write, args=(found, tables, stop))
        writer.start()
        ended = time.monotonic() + seconds
        try:
            lags, changes, elapsed_s = lags_while(found, "wide", lambda: time.monotonic() < ended)
        finally:
            stop.set()
            writer.join()
    return {
        **figures,
        "lag_p50_ms": percentile(lags, 50),
        "lag_p99_ms": percentile(lags, 99),
        "lag_max_ms": percentile(lags, 100),
        "changes_per_second": round(changes / elapsed_s),
        f"idle_cpu_percent_{tables}_tables": round(100 * wide, 2),
        f"idle_cpu_percent_{_FEW}_tables": round(100 * few, 2),
        "ratio": wide / few,
    }


def _quiet(found: Bed, name: str, *, rules: tuple[str, ...], stays: bool = False) -> float:
    """Return the share of a core that the capture uses with a changefeed of these tables."""
    found.create(name, sink_mode=SinkMode.UPSERT, mode=Mode.INCREMENTAL, rules=rules)
    found.wait_sync(name)
    time.sleep(_SETTLE_S)
    started = time.monotonic()
    with found.watched(probe=False) as usage:
        time.sleep(_QUIET_S)
    elapsed_s = time.monotonic() - started
    if not stays:
        found.client.remove(name)
    return usage.cpu_s / elapsed_s


def _write(found: Bed, tables: int, stop: threading.Event) -> None:
    """Write in rounds; each table's rows of one round are a transaction."""
    server = found.server
    assert isinstance(server, MariaServer)
    begun, number = time.monotonic(), 0
    with server.part.connect(DATABASE) as connection, connection.cursor() as cursor:
        while not stop.wait(max(0.0, begun + number / _ROUNDS_PER_SECOND - time.monotonic())):
            stay = int(number / _ROUNDS_PER_SECOND / _STAY_S)
            keys = ((number * _ROWS + at) % _KEYS for at in range(_ROWS))
            rows = ", ".join(f"({key}, 1, 'round {number}')" for key in keys)
            for at in range(_ACTIVE):
                cursor.execute(_WRITE.format(number=(stay * _ACTIVE + at * 7) % tables, rows=rows))
                connection.commit()
            number += 1
