"""Views of a changefeed for people: what its owner knows, and the JSON of the HTTP API.

A changefeed or table that makes no progress always says why (``blocked_by``). URIs are masked. Times are Unix seconds,
lags are seconds.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from reactor.records.changefeed import FeedState, Mode, RunningError, SinkMode, Unit
from reactor.records.schedules import LastDiff
from reactor.records.sync_point import SyncPoint


class View(BaseModel):
    """Base of all answers. A client may be older or newer than its server: unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """For notebooks: what differs from the defaults, and the number of elements instead of them."""
        for name, value in super().__repr_args__():
            if name not in type(self).model_fields or value == type(self).model_fields[name].default:
                continue
            is_list = isinstance(value, tuple) and value and isinstance(value[0], BaseModel)
            yield name, len(value) if is_list else value


class LagStages(View):
    """The parts of the lag between a commit and its visibility, in seconds; None if unknown. ``source``: age of the
    newest change read; ``flush``: what is read but not yet in the sink, of which ``barrier`` is due to a barrier."""

    source: float | None = None
    log: float | None = None
    flush: float | None = None
    sink: float | None = None
    barrier: float | None = None


class SpanView(View):
    """One table span and the capture that replicates it (empty: none at the moment)."""

    span: str
    capture: str = ""
    state: str = ""
    checkpoint_ts: int = 0
    resolved_ts: int = 0


class HeldView(View):
    """A table that cannot continue while the others do. ``ts``: everything at or below it is in the sink. ``stage``:
    held, tried (retried, and catching up), lost (its part of the change log is gone). ``retry_at``: Unix seconds, 0:
    when an operator resumes the changefeed. ``renamed_to``: its name at the source, if it has changed since."""

    table: str
    table_id: int
    stage: str
    origin: str = ""
    since: float = 0.0
    ts: int = 0
    code: str = ""
    message: str = ""
    tries: int = 0
    retry_at: float = 0.0
    renamed_to: str = ""


class LeftView(View):
    """A table that left by a changed filter: no longer replicated, and still at the sink. ``since``: Unix seconds;
    ``ts``: nothing above it was written. ``marked``: the sink's table says so; ``message``: why it does not."""

    table: str
    table_id: int
    since: float = 0.0
    ts: int = 0
    marked: bool = False
    message: str = ""


class ResyncView(View):
    """A table that is copied again. ``stage``: asked (waiting for its turn), stopping, copying, placing, placed,
    following. ``ts``: of the copy, 0 before it is finished. ``rows_total``: an estimate until then. ``seconds_left``:
    until the copy is finished, None if unknown. ``rows_per_second``: so far, None if unknown; ``limit``: at most, 0 for
    none. ``code`` and ``message``: of the last failed attempt, or of what it waits for."""

    table: str
    table_id: int
    stage: str
    since: float = 0.0
    ts: int = 0
    rows_done: int = 0
    rows_total: int = 0
    seconds_left: float | None = None
    rows_per_second: float | None = None
    limit: int = 0
    tries: int = 0
    retry_at: float = 0.0
    code: str = ""
    message: str = ""


class SubscriptionView(View):
    """A reader of one table's changes. It has those up to ``ts``; later ones are kept for it until ``expires_at`` (Unix
    seconds), within the limits for held tables."""

    name: str
    table: str
    ts: int
    expires_at: float


class TableView(View):
    """One replicated table. ``held``: why it does not count in the changefeed's checkpoint; None if it does.
    ``resync``: its copy, if it is copied again. ``waiting_for``: what it needs before it can continue; empty if
    unknown. ``skipped_ts``: changes up to it were left out of the sink at an operator's request, 0 if none were.
    ``location``: below the sink's."""

    table: str
    table_id: int
    key: tuple[str, ...] = ()
    checkpoint_ts: int = 0
    resolved_ts: int = 0
    spans: tuple[SpanView, ...] = ()
    held: HeldView | None = None
    resync: ResyncView | None = None
    waiting_for: str = ""
    skipped_ts: int = 0
    location: str = ""


def called(tables: Iterable[TableView], name: str) -> TableView | None:
    """Return the table that is called ``name`` (schema.name); None: there is none.

    A held table that was renamed or dropped at the source keeps its name at the sink, and another one may have taken it
    at the source: that one counts.
    """
    found = [table for table in tables if table.table == name]
    return min(found, key=_distance, default=None)


def _distance(table: TableView) -> tuple[bool, bool]:
    held = table.held
    return held is not None and held.renamed_to not in ("", table.table), held is not None


