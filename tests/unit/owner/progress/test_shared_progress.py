"""Progress of all owners of a capture in one record, over the in-memory store."""

from collections.abc import Iterable
from random import Random

import pytest

from owner.controller.controller import Controller
from owner.metadata.observations import ControllerObservation, OwnerObservation
from owner.metadata.schedule import ScheduledChangefeed
from owner.progress.shared_progress import SharedProgress
from owner.settings import OwnerSettings
from reactor import keys, patches
from reactor.effects import Commit, Effect, WakeAt
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.membership.progress import furthest
from reactor.records.capture import CaptureInfo, OwnerState
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, FeedState, SealedUri
from reactor.records.formats import ClusterFormat, Feature
from reactor.state import ClusterState
from reactor.store.memory import MemoryEtcd
from reactor.store.port import Put
from reactor.txn import Seen, plan

A, B = CaptureId("a"), CaptureId("b")
_NS = keys.DEFAULT_NAMESPACE


class Store:
    """A store, and the decisions that are committed to it."""

    def __init__(self, *, number: int = Feature.PROGRESS) -> None:
        self.etcd = MemoryEtcd()
        self.writes: list[int] = []
        self._put(keys.FormatKey("c"), ClusterFormat(number=number).encode())
        for capture in (A, B):
            self.join(capture)

    def join(self, capture: CaptureId) -> None:
        info = CaptureInfo(
            id=capture,
            address="",
            peer_address="",
            version="1",
            cluster_id="c",
            started_at=0.0,
            format=Feature.PROGRESS,
        )
        self._put(keys.CaptureKey("c", capture), info.encode())

    def leave(self, capture: CaptureId) -> None:
        self.commit([Commit(patches.group([patches.delete(keys.CaptureKey("c", capture))]))])

    def create(self, id: ChangefeedId, *, incarnation: str, checkpoint_ts: int = 1) -> None:
        uri = SealedUri(masked="x://", sealed="")
        info = ChangefeedInfo(
            id=id, source=uri, sink=uri, start_ts=Ts(1), created_at=0.0, incarnation=incarnation, state=FeedState.NORMAL
        )
        self._put(keys.InfoKey("c", _NS, id), info.encode())
        self._put(keys.StatusKey("c", _NS, id), ChangefeedStatus(checkpoint_ts=Ts(checkpoint_ts)).encode())

    def remove(self, id: ChangefeedId) -> None:
        gone = (keys.InfoKey("c", _NS, id), keys.StatusKey("c", _NS, id), keys.AssignmentKey("c", _NS, id))
        self.commit([Commit(patches.group([patches.delete(key) for key in gone]))])

    def launch(self, id: ChangefeedId, capture: CaptureId) -> None:
        row = ScheduledChangefeed(id, capture, OwnerState.LAUNCHED)
        self.commit([ControllerObservation(self.state()).set_owner(row)])

    def hand_over(self, id: ChangefeedId, latest: ChangefeedStatus | None = None) -> None:
        state = self.state()
        self.commit([OwnerObservation(state.changefeeds[id], state).post_removed(latest)])

    def state(self) -> ClusterState:
        state = ClusterState("c", removal_grace_s=0.0)
        state.load(self.etcd.get_prefix("/weir/c/"))
        state.begin_tick(0.0)
        return state

    def status(self, id: ChangefeedId) -> ChangefeedStatus:
        status = self.state().changefeeds[id].status
        assert status is not None
        return status

    def commit(self, effects: Iterable[Effect]) -> None:
        raw = self.state().raw
        groups = [Seen.of(effect.group, raw) for effect in effects if isinstance(effect, Commit)]
        while groups:
            planned = plan(groups, self.state().raw, delete_count_key=str(keys.DeleteCountKey("c")))
            assert not planned.rejected
            assert self.etcd.txn(planned.txn.compares, planned.txn.operations).succeeded
            self.writes.append(len(planned.txn.operations))
            groups = list(planned.left)

    def _put(self, key: keys.Key, value: bytes) -> None:
        self.etcd.txn([], [Put(str(key), value)])


def at(store: Store, id: ChangefeedId, ts: int) -> ChangefeedStatus:
    return store.status(id).with_(checkpoint_ts=Ts(ts))


def feeds(count: int) -> list[ChangefeedId]:
    return [ChangefeedId(f"f{number}") for number in range(count)]


@pytest.mark.matrix
def test_a_thousand_owners_of_a_capture_write_once() -> None:
    store, shared = Store(), SharedProgress(A, OwnerSettings())
    for id in feeds(1000):
        store.create(id, incarnation="1")
    latest = {id: ChangefeedStatus(checkpoint_ts=Ts(7)) for id in feeds(1000)}
    store.commit(shared.tick(store.state(), latest, 100.0))
    assert store.writes == [1]
    state = store.state()
    assert all(state.changefeeds[id].status == ChangefeedStatus(checkpoint_ts=Ts(7)) for id in feeds(1000))


