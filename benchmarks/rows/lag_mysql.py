"""lag-mysql: time from a commit in MariaDB until it is in Delta, at 5,000 changes per second over 20 tables.

Tables have 100,000 rows. Into upserted tables (with deletion vectors) and into a changelog. The peer is
python-mysql-replication, which only reads: the delay until it sees a row that carries the time at which it was written.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from pymysqlreplication import BinLogStreamReader

from agent.sources.mysql.position.consistency import Place
from agent.sources.mysql.position.positions import BinlogPosition
from benchmarks.support.bed import Bed, bed
from benchmarks.support.binlog import binlog_reader
from benchmarks.support.servers import DATABASE, MariaServer
from reactor.records.changefeed import SinkMode

SECONDS = 60
_TABLES = 20
_ROWS = 100_000
_TRANSACTIONS_PER_SECOND = 1_250
#: without them, every flush rewrites tables of this size
_VECTORS = "deletion_vectors=true"
_POLL_S = 0.05
_MARK_S = 0.25


def run(seconds: int = SECONDS) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "what": f"{_TRANSACTIONS_PER_SECOND * 4:,} changes/s over {_TABLES} tables of {_ROWS:,} rows for {seconds} s; "
        "commit in the source to visible in Delta"
    }
    with bed(MariaServer) as found:
        found.run_tool("sysbench", "oltp_write_only", f"--tables={_TABLES}", f"--table-size={_ROWS}", "prepare")
        for mode in (SinkMode.UPSERT, SinkMode.CHANGELOG):
            options = _VECTORS if mode is SinkMode.UPSERT else ""
            found.create(mode.value, sink_mode=mode, sink_options=options)
            found.wait_sync(mode.value)
            lags, changes, elapsed_s = _measure(found, mode.value, seconds)
            figures |= {
                f"{mode.value}_p50_ms": percentile(lags, 50),
                f"{mode.value}_p99_ms": percentile(lags, 99),
                f"{mode.value}_changes_per_second": round(changes / elapsed_s),
            }
            found.client.remove(mode.value)
        figures["python_mysql_replication_p50_ms"] = peer = _peer(found, seconds // 4)
    ours = figures["changelog_p50_ms"]
    return {**figures, "ratio": ours / peer if ours and peer else None}


def _measure(found: Bed, name: str, seconds: int) -> tuple[list[float], int, float]:
    with found.tool_running(*_load(seconds)) as load:
        return lags_while(found, name, lambda: load.poll() is None)


def lags_while(found: Bed, name: str, is_loaded: Callable[[], bool]) -> tuple[list[float], int, float]:
    """Return lags in ms, the number of changes, and the seconds it took. MariaDB reports commit times in seconds only,
    so the end of the binlog is polled, and when the checkpoint has reached it."""
    before = found.client.query(name).changes
    started = time.monotonic()
    waiting: deque[tuple[float, int]] = deque()
    lags: list[float] = []
    elapsed_s = 0.0
    server = found.server
    assert isinstance(server, MariaServer)
    with server.part.connect(DATABASE) as connection, connection.cursor() as cursor:
        while waiting or not elapsed_s:
            if not elapsed_s:
                waiting.append((time.monotonic(), _last_ts(cursor)))
            checkpoint_ts = found.client.query(name).checkpoint_ts
            while waiting and waiting[0][1] <= checkpoint_ts:
                lags.append((time.monotonic() - waiting.popleft()[0]) * 1000)
            time.sleep(_POLL_S)
            if not elapsed_s and not is_loaded():
                elapsed_s = time.monotonic() - started
    return lags, found.client.query(name).changes - before, elapsed_s


def _last_ts(cursor: Any) -> int:
    """Like ``Bed.last_ts``, but over an open connection: opening one takes longer than the query."""
    cursor.execute("SHOW MASTER STATUS")
    file, position, *_ = cursor.fetchone()
    return int(Place(BinlogPosition(file, int(position))).ts(0))


def percentile(lags: list[float], percent: int) -> float | None:
    return round(sorted(lags)[min(len(lags) - 1, len(lags) * percent // 100)], 1) if lags else None


def _peer(found: Bed, seconds: int) -> float | None:
    """Return the median delay of the marks."""
    found.execute("CREATE TABLE mark (id int PRIMARY KEY AUTO_INCREMENT, written double NOT NULL)")
    lags: list[float] = []
    with found.tool_running(*_load(seconds)) as load:
        reader = _reader(found)
        thread = threading.Thread(target=_read_marks, args=(reader, lags))
        thread.start()
        while load.poll() is None:
            found.execute(f"INSERT INTO mark (written) VALUES ({time.time()!r})")
            time.sleep(_MARK_S)
        found.execute("INSERT INTO mark (written) VALUES (0)")
        thread.join()
    return percentile(lags, 50)


def _reader(found: Bed) -> BinLogStreamReader:
    server = found.server
    assert isinstance(server, MariaServer)
    [[file, position, *_]] = found.execute("SHOW MASTER STATUS")
    return binlog_reader(server, (str(file), int(str(position))), blocking=True)


def _read_marks(reader: BinLogStreamReader, lags: list[float]) -> None:
    """Read until the end mark."""
    try:
        for event in reader:
            if (event.schema, event.table) != (DATABASE, "mark"):
                continue
            for row in event.rows:
                written = row["values"]["written"]
                if not written:
                    return
                lags.append((time.time() - written) * 1000)
    finally:
        reader.close()


def _load(seconds: int) -> list[str]:
    load = ["sysbench", "oltp_write_only", f"--tables={_TABLES}", f"--table-size={_ROWS}", "--threads=4"]
    return [*load, f"--time={seconds}", f"--rate={_TRANSACTIONS_PER_SECOND}", "run"]
