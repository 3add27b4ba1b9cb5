"""Outside world: sources, log storage and sinks of changefeeds, without bytes.

The source's log is the reference that everything is compared with. The sink accepts commits like the real ones: rows
and record in one step, and only if the record is what the writer expects; and it verifies that the rows are exactly
those the source committed in between.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

import anyio

from agent.errors import (
    CopyBehindError,
    LogError,
    PositionLostError,
    SinkFencedError,
    SlotInUseError,
    TableHeldError,
    TablePassingError,
)
from agent.log.reader import LogReader
from agent.log.segment import SegmentName
from agent.ports.log_storage import Entry
from agent.ports.sink import SpanRepartition
from agent.rows.batches import SegmentRef
from reactor.ids import MAX_TS, TableSpan, Ts
from reactor.records.tables.table import TableRecord

_START_TS = 1000
_NOWHERE = Ts(0)
_KEY_SPACE = 1 << 64
#: share of transactions that change a table
_ALTERS = 0.05


class ViolationError(AssertionError):
    """An invariant was violated."""


@dataclass(frozen=True, slots=True)
class RowEvent:
    ts: Ts
    number: int
    table_id: int
    hash: int

    def is_of(self, span: TableSpan) -> bool:
        return self.table_id == span.table_id and span.start <= self.hash < span.end


class Upstream:
    """One source database. ``position``: nothing will be committed at or below it any more."""

    def __init__(self, tables: int, random: Random, whims: Random) -> None:
        self.tables = tuple(
            TableRecord(table_id=number, schema_name="public", name=f"t{number}", key=("id",))
            for number in range(1, tables + 1)
        )
        #: from when on the filter wants a table; it has rows then
        self.since = {table.table_id: _NOWHERE for table in self.tables}
        self._coming: dict[int, Ts] = {}
        self.events: list[RowEvent] = []
        self.position = Ts(_START_TS)
        self.news = anyio.Event()
        self.slot_ts: Ts | None = None
        #: what it has removed of its log: nobody can be sent what comes behind less than that
        self.removed_ts = _NOWHERE
        #: the reader of the slot: it serves one at a time, and a slot that is read cannot be dropped
        self.reader: object = None
        #: transactions that change a table's schema, with the table
        self.alterations: list[tuple[Ts, int]] = []
        self._random = random
        self._whims = whims

    def come_later(self, table_id: int, ts: Ts) -> None:
        """Another name keeps the table outside until a commit of then or later."""
        self.since[table_id], self._coming[table_id] = MAX_TS, ts

    def has(self, table_id: int, ts: Ts) -> bool:
        """Whether the table has come by then."""
        return self.since[table_id] <= ts

    def inside(self, ts: Ts) -> tuple[TableRecord, ...]:
        """The tables that have come by then."""
        return tuple(table for table in self.tables if self.has(table.table_id, ts))

    def commit(self) -> None:
        """Commit one transaction."""
        self.move()
        for _ in range(self._random.choice((1, 1, 2, 3, 8))):
            table, hash = self._random.choice(self.tables), self._random.randrange(_KEY_SPACE)
            self.events.append(RowEvent(self.position, len(self.events), table.table_id, hash))
        for table_id in [table_id for table_id, ts in self._coming.items() if ts <= self.position]:
            del self._coming[table_id]
            self.since[table_id] = self.position
        if self._whims.random() < _ALTERS:
            self.alterations.append((self.position, self.events[-1].table_id))
        self._tell()

    def move(self) -> None:
        """Advance the position without a commit."""
        self.position = Ts(self.position + self._random.randint(1, 40))
        self._tell()

    def open_slot(self) -> Ts:
        """Return where a dump's snapshot and its stream meet; the same on every call."""
        if self.slot_ts is None:
            self.slot_ts = self.position
        return self.slot_ts

    def lose_log(self) -> None:
        """All of it, and more than anybody has read."""
        self.commit()
        self.removed_ts, self.reader = self.position, None

    def open_slot_again(self) -> Ts:
        """Behind everything that was lost; another one for whoever asks again."""
        self.move()
        return self.position

    def refuse_lost(self, read: Ts) -> None:
        """:raises PositionLostError: what comes behind ``read`` is gone."""
        if read < self.removed_ts:
            raise PositionLostError(f"the log reaches back to {self.removed_ts}, not to {read}; take another position")

    def drop_slot(self) -> None:
        """:raises SlotInUseError: it is being read."""
        if self.reader is not None:
            raise SlotInUseError("the slot is being read; it is dropped when its reader has gone")

    def between(self, from_ts: Ts, to_ts: Ts) -> list[RowEvent]:
        start = bisect_right(self.events, from_ts, key=lambda event: event.ts)
        return self.events[start : bisect_right(self.events, to_ts, key=lambda event: event.ts)]

    def altered(self, from_ts: Ts, to_ts: Ts) -> list[tuple[Ts, int]]:
        """Return the schema changes in ``(from_ts, to_ts]``, with their tables."""
        return [(ts, table) for ts, table in self.alterations if from_ts < ts <= to_ts and self.since[table] < ts]

    def arrivals(self, from_ts: Ts, to_ts: Ts) -> list[tuple[Ts, TableRecord]]:
        """Return the tables that come in ``(from_ts, to_ts]``, and when the log says so."""
        came = ((self.since[table.table_id], table) for table in self.tables)
        return [(ts, table) for ts, table in came if from_ts < ts <= to_ts]

    def last_ts(self, span: TableSpan, up_to: Ts) -> Ts:
        """Return the span's last change at or below ``up_to``."""
        end = bisect_right(self.events, up_to, key=lambda event: event.ts)
        return next((self.events[at].ts for at in range(end - 1, -1, -1) if self.events[at].is_of(span)), Ts(0))

    def _tell(self) -> None:
        self.news.set()
        self.news = anyio.Event()


