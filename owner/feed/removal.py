"""Removal of a changefeed, in an order that a crash at any point does not harm.

    state removed (it stops) ──► source cleaned up ──► all keys deleted in one transaction ──► answered

The state comes first, so that whoever becomes owner continues from there. The sink's tables stay.
"""

from typing import Any

from owner.feed.clean_up import CleanUp
from owner.questions import ReleaseSource
from owner.settings import OwnerSettings
from reactor import keys, patches
from reactor.effects import Answer, Commit, Effect, Log
from reactor.questions import Answered
from reactor.records.changefeed import FeedState
from reactor.state import ChangefeedState


class Removal:
    """What is left to do for one changefeed in state removed."""

    def __init__(self, settings: OwnerSettings, clean_up: CleanUp) -> None:
        self._settings = settings
        self._clean_up = clean_up
        self._waiting_jobs: list[str] = []
        self._is_forced = False
        self._is_over = False
        self._since: float | None = None

    def join(self, job_id: str, *, force: bool) -> None:
        """A job that wants to know when it is over."""
        self._waiting_jobs.append(job_id)
        self._is_forced = self._is_forced or force
        self._since = None  # it may wait again

    def follow(self, crashed: "Removal") -> None:
        """Answer those who wait for the one before."""
        self._waiting_jobs, self._is_forced = [*crashed._waiting_jobs], crashed._is_forced

    def handle_answer(self, answer: Answered[Any]) -> None:
        """The clean-up was tried: with force, that is enough."""
        if isinstance(answer.question, ReleaseSource):
            self._is_over = self._is_over or self._is_forced

    def tick(self, feed: ChangefeedState, cluster: str, namespace: str, now: float) -> list[Effect]:
        """The next step."""
        assert feed.info is not None, "what has no info is swept"
        assert feed.info.state is FeedState.REMOVED, "the state comes first: keys go when nobody runs it any more"
        self._since = now if self._since is None else self._since
        if self._is_over or self._clean_up.is_done:
            jobs, self._waiting_jobs = self._waiting_jobs, []
            return [Commit(_delete_all(feed, cluster, namespace)), *(Answer(job) for job in jobs)]
        effects = self._give_up_waiting(now)
        return [*effects, *self._clean_up.tick(feed.id, feed.info, now)]

    def _give_up_waiting(self, now: float) -> list[Effect]:
        """Jobs are answered with what is in the way; the removal continues without them."""
        error = self._clean_up.error
        if not error or self._since is None or now - self._since < self._settings.remove_patience_s:
            return []
        jobs, self._waiting_jobs = self._waiting_jobs, []
        text = f"it is stopped and marked removed, but its source is not cleaned up: {error}; tried again until done"
        return [*(Answer(job, text, "JobRefused") for job in jobs), Log("warning", "source not cleaned up")]


def sweep(feed: ChangefeedState, cluster: str, namespace: str) -> list[Effect]:
    """Delete what a stale writer left of a changefeed that is gone: a later one of the same id must not find it.

    Nothing is deleted while its info is there but cannot be read, or if it is created again in the same moment.
    """
    info = keys.InfoKey(cluster, namespace, feed.id)
    if feed.info is not None or str(info) in feed.broken:
        return []
    group = _delete_all(feed, cluster, namespace)
    leftovers = [patch for patch in group.patches if patch.key != str(info)]
    return [Commit(patches.group(leftovers, requires=[info]))]


def _delete_all(feed: ChangefeedState, cluster: str, namespace: str) -> patches.PatchGroup:
    doomed: list[keys.Key] = [
        keys.InfoKey(cluster, namespace, feed.id),
        keys.StatusKey(cluster, namespace, feed.id),
        *(keys.PositionKey(cluster, namespace, capture, feed.id) for capture in sorted(feed.positions)),
        *(keys.UnitKey(cluster, namespace, feed.id, source) for source in sorted(feed.units)),
        *(keys.LogKey(cluster, namespace, feed.id, source) for source in sorted(feed.heads)),
        *(keys.DdlKey(cluster, namespace, feed.id, ts) for ts in sorted(feed.ddl)),
        *(keys.SyncPointKey(cluster, namespace, feed.id, ts) for ts in sorted(feed.sync_points)),
        *(keys.PartitioningKey(cluster, namespace, feed.id, table) for table in sorted(feed.partitionings)),
        *(keys.HeldKey(cluster, namespace, feed.id, table) for table in sorted(feed.held)),
    ]
    unreadable = [keys.parse(key) for key in sorted(feed.broken)]
    return patches.group(patches.delete(key) for key in dict.fromkeys([*doomed, *unreadable]))
