"""Schema diff: records for the owner what changed between two versions of a table, for all sources. Pure.

Differences that a sink would see count: names, Arrow types, values, and the key. A longer varchar is a change only if
the log does not describe its tables itself, so that its readers need to know.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from agent.rows.schema import TableSchema
from agent.rows.schema_change import KnownTable
from agent.sources.registry import arrow_schema, conversions
from reactor.records.tables.schema_change import SchemaChangeKind, TableChange
from reactor.records.tables.table import TableRecord


@dataclass(frozen=True, slots=True)
class Columns:
    """The correspondence of the columns of two versions.

    ``renames``: new name → old name. ``added``: new columns, even if a column of that name existed before. ``fills``:
    their values in existing rows, in the source's text form; NULL for columns without an entry. ``required``: columns
    that are NOT NULL from this version on, or were so before.
    """

    renames: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    fills: Mapping[str, str] = field(default_factory=dict)
    required: frozenset[str] = frozenset()


def compare(
    before: KnownTable,
    after: KnownTable,
    columns: Columns,
    context: Mapping[str, str] | None = None,
    *,
    keeps_definition: bool = False,
) -> TableChange | None:
    """Return the change between two versions; None if there is none to record. ``context``: see ``TableChange``.

    ``keeps_definition``: the log does not describe its columns, and readers use the recorded definition: every
    difference of a column is a change.
    """
    assert before.schema is not None
    assert after.schema is not None
    is_same = _types(before.schema) == _types(after.schema) and not columns.renames and not columns.added
    is_same = is_same and not _converts(before.schema, after.schema, columns, context or {})
    is_same = is_same and (before.schema.columns == after.schema.columns or not keeps_definition)
    if is_same and before.record == after.record:
        return None
    is_rename = is_same and _place(before.record) != _place(after.record) and before.record.key == after.record.key
    return TableChange(
        kind=SchemaChangeKind.RENAME if is_rename else SchemaChangeKind.ALTER,
        table_id=after.record.table_id,
        table=after.record,
        before=before.schema.to_json(),
        after=after.schema.to_json(),
        renames=dict(columns.renames),
        added=columns.added,
        fills=dict(columns.fills),
        context=dict(context or {}),
    )


def _place(table: TableRecord) -> tuple[str, str]:
    return table.schema_name, table.name


def _converts(before: TableSchema, after: TableSchema, columns: Columns, context: Mapping[str, str]) -> bool:
    """Return whether values change between types that are the same to a sink."""
    origins = {name: columns.renames.get(name, name) for name in arrow_schema(after).names if name not in columns.added}
    return any(found is not None for found in conversions(before, after, origins, context).values())


def created(table: KnownTable) -> TableChange:
    """Return the change that creates a table without rows."""
    assert table.schema is not None
    return TableChange(
        kind=SchemaChangeKind.CREATE,
        table_id=table.record.table_id,
        table=table.record,
        after=table.schema.to_json(),
    )


def dropped(table: KnownTable) -> TableChange:
    record = table.record
    schema = table.schema or TableSchema(record.table_id, record.schema_name, record.name, ())
    return TableChange(kind=SchemaChangeKind.DROP, table_id=record.table_id, before=schema.to_json())


def _types(schema: TableSchema) -> dict[str, pa.DataType]:
    return {item.name: item.type for item in arrow_schema(schema)}
