"""Controller and owners of several captures over the in-memory store, on virtual time."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeGuard

import anyio
import pytest

from capture.errors import CaptureNotFoundError, ChangefeedNotFoundError, JobRefusedError
from capture.member.ownership import router
from capture.member.ownership.candidacy import Candidacy
from capture.member.ownership.owners import Owners
from capture.member.ownership.performer import OwnerSite
from owner import jobs
from owner.controller.controller import Controller
from owner.controller.hearing import Heard
from owner.metadata.observations import OwnerObservation
from owner.owner import Owner
from owner.questions import ReleaseSource
from reactor import keys, patches
from reactor.effects import Commit, Log
from reactor.errors import NotOwnerError, OwnerNotFoundError
from reactor.ids import CaptureId, ChangefeedId, Ts
from reactor.membership.session import Session, open_session
from reactor.patches import PatchGroup
from reactor.questions import Answered
from reactor.records.capture import Assignment, CaptureInfo, OwnerState
from reactor.records.changefeed import ChangefeedInfo, ChangefeedStatus, FeedState, SealedUri
from reactor.records.formats import ClusterFormat, Feature
from reactor.restarts import RestartPolicy
from reactor.settings import ReactorSettings
from reactor.state import ClusterState
from reactor.store.memory import MemoryClient, MemoryEtcd
from reactor.store.port import Compare, Delete, KeyValue, Put, Target
from reactor.txn import Seen, plan
from reactor.worker.loop import ReactorWorker
from tests.unit.capture.member.ownership.test_candidacy import NoPeers

pytestmark = pytest.mark.looptime

_NAMESPACE = keys.DEFAULT_NAMESPACE
_TTL_S = 10


class Member:
    """One capture's controller and owners; ``state`` as its processors' worker would see it."""

    def __init__(self, info: CaptureInfo, site: OwnerSite, watcher: ReactorWorker, scope: anyio.CancelScope) -> None:
        self.info = info
        self.state = watcher.state
        self.wait_change = watcher.wait_tick
        self.session = site.session
        self.candidacy, self.owners = Candidacy(site), Owners(site, policy=RestartPolicy())
        self._scope = scope

    def kill(self) -> None:
        """End at once; its lease runs out later."""
        self._scope.cancel()


class Cluster:
    """``number``: the format that the cluster begins with; ``known``: what the captures know."""

    def __init__(self, stack: AsyncExitStack, *, number: int = Feature.OWNERS) -> None:
        self.etcd = MemoryEtcd()
        self.members: dict[str, Member] = {}
        self._stack = stack
        self.put(keys.FormatKey("c"), ClusterFormat(number=number).encode())

    def put(self, key: keys.Key, value: bytes) -> None:
        self.etcd.txn([], [Put(str(key), value)])

    def create(self, name: str, *, checkpoint_ts: int = 5) -> ChangefeedId:
        id, uri = ChangefeedId(name), SealedUri(masked="x://", sealed="")
        info = ChangefeedInfo(id=id, source=uri, sink=uri, start_ts=Ts(1), created_at=0.0, state=FeedState.STOPPED)
        # time passes on: a changefeed that is stopped for too long fails
        self.put(keys.InfoKey("c", _NAMESPACE, id), info.with_(state_since=time.time()).encode())
        self.put(keys.StatusKey("c", _NAMESPACE, id), ChangefeedStatus(checkpoint_ts=Ts(checkpoint_ts)).encode())
        return id

    def change(self, name: str, **changes: object) -> None:
        key = keys.CaptureKey("c", CaptureId(name))
        (item,) = [item for item in self.etcd.get_prefix(str(key)).items if item.key == str(key)]
        value = CaptureInfo.decode(item.value, key=str(key)).with_(**changes).encode()
        self.etcd.txn([], [Put(str(key), value, item.lease)])

    async def start(self, name: str, *, known: int = Feature.OWNERS) -> Member:
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        ready, found = anyio.Event(), list[Member]()

        async def live() -> None:
            with anyio.CancelScope() as scope:
                async with _member(self.etcd, name, known, scope) as member:
                    found.append(member)
                    ready.set()
                    await anyio.sleep_forever()

        tasks.start_soon(live)
        self._stack.callback(tasks.cancel_scope.cancel)
        await ready.wait()
        self.members[name] = found[0]
        return found[0]

    def assignments(self) -> dict[str, Assignment]:
        found = self.etcd.get_prefix(f"/weir/c/{_NAMESPACE}/owner-of/").items
        return {item.key.rpartition("/")[2]: Assignment.decode(item.value, key=item.key) for item in found}

    def owners(self) -> dict[str, int]:
        return dict(Counter(str(one.capture) for one in self.assignments().values()))

    def revision(self, id: str) -> int:
        (item,) = self.etcd.get_prefix(f"/weir/c/{_NAMESPACE}/owner-of/{id}").items
        return item.create_revision

    @property
    def controller(self) -> Member:
        (found,) = [member for member in self.members.values() if member.candidacy.is_owner]
        return found


@asynccontextmanager
async def _member(etcd: MemoryEtcd, name: str, known: int, scope: anyio.CancelScope) -> AsyncIterator[Member]:
    client, capture = MemoryClient(etcd), CaptureId(name)
    async with _session(client) as session, anyio.create_task_group() as tasks:
        info = CaptureInfo(
            id=capture, address=name, peer_address="", version="1", cluster_id="c", started_at=0.0, format=known
        )
        key = str(keys.CaptureKey("c", capture))
        await client.put(key, info.encode(), lease=session.lease)
        item = await client.get(key)
        assert item is not None
        site = OwnerSite(
            capture=capture,
            cluster="c",
            client=client,
            session=session,
            registered=Compare(key, Target.CREATE_REVISION, item.create_revision),
            peers=NoPeers(),
            settings=ReactorSettings(session_ttl_s=_TTL_S),
            ask=lambda _ask, _post: None,
        )
        watcher = ReactorWorker(client, _Watcher(), state=ClusterState("c"), session=session, perform=lambda _: None)
        member = Member(info, site, watcher, scope)
        for work in (member.candidacy.run, member.owners.run, watcher.run):
            tasks.start_soon(work)
        yield member


class _Watcher:
    def tick(self, state: ClusterState, inbox: Any, now: float) -> list[object]:
        return []


@asynccontextmanager
async def _session(client: MemoryClient) -> AsyncIterator[Session]:
    """A session whose lease is not revoked when its process dies."""
    async with open_session(client, ttl_s=_TTL_S) as session:
        try:
            yield session
        finally:
            session._client = _Deaf()  # type: ignore[assignment]


class _Deaf:
    async def revoke(self, lease: int) -> None: ...


@asynccontextmanager
async def cluster(*names: str, feeds: int = 0, number: int = Feature.OWNERS) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        made = Cluster(stack, number=number)
        for name in names:
            await made.start(name)
        for one in range(feeds):
            made.create(f"feed{one:03}")
        yield made


async def until(condition: Callable[[], bool], *, within_s: float = 60.0) -> float:
    """Return how long it took."""
    started = anyio.current_time()
    with anyio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110 - virtual time
            await anyio.sleep(0.05)
    return anyio.current_time() - started


async def test_owners_are_spread_move_to_who_is_left_and_are_evened_out() -> None:
    """100 changefeeds on five captures: 20 each; one dies: 25 each within lease + 2 s; one comes: evened out."""
    async with cluster(*"abcde", feeds=100) as one:
        await until(lambda: one.owners() == dict.fromkeys("abcde", 20), within_s=5)
        before = one.assignments()
        victim = next(name for name in "abcde" if one.members[name] is not one.controller)
        one.members.pop(victim).kill()
        rest = [name for name in "abcde" if name != victim]
        await anyio.sleep(_TTL_S * 2 / 3 - 1.0)
        assert one.assignments() == before, "its lease is not over"
        await until(lambda: one.owners() == dict.fromkeys(rest, 25), within_s=_TTL_S / 3 + 1.0 + 2.0)
        kept = {id: at for id, at in one.assignments().items() if before[id].capture != victim}
        assert kept == {id: at for id, at in before.items() if at.capture != victim}, "nothing else has moved"
        revisions = {id: one.revision(id) for id in one.assignments()}
        await one.start("f")
        await until(lambda: one.owners() == dict.fromkeys([*rest, "f"], 20), within_s=60)
        moved = [id for id, revision in revisions.items() if one.revision(id) != revision]
        assert {one.assignments()[id].capture for id in moved} == {"f"}, "none has moved but to the new one"
        assert len(moved) == 20


async def test_a_controller_that_dies_is_followed_by_another() -> None:
    async with cluster(*"abc", feeds=9) as one:
        await until(lambda: one.owners() == dict.fromkeys("abc", 3))
        victim = one.controller
        del one.members[victim.info.id]
        victim.kill()
        rest = [name for name in "abc" if name != victim.info.id]
        await until(lambda: sum(one.owners().get(name, 0) for name in rest) == 9, within_s=_TTL_S + 2.0)


async def test_a_changefeed_goes_where_it_is_moved_also_if_its_owner_ends_at_once() -> None:
    """Then the controller never sees it while it is being removed."""
    one = Cluster(AsyncExitStack())
    id, lease = one.create("f"), one.etcd.grant(_TTL_S)
    for name in "ab":
        info = CaptureInfo(
            id=CaptureId(name),
            address="",
            peer_address="",
            version="",
            cluster_id="c",
            started_at=0.0,
            format=Feature.OWNERS,
        )
        one.etcd.txn([], [Put(str(keys.CaptureKey("c", info.id)), info.encode(), lease)])
    one.put(keys.AssignmentKey("c", _NAMESPACE, id), Assignment(capture=CaptureId("a")).encode())
    controller = Controller(CaptureId("a"), 1)

    def launched(*inbox: object) -> list[tuple[object, object]]:
        """Tick; the states and owners that are logged."""
        state = ClusterState("c", removal_grace_s=0.0)
        state.load(one.etcd.get_prefix("/weir/c/"))
        state.begin_tick(0.0)
        effects = controller.tick(state, inbox, 0.0)
        changes = [dict(effect.fields) for effect in effects if _is_of(effect)]
        return [(change["state"], change["owner"]) for change in changes]

    assert launched(jobs.MoveOwner("1", id, CaptureId("b"))) == [("Removing", "a")]
    one.etcd.txn([], [Delete(str(keys.AssignmentKey("c", _NAMESPACE, id)))])
    assert launched() == [("Launched", "b")]


def _is_of(effect: object) -> TypeGuard[Log]:
    return isinstance(effect, Log) and "owner of a changefeed" in effect.event


class Arriving:
    """A member that is shown the owner of a changefeed, itself, with its first change."""

    def __init__(self, shown: Sequence[ClusterState]) -> None:
        self.info = CaptureInfo(
            id=CaptureId("a"), address="", peer_address="", version="", cluster_id="c", started_at=0.0
        )
        self.candidacy: Any = None
        self.owners = self
        self._shown = list(shown)

    @property
    def state(self) -> ClusterState:
        return self._shown[0]

    async def wait_change(self) -> bool:
        del self._shown[0]
        return True

    async def submit(self, job: jobs.FeedJob | jobs.List) -> str:
        return f"answered {job!r}"


async def test_a_request_for_a_changefeed_that_is_being_launched_is_answered_when_it_has_an_owner() -> None:
    one = Cluster(AsyncExitStack())
    id, shown = one.create("f"), list[ClusterState]()
    lease = one.etcd.grant(_TTL_S)
    for key, value in (
        (keys.CaptureKey("c", CaptureId("a")), Arriving([]).info.encode()),
        (keys.AssignmentKey("c", _NAMESPACE, id), Assignment(capture=CaptureId("a")).encode()),
    ):
        one.etcd.txn([], [Put(str(key), value, lease)])
        state = ClusterState("c", removal_grace_s=0.0)
        state.load(one.etcd.get_prefix("/weir/c/"))
        state.begin_tick(0.0)
        shown.append(state)
    member = Arriving(shown)
    started = anyio.current_time()
    assert "answered" in await router.ask(member, jobs.Query("", id))
    assert len(member._shown) == 1, "it has waited for the change"
    assert anyio.current_time() == started, "it has looked at the change when it came"


async def test_a_request_that_waits_for_an_owner_ends_with_the_membership_and_lets_others_run() -> None:
    """Nothing changes any more in a state that no worker keeps: waiting for it held all else on the capture."""
    async with cluster("a", feeds=1) as one:
        member = one.members["a"]
        await until(lambda: router.answers(member, "feed000") and bool(one.assignments()))
        member.kill()
        await anyio.sleep(1)
        member.state.changefeeds[ChangefeedId("feed000")].assignment = None  # as this capture has seen it last
        with pytest.raises(OwnerNotFoundError, match="this capture has lost its session and starts again; try again"):
            await router.ask(member, jobs.Query("", ChangefeedId("feed000")))


async def test_requests_are_answered_by_the_owner_and_moves_by_the_controller() -> None:
    async with cluster("a", "b", feeds=2) as one:
        await until(lambda: one.owners() == {"a": 1, "b": 1})
        a, b = one.members["a"], one.members["b"]
        mine = ChangefeedId(next(id for id, at in one.assignments().items() if at.capture == "a"))
        await until(lambda: all(router.answers(member, mine) == (member is a) for member in (a, b)))
        assert router.answering(b, mine).id == "a"
        assert (await router.ask(a, jobs.Query("", mine))).id == mine
        with pytest.raises(NotOwnerError, match="capture a is the owner of changefeed"):
            await router.ask(b, jobs.Query("", mine))
        for member in (a, b):
            with pytest.raises(ChangefeedNotFoundError):
                await router.ask(member, jobs.Query("", ChangefeedId("nobody")))
            assert router.answers(member) == member.candidacy.is_owner
            assert router.answers(member, "nobody") == member.candidacy.is_owner, "the controller says so"
        before = one.revision(mine)
        await router.ask(one.controller, jobs.MoveOwner("", mine, CaptureId("b")))
        await until(lambda: one.assignments().get(mine) == Assignment(capture=CaptureId("b"), is_chosen=True))
        assert one.revision(mine) > before, "orders of the owner before are stale"
        await until(lambda: router.answers(b, mine))
        assert (await router.ask(b, jobs.Query("", mine))).id == mine
        await anyio.sleep(30)
        assert one.assignments()[mine].capture == "b", "evening out leaves it where the operator wants it"
        for wrong, error in ((CaptureId("nobody"), CaptureNotFoundError), (CaptureId("b"), None)):
            job = jobs.MoveOwner("", mine, wrong)
            if error is None:
                await router.ask(one.controller, job)  # it is there already
            else:
                with pytest.raises(error):
                    await router.ask(one.controller, job)
        with pytest.raises(ChangefeedNotFoundError):
            await router.ask(one.controller, jobs.MoveOwner("", ChangefeedId("nobody"), CaptureId("a")))


async def test_a_capture_that_leaves_hands_over_and_gets_nothing() -> None:
    async with cluster("a", "b", feeds=10) as one:
        await until(lambda: one.owners() == {"a": 5, "b": 5})
        leaving = next(name for name in "ab" if one.members[name] is not one.controller)
        one.change(leaving, is_leaving=True)
        stays = "a" if leaving == "b" else "b"
        await until(lambda: one.owners() == {stays: 10}, within_s=5)
        one.create("late")
        await until(lambda: one.owners() == {stays: 11}, within_s=5)
        with pytest.raises(JobRefusedError, match="takes no work"):
            await router.ask(one.controller, jobs.MoveOwner("", ChangefeedId("late"), CaptureId(leaving)))


async def test_a_capture_with_a_fault_owns_nothing_while_another_is_well() -> None:
    async with cluster("a", "b", feeds=4) as one:
        await until(lambda: one.owners() == {"a": 2, "b": 2})
        one.change("b", fault="its disk is full")
        await until(lambda: one.owners() == {"a": 4}, within_s=5)
        one.change("a", fault="its disk is full")
        await anyio.sleep(5)
        assert sum(one.owners().values()) == 4, "better there than nowhere"


async def test_a_removed_changefeed_goes_with_its_assignment_and_another_of_its_name_is_new() -> None:
    async with cluster("a", "b") as one:
        id = one.create("shop")
        await until(lambda: "shop" in one.assignments())
        before, owner = one.revision("shop"), one.members[one.assignments()["shop"].capture]
        await until(lambda: router.answers(owner, id))
        asked: list[object] = []
        async with anyio.create_task_group() as tasks:

            async def remove() -> None:
                asked.append(await router.ask(owner, jobs.Remove("", id, force=True)))

            tasks.start_soon(remove)
            await until(lambda: _feed_state(owner, id) is FeedState.REMOVED)
            worker = owner.owners.worker
            assert worker is not None
            worker.post(Answered(id, ReleaseSource(), None, None))
        assert one.etcd.get_prefix(f"/weir/c/{_NAMESPACE}/").items == ()
        one.create("shop")
        await until(lambda: "shop" in one.assignments())
        assert one.revision("shop") > before


def _feed_state(member: Member, id: ChangefeedId) -> FeedState | None:
    feed = member.state.changefeeds.get(id)
    return feed.info.state if feed and feed.info else None


async def test_the_owners_reactor_crashes_and_hands_all_assignments_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one does not know which orders were given under them: they are launched again, with new revisions."""
    async with cluster("a", feeds=3) as one:
        await until(lambda: one.owners() == {"a": 3})
        member = one.members["a"]
        await until(lambda: router.answers(member, "feed000"))
        before = {id: one.revision(id) for id in one.assignments()}
        tick, bugs = Owner.tick, [ZeroDivisionError("a bug")]

        def crash(owner: Owner, *given: Any) -> Any:
            if bugs:
                raise bugs.pop()
            return tick(owner, *given)

        monkeypatch.setattr(Owner, "tick", crash)
        await until(lambda: len(one.assignments()) == 3 and all(one.revision(id) > before[id] for id in before))
        await until(lambda: router.answers(member, "feed000"))
        assert (await router.ask(member, jobs.Query("", ChangefeedId("feed000")))).id == "feed000"


