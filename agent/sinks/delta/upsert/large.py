"""Large transactions: writes a transaction that is too large to be folded at once, one part of the key space at a time.

A merge is in memory as a whole, decoded, and a transaction is never split, so one of ten million rows would be too.
Instead its changes are written to scratch files, one per part of the table's key space. Each part is folded by itself:
its rows go to new files of the table, and its keys are stored. Then every file of the table is scanned once for rows
with these keys, and one commit makes everything visible, together with the record. At any time only one part, or the
keys of one file of the table, are in memory.

Rows with values that updates left out are also stored by part, completed while the files are scanned, and then written.

Three cases are still merged as a whole: rows whose key changes while a value is left out, which may be in another part;
a TRUNCATE of a table that keeps deleted rows; and anything but new rows (also after a TRUNCATE) if the table's log is
left to delta-rs (``table.log``).
"""

import os
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from agent.kernels.key_hash import Hashes, key_hash
from agent.ports.sink import FlushResult, FlushTask
from agent.rows.changes import Changes
from agent.rows.fold import net_changes
from agent.rows.spans import by_span, incomplete_moves
from agent.rows.unify import Mask, after_truncate
from agent.sinks.common import left_out
from agent.sinks.common.left_out import IncompleteRows
from agent.sinks.common.row_marks import NO_MARKS, Marks
from agent.sinks.delta.table import commit, schema
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table.deletion_vectors import Positions
from agent.sinks.delta.table.files import DataFile
from agent.sinks.delta.table.log import TableLog
from agent.sinks.delta.table.place import TablePlace
from agent.sinks.delta.upsert import by_vectors, truncate
from agent.sinks.delta.upsert.stored import ReplacedRows
from reactor.ids import TableSpan
from reactor.records.tables.table import TableRecord

#: up to this size changes are folded at once: decoded, with the overhead of folding
_WHOLE_BYTES = 64 << 20
_ROW_BYTES = 128
#: compressed bytes of segments per part. Parts of about a mebibyte take the least memory; but many parts take time, so
#: parts grow before there are more. Narrow rows may be many in few bytes
_PART_BYTES = 1 << 20
_PART_BYTES_MAX = 4 << 20
_PARTS_MIN, _PARTS = 16, 256
_UNIQUE = b"unique"


def write(
    place: TablePlace, log: TableLog | None, task: FlushTask, changes: Iterable[Changes], marks: Marks
) -> FlushResult | list[Changes]:
    """Write the changes, or return them if they are small enough, or have to be merged as a whole.

    :raises SinkFencedError: the table is not at ``task.from_ts``.
    :raises SinkConflictError: other commits were faster, repeatedly.
    """
    rest = iter(changes)
    first, is_large = _first(rest)
    if not is_large:
        return first
    rows, commit_time = 0, 0.0
    with tempfile.TemporaryDirectory(prefix="weir-large-", dir=_scratch()) as directory:
        scratch = _Scratch(directory, _parts(task), task.table, has_feed=log is not None and log.has_feed)
        for part in _all(first, rest):
            rows, commit_time = rows + len(part), max(commit_time, part.commit_time)
            scratch.lay_down(part)
            del part  # free it before the next ones are read
        scratch.fits &= not (scratch.is_truncated and marks.soft_delete)  # the table's rows are not just removed
        layout = delta_table.layout(place.opened()) if log is None else log.layout
        files = list(by_vectors.write_files(place, task, _folded(log, task, scratch, marks), layout))
        committed = scratch.fits and _commit(place, log, task, scratch, files)
    if not scratch.fits:
        return list(changes)
    return task.result(committed=committed, rows=rows, bytes=sum(file.bytes for file in files), commit_time=commit_time)


def _first(changes: Iterator[Changes]) -> tuple[list[Changes], bool]:
    """Return all changes, or enough to show that there are too many."""
    first, size = [], 0
    for part in changes:
        first.append(part)
        size += part.after.nbytes + (0 if part.before is None else part.before.nbytes) + _ROW_BYTES * len(part)
        if size > _WHOLE_BYTES:
            return first, True
    return first, False


def _all(first: list[Changes], rest: Iterator[Changes]) -> Iterator[Changes]:
    while first:
        yield first.pop(0)
    yield from rest


