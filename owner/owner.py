"""Owner reactor: runs the owners of this capture's changefeeds (``owner.metadata``), and operators' jobs about them.

It processes jobs, then each changefeed separately: an exception of one becomes that one's error, and everything that it
writes is fenced by its own assignment. A new owner is a new object, and learns everything from etcd and from the
captures' answers. Jobs change stored records, so a changefeed changed by a job is ticked next time, with the committed
records.
"""

from collections.abc import Sequence
from dataclasses import replace
from traceback import extract_tb
from typing import Any

from owner import cluster_format, feed_jobs, jobs, stored_values, views
from owner.agenda import Agenda
from owner.errors import (
    BrokenRecordError,
    JobRefusedError,
    NotOwnedError,
    OwnerError,
    SpanError,
    UnknownCaptureError,
    UnknownChangefeedError,
)
from owner.feed.backoff import uniform_of
from owner.feed.changefeed import Changefeed
from owner.feed.crashes import Crashes
from owner.feed.run import Run
from owner.feed.site import Site
from owner.job_formats import refuse_early
from owner.metadata.observations import Elected, OwnerObservation, Ownership
from owner.progress.facts import TickContext
from owner.progress.shared_progress import SharedProgress
from owner.scheduler.heartbeat_budget import HeartbeatBudget
from owner.settings import OwnerSettings
from owner.speaking import Speaking
from owner.worker_loads import WorkerLoads, all_workers, workers_of
from reactor.effects import CONFLICT, Answer, Commit, Effect, Log, Resign, WakeAt
from reactor.ids import CaptureId, ChangefeedId
from reactor.messages import Message, is_progress
from reactor.questions import Answered
from reactor.state import ChangefeedState, ClusterState
from reactor.views import ChangefeedView

_FEED_JOBS = (
    jobs.Query,
    jobs.Tables,
    jobs.Pause,
    jobs.Resume,
    jobs.Update,
    jobs.Rewind,
    jobs.Remove,
    jobs.HoldAt,
    jobs.Release,
    jobs.MoveTable,
    jobs.Repartition,
    jobs.ResyncTable,
    jobs.PauseTable,
    jobs.ResumeTable,
    jobs.SkipTable,
    jobs.Rebalance,
)


