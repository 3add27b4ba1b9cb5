"""A transaction that is too large to be folded at once, into an upserted table: a part of the key space at a time.

What is merged is in memory at once, decoded; and a transaction is never cut, so one of ten million rows would be too.
Instead its changes are laid down in scratch files, one for each part of the table's keys. Each part is folded alone:
its rows become a file of the table, its keys are kept aside. Then every file of the table is gone through once for rows
of these keys, and one commit makes all of it visible, with the record. In memory are one part, or the keys of one file
of the table, however large the transaction is, and whatever it does.

Left to be merged as a whole is what only stored values can tell (a value that an update left out), a TRUNCATE, and
anything but new rows where the table's log is delta-rs's to read (``delta_log``).
"""

import os
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from agent.changes import net_changes
from agent.key_hash import key_hash
from agent.ports import TRUNCATE, Changes, FlushResult, FlushTask
from agent.sinks import delta_commit, delta_schema, delta_table, delta_upsert
from agent.sinks.delta_files import DataFile
from agent.sinks.delta_log import TableLog
from agent.sinks.delta_table import TablePlace
from agent.sinks.delta_vectors import Positions
from agent.span_rows import by_span
from reactor.ids import TableSpan

#: of the segments, compressed; more is taken apart, and each part is about so much
_WHOLE_BYTES = 16 << 20
_PART_BYTES = 4 << 20


def write(place: TablePlace, log: TableLog | None, task: FlushTask, changes: Iterable[Changes]) -> FlushResult | None:
    """None where this is not for us: it is no more than usual, or has to be merged as a whole.

    :raises SinkFencedError: the table does not stand at ``task.from_ts``.
    :raises SinkConflictError: others committed first, again and again.
    """
    spans = _parts(task)
    if len(spans) < 2:
        return None
    rows, commit_time = 0, 0.0
    with tempfile.TemporaryDirectory(prefix="weir-large-", dir=_scratch()) as directory:
        scratch = _Scratch(directory, spans, task.table.key)
        for part in changes:
            if (part.op == TRUNCATE).any():
                return None
            rows, commit_time = rows + len(part), max(commit_time, part.commit_time)
            scratch.lay_down(part)
            del part  # it is large, and the next one is to come
        files = _fold(place, log, task, scratch)
        if files is None:
            return None
        committed = _commit(place, log, task, scratch, files)
    return FlushResult(
        task.span,
        task.from_ts,
        task.to_ts,
        committed=committed,
        rows=rows,
        bytes=sum(file.bytes for file in files),
        commit_time=commit_time,
    )


def _parts(task: FlushTask) -> list[TableSpan]:
    size = sum(item.bytes for item in task.segments)
    count = size // _PART_BYTES if size > _WHOLE_BYTES else 1
    start, width = task.span.start, task.span.end - task.span.start
    bounds = [start + width * at // count for at in range(count + 1)]
    return [TableSpan(task.span.table_id, first, end) for first, end in pairwise(bounds)]


def _scratch() -> str | None:
    """Where Spark has room for what is in the way."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None


class _Scratch:
    """What is laid down by part: the changes, then the keys that the table may hold."""

    def __init__(self, directory: str, spans: Sequence[TableSpan], key: Sequence[str]) -> None:
        self._directory = directory
        self._spans = spans
        self._starts = np.array([span.start for span in spans], np.uint64)
        self._key = key
        self._source: pa.Schema | None = None
        self.key_schema: pa.Schema | None = None

    def lay_down(self, part: Changes) -> None:
        """In log order."""
        self._source = pa.schema([part.after.schema.field(name) for name in self._key])
        for number, rows in by_span(part, self._spans, key=self._key):
            with open(self._path("changes", number), "ab") as file:
                pickle.dump(rows, file, protocol=pickle.HIGHEST_PROTOCOL)

    def laid_down(self) -> Iterator[tuple[int, list[Changes]]]:
        """Each part that has any."""
        for number in range(len(self._spans)):
            path = self._path("changes", number)
            if os.path.exists(path):
                with open(path, "rb") as file:
                    rows = []
                    while file.peek(1):
                        rows.append(pickle.load(file))
                os.unlink(path)
                yield number, rows
                del rows  # the next ones are to come

    def keep_keys(self, number: int, keys: pa.Table) -> None:
        self.key_schema = keys.schema
        with pa.OSFile(self._path("keys", number), "wb") as file, pa.ipc.new_file(file, keys.schema) as writer:
            writer.write_table(keys)

    def places(self, stored: pa.Table) -> Positions:
        """Where in a file of the table, whose key columns are ``stored``, keys are that were kept."""
        assert self._source is not None, "something was laid down"
        [batch] = stored.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], stored.schema)]
        hashes = key_hash(delta_schema.source_keys(batch, self._source), self._key)
        part = np.searchsorted(self._starts, hashes, side="right") - 1
        order = np.argsort(part, kind="stable")
        ends = np.searchsorted(part[order], np.arange(-1, len(self._spans)), side="right")
        found = [np.empty(0, np.int64)]
        for number, (begin, end) in enumerate(pairwise(ends.tolist())):
            path = self._path("keys", number)
            if end > begin and os.path.exists(path):
                at = order[begin:end]
                with pa.memory_map(path) as file:
                    wanted = pa.ipc.open_file(file).read_all()
                    found.append(at[delta_upsert.places(stored.take(pa.array(at)), wanted)])
        return np.sort(np.concatenate(found))

    def _path(self, kind: str, number: int) -> str:
        return os.path.join(self._directory, f"{kind}-{number}")


def _fold(place: TablePlace, log: TableLog | None, task: FlushTask, scratch: _Scratch) -> list[DataFile] | None:
    """The files of the rows as they are in the end; None where the parts have to be merged as a whole."""
    files, fits = [], True
    for number, rows in scratch.laid_down():
        net = net_changes(rows, key=task.table.key)
        rows.clear()  # what is folded is a copy
        if net.kept:
            return None
        upserts = delta_schema.delta_table(net.upserts)
        fits = fits and log is not None and delta_upsert.fits(log, upserts)
        if not delta_upsert.is_new(net, task):
            scratch.keep_keys(number, delta_upsert.changed_keys(task, net, upserts))
        if scratch.key_schema is not None and not fits:  # what only appends may bring other columns
            return None
        file = delta_upsert.write_rows(place, task, upserts.schema, [upserts])
        files += [] if file is None else [file]
    return files


def _commit(
    place: TablePlace, log: TableLog | None, task: FlushTask, scratch: _Scratch, files: Sequence[DataFile]
) -> bool:
    """Whether the table now records ``task.to_ts``; it does not if there was nothing to change after all."""
    keys = scratch.key_schema
    if log is not None and keys is not None:
        return delta_commit.on_newest(
            place, log.refreshed, lambda newest: delta_upsert.replace(newest, place, task, files, keys, scratch.places)
        )
    if files:
        delta_commit.with_retries(place, lambda table: _append(table, task, files))
    return bool(files)


def _append(table: DeltaTable, task: FlushTask, files: Sequence[DataFile]) -> None:
    if not delta_table.is_written(table, task):
        delta_commit.add_columns(table, files, name=f"{task.table.schema_name}.{task.table.name}")
        delta_commit.commit_to(table, files, delta_table.commit_properties([task]))
