"""Cluster records: captures, changefeeds, units, logs and schema changes.

What all records have in common is ``reactor.records.base``'s.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from reactor.errors import Scope
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.records import source_settings
from reactor.records.base import COUNT_MAX, CommitTs, Count, Estimate, Record, StoredTs, TableId, UserConfig, later
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
    """Which units a task runs, in order (as DM's task modes)."""

    ALL = "all"
    FULL = "full"
    INCREMENTAL = "incremental"
    DUMP = "dump"
    LOAD_SYNC = "load-sync"


class SinkMode(StrEnum):
    """``upsert``: the sink's table equals the source's. ``changelog``: every change is appended."""

    UPSERT = "upsert"
    CHANGELOG = "changelog"


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


class CaptureInfo(Record):
    """One member of the cluster; lives exactly as long as its lease."""

    id: CaptureId
    #: host:port of the HTTP API
    address: str
    #: host:port where other captures connect
    peer_address: str
    version: str
    cluster_id: str
    started_at: float
    hostname: str = ""
    pid: Count = 0
    #: the newest format that it knows (``reactor.records.formats``)
    format: Count = later(1)


class SealedUri(Record):
    """A URI whose secrets are not readable here: ``masked`` is for people, ``sealed`` opens with the cluster's key."""

    masked: str
    sealed: str


class EventFilter(UserConfig):
    """Changes of the tables that ``matcher`` names which are not passed on (see ``agent.filter.events``)."""

    matcher: tuple[str, ...] = ("*.*",)
    #: insert, update, delete, all dml, all ddl, truncate table, drop column, …
    ignore_event: tuple[str, ...] = ()
    #: regular expressions that are looked for in a DDL statement
    ignore_sql: tuple[str, ...] = ()
    #: SQL conditions over the row's columns
    ignore_insert_value_expr: str = ""
    ignore_update_new_value_expr: str = ""
    ignore_update_old_value_expr: str = ""
    ignore_delete_value_expr: str = ""


class ColumnSelector(UserConfig):
    """Columns of the tables that ``matcher`` names: names and wildcards, ``!`` in front excludes, the last one that
    matches decides."""

    matcher: tuple[str, ...]
    columns: tuple[str, ...]


class FilterConfig(UserConfig):
    """Which tables are wanted: ``db.*``, ``!db.tmp*``; the last rule that matches decides."""

    rules: tuple[str, ...] = ("*.*",)
    event_filters: tuple[EventFilter, ...] = ()
    column_selectors: tuple[ColumnSelector, ...] = ()


#: everything of every table
NO_FILTER = FilterConfig()


class ChangefeedConfig(UserConfig):
    """What a user may set in the changefeed's TOML file. Unknown keys are refused, with their names."""

    filter: FilterConfig = FilterConfig()
    #: take tables without a key too: they are appended to, never updated
    force_replicate: bool = False
    #: what only the source knows, by its own names (see ``source_settings``)
    source: dict[str, Setting] = later({})
    #: of these the ones that v0.1.0 looks for here: users write them below [source] too, see the sources' plugins
    slot: str = ""
    publication: str = ""
    zero_dates: Literal["null", "strict", "string"] = "null"
    unlogged_cascades: Literal["refuse", "accept"] = later("refuse")
    #: rows in one dumped chunk
    dump_chunk_rows: Annotated[int, Field(ge=1_000, le=10_000_000)] = 250_000
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
        """The settings of the source that somebody has changed, wherever they are stored."""
        flat: dict[str, Setting] = {name: getattr(self, name) for name in STORED_FLAT}
        fields = type(self).model_fields
        return {name: value for name, value in flat.items() if value != fields[name].default} | self.source


class ChangefeedInfo(Record):
    """What a user created, and the state its owner gave it."""

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
    """How far a changefeed has come. Written by the owner only."""

    checkpoint_ts: StoredTs = Ts(0)
    #: commit time at the checkpoint, Unix seconds; 0 when not known
    checkpoint_time: float = 0.0
    resolved_ts: StoredTs = Ts(0)
    min_table_barrier_ts: StoredTs = Ts(0)


#: shared by the records of which there are a hundred thousand; nothing is ever put into it
_NOT_KEPT: set[str] = set()


class TableRecord(Record):
    """One replicated table as the dump (or the stream) found it."""

    #: PostgreSQL: the relation's oid
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

    def model_post_init(self, _context: object) -> None:
        """Which fields were given is not kept, nor a place for unknown ones without any: most of it would be that."""
        object.__setattr__(self, "__pydantic_fields_set__", _NOT_KEPT)
        if not self.__pydantic_extra__:
            object.__setattr__(self, "__pydantic_extra__", None)


class UnitStage(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"


class UnitRecord(Record):
    """Progress of one source's units: the checkpoint that a worker manager reads backward (as DM's does).

    Written by the unit itself, in transactions that compare the key's revision, so an old worker cannot write.
    """

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


class Era(Record):
    """From segment ``first_seq`` on, only files written under ``epoch`` are part of the log."""

    epoch: Count
    first_seq: Count


class LogHead(Record):
    """The change log's head; moved only by transactions that compare its revision, under the writer's epoch.

    A segment with number ``seq`` is part of the log iff ``first_seq <= seq <= last_seq`` and its file carries the
    epoch of the last era that starts at or before ``seq``. A transaction may spread over several segments:
    ``complete_seq`` is the last one after which no transaction is open; a new writer continues behind it, and
    what an interrupted writer left after it is overwritten by the new era.
    """

    epoch: Count = 0
    writer: CaptureId | None = None
    first_seq: Count = 1
    last_seq: Count = 0
    complete_seq: Count = 0
    resolved_ts: StoredTs = Ts(0)
    #: commit time at resolved_ts, Unix seconds; 0 when not known
    resolved_time: float = 0.0
    eras: tuple[Era, ...] = ()
    #: events at or below it may be gone from the log (segments before ``first_seq``)
    removed_ts: StoredTs = Ts(0)
    #: what else the source needs to continue at ``resolved_ts`` (MySQL: GTIDs); opaque to everyone else
    position: str = ""
    #: the file beside the segments that holds the rest of it (PostgreSQL: what the catalog said); empty where none does
    attachment: str = later("")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        assert self.first_seq <= self.last_seq + 1, "the log begins behind its end"
        assert self.complete_seq <= self.last_seq, "a transaction ends behind the log's end"
        starts = [era.first_seq for era in self.eras]
        assert starts == sorted(starts), "the eras are not in order"
        return self


class SchemaChangeKind(StrEnum):
    """What a schema change does to one table. ``ALTER``: columns or key; also together with a new name. ``HOLD``: from
    here on the source cannot follow the table exactly; nothing of it is written from here on, and the sink is asked for
    nothing."""

    CREATE = "create"
    ALTER = "alter"
    RENAME = "rename"
    DROP = "drop"
    HOLD = "hold"


class TableChange(Record):
    """What one schema change does to one table.

    ``table``: the table as it is afterwards, None when it is gone. ``before`` and ``after``: JSON of
    ``agent.rows.schema.TableSchema``, empty where there is none. ``renames``: new name → old name of columns;
    ``added``: new columns, though there may have been another of that name. ``fills``: what they hold (as the source
    writes it in text) in existing rows; a column that is not in here is NULL in them. ``reason``: one line of a
    ``HOLD``, cause and cure; such a change has the table as it was, and no ``before`` and ``after``. ``context``: what
    of the source and its session decides how values became those of another type, in words of the table's dialect;
    empty where nobody noted it.
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
    """A schema change found in the log: the head is at ``ts`` or behind it exactly if this record is there.

    ``ts`` is the commit that brought it. Everything below ``ts`` is written under the old schema, and must be in the
    sink before the sink is changed; everything from ``ts`` on is written under the new one, that is, also what the
    very transaction wrote before it changed the table. One record holds all that one transaction changed.
    """

    ts: CommitTs
    changes: tuple[TableChange, ...] = ()
    statement: str = ""
    #: the sink has it, and the tables' records say so
    done: bool = False
    #: when it is done: tables of it that were held then; for them it is not
    left: tuple[TableId, ...] = later(())

    @property
    def table_ids(self) -> frozenset[int]:
        return frozenset(change.table_id for change in self.changes)

    @property
    def pending_ids(self) -> frozenset[int]:
        """The tables for which it is yet to be done. They may not be written past it."""
        return frozenset(self.left) if self.done else self.table_ids

    @property
    def holds(self) -> tuple[TableChange, ...]:
        """The tables that the source cannot follow from here on."""
        return tuple(change for change in self.changes if change.is_hold)

    @property
    def alterations(self) -> tuple[TableChange, ...]:
        """What the sink is asked for."""
        return tuple(change for change in self.changes if not change.is_hold)

    @property
    def barrier_ts(self) -> Ts:
        """How far its tables' spans may write before it is done: where all of them have to be for it."""
        return Ts(self.ts - 1)
