"""Upsert by vectors: writes net changes into a Delta table at a cost proportional to the changes, not the table.

Tables below a mebibyte are written in the same way, but without vectors.

The rows of the changed keys are found (``find``). Their positions are added to the files' deletion vectors, and the new
rows to a new file, in one commit with the record. The same commit also compacts: many small files become one, and files
with many deleted rows are rewritten.

If the columns differ from the table's, the MERGE of ``merge`` is used, which supports vectors too.
"""

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa

from agent.filter import events
from agent.ports.sink import FlushTask
from agent.rows.fold import NetChanges
from agent.rows.unify import Mask
from agent.sinks.common import left_out
from agent.sinks.common.row_marks import Marks
from agent.sinks.delta.table import change_feed, deletion_vectors, own_files
from agent.sinks.delta.table import commit as delta_commit
from agent.sinks.delta.table import files as delta_files
from agent.sinks.delta.table import place as delta_table
from agent.sinks.delta.table import schema as delta_schema
from agent.sinks.delta.table.commits import Action
from agent.sinks.delta.table.deletion_vectors import Positions
from agent.sinks.delta.table.files import DataFile
from agent.sinks.delta.table.layout import Layout
from agent.sinks.delta.table.live_file import LiveFile, now_ms
from agent.sinks.delta.table.log import TableLog
from agent.sinks.delta.table.place import TablePlace
from agent.sinks.delta.upsert import stored as delta_stored
from agent.sinks.delta.upsert.find import Found, KeySearch, read_keys
from agent.sinks.delta.upsert.stored import ReplacedRows

_SMALL_BYTES = 1 << 20
#: more small files than this are joined
SMALL_MAX = 24
#: a file is rewritten if this share of its rows, or this many, are deleted, since its vector grows
_GONE_SHARE = 0.25
_GONE_MAX = 1 << 16
#: bytes of rows in memory per file, if there are several
_FILE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Thinned:
    """A live file with the rows to delete now, at the places ``taken`` and with ``keys``, beside those that are
    deleted."""

    file: LiveFile
    taken: Positions
    keys: pa.Table
    rows: int

    @classmethod
    def of(cls, file: LiveFile, found: Found) -> Self:
        if not len(found.places) or file.vector is None:
            return cls(file, found.places, found.keys, found.rows)
        (is_live,) = np.nonzero(~np.isin(found.places, deleted(file), assume_unique=True))
        return cls(file, found.places[is_live], found.keys.take(pa.array(is_live)), found.rows)

    @property
    def gone(self) -> Positions:
        return np.union1d(deleted(self.file), self.taken)

    @property
    def is_touched(self) -> bool:
        return len(self.taken) > 0

    @property
    def is_small(self) -> bool:
        return self.file.size < _SMALL_BYTES

    @property
    def is_empty(self) -> bool:
        return self.file.deleted_rows + len(self.taken) == self.rows

    @property
    def is_worn(self) -> bool:
        """Small files stay until there are many."""
        gone = self.file.deleted_rows + len(self.taken)
        return not self.is_small and gone > min(self.rows * _GONE_SHARE, _GONE_MAX)


def deleted(file: LiveFile) -> Positions:
    before = np.empty(0, np.int64) if file.vector is None else deletion_vectors.decode(file.vector)
    assert before is not None, "vectors of other kinds are for delta-rs"
    return before


def can_apply(log: TableLog, net: NetChanges, task: FlushTask, marks: Marks) -> bool:
    """Return whether the table's columns and files are as we write them, and its files can stay or are cheap to
    rewrite. In a table with partitions, a mapping of columns or a change feed those that are touched are rewritten: a
    MERGE writes other ones."""
    is_small = sum(file.size for file in log.files.values()) < _SMALL_BYTES
    is_ours = log.partitions or log.layout.names.is_mapped or log.has_feed
    if net.is_truncated or not (log.takes_vectors or is_small or is_ours or is_new(net, task)):
        return False
    return fits(log, marks.stored(net, forms=delta_schema.FORMS))


def fits(log: TableLog, upserts: pa.Table) -> bool:
    """Return whether the table has exactly the columns of ``upserts`` (if there are rows), and files as we write
    them."""
    stored = delta_table.plain_schema(log.schema())
    is_same = set(upserts.schema.names) == set(stored.names) and all(
        stored.field(item.name).type == item.type for item in upserts.schema
    )
    return (is_same or not upserts.num_rows) and all(_is_ours(file) for file in log.files.values())