class ChangefeedView(View):
    """A changefeed as ``changefeed query`` shows it. ``blocked_by`` names what prevents progress; empty if nothing
    does."""

    id: str
    state: FeedState
    mode: Mode = Mode.ALL
    sink_mode: SinkMode = SinkMode.UPSERT
    source: str = ""
    sink: str = ""
    start_ts: int = 0
    target_ts: int | None = None
    checkpoint_ts: int = 0
    #: commit time at the checkpoint, Unix seconds; 0 if not known
    checkpoint_time: float = 0.0
    resolved_ts: int = 0
    #: the position from which the source is read, in its own format (binlog.000012:4567, 0/16B3748); the source's log
    #: before it is no longer needed. Empty: not known yet, all of it may be needed
    source_position: str = ""
    #: the log's Ts of the same position; 0: not known yet
    log_ts: int = Field(0, exclude=True)
    log_position: str = Field("", exclude=True)
    lag_seconds: float | None = None
    lag: LagStages = LagStages()
    blocked_by: str = ""
    error: RunningError | None = None
    warning: RunningError | None = None
    #: the unit that the worker runs now, and its capture; None before the first and between two
    unit: Unit | None = None
    worker: str = ""
    #: the snapshot: rows expected (an estimate), and rows handed to the sink
    rows_total: int = 0
    rows_done: int = 0
    #: bytes of the snapshot's files; and the seconds left at the speed so far, None if unknown
    bytes_done: int = 0
    seconds_left: float | None = None
    #: row changes written to the sink since the answering owner began to count
    changes: int = 0
    #: Unix time of the last change of state; 0: as it was created
    state_since: float = 0.0
    #: empty in an answer without tables
    tables: tuple[TableView, ...] = ()
    #: number of tables; 0 from a server of an earlier version
    table_count: int = 0
    #: number of table spans by capture, of those that have one
    span_counts: Mapping[str, int] = Field(default_factory=dict)
    #: tables that checkpoint, lag, target and sync points leave out
    held: tuple[HeldView, ...] = ()
    #: tables being copied again
    resyncs: tuple[ResyncView, ...] = ()
    #: tables that a changed filter wants, and that are yet to be taken in with their rows
    joining: tuple[str, ...] = ()
    #: the newest tables that have left by a changed filter, and are still at the sink
    left: tuple[LeftView, ...] = ()
    #: tables whose copies the changefeed needs, as its position was lost
    lost_tables: int = 0
    #: the newest Ts at which all tables of the sink were at once, and their versions there
    sync_point: SyncPoint | None = None
    #: the newest comparison by schedule
    last_diff: LastDiff | None = None
    #: readers of its change log, by name
    subscriptions: tuple[SubscriptionView, ...] = ()
    #: errors and warnings that the answering owner has seen, oldest first
    history: tuple[RunningError, ...] = ()
    #: how often a span, a processor or the owner's part of it crashed and was restarted, on the captures that are
    #: present, and the last of these crashes
    crashes: int = 0
    last_crash: RunningError | None = None
    #: findings during its creation, line by line; only in the answer to that
    notices: tuple[str, ...] = ()


class MaintainedView(View):
    """The effect of maintenance on a table: its data files and their bytes before and now, how many files were
    rewritten and removed, and how many old versions were given up."""

    changefeed_id: str
    table: str
    files_before: int
    files: int
    bytes_before: int
    bytes: int
    joined: int
    removed: int
    expired: int


class TableFilesView(View):
    """The data files of a table that readers see now. ``rows``: those that the files contain, of which
    ``deleted_rows`` are deleted (None: not known). ``compacted_time``: when files were last joined or rewritten, Unix
    seconds; 0: never, or not known."""

    changefeed_id: str
    table: str
    files: int
    bytes: int
    rows: int
    deleted_rows: int | None
    compacted_time: float


class OwnerMoveView(View):
    """``capture``: the one that is to own the changefeed."""

    changefeed_id: str
    capture: str


class MoveView(View):
    """The ``spans`` of a table that are moving to a capture."""

    changefeed_id: str
    table: str
    capture: str
    spans: int


class CutView(View):
    """A table that has ``spans`` spans and will get ``wanted``; `tables` shows when it has them."""

    changefeed_id: str
    table: str
    spans: int
    wanted: int


class RotationView(View):
    """The progress of a secret key's rotation. ``lacking``: members that do not have the key ``fingerprint`` yet;
    ``resealed``: changefeeds whose secrets were just sealed with it."""

    fingerprint: str
    lacking: tuple[str, ...] = ()
    resealed: int = 0
    done: bool = False


class DrainView(View):
    """``remaining``: table spans, workers and changefeeds of its own that the capture still has; repeat until 0."""

    capture: str
    remaining: int


class ResignView(View):
    """The previous owner, and the new one."""

    capture: str
    owner: str
