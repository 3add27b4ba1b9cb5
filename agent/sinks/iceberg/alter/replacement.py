"""Replacement of an Iceberg table by a copy: one commit removes all its rows and adds those of the copy.

The commit has the records of all spans too, at the copy's position, and that position as the newest copy's, with the
copy's number: so a repeated request finds it done, and one of an earlier copy, however late, is refused. Readers see
the old table, or the copy.

Earlier changes by other writers no longer matter, so the table's history is not checked: it is checked from our commit
on. A changelog keeps its rows: the copy's are appended, after a ``truncate`` at the copy's position with sequence
number -1, or behind the changes of that position if it has some, so that folding the changelog by Ts and sequence
number yields the table. Where a column has another type than before, or a name that differs from one of before only in
case, old and new rows do not fit into one table: the changelog begins again with that ``truncate``, and its earlier
rows are in the table's earlier snapshots. A table that keeps deleted rows keeps those that the copy lacks. A history
ends the versions that the copy lacks at the copy's position, and begins those that it lacks itself; where old and new
columns do not fit together, it begins again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace as replaced

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from agent.errors import CopyBehindError, CopyLostError, SinkFencedError, TableForeignError, TableHeldError
from agent.ports.sink import TableCopy
from agent.rows.later_changes import later_seq
from agent.rows.versions import Moments
from agent.sinks.common import changelog
from agent.sinks.common.forms import missing_fields
from agent.sinks.common.history import columns as history
from agent.sinks.common.history.copies import Ended, Kept, differences
from agent.sinks.common.layouts import Wanted
from agent.sinks.common.span_records import RETIRED
from agent.sinks.common.vanished import vanished
from agent.sinks.iceberg import load
from agent.sinks.iceberg.table import commit, compact, files, fit, rows
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.commit import Step
from agent.sinks.iceberg.table.deletes import positions
from agent.sinks.iceberg.table.deletes.positions import NONE, Positions
from agent.sinks.iceberg.table.files import TableFile
from agent.sinks.iceberg.table.layout import Layout
from agent.sinks.iceberg.table.metadata import manifests
from agent.sinks.iceberg.table.metadata.manifests import Live
from agent.sinks.iceberg.table.state import State, TableOwner
from agent.sinks.iceberg.upsert.merge import current_versions


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
            was, ts = State.of(table), copy.table.start_ts
            there = _replace(table, owner, wanted, copy, columns, staged)
            if ts not in (was.copy, was.placed):  # otherwise earlier snapshots have files that were staged at this Ts
                load.sweep(table, ts, there)

    commit.on_newest(place, attempt, is_checked=False)


def _is_replaced(table: Table, place: TablePlace, owner: TableOwner, copy: TableCopy) -> bool:
    """Return whether this copy, and not an earlier one, has replaced the table."""
    owner.refuse_foreign(table, place)
    state, ts, name = State.of(table), int(copy.table.start_ts), copy.schema.qualified_name
    if (state.copy, state.copy_number) > (ts, copy.number):
        raise SinkFencedError(f"a copy of {name} at {state.copy} is in its place, so one at {ts} is stale")
    if (state.copy, state.copy_number) == (ts, copy.number):
        return True
    if (gone := max(state.dropped, state.left)) > ts:
        raise SinkFencedError(f"{name} was dropped, or left its changefeed, at {gone}: a copy of it at {ts} is stale")
    recorded = [found for span in copy.spans if (found := state.recorded_ts(span)) is not None]
    known = [found for found in recorded if found != RETIRED]
    if max(known, default=0) > ts:
        raise CopyBehindError(f"{place} is at {max(known)}, and the copy of {name} is of {ts}")
    if not recorded and state.records and not (state.dropped or state.left):
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
) -> Sequence[TableFile]:
    """Return the staged files that the table has now."""
    if any(not table.io.new_input(file.path).exists() for file in staged):
        raise CopyLostError(
            f"rows that were staged for {copy.schema.qualified_name} were removed; they are copied again"
        )
    ts, directory, live = copy.table.start_ts, compact.data_directory(table), manifests.live(table)
    was = State.of(table)
    is_same = not was.dropped and was.tells_of(copy.table.table_id)
    known = was if is_same or not (was.dropped or was.left) else State()
    state = replaced(known, ddl=int(ts), copy=int(ts), copy_number=copy.number, cut=copy.cut)
    state = replaced(state, dropped=0, left=0, left_at="", placed=known.placed or int(ts))
    state = state.without_spans().at(dict.fromkeys(copy.spans, int(ts)))
    keeps_rows = owner.is_changelog or (owner.is_history and bool(copy.table.key))
    kept = _kept_columns(table, columns, staged, name=copy.schema.qualified_name) if keeps_rows else None
    columns = kept or columns
    schema = fit.adopted(table, columns, staged)
    layout = Layout.made(wanted, schema, table=copy.schema.qualified_name)
    made = fit.fitted(table.io, directory, staged, schema, layout)
    if kept and owner.is_history and live.data:
        step = _versions(table, live, copy, made, Step(state, schema=schema, before=live, layout=layout))
        commit.commit_or_remove(table, replaced(step, properties=wanted.properties))
        return ()
    if owner.is_changelog:
        seq = later_seq(copy.number) if kept and _has_changes_at(table, int(ts)) else -1
        cut = [changelog.truncate_row(columns, ts, seq)]
        if seq >= 0:
            pieces = (piece for file in made for piece in rows.live_rows(table.io, file.path, schema, NONE))
            numbered = (changelog.numbered(piece, seq + 1) for piece in pieces)
            made = [*files.write_files(table.io, directory, "copy", numbered, schema, layout=layout)]
        made = [*files.write_files(table.io, directory, "copy", cut, schema, layout=layout), *made]
    if owner.marks.soft_delete and copy.table.key:
        made = [*made, *_vanished(table, live, owner, copy, made, schema, layout)]
    removed = frozenset() if kept else live.keys
    step = Step(state, made, removed=removed, schema=schema, properties=wanted.properties, before=live, layout=layout)
    commit.commit(table, step)
    there = {file.path for file in made}
    return [file for file in staged if file.path in there]


def _has_changes_at(table: Table, ts: int) -> bool:
    """Return whether a changelog has changes of the copy's position: nobody has written its source since."""
    name = changelog.COMMIT_VERSION
    found = table.scan(row_filter=f"{name} >= {ts}", selected_fields=(name,))
    return any(batch.num_rows for batch in found.to_arrow_batch_reader())


