"""Alter steps: applies each schema change of a Delta table in one commit that also records it, so that it is
idempotent.

The cost of a change:

- A new column with NULL in existing rows is a commit without data.
- So is a renamed or dropped column where the columns have names of their own in files (``table.mapping``), which the
  table gets with its first such change if the sink is to map columns. A table with a change feed gets none: its readers
  take a change of columns for none of rows.
- Every other change of stored data (a retyped column, a new one with a value in existing rows; without a mapping a
  dropped or renamed one) rewrites the table, in new files under the new schema, in one commit. Types are not widened in
  place; and data of a dropped column must not come back with a later one of its name. Readers see the table's old
  version until then, and can go back to it as long as its files are kept.
- A dropped table stays where it is, marked in its description; a later one at its location takes it over, with the old
  one in its history. A renamed table is moved (``moving``).

A *changelog* keeps dropped columns, NULL from then on. All other changes apply to it too, so that folding it gives the
source's table at any time.

The record is an application transaction ``weir/{changefeed}/{table id}/ddl`` with the change's Ts as its version.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, TableFeatures
from deltalake.schema import Field

from agent.errors import RESYNC, TableForeignError
from agent.rows.schema_change import ColumnMove, SchemaChange
from agent.sinks.common import conversion
from agent.sinks.common.conversion import Copied
from agent.sinks.common.history import columns as history
from agent.sinks.common.row_marks import NO_MARKS, Marks
from agent.sinks.common.survivors import Comparison
from agent.sinks.delta.alter import dropping, repartition, rewrite
from agent.sinks.delta.table import change_feed, commit, schema
from agent.sinks.delta.table import log as delta_log
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table.layout import Layout
from agent.sinks.delta.table.place import TablePlace
from reactor.ids import TableSpan, Ts

_WITHOUT_ZONE = "timestampNtz"


@dataclass(frozen=True, slots=True)
class Writer:
    """The owner of the tables, their write mode, and the columns that the sink adds to them. ``maps_columns``: whether
    a table may get a mapping of its columns."""

    changefeed: str
    is_changelog: bool
    marks: Marks = NO_MARKS
    maps_columns: bool = False

    @property
    def keeps_dropped(self) -> bool:
        return self.is_changelog or self.marks.history


def is_applied(table: DeltaTable, writer: Writer, table_id: int, ts: Ts) -> bool:
    return (table.transaction_version(record_id(writer, table_id)) or 0) >= ts


def is_done(table: DeltaTable, place: TablePlace, writer: Writer, change: SchemaChange) -> bool:
    """Return whether the table has had the change, or a later one.

    :raises TableForeignError: it is another table, which lies where the one of the change did.
    """
    assert change.after is not None
    table_id = change.after.table_id
    known = (
        delta_table.record_id(writer.changefeed, TableSpan(table_id)),
        record_id(writer, table_id),
        copy_record_id(writer.changefeed, table_id),
    )
    if all(table.transaction_version(name) is None for name in known):
        raise TableForeignError(f"{place} holds another table than {change.name}, whose change is stale; {RESYNC}")
    return is_applied(table, writer, table_id, change.ts)


def alter(place: TablePlace, writer: Writer, change: SchemaChange) -> None:
    """Change the table's columns.

    :raises TableHeldError: the values of a column do not fit its new type, or it is another table.
    """
    if writer.is_changelog:
        commit.with_retries(place, lambda table: _note_keys(table, place, writer, change))
    commit.with_retries(place, lambda table: _alter(table, place, writer, change))


def _note_keys(table: DeltaTable, place: TablePlace, writer: Writer, change: SchemaChange) -> None:
    """Record which columns identify the rows written so far, before the columns change."""
    known = delta_table.former_keys(table)
    after = known.after(change)
    if not is_done(table, place, writer, change) and after != known:
        description = json.loads(table.metadata().description)
        description[delta_table.OWNER][delta_table.FORMER_KEYS] = after.to_text()
        table.alter.set_table_description(
            json.dumps(description), commit_properties=delta_table.commit_properties(table, {})
        )


def drop(place: TablePlace, writer: Writer, change: SchemaChange) -> None:
    """Mark the table as dropped at its source. One that was held from the beginning never existed here, and a table at
    its location is a different one."""
    assert change.before is not None
    if place.open() is None:
        return
    table_id = change.before.table_id

    def attempt(table: DeltaTable) -> None:
        if delta_table.committed_ts(table, writer.changefeed, TableSpan(table_id)) is None:
            return
        if not is_applied(table, writer, table_id, change.ts):
            record = _record(table, writer, table_id, change.ts)
            table.alter.set_table_description(dropping.description(table, change.ts), commit_properties=record)

    commit.with_retries(place, attempt)


def take_over(
    place: TablePlace, writer: Writer, change: SchemaChange, description: str, partitions: Sequence[str]
) -> None:
    """Start an empty table at the location of one that was dropped, or has left. ``partitions``: the columns that
    divide it.

    That one may have been dropped later than the table was made: it was held meanwhile, under a name that its source
    had given to others.

    :raises TableHeldError: that one has left later than the table was made, and its rows are not this table's.
    """
    assert change.after is not None
    record, columns = change.after, stored_columns(change, writer)

    def attempt(table: DeltaTable) -> None:
        gone_ts = dropping.gone_ts(table)
        if gone_ts is None:
            return  # already taken over
        if gone_ts > change.ts:
            placed_ts = dropping.placed_ts(table, writer.changefeed)
            if is_applied(table, writer, record.table_id, gone_ts) or placed_ts > change.ts:
                return  # already taken over, and dropped since, or by a later one
            if placed_ts < change.ts and not is_applied(table, writer, record.table_id, change.ts):
                dropping.refuse_made_before(table, change)
            elif dropping.dropped_ts(table) is None:
                return  # it has left since
            # what was begun and is still marked as dropped has ended between the two commits below
        whole = TableSpan(record.table_id)
        positions = {
            **delta_log.other_spans(place, writer.changefeed, [whole]),
            delta_table.record_id(writer.changefeed, whole): int(record.start_ts),
            repartition.record_id(writer.changefeed, record.table_id): 0,
            record_id(writer, record.table_id): int(change.ts),
            dropping.placed_record_id(writer.changefeed): int(change.ts),
        }
        allow(place, table, columns.types)
        layout = delta_table.layout(table).after([(name, None) for name in columns.names], partitions)
        commit.overwrite(place, table, columns, [], layout, positions)
        table.update_incremental()
        table.alter.set_table_description(description, commit_properties=delta_table.commit_properties(table, {}))

    commit.with_retries(place, attempt)


def mark_moving(place: TablePlace, writer: Writer, change: SchemaChange) -> None:
    """Mark a table before it leaves its location, so that it is recognised wherever it is found."""
    assert change.after is not None
    table_id = change.after.table_id

    def attempt(table: DeltaTable) -> None:
        if not is_moving(table, writer, table_id, change.ts):
            properties = delta_table.commit_properties(table, {_move_id(writer, table_id): int(change.ts)})
            table.create_write_transaction([], "append", table.schema(), commit_properties=properties)

    commit.with_retries(place, attempt)


def is_moving(table: DeltaTable, writer: Writer, table_id: int, ts: Ts) -> bool:
    return moved_ts(table, writer, table_id) >= ts


def moved_ts(table: DeltaTable, writer: Writer, table_id: int) -> int:
    """Return the Ts of the table's newest move that has begun; 0 if it has not been moved."""
    return table.transaction_version(_move_id(writer, table_id)) or 0


