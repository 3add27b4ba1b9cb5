"""Removal of a changefeed, in an order that is safe against a crash at any point.

    state removed (it stops) ──► source cleaned up ──► keys deleted, its info last ──► answered

The state comes first, so that any owner continues from there. Keys that do not fit into one transaction (schema changes
that wait, held tables, sync points) are deleted before, some at a time. The sink's tables stay.
"""

from typing import Any, Final

from owner.feed.clean_up import CleanUp
from owner.questions import ReleaseSource
from owner.settings import OwnerSettings
from reactor import keys, patches
from reactor.effects import Answer, Commit, Effect, Log
from reactor.questions import Answered
from reactor.records.changefeed import FeedState
from reactor.state import ChangefeedState

#: keys deleted in one transaction, which holds 128 operations
_DELETED_AT_ONCE: Final = 100


class Removal:
    """The remaining steps for one changefeed in state removed."""

    def __init__(self, settings: OwnerSettings, clean_up: CleanUp) -> None:
        self._settings = settings
        self._clean_up = clean_up
        #: answered when it is removed
        self.waiting_jobs: list[str] = []
        self._is_forced = False
        self._is_over = False
        self._since: float | None = None

    def join(self, job_id: str, *, force: bool) -> None:
        """Add a job that waits for the end."""
        self.waiting_jobs.append(job_id)
        self._is_forced = self._is_forced or force
        self._since = None  # it may wait again

    def follow(self, crashed: "Removal") -> None:
        """Take over the waiting jobs of a crashed instance."""
        self.waiting_jobs, self._is_forced = [*crashed.waiting_jobs], crashed._is_forced

    def handle_answer(self, answer: Answered[Any]) -> None:
        """The clean-up was tried: with force, that is enough."""
        if isinstance(answer.question, ReleaseSource):
            self._is_over = self._is_over or self._is_forced

    def tick(self, feed: ChangefeedState, cluster: str, namespace: str, now: float) -> list[Effect]:
        """Run the next step."""
        assert feed.info is not None, "what has no info is swept"
        assert feed.info.state is FeedState.REMOVED, "the state comes first: keys go when nobody runs it any more"
        self._since = now if self._since is None else self._since
        if self._is_over or self._clean_up.is_done:
            if many := _delete_first(feed, cluster, namespace):
                return [many]
            jobs, self.waiting_jobs = tuple(self.waiting_jobs), []
            return [Commit(_delete_all(feed, cluster, namespace), jobs), *(Answer(job) for job in jobs)]
        effects = self._give_up_waiting(now)
        return [*effects, *self._clean_up.tick(feed.id, feed.info, now)]

    def _give_up_waiting(self, now: float) -> list[Effect]:
        """Answer jobs with the current obstacle; the removal continues without them."""
        error = self._clean_up.error
        if not error or self._since is None or now - self._since < self._settings.remove_patience_s:
            return []
        jobs, self.waiting_jobs = self.waiting_jobs, []
        text = f"it is stopped and marked removed, but its source is not cleaned up: {error}; tried again until done"
        return [*(Answer(job, text, "JobRefused") for job in jobs), Log("warning", "source not cleaned up")]


def sweep(feed: ChangefeedState, cluster: str, namespace: str) -> list[Effect]:
    """Delete what a stale writer left of a removed changefeed, which a later one of the same id must not find.

    Nothing is deleted while its info exists but cannot be read, or if it is being created again.
    """
    info = keys.InfoKey(cluster, namespace, feed.id)
    if feed.info is not None or str(info) in feed.broken:
        return []
    leftovers = [*_many(feed, cluster, namespace), *_few(feed, cluster, namespace)][:_DELETED_AT_ONCE]
    return [Commit(patches.group(map(patches.delete, leftovers), requires=[info]))]


def _delete_first(feed: ChangefeedState, cluster: str, namespace: str) -> Commit | None:
    """Delete some keys before the others, if there are too many for one transaction."""
    many, few = _many(feed, cluster, namespace), _few(feed, cluster, namespace)
    if not many or len(many) + len(few) < _DELETED_AT_ONCE:
        return None
    return Commit(patches.group(map(patches.delete, many[:_DELETED_AT_ONCE])))


def _delete_all(feed: ChangefeedState, cluster: str, namespace: str) -> patches.PatchGroup:
    info = keys.InfoKey(cluster, namespace, feed.id)
    doomed = dict.fromkeys([info, *_few(feed, cluster, namespace), *_many(feed, cluster, namespace)])
    return patches.group(map(patches.delete, doomed))


def _few(feed: ChangefeedState, cluster: str, namespace: str) -> list[keys.Key]:
    """Return keys without its info that are one for each changefeed, source or capture."""
    return [
        keys.StatusKey(cluster, namespace, feed.id),
        keys.AssignmentKey(cluster, namespace, feed.id),
        *(keys.PositionKey(cluster, namespace, capture, feed.id) for capture in sorted(feed.positions)),
        *(keys.UnitKey(cluster, namespace, feed.id, source) for source in sorted(feed.units)),
        *(keys.LogKey(cluster, namespace, feed.id, source) for source in sorted(feed.heads)),
        *(keys.AttemptKey(cluster, namespace, feed.id, capture) for capture in sorted(feed.attempts)),
        *(keys.SchemaAttemptKey(cluster, namespace, feed.id, capture) for capture in sorted(feed.schema_attempts)),
        keys.SuspectsKey(cluster, namespace, feed.id),
        keys.LastDiffKey(cluster, namespace, feed.id),
        keys.DiffProgressKey(cluster, namespace, feed.id),
        keys.SignalsKey(cluster, namespace, feed.id),
        *(keys.StreamAttemptKey(cluster, namespace, feed.id, source) for source in sorted(feed.stream_attempts)),
    ]


def _many(feed: ChangefeedState, cluster: str, namespace: str) -> list[keys.Key]:
    """Return keys of which there is no bound."""
    info = keys.InfoKey(cluster, namespace, feed.id)
    unreadable = [keys.parse(key) for key in sorted(feed.broken) if key != str(info)]
    return [
        *(keys.DdlKey(cluster, namespace, feed.id, ts) for ts in sorted(feed.ddl)),
        *(keys.SyncPointKey(cluster, namespace, feed.id, ts) for ts in sorted(feed.sync_points)),
        *(keys.PartitioningKey(cluster, namespace, feed.id, table) for table in sorted(feed.partitionings)),
        *(keys.HeldKey(cluster, namespace, feed.id, table) for table in sorted(feed.held)),
        *(keys.ResyncKey(cluster, namespace, feed.id, table) for table in sorted(feed.resyncs)),
        *(keys.SubscriptionKey(cluster, namespace, feed.id, name) for name in sorted(feed.subscriptions)),
        *(keys.PartKey(cluster, namespace, feed.id, name) for name in sorted(feed.parts)),
        *unreadable,
    ]
