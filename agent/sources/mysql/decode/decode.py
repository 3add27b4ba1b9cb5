"""Row decoder: decodes row events of one table in the server's format into Arrow columns.

``decode`` takes a record batch of the change log (``commit_ts, seq, event``) and returns
``agent.rows.changes.Changes``: two passes over the bytes, without Python objects per row. The first pass (``locate``)
finds every value, the second fills the columns' builders, block by block. Compressed events and partial JSON updates
are converted before (``rewrite``).

Guarantees to sinks: the after image of an insert is complete, that of an update too, except where ``unchanged`` marks
a column whose value the log lacks both after and before (``binlog_row_image`` MINIMAL, NOBLOB); a before image has what
the log has of the old row; a TRUNCATE is one row whose columns are all NULL. Rows keep the order of the log; the rows
of one event have its ``seq`` and the following numbers.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from agent.errors import RESYNC, DecodeError
from agent.kernels.columns import BadValueError
from agent.kernels.jit import Bytes, Ints
from agent.rows.changes import Changes
from agent.rows.schema import TableSchema
from agent.sources.mysql.decode import columns, locate, rewrite, types
from agent.sources.mysql.decode.builders import Builder

#: positions per block: few enough that its rows are still in the cache when the columns are filled
_BLOCK_CELLS: Final = 16_384
_BLOCK_ROWS_MAX: Final = 4_096
_BLOCK_ROWS_MIN: Final = 64
_BYTE_BITS = 8
_NOT_ITS_EVENT: Final = "an event is not a row change of its schema"
_GAP_IN_INSERT: Final = f"an insert leaves out columns; set binlog_row_image=FULL on the server; {RESYNC}"


@dataclass(frozen=True, slots=True)
class _Events:
    """A batch's events and properties of all their rows. ``widths``: of the columns, by ``wire_width``."""

    data: Bytes
    offsets: Ints
    commit_ts: Ints
    seq: Ints
    widths: Ints

    @classmethod
    def of(cls, schema: TableSchema, batch: pa.RecordBatch) -> "_Events":
        data, offsets = rewrite.plain_events(schema, *_buffers(batch.column("event")))
        widths = np.array([types.wire_width(column) for column in schema.columns], np.int64)
        return cls(data, offsets, batch.column("commit_ts").to_numpy(), batch.column("seq").to_numpy(), widths)


