"""Processor set: runs one processor for every changefeed that should run, under its current epoch.

A reactor over etcd's state. It starts and stops processors, informs each of changes of its changefeed, and forwards
their errors to the owner through ``TaskPosition``. A processor of an old epoch ends before the new one starts. A failed
one is not restarted under the same epoch: the owner decides when to retry.
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
#: interval at which unchanged records are shown again; of many changefeeds, so many a second
_SHOW_AGAIN_S, _SHOWN_PER_S = 5.0, 10.0
#: interval at which all are settled; of many, so many a second
_ALL_S, _ALL_PER_S = 0.5, 100.0


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
    """The current records of the changefeed of a running processor."""

    changefeed: ChangefeedId
    feed: ChangefeedState


@dataclass(frozen=True, slots=True)
class MeetOwner:
    """etcd shows another owner of a changefeed: only its messages are valid from now on. Revision 0: the changefeed is
    gone."""

    changefeed: ChangefeedId
    owner: Owner


@dataclass(frozen=True, slots=True)
class MeetPeers:
    """The captures of the cluster, or their peer addresses, have changed."""

    addresses: tuple[tuple[CaptureId, str], ...]


ManagerEffect = Effect | StartProcessor | StopProcessor | Observe | MeetOwner | MeetPeers


@dataclass(frozen=True, slots=True)
class ProcessorEnded:
    changefeed: ChangefeedId


@dataclass(frozen=True, slots=True)
class ProcessorReported:
    """An error (the changefeed cannot continue) or a warning (it continues) of one processor.

    An error of one table ends no processor: the owner holds the table, and the others continue.
    """

    changefeed: ChangefeedId
    epoch: int
    error: RunningError
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class ProcessorCrashed:
    """An actor of a changefeed crashed, and is restarted."""

    changefeed: ChangefeedId
    error: RunningError


@dataclass(frozen=True, slots=True)
class FaultOver:
    """The capture now has what it lacked for the changefeed."""

    changefeed: ChangefeedId


class Processors:
    """The reactor. ``namespace`` and ``cluster`` locate the keys it writes."""

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
        #: the state, and how many changes of it have been settled; and what was last of the cluster
        self._seen: tuple[ClusterState | None, int] = None, 0
        self._shared: object = None
        #: when all changefeeds are settled, whatever has changed
        self._all_at = float("-inf")
        #: those that something has happened to here
        self._touched: set[ChangefeedId] = set()
        #: as the host knows them
        self._owners: dict[ChangefeedId, Owner] = {}
        #: crashes since the last tick, and the last of them
        self._crashes: dict[ChangefeedId, tuple[int, RunningError]] = {}

    def tick(self, state: ClusterState, inbox: Sequence[object], now: float) -> list[ManagerEffect]:
        changed = self._changed(state, now)
        effects = [*self._meet_peers(state), *self._meet_owners(state, changed)]
        for event in inbox:
            effects += self._handle(event, state)
        if self._crashes:
            effects += self._count_crashes(state)
        touched, self._touched = self._touched, set()
        for changefeed in sorted(touched.union(changed)):
            effects += self._settle(changefeed, state.changefeeds.get(changefeed), now)
        return effects

    def validate(self) -> None:
        """Assert the invariants between two ticks."""
        assert self._stopping <= self._running.keys(), "a processor is stopping that does not run"
        assert self._shown.keys() <= self._running.keys(), "state was shown to a processor that does not run"
        for changefeed, epoch in self._failed.items():
            is_over = self._running.get(changefeed) != epoch or changefeed in self._stopping
            assert is_over, f"{changefeed} failed under epoch {epoch}, and still runs"

    def _changed(self, state: ClusterState, now: float) -> Sequence[ChangefeedId]:
        """Return the changefeeds whose records have changed since the last tick, by id, with those that are gone; at
        intervals all of them."""
        of, seen = self._seen
        self._seen = state, state.changes.latest
        shared = (state.owner, state.format)
        if of is state and shared == self._shared and now < self._all_at:
            return sorted(state.changes.since(seen))
        self._shared, self._all_at = shared, now + max(_ALL_S, len(state.changefeeds) / _ALL_PER_S)
        return sorted(state.changefeeds.keys() | self._running.keys() | self._owners.keys())

    def _meet_peers(self, state: ClusterState) -> list[ManagerEffect]:
        peers = tuple(sorted((info.id, info.peer_address) for info in state.captures.values()))
        if peers == self._peers:
            return []
        self._peers = peers
        return [MeetPeers(peers)]

    def _meet_owners(self, state: ClusterState, changed: Sequence[ChangefeedId]) -> list[ManagerEffect]:
        """An owner that has left remains the owner until there is another, which learns the state itself."""
        gone = [id for id in changed if id not in state.changefeeds and self._owners.pop(id, None) is not None]
        effects: list[ManagerEffect] = [MeetOwner(changefeed, Owner()) for changefeed in gone]
        for changefeed in [id for id in changed if id in state.changefeeds]:
            owner, known = state.owner_of(changefeed), self._owners.get(changefeed)
            if owner is not None and owner.revision > (known.revision if known else 0):
                self._owners[changefeed] = Owner(owner.capture, owner.revision)
                effects.append(MeetOwner(changefeed, self._owners[changefeed]))
        return effects

    def _handle(self, event: object, state: ClusterState) -> list[ManagerEffect]:
        match event:
            case ProcessorEnded():
                self._touched.add(event.changefeed)
                self._running.pop(event.changefeed, None)
                self._shown.pop(event.changefeed, None)
                self._stopping.discard(event.changefeed)
            case ProcessorReported():
                return self._report(event, state)
            case ProcessorCrashed():
                count, _ = self._crashes.get(event.changefeed, (0, event.error))
                self._crashes[event.changefeed] = count + 1, event.error
            case FaultOver() if event.changefeed in state.changefeeds:
                return [self._change(event.changefeed, lambda old: old.with_(fault=None))]
        return []

    def _count_crashes(self, state: ClusterState) -> list[ManagerEffect]:
        """Report the crashes since the last tick as one change per changefeed: a thousand spans may crash at once."""
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
            self._shown[changefeed] = feed.moves, now
            return [StartProcessor(changefeed, wanted), Observe(changefeed, feed)]
        if epoch is not None and (wanted is None or wanted.epoch != epoch):
            self._stopping.add(changefeed)
            return [StopProcessor(changefeed)]
        return (
            [Observe(changefeed, feed)] if feed is not None and epoch is not None and self._is_news(feed, now) else []
        )

    def _is_news(self, feed: ChangefeedState, now: float) -> bool:
        """Unchanged records are repeated at intervals: a processor that could not keep up may have missed them. None
        looks at its owner's progress."""
        moves, at = self._shown.get(feed.id, (0, float("-inf")))
        again_s = max(_SHOW_AGAIN_S, len(self._running) / _SHOWN_PER_S)
        is_news = feed.moves != moves or now - at >= again_s
        if is_news:
            self._shown[feed.id] = feed.moves, now
        return is_news

    def _wanted(self, feed: ChangefeedState | None) -> ChangefeedInfo | None:
        """Return the changefeed as it should run here, or None. If its records cannot be read, nothing is changed."""
        if feed is None or feed.info is None or feed.stored_status is None or feed.info.state not in _RUNNING:
            return None
        return feed.info

    def _report(self, event: ProcessorReported, state: ClusterState) -> list[ManagerEffect]:
        feed = state.changefeeds.get(event.changefeed)
        if feed is None or feed.info is None or feed.info.epoch != event.epoch:
            return []
        if state.format < Feature.HELD_TABLES and event.error.is_of_table:
            # the owner may be of a version that does not read errors of single tables
            event = replace(event, error=event.error.with_(scope=Scope.CHANGEFEED))
        effects: list[ManagerEffect] = [self._commit(event)]
        if not event.is_warning and not event.error.is_of_table:
            if event.error.scope is not Scope.CAPTURE:  # another run may have what this one lacked
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
    if error.scope is Scope.CAPTURE:
        is_known = position.fault is not None and position.fault.message == error.message
        return position if is_known else position.with_(warning=error, fault=error)
    if event.is_warning:
        return position.with_(warning=error)
    if error.is_of_table:
        others = (known for known in position.tables if known.table_id != error.table_id)
        return position.with_(tables=(*others, error))
    return position.with_(error=error)
