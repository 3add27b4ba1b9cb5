"""History: writes versions of rows into a Delta table that keeps them all (``agent.sinks.common.history``).

The current versions of the changed keys are found as for an upsert, deleted by the vectors of their files, and written
again with their ends, beside the new ones, in one commit with the record. Current and ended versions are in files of
their own: a file whose statistics say that every version in it has an end is not searched.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from agent.errors import RESYNC, TableForeignError
from agent.ports.sink import FlushResult, FlushTask
from agent.rows.changes import Changes
from agent.rows.spans import in_span
from agent.rows.unify import Mask
from agent.rows.versions import Moments, Versions
from agent.sinks.common.folds.parts import folded
from agent.sinks.common.forms import missing_fields
from agent.sinks.common.history import columns as history
from agent.sinks.common.left_out import match
from agent.sinks.common.row_marks import Marks
from agent.sinks.delta.table import change_feed, commit
from agent.sinks.delta.table import files as delta_files
from agent.sinks.delta.table import log as delta_log
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table import schema as delta_schema
from agent.sinks.delta.table.deletion_vectors import Positions
from agent.sinks.delta.table.live_file import LiveFile
from agent.sinks.delta.table.log import TableLog
from agent.sinks.delta.table.place import TablePlace
from agent.sinks.delta.upsert import stored as delta_stored
from agent.sinks.delta.upsert.by_vectors import Changed, Thinned, deleted, fits, is_new, many_small, rest, write_rows
from agent.sinks.delta.upsert.find import KeySearch
from agent.sinks.delta.upsert.stored import ReplacedRows


def write(place: TablePlace, task: FlushTask, changes: Iterable[Changes], marks: Marks) -> FlushResult:
    """Bring the table from ``task.from_ts`` to ``task.to_ts``; see ``merge.write``."""
    with delta_log.borrowed(place) as log:
        if delta_table.is_written(log or place.opened(), task):
            return task.result(committed=True)
    with folded(task, changes, marks=marks) as what:
        seen, committed = what.seen, False
        if seen.rows:
            _add_columns(place, task, seen.columns, marks)

            def attempt(log: TableLog) -> bool:
                if delta_table.is_written(log, task):
                    return True
                return _write(log, place, task, what.versions(), seen.columns)

            committed = _on_newest(place, attempt)
    return task.result(committed=committed, rows=seen.rows, bytes=seen.bytes, commit_time=seen.commit_time)


def repair(place: TablePlace, task: FlushTask, found: Versions) -> None:
    """Make the rows of some keys what ``found`` says."""
    _on_newest(place, lambda log: _write(log, place, task, [found], found.net.upserts.schema))


def is_ended(file: LiveFile) -> bool:
    """Return whether every version in a file has an end."""
    return file.nulls(history.VALID_TO) == 0


def _on_newest(place: TablePlace, attempt: Callable[[TableLog], bool]) -> bool:
    with delta_log.borrowed(place) as log:
        if log is None or not log.takes_vectors:
            raise TableForeignError(f"others have changed the features of {place}, which keeps versions; {RESYNC}")
        return commit.on_newest(place, log.refreshed, attempt)


def _add_columns(place: TablePlace, task: FlushTask, columns: pa.Schema, marks: Marks) -> None:
    """Add the columns that only the changes have: a separate commit, harmless by itself.

    :raises TableHeldError: a column's type differs from the table's.
    """
    name = f"{task.table.schema_name}.{task.table.name}"
    wanted = marks.schema(delta_schema.FORMS.schema(columns))
    with delta_log.borrowed(place) as log:
        stored = None if log is None else delta_table.plain_schema(log.schema())
    if stored is None or missing_fields(stored, wanted, table=name):
        schema = Schema.from_arrow(wanted)
        commit.with_retries(place, lambda table: commit.add_fields(place, table, schema, name=name))


def _write(log: TableLog, place: TablePlace, task: FlushTask, found: Iterable[Versions], columns: pa.Schema) -> bool:
    """:raises CommitFailedError: another commit was faster."""
    schema = delta_table.plain_schema(log.schema())
    if not fits(log, schema.empty_table()):
        raise TableForeignError(f"others have written vectors or files of another kind into {place}; {RESYNC}")
    work = _Work(log, place, task, schema, columns)
    for each in found:
        work.take(each)
    return work.commit()


@dataclass(slots=True, eq=False)
class _Work:
    """The replacement of rows of one version of a table. ``columns``: the types that keys are hashed in."""

    log: TableLog
    place: TablePlace
    task: FlushTask
    schema: pa.Schema
    columns: pa.Schema
    taken: dict[str, Positions] = field(default_factory=dict)
    files: list[delta_files.DataFile] = field(default_factory=list)

    @property
    def _key(self) -> list[str]:
        return list(self.task.table.key)

    @property
    def _current(self) -> list[LiveFile]:
        return [file for file in self.log.files.values() if not is_ended(file)]

    def take(self, found: Versions) -> None:
        net = found.net
        made = history.version_rows(found, delta_schema.FORMS)
        pieces, replaced = list[pa.Table](), list[ReplacedRows]()
        if net.deletes.num_rows and not is_new(net, self.task):
            keys = delta_schema.delta_table(net.deletes).select(self._key).combine_chunks()
            for file, places, rows in self._found(keys):
                replaced.append(self._replaced(file, places, rows.select(self._key)))
                pieces.append(history.ended(rows, found.ends_stored.take(match(keys, rows.select(self._key)))))
        if net.kept and made.num_rows:
            made = delta_stored.fill(made, net, replaced, self.task.table, versions_of=self._key)
        pieces.append(made)
        if found.cut is not None:
            pieces += self._cut(found.cut)
        self._put(pieces)

    def _found(self, keys: pa.Table) -> Iterator[tuple[LiveFile, Positions, pa.Table]]:
        """Yield the current versions of some keys, and take them."""
        search = KeySearch(self.place, keys)
        for file in self._current:
            places = self._live(file, search.run(file).places)
            if not len(places):
                continue
            rows = self._rows(file, places)
            (now,) = np.nonzero(np.asarray(history.is_current(rows.combine_chunks())))
            if len(now):
                self._take(file, places[now])
                yield file, places[now], rows.take(pa.array(now)).combine_chunks()

    def _live(self, file: LiveFile, places: Positions) -> Positions:
        gone = np.union1d(deleted(file), self.taken.get(file.path, np.empty(0, np.int64)))
        return places[~np.isin(places, gone, assume_unique=True)]

    def _take(self, file: LiveFile, places: Positions) -> None:
        self.taken[file.path] = np.union1d(self.taken.get(file.path, np.empty(0, np.int64)), places)

    def _replaced(self, file: LiveFile, places: Positions, keys: pa.Table) -> ReplacedRows:
        return ReplacedRows(self.place.path_of(file.path), places, keys, file.layout)

    def _rows(self, file: LiveFile, places: Positions) -> pa.Table:
        found = self._replaced(file, places, pa.table({}))
        return pa.concat_tables([piece for _, piece in found.values(np.arange(len(places)), self.schema)])

    def _cut(self, cut: Moments) -> Iterator[pa.Table]:
        """Yield the current versions of the span that have not ended by themselves, with the end of all."""
        for file in self._current:
            begin = 0
            for batch in delta_files.read_file(self.place, file.path, self.schema, layout=file.layout):
                places = self._live(file, begin + np.arange(batch.num_rows))
                rows = batch.take(pa.array(places - begin))
                begin += batch.num_rows
                now = np.asarray(history.is_current(rows.combine_chunks())) & self._is_in_span(rows)
                if now.any():
                    self._take(file, places[now])
                    yield history.ended(rows.filter(pa.array(now)), cut.take(np.zeros(now.sum(), np.int64)))

    def _is_in_span(self, rows: pa.Table) -> Mask:
        if self.task.span.is_whole_table or not rows.num_rows:
            return np.ones(rows.num_rows, np.bool_)
        keys = pa.schema([pa.field(name, self.columns.field(name).type) for name in self._key])
        [batch] = rows.combine_chunks().to_batches()
        return in_span(delta_schema.source_keys(batch, keys), self.task.span, key=self._key)

    def _put(self, pieces: Sequence[pa.Table]) -> None:
        """Write current and ended versions into files of their own."""
        rows = pa.concat_tables([_shaped(piece, self.schema) for piece in pieces])
        now = history.is_current(rows)
        for mask in (now, pc.invert(now)):
            some = rows.filter(mask)
            if some.num_rows:
                self.files += write_rows(self.place, self.task, self.schema, [some], self.log.layout)

    def commit(self) -> bool:
        changed = Changed(list(self.files), [])
        items = [
            Thinned(file, self.taken.get(file.path, np.empty(0, np.int64)), pa.table({}), file.rows)
            for file in self.log.files.values()
        ]
        groups = many_small(items, is_ended)
        merged = [item for group in groups for item in group]
        for group in groups:
            contents = (piece for item in group for piece in rest(self.place, item, self.schema))
            changed.files.extend(write_rows(self.place, self.task, self.schema, contents, self.log.layout))
            changed.actions.extend(item.file.remove() for item in group)
        for item in items:
            if item.is_touched and item not in merged:
                changed.leave_rest(self.log, self.place, self.task, item)
        if not changed.files and not changed.actions:
            return False
        if changed.actions and self.log.has_feed:
            changed.actions.extend(change_feed.write(self.place, self._changed_rows(), self.log.layout))
        changed.commit(self.log, self.task)
        return True

    def _changed_rows(self) -> Iterator[pa.Table]:
        """Yield versions as a change feed has them, which others have turned on: one that ends is another row then."""
        for path, places in self.taken.items():
            rows = self._rows(self.log.files[path], places)
            yield change_feed.old_rows(rows, np.zeros(rows.num_rows, np.bool_))
        for file in self.files:
            for rows in delta_files.read_file(self.place, file.path, self.schema, layout=file.layout):
                yield change_feed.new_rows(rows, np.zeros(rows.num_rows, np.bool_))


def _shaped(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        rows.column(item.name).cast(item.type) if item.name in rows.schema.names else pa.nulls(rows.num_rows, item.type)
        for item in schema
    ]
    return pa.table(columns, schema=schema)
