"""Salvage: reads the intact batches of a damaged segment in order, for inspection by people.

Readers of the log use the index at a segment's end, and reject a file without it. Batches are stored one after another,
each with its own header, so those before a truncated or damaged place can still be read.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from agent.errors import LogError
from agent.log.segment import BATCHES, COMMIT_TIME, SCHEMA, UNREADABLE, refuse_newer
from agent.log.storage import open_input
from agent.rows.schema import LOG_BATCH, TableSchema

#: before the first message: the file's magic, and two bytes of padding
_HEAD_BYTES: Final = 8


def whole_batches(path: str) -> Iterator[tuple[TableSchema, pa.RecordBatch, float]]:
    """Yield batches with their table's schema and the commit time of their newest event.

    :raises LogError: the file is missing, no segment, or truncated or damaged after the batches that were yielded.
    """
    with open_input(path) as file:
        reader = _open(file, path)
        count = 0
        while True:
            at = file.tell()
            try:
                batch, metadata = _next(reader)
                if batch is None:
                    break
                found = TableSchema.from_json(metadata[SCHEMA]), batch, float(metadata[COMMIT_TIME])
            except UNREADABLE as error:
                raise LogError(_ended(path, f"at byte {at}, in its batch {count + 1}", error)) from None
            yield found
            count += 1
        _check_end(file, path, count)


def _open(file: Any, path: str) -> Any:
    try:
        file.seek(_HEAD_BYTES)
        reader = pa.ipc.open_stream(file)
        schema = reader.schema
    except UNREADABLE as error:
        raise LogError(_ended(path, "in its head", error)) from None
    refuse_newer(schema, path)
    if BATCHES not in (schema.metadata or {}) or not schema.remove_metadata().equals(LOG_BATCH.remove_metadata()):
        raise LogError(f"{path} is an Arrow file, but no segment of a change log; name one of those")
    return reader


def _next(reader: Any) -> tuple[pa.RecordBatch | None, Any]:
    try:
        item = reader.read_next_batch_with_custom_metadata()
    except StopIteration:
        return None, None
    item.batch.validate(full=True)
    return item.batch, item.custom_metadata


def _check_end(file: Any, path: str, count: int) -> None:
    """Check the index that readers of the log need."""
    try:
        file.seek(0)
        with pa.ipc.open_file(file) as reader:
            listed = json.loads(reader.schema.metadata[BATCHES])
            if reader.num_record_batches == len(listed) == count:
                return
            reason: Exception = ValueError(f"it lists {len(listed)} batches, and has {count}")
    except UNREADABLE as error:
        reason = error
    raise LogError(_ended(path, f"behind its {count} batches, in the list at its end", reason)) from None


def _ended(path: str, where: str, error: Exception) -> str:
    said = (str(error).splitlines() or [type(error).__name__])[0][:120]
    return f"segment {path} is cut off or damaged {where} ({said}); what comes before is shown"
