"""Start positions: finds the binlog position at which a stream with a given ``--start-ts`` begins, or refuses it.

A stream begins with the first transaction whose Ts is greater. From there on everything must be available: the binlog
files, and the current table definitions, since earlier ones are unknown. So a start is refused before the oldest
binlog file, past the end, and before a change of a table.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from agent.errors import SourceConfigError
from agent.rows.schema import Column, TableSchema
from agent.sources.common.starts import refuse_future
from agent.sources.mysql.ddl.parser import parse as ddl
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.parser.edits import Created, DatabaseDefined, DatabaseDropped, Edit, Rebuilt, Renamed
from agent.sources.mysql.position.event_list import ListedEvent, list_events
from agent.sources.mysql.position.positions import (
    FIRST_POSITION,
    BinlogPosition,
    SourcePosition,
    pack,
    split_file_name,
    unpack,
)
from agent.sources.mysql.position.resume import current_position, position_at
from agent.sources.mysql.server.connection import Connection
from reactor.ids import Ts

_NO_TYPE = -1
_CURE = "give a later --start-ts, or leave it out to start from now"


def start_position(connection: Connection, start_ts: Ts) -> SourcePosition:
    """Return the position of the first transaction after ``start_ts``.

    :raises SourceConfigError: the binlog does not contain that position.
    """
    now = current_position(connection)
    refuse_future(now.resolved, start_ts, connection.target)
    epoch, number, offset = unpack(Ts(start_ts + 1))
    if epoch != 0:
        raise SourceConfigError(
            f"start Ts {start_ts} counts in the binlog of another server, of a changefeed that continued here after a "
            f"fail-over; {_CURE}"
        )
    files = _files(connection)
    if number not in files:
        raise SourceConfigError(
            f"{connection.target} has no binlog file of number {number}, where start Ts {start_ts} lies: its oldest is "
            f"{files[min(files)]}; {_CURE}"
        )
    if number == now.file_number and offset >= now.position:
        return now
    for later in sorted(later for later in files if later >= number):
        begin = _first_from(connection, files[later], offset if later == number else FIRST_POSITION)
        if begin is not None:
            return position_at(connection, pack(0, later, begin))
    return now


def _first_from(connection: Connection, file: str, offset: int) -> int | None:
    """Return the offset of the first transaction that begins at or after ``offset``."""
    for event in list_events(connection, file):
        if event.begin >= offset and event.opens_transaction:
            return event.begin
    return None


def check_unchanged(
    connection: Connection, begin: SourcePosition, schemas: Mapping[Name, TableSchema], *, folds_names: bool
) -> None:
    """Check that the tables have not changed since ``begin``.

    :raises SourceConfigError: a statement has changed a table.
    """
    # with unlike types, so that a statement has an effect even if the tables already have its result
    unlike = {name: replace(schema, columns=tuple(map(_unlike, schema.columns))) for name, schema in schemas.items()}
    for event in _events_from(connection, begin.binlog):
        database, statement = event.statement
        if not statement:
            continue
        edits = ddl.parse_ddl(statement, database, unlike, is_mariadb=connection.is_mariadb, folds_names=folds_names)
        for edit in edits:
            if name := _changed(edit, schemas):
                raise SourceConfigError(
                    f"{'.'.join(name)} was changed after the start ({' '.join(statement.split())[:80]}), so rows from "
                    f"before have columns that are not known; {_CURE}"
                )


def _unlike(column: Column) -> Column:
    return replace(column, type_id=_NO_TYPE, type_name="")


def _events_from(connection: Connection, begin: BinlogPosition) -> Iterator[ListedEvent]:
    files = _files(connection)
    first = split_file_name(begin.file)[1]
    for number in sorted(number for number in files if number >= first):
        yield from list_events(connection, files[number], begin.position if number == first else FIRST_POSITION)


def _changed(edit: Edit, schemas: Mapping[Name, TableSchema]) -> Name | None:
    """Return the replicated table whose columns an edit changes; a created one has all its rows after the start."""
    match edit:
        case Created(reason="") | DatabaseDefined() | Rebuilt():
            return None
        case DatabaseDropped(database):
            return next((name for name in schemas if name[0] == database), None)
        case Renamed(table, to, _):
            return next((name for name in (table, to) if name in schemas), None)
        case _:
            return edit.table if edit.table in schemas else None


def _files(connection: Connection) -> dict[int, str]:
    """Return the binlog files by number."""
    names = [str(row[0]) for row in connection.query("SHOW BINARY LOGS")]
    return {split_file_name(name)[1]: name for name in names}
