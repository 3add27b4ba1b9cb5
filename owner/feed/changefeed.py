"""Changefeed tick: computes its next state, status and orders from its records, messages and the time.

    positions and errors ─► state ─► (only while it runs) spans, workers ─► watermark ─► status ─► one commit

Stored records are authoritative: a run starts only from a committed state, so a change of state that starts or stops it
takes a tick of its own. If the captures' reports contradict each other, this changefeed restarts (``fail``). A bug here
crashes this changefeed's part of the owner (``owner.feed.crashes``) and no other.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from owner.errors import JobRefusedError
from owner.feed import amendment, renewal, retention, rewinding
from owner.feed.backoff import Uniform
from owner.feed.clean_up import CleanUp
from owner.feed.conditions import Conditions
from owner.feed.faults import running_error
from owner.feed.holds.held import HeldTables
from owner.feed.holds.suspects import CaptureEnds
from owner.feed.removal import Removal, sweep
from owner.feed.run import Run
from owner.feed.site import Site
from owner.feed.state import FeedStateMachine, Trigger, is_running
from owner.feed.sync_points import Phase, SyncPoints
from owner.feed.workers import first_epoch
from owner.jobs import Update
from owner.progress import barrier, processor_reports, watermark
from owner.progress.barrier import Hold, Limits
from owner.progress.facts import Facts, TickContext
from owner.questions import Asks
from owner.scheduler.coordinator import Identity
from owner.settings import OwnerSettings
from owner.tables import moves, repartition
from owner.tables.table_jobs import TableJobs
from owner.tables.verdict import Verdict, in_parts
from reactor import keys, patches
from reactor.effects import Commit, Effect, WakeAt
from reactor.ids import ChangefeedId, Ts
from reactor.membership.progress import furthest
from reactor.messages import Message
from reactor.questions import Answered
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, FeedState, RunningError
from reactor.records.formats import Feature
from reactor.state import ChangefeedState


class Changefeed:
    """The owner's memory of one changefeed between ticks."""

    def __init__(self, id: ChangefeedId, site: Site, settings: OwnerSettings, uniform: Uniform) -> None:
        self.id = id
        self.run: Run | None = None
        self.hold: Hold | None = None
        self.sync_points: SyncPoints | None = None
        #: newer than the stored status, which is written less often
        self.latest: ChangefeedStatus | None = None
        self.clean_up = CleanUp(settings)
        self.removal = Removal(settings, self.clean_up)
        place = {"cluster": site.cluster, "namespace": site.namespace}
        self.held = HeldTables(id, **place, wall_offset_s=settings.wall_offset_s)
        self.ends = CaptureEnds(id, **place, wall_offset_s=settings.wall_offset_s)
        self.tables = TableJobs(id, **place, wall_offset_s=settings.wall_offset_s, held=self.held)
        self.conditions = Conditions(standstill_s=settings.standstill_s, wall_offset_s=settings.wall_offset_s)
        self.machine = FeedStateMachine(settings.backoff, uniform, wall_offset_s=settings.wall_offset_s)
        self.site = site
        self._settings = settings
        self._errors: list[RunningError] = []
        self._warnings: list[RunningError] = []
        self._epoch_floor = 0
        self._status_at = float("-inf")
        self._facts: Facts | None = None
        self._facts_change = 0

    def tick(
        self, feed: ChangefeedState, messages: Sequence[Message], context: TickContext, now: float
    ) -> list[Effect]:
        """Run one round."""
        info = feed.info
        if info is None:
            self._release()
            return sweep(feed, self.site.cluster, self.site.namespace)
        if feed.broken and info.state is not FeedState.REMOVED:
            self._release()
            return []
        if info.state is FeedState.REMOVED:
            self._release()
            done = self.removal.tick(feed, self.site.cluster, self.site.namespace, now)
            return [*done, WakeAt(self.clean_up.next_at())]
        return self._tick(feed, info, messages, context, now)

    def fail(self, error: Exception, now: float) -> None:
        """Handle contradicting captures: what is known here is no longer trusted."""
        self._release()
        self._errors.append(running_error(error, self.site.capture, time=self._wall(now)))

    def follow(self, crashed: "Changefeed") -> None:
        """Take over what etcd does not know of a crashed instance: its largest worker epoch, and who awaits removal."""
        crashed._release()
        self._epoch_floor = crashed._epoch_floor
        self.removal.follow(crashed.removal)

    def handle_answer(self, answer: Answered[Any]) -> None:
        """Pass the data plane's answer to the state machines that ask. Answers to an earlier run are ignored."""
        machines: list[Asks] = [self.clean_up, self.removal, *(self.run.asking if self.run else ())]
        machines += [self.sync_points] if self.sync_points else []
        for machine in machines:
            machine.handle_answer(answer)

    def pause(self, feed: ChangefeedState, now: float) -> list[Effect]:
        """:raises JobRefusedError: it is not running."""
        info, status = amendment.existing(feed), furthest(feed.status, self.latest)
        return self._commit(feed, self.machine.step(info, Trigger.PAUSE), status, now=now)

    def resume(
        self, feed: ChangefeedState, checkpoint_ts: Ts | None, now: float, *, is_resync: bool = False
    ) -> list[Effect]:
        """Resume; also while running, to retry held tables. ``is_resync``: from a new position.

        :raises JobRefusedError: it is not stopped and holds no table, or its log does not reach to ``checkpoint_ts``.
        """
        info = amendment.existing(feed)
        facts = Facts.of(feed, info)
        if is_resync or renewal.is_wanted(facts, info.error):
            wish = renewal.asked(facts, self.clean_up, cluster=self.site.cluster)
            self.machine.reset()
            return self._commit(feed, self.machine.step(info, Trigger.RESUME), feed.status, wish, now=now)
        again = self.held.again(facts, now)
        if again and is_running(info.state) and checkpoint_ts is None:
            return [*in_parts(again), WakeAt(now)]
        after = self.machine.step(info, Trigger.RESUME)
        if retention.is_released(info):
            raise JobRefusedError(f"changefeed {info.id} cannot continue: {info.error and info.error.message}")
        if checkpoint_ts is not None:
            return self._set_back(feed, after, checkpoint_ts, now)
        self.machine.reset()
        return [*in_parts(again), *self._commit(feed, after, feed.status, now=now)]

    def update(self, feed: ChangefeedState, change: Update, now: float) -> tuple[list[Effect], ChangefeedInfo]:
        """Return the effects and the new info. :raises JobRefusedError: not stopped, or nothing would change."""
        after = amendment.updated(facts := Facts.of(feed, amendment.existing(feed)), change)
        clearing = moves.table_moves(facts, change, cluster=self.site.cluster, wall=self._wall(now))
        return ([] if change.is_trial else self._commit(feed, after, feed.status, clearing, now=now)), after

    def rewind(self, feed: ChangefeedState, ts: Ts, now: float) -> list[Effect]:
        """:raises JobRefusedError: it is not stopped, or its log does not reach back to ``ts``."""
        rewinding.refuse_rewind(Facts.of(feed, info := amendment.existing(feed)), ts)
        return self._set_back(feed, info, ts, now)

    def _set_back(self, feed: ChangefeedState, after: ChangefeedInfo, ts: Ts, now: float) -> list[Effect]:
        back = rewinding.set_back(facts := Facts.of(feed, after), ts, cluster=self.site.cluster)
        self.machine.reset()
        again = self.held.again(facts, now, back.held)
        return [*in_parts(again), *self._commit(feed, after, back.status, back.removals, now=now)]

    def remove(self, feed: ChangefeedState, job_id: str, now: float, *, force: bool) -> list[Effect]:
        """Start its removal, or join one in progress."""
        info = amendment.existing(feed)
        self.removal.join(job_id, force=force)
        if info.state is FeedState.REMOVED:
            return []
        return self._commit(feed, self.machine.step(info, Trigger.REMOVE), feed.status, now=now)

    def hold_at(self, feed: ChangefeedState, ts: Ts, *, until: float) -> None:
        """:raises JobRefusedError: a span is past ``ts``, or the changefeed is not running."""
        info = amendment.existing(feed)
        if self.run is None or not is_running(info.state):
            why = "it begins just now; ask again" if is_running(info.state) else "nothing to hold; resume it first"
            raise JobRefusedError(f"changefeed {self.id} is {info.state}: {why}")
        facts = Facts.of(feed, info)
        known = [*self.run.positions(), *self.run.repartitions.standing(facts.partitionings)]
        furthest = max([facts.status.checkpoint_ts, *(position.checkpoint_ts for position in known)])
        if furthest > ts:
            raise JobRefusedError(f"changefeed {self.id} is at {furthest}, past {ts}; hold it at a later Ts")
        self.hold = Hold(ts, until)

    def limits(self, facts: Facts, now: float) -> Limits:
        """Return the limits of this changefeed at ``now``."""
        if self.hold is not None and now >= self.hold.until:
            self.hold = None
        sync_point_ts = self.sync_points.hold_ts if self.sync_points else None
        return barrier.limits(
            facts.info.target_ts,
            self.hold,
            facts.pending_ddl,
            repartitions=self.run.repartitions.holds if self.run else {},
            sync_point_ts=sync_point_ts,
            held=facts.held,
            names=facts.waiting_names,
        )

    def validate(self) -> None:
        """Assert the invariants between two ticks."""
        self.held.validate()
        if self.run is None:
            kept = (self.hold, self.sync_points, self.latest)
            assert kept == (None, None, None), f"{self.id} does not run, but keeps {kept}"
            return
        assert self.sync_points is not None, f"{self.id} runs without its sync points"
        self.run.validate()
        self.sync_points.validate()
        assert self.run.workers.epoch_floor >= self._epoch_floor, f"{self.id} would give an epoch twice"
        if self.latest is not None:
            watermark.validate(self.latest)

    def _tick(
        self, feed: ChangefeedState, info: ChangefeedInfo, messages: Sequence[Message], context: TickContext, now: float
    ) -> list[Effect]:
        facts = self._facts_of(feed, info)
        if ends := self.ends.trace(facts, self.run, messages, context, self.held, now):
            return ends
        messages = self.ends.delayed(messages)
        place = {"cluster": self.site.cluster, "namespace": self.site.namespace}
        taken = processor_reports.take(feed.positions, context.alive, **place, feed=self.id)
        errors, joins = repartition.joined([*taken.errors, *self._errors], feed.partitionings)
        self._errors = []
        verdict, errors = self._judge_tables(facts, [*errors, *taken.tables], context, now)
        clearing = (
            *taken.patches,
            *(self.tables.put_partitioning(before, wish) for before, wish in joins),
        )
        warnings, self._warnings = [*taken.warnings, *self._warnings], []
        limits = self.limits(facts, now)
        conditions = self.conditions.now(self.run, facts, limits, now, faults=processor_reports.of_all(feed, context))
        errors, renewals = renewal.cured(facts, [*errors, *verdict.errors], cluster=self.site.cluster)
        clearing = (*clearing, *renewals)
        after = self.machine.tick(info, errors, warnings, now, conditions=conditions)
        if after.epoch != info.epoch or not is_running(after.state):
            return [*verdict.effects, *self._tick_standing(feed, after, now, (*clearing, *verdict.changes))]
        facts = facts if after is info else replace(facts, info=after, known_before=facts.known)
        effects = self._tick_running(feed, facts, limits, messages, context, now, clearing, verdict, conditions)
        return [*verdict.effects, *effects]

    def _judge_tables(
        self, facts: Facts, errors: Sequence[RunningError], context: TickContext, now: float
    ) -> tuple[Verdict, list[RunningError]]:
        """Return which tables to hold or to retry; and the errors of the changefeed as a whole.

        While some captures do not support held tables, a table's error is the changefeed's.
        """
        run = self.run if is_running(facts.info.state) else None
        refusals = [*run.schemas.take_refusals(), *run.repartitions.take_refusals()] if run else []
        if context.format < Feature.HELD_TABLES:
            return Verdict(), [*errors, *(refusal.error for refusal in refusals)]
        self.held.note((error for error in errors if error.is_of_table), refusals)
        others = [error for error in errors if not error.is_of_table]
        return (self.held.tick(facts, run, now) if run else Verdict()), others

    def _tick_standing(
        self, feed: ChangefeedState, info: ChangefeedInfo, now: float, clearing: tuple[patches.Patch, ...]
    ) -> list[Effect]:
        """Tick while it does not run, or has just changed state; a stopped one keeps no log for ever at its source."""
        status, effects = furthest(feed.status, self.latest), list[Effect]()
        self._release_unless_running(info)
        has_lasted = info.state is amendment.existing(feed).state
        if has_lasted and (error := retention.expired(info, self._wall(now))) is not None:
            info = self.machine.step(info, Trigger.EXPIRE, error=error)
        if retention.is_released(info):
            effects += self.clean_up.tick(feed.id, info, now)
        wake_at = now + 1.0 if self.machine.retry_at is None else self.machine.retry_at
        return [*effects, *self._commit(feed, info, status, clearing, now=now), WakeAt(wake_at)]

    def _tick_running(
        self,
        feed: ChangefeedState,
        facts: Facts,
        limits: Limits,
        messages: Sequence[Message],
        context: TickContext,
        now: float,
        clearing: tuple[patches.Patch, ...],
        verdict: Verdict,
        conditions: Sequence[RunningError],
    ) -> list[Effect]:
        run = self._run_of(facts, now)
        effects: list[Effect] = [*run.tick(facts, messages, limits, context, now)]
        self._errors += run.errors()
        effects += self._tick_sync_points(run, facts, now)
        effects += self._change_schemas(run, facts, now)
        is_held = self.sync_points is not None and self.sync_points.hold_ts is not None
        effects += run.repartition(facts, now, is_held=is_held)
        effects += [*run.resync(facts, now), *run.departures.tick(facts, now)]
        status, after = self._judge(run, facts, limits, conditions, now)
        self.latest = status
        self.held.catch_up(facts, status, run, verdict, now)
        clearing = (*clearing, *verdict.changes)
        due_at = self._status_due_at(feed.status, status, context.format)
        if clearing or now >= due_at or (after is not feed.info and after != feed.info):
            self._status_at, due_at = now, float("inf")
            effects += self._commit(feed, after, status, clearing, now=now)
        return [*effects, WakeAt(self._next_at(run, facts, due_at, now))]

    def _tick_sync_points(self, run: Run, facts: Facts, now: float) -> list[Effect]:
        """A changed barrier is sent to the captures at once, in a round of its own."""
        assert self.sync_points is not None, "sync points are made with the run"
        if run.repartitions.holds and self.sync_points.phase is Phase.IDLE:
            return []  # repartitions come first: otherwise both would wait for each other
        if not facts.info.config.sync_point_interval_seconds and self.sync_points.phase is Phase.IDLE:
            return []
        before = self.sync_points.hold_ts
        effects = self.sync_points.tick(facts, run.positions, now)
        return effects if self.sync_points.hold_ts == before else [*effects, WakeAt(now)]

    def _change_schemas(self, run: Run, facts: Facts, now: float) -> list[Effect]:
        effects = run.change_schemas(facts, now)
        warnings = run.schemas.take_warnings()
        self._warnings += warnings
        return [*effects, WakeAt(now)] if warnings or run.schemas.has_refusals else effects

    def _status_due_at(self, stored: ChangefeedStatus | None, status: ChangefeedStatus, format: int) -> float:
        """Return when to write ``status``: never if it is stored, or ``owner.progress.shared_progress`` writes it."""
        if stored is status or stored == status or (stored is not None and format >= Feature.PROGRESS):
            return float("inf")
        settings, has_moved = self._settings, watermark.has_advanced(stored, status)
        return self._status_at + (settings.status_interval_s if has_moved else settings.status_time_interval_s)

    def _judge(
        self, run: Run, facts: Facts, limits: Limits, conditions: Sequence[RunningError], now: float
    ) -> tuple[ChangefeedStatus, ChangefeedInfo]:
        """Return status and state after this round's progress."""
        status, info = facts.status, facts.info
        reached = run.watermark(facts, limits, now)
        if reached is not None:
            reached = watermark.under(reached, self.held.ceiling(facts, run))
            status = watermark.merged(status, reached, limits)
            assert status.checkpoint_ts <= max(facts.status.checkpoint_ts, limits.lowest_ts), f"{status} is too far"
        run.checkpoint_stall.note(status.checkpoint_ts, now)
        if facts.is_finished(status):
            return status, self.machine.step(info, Trigger.FINISH)
        resolved_ts = facts.head.resolved_ts if facts.head else Ts(0)
        has_work = facts.tables is None or status.checkpoint_ts < min(resolved_ts, limits.lowest_ts)
        return status, self.machine.note_progress(
            info, run.progress(facts), has_work=has_work, now=now, conditions=conditions
        )

    def _facts_of(self, feed: ChangefeedState, info: ChangefeedInfo) -> Facts:
        """Return the same facts while nothing of the changefeed has changed in etcd."""
        if self._facts is None or self._facts_change != feed.change or self._facts.info is not info:
            self._facts, self._facts_change = Facts.of(feed, info, before=self._facts), feed.change
        return self._facts

    def _run_of(self, facts: Facts, now: float) -> Run:
        if self.run is None or self.run.epoch != facts.info.epoch:
            assert is_running(facts.info.state), f"a run begins in a state that has been committed: {facts.info.state}"
            self._release()
            site, settings = self.site, self._settings
            identity = Identity(site.capture, self.id, settings.version, site.owner_revision, facts.info.epoch)
            epoch_floor = max(self._epoch_floor, first_epoch(site.owner_revision))
            self.run = Run(identity, facts, settings, cluster=site.cluster, epoch_floor=epoch_floor, now=now)
            self.sync_points = SyncPoints(
                settings.sync_points, cluster=site.cluster, wall_offset_s=settings.wall_offset_s
            )
        return self.run

    def _next_at(self, run: Run, facts: Facts, status_due_at: float, now: float) -> float:
        times = [run.next_at(), status_due_at, self.held.next_at(facts)]
        times += [self.conditions.next_at(run, facts, now), self.machine.next_at(facts.info, now)]
        if self.sync_points is not None:
            times.append(self.sync_points.next_at())
        if self.hold is not None:
            times.append(self.hold.until)
        return now if self._errors else min(times)

    def _release_unless_running(self, info: ChangefeedInfo) -> None:
        if not is_running(info.state):
            self._release()

    def _release(self) -> None:
        """Drop the run; only the largest worker epoch is kept, since epochs must grow."""
        if self.run is not None:
            self._epoch_floor = max(self._epoch_floor, self.run.workers.epoch_floor)
        self.run = self.hold = self.sync_points = self.latest = None
        self._warnings = []

    def _commit(
        self,
        feed: ChangefeedState,
        info: ChangefeedInfo,
        status: ChangefeedStatus | None,
        clearing: tuple[patches.Patch, ...] = (),
        *,
        now: float,
    ) -> list[Effect]:
        """Commit what differs from the stored records, as one group; a record changed meanwhile makes it a conflict."""
        assert feed.info is None or info.epoch >= feed.info.epoch, "the epoch of a changefeed never goes back"
        cluster, namespace = self.site.cluster, self.site.namespace
        changes = list(clearing)
        if feed.info is not None and info.state is not feed.info.state:
            info = info.with_(state_since=self._wall(now))
        if info != feed.info:
            changes.append(patches.replace_record(keys.InfoKey(cluster, namespace, self.id), feed.info, info))
        if status is not None and status != feed.status:
            key = keys.StatusKey(cluster, namespace, self.id)
            changes.append(patches.replace_record(key, feed.stored_status, feed.to_store(status)))
        return [Commit(patches.group(changes))] if changes else []

    def _wall(self, now: float) -> float:
        """Return the Unix time at ``now``."""
        return now + self._settings.wall_offset_s
