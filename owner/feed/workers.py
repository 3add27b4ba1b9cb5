"""Worker manager of one changefeed: which capture runs which unit of which source.

          order sent               first status               unit's end
 (none) ─────────────► creating ─────────────────► online ─────────────────► finished ──► next unit
    ▲                     │ 6 s                       │ capture lost, stopped, failed
    └─────────────────────┴───────── offline ◄────────┘

``STAGES`` is the whole machine. A check costs nothing here, so it is made in every tick instead of every 30 s: a lost
worker is replaced in the tick that sees it lost. A worker is never stopped because something about it is not known yet,
only because it is no longer the newest.

**Two workers must never be effective at once**, and this manager alone cannot hold that: a capture that is cut off
may continue for a while. What holds it is the epoch in each order: a unit writes ``UnitRecord`` and moves ``LogHead``
only in transactions that compare them, and refuses when the record carries a newer epoch. Here epochs only have to
grow and never to be given twice, over owners too: each owner counts from its own revision (``first_epoch``), as the
last order of the one before may have reached a capture that nobody can hear now.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from owner.feed.state import FENCED
from owner.progress.units import SEQUENCES, current_unit
from owner.settings import WorkerSettings
from reactor.errors import Scope
from reactor.ids import CaptureId
from reactor.messages import StartWorker, StopWorker, WorkerStage, WorkerStatus
from reactor.records.changefeed import Mode, RunningError, Unit, UnitRecord
from reactor.transitions import History

#: more orders than one owner gives for one changefeed, at one in six seconds
_EPOCHS_PER_OWNER = 100_000


def first_epoch(owner_revision: int) -> int:
    """Return the first epoch of this owner's orders: above those of every previous owner."""
    return owner_revision * _EPOCHS_PER_OWNER


class Stage(StrEnum):
    CREATING = "creating"
    ONLINE = "online"
    FINISHED = "finished"
    OFFLINE = "offline"


class Fate(StrEnum):
    """The fate of a worker: what its capture reports, or that the capture is gone."""

    RUNNING = "says running"
    FINISHED = "says finished"
    STOPPED = "says stopped"
    ERROR = "says error"
    FORGOTTEN = "knows nothing of it"
    LEASE_OVER = "lease over"


#: (stage, fate) → stage. A new order, which ``CREATING`` begins with, is not a transition but another worker
STAGES: dict[tuple[Stage, Fate], Stage] = {
    **{(stage, Fate.RUNNING): Stage.ONLINE for stage in Stage},
    **{(stage, Fate.FINISHED): Stage.FINISHED for stage in Stage},
    **{(stage, fate): Stage.OFFLINE for stage in Stage for fate in (Fate.STOPPED, Fate.ERROR)},
    (Stage.ONLINE, Fate.FORGOTTEN): Stage.OFFLINE,
    (Stage.CREATING, Fate.LEASE_OVER): Stage.OFFLINE,
    (Stage.ONLINE, Fate.LEASE_OVER): Stage.OFFLINE,
    (Stage.OFFLINE, Fate.LEASE_OVER): Stage.OFFLINE,
}
_FATES = {
    WorkerStage.RUNNING: Fate.RUNNING,
    WorkerStage.FINISHED: Fate.FINISHED,
    WorkerStage.STOPPED: Fate.STOPPED,
    WorkerStage.ERROR: Fate.ERROR,
}


@dataclass(frozen=True, slots=True)
class Worker:
    """One order and its outcome. ``since``: when it entered its stage."""

    source: str
    unit: Unit
    capture: CaptureId
    epoch: int
    stage: Stage
    since: float
    rows_done: int = 0
    rows_total: int = 0
    bytes_done: int = 0
    #: rows done before it started; seconds left, None if unknown
    rows_before: int = 0
    seconds_left: float | None = None
    #: the transient problem that it waits for
    trouble: RunningError | None = None
    #: its capture has a fault of its own
    is_unfit: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """The captures on which a worker may run. ``loads``: workers of all changefeeds by capture. ``leaving``: captures
    that must be emptied."""

    serving: tuple[CaptureId, ...]
    loads: Mapping[CaptureId, int]
    leaving: frozenset[CaptureId] = frozenset()

    def choose(self, *, stay_on: CaptureId | None, avoid: CaptureId | None) -> CaptureId | None:
        """Return the capture where it was, else the least loaded, of equal ones the smallest id. ``avoid`` only if
        there is a choice."""
        wanted = [capture for capture in self.serving if capture != avoid] or list(self.serving)
        if stay_on in wanted:
            return stay_on
        return min(wanted, key=lambda capture: (self.loads.get(capture, 0), capture), default=None)


