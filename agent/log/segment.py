"""Segment: one file of the change log: its name, how it is written, and how one table is read from it.

A segment is an Arrow IPC file (lz4) of record batches with one table and schema version each, in log order within and
across batches. Batches are limited to a few mebibytes: each is decompressed and decoded as a whole, and decoded narrow
rows are larger than their events. The name contains the segment's position. The file's schema metadata lists which
batch belongs to which table, so a reader touches only its table's batches; every batch carries its table's schema and
the commit time of its newest event, or of a newer one in the same segment. The head decides which files are part of the
log (``agent.log.reader``).
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.errors import NEW_POSITION, LogError
from agent.log.storage import LogDirectory, open_input
from agent.rows.batches import SegmentRef, TableBatch
from agent.rows.schema import LOG_BATCH, TableSchema
from reactor.ids import Ts

SCHEMA = b"weir.schema"
COMMIT_TIME = b"weir.commit_time"
BATCHES = b"weir.batches"
#: the file's format; files without it are from v0.1.0
FORMAT = b"weir.format"
#: what Arrow and JSON raise for damaged contents
UNREADABLE: Final = (OSError, pa.ArrowException, ValueError, LookupError, TypeError)
NEWEST_FORMAT = 1

_PIECE_BYTES = 4 << 20
#: other tasks use the other cores; without threads a batch of a few rows takes a third of the time
_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)

_NAME = re.compile(r"^(\d{12,})-(\d+)-([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)\.arrow$")


@dataclass(frozen=True, slots=True)
class SegmentName:
    """The fields of a segment's file name; see ``SegmentRef`` for their meaning."""

    seq: int
    epoch: int
    first_ts: Ts
    last_ts: Ts
    resolved_ts: Ts

    def __str__(self) -> str:
        return f"{self.seq:012d}-{self.epoch}-{self.first_ts:x}-{self.last_ts:x}-{self.resolved_ts:x}.arrow"

    @classmethod
    def parse(cls, name: str) -> "SegmentName | None":
        """Parse a file name; None if it is not a segment's."""
        match = _NAME.match(name)
        if match is None:
            return None
        seq, epoch, *positions = match.groups()
        first, last, resolved = (Ts(int(text, 16)) for text in positions)
        return cls(int(seq), int(epoch), first, last, resolved)

    def ref(self, path: str, *, size: int = 0, tables: frozenset[int] = frozenset()) -> SegmentRef:
        return SegmentRef(path, self.seq, self.epoch, self.first_ts, self.last_ts, self.resolved_ts, size, tables)


def write(directory: LogDirectory, name: SegmentName, batches: Sequence[TableBatch]) -> SegmentRef:
    """Write one segment, atomically and durably.

    :raises LogError: the storage refused.
    """
    size = directory.write(str(name), lambda file: _write_file(file, batches))
    tables = frozenset(item.schema.table_id for item in batches)
    return name.ref(directory.path_of(str(name)), size=size, tables=tables)


def _write_file(file: BinaryIO, whole: Sequence[TableBatch]) -> None:
    batches = [replace(item, batch=piece) for item in whole for piece in _pieces(item.batch)]
    listing = [[item.schema.table_id, item.batch.num_rows] for item in batches]
    schema = LOG_BATCH.with_metadata({BATCHES: json.dumps(listing), FORMAT: str(NEWEST_FORMAT)})
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(file, schema, options=options) as writer:
        for item in batches:
            metadata = {SCHEMA: item.schema.to_json(), COMMIT_TIME: repr(item.commit_time)}
            writer.write_batch(item.batch, custom_metadata=metadata)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    offsets = event_offsets(batch)
    count = max(-(-int(offsets[-1] - offsets[0]) // _PIECE_BYTES), 1)
    bounds = np.searchsorted(offsets, offsets[0] + _PIECE_BYTES * np.arange(count + 1)).tolist()
    bounds[-1:] = [batch.num_rows]
    for first, end in pairwise(dict.fromkeys(bounds)):
        yield batch.slice(first, end - first)


def contents_of(path: str) -> tuple[frozenset[int], int]:
    """Return the tables with at least one event in the segment, and its size in bytes.

    :raises LogError: the file is missing or damaged.
    """
    with open_input(path) as file, _reader(file, path) as reader:
        return frozenset(table for table, _ in _listing(reader, path)), int(file.size())


def read_batches(path: str, table_id: int | None = None) -> Iterator[tuple[TableSchema, pa.RecordBatch, float]]:
    """Yield the batches of one table (or of all), each with the commit time of its newest event.

    :raises LogError: the file is missing or damaged.
    """
    with open_input(path) as file, _reader(file, path) as reader:
        for index, (table, _) in enumerate(_listing(reader, path)):
            if table_id is None or table == table_id:
                yield _read_batch(reader, index, path)


def event_offsets(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the offset of each event in the batch's buffer, and the end of the last one."""
    events = batch.column("event")
    offsets = np.frombuffer(events.buffers()[1], np.int64)
    return offsets[events.offset : events.offset + len(events) + 1]


@lru_cache(maxsize=4096)
def _schema(text: bytes) -> TableSchema:
    return TableSchema.from_json(text)


def _read_batch(reader: Any, index: int, path: str) -> tuple[TableSchema, pa.RecordBatch, float]:
    try:
        item = reader.get_batch_with_custom_metadata(index)
        item.batch.validate(full=True)  # decoders rely on its offsets
        return _schema(item.custom_metadata[SCHEMA]), item.batch, float(item.custom_metadata[COMMIT_TIME])
    except UNREADABLE as error:
        raise _damaged(path, error) from error


def _reader(file: Any, path: str) -> Any:
    try:
        reader = pa.ipc.open_file(file, options=_OPTIONS)
    except UNREADABLE as error:
        raise _damaged(path, error) from error
    refuse_newer(reader.schema, path)
    return reader


def refuse_newer(schema: pa.Schema, path: str) -> None:
    """:raises LogError: a newer version of Weir wrote the segment, and this one cannot read it."""
    try:
        number = int((schema.metadata or {}).get(FORMAT, b"1"))
    except ValueError as error:
        raise _damaged(path, error) from error
    if number > NEWEST_FORMAT:
        raise LogError(
            f"segment {path} is of format {number}, and this version of Weir reads up to {NEWEST_FORMAT}: "
            "read it with the version that wrote it, or a newer one"
        )


def _listing(reader: Any, path: str) -> list[tuple[int, int]]:
    """Return the table and the number of events of each batch."""
    try:
        return [(int(table), int(events)) for table, events in json.loads(reader.schema.metadata[BATCHES])]
    except UNREADABLE as error:
        raise _damaged(path, error) from error


def _damaged(path: str, error: Exception) -> LogError:
    said = (str(error).splitlines() or [type(error).__name__])[0][:120]
    return LogError(
        f"segment {path} cannot be read ({said}); is the log storage complete? Restore it; or pause the changefeed: "
        f"{NEW_POSITION}"
    )
