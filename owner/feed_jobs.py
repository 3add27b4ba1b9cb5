"""Feed jobs: what an operator asks of one changefeed, carried out or refused."""

from owner import jobs, views
from owner.errors import JobRefusedError
from owner.feed import amendment
from owner.feed.changefeed import Changefeed
from owner.progress.facts import Facts
from owner.scheduler.coordinator import Coordinator
from reactor.effects import Answer, Effect
from reactor.state import ChangefeedState


def carry_out(job: jobs.FeedJob, changefeed: Changefeed, feed: ChangefeedState, now: float) -> list[Effect]:
    """Return the effects, the answer among them.

    :raises OwnerError: it is refused.
    """
    assert not isinstance(job, jobs.Query), "its owner knows what is shown"
    done = Answer(job.job_id)
    match job:
        case jobs.Tables():
            return [Answer(job.job_id, value=views.tables(job, changefeed, feed))]
        case jobs.Pause():
            return [*changefeed.pause(feed, now), done]
        case jobs.Resume():
            effects = changefeed.resume(feed, job.overwrite_checkpoint_ts, now, is_resync=job.is_resync)
            return [*effects, done]
        case jobs.Update():
            effects, after = changefeed.update(feed, job, now)
            assert feed.info is not None, "a changefeed without info is not found"
            return [*effects, Answer(job.job_id, value=amendment.differences(feed.info, after))]
        case jobs.Rewind():
            return [*changefeed.rewind(feed, job.ts, now), done]
        case jobs.Remove():
            return changefeed.remove(feed, job.job_id, now, force=job.force)  # answered when it is removed
        case jobs.HoldAt():
            changefeed.hold_at(feed, job.ts, until=now + job.timeout_s)
            return [Answer(job.job_id, value=job.ts)]
        case jobs.Release():
            held, changefeed.hold = changefeed.hold, None
            return [Answer(job.job_id, value=held.ts if held else None)]
        case jobs.MoveTable():
            return [_move_table(job, changefeed)]
        case jobs.Repartition():
            effects, spans = changefeed.tables.repartition(Facts.of(feed, amendment.existing(feed)), job, now)
            return [*effects, Answer(job.job_id, value=spans)]
        case jobs.ResyncTable():
            facts = Facts.of(feed, amendment.existing(feed))
            if job.is_cancelled:
                return [*changefeed.tables.cancel_resync(facts, job.table_id, now), done]
            return [*changefeed.tables.resync(facts, job, now), done]
        case jobs.PauseTable() | jobs.ResumeTable() | jobs.SkipTable():
            effects, ts = changefeed.tables.step(Facts.of(feed, amendment.existing(feed)), job, now)
            return [*effects, Answer(job.job_id, value=ts)]
        case jobs.Rebalance():
            _running(changefeed).rebalance()
            return [done]


def _move_table(job: jobs.MoveTable, changefeed: Changefeed) -> Answer:
    coordinator = _running(changefeed)
    if job.capture not in coordinator.captures.serving():
        raise JobRefusedError(
            f"capture {job.capture} does not serve {job.changefeed}; `weir capture list` shows which there are"
        )
    count = coordinator.move_table(job.table_id, job.capture)
    if not count:
        raise JobRefusedError(
            f"changefeed {job.changefeed} has no table {job.table_id}; `weir tables` shows which it has"
        )
    return Answer(job.job_id, value=count)


def _running(changefeed: Changefeed) -> Coordinator:
    if changefeed.run is None:
        raise JobRefusedError(f"changefeed {changefeed.id} is not running; resume it first")
    return changefeed.run.coordinator
