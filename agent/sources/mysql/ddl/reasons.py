"""Hold reasons: the lines that say why a table cannot be followed, and what to do."""

from collections.abc import Iterable
from typing import Final

from agent.errors import COPIED, RESYNC, cause_of
from agent.rows.schema import TableSchema
from agent.sources.common.schema_diff import Columns
from agent.sources.mysql.ddl.copies.shadows import Shadow
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.ddl.parser.cursor import Name
from reactor.records.tables.held import PARTITION_ROWS

#: remedy for a held table
CURE: Final = f"{RESYNC}, or leave it out by a filter rule"
#: reason of a table that an upserting changefeed cannot have; it is copied when it gets a key
KEYLESS: Final = (
    "it has no key by which rows are upserted: give it a primary key, or leave it out by a filter rule, or set "
    "force-replicate = true"
)
STAYED: Final = (
    "a table has its earlier name {}, which no statement has given to one: it may still have it (MariaDB logs "
    "RENAME TABLE of a temporary table alike; a change with sql_log_bin = 0 is in no log)"
)
KEYED_EARLY: Final = (
    "rows came while it had no primary key, or another one, and were taken by the one that it has got since (the "
    "server was ahead of the log)"
)
KEY_UNKNOWN: Final = (
    "a statement may have dropped its key, and the server, which is ahead of the log, now has another primary key "
    "under its name"
)
TAKEN: Final = (
    "{} was renamed to {}, which another table has: one of them is not what it seems (MariaDB logs RENAME TABLE of a "
    "temporary table alike; a change with sql_log_bin = 0 is in no log)"
)
CREATED: Final = (
    "a table of its name was created, though no statement in the log has dropped or renamed it (a change with "
    "sql_log_bin = 0 is in no log)"
)
DUPLICATES: Final = (
    "its copy has got a unique key, and tools leave out the rows that the key refuses (INSERT IGNORE), which no event "
    "names"
)
MERGED: Final = (
    "a column of a unique key got another type or collation in its copy, and tools leave out the rows that the key "
    "refuses then (INSERT IGNORE), which no event names"
)
ASSUMED: Final = (
    "its texts were read by the character set that the server showed for its database, and a later statement changes "
    "that one: it may have been made under another"
)
LATER: Final = (
    "its copy took its place, whose columns are in no statement that was read, and those that the server has may be of "
    "later statements"
)


def unsteady(columns: Iterable[str]) -> str:
    these = ", ".join(columns)
    return (
        f"the virtual column {these} has another value whenever it is read (by the session, the time or chance); make "
        "it STORED, or leave it out by a column selector"
    )


def unlogged(columns: Iterable[str], image: str) -> str:
    these = ", ".join(columns)
    return (
        f"updates do not log the virtual column {these} (binlog_row_image = {image}); run: SET GLOBAL binlog_row_image "
        "= 'FULL', or make it STORED, or leave it out by a column selector"
    )


def line(name: Name, reason: str, cure: str = CURE) -> str:
    return f"{'.'.join(name)}: {reason}; {cure}"


def code(held: str) -> str:
    """Return the code of a hold with this line; empty if it has none of its own."""
    return PARTITION_ROWS if held.endswith(COPIED) else ""


def unknown_fills(columns: Iterable[str]) -> str:
    return f"what older rows hold in the new column {', '.join(columns)} is in no statement"


def unreadable(event: DdlEvent) -> str:
    return f"a statement cannot be read that may change it: {' '.join(event.statement[:120].split())}"


def uninterpreted(statement: str, error: Exception) -> str:
    """Return why a table is held whose statement Weir fails to interpret."""
    text = f"a statement that changes it cannot be interpreted ({cause_of(error)}): {' '.join(statement[:120].split())}"
    return text.rstrip(": ")


def of_copy(schema: TableSchema, shadow: Shadow | None, filled: Iterable[str], before: TableSchema) -> str:
    """Return why rows of a copy may differ from those of its table; empty if they do not. ``filled``: new columns
    whose values in existing rows are unknown."""
    if shadow is not None and shadow.doubt:
        return shadow.doubt
    names = {column.name for column in schema.columns}
    origins = {column.name for column in before.columns}
    columns = shadow.columns if shadow else Columns()
    explained = {*columns.added, *columns.renames, *origins}
    unknown = sorted((names - explained) | ({*filled} & names))
    return unknown_fills(unknown) if unknown else ""
