"""Snapshot port: the values of a dump (order, plan, finished chunks) and the session in which a source runs it.

A plan counts chunks by number; only the source knows the rows of a number (``Chunks``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agent.pacing import Pace
from agent.ports.sink import Sink, StagedFile
from agent.rows.schema import TableSchema
from reactor.ids import Ts
from reactor.records.changefeed import NO_FILTER, FilterConfig, SinkMode, TableRecord


@dataclass(frozen=True, slots=True)
class DumpOrder:
    """The order for a dump. ``open_sink`` is pickled for the executors: a partial of ``agent.sinks.open_sink``.

    ``epoch`` is the order's number (``UnitRecord.epoch``) and grows with every run. ``log``: the position of the
    changefeed's existing log, which the dumped tables join afterwards; nothing permanent is then created at the source.
    None: the stream will begin where the dump does. ``pace``: None: as fast as it goes.
    """

    tables: tuple[TableRecord, ...]
    sink_mode: SinkMode
    open_sink: Callable[[], Sink]
    epoch: int
    filter: FilterConfig = NO_FILTER
    log: str | None = None
    chunk_rows: int = 250_000
    #: chunks read concurrently, each over its own connection
    parallel: int = 4
    pace: Pace | None = None

    @property
    def rows_at_once(self) -> int:
        """The rows of a chunk: fewer than ``chunk_rows`` where reading is limited."""
        return self.pace.chunk_rows(self.chunk_rows) if self.pace else self.chunk_rows


class Chunks(Protocol):
    """The division of one table into chunks. ``rows`` is an estimate for progress reports."""

    @property
    def count(self) -> int: ...

    @property
    def rows(self) -> int: ...

    def to_fields(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class TablePlan:
    """One table's part of a plan. ``generation``: the epoch in which reading it began; chunks of older generations are
    void."""

    record: TableRecord
    schema: TableSchema
    chunks: Chunks
    generation: int


@dataclass(frozen=True, slots=True)
class Plan:
    """``start_ts`` and ``position``: where the stream starts (``source.Position``)."""

    epoch: int
    start_ts: Ts
    tables: tuple[TablePlan, ...]
    position: str = ""


@dataclass(frozen=True, slots=True)
class DoneChunk:
    table_id: int
    generation: int
    number: int
    files: tuple[StagedFile, ...]
    #: why the table cannot be copied, or empty
    refused: str = ""


#: finished chunks of a plan's generations, by table and number
DoneChunks = dict[tuple[int, int], DoneChunk]


def is_complete(table: TablePlan, done: Mapping[tuple[int, int], DoneChunk]) -> bool:
    return all((table.record.table_id, number) in done for number in range(table.chunks.count))


def is_undivided(order: DumpOrder, table: TablePlan) -> bool:
    """Return whether reading is limited, and the table's chunks are too large to be read at once: it cannot be divided,
    or was divided before."""
    is_limited = order.pace is not None and order.pace.is_limited
    return is_limited and table.chunks.rows > 2 * table.chunks.count * order.rows_at_once


class DumpSession(Protocol):
    """One run of a dump at its source."""

    @property
    def plan(self) -> Plan: ...

    def is_paced(self, table: TablePlan) -> bool:
        """Return whether ``stage`` itself keeps to the order's pace, row by row; if not, whoever calls it has to."""
        ...

    def stage(self, table: TablePlan, number: int, chunk_id: str) -> tuple[StagedFile, ...]:
        """Read one chunk and let the sink stage it. Blocking; called from several threads.

        :raises WeirError: the source or the sink failed; nothing of the chunk counts.
        :raises agent.pacing.ReadingStopped: so was the run, while this waited.
        """
        ...

    def verify(self) -> None:
        """Check that the chunks staged so far are consistent.

        :raises SourceError: they are not.
        """
        ...

    def is_alive(self) -> bool:
        """Return whether a failed chunk can be read again under the same consistent view of the source."""
        ...
