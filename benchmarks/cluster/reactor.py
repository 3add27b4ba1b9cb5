"""reactor: decisions per second that the worker loop commits, against bare puts on the same etcd.

A committed tick is a full round: apply changes, decide, send one transaction with its compares, and learn all revisions
up to it, for which the watch is needed only if others have written in between. The peer is sequential puts from one
client: the cost of one round trip to etcd. etcd runs without fsync here, so that the loop is measured and not the disk.

*Contended*: ten workers in this process move money between the same ten accounts. Most of their transactions conflict
and are decided again; the figures are their total commits, and those of the slowest alone.
"""

import itertools
import tempfile
import time
from collections.abc import Sequence

import anyio

from capture.embedded import EmbeddedEtcd
from reactor import keys, loop
from reactor.effects import Commit, Effect
from reactor.errors import ReactorFinishedError
from reactor.membership.session import open_session
from reactor.patches import Patch, PatchGroup
from reactor.state import ClusterState
from reactor.store.etcd import connect
from reactor.store.port import MetaStore
from reactor.worker.loop import ReactorWorker

CLUSTER = "benchmark"
_TELLERS, _ACCOUNTS = 10, 10
KEY = f"{keys.cluster_prefix(CLUSTER)}benchmark/n"


class Counter:
    """Adds one per tick until its time is over."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    def tick(self, _state: ClusterState, _inbox: Sequence[object], now: float) -> Sequence[Effect]:
        if now >= self._deadline:
            raise ReactorFinishedError
        return [Commit(PatchGroup((Patch(KEY, lambda old: b"%d" % (int(old or b"0") + 1)),)))]


def run(seconds: float = 5.0) -> dict[str, object]:
    """Measure both, one after the other, for ``seconds`` each, and an idle worker for as long."""
    with tempfile.TemporaryDirectory() as directory, EmbeddedEtcd(directory, unsafe_no_fsync=True) as etcd:
        return loop.run(_run, etcd.url, seconds)


async def _run(url: str, seconds: float) -> dict[str, object]:
    client = await connect([url])
    try:
        puts = await _puts_per_second(client, seconds)
        commits, ticks_cpu_s = await _ticks_per_second(client, seconds)
        shares = await _contended(url, seconds)
        idle_cpu = await _idle_cpu(client, seconds)
    finally:
        await client.close()
    return {
        "committed_ticks_per_second": round(commits),
        "cpu_ms_per_tick": round(1000 * ticks_cpu_s, 3),
        "puts_per_second": round(puts),
        "ratio": round(commits / puts, 3),
        "contended_workers": len(shares),
        "contended_commits_per_second": round(sum(shares)),
        "contended_commits_per_second_of_the_slowest": round(min(shares), 1),
        "idle_worker_cpu_percent": round(100 * idle_cpu, 2),
        "what": "ReactorWorker, one key incremented per tick; peer: puts in sequence; both on one local etcd, no fsync",
    }


async def _puts_per_second(client: MetaStore, seconds: float) -> float:
    start, count = time.perf_counter(), 0
    while (elapsed_s := time.perf_counter() - start) < seconds:
        await client.put(KEY, b"0")
        count += 1
    return count / elapsed_s


async def _ticks_per_second(client: MetaStore, seconds: float) -> tuple[float, float]:
    """Return commits per second, and CPU seconds of this process per commit."""
    async with open_session(client) as session:
        counter = Counter(anyio.current_time() + seconds)
        state = ClusterState(CLUSTER)
        worker = ReactorWorker(
            client, counter, state=state, session=session, perform=lambda _effect: None, interval_s=0
        )
        start, cpu_start = time.perf_counter(), time.process_time()
        await worker.run()
        commits = worker.statistics().commits
    return commits / (time.perf_counter() - start), (time.process_time() - cpu_start) / commits


class Teller:
    """Moves one from an account to the next, each time another pair: the total must not change."""

    def __init__(self, number: int, deadline: float) -> None:
        self._turns = itertools.count(number)
        self._deadline = deadline

    def tick(self, _state: ClusterState, _inbox: Sequence[object], now: float) -> Sequence[Effect]:
        if now >= self._deadline:
            raise ReactorFinishedError
        turn = next(self._turns)
        source, target = _account(turn), _account(turn + 1)
        moves = [Patch(source, lambda old: _plus(old, -1)), Patch(target, lambda old: _plus(old, 1))]
        return [Commit(PatchGroup(tuple(moves)))]


def _account(number: int) -> str:
    return f"{keys.cluster_prefix(CLUSTER)}bank/{number % _ACCOUNTS}"


def _plus(old: bytes | None, more: int) -> bytes:
    return b"%d" % (int(old or b"0") + more)


async def _contended(url: str, seconds: float) -> list[float]:
    """Return the commits per second of each of several workers over the same accounts, all in this process."""
    shares: list[float] = []
    deadline = anyio.current_time() + seconds
    async with anyio.create_task_group() as tasks:
        for number in range(_TELLERS):
            tasks.start_soon(_serve_bank, url, Teller(number, deadline), seconds, shares)
    client = await connect([url])
    try:
        accounts = await client.get_prefix(f"{keys.cluster_prefix(CLUSTER)}bank/")
    finally:
        await client.close()
    assert sum(int(item.value) for item in accounts.items) == 0, "money was made or lost"
    return shares


async def _serve_bank(url: str, teller: Teller, seconds: float, shares: list[float]) -> None:
    client = await connect([url])
    try:
        async with open_session(client) as session:
            state = ClusterState(CLUSTER)
            worker = ReactorWorker(
                client, teller, state=state, session=session, perform=lambda _effect: None, interval_s=0
            )
            await worker.run()
            shares.append(worker.statistics().commits / seconds)
    finally:
        await client.close()


class Idle:
    def tick(self, _state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        return ()


async def _idle_cpu(client: MetaStore, seconds: float) -> float:
    """Return the share of one core that an idle session and worker use."""
    async with open_session(client) as session:
        state = ClusterState(CLUSTER)
        worker = ReactorWorker(client, Idle(), state=state, session=session, perform=lambda _effect: None)
        start, cpu_start = time.perf_counter(), time.process_time()
        with anyio.move_on_after(seconds):
            await worker.run()
    return (time.process_time() - cpu_start) / (time.perf_counter() - start)
