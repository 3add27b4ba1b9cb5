"""Scheduler captures: tracks which captures have answered and which are leaving, and decides when they get heartbeats.

    Uninitialized ──first answer──► Initialized ──"I am stopping"──► Stopping

The scheduler starts when every capture has answered once (then it is known what they hold), and does not wait for
captures that joined after it began: they have taken no order of an earlier owner or run, so they hold nothing, and one
may never be reached. A capture whose processor restarts answers under another processor epoch: the spans it held
are reported as ``lost``. There is no way back: a stopping capture can only disappear.

Captures count their messages. While none is missing since a full answer, another one is requested rarely, and between
them the states of spans that do more than advance. When a message is missing, a full answer is requested soon.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from owner.scheduler.answers import Answers
from owner.scheduler.heartbeat_budget import HeartbeatBudget
from owner.settings import SchedulerSettings
from reactor.ids import CaptureId, TableSpan
from reactor.messages import Barrier, Heartbeat, HeartbeatResponse, Liveness, SpanStatus, in_parts
from reactor.records.changefeed import Unit

#: capture → its spans
Held = Callable[[CaptureId], Collection[TableSpan]]


class CaptureStatus(StrEnum):
    UNINITIALIZED = "uninitialized"
    INITIALIZED = "initialized"
    STOPPING = "stopping"


@dataclass(slots=True)
class Capture:
    """``epoch``: the run of its processor, empty until it has answered. ``is_newcomer``: it joined after the
    scheduler began. ``number``: of its last message; ``is_whole``: all of them are here since a full answer.
    ``asked_at``: when it was asked for spans, all or some."""

    id: CaptureId
    is_newcomer: bool = False
    status: CaptureStatus = CaptureStatus.UNINITIALIZED
    epoch: str = ""
    heartbeat_at: float = float("-inf")
    full_heartbeat_at: float = float("-inf")
    asked_at: float = float("-inf")
    number: int = 0
    is_whole: bool = False
    #: its answers to heartbeats have the progress of a copy, which it does not report by itself
    is_copying: bool = False


class CaptureManager:
    """Tracks captures and their heartbeats. ``phase``: see ``HeartbeatBudget.beat_s``."""

    def __init__(self, settings: SchedulerSettings, *, phase: float = 0.0) -> None:
        self.captures: dict[CaptureId, Capture] = {}
        self.is_initialized = False
        #: the first captures are known
        self._has_begun = False
        self._settings = settings
        self._phase = phase
        #: interval of heartbeats to a capture that has answered, and to one whose reports are complete
        self._beat_s = self._quiet_s = settings.heartbeat_s
        self._answers = Answers()
        self._first_answers: dict[CaptureId, dict[TableSpan, SpanStatus]] = {}
        self._lost: list[CaptureId] = []
        self._barrier_sent = Barrier()
        self._is_full_late = False

    @property
    def are_all_initialized(self) -> bool:
        """Whether every capture has answered that may hold anything (false if there are none)."""
        awaited = [capture.status for capture in self.captures.values() if not capture.is_newcomer]
        return bool(self.captures) and CaptureStatus.UNINITIALIZED not in awaited

    def statuses(self) -> dict[CaptureId, CaptureStatus]:
        return {known.id: known.status for known in self.captures.values()}

    def serving(self) -> list[CaptureId]:
        """Return the captures that may be given work, in id order."""
        return sorted(known.id for known in self.captures.values() if known.status is CaptureStatus.INITIALIZED)

    def leaving(self) -> frozenset[CaptureId]:
        """The captures that want to hand over all their spans."""
        return frozenset(known.id for known in self.captures.values() if known.status is CaptureStatus.STOPPING)

    def is_stopping(self, capture: CaptureId) -> bool:
        known = self.captures.get(capture)
        return known is not None and known.status is CaptureStatus.STOPPING

    def epoch_of(self, capture: CaptureId) -> str:
        known = self.captures.get(capture)
        return known.epoch if known else ""

    def handle_alive(self, alive: Iterable[CaptureId]) -> None:
        """Add new captures, and remove those whose lease has expired."""
        present = set(alive)
        if present == self.captures.keys():
            return
        for capture in sorted(self.captures.keys() - present):
            del self.captures[capture]
            self._first_answers.pop(capture, None)
            self._answers.forget(capture)
            self._lost.append(capture)
        for capture in sorted(present - self.captures.keys()):
            self.captures[capture] = Capture(capture, is_newcomer=self._has_begun)
        self._has_begun = True

    def is_whole(self, capture: CaptureId) -> bool:
        """Return whether nothing is missing of what ``capture`` has sent since a full answer."""
        return self.captures[capture].is_whole

    def handle_response(self, sender: CaptureId, epoch: str, response: HeartbeatResponse) -> HeartbeatResponse | None:
        """Record the sender's processor epoch; return the answer, or None while parts of it are missing.

        Messages of one capture arrive in order, so the last epoch is the newest.
        """
        capture = self.captures[sender]
        is_known = capture.epoch == epoch
        answer = response if is_known else self._answers.take(sender, epoch, response)
        if answer is None:
            return None
        if not is_known:
            if capture.epoch:
                self._lost.append(sender)
                self._first_answers.pop(sender, None)
            capture.epoch = epoch
            capture.status = CaptureStatus.UNINITIALIZED  # the new run reports its own liveness
        if capture.status is CaptureStatus.UNINITIALIZED:
            capture.status = CaptureStatus.INITIALIZED
        if response.liveness is Liveness.STOPPING:
            capture.status = CaptureStatus.STOPPING
        capture.is_copying = response.worker is not None and response.worker.unit is not Unit.SYNC
        self.count(sender, answer.number, is_start=answer.is_full and answer.part == 0)
        self.note_statuses(sender, [*answer.statuses, *answer.at_place()])
        return answer

    def count(self, sender: CaptureId, number: int, *, is_start: bool = False) -> None:
        """Note the number of a message. ``is_start``: a full answer begins with it."""
        capture = self.captures[sender]
        is_next = capture.is_whole and number == capture.number + 1
        capture.is_whole = self.is_initialized and number > 0 and (is_start or is_next)
        capture.number = number

    def note_statuses(self, sender: CaptureId, statuses: Iterable[SpanStatus]) -> None:
        """Until the last capture has answered, keep the newest status of each span."""
        if self.is_initialized or self.captures[sender].status is CaptureStatus.UNINITIALIZED:
            return
        self._first_answers.setdefault(sender, {}).update((status.span, status) for status in statuses)

    def take_lost(self) -> list[CaptureId]:
        """Return the captures whose spans are lost, once; before the start no capture is known to have any."""
        lost, self._lost = self._lost, []
        return lost if self.is_initialized else []

    def take_initial(self) -> dict[CaptureId, tuple[SpanStatus, ...]] | None:
        """Return all first answers, once: after the last capture has answered for the first time."""
        if self.is_initialized or not self.are_all_initialized:
            return None
        self.is_initialized = True
        initial, self._first_answers = self._first_answers, {}
        return {capture: tuple(statuses.values()) for capture, statuses in initial.items()}

    def heartbeats(
        self,
        held: Held,
        barrier: Barrier,
        now: float,
        *,
        to_ask: Held = lambda _: (),
        drain: CaptureId | None,
        heartbeat_budget: HeartbeatBudget,
    ) -> list[tuple[CaptureId, str, Heartbeat]]:
        """Return the heartbeats due at ``now``, each with its processor epoch; a changed barrier makes all due.

        An empty epoch requests a full answer. ``held``: the spans that each capture should have; ``to_ask``: those
        that do more than advance.
        """
        is_urgent, self._barrier_sent = barrier != self._barrier_sent, barrier
        self._beat_s = heartbeat_budget.beat_s(self._phase)
        self._quiet_s = heartbeat_budget.quiet_s(self._phase)
        full = self._due_fully(held, heartbeat_budget, now)
        asked_s = heartbeat_budget.full_s(self._phase)
        due: list[tuple[CaptureId, str, Heartbeat]] = []
        for capture in self.captures.values():
            is_full = capture.id in full
            spans: Collection[TableSpan] = ()
            if is_full:
                spans, capture.full_heartbeat_at = held(capture.id), now
            elif capture.is_whole and now - capture.asked_at >= asked_s:
                spans = to_ask(capture.id)
            if not (is_urgent or is_full or spans or now >= self._beat_at(capture)):
                continue
            capture.heartbeat_at = now
            if is_full or spans:
                capture.asked_at = now
            parts = in_parts(sorted(spans))
            epoch = "" if is_full else capture.epoch
            for number, part in enumerate(parts):
                beat = Heartbeat(
                    part,
                    capture.id == drain,
                    barrier,
                    number,
                    len(parts),
                    takes_together=True,
                    follows_log=True,
                )
                due.append((capture.id, epoch, beat))
        return due

    def ask_now(self, captures: Iterable[CaptureId]) -> None:
        """Let heartbeats to these be due."""
        for capture in captures:
            if capture in self.captures:
                self.captures[capture].heartbeat_at = float("-inf")

    def next_heartbeat_at(self) -> float:
        """Return when the next heartbeat is due; in the past if this round could not send all."""
        if self._is_full_late:
            return float("-inf")
        return min(map(self._next_at, self.captures.values()), default=float("inf"))

    def validate(self) -> None:
        """Assert the invariants between two rounds."""
        for id, capture in self.captures.items():
            assert capture.id == id, f"capture {capture.id} is known as {id}"
            has_answered = capture.status is not CaptureStatus.UNINITIALIZED
            assert bool(capture.epoch) == has_answered, (
                f"capture {id} is {capture.status}, its run is {capture.epoch!r}"
            )
        assert self._first_answers.keys() <= self.captures.keys(), "answers are kept of captures that are gone"
        assert not (self.is_initialized and self._first_answers), "first answers are kept after the start"

    def _due_fully(self, held: Held, heartbeat_budget: HeartbeatBudget, now: float) -> set[CaptureId]:
        """Return the captures to request full answers from: those not asked for the longest time, as many as the budget
        allows.

        A capture with an unknown run is asked with every heartbeat, since it has reported nothing so far.
        """
        due: set[CaptureId] = set()
        self._is_full_late = False
        full_s = heartbeat_budget.full_s(self._phase)
        waiting: list[Capture] = []
        for capture in self.captures.values():
            if not capture.epoch:
                if now >= self._beat_at(capture):
                    due.add(capture.id)
            elif now - capture.full_heartbeat_at >= self._full_s(capture, full_s):
                waiting.append(capture)
        for capture in sorted(waiting, key=lambda known: (known.full_heartbeat_at, known.id)):
            if heartbeat_budget.take(len(held(capture.id))):
                due.add(capture.id)
            else:
                self._is_full_late = True
        return due

    def _full_s(self, capture: Capture, full_s: float) -> float:
        """Return the interval of full answers of ``capture``."""
        if capture.is_whole:
            return max(full_s, self._settings.whole_heartbeat_s)
        return self._settings.heartbeat_s if self._is_missing(capture) else full_s

    def _is_missing(self, capture: Capture) -> bool:
        """Return whether a message of a capture that counts them is missing."""
        return self.is_initialized and capture.number > 0 and not capture.is_whole

    def _next_at(self, capture: Capture) -> float:
        beat_at = self._beat_at(capture)
        if self._is_missing(capture):
            return min(beat_at, capture.full_heartbeat_at + self._settings.heartbeat_s)
        return beat_at

    def _beat_at(self, capture: Capture) -> float:
        """Return when the next heartbeat is due; until it has answered, a capture is asked often."""
        if not capture.epoch:
            return capture.heartbeat_at + self._settings.heartbeat_s
        is_quiet = capture.is_whole and not capture.is_copying
        return capture.heartbeat_at + (self._quiet_s if is_quiet else self._beat_s)