def _alter(table: DeltaTable, place: TablePlace, writer: Writer, change: SchemaChange) -> None:
    assert change.after is not None
    if is_done(table, place, writer, change):
        return
    schema.refuse_alike([move.name for move in change.columns], table=change.name)
    stored = delta_table.arrow_schema(table)
    if change_feed.is_on(table.metadata().configuration, stored.names):
        change_feed.refuse_reserved([move.name for move in change.columns], table=change.name)
    copied = _copied(table, writer, change.after.table_id)
    moves = conversion.moves(stored, change, keeps_dropped=writer.keeps_dropped, forms=schema.FORMS, copied=copied)
    allow(place, table, [move.type for move in moves])
    survivors = change.survivors() if change.survivors else None
    comparison = Comparison(survivors, is_changelog=writer.is_changelog, forms=schema.FORMS) if survivors else None
    records = {record_id(writer, change.after.table_id): int(change.ts)}
    is_in_place, before = rewrite.is_in_place(stored, moves), delta_table.layout(table)
    named = None if is_in_place and not before.names.is_mapped else _named(table, place, writer, moves, before)
    if is_in_place or named is not None:
        if comparison:
            for rows in rewrite.converted_rows(table, moves, change):
                comparison.note(history.current(rows))
        _judge(comparison, change)
        if named is not None:
            commit.own_log(place, table).define("CHANGE COLUMNS", conversion.columns_of(moves), named, records)
        else:
            properties = delta_table.commit_properties(table, records)
            _add(table, [move for move in moves if move.origin is None], properties)
        return
    layout = rewrite.layout_after(before, stored, moves, rewrite.divided_by(table, moves))
    converted = _noted(comparison, rewrite.converted_rows(table, moves, change))
    files = list(rewrite.rewritten(place, converted, change, layout))
    _judge(comparison, change)
    columns, changed = conversion.columns_of(moves), partial(rewrite.changed_rows, table, moves, change)
    commit.overwrite(place, table, columns, files, layout, records, changed=changed)