async def test_older_captures_roll_over() -> None:
    """While one does not know owners, the elected capture owns all, and nothing is assigned."""
    async with AsyncExitStack() as stack:
        one = Cluster(stack, number=Feature.PACKED)
        for name, known in (("a", Feature.OWNERS), ("b", Feature.PACKED)):
            await one.start(name, known=known)
        for number in range(4):
            one.create(f"feed{number}")
        await until(lambda: any(member.candidacy.is_owner for member in one.members.values()))
        await anyio.sleep(10)
        assert one.assignments() == {}
        elected = one.controller
        await until(lambda: len(elected.state.changefeeds) == 4)
        assert len(await router.ask(elected, jobs.List(""))) == 4
        with pytest.raises(JobRefusedError, match="until all captures are upgraded"):
            await router.ask(elected, jobs.MoveOwner("", ChangefeedId("feed0"), CaptureId("a")))
        one.change("b", format=int(Feature.OWNERS))
        await until(lambda: one.owners() == {"a": 2, "b": 2}, within_s=5)
        assert min(map(one.revision, one.assignments())) > elected.candidacy._election.revision


async def test_a_request_waits_for_an_owner_and_then_says_that_there_is_none() -> None:
    async with AsyncExitStack() as stack:
        one = Cluster(stack)
        member = await one.start("a")
        one.change("a", is_leaving=True)
        id = one.create("shop")
        await until(lambda: id in member.state.changefeeds)
        started = anyio.current_time()
        with pytest.raises(OwnerNotFoundError, match="has no owner at the moment; try again"):
            await router.ask(member, jobs.Query("", id))
        assert anyio.current_time() - started >= 5.0


