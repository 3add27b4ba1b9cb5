"""Replacement of an Iceberg table by a copy: one commit removes all its rows and adds those of the copy.

The commit has the records of all spans too, at the copy's position, and that position as the newest copy's: so a
repeated request finds it done, and one of an earlier copy, however late, is refused. Readers see the old table, or the
copy.

Earlier changes by other writers no longer matter, so the table's history is not checked: it is checked from our commit
on. A changelog keeps its rows: the copy's are appended, after a ``truncate`` at the copy's position with sequence
number -1, so that folding the changelog by Ts and sequence number yields the table. Where a column has another type
than before, or a name that differs from one of before only in case, old and new rows do not fit into one table: the
changelog begins again with that ``truncate``, and its earlier rows are in the table's earlier snapshots. A table that
keeps deleted rows keeps those that the copy lacks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace as replaced

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from agent.errors import CopyBehindError, CopyLostError, SinkFencedError, TableForeignError, TableHeldError
from agent.ports.sink import TableCopy
from agent.sinks.common.changelog import truncate_row
from agent.sinks.common.forms import missing_fields
from agent.sinks.common.layouts import Wanted
from agent.sinks.common.span_records import RETIRED
from agent.sinks.common.vanished import vanished
from agent.sinks.iceberg import load
from agent.sinks.iceberg.table import commit, compact, files, fit, manifests, positions, rows
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.commit import Step
from agent.sinks.iceberg.table.files import TableFile
from agent.sinks.iceberg.table.lake import TablePlace
from agent.sinks.iceberg.table.layout import Layout
from agent.sinks.iceberg.table.manifests import Live
from agent.sinks.iceberg.table.positions import NONE
from agent.sinks.iceberg.table.state import State, TableOwner


def replace(place: TablePlace, owner: TableOwner, wanted: Wanted, copy: TableCopy, staged: Sequence[TableFile]) -> None:
    """See ``agent.ports.sink.Replaces.replace``."""
    name = copy.schema.qualified_name
    stored = iceberg_schema.stored_schema(copy.arrow, is_changelog=owner.is_changelog, marks=owner.marks)
    columns = fit.joined(stored, staged, name=name)
    if place.open() is None and place.lake.is_away() and staged:
        raise place.lake.away_error()
    load.opened_or_made(place, owner, wanted, columns, copy.table.start_ts)

    def attempt(table: Table) -> None:
        if not _is_replaced(table, place, owner, copy):
            _replace(table, owner, wanted, copy, columns, staged)
            load.sweep(table, copy.table.start_ts, staged)

    commit.on_newest(place, attempt, is_checked=False)


def _is_replaced(table: Table, place: TablePlace, owner: TableOwner, copy: TableCopy) -> bool:
    """Return whether this copy, and not an earlier one, has replaced the table."""
    owner.refuse_foreign(table, place)
    state, ts, name = State.of(table), int(copy.table.start_ts), copy.schema.qualified_name
    if state.copy > ts:
        raise SinkFencedError(f"a copy of {name} at {state.copy} is in its place, so one at {ts} is stale")
    if state.copy == ts:
        return True
    recorded = [found for span in copy.spans if (found := state.recorded_ts(span)) is not None]
    known = [found for found in recorded if found != RETIRED]
    if max(known, default=0) > ts:
        raise CopyBehindError(f"{place} is at {max(known)}, and the copy of {name} is of {ts}")
    if not recorded and state.records and not state.dropped:
        raise TableForeignError(
            f"{place} is another table of changefeed {owner.changefeed!r}, which has or had the name {name}; rename or "
            "drop that one in the catalog"
        )
    return False


def _replace(
    table: Table,
    owner: TableOwner,
    wanted: Wanted,
    copy: TableCopy,
    columns: pa.Schema,
    staged: Sequence[TableFile],
) -> None:
    if any(not table.io.new_input(file.path).exists() for file in staged):
        raise CopyLostError(
            f"rows that were staged for {copy.schema.qualified_name} were removed; they are copied again"
        )
    ts, directory, live = copy.table.start_ts, compact.data_directory(table), manifests.live(table)
    was = State.of(table)
    state = replaced(was if not was.dropped else State(cut=was.cut), ddl=int(ts), copy=int(ts), dropped=0)
    state = state.at(dict.fromkeys(copy.spans, int(ts)))
    kept = _kept_columns(table, columns, staged, name=copy.schema.qualified_name) if owner.is_changelog else None
    columns = kept or columns
    schema = fit.adopted(table, columns, staged)
    layout = Layout.made(wanted, schema, table=copy.schema.qualified_name)
    made = fit.fitted(table.io, directory, staged, schema, layout)
    if owner.is_changelog:
        cut = [truncate_row(columns, ts)]
        made = [*files.write_files(table.io, directory, "copy", cut, schema, layout=layout), *made]
    if owner.marks.soft_delete and copy.table.key:
        made = [*made, *_vanished(table, live, owner, copy, made, schema, layout)]
    removed = frozenset() if kept else frozenset(item.path for item in (*live.data, *live.deletes))
    step = Step(state, made, removed=removed, schema=schema, properties=wanted.properties, before=live, layout=layout)
    commit.commit(table, step)


def _vanished(
    table: Table,
    live: Live,
    owner: TableOwner,
    copy: TableCopy,
    made: Sequence[TableFile],
    schema: Schema,
    layout: Layout,
) -> Iterator[TableFile]:
    """Write the rows that the copy lacks: deleted ones stay."""
    gone = positions.deleted(table, live.deletes)

    def stored() -> Iterator[pa.Table]:
        for item in live.data:
            yield from rows.live_rows(table.io, item.path, table.schema(), gone.get(item.path, NONE))

    def copied(names: Sequence[str]) -> Iterator[pa.Table]:
        for file in made:
            yield from rows.live_rows(table.io, file.path, rows.chosen(schema, names), NONE)

    columns, count = iceberg_schema.arrow_schema(schema), sum(file.rows for file in made)
    found = vanished(stored, copied, columns, owner.marks, key=copy.table.key, copied_rows=count)
    return files.write_files(table.io, compact.data_directory(table), "vanished", found, schema, layout=layout)


def _kept_columns(table: Table, columns: pa.Schema, staged: Sequence[TableFile], *, name: str) -> pa.Schema | None:
    """Return the columns of a changelog with its old rows and the copy's; None: they cannot be in one table."""
    try:
        missing_fields(iceberg_schema.arrow_schema(table.schema()), columns, table=name)
        return fit.widened(table, staged, name=name)
    except TableHeldError:
        return None
