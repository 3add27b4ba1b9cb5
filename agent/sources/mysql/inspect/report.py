"""Binlog report: describes a binlog file event by event, with decoded row changes, for ``log inspect``.

An unreadable event is shown with its ``problem``, and the next one follows. Values that a sink has to refuse are shown
too: the number of an enum with unknown members, text in an unknown character set, and inserts that are only partially
logged.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa

from agent.errors import DecodeError, SourceError
from agent.ports.log_files import LoggedEvent
from agent.rows.changes import Changes
from agent.rows.schema import LOG_BATCH
from agent.sources.mysql.decode import wire
from agent.sources.mysql.decode.decode import decode
from agent.sources.mysql.decode.table_map import TableMap, parse_table_map
from agent.sources.mysql.inspect import event_words, loose_rows
from agent.sources.mysql.inspect.file import FileEvent, is_mariadb, open_binlog, server_version

_NAMES: Final[Mapping[int, str]] = {
    number: name.lower().replace("_", " ")
    for name, number in vars(wire).items()
    if name.isupper() and not name.startswith("_") and not name.endswith("_AT") and isinstance(number, int)
    if name not in ("HEADER_BYTES", "TRUNCATED", "DUMMY_MAP") and not name.startswith("FLAG_")
}
_MAP_ID_BYTES: Final = 6
#: errors that parsing malformed bytes may raise
_UNREADABLE: Final = (DecodeError, SourceError, ValueError, LookupError, struct.error, zlib.error)


def read_events(path: Path, *, skip: int = 0) -> Iterator[LoggedEvent]:
    """Yield the file's events, without the first ``skip``.

    :raises SourceConfigError: it is not a binlog file.
    :raises DecodeError: it is truncated or damaged, after the yielded events.
    """
    file = open_binlog(path)
    describer = _Describer(is_mariadb=file.is_mariadb)
    for number, event in enumerate(file):
        describer.note(event)
        if number >= skip:
            yield describer.describe(event)


class _Describer:
    """``note`` is called with every event, ``describe`` with those that are shown."""

    def __init__(self, *, is_mariadb: bool) -> None:
        self._is_mariadb = is_mariadb
        self._bodies: dict[bytes, bytes] = {}
        #: table maps, parsed on demand
        self._maps: dict[bytes, TableMap] = {}

    def note(self, event: FileEvent) -> None:
        if event.type == wire.FORMAT_DESCRIPTION:
            self._is_mariadb = is_mariadb(server_version(event.body))
        elif event.type == wire.TABLE_MAP:
            number = event.body[:_MAP_ID_BYTES]
            if self._bodies.get(number) != event.body:
                self._bodies[number] = event.body
                self._maps.pop(number, None)

    def describe(self, event: FileEvent) -> LoggedEvent:
        name = _NAMES.get(event.type, f"type {event.type}")
        if event.damage:
            return _logged(event, "damage", problem=event.damage)
        try:
            if event.type == wire.TABLE_MAP:
                schema = self._map(event.body[:_MAP_ID_BYTES]).schema
                columns = ", ".join(f"{column.name} {column.type_name}".strip() for column in schema.columns)
                return _logged(event, name, columns, schema.qualified_name)
            if event.type in wire.ROWS:
                return self._rows(event, name)
            return _logged(event, name, event_words.words(event))
        except _UNREADABLE as error:
            return _logged(event, name, problem=_reason(error))

    def _rows(self, event: FileEvent, name: str) -> LoggedEvent:
        number = event.body[:_MAP_ID_BYTES]
        if number not in self._bodies:
            map_id = int.from_bytes(number, "little")
            what = "the statement ends" if map_id == wire.DUMMY_MAP else f"of table {map_id}, whose map is not here"
            return _logged(event, name, what)
        table = self._map(number)
        try:
            changes = _decoded(table, event)
        except _UNREADABLE as error:
            return _logged(event, name, table=table.schema.qualified_name, problem=_reason(error))
        return _logged(event, name, table=table.schema.qualified_name, changes=changes)

    def _map(self, number: bytes) -> TableMap:
        if number not in self._maps:
            self._maps[number] = parse_table_map(self._bodies[number], is_mariadb=self._is_mariadb)
        return self._maps[number]


def _logged(
    event: FileEvent, name: str, what: str = "", table: str = "", changes: Changes | None = None, problem: str = ""
) -> LoggedEvent:
    return LoggedEvent(event.at, event.time, name, what, table, changes, problem)


def _decoded(known: TableMap, event: FileEvent) -> Changes:
    schema, line = loose_rows.readable(known.schema, bytes([event.type]) + event.body)
    columns = [pa.array([event.at]), pa.array([0]), pa.array([line], pa.large_binary())]
    return decode(schema, pa.record_batch(columns, schema=LOG_BATCH))


def _reason(error: Exception) -> str:
    if isinstance(error, DecodeError | SourceError):
        return str(error)
    return f"its bytes are not those of such an event ({error or type(error).__name__})"
