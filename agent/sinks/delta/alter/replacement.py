"""Replacement of a Delta table by a copy: one commit removes all its rows and adds those of the copy.

The commit also contains the records of all spans, set to the copy's position, and two of its own,
``weir/{changefeed}/{table id}/copy`` with that position as its version, and ``…/copy-number`` with the copy's number:
so a repeated request finds it done, and one of an earlier copy, however late, is refused. Readers see the old table, or
the copy.

Earlier changes by other writers no longer matter, so the table's history is not checked: it is checked from our commit
on. A changelog keeps its rows: the copy's are appended, after a ``truncate`` at the copy's position with sequence
number -1, or behind the changes of that position if it has some, so that folding the changelog by Ts and sequence
number yields the table. Where a column has another type than before, old and new rows do not fit into one table: the
changelog begins again with that ``truncate``, and its earlier rows are in the table's earlier versions. A table that
keeps deleted rows keeps those that the copy lacks. A history is written again with its earlier versions, where the
copy's differences have ended some and begun others; where a column has another type, it begins again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema

from agent.errors import CopyBehindError, SinkFencedError, TableForeignError, TableHeldError
from agent.ports.sink import TableCopy
from agent.rows.later_changes import later_seq
from agent.rows.versions import Moments
from agent.sinks.common import changelog
from agent.sinks.common.forms import missing_fields
from agent.sinks.common.history import columns as history
from agent.sinks.common.history.copies import Ended, Kept, differences
from agent.sinks.common.span_records import RETIRED
from agent.sinks.common.vanished import vanished
from agent.sinks.delta.alter import dropping, repartition, steps
from agent.sinks.delta.table import commit, disk
from agent.sinks.delta.table import files as delta_files
from agent.sinks.delta.table import log as delta_log
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table.files import DataFile
from agent.sinks.delta.table.layout import Layout
from agent.sinks.delta.table.place import TableOwner, TablePlace
from reactor.records.changefeed import SinkMode

#: bytes in memory of the rows of one file
_FILE_BYTES: Final = 128 << 20


@dataclass(frozen=True, slots=True)
class Replacement:
    """``columns``: of the Delta table; ``files``: the copy's, which are written again if they do not lie as the
    table's; ``partitions``: the columns that divide it afterwards."""

    owner: TableOwner
    copy: TableCopy
    columns: pa.Schema
    files: Sequence[DataFile]
    partitions: Sequence[str]

    @property
    def ts(self) -> int:
        return int(self.copy.table.start_ts)

    @property
    def name(self) -> str:
        return f"{self.copy.table.schema_name}.{self.copy.table.name}"

    @property
    def is_changelog(self) -> bool:
        return self.owner.mode is SinkMode.CHANGELOG

    def records(self) -> dict[str, int]:
        """The table's records after the commit."""
        changefeed, table_id = self.owner.changefeed, self.copy.table.table_id
        writer = steps.Writer(changefeed, self.is_changelog)
        positions = {delta_table.record_id(changefeed, span): self.ts for span in self.copy.spans}
        records = (
            steps.copy_record_id(changefeed, table_id),
            steps.record_id(writer, table_id),
            dropping.placed_record_id(changefeed),
        )
        numbers = {
            repartition.record_id(changefeed, table_id): self.copy.cut,
            steps.copy_number_id(changefeed, table_id): self.copy.number,
        }
        return {**positions, **numbers, **dict.fromkeys(records, self.ts)}


def replace(place: TablePlace, order: Replacement) -> None:
    """See ``agent.ports.sink.Replaces.replace``. The sink must have the table."""

    def attempt(table: DeltaTable) -> None:
        first = table.version() + 1
        if not is_replaced(table, place, order):
            _replace(table, place, order)
        disk.sync_commits(place, first)

    commit.on_newest(place, place.opened, attempt)


