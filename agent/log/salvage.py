"""Salvage: reads a damaged segment's batches in order for people, as far as they are whole.

Readers of the log go by the list at a segment's end, and take none that lacks it. Batches lie one after the other, each
with its head, so those before a cut or a damaged place can be read all the same.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from agent.errors import LogError
from agent.log.segment import BATCHES, COMMIT_TIME, SCHEMA, refuse_newer
from agent.log.storage import open_input
from agent.rows.schema import LOG_BATCH, TableSchema

#: before the first message: the file's magic, and two bytes that fill up to eight
_HEAD_BYTES: Final = 8
_UNREADABLE: Final = (OSError, pa.ArrowException, ValueError, LookupError, TypeError)


def whole_batches(path: str) -> Iterator[tuple[TableSchema, pa.RecordBatch, float]]:
    """Batches with their table's schema and the commit time of their newest event.

    :raises LogError: the file is missing, no segment, or cut off or damaged behind the batches that came.
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
            except _UNREADABLE as error:
                raise LogError(_ended(path, f"at byte {at}, in its batch {count + 1}", error)) from None
            yield found
            count += 1
        _check_end(file, path, count)


def _open(file: Any, path: str) -> Any:
    try:
        file.seek(_HEAD_BYTES)
        reader = pa.ipc.open_stream(file)
        schema = reader.schema
    except _UNREADABLE as error:
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
    """What a reader of the log needs."""
    try:
        file.seek(0)
        with pa.ipc.open_file(file) as reader:
            listed = json.loads(reader.schema.metadata[BATCHES])
            if reader.num_record_batches == len(listed) == count:
                return
            reason: Exception = ValueError(f"it lists {len(listed)} batches, and has {count}")
    except _UNREADABLE as error:
        reason = error
    raise LogError(_ended(path, f"behind its {count} batches, in the list at its end", reason)) from None


def _ended(path: str, where: str, error: Exception) -> str:
    said = (str(error).splitlines() or [type(error).__name__])[0][:120]
    return f"segment {path} is cut off or damaged {where} ({said}); what comes before is shown"
