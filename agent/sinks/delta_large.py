"""A transaction of very many new rows into an upserted table, a part of the key space at a time.

What is merged is in memory at once. A transaction is never cut, so one of ten million rows would be too; but nearly all
that are so large only insert. Then its changes are laid down in scratch files, one for each part of the table's keys,
each part becomes a file of the table, and one commit makes all of them visible with the record. Where it does anything
else, it is merged as a whole.
"""

import os
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from uuid import uuid4

from deltalake import DeltaTable

from agent.changes import net_changes
from agent.ports import Changes, FlushResult, FlushTask
from agent.sinks import delta_commit, delta_files, delta_schema, delta_table
from agent.sinks.delta_files import DataFile
from agent.sinks.delta_table import TablePlace
from agent.span_rows import keep_span
from reactor.ids import TableSpan

#: of the segments, compressed; more is taken apart, and each part is about so much
_WHOLE_BYTES = 16 << 20
_PART_BYTES = 4 << 20


def write(place: TablePlace, task: FlushTask, changes: Iterable[Changes]) -> FlushResult | None:
    """None where this is not for us: it is no more than usual, or may touch rows that are there.

    :raises SinkFencedError: the table does not stand at ``task.from_ts``.
    :raises SinkConflictError: others committed first, again and again.
    """
    spans = _parts(task)
    if len(spans) < 2 or task.from_ts < task.table.consistent_ts:
        return None
    files: list[DataFile] = []
    rows, commit_time = 0, 0.0
    with tempfile.TemporaryDirectory(prefix="weir-inserts-", dir=_scratch()) as directory:
        paths = [os.path.join(directory, str(number)) for number in range(len(spans))]
        for part in changes:
            rows += len(part)
            commit_time = max(commit_time, part.commit_time)
            for path, span in zip(paths, spans, strict=True):
                _lay_down(path, keep_span(part, span, key=task.table.key))
        # without a single change in the range there is no file
        for path in filter(os.path.exists, paths):
            net = net_changes(list(_laid_down(path)), key=task.table.key)
            if not net.is_insert_only or net.is_truncated:
                return None
            upserts = delta_schema.delta_table(net.upserts)
            name = f"rows-{task.from_ts:x}-{task.to_ts:x}-{uuid4().hex[:8]}.parquet"
            file = delta_files.write_file(place, name, [upserts], upserts.schema) if upserts.num_rows else None
            files += [] if file is None else [file]
    if files:
        delta_commit.with_retries(place, lambda table: _commit(table, task, files))
    size = sum(file.bytes for file in files)
    return FlushResult(
        task.span, task.from_ts, task.to_ts, committed=bool(files), rows=rows, bytes=size, commit_time=commit_time
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


def _lay_down(path: str, part: Changes) -> None:
    with open(path, "ab") as file:
        pickle.dump(part, file, protocol=pickle.HIGHEST_PROTOCOL)


def _laid_down(path: str) -> Iterator[Changes]:
    with open(path, "rb") as file:
        while file.peek(1):
            yield pickle.load(file)


def _commit(table: DeltaTable, task: FlushTask, files: Sequence[DataFile]) -> None:
    if not delta_table.is_written(table, task):
        delta_commit.add_columns(table, files, name=f"{task.table.schema_name}.{task.table.name}")
        delta_commit.commit_to(table, files, delta_table.commit_properties([task]))
