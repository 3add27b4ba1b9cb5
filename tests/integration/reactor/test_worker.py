"""The worker loop on a real etcd: what several workers do to the same keys adds up, whatever happens to them."""

import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from capture.embedded import EmbeddedEtcd
from reactor import keys
from reactor.division.packing import MAGIC
from reactor.effects import Commit, Effect, WakeAt
from reactor.errors import NotOwnerError, ReactorFinishedError, RevisionsLostError
from reactor.ids import ChangefeedId
from reactor.membership.election import Elector
from reactor.membership.session import open_session
from reactor.patches import Patch, PatchGroup, group, patch_record, put_record
from reactor.records.changefeed import Unit, UnitRecord, UnitStage
from reactor.records.formats import ClusterFormat, Feature
from reactor.records.tables.table import TableRecord
from reactor.state import ClusterState
from reactor.store.etcd import connect
from reactor.store.port import MetaStore
from reactor.worker.loop import ReactorWorker
from reactor.worker.protocol import Reactor
from tests.patience import HANG_S

#: that etcd loses revisions in all of them is one chance in a million
_STORIES_MAX = 3
_CLUSTERS = (f"worker-{number}" for number in itertools.count())


@pytest.fixture
def cluster() -> str:
    return next(_CLUSTERS)


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[MetaStore]:
    client = await connect([url])
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def worker_of(client: MetaStore, cluster: str, reactor: Reactor) -> AsyncIterator[ReactorWorker]:
    async with open_session(client, ttl_s=60) as session:  # not what is tested, and the loop may be busy for long
        yield ReactorWorker(
            client, reactor, state=ClusterState(cluster), session=session, perform=lambda _effect: None, interval_s=0
        )


async def run_worker(url: str, cluster: str, reactor: Reactor) -> ReactorWorker:
    async with client_of(url) as client, worker_of(client, cluster, reactor) as worker:
        await worker.run()
        return worker


def at(cluster: str, name: str) -> str:
    return f"{keys.cluster_prefix(cluster)}test/{name}"


def number(state: ClusterState, key: str) -> int:
    item = state.raw.get(key)
    return int(item.value) if item else 0


def add(key: str, amount: int) -> Patch:
    return Patch(key, lambda old: b"%d" % (int(old or b"0") + amount))


def commit(*patches: Patch) -> Commit:
    return Commit(PatchGroup(patches))


SUM_GROUPS, SUM_VALUES = 10, 5


