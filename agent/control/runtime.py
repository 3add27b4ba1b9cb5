"""Processor runtime: the interface between the actors of this package and the parts that do I/O.

``agent.feeds`` implements it for one changefeed; the simulation has its own. All methods are coroutines, may be
cancelled at any await, and leave nothing that a later call could not complete (the sink's record ensures exactly-once,
not the caller).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from agent.control.effects import StartUnit
from reactor.ids import MAX_TS, TableSpan, Ts
from reactor.messages import Barrier
from reactor.records.changefeed import RunningError
from reactor.records.log_head import LogHead
from reactor.records.tables.change_index import Newest
from reactor.records.tables.schema_change import DdlRecord, SchemaChangeKind
from reactor.records.tables.table import TableRecord


@dataclass(frozen=True, slots=True)
class SpanPosition:
    """The position of one span. ``committed_ts``: what the sink records; it is behind ``checkpoint_ts`` by ranges
    without events of the table, which are not written."""

    span: TableSpan
    table: TableRecord
    committed_ts: Ts
    checkpoint_ts: Ts


@dataclass(frozen=True, slots=True)
class SpanFlushed:
    """The outcome of a flush for one span; the position is valid even if there is an ``error``.

    ``commit_time``: commit time at the checkpoint, Unix seconds, 0 if not known. ``is_settled``: there is no event of
    its table between the sink's record and its checkpoint.
    """

    position: SpanPosition
    commit_time: float = 0.0
    rows: int = 0
    error: RunningError | None = None
    is_settled: bool = False


class Together:
    """Spans that are all at ``ts``, and are settled there (``SpanFlushed.is_settled``)."""

    def __init__(self) -> None:
        self.ts = Ts(0)
        self._spans: dict[int, dict[TableSpan, SpanPosition]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[TableSpan]:
        return (span for spans in self._spans.values() for span in spans)

    def __contains__(self, span: TableSpan) -> bool:
        return span in self._spans.get(span.table_id, ())

    @property
    def tables(self) -> Collection[int]:
        return self._spans.keys()

    def records(self) -> Iterator[tuple[int, TableRecord]]:
        """Return the record of each table."""
        return ((id, next(iter(spans.values())).table) for id, spans in self._spans.items())

    def of(self, tables: Iterable[int]) -> list[SpanPosition]:
        """Return the positions of the spans of these tables."""
        return [
            replace(position, checkpoint_ts=self.ts)
            for table in tables
            for position in self._spans.get(table, {}).values()
        ]

    def add(self, position: SpanPosition) -> None:
        assert position.checkpoint_ts == self.ts, f"span {position.span} is not where the others are"
        assert position.span not in self, f"span {position.span} joins twice"
        self._spans.setdefault(position.span.table_id, {})[position.span] = position
        self._count += 1

    def remove(self, span: TableSpan) -> SpanPosition | None:
        """Return its position; None if it is not here."""
        spans = self._spans.get(span.table_id)
        position = spans.pop(span, None) if spans else None
        if position is None:
            return None
        self._count -= 1
        if not spans:
            del self._spans[span.table_id]
        return replace(position, checkpoint_ts=self.ts)

    def move(self, ts: Ts) -> bool:
        """Move all to ``ts``; return whether there are any that were not there."""
        assert not self or ts >= self.ts, f"spans together move back from {self.ts} to {ts}"
        moved = bool(self) and ts > self.ts
        self.ts = ts
        return moved


#: what a flush of single spans is given
NOBODY = Together()


@dataclass(frozen=True, slots=True)
class Flushed:
    """The outcome of one flush. ``is_behind``: the log has more for these spans than one flush should take.
    ``together_ts``: where the spans together are that ``spans`` does not name; None if the flush took none."""

    spans: tuple[SpanFlushed, ...]
    is_behind: bool = False
    together_ts: Ts | None = None


@dataclass(frozen=True, slots=True)
class Advanced:
    """Progress by one flush: single spans, and those that are together at ``checkpoint_ts``. Since the last one, some
    have ``joined`` the latter, and others have ``left`` them, before they moved."""

    spans: tuple[SpanFlushed, ...]
    checkpoint_ts: Ts = NOBODY.ts
    commit_time: float = 0.0
    joined: tuple[TableSpan, ...] = ()
    left: tuple[TableSpan, ...] = ()


@dataclass(frozen=True, slots=True)
class FlushLimits:
    """The limits of writing, and the records that hold for it: all of one revision of etcd, except the owner's
    ``barrier``.

    ``held``: where schema changes stop a table. The head never passes a change without its record, so this holds
    however late the owner's barrier arrives. ``tables``: the records as of this head; a table that is not in it has not
    changed.
    """

    head: LogHead
    barrier: Barrier
    held: Mapping[int, Ts] = field(default_factory=dict)
    tables: Mapping[int, TableRecord] = field(default_factory=dict)
    #: table → Ts and content of the newest schema change that the sink has applied
    changes: Newest = field(default_factory=dict)
    #: tables that may have ended a capture: written separately from all others
    suspects: frozenset[int] = frozenset()
    #: no table is written beyond it
    highest_ts: Ts = field(init=False, compare=False, repr=False)
    #: limits of single tables
    _by_table: dict[int, Ts] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        by_table: dict[int, Ts] = {}
        for table, ts in (*self.barrier.tables, *self.held.items()):
            by_table[table] = min(ts, by_table.get(table, MAX_TS))
        object.__setattr__(self, "highest_ts", min(self.head.resolved_ts, self.barrier.global_ts))
        object.__setattr__(self, "_by_table", by_table)

    @property
    def limited(self) -> Collection[int]:
        """Tables with limits of their own."""
        return self._by_table.keys()

    def time_at(self, ts: Ts) -> float:
        """Return the commit time at ``ts``; 0 if it is not known."""
        return self.head.resolved_time if ts == self.head.resolved_ts else 0.0

    def target(self, table_id: int) -> Ts:
        return min(self.highest_ts, self._by_table.get(table_id, MAX_TS))

    def change_since(self, table_id: int, ts: Ts) -> tuple[Ts, str]:
        """Return Ts and JSON of the newest change of a table that still exists, if it is after ``ts``; else an empty
        text. The transaction that created a table may have changed it behind its first rows."""
        at, change = self.changes.get(table_id, (Ts(0), None))
        return at, change.model_dump_json() if change is not None and change.after and at > ts else ""

    def is_gone_since(self, table_id: int, ts: Ts) -> bool:
        """Return whether the table was dropped at its source after ``ts``, and in the sink."""
        at, change = self.changes.get(table_id, (Ts(0), None))
        return change is not None and change.kind is SchemaChangeKind.DROP and at > ts

    def is_trial(self, tables: Iterable[int]) -> bool:
        """Return whether there are any, and all of them are suspects."""
        found = frozenset(tables)
        return bool(found) and found <= self.suspects

    def table(self, known: TableRecord) -> TableRecord:
        """Return the newest record of a table: a schema change may have changed its name or key."""
        return self.tables.get(known.table_id, known)


def held_tables(ddl: Iterable[DdlRecord]) -> dict[int, Ts]:
    """Return, by table, how far it may be written before its next schema change is in the sink."""
    held: dict[int, Ts] = {}
    for record in ddl:
        for table in record.pending_ids:
            held[table] = min(record.barrier_ts, held.get(table, record.barrier_ts))
    return held


@dataclass(frozen=True, slots=True)
class UnitState:
    """A unit's progress. ``rows_total`` is an estimate; ``trouble`` is transient, or becomes an error."""

    rows_done: int = 0
    rows_total: int = 0
    trouble: RunningError | None = None
    bytes_done: int = 0


Progress = Callable[[UnitState], None]


class SpanRuntime(Protocol):
    """The runtime of one changefeed on one capture."""

    async def open_span(self, table: TableRecord, span: TableSpan, checkpoint_ts: Ts) -> SpanPosition:
        """Read the sink's position; create the table if it starts empty.

        :raises WeirError: the sink refuses, or its position is one from which the log cannot continue.
        """
        ...

    async def flush(
        self, positions: Sequence[SpanPosition], limits: FlushLimits, together: Together = NOBODY
    ) -> Flushed:
        """Move spans towards their targets. ``together``: further ones, without limits of their own; it does not
        change meanwhile.

        :raises WeirError: the flush as a whole failed; every span is where it was, or further.
        """
        ...

    async def run_unit(self, order: StartUnit, on_progress: Progress) -> None:
        """Run a unit to its end; once cancelled, nothing of it runs any more.

        :raises WeirError: the unit cannot continue.
        """
        ...

    async def close(self) -> None: ...
