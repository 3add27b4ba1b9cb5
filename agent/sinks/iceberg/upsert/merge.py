"""Merge: writes net changes into an Iceberg table that equals its source, data and record in one commit.

The rows of the changed keys are found (``find``) and deleted by position, and the new ones are in a file of their own:
readers join nothing by value. Two cases need no search: after a TRUNCATE the span has no rows, and if every key of the
range begins with an INSERT, the source guarantees that the table has none of them (its key is unique, and the sink is
exactly at the begin of the range). The latter holds from ``TableRecord.consistent_ts`` on; before it, and after a
rewind, the range may repeat changes that the sink has. A filter may have kept rows that the source has deleted, too.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from agent.errors import RESYNC, TableForeignError
from agent.filter import events
from agent.ports.sink import FlushResult, FlushTask
from agent.rows.changes import Changes
from agent.rows.fold import NetChanges
from agent.rows.spans import in_span
from agent.rows.unify import Mask
from agent.rows.versions import Moments, Versions
from agent.sinks.common import row_marks
from agent.sinks.common.folds.parts import Folded, folded
from agent.sinks.common.forms import missing_fields
from agent.sinks.common.history import columns as history
from agent.sinks.common.left_out import IncompleteRows, Indexes
from agent.sinks.common.row_marks import DELETED, NO_MARKS, Marks
from agent.sinks.iceberg.table import commit, compact, files, rows
from agent.sinks.iceberg.table import io as files_io
from agent.sinks.iceberg.table import schema as iceberg_schema
from agent.sinks.iceberg.table.catalogs.lake import TablePlace
from agent.sinks.iceberg.table.commit import Step
from agent.sinks.iceberg.table.deletes import positions
from agent.sinks.iceberg.table.deletes.positions import NONE, Positions
from agent.sinks.iceberg.table.layout import Layout
from agent.sinks.iceberg.table.metadata import manifests
from agent.sinks.iceberg.table.metadata.manifests import Live, LiveFile
from agent.sinks.iceberg.table.schema import FORMS
from agent.sinks.iceberg.table.state import State
from agent.sinks.iceberg.upsert.find import Found, KeySearch


def write(place: TablePlace, task: FlushTask, changes: Iterable[Changes], *, marks: Marks = NO_MARKS) -> FlushResult:
    """Bring the table from ``task.from_ts`` to ``task.to_ts``.

    :raises SinkFencedError: the table is not at ``from_ts``.
    :raises SinkConflictError: other commits were faster, repeatedly.
    :raises LeftOutValueError: an update left out values that the table does not have.
    """
    table = place.opened()
    if State.of(table).is_written(task):
        return task.result(committed=True)
    with folded(task, changes, marks=marks) as what:
        seen, committed = what.seen, False
        if seen.rows:
            committed = commit.on_newest(place, lambda newest: _apply(newest, task, what, marks), newest=table)
    return task.result(committed=committed, rows=seen.rows, bytes=seen.bytes, commit_time=seen.commit_time)


def is_new(net: NetChanges, task: FlushTask) -> bool:
    """Return whether the source guarantees that the table has none of these keys, and no filter has kept any."""
    if not net.is_insert_only or task.from_ts < task.table.consistent_ts or task.feed.was_filtered:
        return False
    return not events.rules_for(task.feed.filter, task.table.schema_name, task.table.name).leaves_rows


def _apply(table: Table, task: FlushTask, what: Folded, marks: Marks) -> bool:
    """Write the changes. Return whether the table now records ``to_ts``; it does not if there was nothing to change."""
    state = State.of(table)
    if state.is_written(task):
        return True
    with files_io.together():
        step = _Replaced.of(table, task, what, marks).step(state.written([task]))
        if step is None:
            return False
        commit.commit_or_remove(table, step)
    return True


def replace_rows(table: Table, task: FlushTask, net: NetChanges, marks: Marks) -> Step | None:
    """Return the step that makes the rows of some keys what ``net`` says; None if nothing differs."""
    return _Replaced.of_nets(table, task, [net], marks, columns=net.upserts.schema).step(State.of(table))


def replace_versions(table: Table, task: FlushTask, found: Versions, marks: Marks) -> Step | None:
    """As ``replace_rows``, of a history table."""
    columns = found.net.upserts.schema
    return _Replaced.of_versions(table, task, [found], marks, columns=columns).step(State.of(table))


@dataclass(slots=True, eq=False)
class _Replaced:
    """The replacement for rows of one version of a table."""

    table: Table
    task: FlushTask
    live: Live
    schema: Schema
    marks: Marks
    #: deleted positions by data file: before, and by this commit
    gone: dict[str, Positions]
    added: dict[str, Positions] = field(default_factory=dict)
    is_emptied: bool = False
    new_files: list[files.TableFile] = field(default_factory=list)

    @classmethod
    def of(cls, table: Table, task: FlushTask, what: Folded, marks: Marks) -> "_Replaced":
        seen = what.seen
        if marks.history:
            return cls.of_versions(table, task, what.versions(), marks, columns=seen.columns)
        return cls.of_nets(table, task, what.nets(), marks, columns=seen.columns, is_truncated=seen.is_truncated)

    @classmethod
    def of_nets(
        cls,
        table: Table,
        task: FlushTask,
        nets: Iterable[NetChanges],
        marks: Marks,
        *,
        columns: pa.Schema,
        is_truncated: bool = False,
    ) -> "_Replaced":
        self = cls._opened(table, task, columns, marks)
        if is_truncated and not marks.soft_delete:
            self._truncate(columns)
        found = self._pieces(nets, is_truncated=is_truncated)
        if is_truncated and marks.soft_delete:
            found = chain(found, self._marked(columns))
        self._write(found)
        return self

    @classmethod
    def of_versions(
        cls, table: Table, task: FlushTask, found: Iterable[Versions], marks: Marks, *, columns: pa.Schema
    ) -> "_Replaced":
        self = cls._opened(table, task, columns, marks)
        self._write(chain.from_iterable(self._versions(each, columns) for each in found))
        return self

    @classmethod
    def _opened(cls, table: Table, task: FlushTask, columns: pa.Schema, marks: Marks) -> "_Replaced":
        live = manifests.live(table)
        schema = _schema(table, task, columns, marks)
        return cls(table, task, live, schema, marks, positions.deleted(table, live.deletes))

    def _write(self, found: Iterable[pa.Table]) -> None:
        pieces = (compact.filled(piece, self.schema) for piece in found)
        label = f"changes-{self.task.from_ts:x}-{self.task.to_ts:x}"
        place = self.table.io, compact.data_directory(self.table), label
        self.new_files = list(files.write_files(*place, pieces, self.schema, layout=Layout.of(self.table)))

    def step(self, state: State) -> Step | None:
        if not (self.new_files or self.added or self.is_emptied):
            return None
        if self.is_emptied:
            removed = self.live.keys
            return Step(state, self.new_files, removed=removed, schema=self.schema, before=self.live)
        made = compact.compacted(self.table, self.schema, self.live, self.gone, self.added)
        new_files = [*self.new_files, *made.files]
        return Step(state, new_files, made.deletes, made.removed, schema=self.schema, before=self.live)

    def _truncate(self, columns: pa.Schema) -> None:
        """Delete all rows of the span; those of others stay, at their own Ts."""
        if self.task.span.is_whole_table:
            self.is_emptied = True
            return
        schema = rows.chosen(self.table.schema(), list(self.task.table.key))
        for item in self.live.data:
            with rows.opened(self.table.io, item.path, schema) as file:
                for begin, batch in file.batches():
                    (mine,) = np.nonzero(self._is_in_span(batch, columns))
                    self._add(item.path, begin + mine)

    def _is_in_span(self, stored: pa.Table, columns: pa.Schema) -> Mask:
        """``columns``: the types that keys are hashed in."""
        key = list(self.task.table.key)
        if self.task.span.is_whole_table or not stored.num_rows:
            return np.ones(stored.num_rows, np.bool_)
        [keys] = stored.select(key).combine_chunks().to_batches()
        source = pa.schema([pa.field(name, columns.field(name).type) for name in key])
        return in_span(iceberg_schema.source_keys(keys, source), self.task.span, key=key)

    def _marked(self, columns: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of the span that are not replaced, marked as deleted, which replace themselves."""
        schema = self.table.schema()
        for item in self.live.data:
            gone = positions.union(self.gone.get(item.path, NONE), self.added.get(item.path, NONE))
            with rows.opened(self.table.io, item.path, schema) as file:
                for begin, batch in file.batches():
                    stays = ~positions.among(begin + np.arange(batch.num_rows), gone)
                    if DELETED in batch.schema.names:
                        stays &= np.asarray(row_marks.is_live(batch))
                    (mine,) = np.nonzero(stays & self._is_in_span(batch, columns))
                    self._add(item.path, begin + mine)
                    if len(mine):
                        yield self.marks.deleted(batch.take(pa.array(mine)))

    def _add(self, path: str, places: Positions) -> None:
        new = positions.without(places, self.gone.get(path, NONE))
        if len(new):
            self.added[path] = positions.union(self.added.get(path, NONE), new)

    def _pieces(self, nets: Iterable[NetChanges], *, is_truncated: bool) -> Iterator[pa.Table]:
        for net in nets:
            upserts = self.marks.stored(net, forms=FORMS)
            is_emptied = is_truncated and not self.marks.soft_delete
            if is_emptied or is_new(net, self.task):
                yield upserts
                continue
            found = self._found(net, upserts)
            for item in found:
                self._add(item.path, item.places)
            net, upserts = self._with_others(net, upserts)
            yield self._filled(net, upserts) if net.kept and upserts.num_rows else upserts
            del net, upserts, found

    def _versions(self, found: Versions, columns: pa.Schema) -> Iterator[pa.Table]:
        """Yield new versions, and those of the table that end."""
        net = found.net
        made = history.version_rows(found, FORMS)
        if not is_new(net, self.task) and net.deletes.num_rows:
            yield from self._ended(FORMS.table(net.deletes), found.ends_stored)
        if net.kept and made.num_rows:
            made = self._filled(net, made)
        yield made
        if found.cut is not None:
            yield from self._cut(found.cut, columns)

    def _ended(self, keys: pa.Table, ends: Moments) -> Iterator[pa.Table]:
        by_path, schema = {item.path: item for item in self.live.data}, self.table.schema()
        for item in self._search(keys):
            self._add(item.path, item.places)
            with rows.opened(self.table.io, by_path[item.path].path, schema) as file:
                for at, values in file.taken(item.places):
                    yield history.ended(values, ends.take(item.which[at]))

    def _cut(self, cut: Moments, columns: pa.Schema) -> Iterator[pa.Table]:
        """Yield the current versions of the span that have not ended by themselves, with the end of all."""
        for item in self._current():
            gone = positions.union(self.gone.get(item.path, NONE), self.added.get(item.path, NONE))
            with rows.opened(self.table.io, item.path, self.table.schema()) as file:
                for begin, batch in file.batches():
                    stays = ~positions.among(begin + np.arange(batch.num_rows), gone)
                    stays &= np.asarray(history.is_current(batch)) & self._is_in_span(batch, columns)
                    (mine,) = np.nonzero(stays)
                    self._add(item.path, begin + mine)
                    if len(mine):
                        yield history.ended(batch.take(pa.array(mine)), cut.take(np.zeros(len(mine), np.int64)))

    def _current(self) -> Sequence[LiveFile]:
        """Return the data files that may have current versions: of a history table, those of its first partition."""
        if not self.marks.history:
            return self.live.data
        return [item for item in self.live.data if current_versions(self.table, item)]

    def _found(self, net: NetChanges, upserts: pa.Table) -> list[Found]:
        key = list(self.task.table.key)
        deletes = FORMS.table(net.deletes)
        parts = [part.select(key) for part in (upserts, deletes) if part.num_rows]
        return self._search(pa.concat_tables(parts)) if parts else []

    def _search(self, keys: pa.Table) -> list[Found]:
        return list(KeySearch(self.table, keys).run(self._current(), self.gone))

    def _with_others(self, net: NetChanges, upserts: pa.Table) -> tuple[NetChanges, pa.Table]:
        """Columns that the table has and the changes lack keep their values."""
        known = {*upserts.schema.names}
        others = [item for item in iceberg_schema.arrow_schema(self.table.schema()) if item.name not in known]
        if not others or not upserts.num_rows:
            return net, upserts
        kept = dict(net.kept)
        for item in others:
            upserts = upserts.append_column(item, pa.nulls(upserts.num_rows, item.type))
            kept[item.name] = np.ones(upserts.num_rows, np.bool_)
        return replace(net, kept=kept), upserts

    def _filled(self, net: NetChanges, upserts: pa.Table) -> pa.Table:
        """Complete the rows that left values out.

        :raises LeftOutValueError: the table lacks a row.
        """
        incomplete = IncompleteRows.of(upserts, net, versions_of=self.task.table.key if self.marks.history else ())
        wanted = incomplete.stored_keys(net, self.task.table.key, forms=FORMS)
        return incomplete.filled(self._stored(wanted, incomplete.columns), self.task.table)

    def _stored(self, wanted: pa.Table, columns: pa.Schema) -> Iterator[tuple[Indexes, pa.Table]]:
        by_path: dict[str, LiveFile] = {item.path: item for item in self.live.data}
        names = [name for name in columns.names if name in iceberg_schema.arrow_schema(self.table.schema()).names]
        schema = rows.chosen(self.table.schema(), names)
        for found in self._search(wanted):
            with rows.opened(self.table.io, by_path[found.path].path, schema) as file:
                for at, values in file.taken(found.places):
                    yield found.which[at], _with_columns(values, columns)


