"""Changefeed records: changefeeds, their units, tables and schema changes; ``reactor.records.base`` has their base."""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from reactor.errors import Scope
from reactor.ids import MAX_TS, CaptureId, ChangefeedId, Ts
from reactor.records import locations, source_settings
from reactor.records.base import (
    COUNT_MAX,
    CommitTs,
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
from reactor.records.partitioning import LeftTable
from reactor.records.sink_settings import SinkMode as SinkMode
from reactor.records.sink_settings import TableLayout
from reactor.records.source_settings import STORED_FLAT, Setting


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


#: shared by the records of which there are a hundred thousand; nothing is ever put into it
_NOT_KEPT: set[str] = set()


class TableRecord(Record):
    """One replicated table as the dump (or the stream) found it."""

    table_id: TableId
    schema_name: str
    name: str
    #: columns of the key, in order; empty = append only
    key: tuple[str, ...] = ()
    #: every change at or below it is in the loaded snapshot
    start_ts: StoredTs = Ts(0)
    #: a resumed dump reads later chunks later: the first flush must reach at least here (see agent.units.dump)
    consistent_ts: StoredTs = Ts(0)
    rows_estimated: Estimate = 0
    #: MySQL: number of the collation that texts in columns to come have unless they say another; 0: not known
    collation: Count = later(0)
    #: where it lies, below the directory of a sink; empty: under its names as they are
    location: str = later("", pattern=locations.PATTERN)
    #: it came with rows that are not in the log, and is to be copied before it is written
    to_copy: bool = later(False, format=4)
    #: rows changed at or below it are left out, as an operator wished
    skipped_ts: StoredTs = later(Ts(0), format=5)
    #: MySQL: where the server showed its key (with ``to_copy``: its columns), which no statement says; 0: one does
    shown_ts: StoredTs = later(Ts(0))

    @classmethod
    def new(cls, table_id: int, schema_name: str, name: str, **fields: Any) -> Self:
        """Return the record of a table that no sink has yet."""
        location = _location(schema_name, name)
        return cls(table_id=table_id, schema_name=schema_name, name=name, location=location, **fields)

    def named(self, schema_name: str, name: str) -> Self:
        """Return the table under another name, which means another location; an unchanged name keeps its location."""
        if (schema_name, name) == (self.schema_name, self.name):
            return self
        return self.with_(schema_name=schema_name, name=name, location=_location(schema_name, name))

    @property
    def path(self) -> str:
        """The location below the directory of a sink; not always a valid path, if no location is recorded."""
        return self.location or f"{self.schema_name}/{self.name}"

    def model_post_init(self, _context: object) -> None:
        """Keep neither which fields were given, nor an empty container for unknown ones: records are very many."""
        object.__setattr__(self, "__pydantic_fields_set__", _NOT_KEPT)
        if not self.__pydantic_extra__:
            object.__setattr__(self, "__pydantic_extra__", None)


def _location(schema_name: str, name: str) -> str:
    """Return the location to record: empty if it equals the names."""
    location = locations.location_of(schema_name, name)
    return "" if location == f"{schema_name}/{name}" else location


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


class SchemaChangeKind(StrEnum):
    """The kind of a schema change of one table. ``ALTER``: columns or key; also together with a new name. ``HOLD``:
    from here on the source cannot follow the table exactly; nothing of it is written, nor asked of the sink."""

    CREATE = "create"
    ALTER = "alter"
    RENAME = "rename"
    DROP = "drop"
    HOLD = "hold"


class TableChange(Record):
    """The effect of one schema change on one table.

    ``table``: the table afterwards, None if it is dropped. ``before`` and ``after``: JSON of
    ``agent.rows.schema.TableSchema``, empty if there is none. ``renames``: new name → old name of columns; ``added``:
    new columns, even if there was another one of that name. ``fills``: their values in existing rows (as text of the
    source); other new columns are NULL there. ``reason``: one line of a ``HOLD``, cause and cure; it has the table as
    it was, under its new name, without ``before`` and ``after``. ``context``: how values were converted.
    """

    kind: SchemaChangeKind
    table_id: TableId
    table: TableRecord | None = None
    before: str = ""
    after: str = ""
    renames: dict[str, str] = Field(default_factory=dict)
    added: tuple[str, ...] = ()
    fills: dict[str, str] = Field(default_factory=dict)
    reason: str = later("")
    context: dict[str, str] = later({})

    @property
    def is_hold(self) -> bool:
        return self.kind is SchemaChangeKind.HOLD


class DdlRecord(Record):
    """A schema change found in the log: the head is at ``ts`` or behind it exactly if this record exists.

    ``ts`` is the commit of the change. Everything below ``ts`` is written under the old schema, and must be in the sink
    before the sink is changed; the rest, and all of its own transaction, under the new one. It has all changes of that.
    """

    ELEMENTS = "changes"
    ts: CommitTs
    changes: tuple[TableChange, ...] = ()
    statement: str = ""
    #: the sink has it, and the tables' records say so
    done: bool = False
    #: when it is done: tables of it that were held then; for them it is not
    left: tuple[TableId, ...] = later(())
    #: tables of it whose spans were all at ``barrier_ts`` when the sink was asked to move them
    begun: tuple[TableId, ...] = later(())
    #: schema and name of tables that were to join, and are gone from the source; until the owner has taken note
    never_joined: tuple[tuple[str, str], ...] = later((), format=5)

    @property
    def table_ids(self) -> frozenset[int]:
        return frozenset(change.table_id for change in self.changes)

    @property
    def pending_ids(self) -> frozenset[int]:
        """The tables for which it is pending: they may not be written past it."""
        return frozenset(self.left) if self.done else self.table_ids

    @property
    def holds(self) -> tuple[TableChange, ...]:
        """The tables that the source cannot follow from here on."""
        return tuple(change for change in self.changes if change.is_hold)

    @property
    def alterations(self) -> tuple[TableChange, ...]:
        """The changes to request from the sink."""
        return tuple(change for change in self.changes if not change.is_hold)

    @property
    def barrier_ts(self) -> Ts:
        """How far its tables' spans may be written before it is done, which is where all of them must be for it."""
        return Ts(self.ts - 1)
