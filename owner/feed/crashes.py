"""Crashes: after a crash, the owner's part of a changefeed is recreated from etcd's records.

    crashed ──► fenced: a new epoch, which rejects messages of the previous run ──► recreated after a delay
       └── too often ──► failed

After a crash the memory cannot be trusted, and captures would report only changes since their last report. So the next
instance runs under a new epoch, as after a stop, and captures report everything again. The crash is counted in etcd,
with those of this capture's actors.
"""

from owner.feed.faults import running_error
from owner.feed.site import Site
from owner.feed.state import Trigger, is_running, step
from reactor import keys, patches
from reactor.effects import Commit, Effect, WakeAt
from reactor.errors import CrashedTooOftenError
from reactor.records.changefeed import FeedState, RunningError
from reactor.records.task_position import TaskPosition
from reactor.restarts import RestartBudget, RestartPolicy
from reactor.state import ChangefeedState

_MAY_FAIL = (FeedState.NORMAL, FeedState.WARNING, FeedState.PENDING)


class Crashes:
    """The crashes of one changefeed under one owner; created at the first one."""

    def __init__(self, site: Site, policy: RestartPolicy) -> None:
        self._site = site
        self._policy = policy
        self._budget = RestartBudget(policy)
        self._not_before = 0.0
        #: the epoch in which it crashed
        self._epoch: int | None = None
        #: set when it has crashed too often
        self._last: RunningError | None = None

    def note(self, feed: ChangefeedState, error: Exception, now: float, *, wall: float) -> list[Effect]:
        """Record a crash."""
        delay_s = self._budget.spend(now)
        self._not_before = now + (self._policy.delay_s_max if delay_s is None else delay_s)
        self._epoch = feed.info.epoch if feed.info is not None else None
        name = f"the owner's part of changefeed {feed.id}"
        if delay_s is None:
            self._last = running_error(CrashedTooOftenError.of(name, error), self._site.capture, time=wall)
        text = f"{name} crashed ({type(error).__name__}) and began again; see the log of its capture"
        shown = RunningError(code="OwnerCrashed", message=text, capture=self._site.capture, time=wall)
        return [self._count(feed, shown), WakeAt(now)]

    def hold_back(self, feed: ChangefeedState, now: float) -> list[Effect]:
        """Return the effects that replace a tick; none once it may be ticked again."""
        info = feed.info
        if self._last is not None and info is not None and info.state in _MAY_FAIL:
            after = step(info, Trigger.FAIL, error=self._last)
        elif info is not None and is_running(info.state) and info.epoch == self._epoch:
            after = step(info, Trigger.CRASH)
        else:
            self._epoch = self._last = None
            return [WakeAt(self._not_before)] if now < self._not_before else []
        after = after.with_(state_since=self._last.time) if self._last is not None else after
        key = keys.InfoKey(self._site.cluster, self._site.namespace, feed.id)
        return [Commit(patches.group([patches.replace_record(key, info, after)])), WakeAt(now)]

    def _count(self, feed: ChangefeedState, error: RunningError) -> Commit:
        key = keys.PositionKey(self._site.cluster, self._site.namespace, self._site.capture, feed.id)
        patch = patches.patch_record(key, TaskPosition, lambda old: (old or TaskPosition()).crashed(1, error))
        return Commit(patches.group([patch], requires=[keys.CaptureKey(self._site.cluster, self._site.capture)]))