def test_it_writes_once_per_interval_and_times_alone_less_often() -> None:
    store, shared = Store(), SharedProgress(A, OwnerSettings())
    id, other = feeds(2)
    for one in (id, other):
        store.create(one, incarnation="1")
    store.commit(shared.tick(store.state(), {id: at(store, id, 2)}, 100.0))
    assert shared.tick(store.state(), {id: at(store, id, 2)}, 100.1) == [], "it is stored"
    assert shared.tick(store.state(), {other: at(store, other, 3)}, 100.1) == [WakeAt(100.2)]
    store.commit(shared.tick(store.state(), {other: at(store, other, 3)}, 100.2))
    assert (store.status(id).checkpoint_ts, store.status(other).checkpoint_ts) == (2, 3)
    later = store.status(id).with_(checkpoint_time=9.0)
    assert shared.tick(store.state(), {id: later}, 101.0) == [WakeAt(105.2)]
    store.commit(shared.tick(store.state(), {id: later}, 105.2))
    assert store.status(id).checkpoint_time == 9.0


def test_what_its_owner_knows_from_before_brings_no_old_progress_back() -> None:
    """The run's newest status is of before the one that was stored when it finished."""
    store, shared = Store(), SharedProgress(A, OwnerSettings())
    (id,) = feeds(1)
    store.create(id, incarnation="1")
    store.launch(id, A)
    before = store.status(id)
    store.commit(shared.tick(store.state(), {id: before.with_(checkpoint_ts=Ts(2))}, 100.0))
    latest = store.status(id).with_(checkpoint_ts=Ts(6))
    feed = store.state().changefeeds[id]
    key = keys.StatusKey("c", _NS, id)
    finished = Commit(patches.group([patches.replace_record(key, feed.stored_status, feed.to_store(latest))]))
    store.commit([finished])
    assert store.status(id).generation > latest.generation
    store.hand_over(id, latest)
    assert store.status(id).checkpoint_ts == 6


@pytest.mark.parametrize("is_known", [False, True])
def test_progress_that_is_on_its_way_does_not_count_for_what_is_stored_behind_it(is_known: bool) -> None:
    stored = ChangefeedStatus(checkpoint_ts=Ts(2), generation=4)
    latest = stored.with_(checkpoint_ts=Ts(2 if is_known else 6), generation=3)
    found = furthest(stored, latest)
    assert found is not None
    assert (found.checkpoint_ts, found.generation) == ((2, 4) if is_known else (6, 5))


@pytest.mark.parametrize(("owned", "interval_s"), [(1, 0.2), (16, 0.2), (40, 0.5), (1000, 1.0)])
def test_many_are_written_less_often(owned: int, interval_s: float) -> None:
    store, shared = Store(), SharedProgress(A, OwnerSettings())
    (id,) = feeds(1)
    store.create(id, incarnation="1")
    store.commit(shared.tick(store.state(), {id: at(store, id, 2)}, 100.0, owned=owned))
    assert shared.ahead == {id}
    assert shared.tick(store.state(), {id: at(store, id, 3)}, 100.1, owned=owned) == [WakeAt(100.0 + interval_s)]
    assert shared.tick(store.state(), {id: at(store, id, 2)}, 102.0, owned=owned) == []
    assert not shared.ahead, "it is stored"


def test_older_captures_have_no_such_record() -> None:
    store, shared = Store(number=Feature.OWNERS), SharedProgress(A, OwnerSettings())
    (id,) = feeds(1)
    store.create(id, incarnation="1")
    assert shared.tick(store.state(), {id: at(store, id, 2)}, 100.0) == []


def test_a_damaged_record_is_written_again() -> None:
    store, shared = Store(), SharedProgress(A, OwnerSettings())
    id, other = feeds(2)
    for one in (id, other):
        store.create(one, incarnation="1")
    latest = {one: at(store, one, 2) for one in (id, other)}
    store.commit(shared.tick(store.state(), latest, 100.0))
    state, key = store.state(), str(keys.ProgressKey("c", _NS, A))
    store.etcd.txn([], [Put(key, b"no JSON")])
    (item,) = store.etcd.get_prefix(key).items
    state.update(key, item.value, mod_revision=item.mod_revision, create_revision=item.create_revision)
    assert key in state.broken
    assert state.changefeeds[other].status == latest[other], "the last good one stays"
    store.commit(shared.tick(state, {id: at(store, id, 3)}, 101.0))
    assert [store.status(one).checkpoint_ts for one in (id, other)] == [3, 2]


