"""The values under the keys, as frozen pydantic models; stored as JSON.

``Record.encode`` and ``Record.decode`` are the only ways in and out of etcd, so that a damaged value becomes an
``InvalidRecordError`` that names its key, and never a traceback deep inside a tick. Unknown fields are ignored on
reading: a cluster may run two neighbouring versions at once.
"""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reactor.errors import InvalidRecordError, Scope
from reactor.ids import CaptureId, ChangefeedId, Ts


class Record(BaseModel):
    """A value in etcd. Compare two with ``==``; derive a new one with ``with_``."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def encode(self) -> bytes:
        return self.model_dump_json(exclude_none=True).encode()

    @classmethod
    def decode(cls, value: bytes, *, key: str) -> Self:
        """:raises InvalidRecordError: the value is not a record of this kind; the text names the key, not the value."""
        try:
            return cls.model_validate_json(value)
        except ValidationError as error:
            fields = ", ".join(sorted({".".join(str(part) for part in item["loc"]) for item in error.errors()}))
            raise InvalidRecordError(f"{key} does not hold a {cls.__name__} (wrong: {fields or 'JSON'})") from None

    def with_(self, **changes: object) -> Self:
        """A copy with some fields changed (not validated: callers pass typed values)."""
        return self.model_copy(update=changes)


class FeedState(StrEnum):
    """States of a changefeed (tiflow 1.4.1)."""

    NORMAL = "normal"
    WARNING = "warning"
    PENDING = "pending"
    STOPPED = "stopped"
    FAILED = "failed"
    FINISHED = "finished"
    REMOVED = "removed"


class Mode(StrEnum):
    """Which units a task runs, in order (tiflow 1.7.1)."""

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
    table_id: int | None = None
    #: what cannot continue because of it
    scope: Scope = Scope.CHANGEFEED

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
    pid: int = 0


class SealedUri(Record):
    """A URI whose secrets are not readable here: ``masked`` is for people, ``sealed`` opens with the cluster's key."""

    masked: str
    sealed: str


class EventFilter(Record):
    """Changes of the tables that ``matcher`` names which are not passed on (see ``agent.event_filter``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
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


class ColumnSelector(Record):
    """Columns of the tables that ``matcher`` names: names and wildcards, ``!`` in front excludes, the last one that
    matches decides."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    matcher: tuple[str, ...]
    columns: tuple[str, ...]


class FilterConfig(Record):
    """Which tables are wanted: ``db.*``, ``!db.tmp*``; the last rule that matches decides."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    rules: tuple[str, ...] = ("*.*",)
    event_filters: tuple[EventFilter, ...] = ()
    column_selectors: tuple[ColumnSelector, ...] = ()


#: everything of every table
NO_FILTER = FilterConfig()


class ChangefeedConfig(Record):
    """What a user may set in the changefeed's TOML file. Unknown keys are refused, with their names."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    filter: FilterConfig = FilterConfig()
    #: take tables without a key too: they are appended to, never updated
    force_replicate: bool = False
    #: PostgreSQL: the replication slot and publication; empty = weir_{cluster}_{changefeed}_…, made and dropped by Weir
    slot: str = ""
    publication: str = ""
    #: MySQL: dates that no calendar has (0000-00-00) become NULL, end the changefeed, or make the column a string
    zero_dates: Literal["null", "strict", "string"] = "null"
    #: rows in one dumped chunk
    dump_chunk_rows: Annotated[int, Field(ge=1_000, le=10_000_000)] = 250_000
    #: how long segments below every checkpoint are kept, so that a changefeed can be rewound
    log_retention_seconds: Annotated[int, Field(ge=0)] = 600
    #: a checkpoint that stands still this long while there is something to write fails the changefeed
    stuck_seconds: Annotated[int, Field(ge=60)] = 1800
    #: a flush that takes longer is cancelled and tried again, and what a sink has not answered by then is asked again
    flush_timeout_seconds: Annotated[int, Field(ge=5, le=3_600)] = 600
    #: a changefeed that stands (stopped, failed) longer than this loses its slot, and so its position; 0: never
    gc_ttl_seconds: Annotated[int, Field(ge=0)] = 86_400
    #: how often all spans stand at one Ts, which is recorded with the sink's versions; 0: never
    sync_point_interval_seconds: Annotated[int, Field(ge=0)] = 0
    #: cut tables of more than twice ``split_rows`` rows into spans, for several captures to share
    split_large_tables: bool = False
    split_rows: Annotated[int, Field(ge=1_000)] = 5_000_000


class ChangefeedInfo(Record):
    """What a user created, and the state its owner gave it."""

    id: ChangefeedId
    namespace: str = "default"
    source: SealedUri
    sink: SealedUri
    mode: Mode = Mode.ALL
    sink_mode: SinkMode = SinkMode.UPSERT
    #: 0: where the dump (or the slot) starts
    start_ts: Ts = Ts(0)
    target_ts: Ts | None = None
    config: ChangefeedConfig = ChangefeedConfig()
    state: FeedState = FeedState.NORMAL
    #: Unix time of the last change of state; 0: as it was created
    state_since: float = 0.0
    #: grows whenever the running parts must restart; messages of another epoch are refused
    epoch: int = 1
    error: RunningError | None = None
    warning: RunningError | None = None
    created_at: float = 0.0
    creator_version: str = ""
    #: an earlier configuration had event filters: the sink may hold rows that the source has no longer
    was_filtered: bool = False
    #: in the names of what it has at the source: a late clean-up never meets a later changefeed of the same id
    incarnation: str = ""


