"""Guard of interpretation: an error in what one table's statement means holds that table alone."""

import contextlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

import structlog

from agent.errors import is_of_table
from agent.sources.mysql.ddl import reasons
from agent.sources.mysql.ddl.changing import ChangingTables
from agent.sources.mysql.ddl.copies.copies import Copies
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.parser.edits import DatabaseDefined, DatabaseDropped, Edit, Renamed
from agent.sources.mysql.ddl.replicated_tables import KnownTables

_log = structlog.get_logger()


def concerned(edit: Edit, known: KnownTables) -> list[Name]:
    """Return the tables whose state an edit changes."""
    match edit:
        case DatabaseDefined():
            return []
        case DatabaseDropped(database):
            return [name for name in known.by_name if name[0] == database]
        case Renamed(table, to):
            return [table, to]
    return [edit.table]


@contextlib.contextmanager
def holding(
    names: list[Name],
    event: DdlEvent,
    changes: ChangingTables,
    copies: Copies,
    wants: Callable[[str, str], bool],
    begin: Callable[[Name, str, DdlEvent], None],
) -> Iterator[None]:
    """Hold ``names`` if the block raises an error of a table. ``begin`` begins a held table, for a reason, where the
    filter ``wants`` one that is not replicated yet."""
    known = changes.known
    before = {name: known.by_name.get(name) for name in names}
    try:
        yield
    except Exception as error:
        if not is_of_table(error):
            raise
        reason = reasons.uninterpreted(event.statement, error)
        trace = "".join(traceback.format_exception(error, limit=-3))
        _log.error("a statement cannot be interpreted, and its tables are held", reason=reason, trace=trace)
        for table in filter(None, before.values()):
            changes.touch(table)
            place = table.record.schema_name, table.record.name
            known.put(replace(table, held=table.held or reasons.line(place, reason)))
        for name in names:
            copies.doubt(name, reason)
            is_new = not any(before.values()) and name not in known.by_name and not copies.bases_there(name)
            if is_new and wants(*name):
                begin(name, reason, event)
