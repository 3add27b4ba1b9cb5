"""Facts: one changefeed's stored records, and what all changefeeds share in one tick."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from owner.progress.units import SOURCE, current_unit, tables_of
from owner.scheduler.heartbeat_budget import HeartbeatBudget
from reactor.ids import MAX_TS, CaptureId, Ts
from reactor.records.attempts import Attempt, Suspects
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, Mode, RunningError, Unit, UnitRecord
from reactor.records.log_head import LogHead
from reactor.records.sync_point import SyncPoint
from reactor.records.tables.change_index import ChangeIndex
from reactor.records.tables.held import HeldTable, HoldStage, tried_after_end
from reactor.records.tables.partitioning import TablePartitioning
from reactor.records.tables.resync import ResyncStage, TableResync
from reactor.records.tables.schema_change import DdlRecord
from reactor.records.tables.table import TableRecord
from reactor.state import ChangefeedState


@dataclass(frozen=True, slots=True)
class TickContext:
    """The facts that all changefeeds share in one tick. ``worker_loads``: number of workers by capture.
    ``heartbeat_budget``: limits what captures are asked for. ``format``: the cluster's."""

    alive: tuple[CaptureId, ...]
    worker_loads: Mapping[CaptureId, int]
    heartbeat_budget: HeartbeatBudget
    format: int


class KnownTables:
    """Tables of a record, and what follows from them alone. There may be tens of thousands, and the log's head moves
    many times while they stay the same."""

    def __init__(self, tables: tuple[TableRecord, ...], lost_ts: Ts) -> None:
        self.tables = tables
        self.lost_ts = lost_ts
        self.ids = frozenset(table.table_id for table in tables)
        self.by_id: Mapping[int, TableRecord] = {table.table_id: table for table in tables}
        #: those whose log is lost; those that came with rows that it does not have
        self.lost = frozenset(table.table_id for table in tables if table.start_ts < lost_ts)
        self.to_copy = tuple(table for table in tables if table.to_copy)