def is_new(net: NetChanges, task: FlushTask) -> bool:
    """Return whether the source guarantees that the table has none of these keys (see ``merge``), and no filter has
    kept any."""
    if not net.is_insert_only or task.from_ts < task.table.consistent_ts or task.feed.was_filtered:
        return False
    return not events.rules_for(task.feed.filter, task.table.schema_name, task.table.name).leaves_rows


def _is_ours(file: LiveFile) -> bool:
    return own_files.is_own(file.path) and (file.vector is None or file.vector["storageType"] == "i")


def apply(log: TableLog, place: TablePlace, task: FlushTask, net: NetChanges, marks: Marks) -> bool:
    """Write the changes. Return whether the table now records ``task.to_ts``; it does not if there was nothing to
    change.

    :raises CommitFailedError: another commit was faster.
    """
    if delta_table.is_written(log, task):
        return True
    upserts = marks.stored(net, forms=delta_schema.FORMS)
    wanted = changed_keys(task, net, upserts)
    search = KeySearch(place, wanted)
    thinned = [Thinned.of(file, search.run(file)) for file in log.files.values()]
    touched = [item for item in thinned if item.is_touched]
    if not upserts.num_rows and not touched:
        return False
    if net.kept:
        replaced = (_replaced(place, item) for item in touched)
        upserts = delta_stored.fill(upserts, net, replaced, task.table)
    merged = [item for group in many_small(thinned, lambda file: ()) for item in group]
    if not log.takes_vectors:
        merged = [item for item in thinned if item.is_touched or item in merged]
    schema = delta_table.plain_schema(log.schema())
    new = [upserts.select(schema.names)] if upserts.num_rows else []
    contents = chain(*(rest(place, item, schema) for item in merged), new)
    written = write_rows(place, task, schema, contents, log.layout)
    changed = Changed([*written], [item.file.remove() for item in merged])
    for item in touched:
        if item not in merged:
            changed.leave_rest(log, place, task, item)
    if changed.actions and log.has_feed:
        rows = _changed_rows(place, touched, upserts.select(schema.names) if new else schema.empty_table(), task)
        changed.actions.extend(change_feed.write(place, rows, log.layout))
    changed.commit(log, task)
    return True


def _changed_rows(
    place: TablePlace, touched: Sequence[Thinned], upserts: pa.Table, task: FlushTask
) -> Iterator[pa.Table]:
    """Yield the rows that go and come, as a change feed has them."""
    keys = upserts.select(list(task.table.key))
    which = [left_out.match(keys, item.keys) for item in touched]
    for item, at in zip(touched, which, strict=True):
        yield from _old_rows(place, item, upserts.schema, at >= 0)
    was_there = np.isin(np.arange(upserts.num_rows), np.concatenate([np.empty(0, np.int64), *which]))
    yield change_feed.new_rows(upserts, was_there)


def _old_rows(place: TablePlace, item: Thinned, schema: pa.Schema, stays: Mask) -> Iterator[pa.Table]:
    for at, rows in _replaced(place, item).values(np.arange(len(item.taken)), schema):
        yield change_feed.old_rows(rows, stays[at])


class Replacement(Protocol):
    """Rows that replace others."""

    def places(self, stored: pa.Table) -> Positions:
        """Return the positions, among a file's key columns, of the rows to replace."""
        ...

    def take(self, replaced: ReplacedRows) -> None:
        """Called before rows are removed: the last chance to read them."""
        ...

    def filled(self) -> Iterator[pa.Table]:
        """Yield, after the last of them, the rows that needed their values."""
        ...

    def come_again(self, keys: pa.Table) -> Mask:
        """Return which of these keys of rows that are removed new rows have. For a change feed only."""
        ...

    def were_there(self, keys: pa.Table) -> Mask:
        """Return which of these keys of new rows ``come_again`` was asked for."""
        ...


def replace(
    log: TableLog,
    place: TablePlace,
    task: FlushTask,
    files: Sequence[DataFile],
    keys: pa.Schema,
    replacement: Replacement,
) -> bool:
    """Like ``apply``: replace the rows found by the columns ``keys`` with ``files`` and the rest of ``replacement``,
    but process one file of the table at a time, since all of them may be affected.

    :raises CommitFailedError: another commit was faster.
    """
    if delta_table.is_written(log, task):
        return True
    changed, schema = Changed(list(files), []), delta_table.plain_schema(log.schema())
    for file in log.files.values():
        stored = pa.concat_tables([keys.empty_table(), *read_keys(place, file, keys)]).combine_chunks()
        places = replacement.places(stored)
        item = Thinned.of(file, Found(places, stored.take(pa.array(places)), stored.num_rows))
        del stored
        if item.is_touched:
            replacement.take(_replaced(place, item))
            changed.leave_rest(log, place, task, item)
            if log.has_feed:
                rows = _old_rows(place, item, schema, replacement.come_again(item.keys))
                changed.actions.extend(change_feed.write(place, rows, log.layout))
    filled = list(write_files(place, task, replacement.filled(), log.layout))
    changed.files.extend(filled)
    if not changed.files and not changed.actions:
        return False
    if changed.actions and log.has_feed:
        rows = _new_rows(place, [*files, *filled], schema, keys.names, replacement)
        changed.actions.extend(change_feed.write(place, rows, log.layout))
    changed.commit(log, task)
    return True