def _named(
    table: DeltaTable, place: TablePlace, writer: Writer, moves: Sequence[ColumnMove], before: Layout
) -> Layout | None:
    """Return how the table's files lie afterwards if none is written for the change; None if they have to be."""
    stored, is_mapped = delta_table.arrow_schema(table), before.names.is_mapped
    if not (is_mapped or writer.maps_columns) or not rewrite.is_by_names(table, stored, moves):
        return None
    has_feed = change_feed.is_on(table.metadata().configuration, stored.names)
    if has_feed and not rewrite.is_in_place(stored, moves):
        return None
    if not is_mapped and not commit.is_own(place):
        return None
    names = before.names if is_mapped else before.names.begun(stored.names)
    return rewrite.layout_after(replace(before, names=names), stored, moves, rewrite.divided_by(table, moves))


def _noted(comparison: Comparison | None, converted: Iterator[pa.Table]) -> Iterator[pa.Table]:
    for rows in converted:
        if comparison is not None:
            comparison.note(history.current(rows))
        yield rows


def _judge(comparison: Comparison | None, change: SchemaChange) -> None:
    """:raises TableHeldError: the values differ from the source's."""
    if comparison is not None:
        comparison.verdict(change)


def map_columns(place: TablePlace) -> None:
    """Give a table a mapping of its columns, under whose names its files have them already."""

    def attempt(table: DeltaTable) -> None:
        layout, columns = delta_table.layout(table), delta_table.plain_schema(table.schema())
        if not layout.names.is_mapped and commit.is_own(place):
            names = layout.names.begun(columns.names)
            commit.own_log(place, table).define("CHANGE COLUMNS", columns, replace(layout, names=names), {})

    commit.with_retries(place, attempt)


def allow(place: TablePlace, table: DeltaTable, types: Sequence[pa.DataType]) -> None:
    """Enable the table features that new column types need: a separate commit, harmless by itself."""
    needs_feature = any(pa.types.is_timestamp(arrow) and arrow.tz is None for arrow in types)
    if not needs_feature or _WITHOUT_ZONE in (table.protocol().writer_features or ()):
        return
    if delta_table.layout(table).names.is_mapped:  # delta-rs may take the mapping away
        commit.own_log(place, table).support(_WITHOUT_ZONE)
        table.update_incremental()
    else:
        properties = delta_table.commit_properties(table, {})
        table.alter.add_feature(
            TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True, commit_properties=properties
        )
        table.update_incremental()


def _add(table: DeltaTable, added: Sequence[ColumnMove], record: CommitProperties) -> None:
    if added:
        fields: list[Field] = list(Schema.from_arrow(pa.schema([(move.name, move.type) for move in added])).fields)
        table.alter.add_columns(fields, commit_properties=record)
    else:
        table.create_write_transaction([], "append", table.schema(), commit_properties=record)


def stored_columns(change: SchemaChange, writer: Writer) -> pa.Schema:
    assert change.arrow is not None
    return schema.delta_schema(change.arrow, is_changelog=writer.is_changelog, marks=writer.marks)


def record_id(writer: Writer, table_id: int) -> str:
    return f"{delta_table.record_prefix(writer.changefeed)}{table_id}/ddl"


def copy_record_id(changefeed: str, table_id: int) -> str:
    """Return the name of the record of a table's newest copy."""
    return f"{delta_table.record_prefix(changefeed)}{table_id}/copy"


def copy_number_id(changefeed: str, table_id: int) -> str:
    """Return the name of the record of that copy's number."""
    return f"{copy_record_id(changefeed, table_id)}-number"


def _copied(table: DeltaTable, writer: Writer, table_id: int) -> Copied | None:
    """Return where the columns of the newest copy are, if no schema change has come to the table since."""
    copied = table.transaction_version(copy_record_id(writer.changefeed, table_id))
    if copied is None or table.transaction_version(record_id(writer, table_id)) != copied:
        return None
    if writer.is_changelog:
        return Copied.BEHIND_OTHERS
    return Copied.BEFORE_OTHERS if writer.keeps_dropped else Copied.ALONE


def _move_id(writer: Writer, table_id: int) -> str:
    return f"{delta_table.record_prefix(writer.changefeed)}{table_id}/move"


def _record(table: DeltaTable, writer: Writer, table_id: int, ts: Ts) -> CommitProperties:
    return delta_table.commit_properties(table, {record_id(writer, table_id): int(ts)})
