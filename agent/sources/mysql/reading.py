"""A binlog file told event by event, with row changes decoded: what ``log inspect`` shows of one."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

import pyarrow as pa

from agent.ports import Changes
from agent.schema import LOG_BATCH
from agent.sources.mysql import events, wire
from agent.sources.mysql.binlog_file import BinlogFile, FileEvent, open_binlog
from agent.sources.mysql.decode import decode
from agent.sources.mysql.table_map import TableMap, parse_table_map

_NAMES: Final[Mapping[int, str]] = {
    number: name.lower().replace("_", " ")
    for name, number in vars(wire).items()
    if name.isupper() and not name.startswith("_") and not name.endswith("_AT") and isinstance(number, int)
    if name not in ("HEADER_BYTES", "TRUNCATED") and not name.startswith("FLAG_")
}
_MAP_ID_BYTES: Final = 6


@dataclass(frozen=True, slots=True)
class ToldEvent:
    """One event. ``what``: what it says, where people can read it. ``changes``: of rows whose table is known."""

    event: FileEvent
    name: str
    what: str = ""
    table: str = ""
    changes: Changes | None = None


def read_events(path: Path) -> Iterator[ToldEvent]:
    """From the file's begin.

    :raises SourceConfigError: it is no binlog file.
    :raises DecodeError: an event that is damaged, or not what its table map says.
    """
    file = open_binlog(path)
    maps: dict[bytes, TableMap] = {}
    for event in file:
        yield _told(file, event, maps)


def _told(file: BinlogFile, event: FileEvent, maps: dict[bytes, TableMap]) -> ToldEvent:
    name = _NAMES.get(event.type, f"type {event.type}")
    if event.type == wire.TABLE_MAP:
        found = parse_table_map(event.body, is_mariadb=file.is_mariadb)
        maps[event.body[:_MAP_ID_BYTES]] = found
        columns = ", ".join(f"{column.name} {column.type_name}".strip() for column in found.schema.columns)
        return ToldEvent(event, name, columns, found.schema.qualified_name)
    if event.type in wire.ROWS and (known := maps.get(event.body[:_MAP_ID_BYTES])):
        return ToldEvent(event, name, table=known.schema.qualified_name, changes=_decoded(known, event))
    return ToldEvent(event, name, _words(file, event))


def _decoded(known: TableMap, event: FileEvent) -> Changes:
    line = pa.array([bytes([event.type]) + event.body], pa.large_binary())
    return decode(known.schema, pa.record_batch([pa.array([event.at]), pa.array([0]), line], schema=LOG_BATCH))


def _words(file: BinlogFile, event: FileEvent) -> str:
    body = event.body
    match event.type:
        case wire.QUERY | wire.QUERY_COMPRESSED:
            query = events.parse_query(body, is_compressed=event.type == wire.QUERY_COMPRESSED)
            return f"USE {query.database}; {query.statement}" if query.database else query.statement
        case wire.MARIADB_GTID:
            sequence, domain = struct.unpack_from("<QI", body)
            return f"{domain}-{event.server_id}-{sequence}"
        case wire.GTID:
            return f"{UUID(bytes=body[1:17])}:{int.from_bytes(body[17:25], 'little')}"
        case wire.TAGGED_GTID:
            tagged = events.parse_tagged_gtid(body)
            return f"{tagged.source}:{tagged.number}"
        case wire.ROTATE:
            return body[8:].decode(errors="replace")
        case wire.ANNOTATE:
            return body.decode(errors="replace")
        case wire.ROWS_QUERY:
            return body[1:].decode(errors="replace")
        case wire.FORMAT_DESCRIPTION:
            return file.server_version
        case wire.INCIDENT:
            return events.parse_incident(body)
    return ""
