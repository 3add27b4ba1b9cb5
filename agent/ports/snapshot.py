"""Snapshot port: the values of a dump (order, plan, finished chunks) and the session in which a source runs it.

A plan counts chunks by number; only the source knows the rows of a number (``Chunks``).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, Protocol, TypeVar

from agent.errors import StatementRefusedError, table_gone
from agent.pacing import Pace
from agent.ports.sink import Sink, StagedFile
from agent.rows.schema import TableSchema
from agent.task_errors import carried
from reactor.errors import Scope, WeirError
from reactor.ids import Ts
from reactor.records.changefeed import NO_FILTER, FilterConfig, SinkMode
from reactor.records.tables.table import TableRecord

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait for others, as for the end of open transactions. ``report`` is called on the waiting thread every few
    seconds, with cause and cure in one line; what it raises ends the wait, and so does ``stopped``."""

    report: Callable[[str], None] = lambda _: None
    stopped: Event = field(default_factory=Event)


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
    #: for the moment at which a snapshot can begin
    wait: Wait = field(default_factory=Wait)

    @property
    def rows_at_once(self) -> int:
        """The rows of a chunk: fewer than ``chunk_rows`` where reading is limited."""
        return self.pace.chunk_rows(self.chunk_rows) if self.pace else self.chunk_rows

    def without(self, gone: Collection[int]) -> "DumpOrder":
        """Return the order without tables that are gone from the source.

        :raises TableGoneError: they were to join an existing log.
        """
        left_out = [f"{table.schema_name}.{table.name}" for table in self.tables if table.table_id in gone]
        if left_out and self.log is not None:
            raise table_gone(f"table {left_out[0]}")
        return replace(self, tables=tuple(table for table in self.tables if table.table_id not in gone))

    def with_keys(self, keys: Mapping[int, tuple[str, ...]]) -> "DumpOrder":
        """Return the order with the keys, by table, that tables have where they are read: a key may have changed since
        the table was found."""
        return replace(self, tables=tuple(_with_key(table, keys.get(table.table_id)) for table in self.tables))


def _with_key(table: TableRecord, key: tuple[str, ...] | None) -> TableRecord:
    return table if key is None or key == table.key else table.with_(key=key)


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
    """``start_ts`` and ``position``: where the stream starts (``source.Position``). ``timeline``: of the server whose
    rows it has (``source.Identity``); 0: not known, or there is none."""

    epoch: int
    start_ts: Ts
    tables: tuple[TablePlan, ...]
    position: str = ""
    timeline: int = 0


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


@dataclass(frozen=True, slots=True)
class ChunkToStage:
    """``id``: names its files at the sink, together with the table."""

    table: TablePlan
    number: int
    id: str


#: the files of a chunk, or why there are none
Staged = tuple[StagedFile, ...] | WeirError


def described(chunks: Sequence[ChunkToStage]) -> str:
    """Return the name of the job that stages these."""
    first = chunks[0]
    name = f"dump {first.table.schema.qualified_name} {first.number + 1}/{first.table.chunks.count}"
    return f"{name} and {len(chunks) - 1} more" if len(chunks) > 1 else name


def is_of_table(error: WeirError) -> bool:
    """Return whether an error concerns only the table that was read, as far as it tells: the source or the sink rejects
    its rows. Compares codes, because an executor's result does not keep the error's class."""
    return error.scope is Scope.TABLE or error.code == StatementRefusedError.code


def stage_each(chunks: Iterable[T], stage: Callable[[T], tuple[StagedFile, ...]]) -> list[Staged]:
    """Stage chunks one after another, on an executor; end with the first error that concerns more than its table."""
    staged: list[Staged] = []
    for chunk in chunks:
        try:
            staged.append(stage(chunk))
        except Exception as error:
            staged.append(failed := carried(error))
            if not is_of_table(failed):
                break
    return staged


class DumpSession(Protocol):
    """One run of a dump at its source."""

    @property
    def plan(self) -> Plan: ...

    def is_paced(self, table: TablePlan) -> bool:
        """Return whether ``stage`` itself keeps to the order's pace, row by row; if not, whoever calls it has to."""
        ...

    def stage(self, chunks: Sequence[ChunkToStage]) -> list[Staged]:
        """Read chunks, one after another, and let the sink stage them. Blocking; called from several threads. A paced
        table comes alone. Chunks after the last result were not read: an error has ended the work.

        :raises WeirError: none of them counts.
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
