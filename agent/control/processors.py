"""Processor set: starts and stops one processor for every changefeed that should run, under its current epoch.

A reactor over etcd's state. It starts and stops processors, reports to each what has moved in its changefeed, and
carries their errors to the owner through ``TaskPosition``. A processor of an old epoch ends before the new one starts,
and one that failed is not started again under the same epoch: the owner decides when to try again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from agent.control.gate import Owner
from reactor import keys, patches
from reactor.effects import Commit, Effect
from reactor.errors import Scope
from reactor.ids import CaptureId, ChangefeedId
from reactor.records.changefeed import ChangefeedInfo, FeedState, RunningError
from reactor.records.formats import Feature
from reactor.records.task_position import TaskPosition
from reactor.state import ChangefeedState, ClusterState

_RUNNING = (FeedState.NORMAL, FeedState.WARNING)
_SHOW_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class StartProcessor:
    changefeed: ChangefeedId
    info: ChangefeedInfo


@dataclass(frozen=True, slots=True)
class StopProcessor:
    """Answered by ``ProcessorEnded`` when nothing of it runs any more."""

    changefeed: ChangefeedId


@dataclass(frozen=True, slots=True)
class Observe:
    """What etcd now holds about the changefeed of a running processor."""

    changefeed: ChangefeedId
    feed: ChangefeedState


@dataclass(frozen=True, slots=True)
class MeetOwner:
    """etcd shows another owner: only what it says counts from now on."""

    owner: Owner


@dataclass(frozen=True, slots=True)
class MeetPeers:
    """The captures of the cluster and where they listen for each other have changed."""

    addresses: tuple[tuple[CaptureId, str], ...]


ManagerEffect = Effect | StartProcessor | StopProcessor | Observe | MeetOwner | MeetPeers


@dataclass(frozen=True, slots=True)
class ProcessorEnded:
    changefeed: ChangefeedId


@dataclass(frozen=True, slots=True)
class ProcessorReported:
    """An error (the changefeed cannot continue like this) or a warning (it continues) of one processor.

    An error of one table ends no processor: the owner takes the table out, and the others flow.
    """

    changefeed: ChangefeedId
    epoch: int
    error: RunningError
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class ProcessorCrashed:
    """An actor of a changefeed crashed, and is started again."""

    changefeed: ChangefeedId
    error: RunningError


class Processors:
    """The reactor. ``namespace`` and ``cluster`` place the keys it writes."""

    def __init__(self, capture: CaptureId, *, cluster: str, namespace: str = keys.DEFAULT_NAMESPACE) -> None:
        self.capture = capture
        self._cluster = cluster
        self._namespace = namespace
        self._running: dict[ChangefeedId, int] = {}
        self._stopping: set[ChangefeedId] = set()
        self._failed: dict[ChangefeedId, int] = {}
        #: what each processor was shown last, and when
        self._shown: dict[ChangefeedId, tuple[int, float]] = {}
        self._peers: tuple[tuple[CaptureId, str], ...] = ()
        self._owner = Owner()
        #: how many since the last tick, and the last of them
        self._crashes: dict[ChangefeedId, tuple[int, RunningError]] = {}

    def tick(self, state: ClusterState, inbox: Sequence[object], now: float) -> list[ManagerEffect]:
        effects = [*self._meet_peers(state), *self._meet_owner(state)]
        for event in inbox:
            effects += self._handle(event, state)
        if self._crashes:
            effects += self._count_crashes(state)
        for changefeed in sorted(self._running.keys() | state.changefeeds.keys()):
            effects += self._settle(changefeed, state.changefeeds.get(changefeed), now)
        return effects

    def validate(self) -> None:
        """Assert what holds between two ticks."""
        assert self._stopping <= self._running.keys(), "what does not run is stopping"
        assert self._shown.keys() <= self._running.keys(), "what does not run is shown what is in etcd"
        for changefeed, epoch in self._failed.items():
            is_over = self._running.get(changefeed) != epoch or changefeed in self._stopping
            assert is_over, f"{changefeed} has failed under epoch {epoch}, and still runs"

    def _meet_peers(self, state: ClusterState) -> list[ManagerEffect]:
        peers = tuple(sorted((info.id, info.peer_address) for info in state.captures.values()))
        if peers == self._peers:
            return []
        self._peers = peers
        return [MeetPeers(peers)]

    def _meet_owner(self, state: ClusterState) -> list[ManagerEffect]:
        """One that has left is the owner until the next is elected: what it has ordered is the next one's to find."""
        if state.owner is None or state.owner.revision <= self._owner.revision:
            return []
        self._owner = Owner(state.owner.capture, state.owner.revision)
        return [MeetOwner(self._owner)]

    def _handle(self, event: object, state: ClusterState) -> list[ManagerEffect]:
        match event:
            case ProcessorEnded():
                self._running.pop(event.changefeed, None)
                self._shown.pop(event.changefeed, None)
                self._stopping.discard(event.changefeed)
            case ProcessorReported():
                return self._report(event, state)
            case ProcessorCrashed():
                count, _ = self._crashes.get(event.changefeed, (0, event.error))
                self._crashes[event.changefeed] = count + 1, event.error
        return []

    def _count_crashes(self, state: ClusterState) -> list[ManagerEffect]:
        """What crashed since the last tick, as one change of each changefeed: a thousand spans may crash at once."""
        crashes, self._crashes = self._crashes, {}
        known = [(id, *crashed) for id, crashed in crashes.items() if id in state.changefeeds]
        return [self._change(id, partial(TaskPosition.crashed, count=count, error=error)) for id, count, error in known]

    def _settle(self, changefeed: ChangefeedId, feed: ChangefeedState | None, now: float) -> list[ManagerEffect]:
        wanted = self._wanted(feed)
        epoch = self._running.get(changefeed)
        if changefeed in self._stopping or (wanted is None and epoch is None):
            return []
        if wanted is not None and epoch is None and self._failed.get(changefeed) != wanted.epoch:
            self._running[changefeed] = wanted.epoch
            assert feed is not None, "what is wanted is there"
            self._shown[changefeed] = feed.change, now
            return [StartProcessor(changefeed, wanted), Observe(changefeed, feed)]
        if epoch is not None and (wanted is None or wanted.epoch != epoch):
            self._stopping.add(changefeed)
            return [StopProcessor(changefeed)]
        return (
            [Observe(changefeed, feed)] if feed is not None and epoch is not None and self._is_news(feed, now) else []
        )

    def _is_news(self, feed: ChangefeedState, now: float) -> bool:
        """What has not changed is shown again now and then: a processor that could not keep up has missed it."""
        change, at = self._shown.get(feed.id, (0, float("-inf")))
        is_news = feed.change != change or now - at >= _SHOW_AGAIN_S
        if is_news:
            self._shown[feed.id] = feed.change, now
        return is_news

    def _wanted(self, feed: ChangefeedState | None) -> ChangefeedInfo | None:
        """The changefeed as it should run here; None when it should not. What cannot be read is left as it is."""
        if feed is None or feed.info is None or feed.status is None or feed.info.state not in _RUNNING:
            return None
        return feed.info

    def _report(self, event: ProcessorReported, state: ClusterState) -> list[ManagerEffect]:
        feed = state.changefeeds.get(event.changefeed)
        if feed is None or feed.info is None or feed.info.epoch != event.epoch:
            return []
        if state.format < Feature.HELD_TABLES and event.error.is_of_table:
            # the owner may be of a version that does not look for errors of single tables
            event = replace(event, error=event.error.with_(scope=Scope.CHANGEFEED))
        effects: list[ManagerEffect] = [self._commit(event)]
        if not event.is_warning and not event.error.is_of_table:
            self._failed[event.changefeed] = event.epoch
            if event.changefeed in self._running and event.changefeed not in self._stopping:
                self._stopping.add(event.changefeed)
                effects.append(StopProcessor(event.changefeed))
        return effects

    def _commit(self, event: ProcessorReported) -> Commit:
        error = event.error.with_(capture=self.capture)
        return self._change(event.changefeed, lambda old: _with(old, event, error))

    def _change(self, changefeed: ChangefeedId, change: Callable[[TaskPosition], TaskPosition]) -> Commit:
        key = keys.PositionKey(self._cluster, self._namespace, self.capture, changefeed)
        patch = patches.patch_record(key, TaskPosition, lambda old: change(old or TaskPosition()))
        alive = keys.CaptureKey(self._cluster, self.capture)
        return Commit(patches.group([patch], requires=[alive]))


def _with(position: TaskPosition, event: ProcessorReported, error: RunningError) -> TaskPosition:
    if event.is_warning:
        return position.with_(warning=error)
    if error.is_of_table:
        others = (known for known in position.tables if known.table_id != error.table_id)
        return position.with_(tables=(*others, error))
    return position.with_(error=error)
