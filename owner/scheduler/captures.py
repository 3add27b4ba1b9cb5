"""Scheduler captures: which captures have answered, which are leaving, and which get a heartbeat.

    Uninitialized ──first answer──► Initialized ──"I am stopping"──► Stopping

The scheduler starts when every capture has answered once (what they hold is then known), and it continues with those
that have when a new one joins later. A capture whose processor began again answers under another processor epoch: what
it held is gone, which is reported as ``lost``. Never back: a stopping capture only ever disappears.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from owner.scheduler.answers import Answers
from owner.scheduler.heartbeat_budget import HeartbeatBudget
from owner.settings import SchedulerSettings
from reactor.ids import CaptureId, TableSpan
from reactor.messages import Barrier, Heartbeat, HeartbeatResponse, Liveness, SpanStatus, in_parts

#: capture → the spans it has
Held = Callable[[CaptureId], Collection[TableSpan]]


class CaptureStatus(StrEnum):
    UNINITIALIZED = "uninitialized"
    INITIALIZED = "initialized"
    STOPPING = "stopping"


@dataclass(slots=True)
class Capture:
    """``epoch``: the run of its processor, empty until it has answered."""

    id: CaptureId
    status: CaptureStatus = CaptureStatus.UNINITIALIZED
    epoch: str = ""
    heartbeat_at: float = float("-inf")
    full_heartbeat_at: float = float("-inf")


class CaptureManager:
    """Bookkeeping of captures and their heartbeats."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.captures: dict[CaptureId, Capture] = {}
        self.is_initialized = False
        self._settings = settings
        self._answers = Answers()
        self._first_answers: dict[CaptureId, dict[TableSpan, SpanStatus]] = {}
        self._lost: list[CaptureId] = []
        self._barrier_sent = Barrier()
        self._is_full_late = False

    @property
    def are_all_initialized(self) -> bool:
        """Every capture has answered (vacuously false without any)."""
        statuses = [capture.status for capture in self.captures.values()]
        return bool(statuses) and CaptureStatus.UNINITIALIZED not in statuses

    def statuses(self) -> dict[CaptureId, CaptureStatus]:
        return {known.id: known.status for known in self.captures.values()}

    def serving(self) -> list[CaptureId]:
        """Captures that may be given work, in id order."""
        return sorted(known.id for known in self.captures.values() if known.status is CaptureStatus.INITIALIZED)

    def leaving(self) -> frozenset[CaptureId]:
        """Captures that want to be rid of what they have."""
        return frozenset(known.id for known in self.captures.values() if known.status is CaptureStatus.STOPPING)

    def is_stopping(self, capture: CaptureId) -> bool:
        known = self.captures.get(capture)
        return known is not None and known.status is CaptureStatus.STOPPING

    def epoch_of(self, capture: CaptureId) -> str:
        known = self.captures.get(capture)
        return known.epoch if known else ""

    def handle_alive(self, alive: Iterable[CaptureId]) -> None:
        """Meet new captures and lose those whose lease is over."""
        present = set(alive)
        if present == self.captures.keys():
            return
        for capture in sorted(self.captures.keys() - present):
            del self.captures[capture]
            self._first_answers.pop(capture, None)
            self._answers.forget(capture)
            self._lost.append(capture)
        for capture in sorted(present - self.captures.keys()):
            self.captures[capture] = Capture(capture)

    def handle_response(
        self, sender: CaptureId, epoch: str, response: HeartbeatResponse
    ) -> tuple[SpanStatus, ...] | None:
        """Note who answered as which run; what it says of spans, None while parts of it are missing.

        Messages of one capture come in order, so the last epoch is the newest.
        """
        capture = self.captures[sender]
        is_known = capture.epoch == epoch
        statuses = response.statuses if is_known else self._answers.take(sender, epoch, response)
        if statuses is None:
            return None
        if not is_known:
            if capture.epoch:
                self._lost.append(sender)
                self._first_answers.pop(sender, None)
            capture.epoch = epoch
        if capture.status is CaptureStatus.UNINITIALIZED:
            capture.status = CaptureStatus.INITIALIZED
        if response.liveness is Liveness.STOPPING:
            capture.status = CaptureStatus.STOPPING
        self.note_statuses(sender, statuses)
        return statuses

    def note_statuses(self, sender: CaptureId, statuses: Iterable[SpanStatus]) -> None:
        """Until the last capture has answered, the newest word of the others on each span is kept."""
        if self.is_initialized or self.captures[sender].status is CaptureStatus.UNINITIALIZED:
            return
        self._first_answers.setdefault(sender, {}).update((status.span, status) for status in statuses)

    def take_lost(self) -> list[CaptureId]:
        """Captures whose spans are gone, once; before the start nobody was known to have any."""
        lost, self._lost = self._lost, []
        return lost if self.is_initialized else []

    def take_initial(self) -> dict[CaptureId, tuple[SpanStatus, ...]] | None:
        """All first answers, once: when the last capture has answered for the first time."""
        if self.is_initialized or not self.are_all_initialized:
            return None
        self.is_initialized = True
        initial, self._first_answers = self._first_answers, {}
        return {capture: tuple(statuses.values()) for capture, statuses in initial.items()}

    def heartbeats(
        self, held: Held, barrier: Barrier, now: float, *, drain: CaptureId | None, heartbeat_budget: HeartbeatBudget
    ) -> list[tuple[CaptureId, str, Heartbeat]]:
        """Those that are due at ``now`` with the processor epoch to put on them; a changed barrier makes all due.

        An empty epoch asks for a full answer. ``held``: what each capture should have.
        """
        is_urgent, self._barrier_sent = barrier != self._barrier_sent, barrier
        full = self._due_fully(held, heartbeat_budget, now)
        due: list[tuple[CaptureId, str, Heartbeat]] = []
        for capture in self.captures.values():
            is_full = capture.id in full
            if not (is_urgent or is_full or now - capture.heartbeat_at >= self._settings.heartbeat_s):
                continue
            capture.heartbeat_at = now
            if is_full:
                capture.full_heartbeat_at = now
            parts = in_parts(sorted(held(capture.id)) if is_full else ())
            epoch = "" if is_full else capture.epoch
            for number, spans in enumerate(parts):
                beat = Heartbeat(spans, capture.id == drain, barrier, number, len(parts))
                due.append((capture.id, epoch, beat))
        return due

    def next_heartbeat_at(self) -> float:
        """When the next heartbeat falls due; in the past if this round could not take all."""
        if self._is_full_late:
            return float("-inf")
        times = [capture.heartbeat_at + self._settings.heartbeat_s for capture in self.captures.values()]
        return min(times, default=float("inf"))

    def validate(self) -> None:
        """Assert what holds between two rounds."""
        for id, capture in self.captures.items():
            assert capture.id == id, f"capture {capture.id} is known as {id}"
            has_answered = capture.status is not CaptureStatus.UNINITIALIZED
            assert bool(capture.epoch) == has_answered, (
                f"capture {id} is {capture.status}, its run is {capture.epoch!r}"
            )
        assert self._first_answers.keys() <= self.captures.keys(), "answers are kept of captures that are gone"
        assert not (self.is_initialized and self._first_answers), "first answers are kept after the start"

    def _due_fully(self, held: Held, heartbeat_budget: HeartbeatBudget, now: float) -> set[CaptureId]:
        """The captures that are asked for everything now: those not asked for the longest time, as many as fit a round.

        A capture whose run is not known yet is asked whenever it gets a heartbeat: it has reported nothing so far.
        """
        due: set[CaptureId] = set()
        self._is_full_late = False
        heartbeat_s, interval_s = self._settings.heartbeat_s, heartbeat_budget.interval_s
        waiting: list[Capture] = []
        for capture in self.captures.values():
            if not capture.epoch:
                if now - capture.heartbeat_at >= heartbeat_s:
                    due.add(capture.id)
            elif now - capture.full_heartbeat_at >= interval_s:
                waiting.append(capture)
        for capture in sorted(waiting, key=lambda known: (known.full_heartbeat_at, known.id)):
            if heartbeat_budget.take(len(held(capture.id))):
                due.add(capture.id)
            else:
                self._is_full_late = True
        return due
