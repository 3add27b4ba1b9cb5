"""Processor runtime: the seam between the actors of this package and the parts that do I/O.

``agent.feeds`` builds the real runtime of one changefeed; a cluster that is simulated on virtual time brings its own.
All methods are coroutines, may be cancelled at any await, and leave nothing half done that a later call could not
finish (exactly once is held by the sink's record, not by the caller).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agent.control.effects import StartUnit
from reactor.ids import MAX_TS, TableSpan, Ts
from reactor.messages import Barrier
from reactor.records.changefeed import DdlRecord, LogHead, RunningError, SchemaChangeKind, TableChange, TableRecord


@dataclass(frozen=True, slots=True)
class SpanPosition:
    """How far one span is. ``committed_ts``: what the sink records; it lags behind ``checkpoint_ts`` by ranges that
    hold no event of the table, which are not written."""

    span: TableSpan
    table: TableRecord
    committed_ts: Ts
    checkpoint_ts: Ts


@dataclass(frozen=True, slots=True)
class SpanFlushed:
    """What became of one span in a flush; the position is true also when there is an ``error``.

    ``commit_time``: commit time at the checkpoint, Unix seconds, 0 when not known.
    """

    position: SpanPosition
    commit_time: float = 0.0
    rows: int = 0
    error: RunningError | None = None


@dataclass(frozen=True, slots=True)
class Flushed:
    """One flush. ``is_behind``: the log holds more for these spans below the target than one flush should take."""

    spans: tuple[SpanFlushed, ...]
    is_behind: bool = False


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """How far may be written, under which records: all of one revision of etcd, except the owner's ``barrier``.

    ``held``: where schema changes hold a table. The head never passes one without telling, so this holds however slow
    the owner's barrier comes. ``tables``: the records as of this head; a table that is not in there is as it was.
    """

    head: LogHead
    barrier: Barrier
    held: Mapping[int, Ts] = field(default_factory=dict)
    tables: Mapping[int, TableRecord] = field(default_factory=dict)
    #: table → Ts and content of its newest schema change that the sink has
    changes: Mapping[int, tuple[Ts, TableChange]] = field(default_factory=dict)

    def target(self, table_id: int) -> Ts:
        tables = dict(self.barrier.tables)
        held_ts = min(tables.get(table_id, MAX_TS), self.held.get(table_id, MAX_TS))
        return min(self.head.resolved_ts, self.barrier.global_ts, held_ts)

    def change_since(self, table_id: int, ts: Ts) -> str:
        """JSON of the newest change of a table that exists, if it came after ``ts``; else empty."""
        at, change = self.changes.get(table_id, (Ts(0), None))
        return change.model_dump_json() if change is not None and change.before and at > ts else ""

    def is_gone_since(self, table_id: int, ts: Ts) -> bool:
        """The table went from its source after ``ts``, and the sink knows."""
        at, change = self.changes.get(table_id, (Ts(0), None))
        return change is not None and change.kind is SchemaChangeKind.DROP and at > ts

    def table(self, known: TableRecord) -> TableRecord:
        """The newest record of a table: a schema change may have given it another name or key."""
        return self.tables.get(known.table_id, known)


def changed_tables(ddl: Iterable[DdlRecord]) -> dict[int, tuple[Ts, TableChange]]:
    """Table → the newest change of it that is done."""
    changed: dict[int, tuple[Ts, TableChange]] = {}
    for record in ddl:
        for change in record.alterations:
            id = change.table_id
            if id not in record.pending_ids and record.ts >= changed.get(id, (0,))[0]:
                changed[id] = record.ts, change
    return changed


def held_tables(ddl: Iterable[DdlRecord]) -> dict[int, Ts]:
    """Table → how far it may be written before its next schema change is in the sink."""
    held: dict[int, Ts] = {}
    for record in ddl:
        for table in record.pending_ids:
            held[table] = min(record.barrier_ts, held.get(table, record.barrier_ts))
    return held


@dataclass(frozen=True, slots=True)
class UnitState:
    """How a unit is getting on. ``rows_total`` is an estimate; ``trouble`` passes by itself or becomes an error."""

    rows_done: int = 0
    rows_total: int = 0
    trouble: RunningError | None = None
    bytes_done: int = 0


Progress = Callable[[UnitState], None]


class SpanRuntime(Protocol):
    """The runtime of one changefeed on one capture."""

    async def open_span(self, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        """Find out where the sink is; a table that starts empty is created.

        :raises WeirError: the sink refuses, or holds a position from which the log cannot continue.
        """
        ...

    async def flush(self, positions: Sequence[SpanPosition], limits: FlushLimits) -> Flushed:
        """Move spans towards their targets.

        :raises WeirError: the flush as a whole failed; every span is where it was, or further on.
        """
        ...

    async def run_unit(self, order: StartUnit, on_progress: Progress) -> None:
        """Run a unit to its end; when cancelled, nothing of it runs any more.

        :raises WeirError: it cannot continue.
        """
        ...

    async def close(self) -> None: ...
