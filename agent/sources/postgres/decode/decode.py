"""Row decoder: decodes row events of one table in the server's format into Arrow columns.

``decode`` takes a record batch of the change log (``commit_ts, seq, event``) and returns
``agent.rows.changes.Changes``: two passes over the bytes, without Python objects per row. The first pass (``locate``)
finds every value, the second (``columns``) fills the columns one by one.

Guarantees to sinks: the after image of an insert or update is complete, except where ``unchanged`` marks a large value
that the source omitted and did not send with the old row either; a before image has what the replica identity sent; a
TRUNCATE is one row whose columns are all NULL. ``agent.rows.spans`` determines the span of a row, and whether an update
moved its key.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.errors import RESYNC, DecodeError
from agent.kernels.columns import BadValueError
from agent.kernels.fixed import NULL
from agent.rows.changes import Changes
from agent.rows.schema import TableSchema
from agent.sources.postgres.decode import columns, locate, types
from agent.sources.postgres.decode.wire import UNCHANGED

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Image:
    """One image (before or after) of every row: positions and counts, both by column."""

    positions: Int64s
    counts: Int64s

    @classmethod
    def blank(cls, width: int, rows: int) -> "_Image":
        return cls(np.full((width, rows), NULL, np.int64), np.zeros((width, 3), np.int64))


def decode(schema: TableSchema, batch: pa.RecordBatch, key: Collection[str] = ()) -> Changes:
    """Decode a batch of ``schema``'s row events, in order. ``key``: columns that identify rows.

    :raises DecodeError: an event that is not what the schema says, named by table, column and position in the log; or
        a key value that its column's Arrow type cannot tell from another one.
    """
    rows, width = batch.num_rows, len(schema.columns)
    commit_ts = batch.column("commit_ts").to_numpy()
    data, offsets = _event_buffers(batch.column("event"))
    op, before_kind = np.zeros(rows, np.int8), np.zeros(rows, np.int8)
    after, before = _Image.blank(width, rows), _Image.blank(width, rows)
    bad = locate.locate_events(
        data, offsets, op, before_kind, after.positions, before.positions, after.counts, before.counts
    )
    if bad >= 0:
        raise DecodeError(_damaged(schema, commit_ts[bad], "an event is not a row change of its schema"))
    # Before the columns are built: building uses positions up.
    unchanged = _unchanged(schema, after)
    return Changes(
        schema=schema,
        op=op,
        commit_ts=commit_ts,
        seq=batch.column("seq").to_numpy(),
        after=_build(schema, data, after, commit_ts, key),
        before=_build(schema, data, before, commit_ts, key) if before_kind.any() else None,
        before_kind=before_kind,
        unchanged=unchanged,
    )


def _event_buffers(events: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.uint8], Int64s]:
    _, offsets, data = events.buffers()
    first = events.offset
    return (
        np.frombuffer(data or b"", np.uint8),
        np.frombuffer(offsets, np.int64)[first : first + len(events) + 1] if len(events) else np.zeros(1, np.int64),
    )


def _unchanged(schema: TableSchema, image: _Image) -> dict[str, npt.NDArray[np.bool_]]:
    return {
        column.name: image.positions[i] == UNCHANGED
        for i, column in enumerate(schema.columns)
        if image.counts[i, locate.COUNT_UNCHANGED]
    }


def _build(
    schema: TableSchema, data: npt.NDArray[np.uint8], image: _Image, commit_ts: Int64s, key: Collection[str]
) -> pa.RecordBatch:
    arrays = []
    for i, column in enumerate(schema.columns):
        texts, binaries = int(image.counts[i, locate.COUNT_TEXT]), int(image.counts[i, locate.COUNT_BINARY])
        is_key = column.name in key
        try:
            built = columns.build(column, data, image.positions[i], texts=texts, binaries=binaries, is_key=is_key)
            arrays.append(built)
        except columns.BentKeyError as error:
            raise DecodeError(columns.bent_key(schema, column, error, f"at commit {commit_ts[error.row]}")) from None
        except BadValueError as error:
            what = f"column {column.name} cannot be read: {error.reason}"
            raise DecodeError(_damaged(schema, commit_ts[error.row], what)) from None
    return pa.RecordBatch.from_arrays(arrays, schema=types.arrow_schema(schema))


def _damaged(schema: TableSchema, commit_ts: int, what: str) -> str:
    return f"{schema.qualified_name}: {what}, at commit {commit_ts}; {RESYNC}; report this with the table's definition"
