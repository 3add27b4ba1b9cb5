"""Arenas: the memory that the replication stream is read into, and the log chunks that leave it.

An arena holds raw bytes, and a table with the positions of their row events. Bytes are received directly into it,
parsed in place, and copied once more, table by table, when the chunk becomes record batches. A fixed number of arenas
circulates (``ArenaPool``), so memory is bounded however fast the server sends: when all of them wait for the log,
reading pauses (backpressure).

A chunk ends between two transactions if possible: an open transaction moves on to the next arena. Only a transaction
that fills an arena by itself spans several chunks; ``LogChunk.is_complete`` tells them apart.
"""

import queue
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from agent.kernels import copy_by_table
from agent.kernels.jit import Bytes, Ints
from agent.kernels.row_cells import OFFSET, ROW_CELLS
from agent.rows.batches import TableBatch
from agent.rows.schema import LOG_BATCH, TableSchema
from reactor.ids import Ts
from reactor.records.tables.schema_change import DdlRecord

#: capacity: one row line per so many bytes; a busy stream of tiny rows makes smaller chunks
_BYTES_PER_ROW = 64


class Arena:
    """One buffer. ``rows[:n]`` lines are (offset, length, slot, commit Ts, ordinal, commit time in Unix
    microseconds)."""

    def __init__(self, bytes_limit: int) -> None:
        self.data: Bytes = np.empty(bytes_limit, np.uint8)
        self.rows: Ints = np.empty((max(16, bytes_limit // _BYTES_PER_ROW), ROW_CELLS), np.int64)
        self.filled = 0
        #: a burst has filled it once
        self.is_swollen = False

    @property
    def free_bytes(self) -> int:
        return len(self.data) - self.filled

    def room(self, bytes_max: int) -> memoryview:
        """Return the buffer to receive into. Use it in ``with``: otherwise the traceback of a lost connection keeps the
        arena alive."""
        return self.data.data[self.filled : self.filled + bytes_max]

    def release(self) -> None:
        """Free the memory, even if something still references the arena."""
        self.data, self.rows, self.filled = np.empty(0, np.uint8), np.empty((0, ROW_CELLS), np.int64), 0

    def grow(self, bytes_min: int) -> None:
        """Grow to at least ``bytes_min`` bytes in total, for a message that is larger than an arena."""
        data = np.empty(bytes_min, np.uint8)
        data[: self.filled] = self.data[: self.filled]
        self.data = data

    def reserve_rows(self, rows_min: int) -> None:
        """Grow to at least ``rows_min`` row lines, for the rare message that makes several."""
        if rows_min > len(self.rows):
            rows = np.empty((2 * rows_min, ROW_CELLS), np.int64)
            rows[: len(self.rows)] = self.rows
            self.rows = rows

    def insert(self, at: int, count: int) -> None:
        """Shift everything from offset ``at`` on by ``count`` bytes, and return with the gap writable."""
        if self.filled + count > len(self.data):
            self.grow(self.filled + count)
        self.data[at + count : self.filled + count] = self.data[at : self.filled].copy()
        self.filled += count

    def make_room(self, until: int) -> int:
        """Discard the bytes before ``until``, which no row refers to, or grow if there are none. Return the number
        discarded."""
        if until == 0:
            self.grow(2 * len(self.data))
            return 0
        kept = self.filled - until
        self.data[:kept] = self.data[until : self.filled].copy()
        self.filled = kept
        return until

    def take_rest(self, other: "Arena", *, from_byte: int, from_row: int, rows: int) -> None:
        """Copy everything that ``other`` holds behind a chunk, to continue with it."""
        kept = other.filled - from_byte
        if kept > len(self.data):
            self.grow(len(other.data))
        self.data[:kept] = other.data[from_byte : other.filled]
        self.filled = kept
        moved = other.rows[from_row:rows]
        self.reserve_rows(len(moved))
        self.rows[: len(moved)] = moved
        self.rows[: len(moved), OFFSET] -= from_byte


class ArenaPool:
    """A pool of ``count`` arenas. ``take`` and ``give`` may be called from different threads."""

    def __init__(self, count: int, bytes_limit: int) -> None:
        self._bytes_limit = bytes_limit
        self._made: list[Arena] = []
        self._free: queue.SimpleQueue[Arena | None] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(None)  # allocated when first taken

    def take(self, *, timeout_s: float) -> Arena | None:
        """Return a free arena, or None if none becomes free in time."""
        try:
            arena = self._free.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if arena is None:
            arena = Arena(self._bytes_limit)
            self._made.append(arena)
        return arena

    def give(self, arena: Arena) -> None:
        """Return an arena to the pool. It is replaced by a new one if it had to grow for a giant row, or if a burst
        that filled it is over."""
        is_full = arena.filled > self._bytes_limit // 2
        is_kept = len(arena.data) == self._bytes_limit and (is_full or not arena.is_swollen)
        arena.filled = 0
        arena.is_swollen |= is_full
        if not is_kept:
            self._made.remove(arena)
        self._free.put(arena if is_kept else None)

    def close(self) -> None:
        """Free all memory, when no thread reads any more. A failed session is part of reference cycles (its error and
        the error's frames) that may survive for hours."""
        for arena in self._made:
            arena.release()


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of the stream on its way into the log.

    ``arena`` is None if the chunk only advances ``resolved_ts``. With ``is_complete``, no transaction is open at its
    end, and ``resolved_ts`` covers exactly the chunks so far; otherwise the next chunk continues the same transaction,
    and ``resolved_ts`` is the end of the transactions before it.
    """

    arena: Arena | None
    rows: int
    schemas: list[TableSchema]
    first_ts: Ts
    last_ts: Ts
    resolved_ts: Ts
    #: commit time at ``resolved_ts``, Unix seconds
    resolved_time: float
    is_complete: bool
    #: what else the source needs to resume at ``resolved_ts``: see ``agent.ports.source.Position``
    position: str = ""
    attachment: str = ""
    #: schema changes of its finished transactions
    ddl: tuple[DdlRecord, ...] = ()

    def batches(self) -> list[TableBatch]:
        """Return its events grouped by table, as copies: the arena is free afterwards."""
        if self.arena is None:
            return []
        lines = self.arena.rows[: self.rows]
        counts, sizes = np.zeros(len(self.schemas), np.int64), np.zeros(len(self.schemas), np.int64)
        copy_by_table.measure(lines, counts, sizes)
        first_row, first_byte = np.cumsum(counts) - counts, np.cumsum(sizes) - sizes
        out = np.empty(int(sizes.sum()), np.uint8)
        columns = np.empty((4, self.rows), np.int64)
        copy_by_table.gather(self.arena.data, lines, first_row.copy(), first_byte.copy(), first_byte, out, columns)
        return [
            _table_batch(
                self.schemas[slot],
                columns[:, first_row[slot] : first_row[slot] + counts[slot]],
                out[first_byte[slot] : first_byte[slot] + sizes[slot]],
            )
            for slot in np.flatnonzero(counts)
        ]


def _table_batch(schema: TableSchema, columns: Ints, events: Bytes) -> TableBatch:
    ends, commit_ts, seq, commit_time = columns
    offsets = np.empty(len(ends) + 1, np.int64)
    offsets[0], offsets[1:] = 0, ends
    event = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(events)]
    )
    batch = pa.RecordBatch.from_arrays([pa.array(commit_ts), pa.array(seq), event], schema=LOG_BATCH)
    return TableBatch(schema, batch, int(commit_time[-1]) / 1e6)
