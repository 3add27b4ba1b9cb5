"""Replication set: one table span as the owner sees it: its captures, their roles, and its checkpoint.

           add                  prepared               replicating
 Absent ─────────► Prepare ─────────────► Commit ─────────────────► Replicating ───remove──► Removing ──► gone
    ▲                 ▲                      │                         │    │
    │                 └────────── move ──────┼─────────────────────────┘    │
    └─────────── no capture left ────────────┴─────── writer stopped ───────┘

Absent       no capture has the span
Prepare      a secondary prepares; during a move the primary continues to write
Commit       the secondary is ready: the primary is stopped, then the secondary is promoted
Replicating  the primary writes
Removing     its captures are stopped, and the span is forgotten

The central invariant: **a secondary is promoted only when no other capture can still be writing**: each one has
reported Stopped or Absent, or its lease has expired (``handle_capture_gone``). ``Stopping`` is never enough, and
captures of unknown role (they were stopping when this owner was elected) count as writers. ``_ROWS`` is the whole
state machine; ``_NEXT`` lists which state may follow which, whatever the rows' actions do.

Messages of one capture must arrive in order (``capture.messaging.messenger`` guarantees it). They may be delayed,
lost or duplicated in sequence: the next heartbeat asks for lost ones again, and orders are repeated when a known
state is reported again.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from owner.errors import InconsistentSpanError, MultiplePrimaryError
from reactor.ids import CaptureId, TableSpan, Ts
from reactor.messages import AddSpan, Place, RemoveSpan, SpanCheckpoint, SpanState, SpanStatus
from reactor.places import Here, Placed
from reactor.transitions import Steps, invalid, noted


class SetState(StrEnum):
    ABSENT = "absent"
    PREPARE = "prepare"
    COMMIT = "commit"
    REPLICATING = "replicating"
    REMOVING = "removing"


class Role(Enum):
    """UNDETERMINED: it was stopping when this owner was elected, so it may have been the writer."""

    PRIMARY = auto()
    SECONDARY = auto()
    UNDETERMINED = auto()


@dataclass(frozen=True, slots=True)
class Order:
    """A dispatch order for one capture; the coordinator adds the header."""

    capture: CaptureId
    body: AddSpan | RemoveSpan


Orders = list[Order]


class ReplicationSet(Placed):
    """The state machine of one span. Methods return the orders to send; an inconsistency raises and changes nothing
    more."""

    __slots__ = ("captures", "span", "state", "steps")

    def __init__(self, span: TableSpan, checkpoint_ts: Ts) -> None:
        super().__init__(Place(SpanCheckpoint(checkpoint_ts, checkpoint_ts)))
        self.span = span
        self.state = SetState.ABSENT
        self.captures: dict[CaptureId, Role] = {}
        #: its last transitions
        self.steps: Steps = ()

    @classmethod
    def rebuild(cls, span: TableSpan, checkpoint_ts: Ts, statuses: Mapping[CaptureId, SpanStatus]) -> "ReplicationSet":
        """Reconstruct the set from the captures' answers to a new owner.

        :raises MultiplePrimaryError: two captures write the span.
        """
        self = cls(span, checkpoint_ts)
        for capture, status in sorted(statuses.items()):
            self._rebuild_role(capture, status)
        ready = self.secondary is not None and statuses[self.secondary].state is SpanState.PREPARED
        if self.secondary is not None:
            self.state = SetState.COMMIT if ready else SetState.PREPARE
        elif self.primary is not None:
            self.state = SetState.REPLICATING
        elif self.captures:
            self.state = SetState.REMOVING
        self.steps = noted((), SetState.ABSENT, "first answers", self.state)
        self.check()
        return self

    @property
    def primary(self) -> CaptureId | None:
        return self._in_role(Role.PRIMARY)

    @property
    def secondary(self) -> CaptureId | None:
        return self._in_role(Role.SECONDARY)

    @property
    def is_removed(self) -> bool:
        return self.state is SetState.REMOVING and not self.captures

    def handle_add(self, capture: CaptureId) -> Orders:
        """Start on ``capture``; does nothing if a capture has the span."""
        if self.state is not SetState.ABSENT:
            return []
        return self._prepare_on(capture, "add")

    def handle_move(self, capture: CaptureId) -> Orders:
        """Start the two-phase move to ``capture``; does nothing unless another capture is replicating the span."""
        if self.state is not SetState.REPLICATING or capture in self.captures:
            return []
        return self._prepare_on(capture, "move")

    def handle_remove(self) -> Orders:
        """Stop all its captures and remove the span; does nothing if that has begun, or if no capture has the span.

        A secondary is not promoted any more. An earlier owner may have done that, so it counts as a writer until it has
        stopped.
        """
        if self.state in (SetState.ABSENT, SetState.REMOVING):
            return []
        if self.secondary is not None:
            self.captures[self.secondary] = Role.UNDETERMINED
        before, self.state = self.state, SetState.REMOVING
        self._note(before, "remove")
        self.check()
        return [self._remove(capture) for capture in self.captures]

    def handle_capture_gone(self, capture: CaptureId) -> Orders:
        """Note that ``capture`` writes no more: its lease has expired, or its processor has been replaced."""
        if capture not in self.captures:
            return []
        return self._handle(capture, SpanStatus(self.span, SpanState.STOPPED, SpanCheckpoint(Ts(0), Ts(0))))

    def handle_status(self, capture: CaptureId, status: SpanStatus) -> Orders:
        """Process what ``capture`` reports of the span.

        :raises MultiplePrimaryError: a second capture writes.
        """
        if capture in self.captures:
            return self._handle(capture, status)
        is_stray = status.state in (SpanState.PREPARING, SpanState.PREPARED, SpanState.REPLICATING)
        return [self._remove(capture)] if is_stray else []

    def check(self) -> None:
        """:raises InconsistentSpanError: state and roles do not match."""
        roles = list(self.captures.values())
        if roles.count(Role.PRIMARY) > 1:
            raise MultiplePrimaryError(f"span {self.span} has several writers: {sorted(self.captures)}")
        fits = {
            SetState.ABSENT: not roles,
            SetState.PREPARE: roles.count(Role.SECONDARY) == 1,
            SetState.COMMIT: bool(roles) and roles.count(Role.SECONDARY) <= 1,
            SetState.REPLICATING: roles.count(Role.PRIMARY) == 1 and Role.SECONDARY not in roles,
            SetState.REMOVING: Role.SECONDARY not in roles,
        }
        if not fits[self.state]:
            raise InconsistentSpanError(f"span {self.span} is {self.state} with roles {self.captures}")

    def validate(self, span: TableSpan) -> None:
        """Assert the invariants between two messages."""
        self.check()
        assert self.span == span, f"{self.span} is known as {span}"
        assert self.checkpoint.checkpoint_ts <= self.checkpoint.resolved_ts, f"{span} is written past what is resolved"
        assert not self.is_removed, f"{span} is removed, and not forgotten"

    def _handle(self, capture: CaptureId, status: SpanStatus) -> Orders:
        role = self.captures[capture]
        if role is Role.PRIMARY or status.state is SpanState.STOPPED:
            self._raise_checkpoint(status)
        row = _ROWS.get((self.state, role, status.state))
        before = self.state
        orders = row(self, capture) if row else []
        if self.state is not before:
            self._note(before, _CAUSES[role, status.state])
        self.check()
        return orders

    def _note(self, before: SetState, cause: str) -> None:
        """:raises InvalidTransitionError: the current state may not follow ``before``."""
        if self.state not in _NEXT[before]:
            raise invalid(f"span {self.span}", before, f"{cause} (to {self.state})", self.steps)
        self.steps = noted(self.steps, before, cause, self.state, kept=_STEPS_KEPT)

    # The rows' actions. Each leaves state and roles consistent.

    def _await_secondary(self, capture: CaptureId) -> Orders:
        """Repeat the order: it was lost, or the capture has restarted."""
        return [self._add(capture, is_secondary=True)]

    def _secondary_prepared(self, capture: CaptureId) -> Orders:
        self.state = SetState.COMMIT
        return self._promote_or_stop_writer(capture)

    def _secondary_lost(self, capture: CaptureId) -> Orders:
        del self.captures[capture]
        self.state = self._state_without_secondary()
        return []

    def _secondary_lost_in_commit(self, capture: CaptureId) -> Orders:
        """The primary may have been asked to stop already: wait for its next status."""
        del self.captures[capture]
        if self.primary is None:
            self.state = self._state_without_secondary()
        return []

    def _secondary_writes(self, capture: CaptureId) -> Orders:
        """The previous owner promoted it before it was replaced; that is correct if no writer is left."""
        if len(self.captures) > 1:
            raise MultiplePrimaryError(f"span {self.span} is written by {capture} besides {sorted(self.captures)}")
        self.captures[capture] = Role.PRIMARY
        self.state = SetState.REPLICATING
        return []

    def _promote_or_stop_writer(self, _capture: CaptureId) -> Orders:
        """Promote the secondary if no writer is left. The only place that promotes."""
        if self.primary is not None:
            return [self._remove(self.primary)]
        if self.secondary is None or Role.UNDETERMINED in self.captures.values():
            return []
        capture = self.secondary
        self.captures[capture] = Role.PRIMARY
        return [self._add(capture, is_secondary=False)]

    def _primary_lost_in_prepare(self, capture: CaptureId) -> Orders:
        del self.captures[capture]
        return []

    def _primary_writes_in_commit(self, capture: CaptureId) -> Orders:
        if self.secondary is not None:
            return [self._remove(capture)]
        self.state = SetState.REPLICATING
        return []

    def _repeat_promotion(self, capture: CaptureId) -> Orders:
        """An old primary cannot become secondary again: so it is the promoted one, and its order was lost."""
        return [self._add(capture, is_secondary=False)] if len(self.captures) == 1 else []

    def _writer_lost_in_commit(self, capture: CaptureId) -> Orders:
        del self.captures[capture]
        if self.secondary is None and self.primary is None:
            self.state = self._state_without_secondary()
            return []
        return self._promote_or_stop_writer(capture) if self.secondary else []

    def _writer_lost(self, capture: CaptureId) -> Orders:
        del self.captures[capture]
        self.state = self._state_without_secondary()
        return []

    def _second_writer(self, capture: CaptureId) -> Orders:
        raise MultiplePrimaryError(f"span {self.span} is written by {capture} besides {self.primary}")

    def _forget(self, capture: CaptureId) -> Orders:
        del self.captures[capture]
        return []

    def _remove_again(self, capture: CaptureId) -> Orders:
        return [self._remove(capture)]

    # Helpers

    def _prepare_on(self, capture: CaptureId, cause: str) -> Orders:
        assert capture not in self.captures, "who has a span does not get it again"
        self.captures[capture] = Role.SECONDARY
        before, self.state = self.state, SetState.PREPARE
        self._note(before, cause)
        self.check()
        return [self._add(capture, is_secondary=True)]

    def _state_without_secondary(self) -> SetState:
        if self.primary is not None:
            return SetState.REPLICATING
        return SetState.REMOVING if self.captures else SetState.ABSENT

    def _rebuild_role(self, capture: CaptureId, status: SpanStatus) -> None:
        match status.state:
            case SpanState.REPLICATING:
                self.captures[capture] = Role.PRIMARY
            case SpanState.STOPPING:
                self.captures[capture] = Role.UNDETERMINED
            case SpanState.PREPARED:
                self._drop_secondary()
                self.captures[capture] = Role.SECONDARY
            case SpanState.PREPARING if self.secondary is None:
                self.captures[capture] = Role.SECONDARY
            case _:
                return
        self._raise_checkpoint(status)

    def _drop_secondary(self) -> None:
        """Forget the secondary. It writes nothing, and is removed as a stray at its next heartbeat."""
        if self.secondary is not None:
            del self.captures[self.secondary]

    def _raise_checkpoint(self, status: SpanStatus) -> None:
        ((checkpoint_ts, resolved_ts), time), reported = self.place.at, status.checkpoint
        if checkpoint_ts <= reported.checkpoint_ts <= reported.resolved_ts >= resolved_ts:
            after = reported
        else:
            checkpoint_ts = max(checkpoint_ts, reported.checkpoint_ts)
            after = SpanCheckpoint(checkpoint_ts, max(resolved_ts, reported.resolved_ts, checkpoint_ts))
        if status.checkpoint_time and reported.checkpoint_ts == after.checkpoint_ts:
            time = status.checkpoint_time
        self.place = Here(Place(after, time))

    def _in_role(self, role: Role) -> CaptureId | None:
        return next((capture for capture, has in self.captures.items() if has is role), None)

    def _add(self, capture: CaptureId, *, is_secondary: bool) -> Order:
        assert is_secondary or self.captures.keys() == {capture}, "run is sent only when nobody else may still write"
        return Order(capture, AddSpan(self.span, is_secondary, self.checkpoint))

    def _remove(self, capture: CaptureId) -> Order:
        return Order(capture, RemoveSpan(self.span))


Row = Callable[[ReplicationSet, CaptureId], Orders]
_PREPARE, _COMMIT = SetState.PREPARE, SetState.COMMIT
_REPLICATING, _REMOVING = SetState.REPLICATING, SetState.REMOVING

#: transitions kept per span: there are many spans
_STEPS_KEPT = 6
#: state → states that may follow it
_NEXT: dict[SetState, frozenset[SetState]] = {
    SetState.ABSENT: frozenset({_PREPARE}),
    _PREPARE: frozenset({_COMMIT, _REPLICATING, _REMOVING, SetState.ABSENT}),
    _COMMIT: frozenset({_REPLICATING, _REMOVING, SetState.ABSENT}),
    _REPLICATING: frozenset({_PREPARE, _REMOVING, SetState.ABSENT}),
    _REMOVING: frozenset(),
}
_CAUSES = {(role, said): f"{role.name.lower()} is {said.name.lower()}" for role in Role for said in SpanState}
_GONE = (SpanState.ABSENT, SpanState.STOPPED)
_HERE = (SpanState.PREPARING, SpanState.PREPARED, SpanState.REPLICATING)


def _rows(
    states: Iterable[SetState], roles: Iterable[Role], statuses: Iterable[SpanState], row: Row
) -> dict[tuple[SetState, Role, SpanState], Row]:
    return {(state, role, status): row for state in states for role in roles for status in statuses}


#: (state, role of the sender, reported state) → action. Without a row only the checkpoint is noted
_ROWS: dict[tuple[SetState, Role, SpanState], Row] = {
    (_PREPARE, Role.SECONDARY, SpanState.ABSENT): ReplicationSet._await_secondary,
    (_PREPARE, Role.SECONDARY, SpanState.PREPARED): ReplicationSet._secondary_prepared,
    (_PREPARE, Role.SECONDARY, SpanState.REPLICATING): ReplicationSet._secondary_writes,
    (_PREPARE, Role.SECONDARY, SpanState.STOPPED): ReplicationSet._secondary_lost,
    **_rows([_PREPARE], [Role.PRIMARY], _GONE, ReplicationSet._primary_lost_in_prepare),
    (_COMMIT, Role.SECONDARY, SpanState.PREPARED): ReplicationSet._promote_or_stop_writer,
    (_COMMIT, Role.SECONDARY, SpanState.REPLICATING): ReplicationSet._secondary_writes,
    **_rows([_COMMIT], [Role.SECONDARY], _GONE, ReplicationSet._secondary_lost_in_commit),
    (_COMMIT, Role.PRIMARY, SpanState.PREPARED): ReplicationSet._repeat_promotion,
    (_COMMIT, Role.PRIMARY, SpanState.REPLICATING): ReplicationSet._primary_writes_in_commit,
    **_rows([_COMMIT], [Role.PRIMARY, Role.UNDETERMINED], _GONE, ReplicationSet._writer_lost_in_commit),
    **_rows([_REPLICATING], [Role.PRIMARY], _GONE, ReplicationSet._writer_lost),
    **_rows([_PREPARE, _REPLICATING, _REMOVING], [Role.UNDETERMINED], _GONE, ReplicationSet._forget),
    **_rows(
        [_PREPARE, _COMMIT, _REPLICATING], [Role.UNDETERMINED], [SpanState.REPLICATING], ReplicationSet._second_writer
    ),
    **_rows([_REMOVING], [Role.PRIMARY], _GONE, ReplicationSet._forget),
    **_rows([_REMOVING], [Role.PRIMARY, Role.UNDETERMINED], _HERE, ReplicationSet._remove_again),
}
