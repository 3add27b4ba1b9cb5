"""How many decisions a second the worker loop commits, against bare puts on the same etcd.

A committed tick is a full round: apply what the watch brought, decide, one transaction with its compares, and the
wait until the watch has brought it back. The peer is sequential puts from one client: the least that one round trip
to etcd costs. etcd runs without fsync here, so that the loop is measured and not the disk.
"""

import tempfile
import time
from collections.abc import Sequence

import anyio

from capture.embedded import EmbeddedEtcd
from reactor import keys
from reactor.client import EtcdClient
from reactor.effects import Commit, Effect
from reactor.errors import ReactorFinishedError
from reactor.etcd import connect
from reactor.patches import Patch, PatchGroup
from reactor.session import open_session
from reactor.state import ClusterState
from reactor.worker import EtcdWorker

CLUSTER = "benchmark"
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
    """Both, one after the other, for ``seconds`` each, and an idle worker for as long."""
    with tempfile.TemporaryDirectory() as directory, EmbeddedEtcd(directory, unsafe_no_fsync=True) as etcd:
        return anyio.run(_run, etcd.url, seconds)


async def _run(url: str, seconds: float) -> dict[str, object]:
    client = await connect([url])
    try:
        puts = await _puts_per_second(client, seconds)
        commits, ticks_cpu_s = await _ticks_per_second(client, seconds)
        idle_cpu = await _idle_cpu(client, seconds)
    finally:
        await client.close()
    return {
        "committed_ticks_per_second": round(commits),
        "cpu_ms_per_tick": round(1000 * ticks_cpu_s, 3),
        "puts_per_second": round(puts),
        "ratio": round(commits / puts, 3),
        "idle_worker_cpu_percent": round(100 * idle_cpu, 2),
        "what": "EtcdWorker, one key incremented per tick; peer: sequential puts; both on one local etcd without fsync",
    }


async def _puts_per_second(client: EtcdClient, seconds: float) -> float:
    start, count = time.perf_counter(), 0
    while (elapsed_s := time.perf_counter() - start) < seconds:
        await client.put(KEY, b"0")
        count += 1
    return count / elapsed_s


async def _ticks_per_second(client: EtcdClient, seconds: float) -> tuple[float, float]:
    """Commits a second, and CPU seconds of this process per commit."""
    async with open_session(client) as session:
        counter = Counter(anyio.current_time() + seconds)
        state = ClusterState(CLUSTER)
        worker = EtcdWorker(client, counter, state=state, session=session, perform=lambda _effect: None, interval_s=0)
        start, cpu_start = time.perf_counter(), time.process_time()
        await worker.run()
        commits = worker.statistics().commits
    return commits / (time.perf_counter() - start), (time.process_time() - cpu_start) / commits


class Idle:
    def tick(self, _state: ClusterState, _inbox: Sequence[object], _now: float) -> Sequence[Effect]:
        return ()


async def _idle_cpu(client: EtcdClient, seconds: float) -> float:
    """Share of one core that a session and a worker with nothing to do take."""
    async with open_session(client) as session:
        state = ClusterState(CLUSTER)
        worker = EtcdWorker(client, Idle(), state=state, session=session, perform=lambda _effect: None)
        start, cpu_start = time.perf_counter(), time.process_time()
        with anyio.move_on_after(seconds):
            await worker.run()
    return (time.process_time() - cpu_start) / (time.perf_counter() - start)