@dataclass(frozen=True, slots=True)
class WorkerOrder:
    capture: CaptureId
    body: StartWorker | StopWorker


class WorkerManager:
    """``epoch_floor``: orders have larger epochs; ``first_epoch``, or the last one of an earlier run under this
    owner."""

    def __init__(self, mode: Mode, settings: WorkerSettings, *, epoch_floor: int = 0) -> None:
        self.workers: dict[str, Worker] = {}
        self.epoch_floor = epoch_floor
        self._mode = mode
        self._settings = settings
        self._reported: dict[CaptureId, WorkerStatus] = {}
        self._errors: list[RunningError] = []
        self._stops: list[WorkerOrder] = []
        self._steps = History("worker")

    def handle_report(self, capture: CaptureId, status: WorkerStatus | None, now: float) -> None:
        """Process one heartbeat answer of ``capture``. Workers of old epochs are ordered to stop, and change
        nothing."""
        if status is None:
            self._reported.pop(capture, None)
            self._lose_online(capture, now)
            return
        self._reported[capture] = status
        self.epoch_floor = max(self.epoch_floor, status.epoch)
        worker = self.workers.get(status.source)
        if worker is None:
            return
        if (worker.capture, worker.epoch) == (capture, status.epoch):
            self.workers[status.source] = self._after_status(worker, status, now)
        elif status.epoch < worker.epoch and status.stage is WorkerStage.RUNNING and capture != worker.capture:
            self._stops.append(WorkerOrder(capture, StopWorker(status.source, status.epoch)))

    def handle_alive(self, alive: Iterable[CaptureId], now: float) -> None:
        """Set workers of captures whose lease has expired offline."""
        present = set(alive)
        for capture in [capture for capture in self._reported if capture not in present]:
            del self._reported[capture]
        for source, worker in self.workers.items():
            if worker.capture not in present and worker.stage is not Stage.FINISHED:
                self.workers[source] = self._enter(worker, Fate.LEASE_OVER, now)

    def count_on(self, capture: CaptureId) -> int:
        """Return the number of workers that are, or are about to be, on ``capture``."""
        placed = [known for known in self.workers.values() if known.stage in (Stage.CREATING, Stage.ONLINE)]
        if any(known.capture == capture for known in placed):
            return 1
        reported = self._reported.get(capture)
        return int(reported is not None and reported.stage is WorkerStage.RUNNING)

    @property
    def has_errors(self) -> bool:
        """Whether the changefeed cannot continue: nothing is started before its state has been decided."""
        return bool(self._errors)

    def take_errors(self) -> list[RunningError]:
        errors, self._errors = self._errors, []
        return errors

    def tick(
        self, sources: Iterable[str], records: Mapping[str, UnitRecord], placement: Placement, now: float
    ) -> list[WorkerOrder]:
        """Return the orders that make every source's current unit run on one capture."""
        orders, self._stops = self._stops, []
        for source in sources:
            orders += self._tick_source(source, records.get(source), placement, now)
        return orders

    def next_check_at(self) -> float:
        """Return when a worker that is being created will have taken too long."""
        creating = [worker.since for worker in self.workers.values() if worker.stage is Stage.CREATING]
        return min(creating, default=float("inf")) + self._settings.creating_timeout_s

    def _tick_source(
        self, source: str, record: UnitRecord | None, placement: Placement, now: float
    ) -> list[WorkerOrder]:
        if record is not None:
            self.epoch_floor = max(self.epoch_floor, record.epoch)
        unit = current_unit(self._mode, record)
        if unit is None:
            return []
        worker = self.workers.get(source) or self._take_over(source, unit, record, now)
        if worker is not None and worker.unit is unit and self._runs_as_expected(worker, now):
            return self._move_away(worker, placement, now)
        return self._create(source, unit, worker, placement, now)

    def _move_away(self, worker: Worker, placement: Placement, now: float) -> list[WorkerOrder]:
        """Move it from a leaving capture to another; the newer epoch fences the old worker."""
        if worker.capture not in placement.leaving or worker.stage is not Stage.ONLINE or not placement.serving:
            return []
        stop = WorkerOrder(worker.capture, StopWorker(worker.source, worker.epoch))
        return [stop, *self._create(worker.source, worker.unit, worker, placement, now)]

    def _runs_as_expected(self, worker: Worker, now: float) -> bool:
        """A finished worker's record is on its way; if it does not arrive, the unit is run again."""
        if worker.stage in (Stage.CREATING, Stage.FINISHED):
            return now - worker.since < self._settings.creating_timeout_s
        return worker.stage is Stage.ONLINE

    def _create(
        self, source: str, unit: Unit, old: Worker | None, placement: Placement, now: float
    ) -> list[WorkerOrder]:
        is_avoided = old is not None and (old.stage is Stage.CREATING or old.is_unfit)
        stay_on = old.capture if old and not is_avoided else None
        capture = placement.choose(stay_on=stay_on, avoid=old.capture if old and is_avoided else None)
        if capture is None:
            return []
        self.epoch_floor += 1
        assert old is None or old.epoch < self.epoch_floor, "a new order fences the old one off"
        assert all(status.epoch < self.epoch_floor for status in self._reported.values()), "and whatever runs anywhere"
        self._steps.note(old.stage if old else "none", f"order {self.epoch_floor} to {capture}", Stage.CREATING)
        self.workers[source] = Worker(source, unit, capture, self.epoch_floor, Stage.CREATING, now)
        return [WorkerOrder(capture, StartWorker(source, unit, self.epoch_floor))]

    def _take_over(self, source: str, unit: Unit, record: UnitRecord | None, now: float) -> Worker | None:
        """Return the newest worker that an earlier owner left running, if it runs the unit that is due."""
        running = [
            (status.epoch, capture, status)
            for capture, status in sorted(self._reported.items())
            if status.source == source and status.stage is WorkerStage.RUNNING
        ]
        if not running:
            return None
        epoch, capture, status = max(running, key=lambda item: item[:2])
        if status.unit is not unit or epoch < (record.epoch if record else 0):
            return None
        worker = Worker(source, unit, capture, epoch, Stage.ONLINE, now, rows_before=status.rows_done)
        self.workers[source] = worker = _with_progress(worker, status, now)
        return worker

    def _after_status(self, worker: Worker, status: WorkerStatus, now: float) -> Worker:
        trouble = status.error if status.stage is WorkerStage.RUNNING else None
        is_new = worker.stage is Stage.CREATING
        worker = replace(worker, trouble=trouble, rows_before=status.rows_done if is_new else worker.rows_before)
        if status.stage is WorkerStage.ERROR and worker.stage is not Stage.OFFLINE:
            self._note_error(status.error)
            worker = replace(worker, is_unfit=_is_of_capture(status.error))
        return self._enter(_with_progress(worker, status, now), _FATES[status.stage], now)

    def _enter(self, worker: Worker, fate: Fate, now: float) -> Worker:
        """:raises InvalidTransitionError: its stage has no row for it."""
        stage = STAGES.get((worker.stage, fate))
        if stage is None:
            raise self._steps.invalid(f"{worker.stage} under order {worker.epoch}", fate)
        if stage is worker.stage:
            return worker
        self._steps.note(worker.stage, f"{worker.capture} {fate}, order {worker.epoch}", stage)
        return replace(worker, stage=stage, since=now, trouble=worker.trouble if stage is Stage.ONLINE else None)

    def _note_error(self, error: RunningError | None) -> None:
        """A fenced worker is no error of the changefeed: one with a newer epoch replaces it at once. Neither is a fault
        of its capture: one on another capture does."""
        if error is not None and error.code not in FENCED and not _is_of_capture(error):
            self._errors.append(error)

    def _lose_online(self, capture: CaptureId, now: float) -> None:
        """Set offline: its capture no longer knows it. One being created may not have received its order yet."""
        for source, worker in self.workers.items():
            if worker.capture == capture and worker.stage is Stage.ONLINE:
                self.workers[source] = self._enter(worker, Fate.FORGOTTEN, now)

    def validate(self) -> None:
        """Assert the invariants between two ticks."""
        for source, worker in self.workers.items():
            assert worker.source == source, f"worker {worker} is at {source}"
            assert worker.unit in SEQUENCES[self._mode], f"worker {worker} runs no unit of mode {self._mode}"
            assert worker.epoch <= self.epoch_floor, f"order {worker.epoch} is not below {self.epoch_floor}"
            assert worker.trouble is None or worker.stage is Stage.ONLINE, f"worker {worker} waits, but does not run"
        newest = max((status.epoch for status in self._reported.values()), default=0)
        assert newest <= self.epoch_floor, f"epoch {newest} is reported, the next order has {self.epoch_floor + 1}"


def _is_of_capture(error: RunningError | None) -> bool:
    return error is not None and error.scope is Scope.CAPTURE


def _with_progress(worker: Worker, status: WorkerStatus, now: float) -> Worker:
    """Estimate the time left from the average speed so far."""
    done, seconds = status.rows_done - worker.rows_before, now - worker.since
    left = max(status.rows_total - status.rows_done, 0)
    return replace(
        worker,
        rows_done=status.rows_done,
        rows_total=status.rows_total,
        bytes_done=status.bytes_done,
        seconds_left=left * seconds / done if done > 0 else None,
    )