@dataclass(frozen=True)
class Facts:
    """One changefeed's stored records, as its run needs them; derived values are computed once."""

    info: ChangefeedInfo
    status: ChangefeedStatus
    record: UnitRecord | None
    head: LogHead | None
    sync_points: tuple[SyncPoint, ...] = ()
    #: tables that are, were, or will be repartitioned, by id
    partitionings: Mapping[int, TablePartitioning] = field(default_factory=dict)
    #: schema changes by Ts, including finished ones
    ddl: ChangeIndex = field(default_factory=ChangeIndex)
    #: tables that are held while the others continue, by id
    held: Mapping[int, HeldTable] = field(default_factory=dict)
    #: work in progress on each capture, and tables suspected of having ended one
    attempts: Mapping[CaptureId, Attempt] = field(default_factory=dict)
    schema_attempts: Mapping[CaptureId, Attempt] = field(default_factory=dict)
    suspects: Suspects | None = None
    #: captures that have lost processes of Spark's while they wrote one table
    losses: Mapping[CaptureId, RunningError] = field(default_factory=dict)
    #: tables being copied again, by id
    resyncs: Mapping[int, TableResync] = field(default_factory=dict)
    #: of earlier facts
    known_before: KnownTables | None = field(default=None, compare=False, repr=False)
    #: the last change of the records that was more than progress (``ChangefeedState.news``)
    news: int = field(default=0, compare=False, repr=False)

    @classmethod
    def of(cls, feed: ChangefeedState, info: ChangefeedInfo, *, before: "Facts | None" = None) -> "Facts":
        """``before``: earlier facts of the same changefeed. The log's head moves many times while nothing else changes:
        what does not follow from it is derived once."""
        status = feed.status or ChangefeedStatus(checkpoint_ts=info.start_ts)
        points = tuple(feed.sync_points[ts] for ts in sorted(feed.sync_points))
        unit, head = feed.units.get(SOURCE), feed.heads.get(SOURCE)
        tables = (feed.partitionings, feed.ddl, feed.held)
        attempts = (feed.attempts, feed.schema_attempts, feed.suspects)
        faults = ((capture, position.fault) for capture, position in feed.positions.items())
        losses = {capture: fault for capture, fault in faults if fault is not None and fault.table_id is not None}
        known = before.known if before else None
        facts = cls(info, status, unit, head, points, *tables, *attempts, losses, feed.resyncs, known, feed.news)
        if before is not None and 0 < before.news == feed.news and before.info is info:
            facts.__dict__.update({name: before.__dict__[name] for name in _LASTING if name in before.__dict__})
        return facts

    @cached_property
    def version(self) -> object:
        """The same object while there is nothing new but progress."""
        return object()

    @cached_property
    def unit(self) -> Unit | None:
        """The unit to run; None when every unit has finished."""
        return current_unit(self.info.mode, self.record)

    @cached_property
    def tables(self) -> tuple[TableRecord, ...] | None:
        """The tables whose spans may be replicated; None while not known."""
        return tables_of(self.info.mode, self.record)

    @cached_property
    def known(self) -> KnownTables:
        """The tables, indexed; the same object while they stay the same."""
        tables, lost_ts = self.tables or (), self.record.lost_ts if self.record else Ts(0)
        before = self.known_before
        if before is not None and before.tables is tables and before.lost_ts == lost_ts:
            return before
        return KnownTables(tables, lost_ts)

    @property
    def table_ids(self) -> frozenset[int]:
        return self.known.ids

    @property
    def by_id(self) -> Mapping[int, TableRecord]:
        return self.known.by_id

    @cached_property
    def flowing(self) -> tuple[TableRecord, ...]:
        """The tables that count for the checkpoint: neither held, nor about to catch up, nor lost."""
        out = self.held.keys() | self.lost
        return tuple(table for table in self.tables or () if table.table_id not in out)

    @cached_property
    def lost(self) -> frozenset[int]:
        """Tables that must be copied before they are written: the log that they need is lost
        (``owner.feed.renewal``), or does not have the rows that they came with. A table that came after the target is
        never written, so it needs no copy."""
        end_ts = MAX_TS if self.info.target_ts is None else self.info.target_ts
        return self.known.lost.union(table.table_id for table in self.known.to_copy if table.start_ts <= end_ts)

    @property
    def needs_position(self) -> bool:
        """Nothing can be said of the log before there is another one."""
        return self.record is not None and self.record.needs_position

    @cached_property
    def pending_ddl(self) -> tuple[DdlRecord, ...]:
        """Schema changes that some table still waits for, by Ts."""
        return self.ddl.pending

    @cached_property
    def waiting_names(self) -> Mapping[int, str]:
        """Names (schema.name) of tables that schema changes or repartitions wait for."""
        waiting = {id for record in self.pending_ddl for id in record.pending_ids} | self.partitionings.keys()
        return {id: self.name_of(id) for id in waiting}

    @cached_property
    def catching_up(self) -> Mapping[int, Ts]:
        """Held tables that are being retried, and their positions."""
        tried = (held for id, held in self.held.items() if held.stage is HoldStage.TRIED and id not in self.lost)
        return {held.table_id: held.ts for held in tried}

    @cached_property
    def parked(self) -> frozenset[int]:
        """Held tables that are not being written, and lost ones."""
        return frozenset(self.held.keys() - self.catching_up.keys()) | self.lost

    @cached_property
    def held_with_log(self) -> Mapping[int, HeldTable]:
        """Held tables that have not lost their log. Lost ones may be as many as there are tables, and only wait."""
        return {id: held for id, held in self.held.items() if held.stage is not HoldStage.LOST}

    @cached_property
    def resyncs_begun(self) -> tuple[TableResync, ...]:
        """The resyncs that have had their turn. There may be one of every table, and most of them wait."""
        return tuple(one for one in self.resyncs.values() if one.stage is not ResyncStage.ASKED)

    @cached_property
    def resyncs_waiting(self) -> tuple[TableResync, ...]:
        """The resyncs that wait for their turn."""
        return tuple(one for one in self.resyncs.values() if one.stage is ResyncStage.ASKED)

    @cached_property
    def resyncs_refused(self) -> frozenset[int]:
        """Tables that cannot be copied as they are: they are tried now and then."""
        return frozenset(id for id, one in self.resyncs.items() if one.error and not one.error.retryable)

    @cached_property
    def tried_after_end(self) -> frozenset[int]:
        """Tables that have ended captures, or processes of Spark's, and are being retried."""
        return tried_after_end(self.held.values())

    def is_finished(self, status: ChangefeedStatus) -> bool:
        """Whether the units are finished (modes without sync), or all tables have reached the target in the sink."""
        target_ts = self.info.target_ts
        if self.unit is None:
            return True
        is_synced = self.info.mode not in (Mode.FULL, Mode.DUMP) and self.tables is not None
        return is_synced and target_ts is not None and status.checkpoint_ts >= target_ts and not self.held

    def name_of(self, table_id: int) -> str:
        """Return the table's schema.name."""
        known = self.by_id.get(table_id)
        return f"{known.schema_name}.{known.name}" if known else f"table {table_id}"


#: derived values that progress does not change
_LASTING = (
    "unit",
    "tables",
    "known",
    "flowing",
    "lost",
    "version",
    "pending_ddl",
    "waiting_names",
    "catching_up",
    "parked",
    "held_with_log",
    "resyncs_begun",
    "resyncs_waiting",
    "resyncs_refused",
    "tried_after_end",
)