def is_replaced(table: DeltaTable, place: TablePlace, order: Replacement) -> bool:
    """Return whether this copy, and not an earlier one, has replaced the table.

    :raises TableForeignError: the table is not ours.
    """
    order.owner.refuse_foreign(table, place)
    changefeed, table_id = order.owner.changefeed, order.copy.table.table_id
    placed_ts = table.transaction_version(steps.copy_record_id(changefeed, table_id)) or 0
    number = table.transaction_version(steps.copy_number_id(changefeed, table_id)) or 0
    if (placed_ts, number) > (order.ts, order.copy.number):
        raise SinkFencedError(f"a copy of {order.name} at {placed_ts} is in its place, so one at {order.ts} is stale")
    if (placed_ts, number) == (order.ts, order.copy.number):
        return True
    dropping.refuse_before(table, order.copy.table.start_ts, name=order.name)
    if (taken_ts := dropping.placed_ts(table, changefeed)) > order.ts:
        raise SinkFencedError(f"{place} was taken at {taken_ts}, so a copy of {order.name} at {order.ts} is stale")
    found = (delta_table.committed_ts(table, changefeed, span) for span in order.copy.spans)
    recorded = [ts for ts in found if ts is not None]
    known = [ts for ts in recorded if ts != RETIRED]
    if max(known, default=0) > order.ts:
        raise CopyBehindError(f"{place} is at {max(known)}, and the copy of {order.name} is of {order.ts}")
    is_live = dropping.gone_ts(table) is None
    if is_live and (not recorded or (not known and delta_log.is_of_another(place, changefeed, table_id))):
        raise TableForeignError(
            f"{place} holds another table of changefeed {changefeed!r}, which has or had the name {order.name}; move "
            "what lies there away"
        )
    return False


def _replace(table: DeltaTable, place: TablePlace, order: Replacement) -> None:
    columns, copy = order.columns, order.copy
    others = delta_log.other_spans(place, order.owner.changefeed, copy.spans)
    records = {**others, **order.records()}
    steps.allow(place, table, order.columns.types)
    if dropping.gone_ts(table) is not None:  # it had left, or is an earlier one of the same name
        # the table is this one from here on, whoever puts the rows in place; nobody writes the earlier one
        ours = (delta_table.record_id(order.owner.changefeed, span) for span in copy.spans)
        retired = {id: RETIRED for id in ours if table.transaction_version(id) is None}
        properties = delta_table.commit_properties(table, {**others, **retired})
        table.alter.set_table_description(dropping.taken_over(table, order.owner), commit_properties=properties)
        table.update_incremental()
    is_alike = not _has_other_types(table, order)
    if order.is_changelog and is_alike and delta_table.partitions(table) == tuple(order.partitions):
        commit.add_fields(place, table, Schema.from_arrow(columns), name=order.name)
        layout = delta_table.layout(table)
        commit.commit_to(place, table, _appended(table, place, order, layout), records)
        return
    if is_alike and (order.is_changelog or (order.owner.mode is SinkMode.HISTORY and copy.table.key)):
        columns = pa.schema([*columns, *missing_fields(columns, _stored(table), table=order.name)])
    layout = _layout(table, order, columns)
    if order.is_changelog and is_alike:
        rows = _written(place, order, layout, "changes", _scanned(table, columns))
        files = [*rows, *_appended(table, place, order, layout)]
    elif order.is_changelog:
        files = [write_marker(place, order, layout), *delta_files.fitted(place, order.files, layout)]
    elif order.owner.mode is SinkMode.HISTORY and copy.table.key and is_alike:
        files = list(_versions(table, place, order, columns, layout))
    else:
        files = [*delta_files.fitted(place, order.files, layout), *_vanished(table, place, order, layout)]
    key = copy.table.key if order.owner.mode is SinkMode.UPSERT else ()
    commit.overwrite(place, table, columns, files, layout, records, key=key)


def _layout(table: DeltaTable, order: Replacement, columns: pa.Schema) -> Layout:
    """Return how the table's files lie afterwards: its columns of the same names and types stay the same."""
    stored = {item.name: item.type for item in _stored(table)}
    origins = [(item.name, item.name if stored.get(item.name) == item.type else None) for item in columns]
    return delta_table.layout(table).after(origins, order.partitions)


def _appended(table: DeltaTable, place: TablePlace, order: Replacement, layout: Layout) -> list[DataFile]:
    """Return the files that a changelog gets: the ``truncate``, then the copy's rows."""
    files = delta_files.fitted(place, order.files, layout)
    if not _has_changes_at(table, order.ts):
        return [write_marker(place, order, layout), *files]
    seq = later_seq(order.copy.number)

    def numbered() -> Iterator[pa.Table]:
        for file in files:
            for rows in delta_files.read_file(place, file.path, order.columns, layout=file.layout):
                yield changelog.numbered(rows, seq + 1)

    return [write_marker(place, order, layout, seq), *_written(place, order, layout, "changes", numbered())]