def _versions(table: Table, live: Live, copy: TableCopy, made: Sequence[TableFile], step: Step) -> Step:
    """Return the step that ends the versions which the copy lacks, and adds those which the table lacks."""
    schema, layout, ts = step.schema, step.layout, int(copy.table.start_ts)
    assert schema is not None
    assert layout is not None
    io, gone, added = table.io, positions.deleted(table, live.deletes), dict[str, Positions]()

    def stored() -> Iterator[tuple[tuple[str, Positions], pa.Table]]:
        for item in live.data:
            if current_versions(table, item):
                with rows.opened(io, item.path, table.schema()) as file:
                    for begin, batch in file.batches():
                        places = begin + np.arange(batch.num_rows)
                        stays = ~positions.among(places, gone.get(item.path, NONE))
                        yield (item.path, places[stays]), compact.filled(batch.filter(pa.array(stays)), schema)

    def copied() -> Iterator[pa.Table]:
        for file in made:
            yield from rows.live_rows(io, file.path, schema, NONE)

    def pieces() -> Iterator[pa.Table]:
        count = sum(item.file.record_count for item in live.data) + sum(file.rows for file in made)
        for found in differences(stored, copied, copy.arrow.names, rows=count):
            if isinstance(found, Kept):
                continue
            if not isinstance(found, Ended):
                yield found
                continue
            path, places = found.where
            added[path] = positions.union(added.get(path, NONE), places[found.mask])
            ended = found.rows.filter(pa.array(found.mask))
            yield history.ended(ended, Moments.same(ts, 0.0, ended.num_rows))

    new = list(files.write_files(io, compact.data_directory(table), f"copy-{ts:x}", pieces(), schema, layout=layout))
    homes = compact.homes(live.data)
    if not compact.has_vectors(table):
        return replaced(step, files=new, deletes=compact.written_deletes(table, homes, added))
    after = {path: positions.union(gone.get(path, NONE), added.get(path, NONE)) for path in homes}
    deletes, old = compact.next_vectors(table, live, after, changed=added, gone=(), homes=homes)
    return replaced(step, files=new, deletes=deletes, removed=old)


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