def test_another_changefeed_of_the_same_name_begins_where_it_is_told() -> None:
    store, shared = Store(), SharedProgress(A, OwnerSettings())
    (id,) = feeds(1)
    store.create(id, incarnation="1")
    store.launch(id, A)
    store.commit(shared.tick(store.state(), {id: at(store, id, 500)}, 100.0))
    store.remove(id)
    store.create(id, incarnation="2", checkpoint_ts=3)
    assert store.status(id).checkpoint_ts == 3


def test_of_two_captures_progress_the_furthest_counts() -> None:
    """Both have been reached; a change by an operator makes both void."""
    store, here, there = Store(), SharedProgress(A, OwnerSettings()), SharedProgress(B, OwnerSettings())
    (id,) = feeds(1)
    store.create(id, incarnation="1")
    base = store.status(id)
    for shared, ts in ((here, 9), (there, 7)):
        ahead = store.state()
        ahead.progress.clear()  # neither has seen the other's
        store.commit(shared.tick(ahead, {id: base.with_(checkpoint_ts=Ts(ts))}, 100.0))
    assert len(store.state().progress) == 2
    assert store.status(id).checkpoint_ts == 9
    feed = store.state().changefeeds[id]
    after = feed.to_store(at(store, id, 4))
    key = keys.StatusKey("c", _NS, id)
    store.commit([Commit(patches.group([patches.replace_record(key, feed.stored_status, after)]))])
    assert store.status(id).checkpoint_ts == 4


def test_the_progress_of_a_capture_that_is_gone_is_moved_to_the_status_and_deleted_then() -> None:
    store, shared = Store(), SharedProgress(A, OwnerSettings())
    (id,) = feeds(1)
    store.create(id, incarnation="1")
    store.launch(id, A)
    store.commit(shared.tick(store.state(), {id: at(store, id, 500)}, 100.0))
    store.leave(A)
    controller = Controller(B, 1)
    for _ in range(3):
        store.commit(controller.tick(store.state(), [], 200.0))
    state = store.state()
    feed = state.changefeeds[id]
    assert feed.assignment is not None
    assert feed.assignment.capture == B
    assert feed.stored_status is not None
    assert (feed.stored_status.checkpoint_ts, state.progress) == (500, {})


@pytest.mark.sample(0.2)
@pytest.mark.parametrize("seed", range(30))
def test_progress_never_goes_back_over_moves_except_when_it_is_told_to(seed: int) -> None:
    """Owners of two captures, any order of writes, moves, changes by operators, and changefeeds that come again."""
    dice, store = Random(seed), Store()
    shared = {capture: SharedProgress(capture, OwnerSettings()) for capture in (A, B)}
    known = dict.fromkeys(feeds(3), 1)
    #: what owners know and nobody has stored
    latest: dict[ChangefeedId, int] = {}
    for id in known:
        store.create(id, incarnation="0")
    now = 0.0
    for number in range(120):
        now += 1.0
        id = dice.choice(list(known))
        state = store.state()
        owner = state.changefeeds[id].assignment
        match dice.choice(("advance", "advance", "write", "write", "move", "rewind", "status", "again")):
            case "advance" if owner is not None:
                latest[id] = latest.get(id, known[id]) + dice.randint(1, 9)
            case "write" if owner is not None:
                mine = {one: ts for one, ts in latest.items() if _owner(state, one) == owner.capture}
                running = {one: at(store, one, ts) for one, ts in mine.items()}
                store.commit(shared[owner.capture].tick(state, running, now))
                known |= mine
            case "move" if owner is None:
                store.launch(id, dice.choice((A, B)))
            case "move":
                ts = latest.pop(id, None)
                store.hand_over(id, at(store, id, ts) if ts else None)
                known[id] = ts or known[id]
            case "rewind" | "status" as change:
                latest.pop(id, None)
                known[id] = known[id] + 1 if change == "status" else max(1, known[id] - dice.randint(1, 9))
                feed = state.changefeeds[id]
                key = keys.StatusKey("c", _NS, id)
                after = feed.to_store(at(store, id, known[id]))
                store.commit([Commit(patches.group([patches.replace_record(key, feed.stored_status, after)]))])
            case "again":
                latest.pop(id, None)
                store.remove(id)
                store.create(id, incarnation=str(number))
                known[id] = 1
        assert {one: store.status(one).checkpoint_ts for one in known} == known


def _owner(state: ClusterState, id: ChangefeedId) -> CaptureId | None:
    assignment = state.changefeeds[id].assignment
    return assignment.capture if assignment else None