def _has_changes_at(table: DeltaTable, ts: int) -> bool:
    """Return whether a changelog has changes of the copy's position: nobody has written its source since."""
    name = changelog.COMMIT_VERSION
    return any(batch.num_rows for batch in table.scan(columns=[name], predicate=f"{name} >= {ts}"))


def _stored(table: DeltaTable) -> pa.Schema:
    return delta_table.plain_schema(table.schema())


def _scanned(table: DeltaTable, columns: pa.Schema) -> Iterator[pa.Table]:
    for batch in pa.RecordBatchReader.from_stream(table.scan(columns=_stored(table).names)):
        yield _shaped(pa.Table.from_batches([batch]), columns)


def _written(
    place: TablePlace, order: Replacement, layout: Layout, label: str, rows: Iterable[pa.Table]
) -> Iterator[DataFile]:
    names = (f"{label}-{order.ts:x}-copy-{uuid4().hex[:8]}.parquet" for _ in repeat(None))
    return delta_files.write_files(place, names.__next__, rows, bytes_max=_FILE_BYTES, layout=layout)


def _versions(
    table: DeltaTable, place: TablePlace, order: Replacement, columns: pa.Schema, layout: Layout
) -> Iterator[DataFile]:
    """Write the history again, with an end for what the copy lacks, and a begin for what only it has."""
    ts = order.ts

    def stored() -> Iterator[tuple[None, pa.Table]]:
        for rows in _scanned(table, columns):
            yield None, history.current(rows)

    def copied() -> Iterator[pa.Table]:
        for file in order.files:
            yield from delta_files.read_file(place, file.path, columns, layout=file.layout)

    def compared() -> Iterator[pa.Table | Ended[None] | Kept]:
        count = sum(file.rows for file in order.files) + sum(len(rows) for rows in _scanned(table, columns))
        return differences(stored, copied, order.copy.arrow.names, rows=count)

    def current() -> Iterator[pa.Table]:
        for found in compared():
            if isinstance(found, pa.Table):
                yield found
            elif isinstance(found, Kept):
                yield found.rows

    def ended() -> Iterator[pa.Table]:
        for rows in _scanned(table, columns):
            yield rows.filter(pc.invert(history.is_current(rows)))
        for found in compared():
            if isinstance(found, Ended):
                rows = found.rows.filter(pa.array(found.mask))
                yield history.ended(rows, Moments.same(ts, 0.0, rows.num_rows))

    for some in (current(), ended()):
        yield from _written(place, order, layout, "rows", some)


def _shaped(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return rows with these columns; those that they lack are NULL."""
    arrays = [
        rows.column(item.name).cast(item.type) if item.name in rows.schema.names else pa.nulls(rows.num_rows, item.type)
        for item in columns
    ]
    return pa.table(arrays, schema=columns)


def _vanished(table: DeltaTable, place: TablePlace, order: Replacement, layout: Layout) -> Iterator[DataFile]:
    """Write the rows that the copy lacks, where deleted ones stay."""
    marks, key = order.owner.marks, order.copy.table.key
    if not marks.soft_delete or not key:
        return
    kept = delta_table.arrow_schema(table)

    def stored() -> Iterator[pa.Table]:
        for batch in pa.RecordBatchReader.from_stream(table.scan(columns=kept.names)):
            yield pa.Table.from_batches([batch.cast(kept)])

    def copied(names: Sequence[str]) -> Iterator[pa.Table]:
        keys = pa.schema([order.columns.field(name) for name in names])
        for file in order.files:
            yield from delta_files.read_file(place, file.path, keys, layout=file.layout)

    count = sum(file.rows for file in order.files)
    found = vanished(stored, copied, order.columns, marks, key=key, copied_rows=count)
    yield from _written(place, order, layout, "rest", found)


def _has_other_types(table: DeltaTable, order: Replacement) -> bool:
    """Return whether a column has another type than the table's, so that old and new rows cannot be in one table."""
    try:
        missing_fields(delta_table.arrow_schema(table), order.columns, table=order.name)
    except TableHeldError:
        return True
    return False


def write_marker(place: TablePlace, order: Replacement, layout: Layout, seq: int = -1) -> DataFile:
    """Write the ``truncate`` that precedes a copy, as a file."""
    row = changelog.truncate_row(order.columns, order.copy.table.start_ts, seq)
    [file] = _written(place, order, layout, "changes", [row])
    return file
