"""Segment: one file of the change log, its name, how it is written and how one table is read out of it.

A segment is an Arrow IPC file (lz4) with record batches of one table and schema version each, in log order inside a
batch and from one to the next. None is larger than some mebibytes: it is decompressed and decoded as a whole, and what
decoding makes of narrow rows is larger than they are. The name tells the segment's place; the file's schema metadata
tells which batch is whose, so a reader touches only the batches of its table; every batch carries the table's schema
and the commit time of its newest event, or of a newer one of the same segment. Which files belong to the log is not
said here: the head says it (``agent.log.reader``).
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.errors import LogError
from agent.log.storage import LogDirectory, open_input
from agent.rows.batches import SegmentRef, TableBatch
from agent.rows.schema import LOG_BATCH, TableSchema
from reactor.ids import Ts

SCHEMA = b"weir.schema"
COMMIT_TIME = b"weir.commit_time"
BATCHES = b"weir.batches"
#: of the file; one without it is of v0.1.0
FORMAT = b"weir.format"
NEWEST_FORMAT = 1

_PIECE_BYTES = 4 << 20
#: what runs beside it has the other cores; a batch of some rows takes a third of the time so
_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)

_NAME = re.compile(r"^(\d{12,})-(\d+)-([0-9a-f]+)-([0-9a-f]+)-([0-9a-f]+)\.arrow$")


@dataclass(frozen=True, slots=True)
class SegmentName:
    """What the name of a segment says; see ``SegmentRef`` for the meaning."""

    seq: int
    epoch: int
    first_ts: Ts
    last_ts: Ts
    resolved_ts: Ts

    def __str__(self) -> str:
        return f"{self.seq:012d}-{self.epoch}-{self.first_ts:x}-{self.last_ts:x}-{self.resolved_ts:x}.arrow"

    @classmethod
    def parse(cls, name: str) -> "SegmentName | None":
        """None when the name is not a segment's."""
        match = _NAME.match(name)
        if match is None:
            return None
        seq, epoch, *positions = match.groups()
        first, last, resolved = (Ts(int(text, 16)) for text in positions)
        return cls(int(seq), int(epoch), first, last, resolved)

    def ref(self, path: str, *, size: int = 0, tables: frozenset[int] = frozenset()) -> SegmentRef:
        return SegmentRef(path, self.seq, self.epoch, self.first_ts, self.last_ts, self.resolved_ts, size, tables)


def write(directory: LogDirectory, name: SegmentName, batches: Sequence[TableBatch]) -> SegmentRef:
    """Write one segment; when this returns it is durable under its name, and a crash before leaves nothing under it.

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
    """The tables with at least one event in the segment, and its size in bytes.

    :raises LogError: the file is missing or damaged.
    """
    with open_input(path) as file, _reader(file, path) as reader:
        return frozenset(table for table, _ in _listing(reader)), int(file.size())


def read_batches(path: str, table_id: int | None = None) -> Iterator[tuple[TableSchema, pa.RecordBatch, float]]:
    """Whole batches of one table (or of all) with the commit time of their newest event.

    :raises LogError: the file is missing or damaged.
    """
    with open_input(path) as file, _reader(file, path) as reader:
        for index, (table, _) in enumerate(_listing(reader)):
            if table_id is None or table == table_id:
                batch, metadata = _read_batch(reader, index, path)
                yield _schema(metadata[SCHEMA]), batch, float(metadata[COMMIT_TIME])


def event_offsets(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Where in its buffer each event begins, and where the last one ends."""
    events = batch.column("event")
    offsets = np.frombuffer(events.buffers()[1], np.int64)
    return offsets[events.offset : events.offset + len(events) + 1]


@lru_cache(maxsize=4096)
def _schema(text: bytes) -> TableSchema:
    return TableSchema.from_json(text)


def _read_batch(reader: Any, index: int, path: str) -> tuple[pa.RecordBatch, Any]:
    try:
        item = reader.get_batch_with_custom_metadata(index)
        item.batch.validate(full=True)  # decoders go by its offsets
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from error
    return item.batch, item.custom_metadata


def _reader(file: Any, path: str) -> Any:
    try:
        reader = pa.ipc.open_file(file, options=_OPTIONS)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(path, error) from error
    refuse_newer(reader.schema, path)
    return reader


def refuse_newer(schema: pa.Schema, path: str) -> None:
    """:raises LogError: the segment was written by a version whose segments this one cannot read."""
    number = int((schema.metadata or {}).get(FORMAT, b"1"))
    if number > NEWEST_FORMAT:
        raise LogError(
            f"segment {path} is of format {number}, and this version of Weir reads up to {NEWEST_FORMAT}: "
            "read it with the version that wrote it, or a newer one"
        )


def _listing(reader: Any) -> list[list[int]]:
    return list(json.loads(reader.schema.metadata[BATCHES]))


def _damaged(path: str, error: Exception) -> LogError:
    return LogError(f"segment {path} cannot be read ({str(error).splitlines()[0][:120]}); is the log storage complete?")
