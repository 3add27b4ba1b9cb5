"""Views of changefeeds: fills ``reactor.views`` from the records and the owner's own knowledge.

``wall``: Unix time of the requesting tick.
"""

from dataclasses import dataclass, replace

from owner import jobs, table_views
from owner.errors import BrokenRecordError
from owner.feed import blocking
from owner.feed.backoff import uniform_of
from owner.feed.changefeed import Changefeed
from owner.feed.run import Run
from owner.feed.site import Site
from owner.feed.state import is_running
from owner.feed.workers import Stage
from owner.progress.barrier import Limits
from owner.progress.facts import Facts
from owner.progress.units import SOURCE
from owner.settings import OwnerSettings
from reactor.ids import CaptureId, Ts
from reactor.records.changefeed import (
    ChangefeedInfo,
    ChangefeedStatus,
    FeedState,
    Mode,
    RunningError,
    SinkMode,
    Unit,
    UnitRecord,
    UnitStage,
)
from reactor.records.subscription import Subscription
from reactor.state import ChangefeedState
from reactor.views import ChangefeedView, LagStages, SubscriptionView, TableView


def view(
    changefeed: Changefeed,
    feed: ChangefeedState,
    info: ChangefeedInfo,
    now: float,
    *,
    wall: float,
    with_tables: bool = True,
) -> ChangefeedView:
    """Return ``changefeed`` over the records of ``feed``. Without its tables it takes a hundredth of the time, where
    there are thousands."""
    facts = Facts.of(feed, info)
    facts = replace(facts, status=changefeed.latest or facts.status)
    limits = changefeed.limits(facts, now)
    work = _work(changefeed.run, facts)
    lag = _lag(facts, limits, wall)
    log_ts, log_position = _log_place(facts)
    held = table_views.held_tables(facts)
    return ChangefeedView(
        id=info.id,
        state=info.state,
        mode=info.mode,
        sink_mode=info.sink_mode,
        source=info.source.masked,
        sink=info.sink.masked,
        start_ts=info.start_ts,
        target_ts=info.target_ts,
        checkpoint_ts=facts.status.checkpoint_ts,
        checkpoint_time=facts.status.checkpoint_time,
        resolved_ts=max(facts.head.resolved_ts if facts.head else 0, facts.status.resolved_ts),
        log_ts=log_ts,
        log_position=log_position,
        lag_seconds=lag.source + (lag.flush or 0.0) if lag.source is not None else None,
        lag=lag,
        blocked_by=_blocked_by(changefeed, feed, facts, limits, now),
        error=info.error,
        warning=info.warning,
        unit=work.unit,
        worker=work.worker,
        rows_total=work.rows_total,
        rows_done=work.rows_done,
        bytes_done=work.bytes_done,
        seconds_left=work.seconds_left,
        tables=table_views.all_tables(changefeed.run, facts, held) if with_tables else (),
        table_count=len(facts.record.tables) if facts.record else 0,
        span_counts=table_views.span_counts(changefeed.run),
        held=tuple(sorted(held.values(), key=lambda table: table.table)),
        resyncs=tuple(table_views.resync_view(facts, facts.resyncs[id]) for id in sorted(facts.resyncs)),
        joining=tuple(f"{schema}.{name}" for schema, name in (facts.record.joining if facts.record else ())),
        left=table_views.left_tables(facts),
        lost_tables=len(facts.lost),
        changes=changefeed.run.coordinator.rows_flushed if changefeed.run else 0,
        state_since=info.state_since,
        sync_point=facts.sync_points[-1] if facts.sync_points else None,
        last_diff=feed.last_diff,
        subscriptions=tuple(_subscription(feed.subscriptions[name]) for name in sorted(feed.subscriptions)),
        history=tuple(changefeed.machine.history),
        crashes=sum(position.crashes for position in feed.positions.values()),
        last_crash=_last_crash(feed),
    )


def _last_crash(feed: ChangefeedState) -> RunningError | None:
    crashes = [position.last_crash for position in feed.positions.values() if position.last_crash is not None]
    return max(crashes, key=lambda crash: crash.time, default=None)


def tables(job: jobs.Tables, changefeed: Changefeed, feed: ChangefeedState) -> tuple[TableView, ...]:
    """Return the tables of ``changefeed`` that the job asks for."""
    if feed.info is None:
        return ()
    facts = Facts.of(feed, feed.info)
    return table_views.asked_for(job, changefeed.run, replace(facts, status=changefeed.latest or facts.status))