def _parts(task: FlushTask) -> list[TableSpan]:
    size = sum(item.bytes for item in task.segments)
    count = max(_PARTS_MIN, min(size // _PART_BYTES, _PARTS), size // _PART_BYTES_MAX)
    start, width = task.span.start, task.span.end - task.span.start
    bounds = [start + width * at // count for at in range(count + 1)]
    return [TableSpan(task.span.table_id, first, end) for first, end in pairwise(bounds)]


def _scratch() -> str | None:
    """Return Spark's directory for scratch files."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None


@dataclass(frozen=True, slots=True, eq=False)
class _Hashed:
    """Keys with their hashes, in increasing order."""

    keys: pa.Table
    hashes: Hashes
    is_unique: bool = True

    def table(self) -> pa.Table:
        """The keys, then the hashes, and whether each hash is unique."""
        is_unique = bool((self.hashes[1:] != self.hashes[:-1]).all())
        column = pa.field("", pa.uint64(), metadata={_UNIQUE: str(int(is_unique))})
        return self.keys.append_column(column, pa.array(self.hashes))

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        keys = table.select(range(table.num_columns - 1))
        is_unique = table.field(-1).metadata[_UNIQUE] == b"1"
        return cls(keys, table.column(-1).combine_chunks().to_numpy(), is_unique)


class _Scratch:
    """Scratch files by part: the changes; then the keys that the table may hold, and rows that leave values out; then
    the values."""

    def __init__(self, directory: str, spans: Sequence[TableSpan], table: TableRecord, *, has_feed: bool) -> None:
        self._directory = directory
        self._spans = spans
        self._starts = np.array([span.start for span in spans], np.uint64)
        self._table = table
        self._key = table.key
        self._has_feed = has_feed
        #: as the source has it, and as the table has its keys
        self.schema: pa.Schema | None = None
        self.keys: pa.Schema | None = None
        self._left_out: dict[str, pa.Field] = {}
        #: by part, of its keys in their order: whether new rows have them, and whether the table had them
        self._comes: dict[int, Mask] = {}
        self._was_there: dict[int, Mask] = {}
        self.is_truncated = False
        #: whether it need not be merged as a whole
        self.fits = True

    def lay_down(self, part: Changes) -> None:
        """Store changes in log order; a TRUNCATE voids what was stored before."""
        self.schema = part.after.schema
        rest, is_truncated = after_truncate([part])
        if is_truncated:
            self.is_truncated = self.fits = True
            for number in range(len(self._spans)):
                self._forget("changes", number)
        for each in rest:
            self.fits &= not incomplete_moves(each, key=self._key).any()
            for number, rows in by_span(each, self._spans, key=self._key):
                self._lay_down("changes", number, rows)

    def laid_down(self) -> Iterator[tuple[int, list[Changes]]]:
        """Yield each part that has changes."""
        for number in range(len(self._spans)):
            rows = list(self._laid_down("changes", number))
            self._forget("changes", number)
            if rows:
                yield number, rows
            del rows  # free them before the next ones are read

    def keep_keys(self, number: int, keys: pa.Table, upserts: int) -> None:
        """Store the keys of a part. The first ``upserts`` keys belong to new rows."""
        self.keys = keys.schema
        order = self._keep("keys", number, keys)
        if self._has_feed:
            self._comes[number] = order < upserts

    def keep_incomplete(self, number: int, rows: IncompleteRows, stored_keys: pa.Table) -> None:
        self._left_out |= {item.name: item for item in rows.columns}
        order = self._keep("waiting", number, stored_keys)
        self._lay_down("incomplete", number, replace(rows, rows=rows.rows[order]))

    def afresh(self) -> Self:
        """Return this for another attempt."""
        self._was_there = {number: np.zeros(len(comes), np.bool_) for number, comes in self._comes.items()}
        return self

    def come_again(self, keys: pa.Table) -> Mask:
        found = np.zeros(keys.num_rows, np.bool_)
        for number, at, some in self._by_part(keys):
            place = self._match("keys", number, some)
            found[at] = self._comes[number][place]
            self._was_there[number][place] = True
        return found

    def were_there(self, keys: pa.Table) -> Mask:
        found = np.zeros(keys.num_rows, np.bool_)
        for number, at, some in self._by_part(keys):
            place = self._match("keys", number, some)
            if number in self._was_there:  # otherwise all of the part are new
                found[at] = self._was_there[number][place]
        return found

    def places(self, stored: pa.Table) -> Positions:
        found = [at[self._match("keys", number, keys) >= 0] for number, at, keys in self._by_part(stored)]
        return np.sort(np.concatenate([np.empty(0, np.int64), *found]))

    def take(self, replaced: ReplacedRows) -> None:
        """Store the values of one file of the table that rows need."""
        if not self._left_out:
            return
        row, part = np.full((2, len(replaced.places)), -1, np.int64)
        for number, at, keys in self._by_part(replaced.keys):
            row[at], part[at] = self._match("waiting", number, keys), number
        for at, values in replaced.values(np.flatnonzero(row >= 0), pa.schema(list(self._left_out.values()))):
            for number in np.unique(part[at]):
                mine = np.flatnonzero(part[at] == number)
                self._lay_down("values", number, (row[at][mine], values.take(pa.array(mine))))

    def filled(self) -> Iterator[pa.Table]:
        """Yield each part's rows that left values out, completed with the stored values."""
        for number in range(len(self._spans)):
            for rows in self._laid_down("incomplete", number):
                values = self._laid_down("values", number)
                yield rows.filled(((at, found.select(rows.columns.names)) for at, found in values), self._table)
                del rows
            self._forget("values", number)  # another attempt finds others

    def _by_part(self, stored: pa.Table) -> Iterator[tuple[int, Positions, _Hashed]]:
        """Divide these keys of the table by part."""
        hashes = self._hashes(stored)
        order = np.argsort(hashes)
        hashes = hashes[order]
        bounds = [*np.searchsorted(hashes, self._starts).tolist(), len(hashes)]
        for number, (begin, end) in enumerate(pairwise(bounds)):
            if end > begin:
                at = order[begin:end]
                yield number, at, _Hashed(stored.take(pa.array(at)), hashes[begin:end])

    def _hashes(self, stored: pa.Table) -> Hashes:
        assert self.schema is not None, "something was laid down"
        source = pa.schema([self.schema.field(name) for name in self._key])
        [batch] = stored.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], stored.schema)]
        return key_hash(schema.source_keys(batch, source), self._key)

    def _match(self, kind: str, number: int, keys: _Hashed) -> Positions:
        """Return, for each key, its position among the keys stored for a part, or -1.

        The cost is proportional to the keys asked for, not those stored, since every file of the table asks.
        """
        match = np.full(len(keys.hashes), -1, np.int64)
        path = self._path(kind, number)
        if not os.path.exists(path):
            return match
        with pa.memory_map(path) as file:
            kept = _Hashed.of(pa.ipc.open_file(file).read_all())
            if not kept.is_unique:
                return left_out.match(kept.keys, keys.keys)
            at = np.minimum(np.searchsorted(kept.hashes, keys.hashes), len(kept.hashes) - 1)
            (found,) = np.nonzero(kept.hashes[at] == keys.hashes)
            found = found[left_out.equal(kept.keys.take(pa.array(at[found])), keys.keys.take(pa.array(found)))]
        match[found] = at[found]
        return match

    def _keep(self, kind: str, number: int, keys: pa.Table) -> Positions:
        """Store keys; return their order."""
        hashes = self._hashes(keys)
        order = np.argsort(hashes)
        table = _Hashed(keys.take(pa.array(order)), hashes[order]).table()
        if table.num_rows:
            with pa.OSFile(self._path(kind, number), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        return order

    def _lay_down(self, kind: str, number: int, what: object) -> None:
        with open(self._path(kind, number), "ab") as file:
            pickle.dump(what, file, protocol=pickle.HIGHEST_PROTOCOL)

    def _laid_down(self, kind: str, number: int) -> Iterator[Any]:
        with suppress(FileNotFoundError), open(self._path(kind, number), "rb") as file:
            while file.peek(1):
                yield pickle.load(file)

    def _forget(self, kind: str, number: int) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(kind, number))

    def _path(self, kind: str, number: int) -> str:
        return os.path.join(self._directory, f"{kind}-{number}")