class Owner:
    """``ownership``: which changefeeds are owned here; a number: all, as the elected capture, with this revision.
    ``seed``: for the jitter of delays."""

    def __init__(
        self, capture: CaptureId, ownership: int | Ownership, *, settings: OwnerSettings | None = None, seed: str = ""
    ) -> None:
        self.capture = capture
        self.changefeeds: dict[ChangefeedId, Changefeed] = {}
        self._ownership = Elected(ownership) if isinstance(ownership, int) else ownership
        self._crashes: dict[ChangefeedId, Crashes] = {}
        self._agenda = Agenda()
        #: the state of the last tick, and its changes until then
        self._seen: tuple[ClusterState | None, int] = None, 0
        #: the changefeeds that were met last: the same object while none comes or goes
        self._met: object = None
        #: messages of those that are not ticked at once
        self._kept: dict[ChangefeedId, list[Message]] = {}
        #: the number of spans of each changefeed, and of all
        self._spans: dict[ChangefeedId, int] = {}
        self._spans_of_all = 0
        #: those whose newest positions may not be stored
        self._ahead: set[ChangefeedId] = set()
        self._speaking = Speaking()
        self._loads = WorkerLoads(tuple)
        self._stored_values = stored_values.StoredValues()
        self._settings = settings or OwnerSettings()
        self._progress = SharedProgress(capture, self._settings)
        self._seed = seed

    def tick(self, state: ClusterState, inbox: Sequence[object], now: float) -> Sequence[Effect]:
        """Make one decision over the whole cluster. ``inbox``: messages, jobs, and outcomes of effects."""
        effects = self._hand_over(state)
        effects += self._meet(state)
        touched: set[ChangefeedId] = set()
        for event in inbox:
            match event:
                case Message():
                    self._keep(event)
                case Answered():
                    effects += self._on_answer(event, state, now)
                case jobs.List() | jobs.DrainCapture() | jobs.ResignOwner():
                    effects += self._do_cluster_job(event, state, now)
                case _ if isinstance(event, _FEED_JOBS):
                    effects += self._do_feed_job(event, state, touched, now)
                case _:
                    effects.append(Log("warning", "unknown event", (("kind", type(event).__name__),)))
        if isinstance(self._ownership, Elected):
            effects += cluster_format.tick(state)
            effects += self._stored_values.tick(state, now)
        effects += self._tick_changefeeds(state, touched, now)
        effects += self._store_progress(state, touched, now)
        return _with_one_wake(effects)

    def validate(self) -> None:
        """Assert the invariants between two ticks."""
        self._agenda.validate(self.changefeeds.keys())
        assert self._kept.keys() <= self.changefeeds.keys(), "messages of changefeeds that are not owned"
        for id, changefeed in self.changefeeds.items():
            assert changefeed.id == id, f"changefeed {changefeed.id} is known as {id}"
            changefeed.validate()
            if changefeed.run is not None:
                identity = changefeed.run.coordinator.identity
                assert (identity.capture, identity.changefeed) == (self.capture, id), f"{id} speaks as {identity}"
                assert identity.owner_revision == changefeed.site.owner_revision, f"{id} speaks as an older owner"

    def _hand_over(self, state: ClusterState) -> list[Effect]:
        """End the owners that are being removed: with their last progress, the controller launches them elsewhere."""
        effects: list[Effect] = []
        for feed in self._ownership.ending(state):
            part = self.changefeeds.get(feed.id)
            effects.append(OwnerObservation(feed, state).post_removed(part.latest if part else None))
        return effects

    def _meet(self, state: ClusterState) -> list[Effect]:
        """Add and remove changefeeds as they are assigned and removed. Whoever waits for one that goes asks again."""
        owned, effects = self._ownership.owned(state), list[Effect]()
        if owned is self._met:
            return effects
        self._met = owned
        for id, changefeed in sorted(self.changefeeds.items()):
            if owned.get(id) != changefeed.site.owner_revision:
                del self.changefeeds[id]
                self._crashes.pop(id, None)
                self._agenda.forget(id)
                self._kept.pop(id, None)
                self._ahead.discard(id)
                self._spans_of_all -= self._spans.pop(id, 0)
                text = f"changefeed {id} is moving to another owner; ask again"
                effects += [Answer(job, text, NotOwnedError.code) for job in changefeed.removal.waiting_jobs]
        for id in sorted(owned.keys() - self.changefeeds.keys()):
            self.changefeeds[id] = self._part_of(id, Site(self.capture, owned[id], state.cluster, state.namespace))
            self._agenda.note(id)
        return effects

    def _keep(self, message: Message) -> None:
        """Keep a message until its changefeed is ticked; one that only reports progress may wait for others."""
        id = message.changefeed
        if id in self.changefeeds:
            self._kept.setdefault(id, []).append(message)
            self._agenda.note(id, is_urgent=not is_progress(message.body))

    def _tick_changefeeds(self, state: ClusterState, touched: set[ChangefeedId], now: float) -> list[Effect]:
        """Tick those that are due; ``touched`` ones are being changed by a job."""
        effects: list[Effect] = []
        context = self._context(state)
        self._agenda.begin(self.changefeeds.keys(), (context.alive, context.format))
        self._note_changed(state)
        self._speak(context.alive, now)
        for id in touched & self.changefeeds.keys():
            self._agenda.note(id)
            self._kept.pop(id, None)
            effects.append(WakeAt(now))
        for id in self._agenda.due(now, without=touched):
            feed = state.changefeeds[id]
            decided = self._tick_changefeed(feed, self._kept.pop(id, []), context, now)
            self._agenda.done(id, decided, now)
            self._ahead.add(id)
            self._speaking.note(decided, now)
            effects += self._ownership.fenced(feed, state, decided)
        return [*effects, *self._agenda.wakes(now), *(self._speaking.wakes() if self.changefeeds else ())]

    def _speak(self, alive: Sequence[CaptureId], now: float) -> None:
        """Let a changefeed send heartbeats to the captures that have heard nothing for a while."""
        if not (silent := self._speaking.silent((one for one in alive if one != self.capture), now)):
            return
        running = {id: changefeed.run for id, changefeed in self.changefeeds.items() if changefeed.run}
        speaker = self._speaking.speaker(running, now)
        if speaker is not None:
            running[speaker].coordinator.captures.ask_now(silent)
            self._agenda.note(speaker)

    def _note_changed(self, state: ClusterState) -> None:
        of, seen = self._seen
        self._seen = state, state.changes.latest
        if of is not state:
            for id in self.changefeeds:
                self._agenda.note(id)
            return
        for id in state.changes.since(seen):
            changefeed = self.changefeeds.get(id)
            if changefeed is not None:
                feed = state.changefeeds[id]
                is_own = feed.moves <= seen and changefeed.latest == feed.status
                self._agenda.note(id, is_urgent=feed.news > seen, is_own=is_own)

    def _store_progress(self, state: ClusterState, touched: set[ChangefeedId], now: float) -> list[Effect]:
        latest = {id: self.changefeeds[id].latest for id in sorted(self._ahead)}
        running = {id: status for id, status in latest.items() if status and id not in touched}
        effects = self._progress.tick(state, running, now, owned=len(self.changefeeds))
        self._ahead = {*self._progress.ahead, *(self._ahead & touched)}
        return effects

    def _context(self, state: ClusterState) -> TickContext:
        alive = tuple(sorted(cluster_format.knowing(state)))
        budget = HeartbeatBudget(
            self._settings.scheduler,
            spans=self._spans_of_all,
            changefeeds=len(self.changefeeds),
            captures=len(alive),
        )
        self._loads = WorkerLoads(lambda: all_workers(self.changefeeds, state))
        return TickContext(alive, self._loads, budget, state.format)

    def _tick_changefeed(
        self, feed: ChangefeedState, messages: Sequence[Message], context: TickContext, now: float
    ) -> list[Effect]:
        changefeed, crashes = self.changefeeds[feed.id], self._crashes.get(feed.id)
        if crashes is not None and (instead := crashes.hold_back(feed, now)):
            return instead
        before = workers_of(changefeed)
        try:
            return changefeed.tick(feed, messages, context, now)
        except SpanError as error:
            return _failed(changefeed, error, now)
        except Exception as error:  # isolation is the purpose: one changefeed's fault must not affect others
            return self._crash(feed, error, now)
        finally:
            if (after := workers_of(self.changefeeds[feed.id])) != before:
                self._loads.note(before, after)
            self._count_spans(feed.id)

    def _count_spans(self, id: ChangefeedId) -> None:
        run = self.changefeeds[id].run
        spans = len(run.coordinator.sets) if run else 0
        self._spans_of_all += spans - self._spans.get(id, 0)
        self._spans[id] = spans

    def _crash(self, feed: ChangefeedState, error: Exception, now: float) -> list[Effect]:
        """Handle a bug: recreate this changefeed's part from etcd's records; others are not affected."""
        id, site = feed.id, self.changefeeds[feed.id].site
        crashed, self.changefeeds[id] = self.changefeeds[id], self._part_of(id, site)
        self.changefeeds[id].follow(crashed)
        crashes = self._crashes.setdefault(id, Crashes(site, self._settings.restarts))
        fields = (("changefeed", id), ("error", f"{type(error).__name__}: {error}"), ("where", _where(error)))
        entry = Log("error", "the owner's part of a changefeed crashed", fields)
        return [entry, *crashes.note(feed, error, now, wall=now + self._settings.wall_offset_s)]

    def _part_of(self, id: ChangefeedId, site: Site) -> Changefeed:
        return Changefeed(id, site, self._settings, uniform_of(f"{self._seed}/{id}"))

    def _on_answer(self, answer: Answered[Any], state: ClusterState, now: float) -> list[Effect]:
        """Pass the data plane's answer to the changefeed that asked."""
        changefeed = self.changefeeds.get(answer.changefeed)
        if changefeed is None:
            return []
        self._agenda.note(answer.changefeed)
        try:
            changefeed.handle_answer(answer)
        except Exception as error:  # isolation, as in a tick
            feed = state.changefeeds[answer.changefeed]
            return self._ownership.fenced(feed, state, self._crash(feed, error, now))
        return []

    def _do_cluster_job(
        self, job: jobs.List | jobs.DrainCapture | jobs.ResignOwner, state: ClusterState, now: float
    ) -> list[Effect]:
        match job:
            case jobs.List():
                shown = (
                    self._listed(state.changefeeds[id], now, with_tables=job.tables) for id in sorted(self.changefeeds)
                )
                return [Answer(job.job_id, value=tuple(view for view in shown if view is not None))]
            case jobs.ResignOwner():
                return self._resign(job, state)
            case jobs.DrainCapture():
                return [self._drain(job, state)]

    def _resign(self, job: jobs.ResignOwner, state: ClusterState) -> list[Effect]:
        if state.captures.keys() <= {self.capture}:
            text = f"capture {self.capture} is the only one: nobody else could be owner; start another capture first"
            return [_refusal(job.job_id, JobRefusedError(text))]
        return [Answer(job.job_id), Resign()]

    def _drain(self, job: jobs.DrainCapture, state: ClusterState) -> Answer:
        runs = [changefeed.run for changefeed in self.changefeeds.values() if changefeed.run]
        try:
            self._refuse_drain(job.capture, state, runs)
        except OwnerError as error:
            return _refusal(job.job_id, error)
        for id in self.changefeeds:
            self._agenda.note(id)
        return Answer(job.job_id, value=sum(run.drain(job.capture) for run in runs))

    def _refuse_drain(self, capture: CaptureId, state: ClusterState, runs: Sequence[Run]) -> None:
        if capture not in state.captures:
            raise UnknownCaptureError(f"no capture {capture}; `weir capture list` shows which there are")
        if capture == self.capture:
            raise JobRefusedError(f"capture {capture} is the owner; let it resign first (owner resign), then drain it")
        others = {run.coordinator.drain_target for run in runs} - {None, capture}
        if others:
            raise JobRefusedError(f"capture {min(map(str, others))} is being drained; ask again when it is empty")

    def _do_feed_job(
        self, job: jobs.FeedJob, state: ClusterState, touched: set[ChangefeedId], now: float
    ) -> list[Effect]:
        """Execute or refuse it; only one change of stored records per tick, the next ones are submitted again."""
        if job.changefeed in self.changefeeds:
            self._agenda.note(job.changefeed)
        try:
            changefeed, feed = self._find(job, state)
            if job.changefeed in touched and not isinstance(job, jobs.Query | jobs.Tables):
                return [Answer(job.job_id, f"changefeed {job.changefeed} is just being changed; ask again", CONFLICT)]
            refuse_early(job, state.format)
            effects = self._ownership.fenced(feed, state, self._carry_out(job, changefeed, feed, now))
        except OwnerError as error:
            return [_refusal(job.job_id, error)]
        except Exception as error:  # a bug in a job must not end the ownership
            return [Answer(job.job_id, f"{type(error).__name__}: {error}", "Internal")]
        if any(isinstance(effect, Commit) for effect in effects):
            touched.add(job.changefeed)
        return [replace(effect, jobs=(job.job_id,)) if isinstance(effect, Commit) else effect for effect in effects]

    def _find(self, job: jobs.FeedJob, state: ClusterState) -> tuple[Changefeed, ChangefeedState]:
        feed = state.changefeeds.get(job.changefeed)
        if feed is None or (feed.info is None and not feed.broken):
            raise UnknownChangefeedError(
                f"no changefeed {job.changefeed}; `weir changefeed list` shows which there are"
            )
        if feed.info is None:
            why = "; ".join(feed.broken[key] for key in sorted(feed.broken))
            raise BrokenRecordError(f"changefeed {job.changefeed} cannot be read: {why}; repair or delete its keys")
        if (changefeed := self.changefeeds.get(job.changefeed)) is None:
            raise NotOwnedError(f"changefeed {job.changefeed} is moving to another owner; ask again")
        return changefeed, feed

    def _carry_out(self, job: jobs.FeedJob, changefeed: Changefeed, feed: ChangefeedState, now: float) -> list[Effect]:
        if isinstance(job, jobs.Query):
            return [Answer(job.job_id, value=self._view(feed, now, with_tables=job.tables))]
        effects = feed_jobs.carry_out(job, changefeed, feed, now)
        if isinstance(job, jobs.Resume):
            self._crashes.pop(job.changefeed, None)  # an operator has looked: all of the budget is there again
        return effects

    def _view(self, feed: ChangefeedState, now: float, *, with_tables: bool) -> ChangefeedView | None:
        if feed.info is None:
            return None
        wall = now + self._settings.wall_offset_s
        return views.view(self.changefeeds[feed.id], feed, feed.info, now, wall=wall, with_tables=with_tables)

    def _listed(self, feed: ChangefeedState, now: float, *, with_tables: bool) -> ChangefeedView | None:
        """A changefeed that cannot be shown reports that in its line, without affecting others; leftovers of a removed
        one are not listed."""
        try:
            view = self._view(feed, now, with_tables=with_tables)
        except Exception as error:  # a bug in showing one
            return views.unreadable(feed, f"it cannot be shown ({type(error).__name__}: {error}); see the owner's log")
        why = "; ".join(feed.broken[key] for key in sorted(feed.broken))
        return views.unreadable(feed, f"{why}; repair or delete its keys") if view is None and why else view


def _failed(changefeed: Changefeed, error: Exception, now: float) -> list[Effect]:
    changefeed.fail(error, now)
    fields = (("changefeed", changefeed.id), ("error", f"{type(error).__name__}: {error}"))
    return [Log("error", "a changefeed's tick failed", fields), WakeAt(now)]


def _where(error: Exception) -> str:
    """Return the line that raised it."""
    frames = extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _refusal(job_id: str, error: OwnerError) -> Answer:
    return Answer(job_id, str(error), error.code)


def _with_one_wake(effects: list[Effect]) -> list[Effect]:
    """Merge all requested wake-ups into the earliest."""
    times = [effect.at for effect in effects if isinstance(effect, WakeAt)]
    others: list[Effect] = [effect for effect in effects if not isinstance(effect, WakeAt)]
    return [*others, WakeAt(min(times))] if times and min(times) < float("inf") else others