@dataclass
class Incrementer:
    """Adds one to every value of a random group, all in one group of patches."""

    cluster: str
    seed: int
    rounds: int = 100

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def tick(self, _state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        if not self.rounds:
            raise ReactorFinishedError
        self.rounds -= 1
        group = self._random.randrange(SUM_GROUPS)
        return [commit(*(add(at(self.cluster, f"sum/{group}/{value}"), 1) for value in range(SUM_VALUES)))]


@dataclass
class Summer:
    """Sees in every tick that the values of a group are equal, and stops when all increments are there."""

    cluster: str
    total: int
    totals: list[int] = field(default_factory=list)

    def tick(self, state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        groups = [
            {number(state, at(self.cluster, f"sum/{group}/{value}")) for value in range(SUM_VALUES)}
            for group in range(SUM_GROUPS)
        ]
        assert all(len(values) == 1 for values in groups), "a transaction was seen in part"
        self.totals.append(sum(values.pop() for values in groups))
        if self.totals[-1] == self.total:
            raise ReactorFinishedError
        return []


@pytest.mark.matrix
async def test_sum_of_what_five_workers_increment(etcd_url: str, cluster: str) -> None:
    summer = Summer(cluster, total=5 * 100)
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_worker, etcd_url, cluster, summer)
            for seed in range(5):
                tasks.start_soon(run_worker, etcd_url, cluster, Incrementer(cluster, seed))
    assert summer.totals == sorted(summer.totals)


#: a tick of a teller is a transfer; who is ended so often has been so in the middle of some
ACCOUNTS, BANKERS, TRANSFERS = 25, 10, 40


@dataclass
class Banker:
    """Checks the bank, then moves money between two random accounts, in two patches of one group."""

    cluster: str
    seed: int
    transfers: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def tick(self, state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        balances = [number(state, at(self.cluster, f"bank/{account}")) for account in range(ACCOUNTS)]
        assert sum(balances) == 0, "money was made or lost"
        source, target = self._random.sample(range(ACCOUNTS), 2)
        amount = self._random.randrange(100)
        self.transfers += 1
        names = [at(self.cluster, f"bank/{account}") for account in (source, target)]
        return [commit(add(names[0], -amount), add(names[1], amount))]


@pytest.mark.matrix
async def test_bank_whose_tellers_restart_at_random(etcd_url: str, cluster: str) -> None:
    bankers = [Banker(cluster, seed) for seed in range(BANKERS)]

    async def keep_working(banker: Banker) -> None:
        chance = random.Random(f"restart {banker.seed}")
        async with client_of(etcd_url) as client:
            while True:
                with anyio.move_on_after(chance.uniform(0.05, 0.8)):
                    async with worker_of(client, cluster, banker) as worker:
                        await worker.run()

    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as tasks:
            for banker in bankers:
                tasks.start_soon(keep_working, banker)
            while min(banker.transfers for banker in bankers) < TRANSFERS:  # noqa: ASYNC110 - of other tasks
                await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
    async with client_of(etcd_url) as client:
        snapshot = await client.get_prefix(at(cluster, "bank/"))
    assert sum(int(item.value) for item in snapshot.items) == 0


async def test_a_modification_does_not_bring_a_deleted_key_back(etcd_url: str, cluster: str) -> None:
    """The one that modifies has not seen the deletion when it decides; its patch runs again on the fresh value."""
    first, second, asked = at(cluster, "first"), at(cluster, "second"), anyio.Event()
    seen: list[bytes | None] = []

    def modify(old: bytes | None) -> bytes | None:
        seen.append(old)
        return b"modified" if old is not None else None

    class Modifier:
        def tick(self, _state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
            if asked.is_set():
                raise ReactorFinishedError
            asked.set()
            return [commit(Patch(first, modify), add(second, 1))]

    class Deleter:
        def tick(self, state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
            if first not in state.raw:
                raise ReactorFinishedError
            return [commit(Patch(first, lambda _old: None))]

    async with client_of(etcd_url) as client:
        await client.put(first, b"here")
        async with open_session(client) as session:
            deleting = _DeleteFirst(client, lambda: run_worker(etcd_url, cluster, Deleter()))
            state = ClusterState(cluster)
            worker = ReactorWorker(
                deleting,  # type: ignore[arg-type]
                Modifier(),
                state=state,
                session=session,
                perform=lambda _effect: None,
            )
            with anyio.fail_after(HANG_S):
                await worker.run()
        assert await client.get(first) is None
        assert worker.statistics().conflicts == 1
    assert seen == [b"here", None]


class _DeleteFirst:
    """A client that lets somebody else act right before its first transaction."""

    def __init__(self, client: MetaStore, act: Callable[[], Awaitable[object]]) -> None:
        self._client = client
        self._act: Callable[[], Awaitable[object]] | None = act

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    async def txn(self, *args: object) -> object:
        if self._act is not None:
            act, self._act = self._act, None
            await act()
        return await self._client.txn(*args)  # type: ignore[arg-type]


async def test_a_group_of_128_operations_commits_and_an_overflow_is_applied_once(etcd_url: str, cluster: str) -> None:
    class Once:
        def tick(self, state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
            if at(cluster, "full/000") in state.raw:
                raise ReactorFinishedError
            full = commit(*(add(at(cluster, f"full/{index:03}"), 1) for index in range(128)))
            overflow = commit(
                *(add(at(cluster, f"more/{index:03}"), 1) for index in range(100)), *full.group.patches[:1]
            )
            return [full, overflow]

    with anyio.fail_after(HANG_S):
        worker = await run_worker(etcd_url, cluster, Once())
    assert worker.statistics().commits == 2
    async with client_of(etcd_url) as client:
        values = {item.key: item.value for item in (await client.get_prefix(at(cluster, ""))).items}
    assert len(values) == 228
    assert values.pop(at(cluster, "full/000")) == b"2"
    assert set(values.values()) == {b"1"}


async def test_increments_survive_an_etcd_that_is_killed_again_and_again(tmp_path: Path, cluster: str) -> None:
    """Every answer that is lost is found out, so no increment is lost or doubled.

    The embedded etcd itself loses some in about one of a hundred runs (see ``EmbeddedEtcd``), which the worker reports;
    then the story begins again.
    """
    for attempt in range(_STORIES_MAX):
        has_lost = False
        try:
            await _count_while_etcd_is_killed(tmp_path / str(attempt), cluster)
        except* RevisionsLostError:
            has_lost = True
        if not has_lost:
            return
    pytest.fail("etcd has lost revisions in each story")


async def _count_while_etcd_is_killed(directory: Path, cluster: str) -> None:
    total, enough, done = at(cluster, "total"), list[int](), anyio.Event()

    class Counter:
        def tick(self, state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
            assert number(state, total) == number(state, at(cluster, "check"))
            if enough and worker.statistics().commits >= enough[0]:
                done.set()
            return [commit(add(total, 1), add(at(cluster, "check"), 1))]

    with EmbeddedEtcd(directory) as etcd:  # without fsync, each kill may lose a page of its log
        async with client_of(etcd.url) as client, worker_of(client, cluster, Counter()) as worker:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(worker.run)
                for _ in range(3):
                    await anyio.sleep(0.5)
                    await anyio.to_thread.run_sync(etcd.kill)
                    await anyio.to_thread.run_sync(etcd.start)
                enough.append(worker.statistics().commits + 10)
                with anyio.fail_after(HANG_S):
                    await done.wait()
                tasks.cancel_scope.cancel()
            item = await client.get(total)
    assert item is not None
    assert worker.statistics().commits <= int(item.value) <= worker.statistics().commits + 4


@pytest.mark.matrix
async def test_records_of_twenty_thousand_tables_are_changed_when_all_captures_read_them(
    etcd_url: str, cluster: str
) -> None:
    """With an older capture the change waits; it comes with the cluster's format, and watches bring it back."""
    feed = ChangefeedId("feed")
    key = keys.UnitKey(cluster, keys.DEFAULT_NAMESPACE, feed, "main")
    tables = tuple(TableRecord.new(n, "public", f"customer_orders_{n:06}", key=("id",)) for n in range(20_000))
    whole = UnitRecord(unit=Unit.SYNC, stage=UnitStage.RUNNING, tables=tables)
    format_key = keys.FormatKey(cluster)

    class Taker:
        refused = 0

        def tick(self, state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
            changefeed = state.changefeeds.get(feed)
            stored = changefeed.units["main"] if changefeed else None
            if stored == whole.with_(timeline=7):
                raise ReactorFinishedError
            if state.format < Feature.PACKED:
                self.refused += 1
                if self.refused < 3:
                    return [Commit(group([put_record(key, whole)])), WakeAt(0.0)]
                return [Commit(group([put_record(format_key, ClusterFormat(number=Feature.PACKED))]))]
            after = whole if stored is None else whole.with_(timeline=stored.timeline + 1)
            return [Commit(group([patch_record(key, UnitRecord, lambda _old: after)]))]

    async with client_of(etcd_url) as client, worker_of(client, cluster, Taker()) as worker:
        await client.put(str(format_key), ClusterFormat(number=Feature.PACKED - 1).encode())
        with anyio.fail_after(HANG_S):
            await worker.run()
        item = await client.get(str(key))
    assert item is not None
    assert item.value.startswith(MAGIC)
    assert worker.statistics().commits == 1 + 1 + 7


async def test_an_owner_that_is_replaced_stops_and_cannot_write(etcd_url: str, cluster: str) -> None:
    ticking = anyio.Event()

    class Idle:
        def tick(self, _state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
            ticking.set()
            return []

    async with client_of(etcd_url) as client, open_session(client) as session:
        election = Elector(client, session, prefix=keys.owner_prefix(cluster))
        await election.campaign("a")
        state = ClusterState(cluster)
        worker = ReactorWorker(
            client,
            Idle(),
            state=state,
            session=session,
            perform=lambda _effect: None,
            owner_key=election.key,
            fences=[election.proof()],
        )
        async with anyio.create_task_group() as tasks:

            async def depose() -> None:
                await ticking.wait()
                assert state.owner is not None
                assert state.owner.revision == election.revision
                await client.delete(election.key)

            tasks.start_soon(depose)
            with pytest.raises(NotOwnerError), anyio.fail_after(HANG_S):
                await worker.run()
