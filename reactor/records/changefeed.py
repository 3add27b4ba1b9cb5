"""Changefeed records: changefeeds, their configuration, their status and their units."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from reactor.errors import Scope
from reactor.ids import MAX_TS, CaptureId, ChangefeedId, Ts
from reactor.records import source_settings
from reactor.records.base import (
    COUNT_MAX,
    Count,
    Estimate,
    Record,
    RowsPerSecond,
    StoredTs,
    TableId,
    Text,
    Texts,
    UserConfig,
    later,
)
from reactor.records.sink_settings import SinkMode as SinkMode
from reactor.records.sink_settings import TableLayout
from reactor.records.source_settings import STORED_FLAT, Setting
from reactor.records.tables.partitioning import LeftTable
from reactor.records.tables.table import TableRecord


class FeedState(StrEnum):
    """States of a changefeed (the same as TiCDC's; ``docs/states/changefeed.md``)."""

    NORMAL = "normal"
    WARNING = "warning"
    PENDING = "pending"
    STOPPED = "stopped"
    FAILED = "failed"
    FINISHED = "finished"
    REMOVED = "removed"


class Mode(StrEnum):
    """The units that a task runs, in order (as DM's task modes)."""

    ALL = "all"
    FULL = "full"
    INCREMENTAL = "incremental"
    DUMP = "dump"
    LOAD_SYNC = "load-sync"


class Unit(StrEnum):
    DUMP = "dump"
    LOAD = "load"
    SYNC = "sync"


class RunningError(Record):
    """An error as users see it: a stable code, one line of text, where and when (Unix seconds)."""

    code: str
    message: str
    capture: CaptureId | None = None
    time: float = 0.0
    retryable: bool = True
    #: the table that it is about, where it is about one
    table_id: TableId | None = None
    #: what cannot continue because of it
    scope: Scope = later(Scope.CHANGEFEED)

    @property
    def is_of_table(self) -> bool:
        """It holds one table, and says which."""
        return self.scope is Scope.TABLE and self.table_id is not None


class SealedUri(Record):
    """A URI with hidden secrets: ``masked`` is for display, ``sealed`` opens with the cluster's key."""

    masked: str
    sealed: str


#: names of events: rows go with a partition, or out of one, and the other rows of the table stay
DROP_PARTITION, TRUNCATE_PARTITION = "drop table partition", "truncate table partition"
_EVENT_FORMATS = {DROP_PARTITION: 19, TRUNCATE_PARTITION: 19}


def event_name(text: str) -> str:
    """Return an event's name as it is known, however a user spells it."""
    return " ".join(text.lower().split())


class EventFilter(UserConfig):
    """Changes to ignore, of the tables that ``matcher`` names (see ``agent.filter.events``)."""

    matcher: Texts = ("*.*",)
    #: insert, all dml, all ddl, drop column, …; expressions to look for in a DDL statement; conditions over the row
    ignore_event: Texts = ()
    ignore_sql: Texts = ()
    ignore_insert_value_expr: Text = ""
    ignore_update_new_value_expr: Text = ""
    ignore_update_old_value_expr: Text = ""
    ignore_delete_value_expr: Text = ""

    def words(self) -> dict[str, int]:
        names = map(event_name, self.ignore_event)
        return {f"ignore-event {name!r}": _EVENT_FORMATS[name] for name in names if name in _EVENT_FORMATS}


class ColumnSelector(UserConfig):
    """Columns of tables that ``matcher`` names: names and wildcards; ``!`` excludes; the last match decides."""

    matcher: Texts
    columns: Texts


class FilterConfig(UserConfig):
    """The tables to replicate: ``db.*``, ``!db.tmp*``; the last matching rule decides."""

    rules: Texts = ("*.*",)
    event_filters: Annotated[tuple[EventFilter, ...], Field(strict=False)] = ()
    column_selectors: Annotated[tuple[ColumnSelector, ...], Field(strict=False)] = ()

    def selects_otherwise(self, other: "FilterConfig") -> bool:
        """Whether rows or columns of a table may pass that do not pass ``other``, or the reverse."""
        return (self.event_filters, self.column_selectors) != (other.event_filters, other.column_selectors)


NO_FILTER = FilterConfig()


class ChangefeedConfig(UserConfig):
    """The settings of a changefeed's TOML file. Unknown keys are refused, with their names."""

    filter: FilterConfig = FilterConfig()
    layout: Annotated[tuple[TableLayout, ...], Field(strict=False)] = later((), format=17)
    #: take tables without a key too: they are appended to, never updated
    force_replicate: bool = False
    #: what only the source knows, by its own names (see ``source_settings``)
    source: dict[str, Setting] = later({})
    #: of these the ones that v0.1.0 looks for here: users write them below [source] too, see the sources' plugins
    slot: Text = ""
    publication: Text = ""
    zero_dates: Literal["null", "strict", "string"] = "null"
    unlogged_cascades: Literal["refuse", "accept"] = later("refuse")
    dump_chunk_rows: Annotated[int, Field(ge=1_000, le=10_000_000)] = 250_000
    #: rows that snapshots, copies and comparisons read from the source in a second, all together; None: no limit
    read_rows_per_second: RowsPerSecond | None = later(None, format=6)
    #: how often source and sink are compared; 0: never. And the share of each table that is compared, at random
    diff_every_seconds: Annotated[int, Field(ge=0, le=COUNT_MAX)] = later(0, format=6)
    diff_sample: Annotated[float, Field(gt=0, le=1)] = later(1.0, format=6)
    #: schema.table at the source whose rows ask for resyncs and pauses of tables
    signal_table: Annotated[str, Field(pattern=r"^([^.]+\.[^.]+)?$", max_length=256)] = later("", format=8)
    #: how long segments below every checkpoint are kept, so that a changefeed can be rewound
    log_retention_seconds: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 600
    #: how much of the log is kept for tables that are held: so long, and so many bytes; then their position is lost
    held_retention_seconds: Annotated[int, Field(ge=0, le=COUNT_MAX)] = later(86_400)
    held_retention_bytes: Annotated[int, Field(ge=0, le=COUNT_MAX)] = later(10 << 30)
    #: a checkpoint that does not move for this long while there is something to write fails the changefeed
    stuck_seconds: Annotated[int, Field(ge=60, le=COUNT_MAX)] = 1800
    #: a flush that takes longer is cancelled and tried again, and what a sink has not answered by then is asked again
    flush_timeout_seconds: Annotated[int, Field(ge=5, le=3_600)] = 600
    #: a changefeed that is stopped or failed for longer than this loses its slot, and so its position; 0: never
    gc_ttl_seconds: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 86_400
    #: when what comes next is gone at the source: fail, or take a new position and copy every table again in place
    on_lost_position: Literal["fail", "resync"] = later("fail", format=4)
    #: when the log does not tell what a table's rows hold: hold it for an operator, or copy it again
    on_unknown_values: Literal["hold", "resync"] = later("hold")
    #: how often all spans are at one Ts, which is recorded with the sink's versions; 0: never
    sync_point_interval_seconds: Annotated[int, Field(ge=0, le=COUNT_MAX)] = 0
    #: split tables of more than twice ``split_rows`` rows, for several captures to share
    split_large_tables: bool = False
    split_rows: Annotated[int, Field(ge=1_000, le=COUNT_MAX)] = 5_000_000

    @model_validator(mode="before")
    @classmethod
    def _place_settings(cls, data: Any) -> Any:
        return source_settings.placed(data)

    @property
    def source_settings(self) -> dict[str, Setting]:
        """The source's settings that differ from their defaults, wherever they are stored."""
        flat: dict[str, Setting] = {name: getattr(self, name) for name in STORED_FLAT}
        fields = type(self).model_fields
        return {name: value for name, value in flat.items() if value != fields[name].default} | self.source


class ChangefeedInfo(Record):
    """The changefeed that a user created, and the state that its owner gave it."""

    id: ChangefeedId
    namespace: str = "default"
    source: SealedUri
    sink: SealedUri
    mode: Mode = Mode.ALL
    sink_mode: SinkMode = SinkMode.UPSERT
    #: 0: where the dump (or the slot) starts
    start_ts: StoredTs = Ts(0)
    target_ts: StoredTs | None = None
    config: ChangefeedConfig = ChangefeedConfig()
    state: FeedState = FeedState.NORMAL
    #: Unix time of the last change of state; 0: as it was created
    state_since: float = 0.0
    #: grows whenever what runs must restart; messages of another epoch are refused
    epoch: Count = 1
    error: RunningError | None = None
    warning: RunningError | None = None
    created_at: float = 0.0
    creator_version: str = ""
    #: an earlier configuration had event filters: the sink may hold rows that the source has no longer
    was_filtered: bool = False
    #: in the names of what it has at the source: a stale clean-up never meets a later changefeed of the same id
    incarnation: str = ""


class ChangefeedStatus(Record):
    """A changefeed's progress. Written by the owner only. ``generation``: see ``reactor.membership.progress``."""

    checkpoint_ts: StoredTs = Ts(0)
    #: commit time at the checkpoint, Unix seconds; 0 when not known
    checkpoint_time: float = 0.0
    resolved_ts: StoredTs = Ts(0)
    min_table_barrier_ts: StoredTs = Ts(0)
    generation: Count = later(0, format=12)


#: schema and name of a table, and the rows per second that its next copy reads at most
CopyLimit = tuple[str, str, RowsPerSecond]


class UnitStage(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"


class UnitRecord(Record):
    """Progress of one source's units: the checkpoint that a worker manager reads backward (as DM's does).

    Written by the unit itself; transactions compare the key's revision, so an old worker cannot write."""

    ELEMENTS = "tables"
    unit: Unit
    stage: UnitStage
    #: grows with every start of a unit; an older worker's writes are refused
    epoch: Count = 0
    worker: CaptureId | None = None
    tables: tuple[TableRecord, ...] = ()
    #: the slot's consistent point: sync starts here, with what else the source needs to start there (opaque)
    start_ts: StoredTs = Ts(0)
    start_position: str = ""
    #: whose positions these are (PostgreSQL: system identifier and timeline); never compared with another server's
    system_id: str = ""
    timeline: Count = 0
    #: rows and bytes that dump has staged, and load has taken over
    rows_total: Estimate = 0
    rows_done: Count = 0
    bytes_done: Count = 0
    #: opaque to everyone but the unit: where the staged chunks are listed
    manifest: str = ""
    #: tables that start below it are copied again, as the log up to there was lost; the largest Ts: it has no position
    lost_ts: StoredTs = later(Ts(0), format=4)
    #: schema and name of tables that a changed filter wants, and that the sync unit is to take in with their rows
    joining: tuple[tuple[str, str], ...] = later((), format=5)
    #: of tables that join with a limit, until they are copied
    copy_limits: tuple[CopyLimit, ...] = later((), format=6)
    #: the newest tables that have left by a changed filter (see ``owner.tables.departures``)
    left: tuple[LeftTable, ...] = later(())

    @property
    def needs_position(self) -> bool:
        """Whether its position is lost, and it has no other one."""
        return self.lost_ts == MAX_TS
