"""Shown definitions: what the server shows of a table, which may be the work of later statements.

A key that no statement says (``TableRecord.shown_ts``) is doubted up to the place where the server has shown it: rows
before a statement that makes it may have had another, or none. A table that is still to be copied has the columns that
the server has shown: statements before are in them, and in the copy.
"""

from dataclasses import replace

from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.sources.mysql.ddl.environment import Server
from agent.sources.mysql.ddl.event import DdlEvent
from agent.sources.mysql.ddl.likeness import is_like
from agent.sources.mysql.ddl.parser.cursor import Name
from agent.sources.mysql.ddl.parser.edits import Altered, Edit, Rebuilt, Rekeyed, Unparsed
from agent.sources.mysql.ddl.replicated_tables import KnownTables
from agent.sources.mysql.names import lowered
from reactor.ids import Ts
from reactor.records.tables.table import TableRecord


def exact(server: Server, name: Name, stated: TableSchema | None, *, asks_key: bool = False) -> TableSchema | None:
    """Return the server's definition if it matches the statement's result; else the statement's."""
    found = server.look(name)
    if stated is None:
        return found
    if found is None or not is_like(found, stated, asks_key=asks_key):
        return stated
    return replace(found, collation=stated.collation or found.collation)


def altered(server: Server, edit: Altered) -> TableSchema:
    """Return the definition after an edit. The key that the server shows is taken, if the statement does not determine
    one, also where the columns are those of later statements: if it is a unique key that this one makes."""
    schema = exact(server, edit.table, edit.schema, asks_key=edit.asks_key)
    assert schema is not None, "the statement has a schema"
    if schema.key or not edit.asks_key or not edit.uniques:
        return schema
    found = server.look(edit.table)
    key = frozenset(map(lowered, found.key)) if found else frozenset()
    if not key or key not in edit.uniques:
        return schema
    return replace(schema, columns=tuple(replace(one, is_key=lowered(one.name) in key) for one in schema.columns))


def is_of_another(server: Server, edit: Altered, schema: TableSchema, record: TableRecord) -> bool:
    """Return whether an edit may leave another key, or none, and the server cannot tell: the primary key that it shows
    under this name is not the key that is known. The name may be another table's by now. ``record``: before it."""
    may_lose = edit.asks_key and not edit.makes_key and bool(schema.key) and not record.is_primary
    found = server.look(edit.table) if may_lose else None
    if found is None or is_like(found, schema, asks_key=True) or not server.has_primary(edit.table):
        return False
    shown, known = (
        replace(one, columns=tuple(column for column in one.columns if column.is_key)) for one in (found, schema)
    )
    return not is_like(shown, known, asks_key=True)


def is_later(server: Server, found: TableSchema, before: TableSchema, event: DdlEvent) -> bool:
    """Return whether the server's definition has other columns than the table before, and may be of a later statement
    than ``event``."""
    return not is_like(found, before, asks_key=True) and server.place() > event.end


def is_key_shown(server: Server, edit: Altered, schema: TableSchema, record: TableRecord) -> bool | None:
    """Return whether the table has its key from the server; None if it is as before. If the key is not the primary
    one, the statement may drop its index, and a later one may make it again. ``record``: before the statement."""
    if edit.makes_key:
        return False
    is_primary = record.is_primary if schema.key else None
    if edit.asks_key and is_primary is None:
        is_primary = server.has_primary(edit.table)
    is_other = {*schema.key} != {*edit.schema.key}
    return True if is_other or (edit.asks_key and not is_primary) else None


def noted(server: Server, record: TableRecord, *, is_shown: bool | None) -> TableRecord:
    """Return the record, with the place up to which its key is doubted; as it is for None."""
    if is_shown is None:
        return record
    if not is_shown:
        return record.with_(shown_ts=Ts(0))
    return record.with_(shown_ts=server.place(), is_primary=server.has_primary((record.schema_name, record.name)))


def created(server: Server, record: TableRecord, stated: TableSchema | None, like: KnownTable | None) -> TableRecord:
    """Return a new table's record. ``like``: the table whose definition it has."""
    is_shown = stated is None or {*stated.key} != {*record.key}
    if like is not None and not is_shown:
        return record.with_(shown_ts=like.record.shown_ts, is_primary=like.record.is_primary)
    return noted(server, record, is_shown=is_shown)


def keyless(schema: TableSchema) -> TableSchema:
    """Return the definition without a key."""
    return replace(schema, columns=tuple(replace(column, is_key=False) for column in schema.columns))


def is_in_copy(edit: Edit, known: KnownTables, ts: Ts) -> bool:
    """Return whether an edit is in the definition of a table that is still to be copied."""
    if not isinstance(edit, Altered | Rebuilt | Rekeyed | Unparsed):
        return False
    table = known.by_name.get(edit.table)
    return table is not None and table.record.to_copy and ts <= table.record.shown_ts
