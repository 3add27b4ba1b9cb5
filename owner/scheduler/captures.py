"""The captures of one changefeed as its scheduler knows them: who has answered, who is leaving, who gets a heartbeat.

    Uninitialized ──first answer──► Initialized ──"I am stopping"──► Stopping

The scheduler starts when every capture has answered once (what they hold is then known), and it goes on with those
that have when a new one joins later. A capture whose processor began anew answers under another processor epoch: what
it held is gone, which is told as ``lost``. Never back: a stopping capture only ever disappears.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from owner.settings import SchedulerSettings
from reactor.ids import CaptureId, TableSpan
from reactor.messages import Barrier, Heartbeat, HeartbeatResponse, Liveness, SpanStatus


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
        self._first_answers: dict[CaptureId, tuple[SpanStatus, ...]] = {}
        self._lost: list[CaptureId] = []
        self._barrier_told = Barrier()

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
        for capture in sorted(self.captures.keys() - present):
            del self.captures[capture]
            self._first_answers.pop(capture, None)
            self._lost.append(capture)
        for capture in sorted(present - self.captures.keys()):
            self.captures[capture] = Capture(capture)

    def handle_response(self, sender: CaptureId, epoch: str, response: HeartbeatResponse) -> None:
        """Note who answered as which run. Messages of one capture come in order, so the last epoch is the newest."""
        capture = self.captures[sender]
        if capture.epoch != epoch:
            if capture.epoch:
                self._lost.append(sender)
                self._first_answers.pop(sender, None)
            capture.epoch = epoch
        if capture.status is CaptureStatus.UNINITIALIZED:
            capture.status = CaptureStatus.INITIALIZED
        if response.liveness is Liveness.STOPPING:
            capture.status = CaptureStatus.STOPPING
        self.note_statuses(sender, response.statuses)

    def note_statuses(self, sender: CaptureId, statuses: Iterable[SpanStatus]) -> None:
        """Until the last capture has answered, the newest word of the others on each span is kept."""
        if self.is_initialized or self.captures[sender].status is CaptureStatus.UNINITIALIZED:
            return
        known = {status.span: status for status in self._first_answers.get(sender, ())}
        known |= {status.span: status for status in statuses}
        self._first_answers[sender] = tuple(known.values())

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
        return initial

    def heartbeats(
        self, held: Mapping[CaptureId, list[TableSpan]], barrier: Barrier, now: float, *, drain: CaptureId | None
    ) -> list[tuple[CaptureId, str, Heartbeat]]:
        """Those that are due at ``now`` with the processor epoch to put on them; a changed barrier makes all due.

        An empty epoch asks for a full answer. ``held``: what each capture should have.
        """
        is_urgent, self._barrier_told = barrier != self._barrier_told, barrier
        due = []
        for capture in self.captures.values():
            if not is_urgent and now - capture.heartbeat_at < self._settings.heartbeat_s:
                continue
            capture.heartbeat_at = now
            is_full = not capture.epoch or now - capture.full_heartbeat_at >= self._settings.full_heartbeat_s
            if is_full:
                capture.full_heartbeat_at = now
            spans = tuple(sorted(held.get(capture.id, ()))) if is_full else ()
            due.append((capture.id, "" if is_full else capture.epoch, Heartbeat(spans, capture.id == drain, barrier)))
        return due

    def next_heartbeat_at(self) -> float:
        """When the next heartbeat falls due."""
        times = [capture.heartbeat_at + self._settings.heartbeat_s for capture in self.captures.values()]
        return min(times, default=float("inf"))