async def test_each_commit_of_an_owner_requires_its_assignment() -> None:
    """In launched and in removing as it was seen; not once it was removed, or given to another."""
    etcd, id = MemoryEtcd(), ChangefeedId("f")
    key, status = keys.AssignmentKey("c", _NAMESPACE, id), keys.StatusKey("c", _NAMESPACE, id)

    def seen() -> tuple[ClusterState, dict[str, KeyValue]]:
        state = ClusterState("c")
        state.load(etcd.get_prefix("/weir/c/"))
        return state, dict(state.raw)

    def write(state: ClusterState, raw: dict[str, KeyValue], ts: int) -> bool:
        group: PatchGroup = patches.group([patches.put_record(status, ChangefeedStatus(checkpoint_ts=Ts(ts)))])
        (fenced,) = OwnerObservation(state.changefeeds[id], state).fenced([Commit(group)])
        assert isinstance(fenced, Commit)
        planned = plan([Seen.of(fenced.group, raw)], raw, delete_count_key="/weir/c/__meta__/meta/delete-count")
        return etcd.txn(planned.txn.compares, planned.txn.operations).succeeded

    etcd.txn([], [Put(str(key), Assignment(capture=CaptureId("a")).encode())])
    launched = seen()
    assert write(*launched, 1)
    etcd.txn([], [Put(str(key), Assignment(capture=CaptureId("a"), state=OwnerState.REMOVING).encode())])
    removing = seen()
    assert not write(*launched, 2), "it decides again, with what it sees now"
    assert write(*removing, 2), "an owner that is being removed stores its last position"
    etcd.txn([], [Delete(str(key))])
    assert not write(*removing, 3)
    etcd.txn([], [Put(str(key), Assignment(capture=CaptureId("b")).encode())])
    assert not write(*removing, 4)
    assert not write(*launched, 4)


