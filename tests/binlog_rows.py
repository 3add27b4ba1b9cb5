"""Row events of a real server's binlog files, as the change log would hold them."""

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from agent.rows.schema import LOG_BATCH, TableSchema
from agent.sources.mysql.decode import wire
from agent.sources.mysql.decode.table_map import TableMap, parse_table_map
from agent.sources.mysql.inspect.file import open_binlog
from capture.embedded.mariadb import EmbeddedMariaDB


@dataclass(frozen=True)
class TableEvents:
    """The row events under one definition of a table, in order."""

    table_map: TableMap
    events: list[bytes] = field(default_factory=list)

    @property
    def schema(self) -> TableSchema:
        return self.table_map.schema

    def batch(self) -> pa.RecordBatch:
        return as_batch(self.events)


def as_batch(events: list[bytes]) -> pa.RecordBatch:
    """Commit Ts from 1000 on, one for each event."""
    count = len(events)
    columns = [
        pa.array(range(1000, 1000 + count), pa.int64()),
        pa.array([0] * count, pa.int64()),
        pa.array(events, pa.large_binary()),
    ]
    return pa.record_batch(columns, schema=LOG_BATCH)


def position(server: EmbeddedMariaDB) -> tuple[str, int]:
    """The current file, and where it ends."""
    file, offset, *_ = server.execute("SHOW MASTER STATUS")[0]
    return str(file), int(offset)


def read_events(server: EmbeddedMariaDB, start: tuple[str, int], table: str) -> list[TableEvents]:
    """The row events of ``table`` from ``start`` to the end of that file: an item for each of its definitions."""
    file = open_binlog(Path(server.data_directory) / start[0])
    found: list[TableEvents] = []
    names: dict[int, str] = {}
    for event in file:
        if event.at < start[1]:
            continue
        if event.type == wire.TABLE_MAP:
            table_map = parse_table_map(event.body, is_mariadb=file.is_mariadb)
            names[table_map.map_id] = table_map.schema.qualified_name
            is_new = not found or found[-1].schema != table_map.schema
            if table_map.schema.qualified_name == table and is_new:
                found.append(TableEvents(table_map))
        elif event.type in wire.ROWS and names[int.from_bytes(event.body[:6], "little")] == table:
            found[-1].events.append(bytes([event.type]) + event.body)
    return found
