"""large-transaction: the capture's memory under a transaction of 10 million rows that contains a rolled-back savepoint.

Once into a changelog, once into an upserted table. There two more follow: one changes all of these rows and deletes
every tenth, one changes the rest, with only the changed column in the binlog. The peer is mariadb-binlog, which copies
the same binlog to a file.
"""

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from benchmarks.support.bed import Bed, bed
from benchmarks.support.servers import DATABASE, MariaServer
from reactor.records.changefeed import Mode, SinkMode

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
    copied = 4 * rows
    return {
        **figures,
        "mariadb_binlog_rows_per_second": round(copied / peer),
        "ratio": figures["changelog_rows_per_second"] * peer / copied,
    }


def measure(found: Bed, mode: SinkMode, rows: int) -> dict[str, Any]:
    """Measure from each commit on. ``*_equal``: the rows of the upserted table equal the server's."""
    name = mode.value
    found.execute(_TABLE.format(name=name))
    found.create(name, sink_mode=mode, mode=Mode.INCREMENTAL, rules=(f"*.{name}",))
    found.wait_sync(name)
    figures = _followed(found, name, name, _new_rows(name, rows), rows)
    figures[f"{name}_rows_in_delta"] = _stored(found, name)[0]
    if mode is SinkMode.UPSERT:
        figures |= _followed(found, name, f"{name}_changes", _changed_rows(name), rows + rows // 10)
        figures[f"{name}_changes_equal"] = _stored(found, name) == _at_the_server(found, name)
        left_out = ("SET SESSION binlog_row_image = MINIMAL", "BEGIN", f"UPDATE {name} SET k = k + 1")
        figures |= _followed(found, name, f"{name}_left_out", left_out, rows - rows // 10)
        figures[f"{name}_left_out_equal"] = _stored(found, name) == _at_the_server(found, name)
    found.client.remove(name)
    return figures


def _followed(found: Bed, name: str, what: str, transaction: Sequence[str], changes: int) -> dict[str, Any]:
    with found.watched() as usage:
        _write(found, transaction)
        started = time.monotonic()
        found.wait_covers(name, found.last_ts())
        seconds = time.monotonic() - started
    return {
        f"{what}_rows_per_second": round(changes / seconds),
        f"{what}_python_peak_mb": round(usage.python_mb),
        f"{what}_java_peak_mb": round(usage.java_mb),
    }


def _new_rows(name: str, rows: int) -> tuple[str, ...]:
    last, half = rows + _ROLLED_BACK, rows // 2
    return (
        "BEGIN",
        _INSERT.format(name=name, first=1, last=half),
        "SAVEPOINT half",
        _INSERT.format(name=name, first=rows + 1, last=last),
        "ROLLBACK TO half",
        _INSERT.format(name=name, first=half + 1, last=rows),
    )


def _changed_rows(name: str) -> tuple[str, ...]:
    return ("BEGIN", f"UPDATE {name} SET k = k + 1, note = CONCAT('new ', id)", f"DELETE FROM {name} WHERE id % 10 = 3")


def _write(found: Bed, transaction: Sequence[str]) -> None:
    server = found.server
    assert isinstance(server, MariaServer)
    with server.part.connect(DATABASE) as connection, connection.cursor() as cursor:
        for statement in (*transaction, "COMMIT"):
            cursor.execute(statement)


def _stored(found: Bed, name: str) -> tuple[int, int, int, int]:
    """Return the row count, and sums that stale, lost or duplicate rows would change."""
    table = DeltaTable(str(found.lake(name) / DATABASE / name))
    rows = keys = values = length = 0
    for batch in pa.RecordBatchReader.from_stream(table.scan(columns=["id", "k", "note"])):
        rows += batch.num_rows
        keys += pc.sum(batch.column("id")).as_py() or 0
        values += (
            pc.sum(pc.multiply(batch.column("id").cast(pa.int64()), batch.column("k").cast(pa.int64()))).as_py() or 0
        )
        length += pc.sum(pc.binary_length(batch.column("note").cast(pa.string()))).as_py() or 0
    return rows, keys, values, length


def _at_the_server(found: Bed, name: str) -> tuple[int, ...]:
    [row] = found.execute(f"SELECT COUNT(*), SUM(id), SUM(id * k), SUM(LENGTH(note)) FROM {name}")
    return tuple(int(str(value)) for value in row)


def _peer(found: Bed) -> float:
    """Return the seconds for the whole binlog."""
    files = [str(file) for file, *_ in found.execute("SHOW BINARY LOGS")]
    options = ["--read-from-remote-server", "--raw", f"--result-file={found.directory}/copy-"]
    return found.run_tool("mariadb-binlog", *options, *files)
