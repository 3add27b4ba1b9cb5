"""Column changes of an Iceberg table: metadata only, wherever the format can.

A column keeps its id through a rename, a new place among the columns, and a wider type (``int`` to ``long``, ``float``
to ``double``, more digits of a decimal); a dropped column's id is never used again, so its values do not come back with
a later column of its name. What the format cannot do rewrites the table in the same commit, from the values that it
has: another type, and a new column with a value in existing rows, since format version 2 has no defaults.

A partition spec or sort order follows its columns through all of that. One that has lost a column is followed by one
without it, and the table is written again, so that no file is divided by what it does not have.

A *changelog* and a *history* keep dropped columns, NULL from then on. Of a changelog those files are written again that
name a renamed column among those that an update left out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from agent.errors import RESYNC, TableForeignError
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks.common import changelog, conversion
from agent.sinks.common.conversion import Copied
from agent.sinks.common.history import columns as history
from agent.sinks.common.keys.former_keys import FormerKeys
from agent.sinks.common.survivors import Comparison
from agent.sinks.iceberg.table import commit, compact, files, rows
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.commit import Step
from agent.sinks.iceberg.table.deletes import positions
from agent.sinks.iceberg.table.deletes.positions import NONE
from agent.sinks.iceberg.table.files import TableFile
from agent.sinks.iceberg.table.layout import Layout
from agent.sinks.iceberg.table.metadata import manifests
from agent.sinks.iceberg.table.metadata.manifests import Live, LiveFile
from agent.sinks.iceberg.table.schema import FORMS, Ids
from agent.sinks.iceberg.table.state import State, TableOwner


def alter(place: TablePlace, change: SchemaChange, *, owner: TableOwner) -> None:
    """Change the table's columns.

    :raises TableHeldError: the values of a column do not fit its new type, or it is another table.
    """
    commit.on_newest(place, lambda table: _alter(table, place, change, owner))


def is_done(state: State, place: TablePlace, change: SchemaChange) -> bool:
    """Return whether the table has had the change, or a later one.

    :raises TableForeignError: it is another table, which has the name that the one of the change had.
    """
    assert change.after is not None
    if not state.tells_of(change.after.table_id):
        raise TableForeignError(f"{place} is another table than {change.name}, whose change is stale; {RESYNC}")
    return state.ddl >= change.ts


def _alter(table: Table, place: TablePlace, change: SchemaChange, owner: TableOwner) -> None:
    state, is_changelog = State.of(table), owner.is_changelog
    if is_done(state, place, change):
        return
    iceberg_schema.refuse_alike([move.name for move in change.columns], table=change.name)
    stored = iceberg_schema.arrow_schema(table.schema())
    keeps = is_changelog or owner.is_history
    copied = (Copied.BEHIND_OTHERS if keeps else Copied.ALONE) if state.copy == state.ddl != 0 else None
    moves = conversion.moves(stored, change, keeps_dropped=keeps, forms=FORMS, copied=copied)
    schema = _moved(table, stored, moves)
    former = FormerKeys.from_text(state.former_keys).after(change).to_text() if is_changelog else ""
    state = replace(state, ddl=int(change.ts), former_keys=former)
    survivors = change.survivors() if change.survivors else None
    comparison = Comparison(survivors, is_changelog=is_changelog, forms=FORMS) if survivors else None
    live = manifests.live(table)
    layout = _layout(table, stored, moves, schema)
    before = Layout.of(table)
    is_divided_anew, changed = layout.terms != before.terms, None if layout.is_like(before) else layout
    if all(_is_metadata(move, stored) for move in moves) and not is_divided_anew:
        for rows_of in _converted(table, live, moves, change) if comparison else ():
            assert comparison is not None
            comparison.note(history.current(rows_of))
        named = _naming(table, live, conversion.renames(moves)) if is_changelog else replace(live, data=())
        made = _written(table, _converted(table, named, moves, change), schema, change, layout)
        removed = manifests.keys(named.data)
        step = Step(state, made, removed=removed, schema=schema, before=live, layout=changed)
    else:
        converted = _converted(table, live, moves, change)
        noted = map(partial(_noted, comparison), converted) if comparison else converted
        made = _written(table, noted, schema, change, layout)
        removed = live.keys
        step = Step(state, made, removed=removed, schema=schema, before=live, layout=changed)
    if comparison is not None:
        comparison.verdict(change)
    commit.commit_or_remove(table, step)


def _written(
    table: Table, rows_of: Iterable[pa.Table], schema: Schema, change: SchemaChange, layout: Layout
) -> list[TableFile]:
    directory = compact.data_directory(table)
    return list(files.write_files(table.io, directory, f"schema-{change.ts:x}", rows_of, schema, layout=layout))


def _naming(table: Table, live: Live, renamed: Mapping[str, str]) -> Live:
    """Return ``live`` with only those data files that name a renamed column among those that an update left out."""
    schema = rows.chosen(table.schema(), [changelog.UNCHANGED])

    def names_any(item: LiveFile) -> bool:
        found = rows.live_rows(table.io, item.path, schema, NONE)
        return any(conversion.are_named(batch.column(0), renamed) for piece in found for batch in piece.to_batches())

    return replace(live, data=tuple(item for item in live.data if renamed and names_any(item)))


def _moved(table: Table, stored: pa.Schema, moves: Sequence[ColumnMove]) -> Schema:
    """Return the table's columns afterwards."""
    ids = Ids(table.metadata.last_column_id)
    fields: list[NestedField] = []
    for move in moves:
        if move.origin is None or not _keeps_id(move, stored):
            fields.append(ids.field(move.name, move.type))
            continue
        field, kind = table.schema().find_field(move.origin), new_type(move)
        if stored.field(move.origin).type != kind:
            field = NestedField(field.field_id, move.name, Ids(0).field(move.name, kind).field_type, required=False)
        fields.append(NestedField(field.field_id, move.name, field.field_type, required=False))
    return Schema(*fields)


def _noted(comparison: Comparison, rows_of: pa.Table) -> pa.Table:
    comparison.note(history.current(rows_of))
    return rows_of


def _layout(table: Table, stored: pa.Schema, moves: Sequence[ColumnMove], schema: Schema) -> Layout:
    """Return the table's layout afterwards, without the columns that are gone."""
    before: dict[int, int | None] = {field.field_id: None for field in table.schema().fields}
    for move, field in zip(moves, schema.fields, strict=True):
        if move.origin is not None:
            before[table.schema().find_field(move.origin).field_id] = field.field_id
    return Layout.of(table).without(before, schema)


def new_type(move: ColumnMove) -> pa.DataType:
    return iceberg_schema.stored_type(move.type)


def _keeps_id(move: ColumnMove, stored: pa.Schema) -> bool:
    assert move.origin is not None
    return move.convert is None and iceberg_schema.is_widened(stored.field(move.origin).type, new_type(move))


def _is_metadata(move: ColumnMove, stored: pa.Schema) -> bool:
    if move.origin is None:
        return not conversion.is_filled(move)
    return _keeps_id(move, stored)


def _converted(table: Table, live: Live, moves: Sequence[ColumnMove], change: SchemaChange) -> Iterator[pa.Table]:
    """Yield all rows of the table, converted."""
    names = conversion.origins_of(iceberg_schema.arrow_schema(table.schema()), moves)
    schema = rows.chosen(table.schema(), names)
    gone = positions.deleted(table, live.deletes)
    for item in live.data:
        for piece in rows.live_rows(table.io, item.path, schema, gone.get(item.path, NONE)):
            for batch in piece.to_batches():
                yield conversion.converted_rows(batch, moves, change, forms=FORMS)
