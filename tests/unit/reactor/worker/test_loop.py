"""The loop on virtual time, over etcd in memory: when it ticks, what it commits, when it ends."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio
import pytest

from reactor import failpoints, keys
from reactor.effects import CONFLICT, Answer, Commit, Effect, Log, Resign, WakeAt
from reactor.errors import (
    ConflictError,
    LeaseExpiredError,
    NotOwnerError,
    ReactorFinishedError,
    SessionDoneError,
    StoreError,
    StoreUnreachableError,
)
from reactor.ids import CaptureId, ChangefeedId
from reactor.membership.session import Session, open_session
from reactor.patches import Patch, PatchGroup
from reactor.state import ClusterState
from reactor.store.memory import Fault, MemoryClient, MemoryEtcd
from reactor.store.port import Compare, Put, Target
from reactor.worker.loop import ReactorWorker

pytestmark = pytest.mark.looptime

PREFIX = keys.cluster_prefix("c")
N = PREFIX + "test/n"

Decide = Callable[[ClusterState, Sequence[object], float], Sequence[Effect]]


def number(state: ClusterState, key: str = N) -> int:
    item = state.raw.get(key)
    return int(item.value) if item else 0


def add_one(key: str = N) -> Patch:
    return Patch(key, lambda old: b"%d" % (int(old or b"0") + 1))


def put(key: str, value: bytes) -> Patch:
    return Patch(key, lambda _old: value)


def commit(*patches: Patch, requires: tuple[str, ...] = ()) -> Commit:
    return Commit(PatchGroup(patches, requires))


@dataclass
class Script:
    """A reactor that asks ``decide`` and remembers its ticks."""

    decide: Decide = lambda _state, _inbox, _now: ()
    ticks: list[float] = field(default_factory=list)
    inboxes: list[tuple[object, ...]] = field(default_factory=list)

    def tick(self, state: ClusterState, inbox: Sequence[object], now: float) -> Sequence[Effect]:
        self.ticks.append(now)
        self.inboxes.append(tuple(inbox))
        return self.decide(state, inbox, now)


@dataclass
class Bench:
    """A worker under test, with its server, its session, and what it performed."""

    server: MemoryEtcd
    client: MemoryClient
    session: Session
    worker: ReactorWorker
    performed: list[Effect]


@asynccontextmanager
async def bench(
    reactor: Script,
    *,
    server: MemoryEtcd | None = None,
    fault: Fault | None = None,
    owner_key: str | None = None,
    fences: Sequence[Compare] = (),
) -> AsyncIterator[Bench]:
    server = server or MemoryEtcd()
    client = MemoryClient(server, fault=fault)
    performed: list[Effect] = []
    async with open_session(MemoryClient(server), ttl_s=10) as session:
        worker = ReactorWorker(
            client,
            reactor,
            state=ClusterState("c"),
            session=session,
            perform=performed.append,
            owner_key=owner_key,
            fences=fences,
        )
        yield Bench(server, client, session, worker, performed)


async def run_for(subject: Bench, seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await subject.worker.run()


class Deaf:
    """The watch brings nothing."""

    async def before(self, call: str) -> None:
        if call == "watch":
            await anyio.sleep_forever()

    async def after(self, call: str) -> None:
        """Answers arrive."""


@dataclass
class Trouble:
    """Transactions fail: ``lost`` after they were done, ``refused`` before, as many as asked for."""

    lost: int = 0
    refused: int = 0

    async def before(self, call: str) -> None:
        if call == "txn" and self.refused:
            self.refused -= 1
            raise StoreUnreachableError("connection reset")

    async def after(self, call: str) -> None:
        if call == "txn" and self.lost:
            self.lost -= 1
            raise StoreUnreachableError("answer lost")


def count_to(limit: int) -> Decide:
    def decide(state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        if number(state) >= limit:
            raise ReactorFinishedError
        return [commit(add_one())]

    return decide


async def test_an_idle_worker_ticks_at_the_idle_interval() -> None:
    script = Script()
    async with bench(script) as subject:
        await run_for(subject, 10.1)
    assert len(script.ticks) == 21


async def test_a_posted_event_is_seen_by_exactly_one_tick_soon() -> None:
    script = Script()
    async with bench(script) as subject, anyio.create_task_group() as tasks:
        tasks.start_soon(run_for, subject, 3)
        await anyio.sleep(1.23)
        subject.worker.post("hello")
        subject.worker.post("world")
    assert [inbox for inbox in script.inboxes if inbox] == [("hello", "world")]
    assert script.ticks[script.inboxes.index(("hello", "world"))] == pytest.approx(1.23, abs=0.01)


async def test_a_wake_up_time_is_kept() -> None:
    wakes = [0.71, 0.72]
    script = Script(lambda _state, _inbox, now: [WakeAt(at) for at in wakes if at > now])
    async with bench(script) as subject:
        await run_for(subject, 1)
    assert any(tick == pytest.approx(0.71, abs=0.005) for tick in script.ticks)


async def test_ticks_are_limited_however_much_happens() -> None:
    script = Script()
    async with bench(script) as subject, anyio.create_task_group() as tasks:
        tasks.start_soon(run_for, subject, 2)
        for _ in range(200):
            await anyio.sleep(0.01)
            await subject.client.put(PREFIX + "noise", b"")
    assert 38 <= len(script.ticks) <= 44


async def test_each_tick_sees_what_the_last_one_committed() -> None:
    seen: list[int] = []

    def decide(state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        seen.append(number(state))
        return count_to(20)(state, (), 0)

    async with bench(Script(decide)) as subject:
        await subject.worker.run()
        statistics = subject.worker.statistics()
    assert seen == list(range(21))
    assert (statistics.ticks, statistics.commits, statistics.conflicts) == (20, 20, 0)


async def test_two_workers_never_lose_an_increment() -> None:
    server = MemoryEtcd()
    own: dict[str, int] = {"a": 0, "b": 0}

    def decide_for(name: str) -> Decide:
        def decide(state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
            own[name] = number(state, PREFIX + name)
            if own[name] >= 30:
                raise ReactorFinishedError
            return [commit(add_one(), add_one(PREFIX + name))]

        return decide

    async with bench(Script(decide_for("a")), server=server) as a, bench(Script(decide_for("b")), server=server) as b:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(a.worker.run)
            tasks.start_soon(b.worker.run)
        assert int(server.get_prefix(N).items[0].value) == 60
        assert a.worker.statistics().conflicts + b.worker.statistics().conflicts > 0


@pytest.mark.parametrize("trouble", [Trouble(lost=1), Trouble(lost=7), Trouble(refused=3), Trouble(lost=2, refused=2)])
async def test_a_transaction_whose_answer_is_lost_takes_effect_once(trouble: Trouble) -> None:
    async with bench(Script(count_to(10)), fault=trouble) as subject:
        await subject.worker.run()
        assert int(subject.server.get_prefix(N).items[0].value) == 10
        assert subject.worker.statistics().ticks == 10  # one for each increment: none was done twice


async def test_an_answer_that_is_given_up_after_the_watch_has_shown_it() -> None:
    """The watch is faster than a time limit: what it shows of the transaction counts although nobody doubts it yet."""

    class Slow(Trouble):
        async def after(self, call: str) -> None:
            if call == "txn" and self.lost:
                await anyio.sleep(1)
            await super().after(call)

    async with bench(Script(count_to(3)), fault=Slow(lost=2)) as subject:
        await subject.worker.run()
        assert int(subject.server.get_prefix(N).items[0].value) == 3
        assert subject.worker.statistics().ticks == 3  # one for each increment: none was done twice


async def test_a_lost_answer_is_found_even_when_others_have_written_since() -> None:
    class Overwrite(Trouble):
        async def after(self, call: str) -> None:
            if call == "txn" and self.lost:
                server.txn([], [Put(N, b"100")])
            await super().after(call)

    server = MemoryEtcd()
    async with bench(Script(count_to(103)), server=server, fault=Overwrite(lost=1)) as subject:
        await subject.worker.run()
        assert server.revision == 1 + 1 + 1 + 3
        assert subject.worker.statistics().ticks == 1 + 3


async def test_an_answer_is_given_only_after_its_patches_have_committed() -> None:
    answered_at: list[int] = []

    def decide(state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        if number(state):
            raise ReactorFinishedError
        return [Answer("job"), Log("info", "at once"), commit(add_one())]

    async with bench(Script(decide), fault=Trouble(refused=2)) as subject:

        def perform(effect: Effect) -> None:
            subject.performed.append(effect)
            if isinstance(effect, Answer):
                answered_at.append(subject.server.revision)

        subject.worker._perform = perform
        await subject.worker.run()
    assert subject.performed == [Log("info", "at once"), Answer("job")]
    assert answered_at == [2]


async def test_own_commits_are_known_before_the_watch_tells_and_as_it_would() -> None:
    """With nobody else in between, what was committed is the next revision: new keys, changed ones, deleted ones."""
    other = PREFIX + "test/other"
    steps = [[put(N, b"1")], [put(N, b"2"), put(other, b"1")], [Patch(N, lambda _old: None), put(other, b"2")]]

    def decide(_state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        if not steps:
            raise ReactorFinishedError
        return [commit(*steps.pop(0))]

    async with bench(Script(decide), fault=Deaf()) as subject:
        await subject.worker.run()
        stored = await subject.client.get_prefix(PREFIX)
        assert subject.worker.state.raw == {item.key: item for item in stored.items}
        assert subject.worker.state.revision == stored.revision == 1 + len("123")


async def test_a_resignation_leaves_nothing_of_its_tick_undone() -> None:
    """The ownership ends by cancelling the worker: what the tick wrote and answered has to be out by then."""
    async with bench(
        Script(lambda *_: [Answer("job"), Resign(), commit(add_one())]), fault=Trouble(refused=2)
    ) as subject:
        with anyio.CancelScope() as candidacy:

            def perform(effect: Effect) -> None:
                subject.performed.append(effect)
                if isinstance(effect, Resign):
                    candidacy.cancel()

            subject.worker._perform = perform
            await subject.worker.run()
        assert subject.performed == [Answer("job"), Resign()]
        assert subject.server.revision == 2


async def test_an_answer_tells_when_its_patches_can_never_commit() -> None:
    async with bench(Script()) as subject:
        big = replace(commit(put(N, bytes(2_000_000))), jobs=("job",))
        script = Script(lambda _state, inbox, _now: [big, Answer("job")] if inbox else [])
        subject.worker._reactor = script
        subject.worker.post("go")
        await run_for(subject, 1)
    assert isinstance(answer := subject.performed[0], Answer)
    assert answer.job_id == "job"
    assert "over etcd's limits" in answer.error


def conflicting(*jobs: str) -> Commit:
    def refuse(old: bytes | None) -> bytes | None:
        raise ConflictError("it has changed; tick again")

    return replace(commit(Patch(N, refuse)), jobs=jobs)


@pytest.mark.parametrize(
    ("commits", "is_error", "code"),
    [
        ([conflicting("other")], False, None),
        ([conflicting()], False, None),
        ([conflicting("job")], True, CONFLICT),
        ([conflicting("job"), replace(commit(add_one()), jobs=("job",))], True, None),
        ([conflicting("other"), replace(commit(add_one()), jobs=("job",))], False, None),
    ],
)
async def test_an_answer_depends_on_the_patches_of_its_own_job(
    commits: list[Commit], is_error: bool, code: str | None
) -> None:
    """The code of a conflict says that nothing is stored: what is stored in part cannot be asked for again."""
    async with bench(Script(lambda _state, inbox, _now: [*commits, Answer("job")] if inbox else [])) as subject:
        subject.worker.post("go")
        await run_for(subject, 1)
    [answer] = [effect for effect in subject.performed if isinstance(effect, Answer) and effect.job_id == "job"]
    assert (bool(answer.error), answer.value) == (is_error, code)


async def test_a_job_without_an_answer_yet_is_answered_when_it_can_never_have_one() -> None:
    decide = Script(lambda _state, inbox, _now: [conflicting("job"), Answer("other")] if inbox else [])
    async with bench(decide) as subject:
        subject.worker.post("go")
        await run_for(subject, 1)
    error = "not done: it has changed; tick again"
    assert subject.performed == [Answer("job", error, CONFLICT), Answer("other")]


async def test_an_answer_without_patches_is_given_at_once() -> None:
    script = Script(lambda _state, inbox, _now: [Answer(str(job)) for job in inbox])
    async with bench(script) as subject:
        subject.worker.post("1")
        await run_for(subject, 0.01)
    assert subject.performed == [Answer("1")]


async def test_a_group_whose_requirement_moved_is_dropped_and_decided_again() -> None:
    guard = PREFIX + "guard"

    class MoveGuard(Trouble):
        async def before(self, call: str) -> None:
            if call == "txn" and self.refused:
                server.txn([], [Put(guard, b"9")])
                self.refused = 0

    def decide(state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        if N in state.raw:
            raise ReactorFinishedError
        return [commit(put(N, b"%d" % number(state, guard)), requires=(guard,))]

    server = MemoryEtcd()
    async with bench(Script(decide), server=server, fault=MoveGuard(refused=1)) as subject:
        await subject.worker.run()
        assert server.get_prefix(N).items[0].value == b"9"
        assert subject.worker.statistics().conflicts == 2


async def test_what_does_not_fit_into_one_transaction_follows_in_the_next() -> None:
    def decide(state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        if number(state):
            raise ReactorFinishedError
        return [commit(*(add_one(f"{N}{group}/{key}") for key in range(60)), add_one()) for group in range(5)]

    async with bench(Script(decide)) as subject:
        await subject.worker.run()
        values = [item.value for item in subject.server.get_prefix(f"{N}").items]
        assert subject.worker.statistics().ticks == 1
        assert subject.worker.statistics().commits == 3
    assert sorted(values) == sorted([b"5"] + [b"1"] * 300)


async def test_a_refused_group_does_not_stop_the_others() -> None:
    def broken(_old: bytes | None) -> bytes | None:
        raise LeaseExpiredError("the capture is gone")

    def decide(state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        if number(state) == 3:
            raise ReactorFinishedError
        return [commit(Patch(PREFIX + "x", broken), add_one()), commit(add_one())]

    async with bench(Script(decide)) as subject:
        await subject.worker.run()
        assert subject.worker.statistics().commits == 3


async def test_compaction_under_the_watch_leads_to_a_new_start() -> None:
    class Behind(Trouble):
        """The watch is always too late."""

        async def before(self, call: str) -> None:
            if call == "watch" and self.lost:
                self.lost -= 1
                server.txn([], [Put(PREFIX + "noise", b"")])
                server.txn([], [Put(PREFIX + "noise", b"")])
                server.compact(server.revision)

        async def after(self, call: str) -> None:
            pass

    server = MemoryEtcd()
    async with bench(Script(count_to(5)), server=server, fault=Behind(lost=3)) as subject:
        await subject.worker.run()
        assert subject.worker.statistics().resyncs == 3
        assert int(server.get_prefix(N).items[0].value) == 5


@pytest.mark.parametrize("delay_s", [0, 2])
async def test_a_lost_answer_and_a_lost_history_together(delay_s: float) -> None:
    """The prefix is read again after the answer is given up, or before."""

    class Both(Trouble):
        is_done = has_history = False

        async def before(self, call: str) -> None:
            if call == "watch" and self.is_done and not self.has_history:
                self.has_history = True
                server.txn([], [Put(PREFIX + "noise", b"")])
                server.compact(server.revision)

        async def after(self, call: str) -> None:
            if call == "txn" and self.lost:
                self.is_done = True
                await anyio.sleep(delay_s)
            await Trouble.after(self, call)

    server = MemoryEtcd()
    async with bench(Script(count_to(5)), server=server, fault=Both(lost=1)) as subject:
        await subject.worker.run()
        assert int(server.get_prefix(N).items[0].value) == 5
        assert subject.worker.statistics().resyncs == 1
        assert subject.worker.statistics().ticks == 5


async def test_the_worker_ends_with_its_session() -> None:
    async with bench(Script()) as subject, anyio.create_task_group() as tasks:

        async def lose() -> None:
            await anyio.sleep(1)
            subject.server.revoke(subject.session.lease)

        tasks.start_soon(lose)
        with pytest.raises(SessionDoneError), anyio.fail_after(6):
            await subject.worker.run()


async def test_the_session_ends_a_worker_that_waits_for_etcd() -> None:
    class Hang(Trouble):
        async def before(self, call: str) -> None:
            if call == "txn":
                await anyio.sleep_forever()

    async with bench(Script(count_to(1)), fault=Hang()) as subject:
        subject.server.revoke(subject.session.lease)
        with pytest.raises(SessionDoneError), anyio.fail_after(6):
            await subject.worker.run()


async def test_the_owner_s_worker_ends_when_its_key_is_deleted() -> None:
    server = MemoryEtcd()
    owner_key = str(keys.OwnerKey("c", "1"))
    server.txn([], [Put(owner_key, b"me")])
    async with bench(Script(), server=server, owner_key=owner_key) as subject, anyio.create_task_group() as tasks:

        async def depose() -> None:
            await anyio.sleep(1)
            await subject.client.delete(owner_key)

        tasks.start_soon(depose)
        with pytest.raises(NotOwnerError), anyio.fail_after(1.01):
            await subject.worker.run()


async def test_the_owner_s_worker_does_not_start_without_its_key() -> None:
    script = Script()
    async with bench(script, owner_key=str(keys.OwnerKey("c", "1"))) as subject:
        with pytest.raises(NotOwnerError):
            await subject.worker.run()
    assert not script.ticks


async def test_a_fenced_worker_cannot_write() -> None:
    """Its watch has not shown yet that it is over."""
    fence = Compare(PREFIX + "__meta__/owner/1", Target.CREATE_REVISION, 7)
    async with bench(Script(count_to(1)), fences=[fence]) as subject:
        await run_for(subject, 5)
        assert subject.server.revision == 1
        assert 5 <= subject.worker.statistics().conflicts <= 30


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["commit", "status"])
@pytest.mark.parametrize(
    "key",
    [keys.StatusKey("c", "default", ChangefeedId("f")), keys.ProgressKey("c", "default", CaptureId("a"))],
    ids=str,
)
async def test_the_owner_s_fail_points(when: str, what: str, key: keys.Key, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is passed by the owner only; an error there is a transaction without an answer, which takes effect once."""
    trap = failpoints.Trap(failpoints.Action.ERROR, 3)
    armed = {failpoints.Point(f"owner-{when}-{what}"): (trap,)}
    monkeypatch.setattr(failpoints, "armed", lambda: armed)
    server, status = MemoryEtcd(), str(key)
    owner_key = str(keys.OwnerKey("c", "1"))
    server.txn([], [Put(owner_key, b"me")])

    def decide(state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        done = number(state)
        if done == 6:
            raise ReactorFinishedError
        return [commit(add_one(), *([Patch(status, lambda _: b"%d" % done)] if done % 2 else []))]

    async with bench(Script(decide), server=server) as processors:
        await run_for(processors, 1)
        assert processors.worker.statistics().commits == 6
        server.txn([], [Put(N, b"0")])
    async with bench(Script(decide), server=server, owner_key=owner_key) as owner:
        started = anyio.current_time()
        await owner.worker.run()
        assert anyio.current_time() - started > 0.2
        assert int(server.get_prefix(N).items[0].value) == 6
        # one for each increment: the one without an answer was looked for and found, or done again
        assert owner.worker.statistics().ticks == 6
        assert owner.worker.statistics().commits == (6 if when == "before" else 5)
    assert not trap.is_due()


async def test_a_fault_that_no_retry_changes_ends_the_worker() -> None:
    class Refuse(Trouble):
        async def before(self, call: str) -> None:
            if call == "txn":
                raise StoreError("etcd refused: no space")

    async with bench(Script(count_to(1)), fault=Refuse()) as subject:
        with pytest.raises(StoreError, match="no space"):
            await subject.worker.run()


async def test_a_bug_in_a_tick_comes_out_as_it_is() -> None:
    def decide(_state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        raise ZeroDivisionError

    async with bench(Script(decide)) as subject:
        with pytest.raises(ZeroDivisionError):
            await subject.worker.run()


async def test_etcd_may_be_silent_at_the_start() -> None:
    class Late(Trouble):
        async def before(self, call: str) -> None:
            if call == "get_prefix" and self.lost:
                self.lost -= 1
                raise StoreUnreachableError("starting")

        async def after(self, call: str) -> None:
            pass

    async with bench(Script(count_to(2)), fault=Late(lost=5)) as subject:
        await subject.worker.run()
        assert subject.worker.statistics().commits == 2
