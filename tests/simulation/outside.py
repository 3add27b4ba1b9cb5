"""What a changefeed reads and writes, without bytes: a source with a log of transactions, log storage, and a sink.

The source's log is the truth that everything is held against. The sink takes a commit as the real ones do: rows and
record in one step, and only if the record is what the writer says it is; and it knows by itself whether the rows are
exactly those the source committed in between.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

import anyio

from agent.errors import LogError, SinkFencedError, SlotInUseError, TableHeldError, TablePassingError
from agent.log.reader import LogReader
from agent.log.segment import SegmentName
from agent.ports.log_storage import Entry
from agent.ports.sink import SpanRepartition
from agent.rows.batches import SegmentRef
from reactor.ids import TableSpan, Ts
from reactor.records.changefeed import TableRecord

_START_TS = 1000
_NOWHERE = Ts(0)
_KEY_SPACE = 1 << 64
#: how many transactions change a table
_ALTERS = 0.05


class ViolationError(AssertionError):
    """Something that must never happen has happened."""


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
        self.events: list[RowEvent] = []
        self.position = Ts(_START_TS)
        self.news = anyio.Event()
        self.slot_ts: Ts | None = None
        #: who streams from the slot: it serves one at a time, and a slot that is read cannot be dropped
        self.reader: object = None
        #: transactions that change a table's schema, and which table
        self.alterations: list[tuple[Ts, int]] = []
        self._random = random
        self._whims = whims

    def commit(self) -> None:
        """One transaction."""
        self.move()
        for _ in range(self._random.choice((1, 1, 2, 3, 8))):
            table, hash = self._random.choice(self.tables), self._random.randrange(_KEY_SPACE)
            self.events.append(RowEvent(self.position, len(self.events), table.table_id, hash))
        if self._whims.random() < _ALTERS:
            self.alterations.append((self.position, self.events[-1].table_id))
        self._tell()

    def move(self) -> None:
        """The position moves also when nothing of interest is committed."""
        self.position = Ts(self.position + self._random.randint(1, 40))
        self._tell()

    def open_slot(self) -> Ts:
        """Where a dump's snapshot and the stream behind it meet; the same for whoever asks again."""
        if self.slot_ts is None:
            self.slot_ts = self.position
        return self.slot_ts

    def drop_slot(self) -> None:
        """:raises SlotInUseError: it is being read."""
        if self.reader is not None:
            raise SlotInUseError("the slot is being read; it is dropped when its reader has gone")

    def between(self, from_ts: Ts, to_ts: Ts) -> list[RowEvent]:
        start = bisect_right(self.events, from_ts, key=lambda event: event.ts)
        return self.events[start : bisect_right(self.events, to_ts, key=lambda event: event.ts)]

    def altered(self, from_ts: Ts, to_ts: Ts) -> list[tuple[Ts, int]]:
        """Schema changes in ``(from_ts, to_ts]``, and of which table."""
        return [(ts, table) for ts, table in self.alterations if from_ts < ts <= to_ts]

    def last_ts(self, span: TableSpan, up_to: Ts) -> Ts:
        """The span's last change at or below ``up_to``."""
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
    """The change log's files of one changefeed id; also what a changefeed of the same name left behind.

    ``dropped``: what went with a changefeed that was removed.
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
        """:raises LogError: it is gone."""
        if name not in self.files:
            raise LogError(f"{name} is missing")
        return self.files[name].events

    def write(self, segment: Segment) -> None:
        self.files[str(segment.name)] = segment

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.files.pop(name, None)

    def drop(self, names: Iterable[str]) -> None:
        """As ``remove``, because a changefeed is removed."""
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
    """``records``: how far each span is; ``rows``: numbers of the events that were applied; ``repartitions``: so many.
    ``altered_ts``: the schema change that it has followed."""

    records: dict[TableSpan, Ts] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    repartitions: int = 0
    altered_ts: Ts = _NOWHERE


class Sink:
    """Tables by id. ``note`` hears of every commit. ``target_ts``: nothing may be written past it."""

    def __init__(self, upstream: Upstream, note: Callable[[str], None]) -> None:
        self.tables: dict[int, SinkTable] = {}
        self._upstream = upstream
        self.target_ts: Ts | None = None
        #: tables that cannot be written or changed, for reasons of their own; and whether that may pass by itself
        self.sick: dict[int, bool] = {}
        self._note = note

    def refuse_sick(self, table_id: int) -> None:
        """:raises TableHeldError: the table cannot be written now."""
        if table_id in self.sick:
            kind = TablePassingError if self.sick[table_id] else TableHeldError
            raise kind(f"table {table_id} is ill; cure it")

    def load(self, table_id: int, start_ts: Ts) -> None:
        """Take a dumped table over; one that is there stays."""
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
        """As ``agent.sinks.delta.alter.repartition``; and it knows whether a change lies between the old spans and
        the new ones.

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

    def alter(self, table_id: int, ts: Ts) -> None:
        """Follow a schema change, once. All that was written before it has to be here, and nothing of later."""
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
        """Rows and record, or nothing.

        :raises SinkFencedError: the record is not ``from_ts``.
        """
        self.refuse_sick(span.table_id)
        recorded = self.committed_ts(span)
        if recorded != from_ts:
            self._note(f"{writer} refused: {span} ({from_ts}, {to_ts}] where {recorded} is recorded")
            raise SinkFencedError(f"{span} is recorded at {recorded}, not at {from_ts}; this writer is late")
        self.apply(span, from_ts, to_ts, rows, writer)

    def apply(self, span: TableSpan, from_ts: Ts, to_ts: Ts, rows: list[RowEvent], writer: str) -> None:
        """The truth is asked before anything is stored: loss and doubling show at once, with who did it."""
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