@dataclass(frozen=True, slots=True)
class Segment:
    name: SegmentName
    events: tuple[RowEvent, ...]
    modified_at: float


class Storage:
    """The change log's files of one changefeed id, including those of an earlier changefeed of the same name.

    ``dropped``: files removed together with their changefeed.
    """

    def __init__(self, name: str) -> None:
        self.files: dict[str, Segment] = {}
        self.dropped: dict[str, Segment] = {}
        self._name = name

    def __str__(self) -> str:
        return f"log of {self._name}"

    def path_of(self, name: str) -> str:
        return name

    def names(self) -> list[str]:
        return sorted(self.files)

    def entries(self) -> list[Entry]:
        return [Entry(name, 1, self.files[name].modified_at) for name in sorted(self.files)]

    def read(self, name: str) -> tuple[RowEvent, ...]:
        """:raises LogError: the file is gone."""
        if name not in self.files:
            raise LogError(f"{name} is missing")
        return self.files[name].events

    def write(self, segment: Segment) -> None:
        self.files[str(segment.name)] = segment

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.files.pop(name, None)

    def drop(self, names: Iterable[str]) -> None:
        """Remove files because their changefeed is removed."""
        self.dropped |= {name: self.files[name] for name in names if name in self.files}
        self.remove(names)


