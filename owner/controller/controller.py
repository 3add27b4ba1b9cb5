"""Controller reactor: runs while this capture is elected; says which capture owns which changefeed, and nothing else.

While some captures do not know owners of single changefeeds (``Feature.OWNERS``), it is the owner of all: so a cluster
of older captures rolls over, and the first tick after the format was raised writes the first assignments. A new
controller is a new object, and learns everything from the store.

A capture that is gone loses its changefeeds once its lease is over, which the absence of its record shows, and they are
launched elsewhere in the next tick, at the progress that their owner has stored last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from owner import cluster_format, jobs
from owner.controller.hearing import Heard
from owner.controller.placement import Members, Wishes, plan, weight
from owner.controller.survey import Survey, tables_of
from owner.errors import JobRefusedError, NotOwnedError, OwnerError, UnknownCaptureError, UnknownChangefeedError
from owner.metadata.observations import ControllerObservation
from owner.metadata.schedule import ScheduledChangefeed, differences
from owner.owner import Owner
from owner.progress.shared_progress import remaining
from owner.settings import OwnerSettings
from owner.stored_values import StoredValues
from reactor import keys, patches
from reactor.effects import CONFLICT, Answer, Commit, Effect, Log, Resign, WakeAt
from reactor.ids import CaptureId, ChangefeedId
from reactor.records.capture import OwnerState
from reactor.state import ClusterState


class Controller:
    """``revision``: of this capture's election. ``seed``: for the jitter of delays."""

    def __init__(
        self, capture: CaptureId, revision: int, *, settings: OwnerSettings | None = None, seed: str = ""
    ) -> None:
        self.capture = capture
        self.revision = revision
        #: the owner of all changefeeds, before ``Feature.OWNERS``
        self.all: Owner | None = None
        self._settings = settings or OwnerSettings()
        self._seed = seed
        self._stored_values = StoredValues()
        self._survey = Survey()
        #: where changefeeds without an owner are to be launched
        self._places: dict[ChangefeedId, tuple[CaptureId, bool]] = {}
        #: since when each capture serves
        self._serving: dict[CaptureId, float] = {}
        #: None: whom this capture hears does not matter
        self._heard: Heard | None = None

    def tick(self, state: ClusterState, inbox: Sequence[object], now: float) -> Sequence[Effect]:
        """Make one decision over the whole schedule. ``inbox``: operators' jobs, and which captures are heard."""
        self._heard = next((event for event in reversed(inbox) if isinstance(event, Heard)), self._heard)
        inbox = [event for event in inbox if not isinstance(event, Heard)]
        if not state.has_owners:
            if self.all is None:
                self.all = Owner(self.capture, self.revision, settings=self._settings, seed=self._seed)
            early = [event for event in inbox if isinstance(event, jobs.MoveOwner)]
            others = [event for event in inbox if not isinstance(event, jobs.MoveOwner)]
            return [*map(_too_early, early), *self.all.tick(state, others, now)]
        self.all = None
        if self._is_outvoted(state):
            return [Log("warning", "the controller hears no other capture, and resigns", ()), Resign()]
        effects: list[Effect] = [*cluster_format.tick(state), *self._stored_values.tick(state, now)]
        is_joined = self._is_joined(state)
        moves: dict[ChangefeedId, jobs.MoveOwner] = {}
        for event in inbox:
            match event:
                case jobs.MoveOwner() if is_joined:
                    effects.append(Answer(event.job_id, "a capture is just joining; ask again", CONFLICT))
                case jobs.MoveOwner():
                    effects.append(self._move(event, state, moves))
                case jobs.ResignOwner():
                    effects += self._resign(event, state)
                case jobs.List() | jobs.DrainCapture():
                    text = "each changefeed has an owner of its own now; ask again"
                    effects.append(_refusal(event.job_id, JobRefusedError(text)))
                case _ if job_id := getattr(event, "job_id", ""):
                    text = "the elected capture does not own the changefeed; ask again"
                    effects.append(Answer(job_id, text, NotOwnedError.code))
        if not is_joined:  # for a moment: nothing is placed, or taken, by what is not known
            effects += self._schedule(state, moves, now)
        return [*effects, *_forget_progress(state)]

    def validate(self) -> None:
        """Assert the invariants between two ticks."""
        if self.all is not None:
            self.all.validate()

    def _schedule(self, state: ClusterState, moves: Mapping[ChangefeedId, jobs.MoveOwner], now: float) -> list[Effect]:
        serving = self._captures(state)
        self._serving = {capture: self._serving.get(capture, now) for capture in serving}
        settled_at = {capture: since + self._settings.owners.settle_s for capture, since in self._serving.items()}
        steady = frozenset(capture for capture, at in settled_at.items() if at <= now)
        members = Members(frozenset(state.captures), serving, steady)
        has_news = self._survey.look(state, members)
        effects = self._planned(state, members, moves) if has_news or moves else []
        return [*effects, *(WakeAt(at) for at in settled_at.values() if at > now)]

    def _planned(
        self, state: ClusterState, members: Members, moves: Mapping[ChangefeedId, jobs.MoveOwner]
    ) -> list[Effect]:
        """Return the steps from the schedule as it is to the one that is wanted."""
        observation = ControllerObservation(state)
        origin = observation.schedule()
        self._remember(origin)
        # a changefeed of which only the assignment is left was removed, and its owner sees that itself
        target = plan(
            [one for one in origin if state.changefeeds[one.changefeed].has_records],
            members,
            {id: weight(tables_of(feed)) for id, feed in state.changefeeds.items()},
            Wishes({id: job.capture for id, job in moves.items()}, self._places),
            evened_at_once=self._settings.owners.evened_at_once,
        )
        planned = {one.changefeed for one in target}
        origin = [one for one in origin if one.changefeed in planned or one.owner not in state.captures]
        effects: list[Effect] = []
        for row in differences(origin, target):
            fields = (("changefeed", row.changefeed), ("state", row.state), ("owner", row.owner or row.next))
            asked = (moves[row.changefeed].job_id,) if row.changefeed in moves else ()
            commit = replace(observation.set_owner(row), jobs=asked)
            if row.state is OwnerState.REMOVING and row.next:
                # its owner may have ended before the next tick, which then does not see where it was to go
                self._places[row.changefeed] = CaptureId(row.next), row.is_chosen
            effects += [Log("info", "the owner of a changefeed is changed", fields), commit]
        if effects:
            self._survey.forget()
        return effects

    def _remember(self, origin: Sequence[ScheduledChangefeed]) -> None:
        """Note where those are to go that are being removed: their records will not say it any more."""
        known = {one.changefeed for one in origin}
        self._places = {id: place for id, place in self._places.items() if id in known}
        for one in origin:
            if one.state is OwnerState.LAUNCHED:
                self._places.pop(one.changefeed, None)
            elif one.state is OwnerState.REMOVING and one.next:
                self._places[one.changefeed] = CaptureId(one.next), one.is_chosen

    def _captures(self, state: ClusterState) -> tuple[CaptureId, ...]:
        """Return the captures that may own changefeeds, by id: of those that this one hears; those with a fault of
        their own only if all have one.

        An owner that is not heard could not reach the captures that read and write for it.
        """
        known = cluster_format.knowing(state)
        heard = state.captures.keys() if self._heard is None else self._heard.heard | {self.capture}
        found = [info for id, info in sorted(state.captures.items()) if id in known and id in heard]
        staying = [info for info in found if not info.is_leaving]
        return tuple(info.id for info in [info for info in staying if not info.fault] or staying)

    def _is_outvoted(self, state: ClusterState) -> bool:
        """Return whether this capture hears no other one, and the others hear each other, as far as they say: one of
        them is to be controller. Of two captures either may be cut off, so the controller stays."""
        others = [info for id, info in state.captures.items() if id != self.capture and not info.is_isolated]
        return self._heard is not None and self._heard.is_isolated and len(others) > 1

    def _is_joined(self, state: ClusterState) -> bool:
        """Return whether it is not known yet if this capture hears some other one."""
        known = state.captures.keys() if self._heard is None else self._heard.heard | self._heard.silent
        return not state.captures.keys() <= {*known, self.capture}

    def _move(self, job: jobs.MoveOwner, state: ClusterState, moves: dict[ChangefeedId, jobs.MoveOwner]) -> Answer:
        """Answered when the change is stored: its owner hands it over then."""
        try:
            self._refuse_move(job, state)
        except OwnerError as error:
            return _refusal(job.job_id, error)
        moves[job.changefeed] = job
        return Answer(job.job_id)

    def _refuse_move(self, job: jobs.MoveOwner, state: ClusterState) -> None:
        feed = state.changefeeds.get(job.changefeed)
        if feed is None or not feed.has_records:
            raise UnknownChangefeedError(
                f"no changefeed {job.changefeed}; `weir changefeed list` shows which there are"
            )
        if job.capture not in state.captures:
            raise UnknownCaptureError(f"no capture {job.capture}; `weir capture list` shows which there are")
        if job.capture not in self._captures(state):
            raise JobRefusedError(f"capture {job.capture} takes no work; `weir capture list` has the cause")
        if not feed.is_launched:
            raise JobRefusedError(f"changefeed {job.changefeed} is just being given to another capture; ask again")

    def _resign(self, job: jobs.ResignOwner, state: ClusterState) -> list[Effect]:
        if state.captures.keys() <= {self.capture}:
            text = f"capture {self.capture} is the only one: nobody else could be elected; start another capture first"
            return [_refusal(job.job_id, JobRefusedError(text))]
        return [Answer(job.job_id), Resign()]


def _forget_progress(state: ClusterState) -> list[Effect]:
    """Delete the progress of captures that are gone, once all of it is in the statuses of their changefeeds."""
    gone = [(id, one) for id, one in state.progress.items() if str(keys.CaptureKey(state.cluster, id)) not in state.raw]
    return [
        Commit(patches.group([patches.delete_record(keys.ProgressKey(state.cluster, state.namespace, id), record)]))
        for id, record in gone
        if id not in state.captures and not remaining(record, state)
    ]


def _too_early(job: jobs.MoveOwner) -> Answer:
    text = "the elected capture owns all changefeeds until all captures are upgraded; `weir capture list` has versions"
    return _refusal(job.job_id, JobRefusedError(text))


def _refusal(job_id: str, error: OwnerError) -> Answer:
    return Answer(job_id, str(error), error.code)