def _new_rows(
    place: TablePlace, files: Sequence[DataFile], schema: pa.Schema, key: Sequence[str], replacement: Replacement
) -> Iterator[pa.Table]:
    for file in files:
        for rows in delta_files.read_file(place, file.path, schema, layout=file.layout):
            yield change_feed.new_rows(rows, replacement.were_there(rows.select(key)))


@dataclass(frozen=True, slots=True)
class Changed:
    """The content of one commit."""

    files: list[DataFile]
    actions: list[Action]

    def leave_rest(self, log: TableLog, place: TablePlace, task: FlushTask, item: Thinned) -> None:
        """Keep, shrink, rewrite or remove a file that is affected."""
        self.actions.append(item.file.remove())
        if item.is_empty:
            return
        if item.is_worn or not log.takes_vectors:
            schema = delta_table.plain_schema(log.schema())
            self.files.extend(write_rows(place, task, schema, rest(place, item, schema), log.layout))
        else:
            self.actions.append(_thinner(item))

    def commit(self, log: TableLog, task: FlushTask) -> None:
        delta_commit.append_to(log, self.files, [task], self.actions)


def changed_keys(task: FlushTask, net: NetChanges, upserts: pa.Table) -> pa.Table:
    """Return the keys that may be stored."""
    key = list(task.table.key)
    deletes = delta_schema.delta_table(net.deletes)
    parts = [upserts.select(key)] if upserts.num_rows else []
    parts += [deletes.select(key)] if deletes.num_rows else []
    keys = pa.concat_tables(parts).combine_chunks()
    return keys.slice(0, 0) if is_new(net, task) else keys


def _replaced(place: TablePlace, item: Thinned) -> ReplacedRows:
    return ReplacedRows(place.path_of(item.file.path), item.taken, item.keys, item.file.layout)


def _thinner(item: Thinned) -> Action:
    """Return the action for the same file with fewer rows."""
    stats = json.loads(item.file.add.get("stats") or "{}") | {"numRecords": item.rows, "tightBounds": False}
    fields = {"stats": json.dumps(stats), "deletionVector": deletion_vectors.encode(item.gone)}
    return {"add": item.file.add | fields | {"modificationTime": now_ms(), "dataChange": True}}


def many_small(items: Sequence[Thinned], kind: Callable[[LiveFile], Hashable]) -> list[list[Thinned]]:
    """Return the small files of each partition and ``kind`` that has many of them."""
    groups: dict[Hashable, list[Thinned]] = {}
    for item in items:
        if item.is_small:
            groups.setdefault((kind(item.file), *sorted(item.file.partition.items())), []).append(item)
    return [group for group in groups.values() if len(group) > SMALL_MAX]


def write_rows(
    place: TablePlace, task: FlushTask, schema: pa.Schema, tables: Iterable[pa.Table], layout: Layout
) -> list[DataFile]:
    """Write a file of rows at ``task.to_ts``, or one for each partition; none if there are no rows."""
    if layout.partitions:
        return list(delta_files.write_files(place, lambda: _name(task), tables, layout=layout))
    file = delta_files.write_file(place, _name(task), tables, schema, layout.file())
    return [] if file is None else [file]


def write_files(place: TablePlace, task: FlushTask, tables: Iterable[pa.Table], layout: Layout) -> Iterator[DataFile]:
    """Write many rows, in several files."""
    return delta_files.write_files(place, lambda: _name(task), tables, bytes_max=_FILE_BYTES, layout=layout)


def _name(task: FlushTask) -> str:
    return f"rows-{task.from_ts:x}-{task.to_ts:x}-{uuid4().hex[:8]}.parquet"


def rest(place: TablePlace, item: Thinned, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield a file's rows that are not deleted."""
    return delta_files.read_file(place, item.file.path, schema, without=item.gone, layout=item.file.layout)