class StorageReader(LogReader):
    """The real reader over ``Storage``."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)  # type: ignore[arg-type]
        self._storage = storage

    def _ref(self, name: SegmentName) -> SegmentRef:
        tables = frozenset(event.table_id for event in self._storage.read(str(name)))
        return name.ref(str(name), size=1 << 20, tables=tables)


@dataclass(slots=True)
class SinkTable:
    """``records``: the Ts of each span; ``rows``: numbers of the events that were applied; ``repartitions``: their
    count. ``altered_ts``: the last schema change applied."""

    records: dict[TableSpan, Ts] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    repartitions: int = 0
    altered_ts: Ts = _NOWHERE
    #: of the newest copy that has replaced it
    placed_ts: Ts = _NOWHERE


class Sink:
    """Tables by id. ``note`` is called for every commit. ``target_ts``: nothing may be written past it."""

    def __init__(self, upstream: Upstream, note: Callable[[str], None]) -> None:
        self.tables: dict[int, SinkTable] = {}
        self._upstream = upstream
        self.target_ts: Ts | None = None
        #: tables that cannot be written or changed; and whether that is transient
        self.sick: dict[int, bool] = {}
        #: tables whose rows kill the process that writes them; and how often that has happened
        self.poisoned: set[int] = set()
        self.ended = 0
        #: copies of tables, by table and number, and their Ts
        self.copies: dict[tuple[int, int], Ts] = {}
        self._note = note

    def refuse_sick(self, table_id: int) -> None:
        """:raises TableHeldError: the table cannot be written now."""
        if table_id in self.sick:
            kind = TablePassingError if self.sick[table_id] else TableHeldError
            raise kind(f"table {table_id} is ill; cure it")

    def load(self, table_id: int, start_ts: Ts) -> None:
        """Take over a dumped table; an existing one stays."""
        if table_id not in self.tables:
            rows = [event.number for event in self._upstream.between(Ts(0), start_ts) if event.table_id == table_id]
            self.tables[table_id] = SinkTable({TableSpan(table_id): start_ts}, rows, altered_ts=start_ts)
            self._note(f"table {table_id} loaded at {start_ts}")

    def committed_ts(self, span: TableSpan) -> Ts | None:
        """:raises SinkFencedError: the table has other spans now."""
        table = self.tables.get(span.table_id)
        if table is not None and table.repartitions and span not in table.records:
            raise SinkFencedError(f"{span} is no span of its table any more; this writer is late")
        return table.records.get(span) if table else None

    def repartition(self, order: SpanRepartition) -> Ts:
        """Like ``agent.sinks.delta.alter.repartition``; also checks that no change lies between the old spans and the
        new ones.

        :raises SinkFencedError: the table has had a later repartition.
        """
        table = self.tables[order.new[0].table_id]
        if table.repartitions == order.number:
            return order.ts
        if table.repartitions > order.number:
            raise SinkFencedError(
                f"repartition {order.number} comes after repartition {table.repartitions}; it is late"
            )
        if sorted(order.old) != sorted(table.records) or table.repartitions != order.number - 1:
            raise ViolationError(f"{order} where the sink has {table.records} at repartition {table.repartitions}")
        if max(table.records.values()) > order.ts:
            return max(table.records.values())
        for span, recorded in table.records.items():
            lost = [event.number for event in self._upstream.between(recorded, order.ts) if event.is_of(span)]
            if lost:
                raise ViolationError(f"{order} loses {lost}, which {span} has not written yet: it is at {recorded}")
        table.records, table.repartitions = dict.fromkeys(order.new, order.ts), order.number
        self._note(f"table {order.new[0].table_id} has {len(order.new)} spans from {order.ts} on")
        return order.ts

    def replace(self, copied: TableRecord, spans: Sequence[TableSpan], number: int) -> None:
        """Like ``agent.sinks.delta.alter.replacement``; also checks the table's spans, and whether what is replaced was
        ahead.

        :raises SinkFencedError: a later copy has replaced the table.
        :raises CopyBehindError: the table is ahead of the copy.
        """
        ts = copied.start_ts
        self.refuse_sick(copied.table_id)
        table = self.tables.setdefault(copied.table_id, SinkTable(dict.fromkeys(spans, Ts(0))))
        if table.placed_ts >= ts:
            if table.placed_ts > ts:
                raise SinkFencedError(f"a copy at {table.placed_ts} is in the table's place; one at {ts} is late")
            return
        self.put(copied.table_id, ts, spans, number)

    def put(self, table_id: int, ts: Ts, spans: Sequence[TableSpan], number: int) -> None:
        """Replace the table's state by a copy's."""
        table = self.tables[table_id]
        if max(table.records.values()) > ts:
            raise CopyBehindError(f"table {table_id} is at {max(table.records.values())}, its copy at {ts}")
        if sorted(spans) != sorted(table.records):
            raise ViolationError(f"a copy of table {table_id} for {spans}, which has {table.records}")
        table.rows = [event.number for event in self._upstream.between(Ts(0), ts) if event.table_id == table_id]
        table.records = dict.fromkeys(spans, ts)
        table.altered_ts = max(table.altered_ts, ts)
        table.placed_ts = ts
        self._note(f"table {table_id} replaced by copy {number} at {ts}")

    def create(self, table_id: int, ts: Ts) -> None:
        """Make a table that starts without rows; one that is there stays."""
        self.refuse_sick(table_id)
        if table_id not in self.tables:
            self.tables[table_id] = SinkTable({TableSpan(table_id): ts}, altered_ts=Ts(ts + 1))
            self._note(f"table {table_id} created at {ts}")

    def alter(self, table_id: int, ts: Ts) -> None:
        """Apply a schema change, once. Everything written before it must be in the sink, and nothing later."""
        self.refuse_sick(table_id)
        table = self.tables[table_id]
        if table.altered_ts >= ts:
            return
        for span, recorded in table.records.items():
            missing = [event.number for event in self._upstream.between(recorded, Ts(ts - 1)) if event.is_of(span)]
            if missing or recorded >= ts:
                raise ViolationError(f"table {table_id} altered at {ts} while {span} is at {recorded}: lacks {missing}")
        table.altered_ts = ts
        self._note(f"table {table_id} altered at {ts}")

    def commit(self, span: TableSpan, from_ts: Ts, to_ts: Ts, rows: list[RowEvent], writer: str) -> None:
        """Commit rows and record atomically.

        :raises SinkFencedError: the record is not ``from_ts``.
        """
        self.refuse_sick(span.table_id)
        recorded = self.committed_ts(span)
        if recorded != from_ts:
            self._note(f"{writer} refused: {span} ({from_ts}, {to_ts}] where {recorded} is recorded")
            raise SinkFencedError(f"{span} is recorded at {recorded}, not at {from_ts}; this writer is late")
        self.apply(span, from_ts, to_ts, rows, writer)

    def apply(self, span: TableSpan, from_ts: Ts, to_ts: Ts, rows: list[RowEvent], writer: str) -> None:
        """Apply rows after checking them against the source: loss and duplication are detected at once, with the
        writer."""
        if self.target_ts is not None and to_ts > self.target_ts:
            raise ViolationError(f"{writer} wrote {span} up to {to_ts}, past the target {self.target_ts}")
        table = self.tables[span.table_id]
        for ts, altered in self._upstream.altered(Ts(0), to_ts):
            if altered == span.table_id and ts > table.altered_ts:
                raise ViolationError(f"{writer} wrote {span} up to {to_ts}, past the schema change at {ts}")
        wanted = [event.number for event in self._upstream.between(table.records[span], to_ts) if event.is_of(span)]
        given = [event.number for event in rows]
        if given != wanted or to_ts <= table.records[span]:
            lost, doubled = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
            raise ViolationError(
                f"{writer} wrote {span} ({from_ts}, {to_ts}] over {table.records[span]}: lost {lost}, doubled {doubled}"
            )
        table.records[span] = to_ts
        table.rows += given
        self._note(f"{writer} wrote {span} ({from_ts}, {to_ts}] {len(given)} rows")


class Outside:
    """Everything outside the cluster: by source URI, by changefeed id, by sink URI."""

    def __init__(self) -> None:
        self.upstreams: dict[str, Upstream] = {}
        self.storages: dict[str, Storage] = {}
        self.sinks: dict[str, Sink] = {}

    def storage(self, changefeed: str) -> Storage:
        return self.storages.setdefault(changefeed, Storage(changefeed))
