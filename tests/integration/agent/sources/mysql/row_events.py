"""The row events of one table, taken from a running server's binlog files as the change log would hold them."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from agent.rows.schema import LOG_BATCH, TableSchema
from agent.sources.mysql.decode.table_map import parse_table_map
from agent.sources.mysql.inspect.file import open_binlog
from agent.sources.mysql.position.positions import pack, split_file_name
from capture.embedded import EmbeddedMariaDB
from tests.mysql_server import is_mariadb

_TABLE_MAP, _GTIDS = 19, (33, 162)
_ROWS = frozenset({23, 24, 25, 30, 31, 32, 39, 166, 167, 168, 169, 170, 171})
_SEQ_STEP = 1 << 20


@dataclass
class _Log:
    schema: TableSchema
    lines: list[tuple[int, int, bytes]] = field(default_factory=list)

    @property
    def batch(self) -> pa.RecordBatch:
        ts, seq, event = zip(*self.lines, strict=True)
        return pa.RecordBatch.from_arrays(
            [pa.array(ts, pa.int64()), pa.array(seq, pa.int64()), pa.array(event, pa.large_binary())], schema=LOG_BATCH
        )


def new_binlog(server: EmbeddedMariaDB) -> str:
    """Begin a file of its binlog, so that a test need not read what the tests before it have written."""
    server.execute("FLUSH BINARY LOGS")
    return _binlogs(server)[-1]


def table_events(
    server: EmbeddedMariaDB, schema_name: str, name: str, *, since: str
) -> list[tuple[TableSchema, pa.RecordBatch]]:
    """One batch for each version of the table, in order; positions in epoch 0. ``since``: the first file that is
    read."""
    logs: list[_Log] = []
    mine: dict[int, bool] = {}
    for ts, seq, kind, body in _events(server, since):
        map_id = int.from_bytes(body[:6], "little")
        if kind == _TABLE_MAP:
            schema = parse_table_map(body, is_mariadb=is_mariadb(server)).schema
            mine[map_id] = (schema.schema_name, schema.name) == (schema_name, name)
            if mine[map_id] and (not logs or logs[-1].schema != schema):
                logs.append(_Log(schema))
        elif kind in _ROWS and mine.get(map_id):
            logs[-1].lines.append((ts, seq, bytes([kind]) + body))
    return [(log.schema, log.batch) for log in logs if log.lines]


def _binlogs(server: EmbeddedMariaDB) -> list[str]:
    """In the order in which they were written."""
    return [str(file) for file, *_ in server.execute("SHOW BINARY LOGS")]


def _events(server: EmbeddedMariaDB, since: str) -> Iterator[tuple[int, int, int, bytes]]:
    ts = seq = 0
    files = _binlogs(server)
    for file in files[files.index(since) :]:
        for event in open_binlog(server.data_directory / file):
            if event.type in _GTIDS:
                ts, seq = pack(0, split_file_name(file)[1], event.at), 0
            seq += _SEQ_STEP
            yield ts, seq, event.type, event.body
