"""decode-mysql: row events of a real binlog into Arrow, against python-mysql-replication.

MariaDB writes the events. Only decoding from memory is measured, in rows per CPU-second of this process: sysbench's
rows (in events of many rows, and of one row each as one-row transactions write them), and updates of ten mixed columns
with NULLs that carry both images. The peer reads the same inserts from the same server into Python dicts, including
reading the socket.
"""

import gc
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent

from agent.rows.schema import LOG_BATCH, TableSchema
from agent.sources.mysql.decode.decode import decode
from agent.sources.mysql.decode.table_map import parse_table_map
from agent.sources.mysql.decode.wire import DELETE_V2, TABLE_MAP, WRITE_V1
from agent.sources.mysql.inspect.file import open_binlog
from capture.embedded.mariadb import EmbeddedMariaDB

_DATABASE = "bench"
_SYSBENCH_ROWS, _MIXED_ROWS, _PEER_ROWS, _SINGLE_ROWS = 200_000, 100_000, 20_000, 20_000
#: as large as a segment of the change log
_BATCH_BYTES = 16 << 20
_PART = "LPAD(FLOOR(RAND() * 1e11), 11, '0')"
_SYSBENCH = """CREATE TABLE {name} (id int NOT NULL AUTO_INCREMENT PRIMARY KEY, k int NOT NULL DEFAULT 0,
    c char(120) NOT NULL DEFAULT '', pad char(60) NOT NULL DEFAULT '', KEY k_1 (k))"""
_SYSBENCH_INSERT = f"""INSERT INTO {{name}} SELECT seq, FLOOR(RAND() * {_SYSBENCH_ROWS}),
    CONCAT_WS('-', {", ".join([_PART] * 10)}), CONCAT_WS('-', {", ".join([_PART] * 5)}) FROM seq_1_to_{{last}}"""
_MIXED = """CREATE TABLE mixed (id int PRIMARY KEY, big bigint, note text, label varchar(40), price decimal(12,2),
    at datetime(6), day date, flag tinyint unsigned, ratio double, mood enum('sad','ok','happy'))"""
_MIXED_INSERT = f"""INSERT INTO mixed SELECT seq, IF(seq % 10, seq * 7919, NULL),
    IF(seq % 7, CONCAT('some text value ', seq), NULL), IF(seq % 11, CONCAT('label ', seq % 1000), NULL),
    IF(seq % 5, (seq % 1000000) / 100, NULL), '2024-01-01' + INTERVAL seq SECOND,
    IF(seq % 13, '2020-01-01' + INTERVAL seq % 3000 DAY, NULL), seq % 2, IF(seq % 17, seq / 3.0, NULL),
    IF(seq % 19, 1 + seq % 3, NULL) FROM seq_1_to_{_MIXED_ROWS}"""
_MIXED_UPDATE = "UPDATE mixed SET big = id, at = at + INTERVAL 1 MICROSECOND, note = CONCAT(IFNULL(note, ''), '!')"

Batches = tuple[TableSchema, list[pa.RecordBatch]]


def run(rows: int = 2_000_000) -> dict[str, object]:
    """Decode each set of events repeatedly until ``rows`` rows are decoded."""
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as directory:
        Path(directory).chmod(0o755)
        with EmbeddedMariaDB(Path(directory) / "mariadb", unsafe_no_fsync=True) as server:
            many, single, mixed = _write_events(server)
            peer = _peer_rate(server)
    ours = _rate(many, rows)
    return {
        "what": f"{rows} sysbench rows (int, int, char(120), char(60)), binlog row events to Arrow, from memory",
        "rows_per_cpu_second": round(ours),
        "bytes_per_row": round(sum(batch.column("event").nbytes for batch in many[1]) / _SYSBENCH_ROWS),
        "rows_per_cpu_second_one_row_events": round(_rate(single, rows)),
        "mixed_updates_per_cpu_second": round(_rate(mixed, rows // 2)),
        "peer": "python-mysql-replication: sysbench rows from the server into Python dicts",
        "peer_rows_per_cpu_second": round(peer),
        "ratio": round(ours / peer, 1),
    }


def _write_events(server: EmbeddedMariaDB) -> tuple[Batches, Batches, Batches]:
    server.create_database(_DATABASE)
    many, single, updates = (_written(server, name) for name in ("sbtest", "single", "mixed"))
    return many, single, updates


def _written(server: EmbeddedMariaDB, name: str) -> Batches:
    """Fill the table, and return its row events (of ``mixed``, those of its updates)."""
    with server.connect(_DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute(_MIXED if name == "mixed" else _SYSBENCH.format(name=name))
        if name == "mixed":
            cursor.execute(_MIXED_INSERT)
            cursor.execute("FLUSH BINARY LOGS")
            cursor.execute(_MIXED_UPDATE)
        elif name == "sbtest":
            cursor.execute(_SYSBENCH_INSERT.format(name=name, last=_SYSBENCH_ROWS))
        else:
            insert = _SYSBENCH_INSERT.format(name=name, last=1).replace("SELECT seq", "SELECT NULL")
            loop = f"FOR i IN 1..{_SINGLE_ROWS} DO {insert}; END FOR"
            cursor.execute(f"BEGIN NOT ATOMIC START TRANSACTION; {loop}; COMMIT; END")
        cursor.execute("SHOW MASTER STATUS")
        file = cursor.fetchall()[0][0]
        cursor.execute("FLUSH BINARY LOGS")
    schema, events = _row_events(server.data_directory / file, name)
    return schema, list(_batches(events))


def _row_events(path: Path, name: str) -> tuple[TableSchema, list[bytes]]:
    file = open_binlog(path)
    schemas, events = {}, []
    for event in file:
        if event.type == TABLE_MAP:
            schema = parse_table_map(event.body, is_mariadb=file.is_mariadb).schema
            schemas[schema.name] = schema
        elif WRITE_V1 <= event.type <= DELETE_V2:
            events.append(bytes([event.type]) + event.body)
    return schemas[name], events


def _batches(events: list[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the events as batches of the change log."""
    size = sum(map(len, events))
    step = max(1, len(events) * _BATCH_BYTES // size)
    for start in range(0, len(events), step):
        part = pa.array(events[start : start + step], pa.large_binary())
        zeros = pa.array([0] * len(part), pa.int64())
        yield pa.record_batch([zeros, zeros, part], schema=LOG_BATCH)


def _rate(events: Batches, rows: int) -> float:
    schema, batches = events
    decode(schema, batches[0])
    gc.collect()
    done, started = 0, time.process_time()
    while done < rows:
        for batch in batches:
            done += len(decode(schema, batch))
    return done / (time.process_time() - started)


def _peer_rate(server: EmbeddedMariaDB) -> float:
    address = {"host": "127.0.0.1", "port": server.port, "user": "weir", "password": server.password}
    reader = BinLogStreamReader(
        connection_settings=address,
        server_id=77,
        is_mariadb=True,
        only_events=[WriteRowsEvent],
        only_tables=["sbtest"],
        log_file="binlog.000001",
        log_pos=4,
        resume_stream=True,
        blocking=False,
    )
    try:
        done, started = 0, 0.0
        for event in reader:
            # what precedes the first row event is not measured
            started = started or time.process_time()
            done += len(event.rows)
            if done >= _PEER_ROWS:
                break
        return done / (time.process_time() - started)
    finally:
        reader.close()