async def test_a_capture_that_the_controller_does_not_hear_owns_nothing() -> None:
    """An owner there could not reach the captures that read and write for it. It hands over through the store."""
    async with cluster(*"abc", feeds=9) as one:
        await until(lambda: one.owners() == dict.fromkeys("abc", 3))
        controller = one.controller
        deaf, other = (name for name in "abc" if name != controller.info.id)
        controller.candidacy.hear(Heard(frozenset({CaptureId(other)}), frozenset({CaptureId(deaf)})))
        await until(lambda: sum(one.owners().values()) == 9 and deaf not in one.owners(), within_s=2)
        assert abs(one.owners()[other] - one.owners()[controller.info.id]) <= 1
        one.create("late")
        await until(lambda: "late" in one.assignments(), within_s=2)
        assert one.assignments()["late"].capture != deaf
        with pytest.raises(JobRefusedError, match="takes no work"):
            await router.ask(controller, jobs.MoveOwner("", ChangefeedId("late"), CaptureId(deaf)))
        controller.candidacy.hear(Heard(frozenset({CaptureId(other), CaptureId(deaf)})))
        await until(lambda: one.owners().get(deaf) == 3, within_s=60)


async def test_nothing_moves_before_it_is_known_whether_a_capture_that_joins_is_heard() -> None:
    """A controller that begins has not heard the others yet: they keep what they own, and get their share of the
    rest."""
    async with cluster(*"ab", feeds=4) as one:
        await until(lambda: one.owners() == {"a": 2, "b": 2})
        controller, before = one.controller, one.assignments()
        other = CaptureId("b" if controller.info.id == "a" else "a")
        controller.candidacy.hear(Heard())
        one.create("late")
        with pytest.raises(JobRefusedError, match="just joining; ask again"):
            await router.ask(controller, jobs.MoveOwner("", next(iter(before)), controller.info.id))  # type: ignore[arg-type]
        assert one.assignments() == before
        controller.candidacy.hear(Heard(frozenset({other})))
        await until(lambda: "late" in one.assignments(), within_s=1)
        assert one.assignments().items() >= before.items()


