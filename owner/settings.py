"""Settings of the owner: intervals, timeouts and concurrency limits."""

from dataclasses import dataclass, field

from reactor.restarts import RestartPolicy


@dataclass(frozen=True, slots=True)
class BackoffSettings:
    """Delays between two runs of a failing changefeed (``owner.feed.backoff``)."""

    initial_s: float = 10.0
    factor: float = 2.0
    max_s: float = 600.0
    jitter: float = 0.1


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """``full_heartbeat_s``: interval of full answers from captures, which limits the effect of a lost message. Of those
    that count their messages, while none is missing: ``whole_heartbeat_s``.

    With many spans they are requested less often: at most ``full_spans_per_s`` in total and ``full_spans_per_round`` at
    once. With many changefeeds, heartbeats are sent less often, too: about ``beats_per_s`` in total, but of each
    changefeed to each capture one in ``beat_max_s`` at least, on average. Captures whose reports are complete
    report changes by themselves: they get about ``quiet_beats_per_s``, and one in ``whole_heartbeat_s``.
    ``add_table_batch_size``: spans assigned to each serving capture at once.
    """

    heartbeat_s: float = 0.5
    full_heartbeat_s: float = 2.0
    whole_heartbeat_s: float = 60.0
    beats_per_s: int = 50
    beat_max_s: float = 20.0
    quiet_beats_per_s: int = 10
    full_spans_per_s: int = 20_000
    full_spans_per_round: int = 2_000
    max_task_concurrency: int = 10
    add_table_batch_size: int = 50
    check_balance_interval_s: float = 60.0


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """``creating_timeout_s``: two heartbeat intervals of the worker protocol (``docs/states/worker.md``)."""

    creating_timeout_s: float = 6.0


@dataclass(frozen=True, slots=True)
class SyncPointSettings:
    """``kept``: how many points of a changefeed stay in etcd."""

    read_timeout_s: float = 30.0
    kept: int = 24


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """``settle_s``: how long a capture must have served before changefeeds move to it, or from it, to even captures
    out; at most ``evened_at_once`` at a time."""

    settle_s: float = 5.0
    evened_at_once: int = 10


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    """``wall_offset_s``: Unix time minus the clock that ticks are given.

    ``status_interval_s``: minimum interval between writes of a changefeed's status. With many changefeeds, their
    statuses are written together: at most ``statuses_per_s`` of them, but each within ``status_interval_max_s``.
    """

    version: str = "0.1.0"
    backoff: BackoffSettings = field(default_factory=BackoffSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    workers: WorkerSettings = field(default_factory=WorkerSettings)
    sync_points: SyncPointSettings = field(default_factory=SyncPointSettings)
    owners: PlacementSettings = field(default_factory=PlacementSettings)
    #: of the owner's part of each changefeed
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    status_interval_s: float = 0.2
    status_interval_max_s: float = 1.0
    statuses_per_s: int = 80
    #: unchanged positions at a later time are written at this interval only
    status_time_interval_s: float = 5.0
    #: a changefeed without progress for this long is in state warning
    standstill_s: float = 120.0
    remove_retry_s: float = 2.0
    remove_patience_s: float = 15.0
    wall_offset_s: float = 0.0