def stored(feed: ChangefeedState, *, wall: float, with_tables: bool = True) -> ChangefeedView:
    """Return the view of a changefeed that no owner has taken up here: what its records say."""
    if feed.info is None:
        why = "; ".join(feed.broken[key] for key in sorted(feed.broken))
        return unreadable(feed, f"{why}; repair or delete its keys")
    settings = OwnerSettings(wall_offset_s=wall)
    part = Changefeed(feed.id, Site(CaptureId(""), 0, "", ""), settings, uniform_of(feed.id))
    return view(part, feed, feed.info, 0.0, wall=wall, with_tables=with_tables)


def unreadable(feed: ChangefeedState, why: str) -> ChangefeedView:
    """Return the view of a changefeed whose records cannot be read."""
    info, status = feed.info, feed.status or ChangefeedStatus()
    return ChangefeedView(
        id=feed.id,
        state=info.state if info else FeedState.FAILED,
        mode=info.mode if info else Mode.ALL,
        sink_mode=info.sink_mode if info else SinkMode.UPSERT,
        source=info.source.masked if info else "",
        sink=info.sink.masked if info else "",
        start_ts=info.start_ts if info else 0,
        target_ts=info.target_ts if info else None,
        checkpoint_ts=status.checkpoint_ts,
        checkpoint_time=status.checkpoint_time,
        resolved_ts=status.resolved_ts,
        blocked_by=why,
        error=RunningError(code=BrokenRecordError.code, message=why, retryable=False),
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """The running unit, its capture, and the snapshot, by the newest report of worker or record."""

    unit: Unit | None
    worker: str
    rows_done: int
    rows_total: int
    bytes_done: int
    seconds_left: float | None = None


def _work(run: Run | None, facts: Facts) -> _Work:
    record = facts.record or UnitRecord(unit=Unit.DUMP, stage=UnitStage.RUNNING)
    done = record.rows_done, record.rows_total, record.bytes_done
    worker = run.workers.workers.get(SOURCE) if run else None
    if worker is None or worker.stage is Stage.OFFLINE:
        return _Work(None, "", *done)
    if worker.unit is Unit.SYNC:
        return _Work(worker.unit, worker.capture, *done)
    rows_done, rows_total = max(worker.rows_done, record.rows_done), max(worker.rows_total, record.rows_total)
    bytes_done = max(worker.bytes_done, record.bytes_done)
    left_s = worker.seconds_left if worker.unit is Unit.DUMP else None
    return _Work(worker.unit, worker.capture, rows_done, rows_total, bytes_done, left_s)


def _log_place(facts: Facts) -> tuple[Ts, str]:
    """Return the log's position. A log that has not begun will begin where the snapshot was taken; it is unknown during
    the snapshot."""
    if facts.head is not None:
        return facts.head.resolved_ts, facts.head.position
    return (facts.record.start_ts, facts.record.start_position) if facts.record else (Ts(0), "")


def _lag(facts: Facts, limits: Limits, wall: float) -> LagStages:
    head, status = facts.head, facts.status
    if head is None or not head.resolved_time:
        return LagStages()
    source = max(0.0, wall - head.resolved_time)
    if status.checkpoint_ts >= head.resolved_ts:
        return LagStages(source=source, flush=0.0, barrier=0.0)
    if not status.checkpoint_time:
        return LagStages(source=source)
    flush = max(0.0, head.resolved_time - status.checkpoint_time)
    return LagStages(source=source, flush=flush, barrier=flush if status.checkpoint_ts >= limits.lowest_ts else 0.0)


def _subscription(item: Subscription) -> SubscriptionView:
    return SubscriptionView(name=item.name, table=item.table, ts=item.ts, expires_at=item.expires_at)


def _blocked_by(changefeed: Changefeed, feed: ChangefeedState, facts: Facts, limits: Limits, now: float) -> str:
    """Return the first thing that prevents progress; empty if nothing does."""
    info = facts.info
    if feed.broken:
        return "; ".join(feed.broken[key] for key in sorted(feed.broken))
    match info.state:
        case FeedState.FINISHED:
            return ""
        case FeedState.STOPPED:
            return "paused by an operator"
        case FeedState.REMOVED:
            return changefeed.clean_up.error or "being removed"
        case FeedState.PENDING | FeedState.FAILED:
            return _error_text(info, changefeed.machine.retry_at, now)
    assert is_running(info.state), "every other state is answered above"
    run = changefeed.run
    if run is None:
        return "starting"
    return blocking.blocked_by(run, facts, limits, now)


def _error_text(info: ChangefeedInfo, retry_at: float | None, now: float) -> str:
    text = f"{info.error.code}: {info.error.message}" if info.error else "an error"
    return text if retry_at is None else f"{text} (tries again in {max(0.0, retry_at - now):.0f} s)"