async def test_a_controller_that_hears_nobody_lets_another_be_elected() -> None:
    async with cluster(*"abc", feeds=9) as one:
        await until(lambda: one.owners() == dict.fromkeys("abc", 3))
        isolated = one.controller
        others = [name for name in "abc" if name != isolated.info.id]
        for name in others:
            heard = frozenset({CaptureId(peer) for peer in others if peer != name})
            one.members[name].candidacy.hear(Heard(heard, frozenset({isolated.info.id})))
        before = one.assignments()
        isolated.candidacy.hear(Heard(silent=frozenset(map(CaptureId, others)), is_isolated=True))
        await until(lambda: isolated.info.id not in one.owners() and sum(one.owners().values()) == 9, within_s=5)
        assert all(one.assignments()[id] == at for id, at in before.items() if at.capture != isolated.info.id)
        assert not isolated.candidacy.is_owner


async def test_a_controller_that_hears_nobody_stays_if_nobody_hears_anybody() -> None:
    """It owns all by itself then; and of two captures either may be the one that is cut off."""
    async with cluster(*"abc", feeds=9) as one:
        await until(lambda: one.owners() == dict.fromkeys("abc", 3))
        controller = one.controller
        others = [name for name in "abc" if name != controller.info.id]
        one.change(others[0], is_isolated=True)
        await until(lambda: any(info.is_isolated for info in controller.state.captures.values()))
        controller.candidacy.hear(Heard(silent=frozenset(map(CaptureId, others)), is_isolated=True))
        await until(lambda: one.owners() == {controller.info.id: 9}, within_s=5)
        assert one.controller is controller