def _folded(log: TableLog | None, task: FlushTask, scratch: _Scratch, marks: Marks) -> Iterator[pa.Table]:
    """Yield the final rows part by part, except those that leave values out; ends early if the parts have to be merged
    as a whole."""
    has_columns = True
    for number, rows in scratch.laid_down() if scratch.fits else ():
        net = net_changes(rows, key=task.table.key, keeps_deleted=marks.soft_delete)
        left_out.refuse_lost(replace(net, lost=net.needed) if scratch.is_truncated else net, task)
        rows.clear()  # folded rows are copies
        upserts = marks.stored(net, forms=schema.FORMS)
        has_columns = has_columns and log is not None and by_vectors.fits(log, upserts)
        is_new = scratch.is_truncated or by_vectors.is_new(net, task)
        if not is_new:
            scratch.keep_keys(number, by_vectors.changed_keys(task, net, upserts), upserts.num_rows)
        if scratch.keys is not None and not has_columns:  # an append may bring other columns
            scratch.fits = False
            return
        if net.kept and not is_new:
            incomplete = IncompleteRows.of(upserts, net)
            scratch.keep_incomplete(number, incomplete, incomplete.stored_keys(net, task.table.key, forms=schema.FORMS))
        else:
            yield upserts


def _commit(
    place: TablePlace, log: TableLog | None, task: FlushTask, scratch: _Scratch, files: Sequence[DataFile]
) -> bool:
    """Commit. Return whether the table now records ``task.to_ts``; it does not if there was nothing to change."""
    keys = scratch.keys
    if log is not None and keys is not None:
        return commit.on_newest(
            place, log.refreshed, lambda newest: by_vectors.replace(newest, place, task, files, keys, scratch.afresh())
        )
    if files or scratch.is_truncated:
        commit.with_retries(place, lambda table: _append(table, place, task, scratch, files))
    return bool(files) or scratch.is_truncated


def _append(
    table: DeltaTable, place: TablePlace, task: FlushTask, scratch: _Scratch, files: Sequence[DataFile]
) -> None:
    if delta_table.is_written(table, task):
        return
    commit.add_columns(place, table, files, name=f"{task.table.schema_name}.{task.table.name}")
    if scratch.is_truncated:
        assert scratch.schema is not None, "the TRUNCATE was laid down"
        files = [*truncate.in_front(table, place, task, scratch.schema, NO_MARKS, pa.table({})), *files]
    commit.commit_to(place, table, files, delta_table.new_records([task]), key=task.table.key)
