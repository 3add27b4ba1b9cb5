"""Views of a changefeed for people: what its owner knows, and the JSON of the HTTP API.

The one promise: what does not move says why (``blocked_by``). URIs are masked. Times are Unix seconds and lags are
seconds.
"""

from pydantic import BaseModel, ConfigDict, Field

from reactor.records.changefeed import FeedState, Mode, RunningError, SinkMode, Unit
from reactor.records.sync_point import SyncPoint


class View(BaseModel):
    """Root of all answers. A client may be older or newer than its server: unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class LagStages(View):
    """Where the time between a commit and its visibility goes, in seconds; None where not known. ``source``: age of the
    newest thing read; ``flush``: what is read but not yet in the sink, of which ``barrier`` is because nobody may write
    it."""

    source: float | None = None
    log: float | None = None
    flush: float | None = None
    sink: float | None = None
    barrier: float | None = None


class SpanView(View):
    """One table span and the capture that replicates it (empty: nobody at the moment)."""

    span: str
    capture: str = ""
    state: str = ""
    checkpoint_ts: int = 0
    resolved_ts: int = 0


class HeldView(View):
    """A table that cannot continue while the others do. ``ts``: everything at or below it is in the sink. ``stage``:
    held, tried (again, and catching up), lost (its part of the change log is gone). ``retry_at``: Unix seconds, 0: when
    an operator resumes the changefeed. ``renamed_to``: its name at the source, where that is another one by now."""

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


class TableView(View):
    """One replicated table. ``held``: why it is out of the changefeed's checkpoint; None where it flows.
    ``waiting_for``: what it needs before it can continue; empty where nothing is known."""

    table: str
    table_id: int
    key: tuple[str, ...] = ()
    checkpoint_ts: int = 0
    resolved_ts: int = 0
    spans: tuple[SpanView, ...] = ()
    held: HeldView | None = None
    waiting_for: str = ""


class ChangefeedView(View):
    """A changefeed as ``changefeed query`` shows it. ``blocked_by`` names what holds it up; empty when nothing does."""

    id: str
    state: FeedState
    mode: Mode = Mode.ALL
    sink_mode: SinkMode = SinkMode.UPSERT
    source: str = ""
    sink: str = ""
    start_ts: int = 0
    target_ts: int | None = None
    checkpoint_ts: int = 0
    #: commit time at the checkpoint, Unix seconds; 0 when not known
    checkpoint_time: float = 0.0
    resolved_ts: int = 0
    #: where the source is read on, in its own words (binlog.000012:4567, 0/16B3748): its log before that is not needed
    #: any more. Empty: not known yet, all of it may be needed
    source_position: str = ""
    #: the same as the log has it, with what else the source reported of that place; 0: not known yet
    log_ts: int = Field(0, exclude=True)
    log_position: str = Field("", exclude=True)
    lag_seconds: float | None = None
    lag: LagStages = LagStages()
    blocked_by: str = ""
    error: RunningError | None = None
    warning: RunningError | None = None
    #: what the worker runs now, and on which capture; None before the first and between two
    unit: Unit | None = None
    worker: str = ""
    #: the snapshot: rows expected (an estimate), and rows in the sink's hands
    rows_total: int = 0
    rows_done: int = 0
    #: of the snapshot's files; and how long it will take at the speed it had so far, None where that cannot be said
    bytes_done: int = 0
    seconds_left: float | None = None
    #: row changes written to the sink since the answering owner began to count
    changes: int = 0
    #: Unix time of the last change of state; 0: as it was created
    state_since: float = 0.0
    tables: tuple[TableView, ...] = ()
    #: tables that checkpoint, lag, target and sync points leave out
    held: tuple[HeldView, ...] = ()
    #: the newest Ts at which all tables of the sink were at once, and their versions there
    sync_point: SyncPoint | None = None
    #: errors and warnings that the answering owner has seen, oldest first
    history: tuple[RunningError, ...] = ()
    #: how often a span, a processor or the owner's part of it crashed and was started again, on the captures that are
    #: there, and the last of these
    crashes: int = 0
    last_crash: RunningError | None = None
    #: what was found out while it was created, line by line; only in the answer to that
    notices: tuple[str, ...] = ()
