"""Schema change orders: turns a schema change record into orders for a sink, after filtering.

A change that an event filter ignores affects only the tables' records. A table that loses its key is rejected, as when
a changefeed is created.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from agent.errors import NEW_SNAPSHOT, RESYNC, TableHeldError, TableIneligibleError, UnknownValuesError
from agent.filter.events import rules_for
from agent.ports.sink import Alters, Sink
from agent.rows.schema import Column, TableSchema
from agent.rows.schema_change import ColumnMove, Exact, Refused, SchemaChange
from agent.rows.survivors import AskSurvivors, Survivors
from agent.sources.registry import arrow_schema, conversions, dialect, fill_value
from reactor.records.changefeed import ChangefeedConfig, SinkMode
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord

#: kinds of changes, named as in event filters
_EVENTS = {
    SchemaChangeKind.CREATE: "create table",
    SchemaChangeKind.ALTER: "alter table",
    SchemaChangeKind.RENAME: "rename table",
    SchemaChangeKind.DROP: "drop table",
}
#: drops the tables too
_DROPS_DATABASE = re.compile(r"DROP\s+(?:DATABASE|SCHEMA)\b", re.IGNORECASE)


#: that of ``ports.Source``
FindSurvivors = Callable[[TableSchema, TableSchema, Mapping[str, str], Sequence[str]], Survivors | None]


@dataclass(frozen=True, slots=True)
class Terms:
    """The parameters of a changefeed's schema changes. ``survivors``: queries its source."""

    config: ChangefeedConfig
    sink_mode: SinkMode
    survivors: FindSurvivors = lambda *_: None


def apply(sink: Sink, record: DdlRecord, terms: Terms, there: Iterable[TableRecord] = ()) -> None:
    """Apply ``record`` to the sink's tables; blocking and idempotent. ``there``: tables under names that differ at the
    sink from those in ``record``.

    :raises SinkError: a table cannot be changed like that, or not now.
    :raises TableIneligibleError: it would lose its key.
    """
    changes = [change for change in record.alterations if not _is_ignored(change, record, terms)]
    for change in changes:
        _refuse_keyless(change, terms)
    if changes:
        if not isinstance(sink, Alters):
            raise TableHeldError(
                f"the sink does not follow schema changes, and {_names(changes)} has changed; {NEW_SNAPSHOT}"
            )
        known = {table.table_id: table for table in there}
        sink.alter([schema_change(change, record, terms, known.get(change.table_id)) for change in changes])


def _names(changes: Sequence[TableChange]) -> str:
    schemas = [TableSchema.from_json(change.after or change.before) for change in changes]
    return ", ".join(sorted({schema.qualified_name for schema in schemas}))


def schema_change(
    change: TableChange, record: DdlRecord, terms: Terms, there: TableRecord | None = None
) -> SchemaChange:
    """Return the part of the change that concerns one table."""
    before, after = (_selected(text, terms) for text in (change.before, change.after))
    old = None if before is None else there or _record_of(before, change)
    if after is None:
        return SchemaChange(record.ts, change.kind, old, None)
    columns = tuple(_moves(before, after, change))
    survivors = _survivors(before, after, change, terms)
    return SchemaChange(record.ts, change.kind, old, change.table, columns, after, arrow_schema(after), survivors)


def _survivors(
    before: TableSchema | None, after: TableSchema, change: TableChange, terms: Terms
) -> AskSurvivors | None:
    """Return the query of rows with which the sink compares converted values, if columns change their type."""
    if before is None or change.table is None:
        return None
    old, new = ({column.name: column for column in schema.columns} for schema in (before, after))
    origins = _origins(before, after, change)
    if all(_kind(old[origin]) == _kind(new[name]) for name, origin in origins.items()):
        return None
    return partial(terms.survivors, before, after, origins, change.table.key)


def _kind(column: Column) -> tuple[int, int]:
    return column.type_id, column.modifier


def _moves(before: TableSchema | None, after: TableSchema, change: TableChange) -> Iterator[ColumnMove]:
    """:raises UnknownValuesError: it is not known what the source made of the existing rows."""
    origins = _origins(before, after, change)
    found = conversions(before, after, origins, change.context) if before else {}
    for item in arrow_schema(after):
        name = item.name
        if isinstance(conversion := found.get(name), Refused):
            raise UnknownValuesError(
                f"{after.qualified_name}: column {name} has another type: {conversion.reason}; {RESYNC}"
            )
        fill = fill_value(after, name, change.fills[name]) if name in change.fills else None
        convert = conversion.convert if isinstance(conversion, Exact) else None
        yield ColumnMove(name, item.type, origins.get(name), fill, convert)


def _origins(before: TableSchema | None, after: TableSchema, change: TableChange) -> dict[str, str]:
    """Return new name → old name, of the columns that were kept."""
    names = {column.name for column in before.columns} if before else set()
    origins = {
        column.name: change.renames.get(column.name, column.name)
        for column in after.columns
        if column.name not in change.added
    }
    return {new: old for new, old in origins.items() if old in names}


def _selected(text: str, terms: Terms) -> TableSchema | None:
    if not text:
        return None
    schema = TableSchema.from_json(text)
    return rules_for(terms.config.filter, schema.schema_name, schema.name).select(schema)


def _record_of(schema: TableSchema, change: TableChange) -> TableRecord:
    """Return the table as it was; only its names matter."""
    known = change.table or TableRecord(table_id=change.table_id, schema_name="", name="")
    return known.named(schema.schema_name, schema.name)


def _is_ignored(change: TableChange, record: DdlRecord, terms: Terms) -> bool:
    schema = TableSchema.from_json(change.before or change.after)
    rules = rules_for(terms.config.filter, schema.schema_name, schema.name)
    statement = dialect(schema.dialect).plain_statement(record.statement)
    return rules.ignores_ddl(_events(change, statement), record.statement)


def _events(change: TableChange, statement: str) -> Iterator[str]:
    yield "drop database" if _DROPS_DATABASE.match(statement) else _EVENTS[change.kind]
    if change.kind is not SchemaChangeKind.ALTER:
        return
    schemas = TableSchema.from_json(change.before), TableSchema.from_json(change.after)
    before, after = (arrow_schema(schema) for schema in schemas)
    origins = {name: change.renames.get(name, name) for name in after.names if name not in change.added}
    if change.added:
        yield "add column"
    if change.renames:
        yield "rename column"
    if set(before.names) - set(origins.values()):
        yield "drop column"
    if any(
        before.field(old).type != after.field(new).type for new, old in origins.items() if old in before.names
    ) or any(item is not None for item in conversions(*schemas, origins, change.context).values()):
        yield "modify column"


def _refuse_keyless(change: TableChange, terms: Terms) -> None:
    """:raises TableIneligibleError: no key is left to upsert by."""
    is_free = terms.config.force_replicate or not terms.sink_mode.is_keyed
    if change.table is not None and not change.table.key and not is_free:
        name = f"{change.table.schema_name}.{change.table.name}"
        raise TableIneligibleError(
            f"table {name} has lost its key: give it one again, and {RESYNC}; or leave it out by a "
            f"filter rule !{name}; or set force-replicate = true, to append its inserts only"
        )
