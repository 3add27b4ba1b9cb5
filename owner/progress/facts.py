"""Facts: one changefeed's stored records, and what all changefeeds share in one tick."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from owner.progress.units import SOURCE, current_unit, tables_of
from owner.scheduler.heartbeat_budget import HeartbeatBudget
from reactor.ids import CaptureId, Ts
from reactor.records.changefeed import (
    ChangefeedInfo,
    ChangefeedStatus,
    DdlRecord,
    LogHead,
    Mode,
    TableRecord,
    Unit,
    UnitRecord,
)
from reactor.records.held import HeldTable, HoldStage
from reactor.records.partitioning import TablePartitioning
from reactor.records.sync_point import SyncPoint
from reactor.state import ChangefeedState


@dataclass(frozen=True, slots=True)
class World:
    """What is the same for all changefeeds in one tick. ``worker_loads``: workers by capture. ``heartbeat_budget``:
    what may be asked of captures. ``format``: the cluster's."""

    alive: tuple[CaptureId, ...]
    worker_loads: Mapping[CaptureId, int]
    heartbeat_budget: HeartbeatBudget
    format: int


@dataclass(frozen=True)
class Facts:
    """One changefeed's stored records, as its run needs them; what follows from them is found out once."""

    info: ChangefeedInfo
    status: ChangefeedStatus
    record: UnitRecord | None
    head: LogHead | None
    sync_points: tuple[SyncPoint, ...] = ()
    #: tables that are, were, or shall be repartitioned, by id
    partitionings: Mapping[int, TablePartitioning] = field(default_factory=dict)
    #: schema changes by Ts, done ones too
    ddl: Mapping[int, DdlRecord] = field(default_factory=dict)
    #: tables that cannot continue while the others do, by id
    held: Mapping[int, HeldTable] = field(default_factory=dict)

    @classmethod
    def of(cls, feed: ChangefeedState, info: ChangefeedInfo) -> "Facts":
        status = feed.status or ChangefeedStatus(checkpoint_ts=info.start_ts)
        points = tuple(feed.sync_points[ts] for ts in sorted(feed.sync_points))
        unit, head = feed.units.get(SOURCE), feed.heads.get(SOURCE)
        return cls(info, status, unit, head, points, feed.partitionings, feed.ddl, feed.held)

    @cached_property
    def unit(self) -> Unit | None:
        """What is due; None when every unit has finished."""
        return current_unit(self.info.mode, self.record)

    @cached_property
    def tables(self) -> tuple[TableRecord, ...] | None:
        """Those whose spans may be replicated; None while that is not known."""
        return tables_of(self.info.mode, self.record)

    @cached_property
    def table_ids(self) -> frozenset[int]:
        return frozenset(table.table_id for table in self.tables or ())

    @cached_property
    def flowing(self) -> tuple[TableRecord, ...]:
        """Those that count: neither held nor about to catch up."""
        return tuple(table for table in self.tables or () if table.table_id not in self.held)

    @cached_property
    def pending_ddl(self) -> tuple[DdlRecord, ...]:
        """Schema changes that some table still waits for."""
        return tuple(record for record in self.ddl.values() if record.pending_ids)

    @cached_property
    def waiting_names(self) -> Mapping[int, str]:
        """schema.name of tables that schema changes or repartitions wait for."""
        waiting = {id for record in self.pending_ddl for id in record.pending_ids} | self.partitionings.keys()
        return {id: self.name_of(id) for id in waiting}

    @cached_property
    def stragglers(self) -> Mapping[int, Ts]:
        """Held tables that are tried again, and where they are."""
        return {id: held.ts for id, held in self.held.items() if held.stage is HoldStage.TRIED}

    def is_finished(self, status: ChangefeedStatus) -> bool:
        """The units are through (modes without sync), or everything up to the target is in the sink, of all tables."""
        target_ts = self.info.target_ts
        if self.unit is None:
            return True
        is_synced = self.info.mode not in (Mode.FULL, Mode.DUMP) and self.tables is not None
        return is_synced and target_ts is not None and status.checkpoint_ts >= target_ts and not self.held

    def name_of(self, table_id: int) -> str:
        """schema.name of a table."""
        known = next((table for table in self.tables or () if table.table_id == table_id), None)
        return f"{known.schema_name}.{known.name}" if known else f"table {table_id}"