def current_versions(table: Table, item: LiveFile) -> bool:
    """Return whether a data file of a history table has current versions: its partition says so."""
    spec_id, values = item.home
    for term, value in zip(table.specs()[spec_id].fields, values, strict=True):
        source = next((each for each in table.schema().fields if each.field_id == term.source_id), None)
        if source is not None and source.name == history.IS_CURRENT:
            return bool(value)
    raise TableForeignError(
        f"others have written {'.'.join(table.name())} without the partition {history.IS_CURRENT}, by which current "
        f"versions are found; {RESYNC}"
    )


def _with_columns(values: pa.Table, columns: pa.Schema) -> pa.Table:
    arrays = [
        values.column(item.name) if item.name in values.schema.names else pa.nulls(values.num_rows, item.type)
        for item in columns
    ]
    return pa.table(arrays, schema=columns)


def _schema(table: Table, task: FlushTask, columns: pa.Schema, marks: Marks) -> Schema:
    """Return the table's columns, with those that only the changes have.

    :raises TableHeldError: a column is stored with another type.
    """
    name = f"{task.table.schema_name}.{task.table.name}"
    known = iceberg_schema.arrow_schema(table.schema())
    marks.refuse_left(known.names, table=name)
    missing = missing_fields(known, marks.schema(FORMS.schema(columns)), table=name)
    if not missing:
        return table.schema()
    iceberg_schema.refuse_alike([*known.names, *(item.name for item in missing)], table=name)
    return iceberg_schema.with_columns(table.schema(), missing, last_id=table.metadata.last_column_id)