class _Image:
    """One image (before or after) of every row: its builders, and the positions of the current block."""

    def __init__(self, schema: TableSchema, rows: int, sizes: Ints, block_rows: int) -> None:
        self._schema = schema
        self.positions = np.empty((len(sizes), block_rows), np.int64)
        self.nulls = np.zeros(len(sizes), np.int64)
        self._builders: list[Builder] = []
        for column, size in zip(schema.columns, sizes, strict=True):
            make = columns.builder
            self._builders.append(_named(column.name, make, column, rows, int(size), zero_dates=schema.zero_dates))

    def fill(self, data: Bytes, first: int, rows: int) -> None:
        for i, (column, builder) in enumerate(zip(self._schema.columns, self._builders, strict=True)):
            _named(column.name, builder.fill, data, self.positions[i, :rows], first, int(self.nulls[i]))
        self.nulls[:] = 0

    def finish(self) -> pa.RecordBatch:
        names = (column.name for column in self._schema.columns)
        arrays = [_named(name, builder.finish) for name, builder in zip(names, self._builders, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=types.arrow_schema(self._schema))


class _BadColumnError(Exception):
    """A bad value, with its column's name."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row
        self.what = what


def _named(name: str, call: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return call(*arguments, **options)
    except BadValueError as error:
        raise _BadColumnError(error.row, f"column {name} cannot be read: {error.reason}") from None


def decode(schema: TableSchema, batch: pa.RecordBatch) -> Changes:
    """Decode a batch of ``schema``'s row events, in order.

    :raises DecodeError: an event does not match the schema; the text has table, column and position in the log.
    """
    try:
        for column in schema.columns:
            types.check_layout(column)
        events = _Events.of(schema, batch)
        sizes = np.zeros((2, len(schema.columns)), np.int64)
        flags = np.zeros(locate.FLAGS, np.int64)
        count, bad = locate.measure(events.data, events.offsets, events.widths, sizes[0], sizes[1], flags)
        if bad >= 0:
            raise rewrite.BadEventError(bad, _NOT_ITS_EVENT)
        if flags[locate.GAP_IN_INSERT]:
            raise rewrite.BadEventError(int(flags[locate.GAP_IN_INSERT]) - 1, _GAP_IN_INSERT)
    except ValueError as error:
        raise DecodeError(_damaged(schema, 0, str(error))) from None
    except rewrite.BadEventError as error:
        commit_ts = batch.column("commit_ts")[error.event].as_py()
        raise DecodeError(_damaged(schema, commit_ts, error.what)) from None
    rows = _Rows(count, len(schema.columns) if flags[locate.HAS_GAPS] else 0)
    try:
        return _build(schema, events, rows, sizes, has_before=bool(flags[locate.HAS_BEFORE]))
    except _BadColumnError as error:
        # some columns cannot be built even for zero rows
        commit_ts = int(rows.commit_ts[error.row]) if error.row < rows.located else 0
        raise DecodeError(_damaged(schema, commit_ts, error.what)) from None


class _Rows:
    """Properties of every row besides its columns. ``located``: number of rows processed so far. ``unchanged``: by
    column, empty if no row has gaps."""

    def __init__(self, rows: int, gap_columns: int) -> None:
        self.rows, self.located = rows, 0
        self.op, self.before_kind = np.empty(rows, np.int8), np.empty(rows, np.int8)
        self.commit_ts, self.seq = np.empty(rows, np.int64), np.empty(rows, np.int64)
        self.unchanged = np.zeros((gap_columns, rows if gap_columns else 0), np.uint8)


def _build(schema: TableSchema, events: _Events, rows: _Rows, sizes: Ints, *, has_before: bool) -> Changes:
    # columns that an after image omits are taken from the before image
    after_sizes = sizes[0] + sizes[1] if len(rows.unchanged) else sizes[0]
    block = _block_rows(len(schema.columns) * (2 if has_before else 1))
    after = _Image(schema, rows.rows, after_sizes, block)
    before = _Image(schema, rows.rows, sizes[1], block) if has_before else None
    _fill(events, rows, after, before, block)
    return Changes(
        schema=schema,
        op=rows.op,
        commit_ts=rows.commit_ts,
        seq=rows.seq,
        after=after.finish(),
        before=None if before is None else before.finish(),
        before_kind=rows.before_kind,
        unchanged=_unchanged(schema, rows.unchanged.view(np.bool_)),
    )


def _fill(events: _Events, rows: _Rows, after: _Image, before: _Image | None, block: int) -> None:
    no_positions, no_nulls = np.empty((0, 0), np.int64), np.empty(0, np.int64)
    # the sizes are computed again, and ignored
    cursor, sizes = np.zeros(locate.CURSOR_CELLS, np.int64), np.zeros(len(events.widths), np.int64)
    while rows.located < rows.rows:
        first = rows.located
        count = locate.locate_rows(
            events.data, events.offsets, events.commit_ts, events.seq, events.widths, cursor, first, block,
            rows.op, rows.before_kind, rows.commit_ts, rows.seq,
            after.positions, no_positions if before is None else before.positions,
            after.nulls, no_nulls if before is None else before.nulls, sizes, rows.unchanged,
        )  # fmt: skip
        rows.located += count
        after.fill(events.data, first, count)
        if before is not None:
            before.fill(events.data, first, count)


def _block_rows(columns_in_block: int) -> int:
    """Return the rows per block, a multiple of 8: every block begins at a byte of a bitmap."""
    rows = _BLOCK_CELLS // max(columns_in_block, 1) // _BYTE_BITS * _BYTE_BITS
    return max(_BLOCK_ROWS_MIN, min(_BLOCK_ROWS_MAX, rows))


def _unchanged(schema: TableSchema, gaps: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[np.bool_]]:
    return {column.name: mask for column, mask in zip(schema.columns, gaps, strict=False) if mask.any()}


def _buffers(events: pa.LargeBinaryArray) -> tuple[Bytes, Ints]:
    _, offsets, data = events.buffers()
    first = events.offset
    return (
        np.frombuffer(data or b"", np.uint8),
        np.frombuffer(offsets, np.int64)[first : first + len(events) + 1] if len(events) else np.zeros(1, np.int64),
    )


def _damaged(schema: TableSchema, commit_ts: int, what: str) -> str:
    # most causes include a remedy
    cure = "" if ";" in what else f"; {RESYNC}; report this with the table's definition"
    return f"{schema.qualified_name}: {what}, at commit {commit_ts}{cure}"
