"""Snapshot port: the values of a dump (what is ordered, planned, done), and what a source's run of it can do.

A plan counts chunks by number; which rows a number means only its source knows (``Chunks``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agent.ports.sink import Sink, StagedFile
from agent.rows.schema import TableSchema
from reactor.ids import Ts
from reactor.records.changefeed import NO_FILTER, FilterConfig, SinkMode, TableRecord


@dataclass(frozen=True, slots=True)
class DumpOrder:
    """What to dump, and where to. ``open_sink`` travels to the executors: a partial of ``agent.sinks.open_sink``.

    ``epoch`` is the order's number (``UnitRecord.epoch``): it grows with every run.
    """

    tables: tuple[TableRecord, ...]
    sink_mode: SinkMode
    open_sink: Callable[[], Sink]
    epoch: int
    filter: FilterConfig = NO_FILTER
    chunk_rows: int = 250_000
    #: chunks that are read at the same time, each over a connection of its own
    parallel: int = 4


class Chunks(Protocol):
    """How one table is divided; ``rows`` is an estimate for progress."""

    @property
    def count(self) -> int: ...

    @property
    def rows(self) -> int: ...

    def to_fields(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class TablePlan:
    """One table. ``generation`` is the epoch that began reading it: chunks of an older one are worth nothing."""

    record: TableRecord
    schema: TableSchema
    chunks: Chunks
    generation: int


@dataclass(frozen=True, slots=True)
class Plan:
    """``start_ts``: where sync starts, with what its source needs to start there (``source.Position``)."""

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


#: finished chunks of the generations that a plan counts, by table and number
DoneChunks = dict[tuple[int, int], DoneChunk]


def is_complete(table: TablePlan, done: Mapping[tuple[int, int], DoneChunk]) -> bool:
    return all((table.record.table_id, number) in done for number in range(table.chunks.count))


class DumpSession(Protocol):
    """One run of a dump at its source."""

    @property
    def plan(self) -> Plan: ...

    def stage(self, table: TablePlan, number: int, chunk_id: str) -> tuple[StagedFile, ...]:
        """Read one chunk and have the sink stage it. Blocking; from several threads at once.

        :raises WeirError: source or sink failed; nothing of the chunk counts.
        """
        ...

    def verify(self) -> None:
        """Whether what was staged up to now counts. :raises SourceError: it does not."""
        ...

    def is_alive(self) -> bool:
        """Whether a chunk that failed can be read again under the same view of the source."""
        ...