class ChangefeedStatus(Record):
    """How far a changefeed has come. Written by the owner only."""

    checkpoint_ts: Ts = Ts(0)
    #: commit time at the checkpoint, Unix seconds; 0 when not known
    checkpoint_time: float = 0.0
    resolved_ts: Ts = Ts(0)
    min_table_barrier_ts: Ts = Ts(0)


class TaskPosition(Record):
    """What one capture's processor has to say to the owner through etcd: only errors and warnings."""

    error: RunningError | None = None
    warning: RunningError | None = None


class UpstreamInfo(Record):
    """An upstream's identity: positions of different identities are never compared."""

    source: str
    kind: str
    #: PostgreSQL: system identifier and timeline
    system_id: str
    timeline: int = 1


_NOT_KEPT: set[str] = set()


class TableRecord(Record):
    """One replicated table as the dump (or the stream) found it."""

    #: PostgreSQL: the relation's oid
    table_id: int
    schema_name: str
    name: str
    #: columns of the key, in order; empty = append only
    key: tuple[str, ...] = ()
    #: every change at or below it is in the loaded snapshot
    start_ts: Ts = Ts(0)
    #: a resumed dump reads later chunks later: the first flush must reach at least here (see agent.units.dump)
    consistent_ts: Ts = Ts(0)
    rows_estimated: int = 0

    def model_post_init(self, _context: object) -> None:
        """Which fields were given is not kept: in a record of which there are a hundred thousand it is the most."""
        object.__setattr__(self, "__pydantic_fields_set__", _NOT_KEPT)


class UnitStage(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"


class UnitRecord(Record):
    """Where the units of one source stand: the checkpoint a worker manager reads backward (tiflow 1.7.1).

    Written by the unit itself, in transactions that compare the key's revision, so an old worker cannot write.
    """

    unit: Unit
    stage: UnitStage
    #: grows with every start of a unit; an older worker's writes are refused
    epoch: int = 0
    worker: CaptureId | None = None
    tables: tuple[TableRecord, ...] = ()
    #: the slot's consistent point: sync starts here, with what else the source needs to start there (opaque)
    start_ts: Ts = Ts(0)
    start_position: str = ""
    #: whose positions these are (PostgreSQL: system identifier and timeline); never compared with another server's
    system_id: str = ""
    timeline: int = 0
    #: rows and bytes that dump has staged, and load has taken over
    rows_total: int = 0
    rows_done: int = 0
    bytes_done: int = 0
    #: opaque to everyone but the unit: where the staged chunks are listed
    manifest: str = ""


class Era(Record):
    """From segment ``first_seq`` on, only files written under ``epoch`` are part of the log."""

    epoch: int
    first_seq: int


class LogHead(Record):
    """The change log's head; moved only by transactions that compare its revision, under the writer's epoch.

    A segment with number ``seq`` is part of the log iff ``first_seq <= seq <= last_seq`` and its file carries the
    epoch of the last era that starts at or before ``seq``. A transaction may spread over several segments:
    ``complete_seq`` is the last one after which no transaction is open; a new writer continues behind it, and
    what an interrupted writer left after it is overwritten by the new era.
    """

    epoch: int = 0
    writer: CaptureId | None = None
    first_seq: int = 1
    last_seq: int = 0
    complete_seq: int = 0
    resolved_ts: Ts = Ts(0)
    #: commit time at resolved_ts, Unix seconds; 0 when not known
    resolved_time: float = 0.0
    eras: tuple[Era, ...] = ()
    #: events at or below it may be gone from the log (segments before ``first_seq``)
    removed_ts: Ts = Ts(0)
    #: what else the source needs to go on at ``resolved_ts`` (MySQL: GTIDs); opaque to everyone else
    position: str = ""


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
    ``agent.schema.TableSchema``, empty where there is none. ``renames``: new name → old name of columns; ``added``: new
    columns, though there may have been another of that name. ``fills``: what they hold (as the source writes it in
    text) in rows that were there already; a column that is not in here is NULL in them. ``reason``: one line of a
    ``HOLD``, cause and cure; such a change has the table as it was, and no ``before`` and ``after``.
    """

    kind: SchemaChangeKind
    table_id: int
    table: TableRecord | None = None
    before: str = ""
    after: str = ""
    renames: dict[str, str] = {}
    added: tuple[str, ...] = ()
    fills: dict[str, str] = {}
    reason: str = ""

    @property
    def is_hold(self) -> bool:
        return self.kind is SchemaChangeKind.HOLD


class DdlRecord(Record):
    """A schema change found in the log: the head is at ``ts`` or behind it exactly if this record is there.

    ``ts`` is the commit that brought it. Everything below ``ts`` is written under the old schema, and must be in the
    sink before the sink is changed; everything from ``ts`` on is written under the new one, that is, also what the
    very transaction wrote before it changed the table. One record holds all that one transaction changed.
    """

    ts: Ts
    changes: tuple[TableChange, ...] = ()
    statement: str = ""
    #: the sink has it, and the tables' records say so
    done: bool = False

    @property
    def table_ids(self) -> frozenset[int]:
        return frozenset(change.table_id for change in self.changes)

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
        """How far its tables' spans may write before it is done: where all of them have to stand for it."""
        return Ts(self.ts - 1)
